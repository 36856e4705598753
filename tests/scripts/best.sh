#!/bin/sh
# What evaluations decide: the best checkpoint, --patience, perplexity and bits per byte; runs that are cut, killed
# and go on have both to the bit. Usage: tests/scripts/best.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
head -c 60000 docs/formats.md >"$dir/text"
run="$ref --data $dir/text --token-type byte --batch-size 2 --seq-len 16 --lr 0.1 --schedule constant --threads 1"
every="--eval-every 4 --patience 3"
# best OUT: its step, loss and windows by the last checkpoint, which may have been saved before the last evaluation.
best() { tr -d '\n' <"$dir/$1/latest/state.json" | sed 's/.*"best": {\([^}]*\), *"waited".*/\1/; s/  *//g'; }
# same OUT: weights, best and its link are those of the run that was not cut.
same() {
    ok "$1: best" [ "$(best "$1")" = "$(best whole)" ]
    ok "$1: its link" [ "$(readlink "$dir/$1/best")" = "$(readlink "$dir/whole/best")" ]
    for file in model optimizer; do
        ok "$1: the best $file" cmp "$dir/$1/best/$file.safetensors" "$dir/whole/best/$file.safetensors"
        ok "$1: the last $file" cmp "$dir/$1/latest/$file.safetensors" "$dir/whole/latest/$file.safetensors"
    done
}
# evaluations FILE: losses by step of a file of metrics.
evaluations() { sed -n 's/.*"step": \([0-9]*\), "eval_loss": \([^,]*\), .*/\1 \2/p' "$1"; }

# ---- the best, and when it ends ----

# shellcheck disable=SC2086
trains whole $run --steps 80 $every --keep 1 --metrics "$dir/whole.jsonl"
evaluations "$dir/whole.jsonl" >"$dir/evaluations"
least=$(sort -gk2 "$dir/evaluations" | head -1 | cut -d' ' -f1)
last=$(tail -1 "$dir/evaluations" | cut -d' ' -f1)
ok "it ends three evaluations after the best" [ "$last" = $((least + 12)) ]
ok "three in a row are seldom before that" [ "$(wc -l <"$dir/evaluations")" = $((last / 4)) ]
said "stopped after step $last, by --patience: 3 evaluations in a row have not bettered the held-out loss"
said ", after step $least: $dir/whole/best"
ok "best and the last one are kept" [ "$(cd "$dir/whole" && echo *)" = "best latest step-$least step-$last" ]
ok "the link" [ "$(readlink "$dir/whole/best")" = "step-$least" ]
gives 0 'perplexity' eval "$dir/whole/best" --data "$dir/text" --val-fraction 0.1 --seq-len 16 --eval-windows 64 --batch-size 2 --threads 1 --json
ok "its loss" grep -q "\"eval_loss\": $(sort -gk2 "$dir/evaluations" | head -1 | cut -d' ' -f2)," "$dir/out"
trains whole --resume
said "stopped after step $last"
ok "it does not evaluate again" not grep -q 'evaluating' "$dir/err"

# ---- runs that go on ----

# shellcheck disable=SC2086
trains cut $run --steps 42 $every
trains cut --resume --steps 80
same cut

# Killed after the save of a step and before its evaluation, and before the link.
# shellcheck disable=SC2086
trains killed $run --steps 80 $every --save-every 4 --metrics "$dir/killed.jsonl"
cp -r "$dir/killed" "$dir/link"
back() {
    for step in "$dir/$1"/step-*; do
        [ "${step##*-}" -le "$2" ] || rm -r "$step"
    done
    ln -sfn "step-$2" "$dir/$1/latest"
    ln -sfn "$3" "$dir/$1/best"
}
back killed $((least + 8)) "step-$least"
trains killed --resume
same killed
back link "$least" step-4
trains link --resume
same link
evaluations "$dir/killed.jsonl" >"$dir/again"
ok "each evaluation once in the metrics" cmp "$dir/evaluations" "$dir/again"
back link "$least" step-4
rm "$dir/link/.evaluated"
trains link --resume --steps 80
same link

# shellcheck disable=SC2086
for moment in 1 3 5; do
    "$tenon" train $run --steps 80 $every --keep 1 --save-every 1 --resume --out "$dir/shot" >/dev/null 2>"$dir/err" &
    pid=$!
    sleep "0.0$((4 + moment))"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ ! -L "$dir/shot/best" ] || ok "moment $moment: best is whole" [ -s "$dir/shot/best/state.json" ]
done
trains shot $run --steps 80 $every --keep 1 --save-every 1 --resume
same shot
trains whole --resume --patience 5
ok "more patience goes on" grep -q "^trained" "$dir/err"

# ---- bits per byte ----

printf '0 more or less' >"$dir/short"
loss=$(gives 0 'perplexity' eval $ref --data "$dir/short" --token-type byte --json; sed 's/.*"eval_loss": \([^,]*\), .*"bits_per_byte": \([^,]*\),.*/\1 \2/' "$dir/out")
ok "of bytes: nats by ln 2" awk -v x="$loss" 'BEGIN { split(x, v, " "); d = v[1] / log(2) / v[2] - 1; exit !(d < 1e-8 && d > -1e-8) }'
mkdir "$dir/M"
sed 's/"vocab_size": *[0-9]*/"vocab_size": 512/' tests/ref/gpt2-tiny/config.json >"$dir/M/config.json"
cp tests/tokenizer/gpt2.json "$dir/M/tokenizer.json"
printf 'one more text, for weights' >"$dir/t"
trains N "$dir/M/config.json" --data "$dir/t" --token-type byte --steps 1 --batch-size 1 --seq-len 4 --val-fraction 0
cp "$dir/N/latest/model.safetensors" "$dir/M"
gives 0 '' eval "$dir/M" --data "$dir/short" --json
ok "of tokens: nats of all by bytes but the first token's" awk '{
    n = split($0, part, /[ ,:{}"]+/)
    for (i = 1; i < n; i++) v[part[i]] = part[i + 1]
    d = v["eval_loss"] * v["tokens"] / log(2) / 13 / v["bits_per_byte"] - 1
    exit !(v["tokens"] < 13 && d < 1e-8 && d > -1e-8) }' "$dir/out"
printf '\1\0\2\0\3\0' >"$dir/ids"
mkdir "$dir/ids only"
cp "$dir/M/model.safetensors" "$dir/M/config.json" "$dir/ids only"
gives 0 '"bits_per_byte": null' eval "$dir/ids only" --data "$dir/ids" --token-type u16 --json

# ---- refusals ----

# shellcheck disable=SC2086
gives 2 '--patience needs --eval-every' train $run --steps 2 --patience 1 --out "$dir/no"
mkdir -p "$dir/no/best"
# shellcheck disable=SC2086
gives 1 'no/best: a folder, where a link to the best checkpoint is to be' train $run --steps 2 --eval-every 1 --out "$dir/no"
cp -r "$dir/killed" "$dir/bad"
sed -i '/"crc32c"/d; s/"waited": [0-9]*/"waited": -1/' "$dir/bad/latest/state.json"
gives 1 'state.json: "best": expected step' train --resume --out "$dir/bad" --patience 9
totals
