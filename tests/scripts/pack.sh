#!/bin/sh
# Records that share rows (--pack on), from outside: losses of one record a row, runs that go on, microbatches,
# recomputation, slices, ranks, and what is refused. tests/programs/test_pack.c has gradients and seconds.
# Usage: tests/scripts/pack.sh BUILD
. tools/checks.sh
mkdir "$dir/M"
cat >"$dir/M/config.json" <<'END'
{"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05, "hidden_size": 32, "num_attention_heads": 4,
 "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 512,
 "rope_theta": 10000.0, "max_position_embeddings": 256}
END
cp tests/tokenizer/gpt2.json "$dir/M/tokenizer.json"
awk 'BEGIN { srand(5)
    for (i = 0; i < 60; i++) {
        printf "{\"prompt\": \"ask %d", i
        for (n = int(6 * rand()); n > 0; n--) printf " more"
        printf "\", \"completion\": \" say"
        for (n = int(14 * rand()); n > 0; n--) printf " %d", 10 * rand()
        print "\"}" } }' >"$dir/pairs.jsonl"
printf 'one more text, for weights' >"$dir/t"
gives 0 '' train "$dir/M/config.json" --data "$dir/t" --token-type byte --steps 1 --batch-size 1 --seq-len 4 \
    --val-fraction 0 --out "$dir/N"
cp "$dir/N/latest/model.safetensors" "$dir/M"
run="$dir/M --data $dir/pairs.jsonl --batch-size 4 --seq-len 100 --lr 1e-2 --threads 1 --pack on"
# same A B: their last weights and state.
same() {
    for file in model optimizer; do
        ok "$1 and $2: $file" cmp "$dir/$1/latest/$file.safetensors" "$dir/$2/latest/$file.safetensors"
    done
}
# losses FILE: of steps; near A B LIMIT: that those of two files are.
losses() { sed -n 's/.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2/p' "$1"; }
near() {
    losses "$dir/$1" >"$dir/x"
    losses "$dir/$2" >"$dir/y"
    paste "$dir/x" "$dir/y" | awk -v limit="$3" '
        { for (i = 1; i < 3; i++) { d = $i / $(i + 2) - 1; d = d < 0 ? -d : d; most = d > most ? d : most } }
        END { print most; exit !(NR && most <= limit) }' >"$dir/far"
    ok "$1 and $2: within $3, found $(cat "$dir/far")" [ $? = 0 ]
}

# ---- losses ----

for pack in on off; do
    gives 0 '' eval "$dir/M" --data "$dir/pairs.jsonl" --seq-len 100 --batch-size 4 --threads 1 --pack $pack --json
    sed 's/.*"eval_loss": \([^,]*\), .*"tokens": \([0-9]*\), .*"windows_all": \([0-9]*\),.*/\1 \2 \3/' "$dir/out" >"$dir/$pack"
done
ok "the loss of all records, in fewer rows: $(cat "$dir/on" "$dir/off" | tr '\n' ' ')" \
    awk '{ x[NR] = $1; n[NR] = $2; rows[NR] = $3 } END {
        d = x[1] / x[2] - 1; exit !(d < 1e-6 && d > -1e-6 && n[1] == n[2] && rows[2] == 60 && rows[1] <= 28) }' "$dir/on" "$dir/off"
# One step on all records: the same loss and the same norm of the gradient.
all="$dir/M --data $dir/pairs.jsonl --val-fraction 0 --seq-len 100 --threads 1 --steps 1"
rows=$(cut -d' ' -f3 "$dir/on")
# shellcheck disable=SC2086
trains all $all --batch-size 60 --metrics "$dir/all.jsonl"
# shellcheck disable=SC2086
trains packed $all --batch-size "$rows" --pack on --metrics "$dir/packed.jsonl"
near all.jsonl packed.jsonl 2e-6

# ---- texts in records ----

# The losses of texts are those of prompts without a word, one a row; longer ones go on in further rows.
awk -v texts="$dir/texts.jsonl" -v pairs="$dir/empty-prompts.jsonl" 'BEGIN { srand(7)
    for (i = 0; i < 40; i++) {
        s = "text " i
        for (n = int((i % 8 ? 12 : 60) * rand()); n > 0; n--) s = s " word" int(10 * rand())
        print "{\"text\": \"" s "\"}" >texts
        print "{\"prompt\": \"\", \"completion\": \"" s "\"}" >pairs
    } }'
# evaluates DATA OPTIONS...: loss, tokens and rows, to $dir/DATA.eval.
evaluates() {
    data=$1
    shift
    gives 0 '' eval "$dir/M" --data "$dir/$data.jsonl" --batch-size 4 --threads 1 --json "$@"
    sed 's/.*"eval_loss": \([^,]*\), .*"tokens": \([0-9]*\), .*"windows_all": \([0-9]*\),.*/\1 \2 \3/' "$dir/out" >"$dir/$data.eval"
}
evaluates empty-prompts --seq-len 256 --pack off
evaluates texts --seq-len 256 --pack on
ok "texts that share rows are as one a row: $(cat "$dir/texts.eval" "$dir/empty-prompts.eval" | tr '\n' ' ')" \
    awk '{ x[NR] = $1; n[NR] = $2; rows[NR] = $3 } END {
        d = x[1] / x[2] - 1; exit !(d < 1e-6 && d > -1e-6 && n[1] == n[2] && rows[2] == 40 && rows[1] < 20) }' \
    "$dir/texts.eval" "$dir/empty-prompts.eval"
evaluates texts --seq-len 50 --pack on
ok "long texts go on in further rows: no label is lost" \
    [ "$(cut -d' ' -f2 "$dir/texts.eval")" = "$(cut -d' ' -f2 "$dir/empty-prompts.eval")" ]
trains short-rows "$dir/M" --data "$dir/texts.jsonl" --batch-size 2 --seq-len 50 --pack on --steps 4 --threads 1
printf '{"text": ""}\n' >"$dir/empty.jsonl"
gives 1 'nothing of it is learned' eval "$dir/M" --data "$dir/empty.jsonl" --seq-len 50 --pack on
printf '{"text": "a"}\n{"prompt": "a", "completion": "b"}\n' >"$dir/both.jsonl"
gives 1 'both.jsonl:2: expected "text"' eval "$dir/M" --data "$dir/both.jsonl" --seq-len 50 --pack on

# ---- runs ----

# shellcheck disable=SC2086
trains whole $run --steps 8 --eval-every 4 --metrics "$dir/whole.jsonl"
ok "fewer rows than records" grep -q '^epoch: 1[0-9] rows of 100 tokens' "$dir/err"
# shellcheck disable=SC2086
trains cut $run --steps 5 --eval-every 4 --save-every 3 --schedule constant
trains cut --resume --steps 8
# shellcheck disable=SC2086
trains flat $run --steps 8 --eval-every 4 --schedule constant
same cut flat
# shellcheck disable=SC2086
trains again $run --steps 8 --eval-every 4 --recompute full
same again whole
# shellcheck disable=SC2086
trains parts $run --steps 8 --accumulate 2 --metrics "$dir/parts.jsonl"
near parts.jsonl whole.jsonl 1e-5
# shellcheck disable=SC2086
trains slices $run --steps 8 --chunk 'layers.*=2' --metrics "$dir/slices.jsonl"
near slices.jsonl whole.jsonl 1e-5
ok "attention runs in slices" "$tenon" plan "$dir/M" --batch-size 4 --seq-len 100 --pack on --chunk 'layers.*=2' --explain >/dev/null 2>"$dir/err"
# shellcheck disable=SC2086
trains ranks $run --steps 8 --mesh dp=2 --metrics "$dir/ranks.jsonl"
near ranks.jsonl whole.jsonl 1e-5
# shellcheck disable=SC2086
trains narrow $run --steps 8 --dtype bf16 --metrics "$dir/narrow.jsonl"
near narrow.jsonl whole.jsonl 2e-2

# ---- refusals ----

# shellcheck disable=SC2086
gives 2 'pack: expected records (texts, prompts and completions, chats), found the text of' \
    train "$dir/M" --data "$dir/t" --batch-size 1 --seq-len 2 --steps 1 --val-fraction 0 --pack on --out "$dir/no"
gives 2 '--pack is for --data, not for --batch' train tests/ref/llama-tiny --batch tests/ref/llama-tiny/batch.safetensors \
    --steps 1 --pack on --out "$dir/no"
gives 2 'train: --pack: the run began with "on", found "off"' train --resume --out "$dir/whole" --pack off
if "$tenon" --version | grep -qx 'backend cuda'; then
    gives 0 '' plan "$dir/M" --batch-size 1 --seq-len 8 --pack on --backend cuda --machine h100
fi
totals
