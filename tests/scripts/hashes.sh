#!/bin/sh
# Hashes of all results (TENON_HASHES): ranks with a microbatch each compute what one rank does in each iteration,
# node by node, and those that accumulate what it does in theirs; tools/hashes.sh names the first node at which runs
# part. Usage: tests/scripts/hashes.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny
batch=$ref/batch.safetensors

# hashed NAME ARGUMENTS...: two steps of training.
hashed() {
    name=$1
    shift
    TENON_HASHES=$dir/$name "$tenon" train $ref --batch "$batch" --steps 2 --clip 0.5 --threads 1 \
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

# Two microbatches of each of two ranks, of what ends before the first update: 2 and 1 of four rows of 16 tokens.
batch=$dir/rows
bytes=$((4 * 16 * 8))
tensors "$batch" "{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[4,16],\"data_offsets\":[0,$bytes]},\"labels\":{\"dtype\":\"I64\",\"shape\":[4,16],\"data_offsets\":[$bytes,$((2 * bytes))]}}" \
    "$(awk 'BEGIN { for (i = 0; i < 128; i++) printf "\\%03o\\0\\0\\0\\0\\0\\0\\0", (7 * i + i * i) % 97 }')"
hashed four --dropout 0.1 --accumulate 4
hashed fsdp2 --dropout 0.1 --mesh fsdp=2 --accumulate 2
hashed dp2 --dropout 0.1 --mesh dp=2 --accumulate 2
for file in four fsdp2.0 fsdp2.1 dp2.0 dp2.1; do
    grep '^1	' "$dir/$file" >"$dir/first.$file"
done
for rank in 0 1; do
    for mesh in fsdp2 dp2; do
        compared 0 '^1[0-9][0-9] results are the same' first.four first.$mesh.$rank $rank/2
    done
done
compared 1 'run 1, iteration 0: %embedding ' four dp2.1 0/2
compared 1 'run 2, iteration ' four dp2.1 1/2
compared 2 'expected MICROBATCH/RANKS' four dp2.1 1
totals
