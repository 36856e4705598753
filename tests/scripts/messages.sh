#!/bin/sh
# What is said where a model, a batch or an option does not do: the file and the place in it, what was
# expected, and what helps. Usage: tests/scripts/messages.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny

# ---- ids and labels ----

places='{"input_ids":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},"labels":{"dtype":"I64","shape":[1,2],"data_offsets":[16,32]}}'
zero='\0\0\0\0\0\0\0\0'
tensors "$dir/far_id" "$places" "$zero"'\141\0\0\0\0\0\0\0'"$zero$zero" # 97
tensors "$dir/far_label" "$places" "$zero$zero"'\375\377\377\377\377\377\377\377'"$zero" # -3
none='\234\377\377\377\377\377\377\377' # -100
tensors "$dir/no_label" "$places" "$zero$zero$none$none"
mkdir "$dir/o"
for command in grad eval train; do
    set -- $command $ref
    [ $command = eval ] || set -- "$@" --out "$dir/o/far"
    [ $command != train ] || set -- "$@" --steps 1
    gives 1 "$dir/far_id: input_ids, row 0, column 1 (from 0): expected 0 to 96, found 97" "$@" --batch "$dir/far_id"
    gives 1 "$dir/far_label: labels, row 0, column 0 (from 0): expected 0 to 96, or -100 where none counts, found -3" \
        "$@" --batch "$dir/far_label"
    gives 1 "$dir/no_label: labels: expected at least 1 that is not -100, found none" "$@" --batch "$dir/no_label"
done
printf '\1\0\2\0\141\0\3\0' >"$dir/far_token"
far="$dir/far_token: token 2 (from 0; at byte 4): expected 0 to 96, the model's vocabulary, found 97"
gives 1 "$far" eval $ref --data "$dir/far_token" --token-type u16
"$tenon" train $ref --data "$dir/far_token" --token-type u16 --steps 1 --batch-size 1 --seq-len 3 --val-fraction 0 \
    --out "$dir/o/far" >"$dir/out" 2>"$dir/err"
ok "train names the token too" grep -qF "$far" "$dir/err"

# ---- positions ----

# A sequence that is longer than the model's positions is refused, of models with rope too.
llama=tests/ref/llama-tiny
gpt2_has='the model has 32 positions ("n_positions" of its config.json)'
llama_has='the model has 64 positions ("max_position_embeddings" of its config.json)'
seq 1 2000 | tr '\n' ' ' | head -c 8000 >"$dir/text"
for model in $ref $llama; do
    has=$gpt2_has
    [ $model = $ref ] || has=$llama_has
    gives 2 "$has" plan $model --batch-size 1 --seq-len 65
    gives 2 "$has" train $model --data "$dir/text" --batch-size 1 --seq-len 65 --steps 1 --out "$dir/o/p" --token-type u16
    gives 2 "$has" eval $model --data "$dir/text" --seq-len 65 --token-type u16
    gives 2 "$has" generate $model --prompt ! --tokens 9 --tokenizer bytes --context 65
done
long=$(awk 'BEGIN { while (i++ < 65) printf "\\0\\0\\0\\0\\0\\0\\0\\0" }')
tensors "$dir/long" '{"input_ids":{"dtype":"I64","shape":[1,65],"data_offsets":[0,520]},"labels":{"dtype":"I64","shape":[1,65],"data_offsets":[520,1040]}}' "$long$long"
gives 2 "$llama_has" grad $llama --batch "$dir/long" --out "$dir/g"
gives 2 "$llama_has" eval $llama --batch "$dir/long"
gives 2 "$llama_has" train $llama --batch "$dir/long" --steps 1 --out "$dir/o/p"
gives 2 'the model has 1024 positions (as the preset has it)' plan demo --batch-size 1 --seq-len 1025
tr -d '\n' <$llama/config.json | sed 's/, "max_position_embeddings": 64//' >"$dir/default.json"
gives 2 'has 2048 positions (transformers'"' default where config.json has no"' "max_position_embeddings")' \
    plan "$dir/default.json" --batch-size 1 --seq-len 2049
gives 0 '' plan "$dir/default.json" --batch-size 1 --seq-len 2048
# Text longer than the positions is generated through a window, and evaluated in such windows.
gives 0 '64 tokens (all that the model has' generate $llama --prompt ! --tokens 80 --tokenizer bytes
"$tenon" eval demo --data "$dir/text" --batch-size 1 --json >"$dir/out" 2>"$dir/err"
ok "eval: windows of all positions" grep -q '"seq_len": 1024' "$dir/out"

# ---- weights that are not safetensors ----

mkdir "$dir/it's a model"
cp $ref/config.json "$dir/it's a model"
gives 1 'model.safetensors: cannot open' plan "$dir/it's a model" --batch-size 1 --seq-len 8
gives 1 "it's a model/config.json in the place of the folder is the model with initial values" \
    plan "$dir/it's a model" --batch-size 1 --seq-len 8
: >"$dir/it's a model/optimizer.pt"
gives 1 'model.safetensors: cannot open' plan "$dir/it's a model" --batch-size 1 --seq-len 8
for file in tf_model.h5 other.safetensors w.pth model.gguf pytorch_model.bin pytorch_model-2.bin; do
    : >"$dir/it's a model/$file"
    gives 1 "it's a model: expected model.safetensors, found $file" plan "$dir/it's a model" --batch-size 1 --seq-len 8
done
# The line is one that a shell takes apart as it is meant: here by another python3.
mkdir "$dir/bin"
printf '#!/bin/sh\nprintf "%%s\\n" "$@"\n' >"$dir/bin/python3"
chmod +x "$dir/bin/python3"
PATH=$dir/bin:$PATH sh -c "$(tail -1 "$dir/err")" >"$dir/words"
printf '%s\n' "$dir/it's a model" "$dir/it's a model/pytorch_model-2.bin" "$dir/it's a model/pytorch_model.bin" \
    >"$dir/want"
ok "a program in one word" grep -q '^import .*)$' "$dir/words"
ok "the folder and all of its files" sh -c "tail -n +3 '$dir/words' | cmp - '$dir/want'"
# Run by Python itself, where PYTHON has torch and safetensors.
if "${PYTHON:-python3}" -c 'import torch, safetensors.torch' 2>/dev/null; then
    cp $ref/model.safetensors "$dir/it's a model/model.safetensors"
    (cd "$dir/it's a model" && rm -f pytorch_model* && "${PYTHON:-python3}" -c 'import torch
from safetensors.torch import load_file
w = load_file("model.safetensors")
w["lm_head.weight"] = w[[k for k in w if k.endswith("wte.weight")][0]]
torch.save(w, "pytorch_model.bin")')
    gives 0 '' grad $ref --batch $ref/batch.safetensors --out "$dir/want"
    rm "$dir/it's a model/model.safetensors"
    gives 1 'this line of Python' plan "$dir/it's a model" --batch-size 1 --seq-len 8
    tail -1 "$dir/err" | sed "s|^  python3|${PYTHON:-python3}|" | sh
    gives 0 '' grad "$dir/it's a model" --batch $ref/batch.safetensors --out "$dir/got"
    ok "what the line of Python writes is the model" cmp "$dir/want" "$dir/got"
else
    echo "note: messages.sh: no torch: the line that converts weights was not run"
fi

# ---- what a folder has and a run has not ----

# A checkpoint in bf16 is such a folder; its config.json gets GPT-2's own dropout.
batch=$ref/batch.safetensors
gives 0 '' train $ref --batch $batch --steps 1 --param-dtype bf16 --out "$dir/own"
own=$dir/own/step-1
saved() { # FOLDER DTYPE NAME: that the weights are so, and that config.json says it
    ok "$1: weights in $2" grep -qa "\"dtype\":\"$2\"" "$1/model.safetensors"
    ok "$1: config.json says $3" grep -Eq "\"(torch_)?dtype\": \"$3\"" "$1/config.json"
}
saved "$own" BF16 bfloat16
sed -i 's/"n_head"/"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.2, "n_head"/' "$own/config.json"
drop='embd_pdrop 0.1, resid_pdrop 0.2, attn_pdrop 0.1, this run no dropout; --dropout 0.2 sets it for embeddings and residual branches alike; probabilities of attention are not dropped'
bf16='its weights are bf16, this run trains and saves f32; --param-dtype bf16 keeps them so'
gives 0 "$drop" train "$own" --batch $batch --steps 1 --out "$dir/plain"
ok "bf16 is told" grep -qF "$bf16" "$dir/err"
saved "$dir/plain/step-1" F32 float32
gives 0 '' train "$own" --batch $batch --steps 1 --param-dtype bf16 --dropout 0.2 --out "$dir/kept"
ok "nothing is told of what is kept" not grep -q 'note: [^s]' "$dir/err"
saved "$dir/kept/step-1" BF16 bfloat16
gives 0 '' train "$own" --batch $batch --steps 1 --param-dtype f32 --dropout 0 --out "$dir/said"
ok "nor of what was said" not grep -q 'note: [^s]' "$dir/err"
gives 0 '' train --resume --steps 2 --out "$dir/plain"
ok "nor again when the run goes on" not grep -q 'note: [^s]' "$dir/err"
sed 's/"max_position/"attention_dropout": 0.1, "max_position/' $llama/config.json >"$dir/attention.json"
gives 0 'attention_dropout 0.1, this run has not: probabilities of attention are not dropped' \
    train "$dir/attention.json" --batch tests/ref/llama-tiny/batch.safetensors --steps 1 --out "$dir/attention"

totals
