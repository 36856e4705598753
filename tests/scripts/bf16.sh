#!/bin/sh
# bf16 from outside: weights are cast once per step, before the loop over microbatches; runs that are cut in
# two give the bits of one; checkpoints with bf16 weights say so and are read as they were written; processors
# without bf16 products give the same to rounding, and a warning. Usage: tests/scripts/bf16.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors

# does ARGUMENTS...: tenon, with exit code 0.
does() {
    "$tenon" "$@" >"$dir/out" 2>"$dir/err"
    ok "tenon $*" [ $? = 0 ]
}
has() { ok "expected in $1: $2" grep -qE -e "$2" "$1"; }
lacks() { ok "not expected in $1: $2" [ -z "$(grep -E -e "$2" "$1")" ]; }
# near A B TOLERANCE: that two losses agree.
near() {
    ok "expected $1 within $3, found $2" awk -v a="$1" -v b="$2" -v t="$3" \
        'BEGIN { d = (a - b) / a; exit !(a > 0 && d < t && -d < t) }'
}

# ---- graphs ----

cat >"$dir/g.tn" <<'END'
tenon 1
graph g(%x: f32[6, 4] batch, %w: f32[4, 5] param "w", %v: f32[5, 4] param "v") {
  %a: f32[6, 5] = mm(%x, %w)  forward
  %b: f32[6, 4] = mm(%a, %v)  forward
  %c: f32[6, 4] = mul(%b, %b)  loss
  %l: f32[] = sum(%c)  loss
  return loss %l
}
END
does opt "$dir/g.tn" --passes=precision --dtype bf16
has "$dir/out" 'w.bf16: bf16\[4, 5\] = _to_copy\(%w, dtype=bf16\)'
has "$dir/out" '%a: bf16\[6, 5\] = mm\(%x.bf16, %w.bf16\)'
does opt "$dir/g.tn" --passes=grad,precision,accumulate,dce --dtype bf16 --accumulate 3
sed '/loop(/q' "$dir/out" >"$dir/before"
sed '1,/loop(/d' "$dir/out" >"$dir/body"
has "$dir/before" '_to_copy\(%w, dtype=bf16\)'
has "$dir/before" '_to_copy\(%v, dtype=bf16\)'
lacks "$dir/body" '_to_copy\(%[wv],'
has "$dir/body" 'sum f32'
does opt "$dir/g.tn" --passes=precision
lacks "$dir/out" bf16
does opt "$dir/g.tn" --passes=default --dtype bf16 --param-dtype bf16
has "$dir/out" '%w: bf16\[4, 5\] param "w"'
has "$dir/out" '%w.m: f32\[4, 5\] state "w.m"'

# ---- training, in one go and in two ----

for params in f32 bf16; do
    set -- "$ref" --batch $batch --accumulate 2 --dropout 0.1 --lr 1e-2 --warmup 1 --dtype bf16 \
        --param-dtype $params --threads 2 --schedule constant
    does train "$@" --steps 6 --save-every 3 --out "$dir/$params"
    cp "$dir/out" "$dir/all"
    cp -r "$dir/$params" "$dir/again"
    rm -r "$dir/again/step-6"
    ln -sfn step-3 "$dir/again/latest"
    does train --resume --out "$dir/again"
    tail -3 "$dir/all" >"$dir/want"
    ok "$params: losses of the second half" cmp "$dir/want" "$dir/out"
    for file in config.json model.safetensors optimizer.safetensors; do
        ok "$params: $file" cmp "$dir/$params/latest/$file" "$dir/again/latest/$file"
    done
    rm -r "$dir/again"
done
has "$dir/bf16/latest/config.json" '"torch_dtype": "bfloat16"'
lacks "$dir/f32/latest/config.json" bfloat16
ok "weights of half the size" [ "$(head -c 4000 "$dir/bf16/latest/model.safetensors" | grep -ac '"F32"')" = 0 ]
has "$dir/bf16/latest/model.safetensors" '"BF16"'
has "$dir/bf16/latest/optimizer.safetensors" '"F32"'

# What is read as f32 and written as bf16 again is what it was: a step with a learning rate of 0.
does train "$dir/bf16" --batch $batch --steps 1 --lr 0 --out "$dir/same" --param-dtype bf16
ok "bf16 weights are read and written as they are" \
    cmp "$dir/bf16/latest/model.safetensors" "$dir/same/latest/model.safetensors"
does train "$dir/bf16" --batch $batch --steps 1 --lr 0 --out "$dir/wide"
lacks "$dir/wide/latest/config.json" bfloat16
has "$dir/wide/latest/config.json" '"torch_dtype": "float32"'
does train "$dir/wide" --batch $batch --steps 1 --lr 0 --out "$dir/back" --param-dtype bf16
ok "bf16 weights through f32" cmp "$dir/bf16/latest/model.safetensors" "$dir/back/latest/model.safetensors"

# ---- evaluation, text ----

does eval demo --data "$dir/g.tn" --seq-len 16
wide=$(sed -n 's/^loss //p' "$dir/out")
does eval demo --data "$dir/g.tn" --seq-len 16 --dtype bf16
near "$wide" "$(sed -n 's/^loss //p' "$dir/out")" 0.002
ok "eval computes in bf16" [ "$wide" != "$(sed -n 's/^loss //p' "$dir/out")" ]
does generate demo --prompt abc --tokens 8
cp "$dir/err" "$dir/wide_err"
does generate demo --prompt abc --tokens 8 --dtype bf16
arena() { sed -n 's/.*arena \([0-9]*\) bytes.*/\1/p' "$1"; }
ok "generate keeps weights in bf16" [ "$(arena "$dir/err")" -lt "$(($(arena "$dir/wide_err") * 3 / 4))" ]

# ---- processors without bf16 products ----

slow='no bf16 products'
does grad $ref --batch $batch --out "$dir/fast.safetensors" --dtype bf16
fast=$(sed -n 's/^loss //p' "$dir/out")
export ONEDNN_MAX_CPU_ISA=AVX2
does grad $ref --batch $batch --out "$dir/slow.safetensors" --dtype bf16
has "$dir/err" "^tenon: warning: .*$slow"
near "$fast" "$(sed -n 's/^loss //p' "$dir/out")" 0.001
does train $ref --batch $batch --steps 2 --out "$dir/slow" --dtype bf16
ok "one warning" [ "$(grep -c "$slow" "$dir/err")" = 1 ]
does grad $ref --batch $batch --out "$dir/slow.safetensors"
lacks "$dir/err" "$slow"
does plan $ref --batch-size 2 --seq-len 16 --dtype bf16
has "$dir/err" "$slow"
does plan $ref --batch-size 2 --seq-len 16 --dtype bf16 --machine h100
lacks "$dir/err" "$slow"

totals
