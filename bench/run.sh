#!/bin/sh
# What `make bench` prints: every speed and memory promise as a ratio measured in this run. About
# half an hour on two cores; BENCH=short leaves out what takes longest. PYTHON (python3 by default)
# is compared with where it can import torch.
# Usage: bench/run.sh [TENON]
set -e
tenon=${1:-build/tenon}
here=$(dirname "$0")
python=${PYTHON:-python3}
long() { [ "$BENCH" != short ]; }

! long || "$(dirname "$tenon")/bench/place"
$tenon bench plan --model gpt2 --batch-size 4 --seq-len 1024
"${tenon%/*}/bench/flow"
"$here/recompute.sh" "$tenon"
"$here/chunk.sh" "$tenon"
$tenon bench ops "$here/attention.tn"
half=$(mktemp --suffix .tn)
trap 'rm -f "$half"' EXIT
sed 's/f32\(\[1, [0-9]*, 4, \)/bf16\1/g' "$here/attention.tn" >"$half"
$tenon bench ops "$half"
$tenon bench ops "$here/stream.tn"
for dtype in f32 bf16; do
    $tenon bench step --model gpt2 --batch-size 4 --seq-len 64 --dtype $dtype
    $tenon bench step --model demo --batch-size 16 --seq-len 256 --dtype $dtype
    long || continue
    $tenon bench step --model gpt2 --batch-size 4 --seq-len 1024 --dtype $dtype
    $tenon bench step --model "$here/llama3-1b-4-layers.json" --batch-size 1 --seq-len 2048 \
        --dtype $dtype
done
"$here/threads.sh" "$tenon"
"$here/link.sh" "${tenon%/*}" || :
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "$python cannot import torch: no comparison with PyTorch (PYTHON=... names one that can)"
    exit 0
fi
seq=1024
long || seq=64
for dtype in f32 bf16; do
    "$python" "$here/pytorch.py" --tenon "$tenon" --seq-len $seq --dtype $dtype
done
