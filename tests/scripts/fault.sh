#!/bin/sh
# Faults from outside: steps that are not finite, limits on memory and file sizes, folders that vanish or
# cannot be written, a start through the dynamic loader. Each is a clear error, and what was
# saved before stays whole. Kills and full disks: tests/scripts/resume.sh; each call that can fail: test_fault.
# Usage: tests/scripts/fault.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors

# gives CODE TEXT ARGUMENTS...: exit code, and a text on standard error.
gives() {
    want=$1 text=$2
    shift 2
    $limit "$tenon" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    ok "tenon $*: expected exit code $want, found $got" [ $got = "$want" ]
    [ -z "$text" ] || ok "tenon $*: expected the text: $text" grep -qF -e "$text" "$dir/err"
}
limit=

# same A B: that two runs have the same last weights and optimizer state.
same() {
    for file in model optimizer; do
        ok "$2 as $1: $file" cmp "$dir/$1/latest/$file.safetensors" "$dir/$2/latest/$file.safetensors"
    done
}

# ---- steps that are not finite: the embedding of the byte " is the largest f32, infinite as bf16 ----

cp -r $ref "$dir/model"
file=$dir/model/model.safetensors
header=$(head -c 8 "$file" | od -An -tu8 | tr -d ' ')
begin=$(head -c $((8 + header)) "$file" | tail -c "$header" |
    sed 's/.*"model.embed_tokens.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
place() { printf "$1" | dd of="$file" bs=1 seek=$((8 + header + begin + 34 * 64 * 4)) conv=notrunc 2>/dev/null; }
place '\0\0\200\177' # infinite
gives 1 "$dir/model: model.embed_tokens.weight has 1 value that is not finite" train "$dir/model" --batch $batch \
    --steps 1 --threads 1 --on-nan skip --out "$dir/infinite"
ok "that is seen before the first step" [ ! -s "$dir/out" ]
place '\377\377\177\177'
tr a-z A-Z <LICENSE >"$dir/text"

set -- "$dir/model" --data "$dir/text" --batch-size 2 --seq-len 16 --steps 30 --threads 1 --lr 1e-3 --val-fraction 0 \
    --dtype bf16
gives 1 'the parameters are those before the step' train "$@" --out "$dir/stop"
ok "the node is named" grep -Eq '^  first value that is not finite: [a-z_]+ %[A-Za-z0-9_.]+ in model|layers' "$dir/err"
ok "as under --check" [ "$(grep first "$dir/err")" = "$("$tenon" train "$@" --out "$dir/check" --check 2>&1 | grep first)" ]
last=$(sed -n 's/^tenon: step \([0-9]*\): loss.*/\1/p' "$dir/err")
last=$((last - 1))
ok "it ends on the way: after step $last" [ $last -gt 0 ]
ok "the step before is saved" grep -qF "the state after step $last is saved in $dir/stop/step-$last" "$dir/err"
"$tenon" train "$@" --out "$dir/until" --save-every $last >"$dir/out" 2>"$dir/err"
for file in model optimizer; do
    ok "as a save there ($file)" \
        cmp "$dir/until/step-$last/$file.safetensors" "$dir/stop/latest/$file.safetensors"
done
gives 1 'the parameters are those before the step' train --resume --out "$dir/stop"
ok "nothing was trained, nothing is saved" [ "$(ls "$dir/stop")" = "$(printf 'latest\nstep-%d' $last)" ]
gives 0 'is skipped: loss nan' train "$@" --on-nan skip --out "$dir/skip" --metrics "$dir/skip.jsonl" --save-every 1
skipped=$(grep -c 'is skipped' "$dir/err")
ok "some steps are skipped, some not: $skipped" [ "$skipped" -gt 0 -a "$skipped" -lt 20 ]
ok "they are counted" grep -q "trained 30 steps in .* s, $skipped of them skipped" "$dir/err"
ok "in the metrics too" [ "$(sed -n '$s/.*"skipped_steps": \([0-9]*\),.*/\1/p' "$dir/skip.jsonl")" = "$skipped" ]
ok "null stands for what is not finite" [ "$(grep -c '"loss": null, "grad_norm": null,' "$dir/skip.jsonl")" = "$skipped" ]
first=$(sed -n 's/.*"step": \([0-9]*\), "loss": null.*/\1/p' "$dir/skip.jsonl" | head -1)
for file in model optimizer; do
    ok "a skipped step changes nothing ($file)" \
        cmp "$dir/skip/step-$((first - 1))/$file.safetensors" "$dir/skip/step-$first/$file.safetensors"
done
cp -r "$dir/skip" "$dir/again"
cp "$dir/skip.jsonl" "$dir/again.jsonl"
rm -r "$dir"/again/step-[23]? "$dir/again/step-1"[5-9]
ln -sfn step-14 "$dir/again/latest"
gives 0 "$skipped of them skipped" train --resume --out "$dir/again" --metrics "$dir/again.jsonl"
same skip again
gives 0 '' plot "$dir/skip.jsonl" -o "$dir/loss.svg"

set -- $ref --batch $batch --threads 1
gives 1 'the last 10 steps were skipped' train "$@" --steps 30 --optimizer sgd --lr 1e5 --clip 0 --weight-decay 0 --on-nan skip --out "$dir/huge"
ok "ten are skipped" [ "$(grep -c 'is skipped' "$dir/err")" = 9 ]
last=$(readlink "$dir/huge/latest")
ok "what came before the tenth is saved: $last" grep -qF "is saved in $dir/huge/$last" "$dir/err"
ok "with the skipped steps" grep -q '"skipped_in_a_row": 9,' "$dir/huge/latest/state.json"
gives 1 'first value that is not finite: ' train "$@" --steps 30 --optimizer sgd --lr 1e5 --clip 0 --weight-decay 0 --out "$dir/huge2"

# A step whose loss is finite, and with --clip 0 nothing else is looked at, makes the state infinite: it is never saved.
tiny=tests/ref/gpt2-tiny
for bad in stop skip; do
    gives 1 'step 2 is not saved: wte.weight.v has' train $tiny --batch $tiny/batch.safetensors --threads 1 --steps 9 \
        --save-every 1 --keep 2 --lr 1e4 --weight-decay 0 --schedule constant --clip 0 --on-nan $bad --out "$dir/state-$bad"
    ok "$bad: the losses were finite" [ "$(grep -c 'loss [0-9]' "$dir/out")" = 2 ]
    ok "$bad: the message says what there is" grep -q "^  the last checkpoint is $dir/state-$bad/step-1$" "$dir/err"
    ok "$bad: it stays" [ "$(ls "$dir/state-$bad" | tr '\n' ' ')" = "latest step-1 " ]
done
gives 1 'step 2 is not saved: wte.weight.v has' train $tiny --batch $tiny/batch.safetensors --threads 1 --steps 2 \
    --lr 1e4 --weight-decay 0 --schedule constant --clip 0 --out "$dir/state"
ok "nothing else is there" [ "$(ls -A "$dir/state")" = .run ]

# Held-out text whose loss is not finite: --keep leaves what was good.
tr -d '"' <"$dir/text" >"$dir/quotes"
printf '%0200d' 0 | tr 0 '"' >>"$dir/quotes"
for model in "$ref kept" "$dir/model blown"; do
    set -- $model
    code=0 text=''
    [ "$2" = kept ] || code=1 text='step 3: the held-out loss is nan'
    gives $code "$text" train "$1" --data "$dir/quotes" --token-type byte --batch-size 1 --seq-len 8 --steps 3 --save-every 2 \
        --eval-windows all --keep 1 --threads 1 --dtype bf16 --out "$dir/$2"
done
ok "one is kept" [ "$(ls "$dir/kept")" = "$(printf 'latest\nstep-3')" ]
ok "the one before stays" [ "$(ls "$dir/blown")" = "$(printf 'latest\nstep-2\nstep-3')" ]
ok "nan has no sign" sh -c "! grep -e -nan '$dir/err'"
set -- $ref --batch $batch --threads 1

# ---- checkpoints that are not as they were saved ----

gives 0 '' train "$@" --steps 4 --save-every 2 --lr 1e-3 --out "$dir/saved"
last=$dir/saved/step-4
# changed FILE COMMAND: the run, with a file of its last checkpoint, $file, that the command changes.
changed() {
    rm -rf "$dir/changed"
    cp -r "$dir/saved" "$dir/changed"
    file=$dir/changed/step-4/$1
    eval "$2"
    ok "$1 is changed" not cmp -s "$file" "$last/$1"
}
rate='sed -i "s/\"lr\": 0.001/\"lr\": 0.009/" "$file"'
bit='printf "\001" | dd of="$file" bs=1 conv=notrunc seek=$(($(wc -c <"$file") - 1)) 2>"$dir/err"'
changed state.json "$rate"
gives 0 "$file: expected the checksum" train --resume --out "$dir/changed"
ok "from the step before" grep -q "goes on from $dir/changed/step-2, the newest that is whole" "$dir/err"
same saved changed
changed state.json 'sed -i "s/\"crc32c\": \"./\"crc32c\": \"x/" "$file"'
gives 0 "$file: expected the checksum x" train --resume --out "$dir/changed"
changed state.json 'python3 -m json.tool "$last/state.json" >"$file"'
gives 0 "$file: \"crc32c\": expected eight digits in the second line" train --resume --out "$dir/changed"
changed state.json "$rate"'; sed -i /crc32c/d "$file"'
gives 0 'already at step 4' train --resume --out "$dir/changed"
ok "one without a checksum, of an earlier version, is read" not grep -q warning "$dir/err"

damaged=$dir/changed/step-4
for change in "state.json $rate" "model.safetensors $bit"; do
    changed "${change%% *}" "${change#* }"
    for command in 'eval' "grad --out $dir/new" "train --steps 1 --out $dir/new"; do
        # shellcheck disable=SC2086
        gives 1 "$file: " $command "$damaged" --batch $batch
        ok "$command: ${change%% *}" grep -q 'expected the checksum [0-9a-f]*, which .* says, found [0-9a-f]*:' "$dir/err"
        ok "$command: nothing is left" [ -z "$(ls -d "$dir"/new* 2>/dev/null)" ]
    done
done
gives 1 "$file: \"lm_head.weight\": expected the checksum" generate "$damaged" --tokenizer bytes --prompt A --tokens 1

# ---- limits ----

gives 0 '' train "$@" --steps 4 --save-every 2 --out "$dir/whole"
limited() { (ulimit -f "$1" && shift && exec "$@") }
limit='limited 600' # 300 KiB: the weights have 430
gives 1 'its largest file has 880752 bytes, and files are limited to 307200' train "$@" --steps 4 --out "$dir/small"
ok "before the first step" [ ! -s "$dir/out" -a ! -e "$dir/small" ]
limit='limited 2'
gives 1 "$dir/g: cannot write: File too large" grad $ref --batch $batch --out "$dir/g"
gives 1 "$dir/t: cannot write: File too large" tokenize docs/formats.md --tokenizer bytes -o "$dir/t"
ok "nothing is left aside" [ -z "$(ls -d "$dir"/[gt]*tmp* 2>/dev/null)" ]
limit=

# ---- folders ----

if [ "$(id -u)" != 0 ]; then
    mkdir "$dir/read-only"
    chmod a-w "$dir/read-only"
    gives 1 "$dir/read-only: cannot write there: Permission denied" train "$@" --steps 1 --out "$dir/read-only"
else
    gives 1 "cannot create: " train "$@" --steps 1 --out /proc/none
    gives 1 "/sys: cannot write there: " train "$@" --steps 1 --out /sys
fi
gives 1 'LICENSE/x: cannot create: Not a directory' train "$@" --steps 1 --out LICENSE/x
gives 1 'LICENSE' train "$@" --steps 1 --out LICENSE
gives 1 '/dev/full: cannot write: No space left' train "$@" --steps 1 --out "$dir/o1" --metrics /dev/full
gives 1 '/dev/full: cannot write: No space left' plot "$dir/skip.jsonl" -o /dev/full
gives 1 '/dev/full: cannot write: No space left' train "$@" --steps 1 --out "$dir/o2" --profile /dev/full

# moved CODE TEXT COMMAND: a run whose folder, gone, the command changes while it waits for someone to read its
# metrics, and which is then interrupted: exit code, and a text on standard error.
mkfifo "$dir/pipe"
moved() {
    "$tenon" train $ref --batch $batch --threads 1 --steps 1000000000 --overwrite --out "$dir/gone" --metrics "$dir/pipe" \
        >/dev/null 2>"$dir/err" &
    pid=$!
    exec 3<"$dir/pipe" # opens when the run holds its folder
    read -r line <&3   # of the first step
    eval "$3"
    kill -INT $pid
    cat <&3 >/dev/null &
    reader=$!
    wait $pid
    got=$?
    ok "$3: expected exit code $1, found $got" [ $got = "$1" ]
    ok "$3: expected the text: $2" grep -qF "$2" "$dir/err"
    exec 3<&-
    wait $reader
}
moved 130 'the folder is gone; it is made again' 'rm -r "$dir/gone"'
ok "it is made again, with the checkpoint" [ -f "$dir/gone/latest/model.safetensors" -a -f "$dir/gone/.run" ]
moved 130 'another folder than when the run began' 'mv "$dir/gone" "$dir/away" && mkdir "$dir/gone"'
ok "the checkpoint is where it should be" [ -f "$dir/gone/latest/model.safetensors" ]

# One whose folder another run holds by now.
hold() {
    mkfifo "$dir/other-pipe"
    rm -rf "$dir/away"
    mv "$dir/gone" "$dir/away"
    "$tenon" train $ref --batch $batch --threads 1 --steps 1000000000 --out "$dir/gone" --metrics "$dir/other-pipe" \
        >/dev/null 2>&1 &
    holder=$!
    exec 4<"$dir/other-pipe"
    read -r line <&4
}
moved 1 'another run is writing there' hold
kill -9 $holder
wait $holder 2>/dev/null
exec 4<&-
ok "it has written nothing there" [ ! -e "$dir/gone/latest" ]

# ---- wrong usage is 2, everywhere ----

printf 'graph\n  \0' >"$dir/nul.tn"
gives 1 "$dir/nul.tn:2:3: expected text, found a NUL byte" show "$dir/nul.tn"
gives 2 'unknown op "foo"' ops foo
gives 2 '--show needs the name of an op' ops --show infer
gives 2 'unknown pass' opt tests/ir/flat.tn --passes=foo
gives 2 '--beta1: expected a number from 0 to below 1' train "$@" --beta1 1
printf '{"model_type":\n' >"$dir/model/config.json"
gives 1 'config.json:2:1: ' train "$dir/model" --batch $batch --steps 1 --out "$dir/o"

# ---- memory ----

vlimited() { (ulimit -v 3000000 && exec "$@") }
limit=vlimited
gives 3 'cannot map an arena: asked for ' train gpt2-medium --data "$dir/text" --batch-size 1 --seq-len 8 \
    --steps 1 --val-fraction 0 --out "$dir/refused/o"
ok "what could be mapped" grep -Eq '; what could be mapped is [12][0-9]{9};' "$dir/err"
ok "which is what no other plan fits" grep -q 'other plans fits what could be mapped; this one needs least' "$dir/err"
ok "no folder is left" [ ! -e "$dir/refused" ]
ok "what is available" grep -q 'available are [0-9]*; the address space is limited to 3072000000' "$dir/err"
ok "the parts of the plan" grep -q '^    optimizer  *[0-9]* bytes' "$dir/err"
most=$(sed -n 's/.*what could be mapped is \([0-9]*\);.*/\1/p' "$dir/err")
gives 3 'this fits, by estimate the fastest' train gpt2 --data "$dir/text" --batch-size 16 --seq-len 512 --steps 1 \
    --val-fraction 0 --out "$dir/refused"
needs=$(sed -n "s/.*library's reserve \([0-9]*\):\$/\1/p" "$dir/err")
ok "one that could be mapped: $needs of $most" [ "${needs:-0}" -gt 0 ]
ok "one that could be mapped: $needs of $most" [ "${needs:-$most}" -le "$most" ]
ok "no folder is left" [ ! -e "$dir/refused" ]
limit=

# A run that is refused after its folder was made, as its weights are not finite, leaves nothing of it.
cp -r $ref "$dir/nan"
file=$dir/nan/model.safetensors
place '\0\0\300\177'
set -- train "$dir/nan" --data "$dir/text" --batch-size 2 --seq-len 16 --steps 2 --threads 1 --metrics "$dir/refused.m"
gives 1 'value that is not finite' "$@" --out "$dir/refused/by/that"
ok "no folder is left" [ ! -e "$dir/refused" ]
ok "no metrics are left" [ ! -e "$dir/refused.m" ]
mkdir "$dir/refused"
gives 1 'value that is not finite' "$@" --out "$dir/refused/it"
ok "one that was there stays" [ -d "$dir/refused" ]
ok "with nothing in it" [ -z "$(ls -A "$dir/refused")" ]
gives 0 '' train $ref --batch $batch --steps 1 --threads 1 --out "$dir/refused/it"
ls -A "$dir/refused/it" >"$dir/want"
gives 1 'value that is not finite' "$@" --out "$dir/refused/it" --overwrite
ok "a run that was to be replaced is there" [ "$(ls "$dir/refused")" = it ]
ls -A "$dir/refused/it" >"$dir/got"
ok "as it was" cmp "$dir/want" "$dir/got"

# ---- the start ----

loader=$(readelf -l "$tenon" 2>/dev/null | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
if [ -x "$loader" ]; then
    env -u OMP_WAIT_POLICY "$loader" "$tenon" grad $ref --batch $batch --out "$dir/g" >"$dir/out" 2>"$dir/err"
    ok "started by the loader" grep -q '^loss 5' "$dir/out"
else
    echo "note: fault.sh: no readelf to find the loader: not started by it"
fi
cp "$tenon" "$dir/other"
(cd "$dir" && PATH=. && unset OMP_WAIT_POLICY && other ops mm >out 2>err)
ok "started by another name, from the path" grep -q '^mm:' "$dir/out"

totals
