#!/bin/sh
# What `make bench` prints: every speed and memory promise as a ratio measured in this run. About ten
# minutes on two cores; BENCH=short leaves out what takes longest.
# Usage: bench/run.sh [TENON]
set -e
tenon=${1:-build/tenon}
$tenon bench plan --model gpt2 --batch-size 4 --seq-len 1024
$tenon bench ops bench/attention.tn
$tenon bench ops bench/stream.tn
for dtype in f32 bf16; do
    $tenon bench step --model gpt2 --batch-size 4 --seq-len 64 --dtype $dtype
    $tenon bench step --model demo --batch-size 16 --seq-len 256 --dtype $dtype
    [ "$BENCH" = short ] || $tenon bench step --model gpt2 --batch-size 4 --seq-len 1024 --dtype $dtype
done
