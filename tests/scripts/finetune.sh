#!/bin/sh
# The fine-tune of a new user: a model folder with its tokenizer, a text, Ctrl-C at random moments (of reading,
# training, evaluation and saving), the same command again until the run is at its end, then `eval`. Each ends with the
# bits of a run that was left alone. TN_LONG=1: 50 fine-tunes, not 2. Usage: tests/scripts/finetune.sh BUILD
. tools/checks.sh
first=4 count=2 # the fifth is stopped while it starts
[ -z "$TN_LONG" ] || first=1 count=50
export MALLOC_PERTURB_=165
cat >"$dir/config.json" <<END
{"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05, "hidden_size": 32, "num_attention_heads": 2,
 "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 50257,
 "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 64}
END
cp tests/tokenizer/gpt2.json "$dir/tokenizer.json"
mkdir "$dir/text"
cp LICENSE "$dir/text/one.txt"
head -c 30000 README.md >"$dir/text/two.txt"
"$tenon" train "$dir/config.json" --data "$dir/text" --batch-size 2 --seq-len 32 --steps 1 --out "$dir/base" --threads 2 \
    >"$dir/out" 2>"$dir/err"
ok "a folder to begin from" [ $? = 0 ]
tune="train $dir/base --data $dir/text --batch-size 2 --seq-len 32 --steps 24 --lr 1e-3 --eval-every 6 --eval-windows 8
      --save-every 4 --keep 2 --threads 2"

# after COUNT: returns when the run has that many lines of metrics, or is gone.
after() {
    while kill -0 $pid 2>/dev/null && [ "$(cat "$dir/$run.jsonl" 2>/dev/null | wc -l)" -lt "$1" ]; do sleep 0.02; done
}
# evaluated RUN: what eval says of its last checkpoint.
evaluated() { "$tenon" eval "$dir/$1" --data LICENSE --batch-size 2 --seq-len 32 --threads 2 2>"$dir/err"; }
# shellcheck disable=SC2086
"$tenon" $tune --out "$dir/alone" >"$dir/out" 2>"$dir/err"
ok "left alone" [ $? = 0 ]
evaluated alone >"$dir/want"
ok "evaluated: $(cat "$dir/want")" grep -q loss "$dir/want"

stopped=0 ended=0
for trial in $(seq $first $((first + count - 1))); do
    run=run$trial codes=
    for turn in 0 1 2 last; do
        # shellcheck disable=SC2086
        "$tenon" $tune --resume --out "$dir/$run" --metrics "$dir/$run.jsonl" >"$dir/out" 2>"$dir/err" &
        pid=$!
        if [ "$turn" != last ]; then # of 24 steps and 4 evaluations: while it starts, or in a third of the run
            number=$(random 9 $((trial * 100 + turn)))
            [ "$turn" = 0 ] && [ $((trial % 5)) = 0 ] || after $((turn * 9 + ${number%.*} + 1))
            sleep "$(random 0.1 $((trial * 100 + 50 + turn)))"
            kill -INT $pid 2>/dev/null
        fi
        wait $pid
        code=$? codes="$codes $code"
        [ $code = 130 ] && stopped=$((stopped + 1))
        [ $code = 130 ] || break
    done
    ended=$((ended + (code == 0)))
    ok "fine-tune $trial: ends after$codes" [ $code = 0 ]
    ok "fine-tune $trial: weights" cmp "$dir/alone/latest/model.safetensors" "$dir/$run/latest/model.safetensors"
    ok "fine-tune $trial: optimizer" cmp "$dir/alone/latest/optimizer.safetensors" "$dir/$run/latest/optimizer.safetensors"
    evaluated "$run" >"$dir/got"
    ok "fine-tune $trial: evaluated as the run left alone" cmp "$dir/want" "$dir/got"
    ok "fine-tune $trial: the tokenizer goes along" cmp tests/tokenizer/gpt2.json "$dir/$run/latest/tokenizer.json"
    ok "fine-tune $trial: nothing is left aside" [ -z "$(find "$dir/$run" -name '.*tmp*')" ]
    rm -r "${dir:?}/$run" "$dir/$run.jsonl"
done
ok "some were stopped: $stopped" [ $stopped -gt 0 ]
echo "note: finetune.sh: $count fine-tunes, stopped $stopped times, $ended came to their end"
totals
