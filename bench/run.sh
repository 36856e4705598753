#!/bin/sh
# What `make bench` prints: every speed and memory promise as a ratio measured in this run. About an hour on two
# cores; BENCH=short leaves out what takes longest. The speeds, and PyTorch beside them: speed.sh.
# Usage: bench/run.sh [TENON]
set -e
tenon=${1:-build/tenon}
here=$(dirname "$0")
long() { [ "$BENCH" != short ]; }

"$here/speed.sh" "$tenon"
! long || "$(dirname "$tenon")/bench/place"
"$here/shard.sh" "$tenon"
$tenon bench plan --model gpt2 --batch-size 4 --seq-len 1024
"${tenon%/*}/bench/flow"
"$here/recompute.sh" "$tenon"
"$here/chunk.sh" "$tenon"
$tenon bench ops "$here/stream.tn"
"$here/threads.sh" "$tenon"
"$here/link.sh" "${tenon%/*}" || :
