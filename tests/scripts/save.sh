#!/bin/sh
# What keeps the work of a run: signals that end it saved, saves by the clock, room for checkpoints, folders that
# hold a run, weights that are not finite. Kills and torn checkpoints: tests/scripts/resume.sh. Usage: tests/scripts/save.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
mkfifo "$dir/pipe"

# begin OUT ARGUMENTS...: an endless run, whose first step is done when this returns; $before goes before it.
before=
begin() {
    out=$1
    shift
    $before "$tenon" train $ref --batch $batch --threads 1 --steps 1000000000 --out "$out" --metrics "$dir/pipe" "$@" \
        >"$dir/out" 2>"$dir/err" &
    pid=$!
    exec 3<"$dir/pipe"
    read -r line <&3
}
# ends CODE TEXT: how the run ends, whose metrics are read to their end; and a text on standard error.
ends() {
    cat <&3 >/dev/null
    wait $pid
    got=$?
    exec 3<&-
    ok "$title: expected exit code $1, found $got" [ $got = "$1" ]
    ok "$title: expected the text: $2" grep -qF -e "$2" "$dir/err"
}
last_step() { sed -n 's/^step \([0-9]*\) .*/\1/p' "$dir/out" | tail -1; }
# saved OUT: that the last step that was done is the one that is saved.
saved() {
    ok "$title: the last step is saved" [ "$(readlink "$1/latest")" = "step-$(last_step)" ]
    ok "$title: it is whole" "$tenon" train --resume --out "$1" --steps "$(last_step)" --metrics - \
        >/dev/null 2>&1
}

# ---- signals ----

for signal in INT TERM HUP; do
    title=SIG$signal
    begin "$dir/$signal"
    kill -$signal $pid
    ends 130 'tenon: interrupted after step '
    saved "$dir/$signal"
done

title='an ignored SIGHUP'
before=nohup
begin "$dir/nohup"
before=
kill -HUP $pid
read -r line <&3 # steps go on, which one that was to end would not
read -r line <&3
ok "$title: goes on" kill -0 $pid
kill -TERM $pid
ends 130 'tenon: interrupted after step'
saved "$dir/nohup"

title='two signals'
begin "$dir/two"
kill -STOP $pid
kill -TERM $pid
kill -HUP $pid
kill -CONT $pid
ends 130 'tenon: note: the step is being finished and saved; a third signal ends at once'
saved "$dir/two"

title='three signals'
begin "$dir/three" --save-every 1
read -r line <&3 # of step 2, so step 1 is saved
kill -STOP $pid
kill -TERM $pid
kill -HUP $pid
kill -INT $pid
kill -CONT $pid
ends 1 'tenon: ended by a third signal: what was done since the last checkpoint is lost'
gives 0 "goes on from $dir/three/step-" train --resume --out "$dir/three" --metrics - \
    --max-sec 0.01

title='a job that is ended by a signal again and again'
for turn in 1 2 3 4; do
    begin "$dir/queue" --resume
    kill -TERM $pid
    ends 130 'tenon: interrupted after step '
done
ok "$title: two are kept, and the last" [ "$(ls "$dir/queue" | grep -c step-)" -le 3 ]
saved "$dir/queue"

# ---- saves by the clock ----

set -- $ref --batch $batch --threads 1 --lr 1e-3
gives 0 "" train "$@" --steps 9 --out "$dir/plain"
ok "one line for what is saved" [ "$(grep -c '^tenon: note: step [0-9]* is saved in ' "$dir/err")" = 1 ]
nbytes=$(cat "$dir"/plain/step-9/* | wc -c)
ok "with its size" grep -q "^tenon: note: step 9 is saved in $dir/plain/step-9, $nbytes bytes\$" "$dir/err"
mv "$dir/out" "$dir/plain.out"
gives 0 "" train "$@" --steps 9 --save-sec 1e-9 --out "$dir/clock"
ok "a line for each" [ "$(grep -c '^tenon: note: step [0-9]* is saved in ' "$dir/err")" = 9 ]
ok "saves change no loss" cmp "$dir/plain.out" "$dir/out"
ok "two are kept, and the last" [ "$(ls "$dir/clock" | tr '\n' ' ')" = 'latest step-7 step-8 step-9 ' ]
for file in model optimizer; do
    ok "saves change no bits: $file" cmp "$dir/plain/step-9/$file.safetensors" "$dir/clock/step-9/$file.safetensors"
done
gives 0 "" train --resume --out "$dir/clock" --steps 12
ok "what ended a run stays" [ "$(ls "$dir/clock" | tr '\n' ' ')" = 'latest step-10 step-11 step-12 step-9 ' ]
gives 0 "" train "$@" --steps 4 --save-sec 1e-9 --keep 1 --out "$dir/one"
ok "--keep counts them too" [ "$(ls "$dir/one" | tr '\n' ' ')" = 'latest step-4 ' ]
gives 0 "" train "$@" --steps 4 --save-every 3 --out "$dir/every"
ok "none by the clock beside --save-every" [ "$(ls "$dir/every" | tr '\n' ' ')" = 'latest step-3 step-4 ' ]
gives 0 "" train "$@" --steps 4 --save-sec 0 --out "$dir/never"
ok "nor where none is wanted" [ "$(ls "$dir/never" | tr '\n' ' ')" = 'latest step-4 ' ]
ok "600 seconds" sh -c "'$tenon' train --help | grep -q -e '--save-sec .*(600;'"

# A run that is killed after its last save and before an old checkpoint is removed.
gives 0 "" train "$@" --steps 6 --save-every 2 --out "$dir/keep"
gives 0 "already at step 6" train --resume --out "$dir/keep" --keep 2
ok "two are kept" [ "$(ls "$dir/keep" | tr '\n' ' ')" = 'latest step-4 step-6 ' ]
gives 0 "" train --resume --out "$dir/keep" --keep 1 --steps 7
ok "one is kept" [ "$(ls "$dir/keep" | tr '\n' ' ')" = 'latest step-7 ' ]

# ---- a save on the way that fails ----

title='a save in the way of something'
begin "$dir/way" --save-every 2000
mkdir "$dir/way/step-2000" "$dir/way/step-6000"
echo mine | tee "$dir/way/step-2000/notes" >"$dir/way/step-6000/notes"
while read -r line <&3 && [ "${line#*\"step\": 4000,}" = "$line" ]; do :; done
read -r line <&3
kill -TERM $pid
ends 130 "tenon: warning: step 2000 is not saved: $dir/way/step-2000/notes: not a file of a checkpoint"
ok "$title: the next save is tried" [ -d "$dir/way/step-4000" ]
saved "$dir/way"
ok "$title: what was there stays" [ "$(cat "$dir/way/step-2000/notes")" = mine ]

# ---- what is seen at the start ----

cp -r "$dir/plain" "$dir/link"
rm "$dir/link/latest"
cp -r "$dir/link/step-9" "$dir/link/latest"
gives 1 "$dir/link/latest: a folder, where a link to the last checkpoint is to be" train --resume --steps 12 --out "$dir/link"
ok "before the first step" [ ! -s "$dir/out" ]
gives 1 "$dir/none/m: cannot create: No such file" train "$@" --steps 1 --out "$dir/link" --overwrite --metrics "$dir/none/m"
gives 1 "$dir: cannot create: Is a directory" train "$@" --steps 1 --out "$dir/link" --overwrite --metrics "$dir"
ok "the folder has its name still" [ -d "$dir/link/step-9" -a ! -e "$dir/link~1" ]

# ---- room ----

mkdir "$dir/disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=2m tenon "$dir/disk" 2>/dev/null; then
    mount=$dir/disk
    gives 0 "" train "$@" --steps 1 --out "$dir/disk/one"
    used=$(du -s --block-size=1 "$dir/disk/one/step-1" | cut -f 1)
    free=$(df --output=avail --block-size=1 "$dir/disk" | tail -1 | tr -d ' ')
    gives 1 "$dir/disk/two: too little room: a checkpoint needs " train "$@" --steps 9 --out "$dir/disk/two"
    ok "that is seen before the first step" [ ! -s "$dir/out" -a ! -e "$dir/disk/two" ]
    ok "what is free" grep -q "; free are $free\$" "$dir/err"
    need=$(sed -n 's/.*a checkpoint needs \([0-9]*\) bytes.*/\1/p' "$dir/err")
    ok "what is needed: about $used, found $need" [ "$need" -ge "$used" -a "$need" -le $((used + 8192)) ]
    gives 1 "too little room" train --resume --steps 2 --out "$dir/disk/one"
    ok "nor does it go on" [ ! -s "$dir/out" ]
    rm -r "$dir/disk/one"
    gives 1 "with --keep 1 up to 2 more at a time: $((2 * need)); free are " train "$@" --steps 4 --save-every 1 --keep 1 \
        --out "$dir/disk/two"
    ok "that is seen before the first step" [ ! -s "$dir/out" ]
    gives 1 "room for 1 of the 4 checkpoints to come, of $need bytes each; --keep N removes" train "$@" --steps 4 \
        --save-every 1 --out "$dir/disk/two"
    ok "saves on the way fail, steps go on" [ "$(grep -c loss "$dir/out")" = 4 ]
    ok "each is told of" [ "$(grep -c '^tenon: warning: step [23] is not saved: .*: too little room' "$dir/err")" = 2 ]
    ok "the last one fails" grep -q "^tenon: $dir/disk/two: too little room" "$dir/err"
    ok "it says from where to go on" grep -q "^  the last checkpoint is $dir/disk/two/step-1\$" "$dir/err"
    ok "that is whole" [ "$(ls -A "$dir/disk/two" | tr '\n' ' ')" = '.run latest step-1 ' ]
    mount -o remount,size=20m "$dir/disk"
    gives 0 "goes on from $dir/disk/two/step-1" train --resume --out "$dir/disk/two" --steps 9 --keep 2
    ok "to the same weights" cmp "$dir/plain/step-9/model.safetensors" "$dir/disk/two/step-9/model.safetensors"
    rm -r "$dir/disk/two"

    # room N: an empty disk for N checkpoints and a quarter.
    room() {
        rm -rf "$dir/disk"/*
        mount -o remount,size=$((need * (4 * $1 + 1) / 4)) "$dir/disk"
    }
    room 2
    gives 0 "" train "$@" --steps 1 --out "$dir/disk/left"
    mkdir "$dir/disk/left/.step-2.tmp99"
    head -c 1000000 /dev/zero >"$dir/disk/left/.step-2.tmp99/model.safetensors"
    gives 0 "" train --resume --steps 2 --out "$dir/disk/left"
    room 3
    gives 0 "" train "$@" --steps 3 --save-every 1 --out "$dir/disk/surplus"
    gives 0 "" train --resume --steps 5 --keep 2 --out "$dir/disk/surplus"
    ok "what --keep removes is counted as room" [ "$(ls "$dir/disk/surplus" | tr '\n' ' ')" = 'latest step-4 step-5 ' ]
    room 2
    gives 0 "" train "$@" --steps 9 --save-sec 1e-9 --out "$dir/disk/clock"
    ok "the older one by the clock is given up" [ "$(grep -c '^tenon: note: step [0-9]* is saved in ' "$dir/err")" = 9 ]
    ok "to the same weights" cmp "$dir/plain/step-9/model.safetensors" "$dir/disk/clock/step-9/model.safetensors"
    room 1
    gives 0 "room for 1 checkpoint, of $need bytes: after one by the clock none can be saved" train "$@" --steps 1 \
        --out "$dir/disk/once"
    gives 1 "too little room" train "$@" --steps 9 --save-sec 1e-9 --out "$dir/disk/clock"
    rm -r "$dir/disk/once"
    gives 1 "the last checkpoint is $dir/disk/clock/step-1" train "$@" --steps 9 --save-sec 1e-9 --out "$dir/disk/clock"
    ok "the last one is never given up" [ -f "$dir/disk/clock/latest/state.json" ]
    # A resumed run does not hold the checkpoint that it began from, which --keep removes.
    room 2
    gives 0 "" train "$@" --steps 1 --out "$dir/disk/held"
    gives 0 "" train --resume --steps 6 --save-every 1 --keep 1 --out "$dir/disk/held"
    ok "each is saved" [ "$(grep -c '^tenon: note: step [0-9]* is saved in ' "$dir/err")" = 5 ]
    # The best stays where a better one could not be saved.
    head -c 60000 docs/formats.md >"$dir/text"
    room 2
    "$tenon" train "$1" --data "$dir/text" --token-type byte --batch-size 2 --seq-len 16 --lr 0.1 --schedule constant \
        --threads 1 --steps 40 --eval-every 4 --save-sec 1e-9 --out "$dir/disk/best" >"$dir/out" 2>"$dir/err"
    said "after the best and one by the clock none can be saved"
    ok "some failed" grep -q 'is not saved' "$dir/err"
    ok "the best that was saved stays" [ -f "$dir/disk/best/best/state.json" ]
    # Beside the best and the last one there is room for the next one, or the run does not go on.
    gives 0 "" train "$1" --data "$dir/text" --token-type byte --batch-size 2 --seq-len 16 --lr 0.1 --schedule constant \
        --threads 1 --steps 80 --eval-every 4 --patience 3 --keep 1 --out "$dir/beside"
    ok "the best is not the last" [ "$(readlink "$dir/beside/best")" != "$(readlink "$dir/beside/latest")" ]
    room 2
    cp -r "$dir/beside" "$dir/disk/beside"
    gives 1 "too little room" train --resume --steps 88 --patience 9 --out "$dir/disk/beside"
    # Tokens of text take room too: checkpoints are counted beside them.
    mkdir "$dir/M"
    cp tests/tokenizer/gpt2.json "$dir/M/tokenizer.json"
    sed 's/"vocab_size": [0-9]*/"vocab_size": 512/' $ref/config.json >"$dir/M/config.json"
    for _ in 1 2 3 4 5 6 7 8 9 10; do cat docs/formats.md; done >"$dir/text"
    set -- "$dir/M/config.json" --data "$dir/text" --batch-size 1 --seq-len 8 --threads 1 --keep 1 --save-every 1
    gives 0 "" train "$@" --steps 1 --val-fraction 0 --out "$dir/tokens"
    used=$(du -s --block-size=1 "$dir/tokens/step-1" | cut -f 1)
    ok "the tokens take more than is left" [ "$(wc -c <"$dir/tokens/tokens.bin")" -gt $((used / 4)) ]
    rm -rf "$dir/disk"/*
    mount -o remount,size=$((used * 9 / 4)) "$dir/disk"
    gives 1 "with --keep 1 up to 2 more at a time" train "$@" --steps 3 --out "$dir/disk/tokens"
    ok "seen before the first step, and what was made is removed" [ ! -s "$dir/out" -a ! -e "$dir/disk/tokens" ]
    mount -o remount,size=$((used * 4)) "$dir/disk"
    gives 0 "" train "$@" --steps 3 --out "$dir/disk/tokens"
else
    echo "note: save.sh: no tmpfs could be mounted: room is tested by limits on files alone"
fi

# ---- metrics ----

# lines FILE: how many, all of one run.
lines() { [ "$(sed -n 's/.*"run": "\([0-9a-f]\{16\}\)"}$/\1/p' "$1" | sort | uniq -c | sed 's/^ *//; s/ .*//')" = "$2" ]; }
set -- $ref --batch $batch --threads 1
gives 0 "" train "$@" --steps 6 --save-every 2 --out "$dir/m" --metrics "$dir/m.jsonl"
ok "each line has the run's id" lines "$dir/m.jsonl" 6
ok "that of state.json" grep -q "\"run\": \"$(sed -n 's/^ "run": "\(.*\)".*/\1/p' "$dir/m/step-6/state.json")\"" "$dir/m.jsonl"
cp "$dir/m.jsonl" "$dir/whole"

# A copy of a run that goes on from an earlier step.
cp -r "$dir/m" "$dir/copy"
rm -r "$dir/copy/step-6" "$dir/copy/step-4"
ln -sfn step-2 "$dir/copy/latest"
gives 0 "those of the copy go to $dir/copy/m.jsonl" train --resume --out "$dir/copy" --steps 3
ok "the original's file is as before" cmp "$dir/m.jsonl" "$dir/whole"
ok "the copy's has all its steps" lines "$dir/copy/m.jsonl" 3
gives 0 "" train --resume --out "$dir/copy" --steps 5
ok "it goes on with its own" lines "$dir/copy/m.jsonl" 5
ok "the original's file is as before" cmp "$dir/m.jsonl" "$dir/whole"
for steps in 6 7; do # its checkpoints name its own folder by now
    gives 0 "those of the copy go to $dir/copy/m.jsonl" train --resume --out "$dir/copy" --steps $steps \
        --metrics "$dir/m.jsonl"
    ok "named again, the original's file is as before" cmp "$dir/m.jsonl" "$dir/whole"
    ok "it goes on with its own" lines "$dir/copy/m.jsonl" $steps
done
cp -r "$dir/copy" "$dir/copy2"
gives 0 "those of the copy go to $dir/copy2/m.jsonl" train --resume --out "$dir/copy2" --steps 8 --metrics "$dir/m.jsonl"
ok "by a copy of the copy too" cmp "$dir/m.jsonl" "$dir/whole"
gives 0 "" train --resume --out "$dir/m" --steps 7
ok "the original goes on with its own" lines "$dir/m.jsonl" 7

# A folder that was renamed is no copy; a file of another run is not cut.
mv "$dir/m" "$dir/moved"
rm -r "$dir/moved/step-7"
ln -sfn step-6 "$dir/moved/latest"
gives 0 "" train --resume --out "$dir/moved" --steps 8
ok "a renamed run goes on with its file" lines "$dir/m.jsonl" 8
cp "$dir/m.jsonl" "$dir/whole"
gives 0 "the metrics that were in $dir/m.jsonl are now in $dir/m.jsonl~1" train "$@" --steps 4 --save-every 2 \
    --out "$dir/other" --metrics "$dir/m.jsonl"
cp "$dir/m.jsonl" "$dir/theirs"
gives 0 "m.jsonl does not have this run's metrics, though the checkpoint names it" train --resume --out "$dir/moved" --steps 9
ok "another run's metrics are left alone" cmp "$dir/m.jsonl" "$dir/theirs"
rm -r "$dir/moved/step-9"
ln -sfn step-8 "$dir/moved/latest"
gives 0 "the metrics that were in $dir/m.jsonl are now in $dir/m.jsonl~2" train --resume --out "$dir/moved" --steps 9 \
    --metrics "$dir/m.jsonl"
ok "nothing is lost: the first run's" cmp "$dir/m.jsonl~1" "$dir/whole"
ok "nothing is lost: the other's" lines "$dir/m.jsonl~2" 4
ok "nor mixed" lines "$dir/m.jsonl" 1
cp "$dir/m.jsonl~1" "$dir/mixed"
cat "$dir/m.jsonl~2" >>"$dir/mixed"
rm -r "$dir/moved/step-9" "$dir/moved/step-8"
ln -sfn step-6 "$dir/moved/latest"
gives 0 "the metrics that were in $dir/mixed are now in $dir/mixed~1" train --resume --out "$dir/moved" --steps 7 \
    --metrics "$dir/mixed"

title='two runs with one metrics file'
gives 0 "" train "$@" --steps 2 --out "$dir/r1" --metrics "$dir/r.jsonl"
exec 9>>"$dir/r.jsonl"
if command -v flock >"$dir/out" && flock -n 9; then
    gives 1 "$dir/r.jsonl: another run is writing there" train "$@" --steps 1 --out "$dir/r2" --metrics "$dir/r.jsonl"
    gives 1 "$dir/r.jsonl: another run is writing there" train --resume --steps 3 --out "$dir/r1"
fi
exec 9>&-

totals
