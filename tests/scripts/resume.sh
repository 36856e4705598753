#!/bin/sh
# Runs that are interrupted, killed at random moments and inside saves, and go on: the same
# losses and the same bits as a run without interruption, and metrics with each step once. Wrong data,
# options and plans are refused, torn checkpoints passed over. TN_LONG=1: more kills (make test-long).
# Usage: tests/scripts/resume.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors

# What does not depend on the time, of a metrics file.
curve() {
    sed -n 's/.*\("step": [0-9]*\), \("loss": [^,]*, "grad_norm": [^,]*, "lr": [^,]*\),.*/\1 \2/p
            s/.*\("step": [0-9]*\), \("eval_loss": [^,]*\),.*/\1 \2/p' "$1"
}
# same A B: that two runs gave the same metrics and the same last checkpoint.
same() {
    curve "$dir/$1.jsonl" >"$dir/want"
    curve "$dir/$2.jsonl" >"$dir/got"
    ok "$2: metrics" cmp "$dir/want" "$dir/got"
    ok "$2: a curve" [ -s "$dir/want" ]
    ok "$2: latest" [ "$(readlink "$dir/$1/latest")" = "$(readlink "$dir/$2/latest")" ]
    for file in config.json model.safetensors optimizer.safetensors; do
        ok "$2: $file" cmp "$dir/$1/latest/$file" "$dir/$2/latest/$file"
    done
    ok "$2: nothing is left aside" [ -z "$(find "$dir/$2" -name '.*' ! -name .run ! -name .evaluated ! -path "$dir/$2")" ]
}
# weight FILE: the name of its last tensor.
weight() {
    python3 -c 'import json, struct, sys; d = open(sys.argv[1], "rb").read()
print(list(json.loads(d[8 : 8 + struct.unpack("<Q", d[:8])[0]]))[-1])' "$1"
}
# wait_for COMMAND...: until it succeeds, at most a minute.
wait_for() {
    for _ in $(seq 1200); do
        "$@" && return
        sleep 0.05
    done
    return 1
}

# ---- interrupts: text, evaluations, dropout, a warm-up, two threads ----

for _ in 1 2 3 4; do cat LICENSE; done >"$dir/text"
set -- "$ref" --data "$dir/text" --batch-size 4 --seq-len 32 --steps 160 --dropout 0.1 --lr 1e-3 --warmup 5 \
    --eval-every 7 --threads 2 --seed 3 --accumulate 2
train_gives 0 "" "$@" --out "$dir/a" --metrics "$dir/a.jsonl" --save-every 70
"$tenon" train "$@" --out "$dir/b c" --metrics "$dir/b c.jsonl" --keep 2 --save-every 10 >"$dir/out" 2>"$dir/err" &
pid=$!
steps() { [ -s "$dir/b c.jsonl" ] && [ "$(wc -l <"$dir/b c.jsonl")" -ge "$1" ]; }
ok "steps are seen" wait_for steps 25
kill -INT $pid
wait $pid
ok "exit code 130" [ $? = 130 ]
step=$(readlink "$dir/b c/latest")
ok "saved where it stopped" [ "$(curve "$dir/b c.jsonl" | grep -c '"loss"')" = "${step#step-}" ]
printf '{"step": %d, "loss": 1.0, "lr"' $((${step#step-} + 1)) >>"$dir/b c.jsonl"
cp -r "$dir/b c" "$dir/again"
command=$(sed -n 's/^to go on: //p' "$dir/err")
ok "the command to go on" [ "$command" = "$tenon train --resume --out '$dir/b c'" ]
eval "$command" >"$dir/out" 2>"$dir/err"
ok "goes on by that command" [ $? = 0 ]
mv "$dir/b c" "$dir/b"
mv "$dir/b c.jsonl" "$dir/b.jsonl"
same a b
ok "two are kept, and the best" [ "$(ls "$dir/b" | sed "s/^step-.*/step/; s/^$(readlink "$dir/b/best")$/best/" | sort | uniq -c | sed -n 's/ *\([0-9]*\) step/\1/p')" -le 3 ]
train_gives 0 "" --resume --out "$dir/b" --metrics "$dir/b.jsonl"
same a b # a run at its end stays there
ok "it says so" grep -q '^tenon: already at step 160$' "$dir/err"
ok "and tells of no steps" sh -c "! grep -e '^trained' -e 'highest byte' '$dir/err'"
train_gives 2 '--steps 100: the run is already at step 160' --resume --out "$dir/b" --steps 100

# From a checkpoint before an evaluation, in a metrics file that has it; and from one in a file that has not.
for torn in 1 2; do
    rm -r "$dir/b"
    cp -r "$dir/a" "$dir/b"
    cp "$dir/a.jsonl" "$dir/b.jsonl"
    rm -r "$dir/b/step-140" "$dir/b/step-160"
    ln -sfn step-70 "$dir/b/latest"
    [ $torn = 1 ] || sed -i '/"step": 70, "eval_loss"/,$d' "$dir/b.jsonl"
    train_gives 0 "" --resume --out "$dir/b" --metrics "$dir/b.jsonl"
    same a b
    ok "torn $torn: memory is not known before a step" \
        [ "$(grep -c '"eval_loss".*"measured_peak_bytes": null' "$dir/b.jsonl")" = $((torn - 1)) ]
done

# The last evaluation of a run stays when the run is made longer.
train_gives 0 "" "$ref" --data "$dir/text" --batch-size 8 --seq-len 4 --steps 4 --eval-every 2 --val-fraction 0.5 \
    --eval-windows all --threads 1 --out "$dir/e4" --metrics "$dir/e4.jsonl"
grep '"step": 4, "eval_loss"' "$dir/e4.jsonl" >"$dir/want"
train_gives 0 "" --resume --out "$dir/e4" --metrics "$dir/e4.jsonl" --steps 5
grep '"step": 4, "eval_loss"' "$dir/e4.jsonl" >"$dir/got"
ok "the evaluation of all windows stays" cmp "$dir/want" "$dir/got"
cp "$dir/e4.jsonl" "$dir/want"
train_gives 0 "the metrics that were in $dir/e4.jsonl are now in $dir/e4.jsonl~1" "$ref" --batch $batch --steps 1 \
    --out "$dir/e1" --metrics "$dir/e4.jsonl"
ok "metrics of another run are not lost" cmp "$dir/want" "$dir/e4.jsonl~1"
ok "nor mixed with these" [ "$(wc -l <"$dir/e4.jsonl")" = 1 ]

# ---- what has changed ----

mv "$dir/again" "$dir/c"
train_gives 2 '--lr: the run began with 0.001, found 0.01' --resume --out "$dir/c" --lr 1e-2
train_gives 2 '--seed: the run began with 3, found 4' --resume --out "$dir/c" --seed 4
train_gives 2 '--batch and --data exclude each other' --resume --out "$dir/c" --batch $batch
train_gives 2 'the run began with the model tests/ref/llama-tiny, found gpt2' gpt2 --resume --out "$dir/c"
train_gives 1 'no checkpoint there' --resume --out "$dir/none"
echo >>"$dir/text"
train_gives 1 "$dir/text: the run began with" --resume --out "$dir/c"
truncate -s -1 "$dir/text"
cp "$dir/text" "$dir/kept"
sed -i '1s/./#/' "$dir/text"
train_gives 1 "$dir/text: the run began with other content, of fingerprint \"" --resume --out "$dir/c"
cp "$dir/kept" "$dir/text"
cp "$dir/c/latest/state.json" "$dir/kept"
sed -i '/"crc32c"/d; s/"position": [0-9]*/"position": 1000/' "$dir/c/latest/state.json"
train_gives 1 'the run began with the place {"epoch": ' --resume --out "$dir/c"
cp "$dir/kept" "$dir/c/latest/state.json"
sed -i '/"crc32c"/d; s/"steps_hash": "[^"]*"/"steps_hash": "0123456789abcdef"/' "$dir/c/latest/state.json"
train_gives 1 'steps_hash: stored "0123456789abcdef", now' --resume --out "$dir/c"
train_gives 0 'now 3: bits may differ' --resume --out "$dir/c" --threads 3 --metrics -

# A run made longer is the longer run, where the schedule does not depend on its end.
set -- $ref --batch $batch --schedule constant --threads 1
"$tenon" train "$@" --steps 5 --out "$dir/long" >"$dir/long.out" 2>"$dir/err"
"$tenon" train "$@" --steps 3 --out "$dir/short" >"$dir/short.out" 2>"$dir/err"
"$tenon" train --resume --steps 5 --out "$dir/short" >>"$dir/short.out" 2>"$dir/err"
ok "made longer: a warning" grep -q 'began with --steps 3 and now ends by 5' "$dir/err"
ok "made longer: the losses" cmp "$dir/long.out" "$dir/short.out"
ok "made longer: the weights" cmp "$dir/long/step-5/model.safetensors" "$dir/short/step-5/model.safetensors"

# ---- data that changes under the run ----

for change in 'echo >>' 'touch' 'cp --remove-destination LICENSE' 'rm'; do
    cat LICENSE LICENSE >"$dir/words"
    rm -rf "$dir/k" "$dir/k.jsonl"
    "$tenon" train $ref --data "$dir/words" --steps 100000000 --batch-size 1 --seq-len 8 --threads 1 \
        --out "$dir/k" --metrics "$dir/k.jsonl" >"$dir/out" 2>"$dir/err" &
    pid=$!
    wait_for [ -s "$dir/k.jsonl" ]
    eval "$change $dir/words"
    wait $pid
    code=$?
    ok "$change: exit code 1, found $code" [ $code = 1 ]
    ok "$change: what was done is saved" grep -q "^  the state after step [0-9]* is saved in $dir/k/step-" "$dir/err"
    ok "$change: the file is named" grep -q "^tenon: $dir/words: .*\(during the run: \|opened again: \)" "$dir/err"
done

# ---- kills ----

# One thread and one batch, whose losses are printed: it starts at once.
kills=4 inside=2 steps=24
[ -z "$TN_LONG" ] || kills=20 inside=8 steps=120
set -- $ref --batch $batch --steps $steps --threads 1 --lr 1e-3
"$tenon" train "$@" --out "$dir/d" --metrics "$dir/d.jsonl" >"$dir/d.out" 2>"$dir/err"
ok "without interruption" [ $? = 0 ]

# begun PATTERN...: that the pattern matches a file.
begun() { [ -e "$1" ]; }
# kill_one MOMENT: a run that goes on is killed after that many hundredths of a second where MOMENT is odd,
# inside the save of one of its next steps where it is even.
kill_one() {
    last=$(readlink "$dir/e/latest")
    last=${last#step-}
    at=$((${last:-0} + 1 + $1 / 2 % 3))
    # shellcheck disable=SC2086
    "$tenon" train $train --resume --out "$dir/e" --metrics "$dir/e.jsonl" --save-every 1 >>"$dir/e.out" 2>"$dir/err" &
    pid=$!
    if [ $(($1 % 2)) = 1 ]; then
        sleep "0.$(printf %02d "$1")"
    else
        while ! begun "$dir/e/.step-$at".tmp* && kill -0 $pid 2>/dev/null; do :; done
        while [ $((i = i - 1)) -gt 0 ]; do :; done
    fi
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    ok "what was saved is whole" sh -c "! grep -v 'no checkpoint there' '$dir/err' | grep warning"
    begun "$dir/e"/.step-*.tmp* && in_save=$((in_save + 1))
}
train=$*
done=0 in_save=0
: >"$dir/e.out"
for moment in $(awk -v n=$((10 * kills)) 'BEGIN { srand(7); while (n--) print int(30 * rand()) }'); do
    [ $done -ge $kills ] && [ $in_save -ge $inside ] && break
    [ "$(readlink "$dir/e/latest")" = step-$steps ] && break
    [ $done -lt $kills ] || moment=$((moment / 2 * 2)) # only saves are missing
    i=$((moment * 20))
    kill_one $moment
    done=$((done + 1))
done
if [ "$(readlink "$dir/e/latest")" = step-$steps ]; then # not killed in time: something is left to do
    rm -r "$dir/e/step-$steps"
    ln -sfn step-$((steps - 1)) "$dir/e/latest"
fi
ok "the last run goes to its end" "$tenon" train $train --resume --out "$dir/e" --metrics "$dir/e.jsonl" \
    --save-every 1 --keep 1 >>"$dir/e.out" 2>"$dir/err"
echo "note: resume.sh: $done kills, $in_save of them inside a save"
same d e
sort -u "$dir/e.out" >"$dir/got"
sort "$dir/d.out" >"$dir/want"
ok "the losses printed" cmp "$dir/want" "$dir/got"
ok "one is kept" [ "$(ls "$dir/e")" = "$(printf 'latest\nstep-%d' $steps)" ]

# ---- torn checkpoints ----

"$tenon" train "$@" --out "$dir/f" --save-every 8 >"$dir/out" 2>"$dir/err"
for file in config.json model.safetensors optimizer.safetensors state.json; do
    cp -r "$dir/f" "$dir/g"
    truncate -s -40 "$dir/g/step-$steps/$file"
    train_gives 0 "goes on from $dir/g/step-$((steps - 8)), the newest that is whole" --resume --out "$dir/g"
    ok "goes on to the same weights" cmp "$dir/f/latest/model.safetensors" "$dir/g/latest/model.safetensors"
    rm -r "$dir/g"
done
# A bit of a number that flips, the least of a weight or of the state, is known by the checksum; a checkpoint of an
# earlier version has none, and goes on.
cat >"$dir/flip.py" <<'END'
import json
import struct
import sys

path, name = sys.argv[1:3]
data = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8 : 8 + n])
if name:
    data[8 + n + head[name]["data_offsets"][0]] ^= 1
else:
    del head["__metadata__"]
    text = json.dumps(head).encode()
    data = struct.pack("<Q", len(text)) + text + data[8 + n :]
open(path, "wb").write(data)
END
while read -r file name; do
    cp -r "$dir/f" "$dir/g"
    python3 "$dir/flip.py" "$dir/g/step-$steps/$file" "$name"
    train_gives 0 "step-$steps/$file: \"$name\": expected the checksum" --resume --out "$dir/g"
    ok "$file: from the one before" grep -q "goes on from $dir/g/step-$((steps - 8)), the newest that is whole" "$dir/err"
    ok "$file: to the same weights" cmp "$dir/f/latest/model.safetensors" "$dir/g/latest/model.safetensors"
    rm -r "$dir/g"
done <<END
model.safetensors $(weight "$dir/f/latest/model.safetensors")
optimizer.safetensors $(weight "$dir/f/latest/optimizer.safetensors")
END
cp -r "$dir/f" "$dir/g"
python3 "$dir/flip.py" "$dir/g/step-$steps/model.safetensors" ""
python3 "$dir/flip.py" "$dir/g/step-$steps/optimizer.safetensors" ""
train_gives 0 "already at step $steps" --resume --out "$dir/g"
ok "without checksums: no warning" sh -c "! grep warning '$dir/err'"
rm -r "$dir/g"
cp -r "$dir/f" "$dir/g"
ln -sfn step-5 "$dir/g/latest"
train_gives 0 "goes on from $dir/g/step-$steps" --resume --out "$dir/g"
ok "latest is put right" [ "$(readlink "$dir/g/latest")" = step-$steps ]
rm "$dir"/g/step-*/state.json
train_gives 1 'none of the checkpoints there is whole' --resume --out "$dir/g"

# ---- a folder that holds a run ----

# lists FOLDER STEP...: that these are the checkpoints there.
lists() {
    folder=$1
    shift
    ok "$folder: expected $*, found $(ls "$folder" | tr '\n' ' ')" [ "$(ls "$folder" | tr '\n' ' ')" = "latest $* " ]
}
set -- $ref --batch $batch --threads 1
train_gives 0 "" "$@" --steps 6 --save-every 2 --out "$dir/one"
cp -r "$dir/one" "$dir/two"
train_gives 2 "$dir/one holds a run, whose last checkpoint is step-6" "$@" --steps 3 --out "$dir/one"
ok "what to do about it" grep -q -e '^  --resume goes on with it; --overwrite renames' "$dir/err"
ok "it is as before" diff -r "$dir/one" "$dir/two"
train_gives 2 "--resume and --overwrite exclude each other" "$@" --steps 3 --resume --overwrite --out "$dir/one"
train_gives 0 "the run that was in $dir/one is now in $dir/one~1" "$@" --steps 3 --overwrite --out "$dir/one/"
ok "it is as before, elsewhere" diff -r "$dir/one~1" "$dir/two"
lists "$dir/one" step-3
ln -s one "$dir/link"
train_gives 0 "the run that was in $dir/one is now in $dir/one~2" "$@" --steps 5 --overwrite --out "$dir/link"
lists "$dir/one~2" step-3
lists "$dir/one" step-5
train_gives 0 "" "$@" --steps 2 --overwrite --out "$dir/new"
ok "nothing is renamed where there is none" [ ! -e "$dir/new~1" ]
train_gives 2 "--overwrite: $dir/one/step-5 is to be read, and in $dir/one" "$dir/one/step-5" --batch $batch --steps 3 \
    --overwrite --out "$dir/one"
cp $batch "$dir/one/batch"
train_gives 2 "--overwrite: $dir/one/batch is to be read, and in $dir/one" $ref --batch "$dir/one/batch" --steps 3 --overwrite \
    --out "$dir/one"
here=$PWD
cd "$dir/one" || exit 1
train_gives 2 "--overwrite: this process works in $dir/one" "$here/$ref" --batch "$here/$batch" --steps 3 --overwrite --out .
cd "$here" || exit 1
rm "$dir/one/batch"
lists "$dir/one" step-5

# What a run that is refused has made of texts goes, and the run before has its name again.
head -c 60000 docs/formats.md >"$dir/text"
printf ' the the the the the' >"$dir/val"
cp -r "$dir/one" "$dir/again"
mkdir "$dir/M"
cp tests/tokenizer/gpt2.json "$dir/M/tokenizer.json"
sed 's/"vocab_size": [0-9]*/"vocab_size": 512/' $ref/config.json >"$dir/M/config.json"
train_gives 1 "" "$dir/M/config.json" --data "$dir/val" --val-data "$dir/text" --batch-size 2 --seq-len 16 --steps 2 \
    --overwrite --out "$dir/again"
lists "$dir/again" step-5
ok "nothing else is there" [ ! -e "$dir/again~1" ]

# What killed processes have left goes; a file of another name stays.
for name in tokens.bin.tmp7 rows.bin.tmp7 val-tokens.bin.tmp7 val-rows.bin.json.tmp7 2-rows.bin.tmp7 .evaluated.tmp7; do
    echo x >"$dir/again/$name"
done
echo x >"$dir/again/my-rows.bin.tmp7"
train_gives 0 "goes on from" --resume --steps 6 --out "$dir/again"
ok "leftovers" [ "$(find "$dir/again" -name '*.tmp*')" = "$dir/again/my-rows.bin.tmp7" ]
rm "$dir/again/my-rows.bin.tmp7"

# What stands where a later step would be saved: seen before the first step.
train_gives 0 "" "$@" --steps 2 --save-every 1 --out "$dir/three"
echo mine >"$dir/three/step-4"
train_gives 1 "$dir/three/step-4: not a checkpoint" --resume --steps 5 --out "$dir/three"
ok "nothing was trained" [ ! -s "$dir/out" ]
rm "$dir/three/step-4"
cp -r "$dir/one/step-5" "$dir/three/step-4"
rm "$dir/three/step-4/state.json"
train_gives 1 "$dir/three/step-4: has no state.json" --resume --max-sec 1000 --steps 5 --out "$dir/three"
ok "nothing was trained" [ ! -s "$dir/out" ]
rm -r "$dir/three/step-4"
cp -r "$dir/one/step-5" "$dir/three/step-5"
train_gives 1 "$dir/three/step-5: a checkpoint of another run" --resume --steps 5 --out "$dir/three"
ok "nothing was trained" [ ! -s "$dir/out" ]
train_gives 0 "" --resume --steps 4 --keep 1 --out "$dir/three"
lists "$dir/three" step-4 step-5
run_of() { sed -n 's/^ "run": "\(.*\)".*/\1/p' "$dir/three/$1/state.json"; }
ok "a run keeps its id" [ "$(run_of step-4)" = "$(cat "$dir/three/.run")" ]
ok "no other has it" [ "$(run_of step-4)" != "$(run_of step-5)" ]
echo mine >"$dir/three/step-4/notes"
rm -r "$dir/three/step-5"
train_gives 0 "--keep: $dir/three/step-4/notes: not a file of a checkpoint" --resume --steps 5 --out "$dir/three"
lists "$dir/three" step-4 step-5

# A torn checkpoint: on from one of the same run, not from the newest.
train_gives 0 "" "$@" --steps 3 --save-every 2 --out "$dir/four" --lr 1e-3
cp -r "$dir/two/step-6" "$dir/four"
truncate -s -40 "$dir/four/step-3/optimizer.safetensors"
train_gives 0 "goes on from $dir/four/step-2, the newest" --resume --out "$dir/four"
lists "$dir/four" step-2 step-3 step-6
truncate -s -40 "$dir"/four/step-[23]/optimizer.safetensors
train_gives 1 'none of the checkpoints there is whole' --resume --out "$dir/four"

# A run that is killed before its first save; the same command begins again, and goes on.
mkfifo "$dir/line"
"$tenon" train "$@" --steps 1000000000 --lr 1e-3 --out "$dir/five" --metrics "$dir/line" >/dev/null 2>&1 &
pid=$!
exec 3<"$dir/line"
read -r line <&3 # of the first step
kill -9 $pid
wait $pid 2>/dev/null
exec 3<&-
train_gives 1 "$dir/five: no checkpoint there to go on from" --resume --out "$dir/five"
train_gives 0 "$dir/five: no checkpoint there: begins with step 1" "$@" --resume --steps 3 --lr 1e-3 --out "$dir/five"
train_gives 0 "already at step 3" "$@" --resume --steps 3 --lr 1e-3 --out "$dir/five"
train_gives 0 "$dir/six: no checkpoint there: begins with step 1" "$@" --resume --steps 3 --lr 1e-3 --out "$dir/six"
ok "to the same weights" cmp "$dir/five/latest/model.safetensors" "$dir/six/latest/model.safetensors"
mkdir "$dir/seven"
train_gives 0 "$dir/seven: no checkpoint there: begins with step 1" "$@" --resume --steps 3 --lr 1e-3 --out "$dir/seven"
echo 0123456789abcdef >"$dir/two/.run"
train_gives 1 'the last run there has no checkpoint yet; step-6 is of an earlier run' "$@" --resume --steps 8 --out "$dir/two"
rm "$dir/two/.run"
train_gives 0 "already at step 6" --resume --out "$dir/two"

# ---- one run at a time ----

mkfifo "$dir/pipe"
"$tenon" train "$@" --steps 1000000000 --out "$dir/l" --metrics "$dir/pipe" >/dev/null 2>&1 &
pid=$!
exec 3<"$dir/pipe" # open when the run holds its folder, and unread
train_gives 1 'another run is writing there' "$@" --steps 3 --out "$dir/l"
train_gives 1 'another run is writing there' "$@" --steps 3 --resume --out "$dir/l"
kill -9 $pid
wait $pid 2>/dev/null
exec 3<&-

# ---- what was decided is said in the same words ----

awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%c", 1 + i * 37 % 90 }' >"$dir/bytes"
set -- tests/ref/gpt2-tiny --batch-size 8 --seq-len 16 --threads 1
memory=$("$tenon" plan "$@" --recompute selective --json |
    awk -F '[:,]' '/^ "peak_bytes"/ || /^ "library_reserve_bytes"/ { need += $2 } END { print need }')
gives 0 'recompute: auto computes ' train "$@" --data "$dir/bytes" --token-type byte --val-fraction 0 \
    --memory "$memory" --steps 1 --out "$dir/words"
words=$(cat "$dir/err" "$dir/out" | sed -n 's/^ *\(recompute: auto [^:]*\): .*/\1/p')
gives 0 "$words: as was decided before" train --resume --steps 2 --out "$dir/words"

# ---- a folder that is no run's but a checkpoint; texts that state.json cannot have ----

cd "$dir" || exit 1
echo 'a text of a few words, and a few more' >few
set -- --data few --steps 1 --batch-size 1 --seq-len 8
gives 0 '' train demo "$@" --out run
for out in run/latest run/step-1 run/step-1/; do
    gives 2 "train: --resume: $out is a checkpoint of the run in run: --out run" train --resume --out $out
    gives 2 "train: --resume: $out is a checkpoint of the run in run: --out run" train demo "$@" --resume --out $out
    gives 2 "train: --out $out: this is " train demo "$@" --out $out
    gives 2 "train: --out $out/x/y: it lies in " train demo "$@" --out $out/x/y
    gives 2 "train: --out $out: this is " train demo "$@" --out $out --overwrite
done
ok "nothing was begun there" [ ! -e run/step-1/x ]
echo '{"version": 4, "resources": []}' >state.json # another program's
gives 0 '' train demo "$@" --out other
bad=$(printf 'a\351')
cp few "$bad"
for option in data val-data prompt metrics tensorboard freeze; do
    gives 2 "train: --$option: expected UTF-8" train demo "$@" --val-fraction 0 --sample-tokens 2 --$option "$bad" --out bad
done
ok "nothing was begun" [ ! -e bad ]
gives 0 '' train demo "$@" --out "$bad.run"
gives 0 '' train --resume --steps 2 --out "$bad.run"
totals
