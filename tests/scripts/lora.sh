#!/bin/sh
# Adapters (LoRA), in the hands of a user: a run on a chat file that is interrupted and goes on to the same bits, its
# folders, text and loss from it and from what `merge` writes, ranks and other settings beside one rank's numbers, and
# what is refused. tests/python/test_lora.py compares the numbers with PEFT's. Usage: tests/scripts/lora.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
base=$dir/base
cp -r "$ref" "$base"
lora="r=4,alpha=6,dropout=0.1,targets=q_proj|v_proj|down_proj"

# losses RUN OPTIONS...: those of six steps on a batch, and the run in $dir/RUN.
losses() {
    run=$1
    shift
    "$tenon" train "$base" --lora "$lora" --batch "$batch" --steps 6 --lr 1e-2 --schedule constant --threads 1 --out "$dir/$run" "$@" \
        >"$dir/$run.losses" 2>"$dir/err"
    ok "train $*" [ $? = 0 ]
}
# near A B TOLERANCE: that losses are alike.
near() {
    ok "losses of $2 as of $1" awk -v most="$3" 'NR == FNR { x[FNR] = $4; next } { d = $4 - x[FNR]; n++ }
        d > most || -d > most { bad = 1 } END { exit bad || n != 6 }' "$dir/$1.losses" "$dir/$2.losses"
}

# ---- a run ----

losses one
near one one 0
ok "the loss falls" awk 'NR == 1 { first = $4 } { last = $4 } END { exit !(last < first - 0.1) }' "$dir/one.losses"
ok "its checkpoint has adapters alone" [ "$(ls "$dir/one/step-6" | tr '\n' ' ')" = \
    "adapter_config.json adapter_model.safetensors optimizer.safetensors state.json " ]
ok "and names the base" grep -qF "\"base_model_name_or_path\": \"$(realpath "$base")\"" "$dir/one/latest/adapter_config.json"
ok "the weights' file is small" [ "$(wc -c <"$dir/one/latest/adapter_model.safetensors")" -lt 30000 ]
gives 0 '"parameters": 4' plan "$base" --lora r=4 --batch-size 2 --seq-len 32 --json
gives 0 'adamw                 9344 values' plan "$base" --lora "r=4,targets=all-linear" --batch-size 2 --seq-len 32
gives 0 'frozen              109248 values' plan "$base" --lora "r=4,targets=all-linear" --batch-size 2 --seq-len 32

# ---- other settings: the same numbers ----

for how in "--accumulate 2" "--recompute full" "--chunk 4" "--mesh dp=2" "--mesh fsdp=2"; do
    # shellcheck disable=SC2086
    losses other --overwrite $how
    near one other 2e-6
done
losses tp --mesh tp=2 --eps 1e-4
losses small --eps 1e-4
near small tp 2e-6
sizes="--batch-size 2 --seq-len 8 --recompute none --machine h100 --json"
for how in "--lora $lora" "--adapter $dir/one"; do
    # shellcheck disable=SC2086
    gives 0 '"status": "planned"' plan "$base" $how --mesh auto --ranks 2 $sizes
    # shellcheck disable=SC2046
    set -- $(sed -n 's/^ *"\(mesh\|reshard\|peak_bytes\)": "*\([^",]*\).*/\2/p' "$dir/out" | sed 3q)
    # shellcheck disable=SC2086
    gives 0 "\"peak_bytes\": $3," plan "$base" $how --mesh "$1" --reshard "$2" $sizes
done
losses ranks --mesh fsdp=2 --steps 3
"$tenon" train --resume --out "$dir/ranks" --mesh none --steps 6 --threads 1 >"$dir/rest" 2>"$dir/err"
ok "on one rank from a checkpoint of two" [ $? = 0 ]
sed -n 4,6p "$dir/one.losses" >"$dir/want.losses"
sed -n 1,3p "$dir/one.losses" | cat - "$dir/rest" >"$dir/both.losses"
near one both 2e-6

# ---- a chat file, interrupted ----

for i in $(seq 40); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"say $i\"}, {\"role\": \"assistant\", \"content\": \"it is $((i * 7))\"}]}"
done >"$dir/chat.jsonl"
cp tests/tokenizer/llama2.json "$dir/tokenizer.json"
cp tests/chat/chat_template.jinja "$dir/chat_template.jinja"
cat >"$dir/config.json" <<END
{"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05, "hidden_size": 32, "num_attention_heads": 2,
 "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 512,
 "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 64}
END
"$tenon" train "$dir/config.json" --data LICENSE --batch-size 2 --seq-len 32 --steps 1 --out "$dir/model" --threads 2 \
    >"$dir/out" 2>"$dir/err"
ok "a folder to begin from" [ $? = 0 ]
set -- train "$dir/model" --lora r=4,dropout=0.05 --data "$dir/chat.jsonl" --epochs 4 --batch-size 4 --seq-len 64 --lr 1e-3 --threads 2
gives 0 "of adapters are trained" "$@" --out "$dir/alone"
"$tenon" "$@" --out "$dir/cut" --save-every 7 --metrics "$dir/cut.jsonl" >"$dir/out" 2>"$dir/err" &
pid=$!
for _ in $(seq 600); do
    [ "$(cat "$dir/cut.jsonl" 2>/dev/null | wc -l)" -ge 5 ] && break
    sleep 0.05
done
kill -INT $pid
wait $pid
ok "interrupted" [ $? = 130 ]
gives 0 "goes on from" train --resume --out "$dir/cut"
for file in adapter_config.json adapter_model.safetensors optimizer.safetensors tokenizer.json; do
    ok "resumed: $file" cmp "$dir/alone/latest/$file" "$dir/cut/latest/$file"
done
cp -r "$dir/model/step-1" "$dir/else"
printf x | dd of="$dir/else/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
gives 1 "other weights when the run began" train "$dir/else" --resume --out "$dir/cut" --epochs 5
mv "$dir/model" "$dir/moved"
gives 1 "no model folder is at" train --resume --out "$dir/cut" --epochs 5
said "  name it: tenon train M --resume --out $dir/cut"
gives 0 "goes on from" train "$dir/moved" --resume --out "$dir/cut" --epochs 5
mv "$dir/moved" "$dir/model"

# ---- loss and text, from adapters and merged ----

gives 0 "" eval "$dir/alone" --data LICENSE --batch-size 2 --seq-len 32 --threads 2
cp "$dir/out" "$dir/want"
gives 0 "" eval "$dir/model" --adapter "$dir/alone" --data LICENSE --batch-size 2 --seq-len 32 --threads 2
ok "M --adapter is the run" cmp "$dir/want" "$dir/out"
gives 0 "adapters of 14 modules are merged" merge "$dir/alone" -o "$dir/merged"
ok "of the base that they were trained for" not grep -q warning "$dir/err"
gives 0 "" train "$dir/model" --batch "$batch" --steps 1 --threads 1 --out "$dir/another"
gives 0 "warning: merge: $dir/another/step-1/model.safetensors: the adapters' base had other weights" \
    merge "$dir/another" --adapter "$dir/alone" -o "$dir/merged-other"
mv "$dir/model/step-1" "$dir/trained"
mv "$dir/another/step-1" "$dir/model/step-1"
gives 1 "the adapters' base had other weights when the run began" merge "$dir/alone" -o "$dir/refused"
said "merge M --adapter $dir/alone -o DIR"
gives 1 "the adapters' base had other weights when the run began" eval "$dir/alone" --data LICENSE --seq-len 32
said "eval M --adapter $dir/alone"
gives 1 "the adapters' base had other weights when the run began" generate "$dir/alone" --prompt a --tokens 1
gives 1 "the adapters' base had other weights when the run began" grad "$dir/alone" --batch "$batch" --out "$dir/refused"
gives 0 "warning: eval: " eval "$dir/model" --adapter "$dir/alone" --data LICENSE --seq-len 32 --threads 1
mv "$dir/model/step-1" "$dir/another/step-1"
mv "$dir/trained" "$dir/model/step-1"
gives 2 "is there already" merge "$dir/alone" -o "$dir/merged"
cp -r "$dir/alone" "$dir/flipped"
printf '\377' | dd of="$dir/flipped/latest/adapter_model.safetensors" bs=1 conv=notrunc \
    seek=$(($(wc -c <"$dir/alone/latest/adapter_model.safetensors") - 1)) 2>"$dir/err"
gives 1 "expected the checksum" merge "$dir/flipped" -o "$dir/none"
ok "nothing is left of it" [ -z "$(ls -d "$dir"/none* 2>/dev/null)" ]
ok "what a folder has" [ "$(ls "$dir/merged" | tr '\n' ' ')" = \
    "chat_template.jinja config.json model.safetensors tokenizer.json " ]
gives 0 "" eval "$dir/merged" --data LICENSE --batch-size 2 --seq-len 32 --threads 2
ok "the merged loss" awk 'NR == FNR { x = $2; next } { d = $2 - x } END { exit !(d < 2e-5 && d > -2e-5) }' "$dir/want" "$dir/out"
gives 0 "rounding to bf16 changes a weight by at most" merge "$dir/alone" --dtype bf16 -o "$dir/merged16"
ok "half of the bytes" [ "$(wc -c <"$dir/merged16/model.safetensors")" -lt $(($(wc -c <"$dir/merged/model.safetensors") * 11 / 20)) ]
for m in "$dir/alone" "$dir/merged"; do
    gives 0 "" generate "$m" --message "say 3" --tokens 8 --temperature 0 --threads 1
    cp "$dir/out" "$dir/text.$(basename "$m")"
done
ok "the same text" cmp "$dir/text.alone" "$dir/text.merged"
gives 0 "" generate "$dir/model" --adapter "$dir/alone" --message "say 3" --tokens 8 --temperature 0 --threads 1
ok "the same text by --adapter" cmp "$dir/text.alone" "$dir/out"

# ---- going on from adapters, with others, or with a part of them ----

gives 0 "" train "$base" --adapter "$dir/one" --batch "$batch" --steps 1 --lr 0 --threads 1 --out "$dir/next"
ok "begins with them" cmp "$dir/one/latest/adapter_model.safetensors" "$dir/next/latest/adapter_model.safetensors"
gives 0 "" train "$dir/one" --batch "$batch" --steps 1 --lr 0 --threads 1 --out "$dir/next2"
ok "a run is M too" cmp "$dir/one/latest/adapter_model.safetensors" "$dir/next2/latest/adapter_model.safetensors"
gives 0 "" train "$base" --adapter "$dir/one" --freeze '*lora_A*' --batch "$batch" --steps 1 --threads 1 --out "$dir/half"
ok "only one of both is trained" [ "$(grep -ao 'lora_[AB].weight.m"' "$dir/half/latest/optimizer.safetensors" | sort -u)" = 'lora_B.weight.m"' ]

# ---- what is refused ----

gives 2 'lora: expected one of r, alpha' train "$base" --lora rank=4 --batch "$batch" --steps 1 --out "$dir/no"
gives 2 'lora: r is given twice' plan "$base" --lora r=4,r=5 --batch-size 2 --seq-len 8
gives 2 'lora: r: expected a number from 1 to 65536' plan "$base" --lora r=0 --batch-size 2 --seq-len 8
gives 2 'lora: r: expected an integer' plan "$base" --lora r=1.5 --batch-size 2 --seq-len 8
gives 2 'expected one at least that gets an adapter' plan "$base" --lora targets=q_proj,save=q_proj --batch-size 2 --seq-len 8
gives 2 'lora: dora: expected on or off' plan "$base" --lora dora=yes --batch-size 2 --seq-len 8
gives 2 'lora: dropout: expected a number from 0 to 0.99' plan "$base" --lora dropout=1 --batch-size 2 --seq-len 8
gives 2 '"q_prj" is no linear module of the model; the nearest is "q_proj"' plan "$base" --lora "targets=q_prj" --batch-size 2 --seq-len 8
gives 2 '"norm" is no linear module of the model' plan "$base" --lora "targets=norm" --batch-size 2 --seq-len 8
said 'there are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj'
ok "each once, and no embedding" not grep -q 'embed_tokens\|q_proj.*q_proj' "$dir/err"
gives 2 '"nrm" is no module of the model' plan "$base" --lora "save=nrm" --batch-size 2 --seq-len 8
gives 2 'a token table has no adapter here' plan "$base" --lora "targets=embed_tokens" --batch-size 2 --seq-len 8
gives 2 'lm_head is tied to' plan tests/ref/llama-tied --lora "targets=lm_head" --batch-size 2 --seq-len 8
gives 2 'are tied in this model' plan tests/ref/llama-tied --lora "save=embed_tokens" --batch-size 2 --seq-len 8
gives 2 '--lora and --adapter exclude each other' train "$base" --lora r=4 --adapter "$dir/one" --batch "$batch" --steps 1 --out "$dir/no"
gives 2 'has adapters of its own' train "$dir/one" --lora r=4 --batch "$batch" --steps 1 --out "$dir/no"
gives 2 'the run began without it, found' train "$base" --resume --adapter "$dir/one" --out "$dir/cut"
gives 2 'has no weights: adapters are for a folder that has' train demo --lora r=4 --data LICENSE --steps 1 --batch-size 2 --seq-len 8 --out "$dir/no"
gives 2 'the model has no adapters' merge "$base" -o "$dir/no"
gives 1 'found no adapter_config.json there' eval "$base" --adapter "$base" --batch "$batch"
gives 1 'tensor "base_model.model.model.layers.0' eval "$dir/model" --adapter "$dir/one" --batch "$batch"
gives 2 'the run began with "r=4,alpha=6' train --resume --out "$dir/one" --lora r=8 --steps 8
gives 2 'is for models, not for graphs' plan tests/pass/default/freeze.tn --lora r=4
cp -r "$dir/one/step-6" "$dir/loop"
sed "s|\"base_model_name_or_path\": .*|\"base_model_name_or_path\": \"$dir/loop\",|" "$dir/one/step-6/adapter_config.json" >"$dir/loop/adapter_config.json"
gives 1 'has adapters itself' eval "$dir/loop" --batch "$batch"
head -c 900 "$dir/one/step-6/adapter_model.safetensors" >"$dir/loop/adapter_model.safetensors"
gives 1 'adapter_model.safetensors' eval "$base" --adapter "$dir/loop" --batch "$batch"

# A folder as PEFT has it: a list of target_modules means those modules that have tensors, whatever else it names.
mkdir "$dir/listed"
cp "$dir/one/step-6/adapter_model.safetensors" "$dir/listed"
config=$dir/one/step-6/adapter_config.json
listed() {
    sed "s/\"q_proj\",/$1/" "$config" >"$dir/listed/adapter_config.json"
}
listed '"q_proj", "query_key_value",'
gives 0 '' eval "$base" --adapter "$dir/listed" --batch "$batch"
listed '"q_proj", "k_proj",'
gives 1 'module "model.layers.0.self_attn.k_proj" has no adapter there, but target_modules' eval "$base" --adapter "$dir/listed" --batch "$batch"
listed ''
gives 1 'module "model.layers.0.self_attn.q_proj" has an adapter there, but target_modules' eval "$base" --adapter "$dir/listed" --batch "$batch"
listed '"q_proj",'
LC_ALL=C sed 's/"crc32c /"other. /g' "$dir/one/step-6/adapter_model.safetensors" >"$dir/listed/adapter_model.safetensors" # no checksums
printf '\377\377\377\377' | dd of="$dir/listed/adapter_model.safetensors" bs=1 conv=notrunc \
    seek=$(($(wc -c <"$dir/listed/adapter_model.safetensors") - 4)) 2>"$dir/err"
gives 1 "$base with the adapters of $dir/listed: base_model.model.model.layers.1" train "$base" --adapter "$dir/listed" --batch "$batch" --steps 1 --out "$dir/no"
said 'has 1 value that is not finite'
totals
