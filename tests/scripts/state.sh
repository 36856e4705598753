#!/bin/sh
# --offload state from outside: the optimizer's state lies in the host's memory, and training has the bits of cpu:
# with what else changes a step, with evaluation and samples beside it, by ranks, and resumed with the option and
# without; what is planned is what is measured in both memories. A model trains in less memory than its parameters and
# state need; what cannot be is refused. Usage: tests/scripts/state.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny
state="--backend emulated --offload state"

# number KEY FILE: of the last JSON object.
number() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$2" | tail -n 1; }

# alike WHAT: the folders cpu and host.
alike() {
    for file in model optimizer; do
        ok "$1: $file differs" cmp "$dir/cpu/latest/$file.safetensors" "$dir/host/latest/$file.safetensors"
    done
}

# both WHAT ARGUMENTS...: trains on cpu, and on the device with the state on the host.
both() {
    what=$1
    shift
    rm -rf "$dir/cpu" "$dir/host"
    gives 0 '' train "$@" --threads 1 --out "$dir/cpu"
    mv "$dir/out" "$dir/said"
    gives 0 '' train "$@" --threads 1 --out "$dir/host" $state --metrics "$dir/metrics"
    ok "$what: other losses" cmp "$dir/out" "$dir/said"
    alike "$what"
    for memory in peak host; do
        planned=$(number "planned_${memory}_bytes" "$dir/metrics")
        ok "$what: planned is not measured: $memory" \
            [ "${planned:-0}" = "$(number "measured_${memory}_bytes" "$dir/metrics")" ]
    done
}

# ---- one batch ----

# Each with a model whose buffers need no long search for addresses.
set -f
while read -r model more; do
    model=tests/ref/$model
    both "$more" $model --batch $model/batch.safetensors --steps 3 $more
done <<END
gpt2-tiny --clip 0
gpt2-tiny --accumulate 2 --recompute full
qwen2-tiny --dtype bf16 --param-dtype bf16
llama-tiny --optimizer sgd --momentum 0.9 --fuse off
qwen2-tiny --freeze *embed_tokens*
qwen2-tiny --mesh fsdp=2
END
state="$state --offload *::*"
both "both" $ref --batch $ref/batch.safetensors --steps 3
set +f
state="--backend emulated --offload state"

# ---- data, with evaluation and samples in the same arena; gone on with ----

bytes() { sed 's/"vocab_size": *[0-9]*/"vocab_size": 256/' "$1/config.json"; } # of a model of bytes
bytes tests/ref/qwen2-tiny >"$dir/config.json"
data="$dir/config.json --data docs/chunking.md --token-type byte --batch-size 2 --seq-len 16 --schedule constant \
    --eval-every 2 --eval-windows 4 --sample-tokens 4"
both data $data --steps 4
cp -R "$dir/cpu" "$dir/whole"

# resumed WHAT FIRST THEN: 2 steps with options, and 2 more with others.
resumed() {
    rm -rf "$dir/host"
    gives 0 '' train $data --threads 1 --out "$dir/host" --steps 2 $2
    gives 0 '' train --resume --threads 1 --out "$dir/host" --steps 4 $3
    alike "$1"
}
resumed "with the option, both times" "$state" ""
resumed "on cpu" "$state" "--backend cpu"
resumed "from cpu" "" "$state"
resumed "on a device that kept it" "--backend emulated" "--offload state"
rm -rf "$dir/host"
gives 0 '' train $data --threads 1 --out "$dir/host" --steps 2 --backend emulated --chunk 2
gives 0 'may cut otherwise: bits may differ' train --resume --threads 1 --out "$dir/host" --steps 4 --offload state

# ---- plans ----

gives 0 '' plan gpt2 --batch-size 4 --seq-len 64 --threads 2 --json --backend emulated
ok "parameters and state stay" grep -q '"persistent_bytes": 1493277696' "$dir/out"
gives 0 '' plan gpt2 --batch-size 4 --seq-len 64 --threads 2 --json $state
cp "$dir/out" "$dir/plan"
grep -A 14 '"spaces"' "$dir/plan" >"$dir/spaces"
ok "the state is not the host's" grep -q '"persistent_bytes": 995518464' "$dir/spaces"
ok "the parameters stay" grep -q '"persistent_bytes": 497759232' "$dir/plan"
gives 0 '995518464 of optimizer state' plan gpt2 --batch-size 4 --seq-len 64 --threads 2 $state
gives 0 "offload: the host's memory keeps it between updates" plan demo --batch-size 2 --seq-len 16 $state --explain
gives 0 'optimizer state' plan demo --batch-size 2 --seq-len 16 $state --html "$dir/page.html"

# ---- less memory than parameters and state need; what cannot be ----

bytes $ref | sed 's/"n_embd": *[0-9]*/"n_embd": 512/; s/"n_layer": *[0-9]*/"n_layer": 8/; s/"n_head": *[0-9]*/"n_head": 8/' \
    >"$dir/large.json"
large="train $dir/large.json --data docs/chunking.md --token-type byte --batch-size 1 --seq-len 8 --steps 1 --threads 1 \
    --backend emulated"
gives 0 '' $large --offload state --memory 270MiB --out "$dir/large" --metrics "$dir/metrics"
planned=$(number planned_peak_bytes "$dir/metrics") host=$(number planned_host_bytes "$dir/metrics")
ok "parameters (half of what the host has) and state fit" [ $((planned * 2)) -lt $((host * 3)) ]
gives 3 'with --offload state it is' $large --memory 270MiB --out "$dir/none"
gives 2 'the back end cpu computes in it' plan demo --batch-size 2 --seq-len 16 --offload state
gives 2 'offload "state": matches nothing' grad $ref --batch $ref/batch.safetensors --out "$dir/grad" $state

# ---- compiled again, with loads that were moved into the backward ----

cat >"$dir/small.tn" <<'END'
tenon 1
graph small(%x: f32[64, 4] batch, %w: f32[4, 8] param "w") {
  %h: f32[64, 8] = mm(%x, %w)
  %l: f32[] = sum(%h)  loss
  return loss %l
}
END
gives 0 '' opt "$dir/small.tn" --passes grad,optimizer,offload $state --clip 0 -o "$dir/once.tn"
sed -i '/reload/s/)  optimizer/)  backward/' "$dir/once.tn"
gives 0 '' opt "$dir/once.tn" --passes offload $state -o "$dir/twice.tn"
ok "nothing is moved twice" cmp "$dir/once.tn" "$dir/twice.tn"

# ---- graphs whose text says that a state is the host's ----

# own NEW: a graph whose state has this new value.
own() {
    cat >"$dir/own.tn" <<END
tenon 1
graph own(%w: f32[8, 8] param "w" "w.tied", %a: f32[8, 8] state "a" host, %x: f32[8, 8] batch) {
  %l: f32[] = sum(%x)  loss
  %d: f32[8, 8] = add(%w, %a)  optimizer
  return loss %l, new "w" %d, new "a" $1
}
END
}
own %x
gives 0 'the state "a" stays: its new value is an input' plan "$dir/own.tn" --backend emulated --passes default
own %a
gives 0 'the state "a" stays: it is an output as it is' plan "$dir/own.tn" --backend emulated --passes default
own %d
gives 0 'the state "a" stays: its new value is another output too' plan "$dir/own.tn" --backend emulated --passes default
sed -i '/%d:/{p;s/%d/%e/}; s/new "w" %d, new "a" %d/new "w" %d, new "a" %e/; s/%e: f32\[8, 8\] = add/%e: f32[8, 8] = mul/' "$dir/own.tn"
gives 0 'offload(%e, %a)' opt "$dir/own.tn" --backend emulated --passes default
gives 0 '%a: f32[8, 8] state "a" host' opt "$dir/own.tn" --backend emulated --passes default --mesh fsdp=2
ok "a tied name stays too" grep -q 'param "w" "w.tied"' "$dir/out"
gives 0 '' opt "$dir/own.tn" --backend emulated --passes default -o "$dir/done.tn"
gives 0 '' export json "$dir/done.tn" --backend emulated -o "$dir/own.json"
ok "JSON says it" grep -q '"of": "a".*"host": true' "$dir/own.json"

totals
