#!/bin/sh
# Every speed that is asked, as a ratio of this run, behind each what is asked of it and whether it is met: steps
# against their products alone, products against the fastest of all ways, attention against the product rate, and
# PyTorch beside it where PYTHON (python3 by default) can import torch. About half an hour on two cores that nobody
# else uses; BENCH=short leaves out what takes longest. With KEEP=DIR what was measured is kept there, so that a run
# that was stopped goes on; without it, or once it is removed, all is measured anew. Kernels are chosen as always: by
# what `tenon tune` measured, where it was run, else by the shipped table (TENON_MACHINE=none).
# Usage: bench/speed.sh [TENON]
set -e
tenon=${1:-build/tenon}
here=$(dirname "$0")
python=${PYTHON:-python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
keep=${KEEP:-$dir}
mkdir -p "$keep"
long() { [ "$BENCH" != short ]; }

# bench ARGUMENTS: `tenon bench` with them, or what it said before.
bench() {
    name=$(echo "$*" | tr -c 'a-zA-Z0-9\n' _)
    if [ ! -f "$keep/$name" ]; then
        "$tenon" bench "$@" >"$dir/new"
        mv "$dir/new" "$keep/$name"
    fi
    awk -f "$here/asked.awk" "$keep/$name"
}

# Whose figures these are: processor, what it can do with bf16, cores, library, and who else is at work.
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)," \
    "$(grep -om1 -E '(avx512f|avx512_bf16|amx_bf16)' /proc/cpuinfo | tr '\n' ' ')" \
    "$(nproc) cores, $("$tenon" --version | sed -n '/^onednn/p'), load $(cut -d ' ' -f 1 /proc/loadavg)," \
    "kernels by $("$tenon" plan demo --batch-size 1 --seq-len 8 | sed -n 's/^  estimate .*(\(.*\))$/\1/p')"

for dtype in f32 bf16; do
    for model in gpt2 "$here/llama3-1b-4-layers.json"; do
        bench step --model "$model" --batch-size 4 --seq-len 64 --dtype $dtype
    done
    bench step --model demo --batch-size 16 --seq-len 256 --dtype $dtype
    long || continue
    bench step --model gpt2 --batch-size 4 --seq-len 1024 --dtype $dtype --runs 3
    bench step --model "$here/llama3-1b-4-layers.json" --batch-size 2 --seq-len 1024 --dtype $dtype --runs 3
done
bench ops "$here/attention.tn"
sed 's/f32\(\[1, [0-9]*, 4, \)/bf16\1/g' "$here/attention.tn" >"$keep/attention_bf16.tn"
bench ops "$keep/attention_bf16.tn"
if ! "$python" -c 'import torch' 2>"$dir/why"; then
    echo "$python cannot import torch: no comparison with PyTorch (PYTHON=... names one that can)"
    exit 0
fi
cases='*'
long || cases='*64*'
"$python" "$here/pytorch.py" --tenon "$tenon" --cases "$cases" --keep "$keep/pytorch.jsonl"
