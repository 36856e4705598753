#!/bin/sh
# --chunk from outside: what is refused, what plans and pages say of it, what a run keeps. Usage: tests/scripts/chunk.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny
batch=$ref/batch.safetensors
small="$ref --batch-size 4 --seq-len 8"

# ---- options ----

expected='chunk: expected off, auto, N or PATTERN=N (N: slices, from 1 to 1000000000), found'
for bad in 0 -1 x 1.5 lm_head lm_head=0 =4 1000000001; do
    gives 2 "$expected \"$bad\"" plan $small --chunk "$bad"
done
gives 2 'chunk: expected one of off, auto and N, found "4" and "8"' plan $small --chunk 4 --chunk lm_head=2 --chunk 8
gives 2 "$expected \"x\"" train $small --steps 1 --data README.md --token-type byte --out "$dir/none" --chunk x
ok "a run that was refused leaves nothing" [ ! -e "$dir/none" ]
gives 2 "$expected \"x\"" grad $ref --batch $batch --out "$dir/none" --chunk x
gives 2 "$expected \"x\"" eval $ref --batch $batch --chunk x
gives 2 "$expected \"x\"" bench plan --model $ref --seq-len 8 --runs 1 --chunk x
gives 2 '--chunk-accumulate: expected f32|same, found "bf16"' plan $small --chunk 2 --chunk-accumulate bf16
for off in '' '--chunk off'; do
    gives 2 'plan: --chunk-accumulate means nothing without --chunk' plan $small $off --chunk-accumulate same
done
gives 2 'grad: --chunk-accumulate means nothing without --chunk' \
    grad $ref --batch $batch --out "$dir/none" --chunk-accumulate f32
gives 2 'eval: unknown option "--chunk-accumulate"' eval $ref --batch $batch --chunk-accumulate same
gives 2 'run: unknown option "--chunk"' run tests/ir/flat.tn --chunk 2
gives 2 'opt: --chunk changes nothing without the pass chunk' opt tests/ir/flat.tn --passes cse --chunk 2
gives 2 'plan: --chunk changes nothing without the pass chunk' plan $small --passes gradients.x,cse --chunk lm_head=2
gives 0 '' opt tests/ir/flat.tn --passes cse --chunk off
gives 2 'plan: --chunk changes nothing in a graph without --passes' plan tests/ir/flat.tn --chunk 2
gives 2 'bench: --chunk is for a model, not for a graph' bench ops tests/ir/flat.tn --chunk 2
gives 0 '--chunk off|auto|N|PATTERN=N' plan --help
gives 0 'gpt2-tiny B=4 T=8 f32 chunk off' bench plan --model $ref --seq-len 8 --runs 1 --chunk off

# ---- what is said of a region ----

cat >"$dir/head.tn" <<'END'
tenon 1
graph head(%x: f32[64, 8] batch, %w: f32[8, 300] param "w", %v: f32[8, 8] param "v") {
  %y: f32[64, 8] = mm(%x, %v)  @"body" forward
  %a: f32[64, 300] = mm(%y, %w)  @"head" forward
  %b: f32[64, 300] = gelu(%a)  @"head" forward
  %d: f32[64, 300] = mul(%b, %b)  @"cost" loss
  %l: f32[] = sum(%d)  @"cost" loss
  return loss %l
}
END
head="$dir/head.tn --passes gradients"
gives 0 ': 4 slices of 16 rows, ' plan $head --chunk head=4
cp "$dir/out" "$dir/plan"
ok "slices, bytes and bits" grep -Eq '^chunk: .*head.* \(%[a-z_]*\): 4 slices of 16 rows, 0\.[0-9]* MiB -> 0\.[0-9]* MiB.*; (same bits as the whole|bits may differ from the whole.s)$' "$dir/plan"
gives 0 ': 7 slices of 10 rows,' plan $head --chunk '*ead::*=7'
gives 2 'chunk "body.none=4": names none of the values' plan $head --chunk body.none=4
for whole in '' '--chunk off' '--chunk head=1'; do
    gives 0 '' plan $head $whole
    ok "plan $whole: no region" not grep -q '^chunk' "$dir/out"
done

gives 0 '' plan $head --explain
ok "candidates where nothing is asked" grep -Eq '^unchunked .* %[a-z_]* @head::.* 64 units: a region of [0-9]+ nodes.*; not taken: ' "$dir/out"
gives 0 '' plan $head --explain --chunk head=4
ok "what was taken" grep -Eq '^chunk  .* axis 0, 64 units: a region of [0-9]+ nodes in .*head.*; 4 slices asked, 4 made, [0-9]+ bytes with them;.* taken: ' "$dir/out"
gives 0 '' plan $head --json
ok "no search where nothing is asked" grep -q '"chunk_candidates": \[\]' "$dir/out"
gives 0 '"policy": "slices=4",' plan $head --json --chunk head=4
ok "a decision" grep -q '"kind": "chunk"' "$dir/out"
for key in value scope op axis outer units unit_elements group bytes_at_peak nodes loops all_reached products_once scopes same_bits \
    slices_asked slices_made bytes_with_slices peak_bytes added_sec taken reason; do
    ok "chunk_candidates has $key" grep -q "^   \"$key\": " "$dir/out"
done
ok "what was made" grep -q '"slices_made": 4' "$dir/out"

# What is said is of the step as it is planned: without the library's reserve, behind recomputation.
taken() { # KEY: of the first region that was taken
    awk -v key="\"$1\":" '/"chunk_candidates"/ { listed = 1 } listed && $1 == key { v = $2 }
        listed && /"taken": true/ { sub(/,$/, "", v); print v; exit }' "$dir/out"
}
echo '{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 10000}' >"$dir/config.json"
for chunk in 4 auto lm_head=4; do
    gives 0 '' plan "$dir/config.json" --batch-size 16 --seq-len 64 --json --chunk $chunk
    planned=$(sed -n 's/^ "peak_bytes": \([0-9]*\),*$/\1/p' "$dir/out")
    ok "$chunk: the peak $planned, with the region $(taken peak_bytes)" [ "$planned" = "$(taken peak_bytes)" ]
done
bytes="$(taken bytes_at_peak) $(taken bytes_with_slices)"
gives 0 '' plan "$dir/config.json" --batch-size 16 --seq-len 64 --json --chunk 4
ok "by N or by name: $bytes" [ "$bytes" = "$(taken bytes_at_peak) $(taken bytes_with_slices)" ]
gives 0 '2 slices of 512 rows, nothing of it at the peak' plan "$dir/config.json" --batch-size 16 --seq-len 64 --recompute full --chunk '*.mlp*=2'
gives 0 '' plan $ref --batch-size 4 --seq-len 16 --chunk auto --explain
ok "nothing is taken" not grep -q '^chunk' "$dir/out"
ok "and none is said to be" not grep -q 'that is taken' "$dir/out"

gives 0 '' plan $head --chunk head=4 --html "$dir/head.html"
for text in '<h2>Slices</h2>' ': 4 slices<' '<td>taken: '; do
    ok "the page has $text" grep -qF -e "$text" "$dir/head.html"
done
gives 0 '' plan $head --html "$dir/whole.html"
ok "that of a whole step has no slices" not grep -q 'Slices\|slices<' "$dir/whole.html"
gives 0 '' plan "$dir/head.tn" --passes grad,accumulate,chunk --accumulate 2 --chunk head=4 --html "$dir/nested.html"
ok "a region within a loop" grep -q '>2 iterations, in it [a-z, ]*head[a-z, ]*: 4 slices<' "$dir/nested.html"
gives 0 '"slices_made": 2' plan $head --json --compare '--chunk head=2' '--chunk head=4'
ok "each side has its own" grep -q '"slices_made": 4' "$dir/out"
# numbers A B: the names of those that differ, or may.
numbers() {
    gives 0 '"difference"' plan $head --json --compare "$1" "$2"
    sed -n '/^ "difference"/,$ s/": .*//p' "$dir/out"
}
chosen='--recompute auto --memory 1GiB'
ok "the same numbers either way" [ "$(numbers '--chunk off' "$chosen" | sort)" = "$(numbers "$chosen" '--chunk off' | sort)" ]
gives 2 '--pareto is not for one side' plan $head --compare '--pareto' ''
gives 2 '--ranks is not for one side' plan $head --compare '--ranks 4' ''
gives 2 'plan: --compare, A: --mesh auto lists meshes; name one' plan demo --batch-size 4 --seq-len 16 --compare '--mesh auto' ''
gives 2 'plan: --what-if is for one plan, not for --compare' plan demo --batch-size 4 --seq-len 16 --mesh dp=2 --shard auto --what-if 'lm_head::mm=0:dp' --compare '--overlap off' ''

# ---- the graph ----

gives 0 '' opt "$dir/head.tn" --passes grad -o "$dir/whole.tn"
gives 0 '' opt "$dir/whole.tn" --passes chunk --chunk head=4 -o "$dir/sliced.tn"
ok "a loop" grep -q ' n=4,' "$dir/sliced.tn"
gives 0 '' check "$dir/whole.tn" "$dir/sliced.tn" --tolerance 1e-5
gives 0 '' opt "$dir/whole.tn" --passes chunk --chunk head=4 --chunk-accumulate same -o "$dir/same.tn"
gives 0 '' check "$dir/sliced.tn" "$dir/same.tn" --tolerance 1e-5

# ---- a run that goes on ----

gives 0 '' train $ref --batch $batch --steps 1 --out "$dir/run"
ok "none is stored as such" grep -q '"chunk": \[\]' "$dir/run/latest/state.json"
gives 2 'train: --chunk: the run began without it, found ["2"]' train --resume --out "$dir/run" --chunk 2
gives 0 '' train --resume --out "$dir/run" --steps 2 --chunk off
sed -i '/"crc32c"/d; s/"chunk": \[\]/"chunk": "off"/' "$dir/run/latest/state.json" # as version 0.1 wrote it
gives 2 'train: --chunk: the run began without it, found ["2"]' train --resume --out "$dir/run" --chunk 2
gives 0 '' train --resume --out "$dir/run" --steps 3

# The same bits, stopped or not; other than the whole's, but in their last digits.
steps="$ref --batch $batch --threads 1 --schedule constant"
gives 0 '' train $steps --steps 4 --chunk lm_head=3 --out "$dir/four"
cp "$dir/out" "$dir/four.out"
gives 0 '' train $steps --steps 2 --chunk lm_head=3 --out "$dir/two"
cp "$dir/out" "$dir/two.out"
gives 0 '' train --resume --out "$dir/two" --steps 4
cat "$dir/out" >>"$dir/two.out"
ok "in slices" grep -q '"policy": "slices=3"' "$dir/two/latest/state.json"
ok "losses of a run that was stopped" cmp "$dir/four.out" "$dir/two.out"
ok "and its weights" cmp "$dir/four/step-4/model.safetensors" "$dir/two/step-4/model.safetensors"
gives 0 '' train $steps --steps 4 --out "$dir/four.whole"
ok "losses of the whole" sh -c 'paste -d " " "$1" "$2" | awk "{ d = \$4 - \$8; if (d * d > 1e-10 * \$4 * \$4) exit 1 } END { exit NR != 4 }"' - \
    "$dir/four.out" "$dir/out"

# What train says, and that a run goes on with the slices that it began with, whatever is said of their seconds.
sliced="demo --data README.md --steps 1 --batch-size 8 --seq-len 64 --threads 1"
gives 0 '' train $sliced --chunk 4 --out "$dir/sliced" --metrics "$dir/sliced.jsonl"
ok "the regions are printed once" [ "$(cat "$dir/out" "$dir/err" | grep -c '^chunk: .* 4 slices of ')" -ge 1 ]
ok "and no more often than they are" [ "$(cat "$dir/out" "$dir/err" | grep '^chunk: ' | sort | uniq -d | wc -l)" = 0 ]
gives 0 '' train $sliced --out "$dir/unsliced" --metrics "$dir/unsliced.jsonl"
ok "a run without it says nothing of slices" not grep -q '^chunk' "$dir/out" "$dir/err"
keys() { sed 's/: [^,}]*//g' "$1"; }
keys "$dir/sliced.jsonl" >"$dir/keys"
keys "$dir/unsliced.jsonl" >"$dir/keys.whole"
ok "metrics have the same fields" cmp "$dir/keys" "$dir/keys.whole"
state=$dir/sliced/latest/state.json
ok "state.json has the option" grep -q '"chunk": \[$' "$state"
ok "and the regions" grep -q '"policy": "slices=4"' "$state"
sed '/"crc32c"/d' "$state" >"$dir/state"
gives 2 'train: --chunk: the run began with ["4"], found ["8"]' train --resume --out "$dir/sliced" --steps 2 --chunk 8
sed -i '/"crc32c"/d; s/"policy": "slices=4"/"policy": "slices=8"/' "$state"
gives 1 'the plan is another than the run' train --resume --out "$dir/sliced" --steps 2
ok "what is other" grep -q 'decisions: stored .*slices=8' "$dir/err"
sed 's/"reason": "holds the peak[^"]*"/"reason": "was worth 3 ms"/' "$dir/state" >"$state"
ok "a reason was changed" not cmp -s "$state" "$dir/state"
gives 0 '' train --resume --out "$dir/sliced" --steps 2

# ---- where the logits hold the peak: of the step, and of evaluations on the way ----

large="--data README.md --token-type byte --threads 1"
peak() { sed -n 's/^  peak *\([0-9]*\) bytes.*/\1/p' "$dir/err" | head -1; }
step="train $dir/config.json $large --tokenizer bytes --steps 1 --batch-size 16 --seq-len 64 --sample-tokens 2"
gives 0 '' $step --out "$dir/whole"
whole=$(peak)
for chunk in auto lm_head=8; do
    gives 0 '' $step --chunk $chunk --out "$dir/$chunk"
    ok "train --chunk $chunk: a third of the peak: expected at most $((whole / 3)), found $(peak)" [ "$(peak)" -le $((whole / 3)) ]
    ok "train --chunk $chunk: evaluations need no more than the step" not grep -q 'evaluation and sampling need more' "$dir/err"
done
for chunk in off auto; do
    gives 0 'loss 9.' eval "$dir/whole" $large --chunk $chunk
    sed -n 's/.*arena \([0-9]*\) bytes.*/\1/p' "$dir/err" >"$dir/arena.$chunk"
done
ok "eval --chunk auto: half of the arena" [ "$(cat "$dir/arena.auto")" -le $(($(cat "$dir/arena.off") / 2)) ]

totals
