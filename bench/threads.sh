#!/bin/sh
# What threads give and what they cost: a step of GPT-2 at T=1024 on one thread and on two, and a step of the
# demo model alone and beside another busy process. Only a machine that is quiet otherwise says anything.
# Usage: bench/threads.sh [TENON]
set -e
tenon=${1:-build/tenon}

# step ARGUMENTS: seconds of a step, the median of its runs.
step() {
    "$tenon" bench step "$@" | awk '$5 == "step" && $7 == "s" { print $6 }'
}

# ratio WHAT X Y
ratio() {
    awk -v what="$1" -v x="$2" -v y="$3" \
        'BEGIN { printf "%-46s %8.3f s / %.3f s = %.2f\n", what, x, y, x / y }'
}

for dtype in f32 bf16; do
    one=$(step --model gpt2 --batch-size 1 --seq-len 1024 --dtype $dtype --threads 1)
    two=$(step --model gpt2 --batch-size 1 --seq-len 1024 --dtype $dtype --threads 2)
    ratio "gpt2 B=1 T=1024 $dtype: 1 thread / 2" "$one" "$two"
done

alone=$(step --model demo --batch-size 16 --seq-len 256 --runs 15)
while :; do :; done &
busy=$!
trap 'kill $busy' EXIT
beside=$(step --model demo --batch-size 16 --seq-len 256 --runs 15)
ratio "demo: beside a busy process / alone" "$beside" "$alone"
