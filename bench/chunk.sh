#!/bin/sh
# What slices cost and save: time and peak of GPT-2's step (full recomputation) and of the head of Llama-3 8B alone,
# in 1, 4, 16 and 64 slices; of the head that others have published figures of (docs/measurements.md), and plans of
# whole steps by auto. BENCH=short leaves out what runs. Usage: bench/chunk.sh [TENON]
set -e
tenon=${1:-build/tenon}
head=${tenon%/*}/bench/chunk_head

# plan NAME LIMIT OPTIONS...: the planned peak of a step beside what it should be at most, in MB.
plan() {
    name=$1 limit=$2
    shift 2
    "$tenon" plan "$@" --json | awk -F '[:,]' -v name="$name" -v limit="$limit" '/^ "peak_bytes"/ {
        printf "%s: planned %.0f MB, at most %s, ratio %.3f\n", name, $2 / 1e6, limit, $2 / 1e6 / limit; exit }'
}

full='--recompute full --chunk auto'
# shellcheck disable=SC2086 # several words
{
    plan 'gpt2 4x1024 f32, clip' 2202 gpt2 --batch-size 4 --seq-len 1024 $full
    plan 'gpt2 4x1024 f32, no clip' 2097 gpt2 --batch-size 4 --seq-len 1024 $full --clip 0
    plan 'gpt2 32x1024 bf16, selective' 8400 gpt2 --batch-size 32 --seq-len 1024 --dtype bf16 --recompute selective \
        --chunk auto
    one='llama3-1b --batch-size 2 --seq-len 2048 --optimizer none'
    plan 'llama3-1b 2x2048 f32' 10300 $one $full
    plan 'llama3-1b 2x2048 bf16' 7600 $one $full --dtype bf16 --param-dtype bf16
}
[ "$BENCH" != short ] || exit 0
for n in 1 4 16 64; do
    "$tenon" bench step --model gpt2 --batch-size 4 --seq-len 1024 --runs 1 --recompute full --chunk lm_head=$n |
        grep -E ' (planned peak|measured peak \(highest byte\)|step)  ' | sed "s/^/$n slices: /"
done
"$head" 8192 4096 128256 bf16 f32 1 4 16 64
"$head" 32768 768 128256 bf16 f32 1 8 32 64
"$head" 32768 768 128256 bf16 same 64
