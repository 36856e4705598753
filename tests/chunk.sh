#!/bin/sh
# --chunk from outside: what is refused, what plans and pages say of it, what a run keeps. Usage: tests/chunk.sh BUILD
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

# ---- a run that goes on ----

gives 0 '' train $ref --batch $batch --steps 1 --out "$dir/run"
ok "none is stored as such" grep -q '"chunk": \[\]' "$dir/run/latest/state.json"
gives 2 'train: --chunk: the run began without it, found ["2"]' train --resume --out "$dir/run" --chunk 2
gives 0 '' train --resume --out "$dir/run" --steps 2 --chunk off
sed -i 's/"chunk": \[\]/"chunk": "off"/' "$dir/run/latest/state.json" # as version 0.1 wrote it
gives 2 'train: --chunk: the run began without it, found ["2"]' train --resume --out "$dir/run" --chunk 2
gives 0 '' train --resume --out "$dir/run" --steps 3

totals
