#!/bin/sh
# --offload from outside: GPT-2 124M at 4 x 1024 takes less device memory than with --recompute selective, and
# computes nothing again; gradients have the bits of cpu, and what is planned is what is measured; what cannot be is
# refused. Usage: tests/scripts/offload.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors

# number KEY FILE: of a JSON object.
number() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$2" | head -n 1; }

shape="plan gpt2 --batch-size 4 --seq-len 1024 --json --threads 2"
gives 0 '' $shape --recompute selective
cp "$dir/out" "$dir/selective"
gives 0 '"kind": "offload"' $shape --backend emulated --offload 'layers.*::*'
ok "a decision is not honoured" not grep -q '"honoured": false' "$dir/out"
ok "a node is computed again" [ "$(number added_nflop "$dir/out")" = 0.0 ]
ok "the peak is not below selective's" \
    [ "$(number peak_bytes "$dir/out")" -lt "$(number peak_bytes "$dir/selective")" ]

for more in "" "--accumulate 2" "--recompute full" "--fuse off" "--dtype bf16"; do
    gives 0 '' train $ref/config.json --batch $batch --steps 2 --threads 1 $more --out "$dir/cpu"
    gives 0 '' train $ref/config.json --batch $batch --steps 2 --threads 1 $more --out "$dir/host" \
        --backend emulated --offload 'layers.*::*' --metrics "$dir/metrics"
    for file in model optimizer; do
        ok "$more: $file differs" cmp "$dir/cpu/step-2/$file.safetensors" "$dir/host/step-2/$file.safetensors"
    done
    ok "$more: planned is not measured" [ -n "$(number planned_peak_bytes "$dir/metrics")" ] &&
        ok "$more: planned is not measured" [ "$(number planned_peak_bytes "$dir/metrics")" = \
            "$(number measured_peak_bytes "$dir/metrics")" ]
    ok "$more: planned is not measured on the host" [ -n "$(number planned_host_bytes "$dir/metrics")" ] &&
        ok "$more: planned is not measured on the host" [ "$(number planned_host_bytes "$dir/metrics")" = \
            "$(number measured_host_bytes "$dir/metrics")" ]
    rm -r "$dir/cpu" "$dir/host"
done

# Copies of one direction run in the order in which their values are made.
gives 0 '' plan gpt2 --batch-size 4 --seq-len 1024 --machine avx512_bf16 --backend emulated \
    --offload 'layers.0.mlp*::*' --steps
ok "copies are out of order" [ "$(sed -n 's/.*offload.copy \([a-z0-9_]*\)@.*/\1/p' "$dir/out" | tr '\n' ' ')" = \
    "addmm_2 gelu " ]

demo="plan demo --batch-size 2 --seq-len 16"
gives 2 '--backend emulated has one' $demo --offload 'layers.*::mm'
gives 2 'offload "layers.77::mm": matches nothing' $demo --backend emulated --offload 'layers.77::mm'
gives 0 'offload: the host keeps it for the backward' $demo --backend emulated --offload 'layers.*::mm' --explain
gives 2 'changes nothing without the pass offload' opt tests/pass/offload/chain.tn --passes=grad,remat \
    --offload 'layers.*::mm'

# Copies between memories change no value; check runs such a graph where there are two.
sed '/^---$/,$d' tests/pass/offload/chain.tn | grep -v '^# ' >"$dir/plain.tn"
gives 0 '' opt "$dir/plain.tn" --passes=grad,offload --offload '*::*' --backend emulated -o "$dir/moved.tn"
ok "nothing is moved" grep -q '= offload(' "$dir/moved.tn"
gives 0 '' opt "$dir/plain.tn" --passes=grad -o "$dir/grad.tn"
gives 0 'equal' check "$dir/grad.tn" "$dir/moved.tn"
totals
