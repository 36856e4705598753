#!/bin/sh
# Ranks that are processes, each with files of its own: where data, batch, weights, configuration, tokenizer or
# checkpoint of one differ from rank 0's nothing is run, and rank and file are named; copies elsewhere are the same.
# Usage: tests/scripts/alike.sh BUILD
. tools/checks.sh
. tools/launch.sh
ref=$PWD/tests/ref/llama-tiny
tokenizer=$PWD/tests/tokenizer/llama2.json
mkdir "$dir/a"
cd "$dir/a" || exit 1
cp -r "$ref" model
cp "$ref/batch.safetensors" batch
for _ in $(seq 30); do cat "$OLDPWD/LICENSE"; done >text
head -c 20000 text >tokens
mkdir spoken
sed 's/"vocab_size": [0-9]*/"vocab_size": 1000/' model/config.json >spoken/config.json
cp "$tokenizer" spoken/tokenizer.json
cp "$tokenizer" llama2.json
"$tenon" train model --batch batch --steps 1 --threads 1 --out run >"$dir/out" 2>"$dir/err"
ok "a run" [ -e run/step-1 ]

# starts ARGUMENTS...: two ranks, the second in a folder b.
starts() {
    timeout 60 "mpirun.$mpi" -n 1 sh -c 'cd "$0/a" && exec "$@"' "$dir" "$tenon" "$@" : \
        -n 1 sh -c 'cd "$0/b" && exec "$@"' "$dir" "$tenon" "$@" >"$dir/out" 2>"$dir/err"
}
# again: folder b is a copy of a.
again() {
    rm -rf "$dir/b" "$dir/o"
    cp -r "$dir/a" "$dir/b"
}
# refuses FILE TEXT ARGUMENTS...: where the second rank's file is another.
refuses() {
    file=$1 text=$2
    shift 2
    starts "$@"
    got=$?
    ok "$mpi: $*: expected exit code 1, found $got" [ $got = 1 ]
    ok "$mpi: $*: $file is named" grep -qF "tenon: rank 1: $file: $text" "$dir/err"
    ok "$mpi: $*: no loss, no folder" sh -c "! grep '^step\|^loss' '$dir/out' && [ ! -e '$dir/o' ]"
}
# change FILE BYTE: one byte of the second rank's file.
change() {
    # shellcheck disable=SC2059
    printf "\\$2" | dd of="$dir/b/$1" bs=1 seek=$(($(wc -c <"$dir/b/$1") - 104)) conv=notrunc 2>"$dir/err"
}
train="train model --steps 2 --mesh dp=2 --threads 1 --out $dir/o"
whole=
for mpi in $(mpis); do
    other='other content here than on rank 0, in '
    again
    # shellcheck disable=SC2086
    starts $train --data tokens --token-type byte --batch-size 4 --seq-len 16 --val-fraction 0 --lr 1e-3
    ok "$mpi: copies are the same" [ $? = 0 ]
    again
    change tokens 101
    # shellcheck disable=SC2086
    {
        refuses tokens "$other" $train --data tokens --token-type byte --batch-size 4 --seq-len 16
        [ -z "$whole" ] || continue # one of them has tried all kinds of files
        whole=$mpi
        refuses tokens "$other" $train --data 't?kens' --token-type byte --batch-size 4 --seq-len 16
        refuses tokens "$other" eval model --data tokens --token-type byte --mesh dp=2
        cp "$dir/b/text" "$dir/b/tokens"
        refuses tokens "$(wc -c <text | tr -d ' ') bytes here, 20000 on rank 0" $train --data tokens \
            --token-type byte --batch-size 4 --seq-len 16
        again
        cp tokens "$dir/b/tokens2"
        refuses --data '2 files here, 1 on rank 0' $train --data 'tokens*' --token-type byte --batch-size 4 --seq-len 16
        again
        change batch 1
        refuses batch "$other" $train --batch batch
        refuses batch "$other" grad model --batch batch --mesh dp=2 --out "$dir/o"
        refuses batch "$other" eval model --batch batch --mesh dp=2
        again
        change model/model.safetensors 2
        refuses model/model.safetensors "$other" $train --batch batch
        refuses model/model.safetensors "$other" grad model --batch batch --mesh fsdp=2 --out "$dir/o"
        refuses model/model.safetensors "$other" eval model --batch batch --mesh tp=2
        refuses model/model.safetensors "$other" eval model --data tokens --token-type byte --mesh dp=2
        again
        echo >>"$dir/b/model/config.json"
        refuses model/config.json "$(wc -c <"$dir/b/model/config.json" | tr -d ' ') bytes here" $train --batch batch
        again
        change run/step-1/optimizer.safetensors 1
        refuses run/step-1/optimizer.safetensors '"lm_head.weight.v": expected the checksum' train --resume --out run --steps 2 --mesh dp=2
        again
        sed '/"crc32c"/d; s/"seed": 0/"seed": 1/' run/step-1/state.json >"$dir/b/run/step-1/state.json"
        starts train --resume --out run --steps 2 --mesh dp=2
        ok "$mpi: another state: exit code" [ $? != 0 ]
        again
        change spoken/tokenizer.json 40
        refuses spoken/tokenizer.json "$other" train spoken/config.json --steps 1 --mesh dp=2 --threads 1 \
            --out "$dir/o" --data text --batch-size 4 --seq-len 16
        rm "$dir/b/spoken/tokenizer.json" spoken/tokenizer.json
        change llama2.json 40
        refuses llama2.json "$other" train spoken/config.json --steps 1 --mesh dp=2 --threads 1 --tokenizer llama2.json \
            --out "$dir/o" --data text --batch-size 4 --seq-len 16
        cp llama2.json spoken/tokenizer.json
    }
done
cat "$dir/skipped"
totals
