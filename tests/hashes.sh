#!/bin/sh
# Hashes of all results (TENON_HASHES): ranks with a microbatch each compute what one rank does in each iteration,
# node by node; tools/hashes.sh names the first node at which runs part. Usage: tests/hashes.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny

# hashed NAME ARGUMENTS...: two steps of training.
hashed() {
    name=$1
    shift
    TENON_HASHES=$dir/$name "$tenon" train $ref --batch $ref/batch.safetensors --steps 2 --clip 0.5 --threads 1 \
        "$@" --out "$dir/run-$name" >"$dir/out" 2>"$dir/err"
    ok "train $*" [ $? = 0 ]
}
# compared CODE TEXT ARGUMENTS...: what tools/hashes.sh ends with, and says.
compared() {
    code=$1
    text=$2
    shift 2
    (cd "$dir" && "$top/tools/hashes.sh" "$@") >"$dir/out" 2>"$dir/err"
    ok "hashes.sh $*: exit code $code" [ $? = "$code" ]
    ok "hashes.sh $*: $text" grep -q "$text" "$dir/out"
}
top=$PWD
hashed one --dropout 0.1 --accumulate 2
hashed other --dropout 0.11 --accumulate 2
hashed fsdp --dropout 0.1 --mesh fsdp=2
hashed dp --dropout 0.1 --mesh dp=2
for rank in 0 1; do
    for mesh in fsdp dp; do
        compared 0 '^1[0-9][0-9] results are the same' one $mesh.$rank $rank
    done
    compared 1 'run 1, iteration .: %dropout .* of fused, scope "drop": ' other dp.$rank $rank
done
compared 1 'run 1, iteration 0: %embedding ' one fsdp.1 0
compared 0 'results are the same' dp.0 dp.0
compared 1 'run 1, iteration 0: %dropout ' one other
: >"$dir/none"
compared 2 '^0 results are the same' none dp.0
totals
