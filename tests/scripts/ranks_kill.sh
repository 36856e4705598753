#!/bin/sh
# What happens to ranks that are processes: one is killed, at any time and inside a save, stops answering, or has
# a disk that is full. All end soon, the last checkpoint is whole, and the run goes on to the bits of one without
# interruption. TN_LONG=1: 20 kills, 8 of them inside a save, and each MPI has all the rest, of which one has a part. Usage: tests/scripts/ranks_kill.sh BUILD
. tools/checks.sh
. tools/launch.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
kills=2 inside=1 steps=40
[ -z "$TN_LONG" ] || kills=20 inside=8 steps=400
train="train $ref --batch $batch --steps $steps --lr 1e-3 --mesh fsdp=4 --threads 1"

# now: seconds, with hundredths.
now() { cut -d ' ' -f 1 /proc/uptime; }
# ranks: the process ids of the run's ranks.
ranks() {
    for id in $(pgrep -f -- "--out $dir/$run"); do
        [ "$(readlink "/proc/$id/exe")" != "$tenon" ] || echo "$id"
    done
}
# pick N: one of them, by a number.
pick() {
    # shellcheck disable=SC2046
    set -- "$1" $(ranks)
    [ $# -gt 1 ] || return
    n=$(($1 % ($# - 1) + 1))
    shift $n
    echo "$1"
}
# rank_of ID: its number among the ranks, as its launcher has told it.
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p'; }
# start: goes on with the run in the background, or begins it.
start() {
    # shellcheck disable=SC2086
    mpirun.$mpi -n 4 "$tenon" $train --resume --out "$dir/$run" --save-every 1 "$@" </dev/null >>"$dir/$run.out" 2>"$dir/err" &
    job=$!
}
# left: whether a process of the run, or its launcher, is still there.
left() { kill -0 $job 2>/dev/null || [ -n "$(ranks)" ]; }
# gone SECONDS: that they are gone by then; what is left is killed. The launcher's exit code in $code.
gone() {
    begun=$(now)
    while left && awk -v a="$begun" -v b="$(now)" -v most="$1" 'BEGIN { exit b - a > most }'; do sleep 0.05; done
    ok "$mpi: $title: all gone within $1 s" not left
    # shellcheck disable=SC2046 # a word for each
    left && kill -9 $job $(ranks) 2>/dev/null
    wait $job 2>/dev/null
    code=$?
}
latest() { readlink "$dir/$run/latest" | tr -dc 0-9; }
# whole: that the last checkpoint can be read, by one rank.
whole() {
    at=$(latest)
    [ -n "$at" ] || return 0
    cp -r "$dir/$run" "$dir/read"
    "$tenon" train --resume --out "$dir/read" --mesh none --steps "$at" >"$dir/out" 2>"$dir/read.err"
    ok "$mpi: $title: the checkpoint of step $at is whole" [ $? = 0 ]
    ok "$mpi: $title: latest names one that is" grep -qF "goes on from $dir/read/step-$at" "$dir/read.err"
    rm -r "$dir/read"
}
begun() { [ -e "$1" ]; }
saving() { begun "$dir/$run"/.step-*.tmp*; }
# wait_for COMMAND...: until it succeeds, at most a minute, while the run is there.
wait_for() {
    for _ in $(seq 6000); do
        "$@" && return
        kill -0 $job 2>/dev/null || return 1
        sleep 0.01
    done
    return 1
}
past() { [ "$(latest)" -gt "$1" ] 2>/dev/null; }

# kill_one MOMENT: a rank, so many hundredths of a second after the next checkpoint; where MOMENT is even, inside
# a save.
kill_one() {
    last=$(latest)
    title="kill $1"
    start
    wait_for past $((${last:--1}))
    victim=$(pick "$1")
    if [ $(($1 % 2)) = 1 ]; then
        sleep "0.$(printf %02d "$1")"
    else
        while ! saving && kill -0 "$job" 2>/dev/null; do :; done
    fi
    kill -9 "$victim" 2>/dev/null
    gone 10
    saving && in_save=$((in_save + 1))
    [ "$code" != 0 ] && done=$((done + 1))
    whole
}

kills() {
    run=$mpi-killed
    : >"$dir/$run.out"
    done=0 in_save=0
    for moment in $(awk -v n=$((10 * kills)) 'BEGIN { srand(9); while (n--) print int(30 * rand()) }'); do
        [ $done -ge "$kills" ] && [ $in_save -ge "$inside" ] && break
        past $((steps - 2)) && break
        [ $done -lt "$kills" ] || moment=$((moment / 2 * 2)) # only saves are missing
        kill_one "$moment"
    done
    ok "$mpi: $kills kills, found $done" [ $done -ge "$kills" ]
    ok "$mpi: $inside of them inside a save, found $in_save" [ $in_save -ge "$inside" ]
    title="the last run"
    start --save-every 1000000
    gone 120
    ok "$mpi: it goes to its end, found exit code $code" [ "$code" = 0 ]
    for file in model optimizer; do
        ok "$mpi: $file as without interruption" cmp "$dir/whole/latest/$file.safetensors" "$dir/$run/latest/$file.safetensors"
    done
}

# stopped WHERE SAVES: a rank that hangs, in a step or in a save, is named, by one other, which ends all.
stopped() {
    run=$mpi-stopped-$1 title="a rank that hangs in a $1"
    : >"$dir/$run.out"
    start --comm-timeout 2 --steps 100000 --save-every "$2"
    wait_for grep -q '^step 3 ' "$dir/$run.out"
    victim=$(pick 2)
    ok "$mpi: $title: there is one" [ -n "$victim" ]
    number=$(rank_of "$victim")
    [ "$1" = step ] || while ! saving && kill -0 "$job" 2>/dev/null; do :; done
    kill -STOP "$victim"
    gone 7 # two of them before it is missed
    ok "$mpi: $title: fails" [ "$code" != 0 ]
    ok "$mpi: $title: it is named" grep -q "^tenon: rank $(((number + 1) % 4)): rank $number has not answered for 2 s" "$dir/err"
    ok "$mpi: $title: no other rank says so" [ "$(grep -c 'tenon: rank ' "$dir/err")" = 1 ]
}

# paused: all ranks, for longer than they wait for each other, and then they go on.
paused() {
    run=$mpi-paused title="a job that pauses"
    : >"$dir/$run.out"
    start --comm-timeout 2 --steps 100000 --save-every 1000000
    wait_for grep -q '^step 3 ' "$dir/$run.out"
    # shellcheck disable=SC2046 # a word for each
    kill -STOP $(ranks)
    sleep 3.5
    step=$(grep -c '^step ' "$dir/$run.out")
    # shellcheck disable=SC2046
    kill -CONT $(ranks)
    wait_for grep -q "^step $((step + 100)) " "$dir/$run.out"
    kill -USR1 $job
    gone 10
    ok "$mpi: $title: goes on" grep -q "^step $((step + 100)) " "$dir/$run.out"
    ok "$mpi: $title: nobody is missed" not grep -q 'has not' "$dir/err"
    ok "$mpi: $title: it is saved" past "$step"
}

# full WHO: a run that goes on, in which the files of one rank, or of all, cannot grow any longer.
full() {
    run=$mpi-full-$1 title="a disk that is full: $1"
    cp -r "$dir/half" "$dir/$run"
    : >"$dir/$run.out"
    start --save-every 1000000 --steps 100000
    wait_for grep -q "^step $((steps / 2 + 3)) " "$dir/$run.out"
    for id in $(ranks); do
        [ "$1" = one ] && [ "$id" != "$(pick 1)" ] || prlimit --pid "$id" --fsize=20000
    done
    kill -USR1 $job
    gone 10
    [ $mpi = mpich ] && [ "$code" = 0 ] && code=1 # its mpirun may say so after a signal
    ok "$mpi: $title: exit code 1, found $code" [ "$code" = 1 ]
    ok "$mpi: $title: the error stands once" [ "$(grep -c '^tenon: .*cannot write' "$dir/err")" = 1 ]
    ok "$mpi: $title: the last checkpoint stays" [ "$(latest)" = $((steps / 2)) ]
    whole
}

# shellcheck disable=SC2086
"$tenon" $train --out "$dir/whole" >"$dir/out" 2>"$dir/err"
ok "without interruption" [ $? = 0 ]
# shellcheck disable=SC2086
"$tenon" $train --out "$dir/half" --steps $((steps / 2)) >"$dir/out" 2>"$dir/err"
ok "half of it" [ $? = 0 ]
mpis=$(mpis)
cat "$dir/skipped"
tried=
for mpi in $mpis; do
    kills
    if [ -z "$tried" ] || [ -n "$TN_LONG" ]; then
        stopped save 1
        paused
        full one
    fi
    if [ -n "$tried" ] || [ "$mpi" = "$mpis" ] || [ -n "$TN_LONG" ]; then # where there is one MPI, all
        stopped step 1000000
        full all
    fi
    tried=1
done

totals
