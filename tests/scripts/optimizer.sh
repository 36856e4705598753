#!/bin/sh
# Optimizers, losses, groups of parameters and frozen ones from outside: what is trained, what is kept for it, what
# checkpoints hold, and that runs go on to the same bits. Usage: tests/scripts/optimizer.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny
batch=$ref/batch.safetensors

# header FILE: of a safetensors file. tensor FILE NAME: the bytes of a tensor.
header() {
    head -c $((8 + $(od -An -tu8 -N8 "$1"))) "$1" | tail -c +9
}
tensor() {
    at=$(header "$1" | sed -n 's/.*"'"$2"'":{[^}]*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p')
    from=${at% *} to=${at#* } n=$(od -An -tu8 -N8 "$1")
    tail -c +$((9 + n + from)) "$1" | head -c $((to - from))
}
# names FILE: of its tensors.
names() {
    header "$1" | grep -o '"[^"]*":{"dtype"' | cut -d'"' -f2 | sort
}
# same_tensor A B NAME, other_tensor A B NAME: the same bytes, or others.
same_tensor() {
    tensor "$1" "$3" >"$dir/x" && tensor "$2" "$3" >"$dir/y" && [ -s "$dir/x" ] && cmp -s "$dir/x" "$dir/y"
}
other_tensor() {
    ! same_tensor "$@" && [ -s "$dir/x" ] && [ -s "$dir/y" ]
}
number() {
    sed -n 's/.*"'"$1"'": \([0-9]*\),*$/\1/p' "$dir/out" | head -n 1
}

# ---- what is refused ----

gives 2 'train: --optimizer none: nothing would be trained' train $ref --batch $batch --steps 1 --out "$dir/o" --optimizer none
gives 2 '--optimizer: expected adamw|sgd|none, found "lion"' train $ref --optimizer lion
gives 2 '--momentum is for --optimizer sgd' train $ref --batch $batch --steps 1 --out "$dir/o" --momentum 0.9
gives 2 '--beta2 is for --optimizer adamw' train $ref --batch $batch --steps 1 --out "$dir/o" --optimizer sgd --beta2 0.9
gives 2 '--clip means nothing with --optimizer none' plan $ref --batch-size 1 --seq-len 8 --optimizer none --clip 2
gives 2 '--min-lr 0.2 is above --lr 0.1' train $ref --batch $batch --steps 1 --out "$dir/o" --lr 0.1 --min-lr 0.2
gives 2 'freeze "h.7.*": matches no parameter; the nearest is "h.' plan $ref --batch-size 1 --seq-len 8 --freeze 'h.7.*'
gives 2 'no-decay "wte.wight": matches no parameter; the nearest is "wte.weight"' \
    plan $ref --batch-size 1 --seq-len 8 --no-decay wte.wight
gives 0 '' plan $ref --batch-size 1 --seq-len 8 --freeze 'lm_head.*' --json
cp "$dir/out" "$dir/tied"
gives 0 '' plan $ref --batch-size 1 --seq-len 8 --freeze 'wte.weight' --json
ok "a tied head that is frozen is the embedding" \
    [ "$(grep peak_bytes "$dir/tied")" = "$(grep peak_bytes "$dir/out")" ]
gives 0 '' plan $ref --batch-size 1 --seq-len 8 --json
ok "and has no gradient" [ "$(grep peak_bytes "$dir/tied")" != "$(grep peak_bytes "$dir/out")" ]
gives 0 '' train $ref --batch $batch --steps 1 --out "$dir/frozen" --freeze 'lm_head*' --threads 1

# A file that holds a tied model's head alone: it is the embedding. (The header keeps its length.)
tied=tests/ref/llama-tied
mkdir "$dir/head" && cp $tied/* "$dir/head" && chmod u+w "$dir/head/model.safetensors"
LC_ALL=C sed 's/"model.embed_tokens.weight"/"lm_head.weight"           /' $tied/model.safetensors \
    >"$dir/head/model.safetensors"
gives 0 '' grad $tied --batch $tied/batch.safetensors --out "$dir/embedding.st" --threads 1
gives 0 '' grad "$dir/head" --batch $tied/batch.safetensors --out "$dir/head.st" --threads 1
ok "a tied model by its head" cmp "$dir/embedding.st" "$dir/head.st"

gives 2 'nothing is left to train' plan $ref --batch-size 1 --seq-len 8 --freeze 'w*' --freeze 'h.*' --freeze 'ln_f.*'
gives 2 'without --passes' plan tests/ir/flat.tn --freeze 'w*'
ok "nothing was written" [ ! -e "$dir/o" ]

# ---- plans ----

gives 0 '124318464 values in 50 tensors, weight decay 0.1' plan gpt2 --batch-size 4 --seq-len 64
gives 0 '38718720 values in 99 tensors, weight decay 0' plan gpt2 --batch-size 4 --seq-len 64 --no-decay wte.weight
gives 0 '' plan gpt2 --batch-size 4 --seq-len 64 --json
peak=$(number peak_bytes) nodes=$(number nodes)
set -- --freeze 'w?e.weight' --freeze 'h.[0-5].*'
gives 0 '81911040 values in 74 tensors' plan gpt2 --batch-size 4 --seq-len 64 "$@" --steps
ok "no backward in frozen layers" sh -c "! grep -E '_backward|dx|adamw' '$dir/out' | grep -E 'layers\.[0-5](\.|$)'"
ok "a backward in the layers above" grep -q 'flash_attention_backward.*layers\.6' "$dir/out"
gives 0 '"flash_attention_backward": 6' plan gpt2 --batch-size 4 --seq-len 64 "$@" --json
ok "frozen layers: a lower peak: $(number peak_bytes) of $peak" [ "$(number peak_bytes)" -lt $((peak * 6 / 10)) ]
ok "frozen layers: fewer nodes: $(number nodes) of $nodes" [ "$(number nodes)" -lt $((nodes * 7 / 10)) ]
# Without optimizer and gradients alive together: activations alone.
gives 0 '' plan gpt2 --batch-size 4 --seq-len 1024 --optimizer none --json
peak=$(number activations)
gives 0 '' plan gpt2 --batch-size 4 --seq-len 1024 --optimizer none "$@" --json
ok "frozen layers: fewer activations: $(number activations) of $peak" [ "$(number activations)" -lt $((peak * 7 / 10)) ]
gives 0 '"optimizer": 0,' plan $ref --batch-size 1 --seq-len 8 --optimizer sgd --json
gives 0 '' plan $ref --batch-size 1 --seq-len 8 --optimizer none --json
ok "no optimizer: none in the graph" sh -c "! grep -qE 'adamw|sgd|sum_squares|norm_of' '$dir/out'"

# ---- gradients ----

gives 0 'loss 4.53796' grad $ref --batch $batch --out "$dir/all"
gives 0 'frozen parameters are written as zeros' grad $ref --batch $batch --out "$dir/some" --freeze wte.weight --freeze 'h.0.*'
names "$dir/all" >"$dir/want" && names "$dir/some" >"$dir/got"
ok "grad --freeze: one gradient per parameter" cmp "$dir/want" "$dir/got"
ok "grad --freeze: the others' bits" same_tensor "$dir/all" "$dir/some" h.1.mlp.c_fc.weight
tensor "$dir/all" h.0.mlp.c_fc.weight | tr -d '\0' >"$dir/x"
tensor "$dir/some" h.0.mlp.c_fc.weight | tr -d '\0' >"$dir/y"
ok "grad --freeze: zeros" [ -s "$dir/x" ] && ok "grad --freeze: zeros" [ ! -s "$dir/y" ]

# ---- losses ----

# PyTorch's definition of cross_entropy with label_smoothing, and z-loss, from other ops.
inputs='%x: f32[6, 11] param "x"' labels='  %labels: i64[6] = arange(end=6)'
cat >"$dir/fused.tn" <<END
tenon 1
graph g($inputs) {
$labels
  %count = count_labels(%labels, ignore_index=2)
  %loss, %lse = cross_entropy(%x, %labels, %count, ignore_index=2, z_loss=0.01, label_smoothing=0.2)  loss
  return loss %loss
}
END
cat >"$dir/plain.tn" <<END
tenon 1
graph g($inputs) {
$labels
  %two = full(size=[], fill_value=2.0, dtype=i64)
  %counts = ne(%labels, %two)
  %weight = _to_copy(%counts, dtype=f32)
  %all = sum(%weight)
  %column = unsqueeze(%labels, dim=1)
  %class = arange(end=11)
  %hot = eq(%column, %class)
  %onehot = _to_copy(%hot, dtype=f32)
  %logp = _log_softmax(%x, dim=1)
  %picked = mul(%logp, %onehot)
  %nll = sum(%picked, dim=[1])
  %smooth = mean(%logp, dim=[1])
  %keep = full(size=[], fill_value=0.8)
  %share = full(size=[], fill_value=0.2)
  %z = full(size=[], fill_value=0.01)
  %a = mul(%nll, %keep)
  %b = mul(%smooth, %share)
  %ab = add(%a, %b)
  %exp = exp(%x)
  %sum = sum(%exp, dim=[1])
  %lse = log(%sum)
  %square = mul(%lse, %lse)
  %zs = mul(%square, %z)
  %rows = sub(%zs, %ab)
  %counted = mul(%rows, %weight)
  %total = sum(%counted)
  %loss = div(%total, %all)  loss
  return loss %loss
}
END
for name in fused plain; do
    gives 0 '' opt "$dir/$name.tn" --passes=grad -o "$dir/$name.grad.tn"
done
gives 0 '' check "$dir/fused.grad.tn" "$dir/plain.grad.tn" --tolerance 2e-6
sed 's/label_smoothing=0.2/label_smoothing=0.21/' "$dir/fused.grad.tn" >"$dir/other.tn"
gives 1 '' check "$dir/other.tn" "$dir/plain.grad.tn" --tolerance 2e-6

gives 2 '--z-loss is for models' plan tests/ir/flat.tn --z-loss 0.1
gives 2 'unknown option "--label-smoothing"' eval $ref --label-smoothing 0.1
gives 2 '--label-smoothing: expected a number from 0 to 1' grad $ref --label-smoothing 2
for iterations in 1 2; do
    gives 0 'loss 4.75223' grad $ref --batch $batch --out "$dir/z" --z-loss 0.01 --label-smoothing 0.1 --accumulate $iterations
done
# What is reported of a step is what is trained on; what is held out is judged by the cross-entropy alone.
head -c 600 /dev/zero | tr '\0' 'A' >"$dir/bytes"
set -- train $ref --data "$dir/bytes" --token-type byte --val-fraction 0.5 --batch-size 2 --seq-len 8 --steps 1 --lr 0
gives 0 'held-out' "$@" --out "$dir/l" --metrics "$dir/l.m"
gives 0 'held-out' "$@" --out "$dir/n" --metrics "$dir/n.m" --z-loss 0.1 --label-smoothing 0.1
ok "the step's loss is what is trained on" [ "$(grep -o '"loss": [^,]*' "$dir/l.m")" != "$(grep -o '"loss": [^,]*' "$dir/n.m")" ]
ok "the held-out loss is not" [ "$(grep -o '"eval_loss": [^,]*' "$dir/l.m")" = "$(grep -o '"eval_loss": [^,]*' "$dir/n.m")" ]

# ---- training ----

set -- train $ref --batch $batch --lr 0.01 --warmup 2 --metrics "$dir/m"
gives 0 'step 6 loss' "$@" --steps 6 --out "$dir/sgd" --optimizer sgd
ok "sgd: no state" [ -z "$(names "$dir/sgd/latest/optimizer.safetensors")" ]
ok "sgd: trained" other_tensor $ref/model.safetensors "$dir/sgd/latest/model.safetensors" wte.weight
ok "the last learning rate" grep -q '"step": 6,.*"lr": 0.001,' "$dir/m"
ok "the first learning rate" grep -q '"step": 1,.*"lr": 0.005,' "$dir/m"
gives 0 '' "$@" --steps 6 --out "$dir/two" --optimizer sgd --save-every 3
rm -r "$dir/two/step-6" && ln -sfn step-3 "$dir/two/latest"
gives 0 'goes on from' train --resume --out "$dir/two"
ok "sgd without state goes on to the same bits" cmp "$dir/sgd/latest/model.safetensors" "$dir/two/latest/model.safetensors"
gives 2 '--optimizer: the run began with "sgd", found "adamw"' train --resume --out "$dir/sgd" --optimizer adamw

set -- "$@" --steps 6 --optimizer sgd --momentum 0.9 --freeze 'w?e.*' --freeze 'h.0.*' --no-decay 'h.1.mlp.*'
gives 0 '' "$@" --out "$dir/a"
names $ref/model.safetensors | grep -v 'w.e\.\|h\.0\.' | sed 's/$/.m/' | sort >"$dir/want"
names "$dir/a/latest/optimizer.safetensors" >"$dir/got"
ok "sgd with momentum: state of what is trained" cmp "$dir/want" "$dir/got"
for name in $(names $ref/model.safetensors); do
    case $name in
    w?e.* | h.0.*) ok "frozen: $name" same_tensor $ref/model.safetensors "$dir/a/latest/model.safetensors" "$name" ;;
    *) ok "trained: $name" other_tensor $ref/model.safetensors "$dir/a/latest/model.safetensors" "$name" ;;
    esac
done
gives 0 '' "$@" --out "$dir/b" --save-every 4
rm -r "$dir/b/step-6" && ln -sfn step-4 "$dir/b/latest"
gives 0 'goes on from' train --resume --out "$dir/b"
for file in model.safetensors optimizer.safetensors; do
    ok "goes on to the same $file" cmp "$dir/a/latest/$file" "$dir/b/latest/$file"
done
gives 2 '--freeze: the run began with' train --resume --out "$dir/b" --freeze wte.weight
gives 2 '--momentum: the run began with 0.9' train --resume --out "$dir/b" --momentum 0.5

gives 0 '' train $ref --batch $batch --steps 2 --out "$dir/decay" --lr 0.01
gives 0 '' train $ref --batch $batch --steps 2 --out "$dir/none" --lr 0.01 --no-decay 'h.0.mlp.c_fc.weight'
ok "--no-decay: its parameter" other_tensor "$dir/decay/latest/model.safetensors" "$dir/none/latest/model.safetensors" h.0.mlp.c_fc.weight
gives 0 '' train $ref --batch $batch --steps 2 --out "$dir/clip" --lr 0.01 --clip 0 --optimizer sgd
ok "--clip 0: trained" other_tensor $ref/model.safetensors "$dir/clip/latest/model.safetensors" wte.weight

totals
