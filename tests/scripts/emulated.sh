#!/bin/sh
# All models of tests/ref and graphs of tests/fx on the emulated device: what cpu computes, to the bit, whatever
# is offloaded, recomputed or accumulated, also by ranks; and training that is killed and goes on. A tenth of it, of
# each kind at least one; TN_LONG=1: all (make test-long). Usage: tests/scripts/emulated.sh BUILD
. tools/checks.sh

# Of cases that are counted by $1: whether this one is run.
chosen() {
    [ -n "$TN_LONG" ] || [ $(($1 % 10)) = 0 ]
}

# does ARGUMENTS...: tenon, with exit code 0.
does() {
    "$tenon" "$@" >"$dir/out" 2>"$dir/err"
    ok "tenon $*" [ $? = 0 ]
}

# same WHAT FILE...: in the folders cpu and $where.
same() {
    case=$1
    shift
    for file in "$@"; do
        ok "$case: $where: $file" cmp "$dir/cpu/$file" "$dir/$where/$file"
    done
}

# grads OPTIONS..., trains OPTIONS...: $ref, into the folder $where.
grads() {
    does grad "$ref" --batch "$ref/batch.safetensors" --threads 1 --out "$dir/$where/grad" "$@"
    mv "$dir/out" "$dir/$where/loss"
}
trains() {
    rm -rf "$dir/$where/run"
    does train "$ref" --batch "$ref/batch.safetensors" --threads 1 --steps 5 --lr 1e-3 --out "$dir/$where/run" "$@"
    mv "$dir/out" "$dir/$where/loss"
}

# every COMMAND OPTIONS FILE...: on cpu, on the device, and there with all that is saved offloaded.
every() {
    command=$1 options=$2
    shift 2
    where=cpu
    # shellcheck disable=SC2086 # words
    $command $options
    for where in emulated offload; do
        extra=
        [ $where = emulated ] || extra="--offload *::*"
        # shellcheck disable=SC2086
        $command $options --backend emulated $extra
        same "$ref $options" "$@"
    done
}

set -f # of patterns
mkdir "$dir/cpu" "$dir/emulated" "$dir/offload"

# ---- models ----

number=0
for model in gpt2-ignore gpt2-tiny llama-tied llama-tiny mistral-tiny qwen2-tiny qwen3-tiny; do
    for dtype in f32 bf16; do
        for recompute in none full selective; do
            for accumulate in 1 2; do
                number=$((number + 1))
                chosen $number || continue
                ref=tests/ref/$model
                options="--dtype $dtype --recompute $recompute --accumulate $accumulate"
                every grads "$options" loss grad
                every trains "$options" loss run/step-5/model.safetensors run/step-5/optimizer.safetensors
            done
        done
    done
done

# ---- ranks, as threads, whose messages and copies come at any time ----

export TENON_COMM_DELAY=200 TENON_EMULATED_DELAY=50
for model in gpt2-tiny llama-tiny; do
    ref=tests/ref/$model ranks=4
    [ -n "$TN_LONG" ] || [ $model = gpt2-tiny ] || ranks=2
    every grads "--mesh fsdp=$ranks" loss grad
    every trains "--mesh fsdp=$ranks" loss run/step-5/model.safetensors run/step-5/optimizer.safetensors
done
every trains "--mesh fsdp=2,tp=2 --dtype bf16 --reshard never --accumulate 2" \
    loss run/step-5/model.safetensors run/step-5/optimizer.safetensors
unset TENON_COMM_DELAY TENON_EMULATED_DELAY

# ---- graphs of PyTorch ----

number=0
set +f
for graph in tests/fx/*/graph.txt; do
    number=$((number + 1))
    chosen $number || continue
    folder=${graph%/graph.txt}
    does import fx "$graph" --inputs "$folder/inputs.safetensors" -o "$dir/graph.tn"
    for where in cpu emulated; do
        does run "$dir/graph.tn" --inputs "$folder/inputs.safetensors" --outputs "$dir/$where/outputs" --threads 1 \
            --backend $where
    done
    same "$folder" outputs
done

# ---- killed, and going on ----

# finished FOLDER: whether its last step is saved.
finished() { [ "$(readlink "$dir/$1/latest")" = step-6 ]; }

ref=tests/ref/gpt2-tiny
set -- train "$dir/config.json" --data docs/formats.md --token-type byte --batch-size 4 --seq-len 16 --steps 6 --save-every 1 \
    --lr 1e-3 --dropout 0.1 --accumulate 2 --threads 1
sed 's/"vocab_size": *[0-9]*/"vocab_size": 256/' $ref/config.json >"$dir/config.json"
does "$@" --out "$dir/cpu/whole"
times=1
[ -z "$TN_LONG" ] || times=10
for k in $(seq $times); do
    where=killed$k
    mkdir "$dir/$where"
    TENON_EMULATED_DELAY=200,$k "$tenon" "$@" --backend emulated --offload '*::*' --out "$dir/$where/whole" \
        >"$dir/out" 2>"$dir/err" &
    pid=$!
    for _ in $(seq 600); do
        [ ! -e "$dir/$where/whole/latest" ] || break
        sleep 0.02
    done
    sleep 0.0$((k % 10))
    kill -KILL $pid
    wait $pid
    ok "killed $k: it was not finished" not finished "$where/whole"
    does train --resume --out "$dir/$where/whole" --threads 1 --backend emulated
    ok "killed $k: finished" finished "$where/whole"
    same "killed $k" whole/step-6/model.safetensors whole/step-6/optimizer.safetensors
done

totals
