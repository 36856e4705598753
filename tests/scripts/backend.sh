#!/bin/sh
# A device whose memory the host cannot touch, from outside: what each command writes there and on cpu is the
# same to the bit, with evaluation, samples and checkpoints, stopped and resumed. Usage: tests/scripts/backend.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
text=docs/formats.md

# does ARGUMENTS...: tenon, with exit code 0.
does() {
    "$tenon" "$@" >"$dir/out" 2>"$dir/err"
    ok "tenon $*" [ $? = 0 ]
}
# both NAME ARGUMENTS...: tenon on each device; what it prints goes to NAME.out.DEVICE and is the same. In the
# arguments % is a path that the device has alone.
both() {
    name=$1
    shift
    for device in cpu emulated; do
        # shellcheck disable=SC2046 # a word for each
        does $(echo "$@" | sed "s|%|$dir/$device|g") --backend $device --threads 1
        mv "$dir/out" "$dir/$name.out.$device"
    done
    same "$dir/$name.out"
}
# same FILE: FILE.cpu and FILE.emulated.
same() { ok "$1 differs" cmp "$1.cpu" "$1.emulated"; }
# same_weights FOLDER: of both devices.
same_weights() {
    for file in model optimizer; do
        ok "$1/$file differs" cmp "$dir/cpu/$1/$file.safetensors" "$dir/emulated/$1/$file.safetensors"
    done
}

# ---- training ----

run="--data $text --token-type byte --batch-size 4 --seq-len 16 --lr 1e-3 --dropout 0.1 --accumulate 2
 --save-every 3 --eval-every 3 --sample-every 3 --sample-tokens 5 --prompt ab --tokenizer bytes"
both whole train $ref/config.json $run --steps 6 --out %/whole
same_weights whole/step-3
same_weights whole/step-6

both begun train $ref/config.json $run --steps 6 --out %/cut
for device in cpu emulated; do
    rm -r "$dir/$device/cut/step-6"
    ln -sfn step-3 "$dir/$device/cut/latest"
done
both resumed train --resume --out %/cut
same_weights cut/step-6
ok "a run that was resumed differs" cmp "$dir/cpu/whole/step-6/model.safetensors" \
    "$dir/emulated/cut/step-6/model.safetensors"

# Begun on one device, another goes on and says so.
rm -r "$dir/cpu/cut/step-6"
ln -sfn step-3 "$dir/cpu/cut/latest"
does train --resume --out "$dir/cpu/cut" --backend emulated --threads 1
ok "the change of the back end is not said" grep -q "the run was on the back end cpu, now emulated" "$dir/err"
ok "a run resumed on another device differs" cmp "$dir/cpu/whole/step-6/model.safetensors" \
    "$dir/cpu/cut/step-6/model.safetensors"

# Begun with values in the host's memory, it goes on where there is no other, to the same bits.
does train $ref/config.json $run --steps 6 --out "$dir/moved" --backend emulated --offload '*::*' --threads 1
rm -r "$dir/moved/step-6"
ln -sfn step-3 "$dir/moved/latest"
does train --resume --out "$dir/moved" --backend cpu --threads 1
ok "what is not offloaded any more is not said" grep -q 'note: --offload of the run was for a memory beside' "$dir/err"
ok "a run resumed without offload differs" cmp "$dir/cpu/whole/step-6/model.safetensors" \
    "$dir/moved/step-6/model.safetensors"

# Also where it fuses otherwise, so that the graph has other nodes.
rm -r "$dir/cpu/cut/step-6"
ln -sfn step-3 "$dir/cpu/cut/latest"
sed -i '/"crc32c"/d; s/"nodes": [0-9]*/"nodes": 7/; s/"backend": "[a-z]*"/"backend": "cuda"/' "$dir/cpu/cut/step-3/state.json"
does train --resume --out "$dir/cpu/cut" --backend cpu --threads 1
ok "the change of the back end is not said" grep -q "the run was on the back end cuda, now cpu" "$dir/err"

both checked train $ref/config.json --batch $batch --steps 2 --check --clip 0 --optimizer sgd --out %/checked
same_weights checked/step-2

# A tensor of 40 MiB, of which a piece at a time is moved: drawn, saved and read again.
sed 's/"vocab_size": *[0-9]*/"vocab_size": 163840/' $ref/config.json >"$dir/large.json"
both large train "$dir/large.json" --batch $batch --steps 1 --out %/large
same_weights large/step-1
both larger train "$dir/cpu/large" --batch $batch --steps 1 --dtype bf16 --out %/larger
same_weights larger/step-1

# ---- other commands ----

both grad grad $ref --batch $batch --freeze '*norm*' --out %/grad
ok "gradients differ" cmp "$dir/cpu/grad" "$dir/emulated/grad"
both eval eval $ref --data $text --token-type byte --seq-len 16 --val-fraction 0.2
both logits eval $ref --batch $batch --logits %/logits
ok "logits differ" cmp "$dir/cpu/logits" "$dir/emulated/logits"
both generate generate $ref --tokenizer bytes --prompt "$(head -c 40 $text | tr -d ' \n')" --tokens 30
cat >"$dir/g.tn" <<'END'
tenon 1
graph g(%x: f32[2] batch, %s: i64[] seed, %t: i64[] step) {
  %y: f32[2] = dropout(%x, %s, %t, p=0.5)  stream=0
  return %y
}
END
tensors "$dir/in.safetensors" '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"t":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}' \
    '\0\0\200\077\0\0\0\100\1\0\0\0\0\0\0\0'
both run run "$dir/g.tn" --inputs "$dir/in.safetensors" --seed 3 --outputs %/y
ok "outputs differ" cmp "$dir/cpu/y" "$dir/emulated/y"
gives 0 '"measured_peak_bytes"' run "$dir/g.tn" --inputs "$dir/in.safetensors" --seed 3 --json --backend emulated

# ---- a GPU ----

# Plans are made without one. Runs go there where it is; it is hidden from this one.
if "$tenon" --version | grep -qx 'backend cuda'; then
    gives 0 "host's memory" plan demo --batch-size 2 --seq-len 16 --backend cuda
    export CUDA_VISIBLE_DEVICES=
    gives 1 '--backend cuda: expected a GPU, found none' run "$dir/g.tn" --inputs "$dir/in.safetensors" --seed 3 \
        --backend cuda
    gives 1 '--backend cuda: expected a GPU, found none' train $ref/config.json --batch $batch --steps 1 \
        --backend cuda --out "$dir/gpu"
    ok "a run that was refused leaves a folder" [ ! -e "$dir/gpu" ]
    gives 1 'expected a GPU, found none' train $ref/config.json --batch $batch --steps 1 --backend cuda \
        --out "$dir/cpu/cut" --overwrite
    ok "a run that was refused has moved another" [ ! -e "$dir/cpu/cut~1" ]
    unset CUDA_VISIBLE_DEVICES
else
    echo "note: built without nvcc: plans for a GPU are refused"
    gives 2 '--backend cuda: this program was built without it' plan demo --batch-size 2 --seq-len 16 --backend cuda
    gives 2 '--backend cuda: this program was built without it' train $ref/config.json --batch $batch --steps 1 \
        --backend cuda --out "$dir/gpu"
fi

totals
