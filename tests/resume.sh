#!/bin/sh
# Runs that are interrupted, killed at random moments and inside saves, or out of disk, and go on: the same
# losses and the same bits as a run without interruption, and metrics with each step once. Wrong data,
# options and plans are refused, torn checkpoints passed over. TN_LONG=1: more kills (make test-long).
# Usage: tests/resume.sh BUILD
tenon=${1:-build}/tenon
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
dir=$(mktemp -d) || exit 1
mount=
trap '[ -z "$mount" ] || umount "$mount"; rm -rf "$dir"' EXIT
passed=0
failed=0

# ok WHAT COMMAND...: that the command succeeds.
ok() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "tests/resume.sh: $what"
        sed 's/^/  /' "$dir/err" 2>/dev/null | head -8
    fi
}

# gives CODE TEXT ARGUMENTS...: exit code of train, and a text on standard error.
gives() {
    want=$1 text=$2
    shift 2
    "$tenon" train "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    ok "train $*: expected exit code $want, found $got" [ $got = "$want" ]
    [ -z "$text" ] || ok "train $*: expected the text: $text" grep -qF -e "$text" "$dir/err"
}

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
    ok "$2: nothing is left aside" [ -z "$(find "$dir/$2" -name '.*' ! -path "$dir/$2")" ]
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
gives 0 "" "$@" --out "$dir/a" --metrics "$dir/a.jsonl" --save-every 70
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
ok "two are kept" [ "$(ls "$dir/b" | wc -l)" = 3 ]
gives 0 "" --resume --out "$dir/b" --metrics "$dir/b.jsonl"
same a b # a run at its end stays there

# From a checkpoint before an evaluation, in a metrics file that has it; and from one in a file that has not.
for torn in 1 2; do
    rm -r "$dir/b"
    cp -r "$dir/a" "$dir/b"
    cp "$dir/a.jsonl" "$dir/b.jsonl"
    rm -r "$dir/b/step-140" "$dir/b/step-160"
    ln -sfn step-70 "$dir/b/latest"
    [ $torn = 1 ] || sed -i '/"step": 70, "eval_loss"/,$d' "$dir/b.jsonl"
    gives 0 "" --resume --out "$dir/b" --metrics "$dir/b.jsonl"
    same a b
done

# ---- what has changed ----

mv "$dir/again" "$dir/c"
gives 2 '--lr: the run began with 0.001, found 0.01' --resume --out "$dir/c" --lr 1e-2
gives 2 '--seed: the run began with 3, found 4' --resume --out "$dir/c" --seed 4
gives 2 '--batch: the run began with null' --resume --out "$dir/c" --batch $batch
gives 2 'the run began with the model tests/ref/llama-tiny, found gpt2' gpt2 --resume --out "$dir/c"
gives 1 'no checkpoint there' --resume --out "$dir/none"
echo >>"$dir/text"
gives 1 "$dir/text: the run began with" --resume --out "$dir/c"
truncate -s -1 "$dir/text"
cp "$dir/text" "$dir/kept"
sed -i '1s/./#/' "$dir/text"
gives 1 "$dir/text: the run began with other content, of fingerprint \"" --resume --out "$dir/c"
cp "$dir/kept" "$dir/text"
cp "$dir/c/latest/state.json" "$dir/kept"
sed -i 's/"position": [0-9]*/"position": 1000/' "$dir/c/latest/state.json"
gives 1 'the run began with the place {"epoch": ' --resume --out "$dir/c"
cp "$dir/kept" "$dir/c/latest/state.json"
sed -i 's/"plan_hash": "[^"]*"/"plan_hash": "0123456789abcdef"/' "$dir/c/latest/state.json"
gives 1 'plan_hash: stored "0123456789abcdef", now' --resume --out "$dir/c"
gives 0 'now 3: bits may differ' --resume --out "$dir/c" --threads 3 --metrics -

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
    gives 0 "goes on from $dir/g/step-$((steps - 8)), the newest that is whole" --resume --out "$dir/g"
    ok "goes on to the same weights" cmp "$dir/f/latest/model.safetensors" "$dir/g/latest/model.safetensors"
    rm -r "$dir/g"
done
cp -r "$dir/f" "$dir/g"
ln -sfn step-5 "$dir/g/latest"
gives 0 "goes on from $dir/g/step-$steps" --resume --out "$dir/g"
ok "latest is put right" [ "$(readlink "$dir/g/latest")" = step-$steps ]
rm "$dir"/g/step-*/state.json
gives 1 'none of the checkpoints there is whole' --resume --out "$dir/g"

# ---- a full disk ----

mkdir "$dir/disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=2m tenon "$dir/disk" 2>/dev/null; then
    mount=$dir/disk
    gives 1 'No space' "$@" --out "$dir/disk/h" --save-every 1
    ok "it says from where to go on" grep -q "^  the last checkpoint is $dir/disk/h/step-1$" "$dir/err"
    ok "the last one is whole" [ "$(ls -A "$dir/disk/h")" = "$(printf 'latest\nstep-1')" ]
    mount -o remount,size=20m "$dir/disk"
    gives 0 '' --resume --out "$dir/disk/h" --keep 2
    ok "goes on to the same weights" cmp "$dir/d/latest/model.safetensors" "$dir/disk/h/latest/model.safetensors"
else
    echo "note: resume.sh: no tmpfs could be mounted: no full disk"
fi

# ---- one run at a time ----

mkfifo "$dir/pipe"
"$tenon" train "$@" --steps 1000000000 --out "$dir/l" --metrics "$dir/pipe" >/dev/null 2>&1 &
pid=$!
exec 3<"$dir/pipe" # open when the run holds its folder, and unread
gives 1 'another run is writing there' "$@" --out "$dir/l"
kill -9 $pid
wait $pid 2>/dev/null
exec 3<&-

echo "$passed passed, $failed failed"
[ $failed = 0 ]
