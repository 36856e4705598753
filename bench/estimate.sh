#!/bin/sh
# Estimated seconds of a training step against measured ones, and of what recomputing adds: the shapes for
# which the table of this processor was fitted. BENCH=short: the two small ones. CLOCK=cpu: CPU time of one thread,
# for a machine that others use. Usage: bench/estimate.sh [BUILD]
set -e
CLOCK=${CLOCK:-wall}
build=${1:-build}
make -s BUILD="$build" "$build/bench/estimate"
for dtype in f32 bf16; do
    "$build/bench/estimate" demo 8 128 $dtype 21 "$CLOCK"
    "$build/bench/estimate" gpt2 4 64 $dtype 7 "$CLOCK"
    [ "$BENCH" = short ] && continue
    "$build/bench/estimate" gpt2 4 1024 $dtype 3 "$CLOCK"
    "$build/bench/estimate" bench/llama3-1b-4-layers.json 1 2048 $dtype 3 "$CLOCK"
done
