#!/bin/sh
# Fusion from outside: gradients, losses and logits have the same bits with --fuse on and off, for every family of
# models, in f32 and bf16, in microbatches and with dropout, with one thread and two; plans of the presets never take
# more, recomputation included, and keep their fused nodes.
# Usage: tests/scripts/fuse.sh BUILD
. tools/checks.sh

# number FILE KEY: of a plan's JSON; nothing where the key is not there.
number() {
    sed -n "s/^ *\"$2\": \([0-9]*\),*$/\1/p" "$1" | head -1
}

# grad MODEL FUSE OPTIONS...: gradients in FUSE.safetensors, the loss in FUSE.loss
grad() {
    from=$1 fuse=$2
    shift 2
    "$tenon" grad "$from" --batch "$from/batch.safetensors" --fuse "$fuse" "$@" \
        --out "$dir/$fuse.safetensors" >"$dir/$fuse.loss" 2>"$dir/err"
}

# same MODEL OPTIONS...
same() {
    model=$1
    shift
    ok "grad $model $* --fuse off" grad "$model" off "$@"
    ok "grad $model $* --fuse on" grad "$model" on "$@"
    ok "grad $model $*: another loss with --fuse on" cmp -s "$dir/on.loss" "$dir/off.loss"
    ok "grad $model $*: other gradients with --fuse on" cmp -s "$dir/on.safetensors" "$dir/off.safetensors"
}

# A dropout of a part that does not lie in the whole tensor is refused, fused too.
cat >"$dir/drop.tn" <<'END'
tenon 1
graph g(%x: f32[8] batch, %s: i64[] batch, %t: i64[] batch, %o: i64[] batch) {
  %n = neg(%x)
  %d = dropout(%n, %s, %t, %o, p=0.5, axes=[0], extents=[8])  stream=1
  %e = neg(%d)
  return %e
}
END
tensors "$dir/drop.safetensors" '{"x":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"s":{"dtype":"I64","shape":[],"data_offsets":[32,40]},"t":{"dtype":"I64","shape":[],"data_offsets":[40,48]},"o":{"dtype":"I64","shape":[],"data_offsets":[48,56]}}' \
    "$(printf '%32s' '' | sed 's/ /\\0/g')\\1\\0\\0\\0\\0\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0\\5\\0\\0\\0\\0\\0\\0\\0"
gives 0 'fused(' opt "$dir/drop.tn" --passes=fuse -o -
"$tenon" opt "$dir/drop.tn" --passes=fuse -o "$dir/drop.fused.tn"
for graph in drop drop.fused; do
    gives 1 'offset 5 of axis 0: expected 0 to 0' run "$dir/$graph.tn" --inputs "$dir/drop.safetensors" --outputs "$dir/out"
done

# logits MODEL FUSE OPTIONS...: in FUSE.safetensors, the loss in FUSE.loss
logits() {
    from=$1 fuse=$2
    shift 2
    "$tenon" eval "$from" --batch "$from/batch.safetensors" --fuse "$fuse" "$@" \
        --logits "$dir/$fuse.safetensors" >"$dir/$fuse.loss" 2>"$dir/err"
}

# same_logits MODEL OPTIONS...
same_logits() {
    model=$1
    shift
    ok "eval $model $* --fuse off" logits "$model" off "$@"
    ok "eval $model $* --fuse on" logits "$model" on "$@"
    ok "eval $model $*: another loss with --fuse on" cmp -s "$dir/on.loss" "$dir/off.loss"
    ok "eval $model $*: other logits with --fuse on" cmp -s "$dir/on.safetensors" "$dir/off.safetensors"
}

for folder in tests/ref/*-*; do
    [ -f "$folder/batch.safetensors" ] && [ -f "$folder/config.json" ] || continue
    same "$folder" --dtype f32 --threads 1 --dropout 0.1
    same "$folder" --dtype bf16 --threads 1
    same "$folder" --dtype bf16 --threads 2 --dropout 0.1 --accumulate 2
    same_logits "$folder" --dtype f32 --threads 2
    same_logits "$folder" --dtype bf16 --threads 1
done
ok "models to compare" [ $passed -gt 24 ]

# plans MODEL OPTIONS...
fused=0
plans() {
    for fuse in on off; do
        "$tenon" plan "$@" --fuse $fuse --json >"$dir/$fuse.json" 2>"$dir/err"
        ok "plan $* --fuse $fuse" [ $? = 0 ]
    done
    on=$(number "$dir/on.json" peak_bytes) off=$(number "$dir/off.json" peak_bytes)
    ok "plan $*: --fuse on takes $on, off $off" [ "$on" -le $((off + off / 1024)) ] # src/plan/apart.c
    ok "plan $*: --fuse off fuses" [ -z "$(number "$dir/off.json" fused)" ]
    count=$(number "$dir/on.json" fused)
    fused=$((fused + ${count:-0}))
}

# Blocks that hold the peak, where the backward recomputes activations: one block, and one of several.
llama() {
    cat >"$dir/config.json" <<END
{ "model_type": "llama", "vocab_size": 1000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": $1,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": true }
END
}
llama 1
plans "$dir/config.json" --batch-size 1 --seq-len 8192 --dtype f32 --recompute selective
llama 4
plans "$dir/config.json" --batch-size 1 --seq-len 2048 --dtype f32 --recompute selective
plans "$dir/config.json" --batch-size 1 --seq-len 2048 --dtype f32 --recompute full

for dtype in f32 bf16; do
    plans demo --batch-size 8 --seq-len 256 --dtype $dtype
    plans demo --batch-size 8 --seq-len 64 --accumulate 3 --dropout 0.1 --dtype $dtype
    plans gpt2 --batch-size 4 --seq-len 1024 --dtype $dtype
    plans gpt2 --batch-size 4 --seq-len 64 --dropout 0.1 --dtype $dtype
    plans llama3-1b --batch-size 1 --seq-len 2048 --dtype $dtype
    plans gpt2 --batch-size 4 --seq-len 1024 --dtype $dtype --recompute full
    plans llama3-1b --batch-size 1 --seq-len 2048 --dtype $dtype --recompute selective
done
ok "fused nodes in plans" [ $fused -gt 60 ]

# A plan keeps the bodies that the pass made, where it would not be lower without: kept COUNT MODEL OPTIONS...
kept() {
    least=$1
    shift
    before=$fused
    plans "$@"
    ok "plan $*: expected $least fused nodes, found $((fused - before))" [ $((fused - before)) -ge "$least" ]
}
backends=cpu
if "$tenon" --version | grep -qx 'backend cuda'; then backends='cpu cuda'; fi
for backend in $backends; do
    for dtype in f32 bf16; do
        kept 24 gpt2 --batch-size 8 --seq-len 1024 --dtype $dtype --backend $backend
        kept 66 llama3-1b --batch-size 8 --seq-len 1024 --dtype $dtype --backend $backend
    done
done
[ "$backends" != cpu ] || echo "note: built without nvcc: no plans for a GPU are compared"

"$tenon" plan demo --batch-size 1 --seq-len 8 --fuse fast >"$dir/out" 2>"$dir/err"
ok "--fuse fast: expected exit code 0" [ $? = 0 ]
ok "--fuse fast: expected a note" grep -q 'note: --fuse fast is --fuse on' "$dir/err"

# An operand that does not lie row-major, which the body shows in another shape.
cat >"$dir/shown.tn" <<END
tenon 1
graph shown(%x: f32[6, 4]) {
  %t: f32[4, 6] = t(%x)
  %y: f32[24] = fused(%a: f32[4, 6] = %t) {
    %v: f32[24] = view(%a, size=[24])
    %e: f32[24] = exp(%v)
    %y: f32[24] = neg(%e)
    yield %y
  }
  return %y
}
END
gives 0 "" opt "$dir/shown.tn" --passes=unfuse -o "$dir/apart.tn"
gives 0 equal check "$dir/shown.tn" "$dir/apart.tn"

# ---- plan --explain: what was taken, what not, and why ----

gives 0 'silu, mul: taken: so many bytes fewer are read and written' plan demo --batch-size 4 --seq-len 32 --explain
ok "ops that stay apart, and why" grep -qE '^apart .*  add: not taken: no op beside it could join it: it reads mm and is read by ' "$dir/out"
ok "kernels, by what they were chosen, and the others" grep -qE '^kernel .* mm\.onednn.*: taken: .*; not taken, though possible: ' "$dir/out"
ok "each call of an op with several kernels" awk '
    /^  ways / { gsub(/,/, ""); for (i = 3; i <= NF; i += 2) all += $i } /^kernel / { told += $2 } END { exit !(all > 50 && told == all) }' "$dir/out"
gives 0 '' plan demo --batch-size 4 --seq-len 32 --explain --fuse off
ok "nothing of bodies where none are made" not grep -qE '^(fused|apart) ' "$dir/out"
gives 0 'a step with what was searched for' plan tests/ref/llama-tiny --batch-size 2 --seq-len 16 --mesh fsdp=2 --recompute auto --memory 1GiB --explain
ok "choices have the seconds of plans" awk '
    /^  estimate / { step = $2 " " $3 } /^choice .* what was searched for$/ { told += $4 " " $5 == step } END { exit told != 1 }' "$dir/out"

totals
