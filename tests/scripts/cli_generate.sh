#!/bin/sh
# tenon eval, generate, plot and --profile from outside: what they print and write, that the same command
# gives the same, files that are torn, wrong usage. Usage: tests/scripts/cli_generate.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny

# field NAME FILE: a number of a JSON object.
field() {
    sed -n "s/.*\"$1\": \\([^,}]*\\).*/\\1/p" "$2" | tail -1
}

for command in eval generate plot; do
    gives 0 "usage: tenon $command" $command --help
    gives 2 "$command: unknown option \"--sede\"" $command --sede 3
    gives 2 "expected 1 argument, found 0" $command
done

# ---- a model of bytes, its metrics and a profile ----

seq 1 2000 | tr '\n' ' ' >"$dir/text"
train() {
    gives 0 "" train demo --data "$dir/text" --batch-size 2 --seq-len 32 --lr 3e-3 "$@"
}
train --steps 6 --eval-every 2 --eval-windows all --out "$dir/run" --metrics "$dir/m" --profile "$dir/trace" --accumulate 2 \
    --sample-tokens 20 --prompt "1 2 3" --seed 4
ok "a sample begins with its prompt" grep -q '^1 2 3' "$dir/out"
ok "three steps in the profile" [ "$(grep -c '"name": "step [345]"' "$dir/trace")" = 3 ]
ok "no other steps" not grep -q '"name": "step [1269]"' "$dir/trace"
for name in loop 'iteration 0' 'iteration 1' adamw mm flash_attention_backward 'live bytes'; do
    ok "the profile shows $name" grep -q "\"name\": \"$name\"" "$dir/trace"
done
ok "scopes and rates" grep -q '"scope": "layers.0.self_attn.q_proj", "phase": "forward", .*"gflop_per_sec"' "$dir/trace"
train --steps 1 --out "$dir/one" --profile "$dir/trace1"
ok "a run of one step" grep -q '"name": "step 1"' "$dir/trace1"
"$tenon" train demo --data "$dir/text" --batch-size 2 --seq-len 32 --steps 9 --out "$dir/two" \
    --profile /none/trace >"$dir/out" 2>"$dir/err"
ok "a profile that cannot be written: exit code 1" [ $? = 1 ]
ok "its message" grep -q '^tenon: /none/trace: cannot create' "$dir/err"
ok "before the first step" not grep -q '^step' "$dir/err"
gives 2 "needs --sample-tokens" train demo --data "$dir/text" --batch-size 2 --seq-len 32 --steps 1 \
    --out "$dir/two" --prompt x
gives 2 "expected a text, found none" train demo --data "$dir/text" --batch-size 2 --seq-len 32 --steps 1 \
    --out "$dir/two" --sample-tokens 3 --prompt ""

# ---- eval ----

gives 0 "perplexity" eval "$dir/run" --data "$dir/text" --val-fraction 0.1 --batch-size 1
loss=$(sed -n 's/^loss //p' "$dir/out")
ok "the loss that training found: $loss" [ "$loss" = "$(field eval_loss "$dir/m")" ]
gives 0 "" eval "$dir/run" --data "$dir/text" --val-fraction 0.1 --batch-size 1 --json
ok "the same as JSON" [ "$loss" = "$(field eval_loss "$dir/out")" ]
ok "the windows of training" [ "$(field seq_len "$dir/out")" = 32 ]
bytes=$(wc -c <"$dir/text")
gives 0 "" eval "$dir/run" --data "$dir/text" --json
ok "all of the data" [ "$(field tokens "$dir/out")" = $((bytes - 1)) ]
head -c 900 "$dir/text" >"$dir/less"
gives 0 "" eval "$dir/run" --data "$dir/less" --json --seq-len 1000 --batch-size 9
ok "one window" [ "$(field windows "$dir/out")" = 1 ]
gives 0 "" eval demo --data "$dir/text" --seq-len 700 --batch-size 1
loss=$(sed -n 's/^loss \(.......\).*/\1/p' "$dir/out")
ok "without training about log 256: $loss" \
    awk -v x="$loss" 'BEGIN { exit !(x > 5.4 && x < 5.8) }'
gives 0 "loss $loss" eval demo --data "$dir/text" --seq-len 700 --batch-size 5
gives 2 "eval: --data or --batch is missing" eval "$dir/run"
gives 2 "unknown option \"--accumulate\"" eval "$dir/run" --data "$dir/text" --accumulate 2
gives 2 "unknown option \"--dropout\"" eval "$dir/run" --data "$dir/text" --dropout 0.1
gives 1 "no such file" eval "$dir/run" --data "$dir/none"
gives 3 "the least that would do is" eval "$dir/run" --data "$dir/text" --memory 1MiB
gives 2 "the model has 32 positions" eval $ref --data "$dir/text" --seq-len 33
printf x >"$dir/x"
gives 1 "expected at least 2 tokens to evaluate, found 1" eval demo --data "$dir/x"
printf '\1\0\2\0\3\0\4\0\5\0' >"$dir/tokens"
gives 0 "" eval $ref --data "$dir/tokens" --token-type u16 --json
ok "4 labels" [ "$(field tokens "$dir/out")" = 4 ]

# ---- generate ----

write() {
    gives 0 "tokens/s" generate "$dir/run" --prompt "7 8" "$@"
}
write --tokens 25
cp "$dir/out" "$dir/a"
ok "the prompt, then as many bytes, then a line end" [ "$(wc -c <"$dir/out")" = $((3 + 25 + 1)) ]
ok "the prompt first" [ "$(head -c 3 "$dir/out")" = "7 8" ]
write --tokens 25
ok "the same seed, the same text" cmp -s "$dir/a" "$dir/out"
write --tokens 25 --seed 1
ok "another seed, another text" not cmp -s "$dir/a" "$dir/out"
write --tokens 25 --temperature 0
cp "$dir/out" "$dir/a"
write --tokens 25 --temperature 1 --top-k 1 --seed 5
ok "the most likely token" cmp -s "$dir/a" "$dir/out"
write --tokens 25 --temperature 1 --top-p 1e-9 --check
ok "the most likely token, by top-p" cmp -s "$dir/a" "$dir/out"
write --tokens 10 --temperature 0
ok "fewer tokens begin alike" [ "$(head -c 13 "$dir/a")" = "$(head -c 13 "$dir/out")" ]
write --tokens 90 --temperature 0
ok "the window of training" grep -q '^window: 32 tokens (--seq-len of its training' "$dir/err"
ok "a text longer than the window" [ "$(wc -c <"$dir/out")" = $((3 + 90 + 1)) ]
gives 0 "prompt: $bytes tokens" generate "$dir/run" --prompt "$(cat "$dir/text")" --tokens 1 --context 1000
gives 0 "prompt: $bytes tokens" generate "$dir/run" --prompt "$(cat "$dir/text")" --tokens 1 --context 7
# Of a longer prompt the model sees as many of its last tokens as the window holds.
head -c 40 "$dir/text" >"$dir/long"
gives 0 'the model sees the last 32' generate "$dir/run" --prompt "$(cat "$dir/long")" --tokens 8 --temperature 0 --context 32
tail -c 8 "$dir/out" >"$dir/seen"
gives 0 '' generate "$dir/run" --prompt "$(tail -c 32 "$dir/long")" --tokens 8 --temperature 0 --context 32
ok "as of these alone" [ "$(tail -c 8 "$dir/out")" = "$(cat "$dir/seen")" ]
next=$(head -c 4 "$dir/a" | tail -c 1)
write --tokens 25 --temperature 0 --end "$next"
ok "ends at a token" [ "$(wc -c <"$dir/out")" = 4 ]
gives 2 "generate: --prompt or --message is missing" generate demo --tokens 3
gives 2 "generate: --tokens is missing" generate demo --prompt x
gives 2 "expected a text, found none" generate demo --tokens 3 --prompt ""
gives 2 "--top-p: expected a number" generate demo --prompt x --tokens 3 --top-p 1.1
gives 2 'the tokenizer has no token "<|end|>"' generate demo --prompt x --tokens 3 --end "<|end|>"
gives 2 "a vocabulary of 97 is not one of bytes" generate $ref --prompt x --tokens 3
gives 1 "token 0 is 120, but the model has 97 tokens" generate $ref --prompt x --tokens 3 --tokenizer bytes
gives 2 "the model has 32 positions" generate $ref --prompt ! --tokens 3 --tokenizer bytes --context 33
gives 0 "" generate $ref --prompt ! --tokens 60 --tokenizer bytes
ok "a model's limit" grep -q '^window: 32 tokens (all that the model has' "$dir/err"
gives 3 "the least that would do is" generate demo --prompt x --tokens 3 --memory 1MiB
gives 1 "no such folder and no preset" generate dmo --prompt x --tokens 3
gives 1 "cannot" generate demo --prompt x --tokens 3 --tokenizer "$dir/none.json"

# ---- a tokenizer of the model's own ----

cp -r $ref "$dir/model"
cat >"$dir/model/tokenizer.json" <<'END'
{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
 "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4}, "merges": ["a b", "ab c"]}}
END
gives 0 "prompt: 2 tokens" generate "$dir/model" --prompt abcab --tokens 5
ok "text, not ids" grep -q '^abcab' "$dir/out"
gives 1 "no token" generate "$dir/model" --prompt abcx --tokens 5
gives 0 "prompt: 5 tokens" generate "$dir/model" --prompt '!!!!!' --tokens 5 --tokenizer bytes
# It goes with what is trained from there, to what is trained from that, and so does one that is named.
batch=$ref/batch.safetensors
gives 0 "" train "$dir/model" --batch $batch --steps 2 --save-every 1 --keep 1 --out "$dir/tuned"
ok "a checkpoint has the tokenizer" cmp "$dir/model/tokenizer.json" "$dir/tuned/latest/tokenizer.json"
gives 0 "" train --resume --batch $batch --steps 4 --out "$dir/tuned"
ok "the last one, too" cmp "$dir/model/tokenizer.json" "$dir/tuned/step-4/tokenizer.json"
gives 0 "prompt: 2 tokens" generate "$dir/tuned" --prompt abcab --tokens 5
head -c 3000 docs/formats.md >"$dir/bytes"
gives 0 "" train demo --data "$dir/bytes" --steps 1 --batch-size 1 --seq-len 8 --out "$dir/named" \
    --tokenizer "$dir/model" --token-type byte
ok "one that was named" cmp "$dir/model/tokenizer.json" "$dir/named/latest/tokenizer.json"
echo '{"version": "1.0"' >"$dir/model/tokenizer.json"
gives 1 "tokenizer.json" generate "$dir/model" --prompt abcab --tokens 5

# ---- plot ----

gives 0 "" plot "$dir/m" -o "$dir/a.svg"
ok "an SVG" [ "$(head -c 4 "$dir/a.svg")" = "<svg" ]
ok "whole" [ "$(tail -1 "$dir/a.svg")" = "</svg>" ]
for part in "<title>Training loss</title>" ">step</text>" ">loss</text>" ">held out</text>" ">training</text>" \
    "lowest held-out loss"; do
    ok "the picture has $part" grep -qF "$part" "$dir/a.svg"
done
ok "a dot for each evaluation and one in the legend" \
    [ "$(grep -c '<circle' "$dir/a.svg")" = $(($(grep -c eval_loss "$dir/m") + 1)) ]
"$tenon" plot - -o - <"$dir/m" >"$dir/b.svg"
ok "standard input and output" cmp -s "$dir/a.svg" "$dir/b.svg"
printf '{"step": 7, "loss": 1.2' >>"$dir/m"
gives 0 "" plot "$dir/m" -o "$dir/b.svg"
ok "a torn last line is passed over" cmp -s "$dir/a.svg" "$dir/b.svg"
ok "in silence" [ ! -s "$dir/err" ]
{
    echo '{"step": 1, "loss": 4}'
    echo 'no JSON'
    echo '{"step": 2, "loss": null, "eval_loss": 3}'
    echo '{"step": 4, "loss": 2}'
    echo '{"step": 3, "loss": 9}'
    echo '{"step": 3, "loss": 3}'
} >"$dir/n"
gives 0 "not metrics: 1 line, the first is line 2" plot "$dir/n" -o "$dir/a.svg" --title 'a<b & "c"' --smooth 1
ok "a title as it is" grep -q '<title>a&lt;b &amp; "c"</title>' "$dir/a.svg"
ok "a loss that is not finite is marked" grep -qF 'not finite: 1' "$dir/a.svg"
{
    echo '{"step": 1, "loss": 4}'
    echo '{"step": 2, "loss": null, "eval_loss": 3}'
    echo '{"step": 3, "loss": 3}'
    echo '{"step": 4, "loss": 2}'
} >"$dir/n"
gives 0 "" plot "$dir/n" -o "$dir/b.svg" --title 'a<b & "c"' --smooth 1
ok "steps in order, the later of two lines" cmp -s "$dir/a.svg" "$dir/b.svg"
for lines in '{"step": 5, "loss": 2.5}' '{"step": 0, "eval_loss": 0}' \
    '{"step": 1, "loss": 1e300}
{"step": 2, "loss": -1e300}' '{"step": 1000000000000, "loss": 1e-300}'; do
    echo "$lines" >"$dir/n"
    gives 0 "" plot "$dir/n" -o "$dir/a.svg"
    ok "no number is lost: $lines" not grep -qE 'nan|inf[^i"]' "$dir/a.svg"
done
# A partial evaluation and a full one: other names, other lines.
seq 1 4000 | tr '\n' ' ' >"$dir/long"
gives 0 "step 2  partial held-out loss" train demo --data "$dir/long" --batch-size 2 --seq-len 16 --steps 3 --eval-every 2 \
    --out "$dir/evals" --metrics "$dir/e" --val-fraction 0.2
ok "of some windows" grep -q 'partial held-out loss .* in 64 of [0-9]* windows$' "$dir/err"
ok "at the end of the same" grep -q 'step 3 .* in 64 of [0-9]* windows$' "$dir/err"
gives 0 'already at step 3' train --resume --out "$dir/evals" --eval-windows all
ok "then of all" grep -q '^step 3  held-out loss .* in \([0-9]*\) of \1 windows$' "$dir/err"
ok "the names" [ "$(sed -n 's/.*"\(eval_loss_[a-z]*\)".*/\1/p' "$dir/e" | tr '\n' ' ')" = "eval_loss_partial eval_loss_full " ]
ok "one name for both, too" [ "$(grep -c '"eval_loss": ' "$dir/e")" = 2 ]
gives 0 "" plot "$dir/e" -o "$dir/b.svg"
for part in ">held out</text>" ">part of held out</text>" "lowest partial held-out loss" "lowest held-out loss"; do
    ok "the picture has $part" grep -qF "$part" "$dir/b.svg"
done
ok "a dot for each in a color of its own, and in the legend" \
    [ "$(sed -n 's/.*<circle.*fill="\(#[0-9a-f]*\)".*/\1/p' "$dir/b.svg" | sort | uniq -c | awk '{ print $1 }' | tr '\n' ' ')" = "2 2 " ]
# The same as CSV.
gives 0 "" train demo --data "$dir/long" --batch-size 2 --seq-len 16 --steps 3 --eval-every 2 --out "$dir/csv" \
    --metrics "$dir/e.csv" --val-fraction 0.2
gives 0 "" train --resume --out "$dir/csv" --eval-windows all
printf '4,2.5,,0.1' >>"$dir/e.csv"
gives 0 "" plot "$dir/e.csv" -o "$dir/c.svg"
ok "CSV: the same picture" cmp "$dir/b.svg" "$dir/c.svg"
ok "CSV: a torn last line is passed over in silence" [ ! -s "$dir/err" ]
{ cat "$dir/e.csv"; echo; echo 'no number,1'; } >"$dir/bad.csv"
gives 0 "bad.csv: not metrics: 2 lines, the first is line 7" plot "$dir/bad.csv" -o "$dir/c.svg"
rm "$dir/c.svg"
seq 1 30000 | awk '{ printf "{\"step\": %d, \"loss\": %.4f}\n", $1, 2 + $1 * 7919 % 101 / 100 }' >"$dir/n"
gives 0 "" plot "$dir/n" -o "$dir/a.svg"
ok "a long run is a small picture" [ "$(wc -c <"$dir/a.svg")" -lt 200000 ]
: >"$dir/empty"
gives 1 "found none with a finite loss" plot "$dir/empty" -o "$dir/c.svg"
ok "nothing is written" [ ! -e "$dir/c.svg" ]
gives 1 "cannot open" plot "$dir/none" -o "$dir/c.svg"
gives 1 "cannot create" plot "$dir/n" -o /none/c.svg
gives 2 "plot: --output is missing" plot "$dir/n"

# ---- run --profile ----

cat >"$dir/g.tn" <<'END'
tenon 1
graph g(%i: i64[2]) {
  %y: i64[2] = add(%i, %i)  forward
  return %y
}
END
header='{"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}'
n=$(printf %s "$header" | wc -c)
# shellcheck disable=SC2059
{
    printf "$(printf '\\%03o\\0\\0\\0\\0\\0\\0\\0' "$n")"
    printf %s "$header"
    printf '\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0'
} >"$dir/in"
gives 0 "" run "$dir/g.tn" --inputs "$dir/in" --profile "$dir/trace"
ok "one run" [ "$(grep -c '"name": "step 1"' "$dir/trace")" = 1 ]
ok "one call" [ "$(grep -c '"name": "add"' "$dir/trace")" = 1 ]
gives 0 "" run "$dir/g.tn" --inputs "$dir/in" --json --profile "$dir/trace"
ok "of two runs the second" [ "$(grep -c '"name": "add"' "$dir/trace")" = 1 ]

totals
