#!/bin/sh
# What is said where a model, a batch or an option does not do: the file and the place in it, what was
# expected, and what helps. Usage: tests/messages.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny

# ---- ids and labels ----

places='{"input_ids":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},"labels":{"dtype":"I64","shape":[1,2],"data_offsets":[16,32]}}'
zero='\0\0\0\0\0\0\0\0'
tensors "$dir/far_id" "$places" "$zero"'\141\0\0\0\0\0\0\0'"$zero$zero" # 97
tensors "$dir/far_label" "$places" "$zero$zero"'\375\377\377\377\377\377\377\377'"$zero" # -3
for command in grad eval train; do
    set -- $command $ref
    [ $command = eval ] || set -- "$@" --out "$dir/o/far"
    [ $command != train ] || set -- "$@" --steps 1
    gives 1 "$dir/far_id: input_ids, row 0, column 1 (from 0): expected 0 to 96, found 97" "$@" --batch "$dir/far_id"
    gives 1 "$dir/far_label: labels, row 0, column 0 (from 0): expected 0 to 96, or -100 where none counts, found -3" \
        "$@" --batch "$dir/far_label"
done
printf '\1\0\2\0\141\0\3\0' >"$dir/far_token"
far="$dir/far_token: token 2 (from 0; at byte 4): expected 0 to 96, the model's vocabulary, found 97"
gives 1 "$far" eval $ref --data "$dir/far_token" --token-type u16
"$tenon" train $ref --data "$dir/far_token" --token-type u16 --steps 1 --batch-size 1 --seq-len 3 --val-fraction 0 \
    --out "$dir/o/far" >"$dir/out" 2>"$dir/err"
ok "train names the token too" grep -qF "$far" "$dir/err"

totals
