#!/bin/sh
# Signals from outside. No thread has a handler for those that end a process, and but for one, which waits for
# them, all have them blocked, whatever way a command runs: as the system says. Signals at random moments of
# training, evaluation, saving and tuning, of a model whose products the library computes (it uses the stack pointer
# as one more register): no run dies of them, and all end with the bits of one that was left alone. Each thread's own
# masks, and a host program's: test_signals. TN_LONG=1: 300 signals, not 10. Usage: tests/scripts/signals.sh BUILD
. tools/checks.sh
. tools/launch.sh
count=10 layers=1 steps=10
[ -z "$TN_LONG" ] || count=300 layers=4 steps=40
export MALLOC_PERTURB_=165
mkfifo "$dir/pipe"
cat >"$dir/config.json" <<END
{"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05, "hidden_size": 384, "num_attention_heads": 6,
 "num_key_value_heads": 6, "num_hidden_layers": $layers, "intermediate_size": 1024, "vocab_size": 256,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "max_position_embeddings": 128}
END
cat LICENSE LICENSE LICENSE LICENSE >"$dir/text"
shape="--batch-size 2 --seq-len 64"
train="train $dir/config.json --data $dir/text --token-type byte $shape --threads 2 --schedule constant"
ok "the library's products run" sh -c "'$tenon' plan '$dir/config.json' $shape | grep '^  ways' | grep -q onednn"

# ---- masks ----

# mask NAME BITS: of the thread's $status those of INT, TERM, HUP and USR1: 0x4203 is all of them.
mask() {
    text=$(printf '%s\n' "$status" | sed -n "s/^$1:[[:space:]]*[0-9a-f]*\([0-9a-f]\{4\}\)\$/\1/p")
    echo $((0x${text:-0} & $2))
}
# count_masks PID: counts the process's threads in $all: those that wait, have a handler, have all blocked.
count_masks() {
    all=0 waiting=0 handled=0 blocked=0
    for thread in /proc/"$1"/task/*; do
        status=$(cat "$thread/status" 2>/dev/null) || continue # it has ended: OpenMP's come and go
        all=$((all + 1))
        [ "$(mask SigCgt 0x4203)" = 0 ] || handled=$((handled + 1))
        case $(mask SigBlk 0x4203) in
        0) waiting=$((waiting + 1)) ;; # what a thread waits for is not blocked meanwhile
        $((0x4203))) blocked=$((blocked + 1)) ;;
        esac
    done
}
# masks WHAT LEAST PID: of the process's threads, of which there are LEAST or more. The thread that waits begins a moment
# after the others have them blocked. Libraries of MPI have handlers (MPICH for USR1, UCX for HUP), which do not run either.
masks() {
    for _ in $(seq 100); do
        count_masks "$3"
        [ $all -lt "$2" ] || [ $waiting != 1 ] || [ $blocked != $((all - 1)) ] || break
        sleep 0.05
    done
    ok "$1: expected $2 threads, found $all" [ $all -ge "$2" ]
    ok "$1: handled in $handled threads" [ $handled = 0 -o -n "$before" ]
    ok "$1: one of $all threads waits, found $waiting" [ $waiting = 1 ]
    ok "$1: the others have them blocked, found $blocked" [ $blocked = $((all - 1)) ]
}
# begin ARGUMENTS...: a run without an end, whose second step is done when this returns.
before=
begin() {
    # shellcheck disable=SC2086
    $before "$tenon" $train --steps 1000000 --save-sec 0 --metrics "$dir/pipe" "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    exec 3<"$dir/pipe"
    read -r line <&3
    read -r line <&3
}
# stops SIGNAL CODE WHAT
stops() {
    kill "-$1" $pid
    cat <&3 >/dev/null
    wait $pid 2>/dev/null
    got=$?
    exec 3<&-
    [ "$got" != 0 ] || [ "${before#mpirun.mpich}" = "$before" ] || got=$2 # which may say so
    ok "$3: expected exit code $2, found $got" [ $got = "$2" ]
}

begin --out "$dir/one" --threads 3
masks "one process" 4 $pid
# The kernel drops SIGTSTP where no shell is there to go on from it: as a process that does nothing about it shows.
sleep 100 &
idle=$!
kill -TSTP $pid $idle
for _ in $(seq 20); do
    grep -q '^State:.T' /proc/$idle/status && break
    sleep 0.1
done
if grep -q '^State:.T' /proc/$idle/status; then
    for _ in $(seq 100); do # others may be at work
        grep -q '^State:.T' /proc/$pid/status && break
        sleep 0.1
    done
    ok "Ctrl-Z stops it" grep -q '^State:.T' /proc/$pid/status
else
    echo "note: signals.sh: nothing stops at SIGTSTP here, as no shell waits"
fi
kill -KILL $idle
kill -CONT $pid
read -r line <&3
ok "and it goes on" [ -n "$line" ]
stops INT 130 "one process"
begin --out "$dir/none" --threads 1
stops USR1 138 "one process: SIGUSR1, which asks ranks alone to stop, ends it"
begin --out "$dir/threads" --mesh fsdp=3 --batch-size 3 --threads 2
masks "ranks as threads" 9 $pid # an engine and two threads for each, and the one that waits
stops USR1 130 "ranks as threads"
begin --out "$dir/emulated" --backend emulated
masks "an emulated device" 5 $pid # a queue for each kind of work
stops HUP 130 "an emulated device"
before=nohup
begin --out "$dir/nohup"
before=
kill -HUP $pid
read -r line <&3
ok "under nohup SIGHUP is ignored" [ -n "$line" ]
stops TERM 130 "under nohup"
for mpi in $(mpis); do
    before="mpirun.$mpi -n 2"
    begin --out "$dir/$mpi" --mesh fsdp=2 --threads 2
    ranks=0
    for one in /proc/[0-9]*; do
        [ "$(readlink "$one/exe" 2>/dev/null)" = "$(readlink -f "$tenon")" ] || continue
        tr '\0' '\n' <"$one/cmdline" 2>/dev/null | grep -qxF "$dir/$mpi" || continue
        ranks=$((ranks + 1))
        masks "$mpi: rank $ranks" 4 "${one#/proc/}"
    done
    ok "$mpi: two ranks, found $ranks" [ $ranks = 2 ]
    stops USR1 130 "$mpi"
    before=
done
[ ! -s "$dir/skipped" ] || sed 's/^note:/note: signals.sh:/' "$dir/skipped"

# Before the first step of a run that goes on, which waits for somebody to read its metrics.
begin --out "$dir/before"
stops TERM 130 "to go on from"
for signal in HUP INT TERM; do
    : >"$dir/err" # no words of an earlier run
    # shellcheck disable=SC2086
    "$tenon" $train --steps 1000000 --resume --out "$dir/before" --metrics "$dir/pipe" >"$dir/out" 2>"$dir/err" &
    pid=$!
    for _ in $(seq 600); do
        [ -s "$dir/err" ] && break
        sleep 0.05
    done
    kill -$signal $pid
    wait $pid 2>/dev/null
    got=$?
    ok "before the first step: $signal: expected exit code 130, found $got" [ $got = 130 ]
    ok "it says so: $(cat "$dir/err")" grep -q '^tenon: interrupted before the first step: the same command begins again$' "$dir/err"
done

# Commands that save nothing: what a signal always does.
for signal in HUP:129 TERM:143 USR1:138; do
    mkfifo "$dir/graph"
    "$tenon" opt - --passes=cse <"$dir/graph" >"$dir/out" 2>"$dir/err" &
    pid=$!
    exec 3>"$dir/graph" # opens when it is there
    for _ in $(seq 100); do
        grep -q '^SigBlk:.*4203$' /proc/$pid/task/$pid/status && break
        sleep 0.05
    done
    masks "opt" 2 $pid
    kill "-${signal%:*}" $pid
    wait $pid 2>/dev/null
    got=$?
    exec 3>&-
    rm "$dir/graph"
    ok "opt: $signal, found $got" [ $got = "${signal#*:}" ]
done

# Those that would leave a part of a file: it is removed.
for signal in INT TERM HUP; do
    mkfifo "$dir/words"
    yes "some text" >"$dir/words" 2>/dev/null &
    words=$!
    "$tenon" tokenize "$dir/words" --tokenizer tests/tokenizer/gpt2.json -o "$dir/ids" >"$dir/out" 2>"$dir/err" &
    pid=$!
    for _ in $(seq 600); do
        [ -z "$(ls "$dir/ids"* 2>/dev/null)" ] || break
        sleep 0.05
    done
    kill -$signal $pid
    wait $pid
    got=$?
    kill $words 2>/dev/null
    wait $words 2>/dev/null
    rm "$dir/words"
    ok "tokenize: $signal: exit code 130, found $got" [ $got = 130 ]
    ok "tokenize: $signal: nothing is left, found $(ls "$dir")" [ -z "$(ls "$dir/ids"* 2>/dev/null)" ]
done

# ---- random moments ----

kinds='INT TERM HUP INT TERM HUP USR1'
# next_kind: in $kind.
next_kind() {
    kind=${order%% *}
    order=${order#* }
    [ "$order" != "$kind" ] || order=
    [ -n "$order" ] || order=$kinds
}
order=$kinds
# seen: that the process counts signals, as it has done a step or is at its end.
seen() { [ -s "$dir/run.jsonl" ] && [ "$(wc -l <"$dir/run.jsonl")" -gt "$lines" ] || grep -q '^tenon: already' "$dir/err"; }
ran=0 ended=0 died=0 sent=0 number=0 stopped=0
# hit MESH: goes on with the run, or begins it, and sends two signals, with those of ranks among them.
hit() {
    lines=0
    [ ! -s "$dir/run.jsonl" ] || lines=$(wc -l <"$dir/run.jsonl")
    : >"$dir/err"
    # shellcheck disable=SC2086
    "$tenon" $train --steps $steps --eval-every 4 --save-every 2 --keep 2 --val-fraction 0.3 --mesh "$1" \
        --resume --out "$dir/run" --metrics "$dir/run.jsonl" >"$dir/out" 2>"$dir/err" &
    pid=$!
    while ! seen && kill -0 $pid 2>/dev/null; do sleep 0.02; done
    for most in 0.4 0.04; do
        number=$((number + 1))
        sleep "$(random $most $number)"
        next_kind
        [ "$kind" != USR1 ] || [ "$1" != none ] || kind=TERM
        kill "-$kind" $pid 2>/dev/null && sent=$((sent + 1))
    done
    wait $pid 2>/dev/null
    got=$?
    ran=$((ran + 1))
    case $got in
    0) ended=$((ended + 1)) ;;
    130) stopped=$((stopped + 1)) ;;
    *)
        died=$((died + 1))
        ok "a run after $kind: exit code $got, $(tail -1 "$dir/err")" [ $got = 130 ]
        ;;
    esac
}
# curve FILE: what does not depend on the time.
curve() {
    sed -n 's/.*\("step": [0-9]*\), \("loss": [^,]*, "grad_norm": [^,]*, "lr": [^,]*\),.*/\1 \2/p
            s/.*\("step": [0-9]*\), \("eval_loss": [^,]*\),.*/\1 \2/p' "$1"
}
# compare MESH: a run that has come to its end, and that which was left alone.
compare() {
    curve "$dir/alone-$1.jsonl" >"$dir/want"
    curve "$dir/run.jsonl" >"$dir/got"
    ok "$1: losses" cmp "$dir/want" "$dir/got"
    for file in model optimizer; do
        ok "$1: $file" cmp "$dir/alone-$1/latest/$file.safetensors" "$dir/run/latest/$file.safetensors"
    done
    rm -r "$dir/run" "$dir/run.jsonl"
}
for mesh in none fsdp=2; do
    # shellcheck disable=SC2086
    "$tenon" $train --steps $steps --eval-every 4 --val-fraction 0.3 --mesh $mesh --out "$dir/alone-$mesh" \
        --metrics "$dir/alone-$mesh.jsonl" >"$dir/out" 2>"$dir/err"
    ok "$mesh: left alone" [ $? = 0 ]
    goal=$((sent + count / 2))
    while [ $sent -lt $goal ] && [ $died = 0 ]; do
        hit $mesh
        [ $got != 0 ] || compare $mesh
    done
    if [ -e "$dir/run" ]; then # its signals were all sent before it was at its end
        # shellcheck disable=SC2086
        "$tenon" $train --steps $steps --mesh $mesh --resume --out "$dir/run" --metrics "$dir/run.jsonl" \
            --save-every 2 --keep 2 --eval-every 4 --val-fraction 0.3 >"$dir/out" 2>"$dir/err"
        ok "$mesh: comes to its end" [ $? = 0 ]
        compare $mesh
    fi
done
ok "$sent signals in $ran runs: $died died" [ $died = 0 ]
ok "some were stopped: $stopped" [ $stopped -gt 0 ]
echo "note: signals.sh: $sent signals in $ran runs: $stopped were stopped, $ended came to their end"

# Tuning: what was measured is kept, and it goes on from there.
tuned=0
for turn in $(seq $((count / 10))); do
    : >"$dir/err"
    part=no
    [ ! -e "$dir/machine.part" ] || part=yes # of one that was stopped and had measured something
    "$tenon" tune "$dir/config.json" $shape --threads 2 --dtype f32 -o "$dir/machine" >"$dir/out" 2>"$dir/err" &
    pid=$!
    while ! grep -q 'measures the kernels' "$dir/err" && kill -0 $pid 2>/dev/null; do sleep 0.02; done
    sleep "$(random 1 $((1000 + turn)))"
    next_kind
    [ "$kind" != USR1 ] || kind=INT
    kill "-$kind" $pid 2>/dev/null
    wait $pid 2>/dev/null
    got=$?
    ok "tune after $kind: exit code 130 or 0, found $got" [ $got = 130 -o $got = 0 ]
    [ $got != 130 ] || tuned=$((tuned + 1))
    [ $part = no ] || ok "tune goes on" grep -q 'goes on from' "$dir/err"
done
ok "tuning was stopped" [ $tuned -gt 0 ]

totals
