#!/bin/sh
# Ranks by mpirun, of Open MPI and of MPICH: the transport alone, jobs that give what they give to threads, ranks
# that fail, die or do not answer, which module is loaded when, and a training run as by threads. An MPI that is not
# there is left out, and said. TN_LONG=1: with more numbers of ranks. Usage: tests/scripts/mpi.sh BUILD, also of a build with
# AddressSanitizer (`make sanitized`).
. tools/checks.sh
. tools/launch.sh
direct=$build/tests/mpi/direct jobs=$build/tests/mpi/jobs
# Under AddressSanitizer: what MPI keeps to the end is not ours, and its stacks cannot be told by name.
export ASAN_OPTIONS="detect_leaks=0:$ASAN_OPTIONS"

# ranks N CODE COMMAND...: by mpirun of $mpi; it ends with that code within 10 s more than it takes.
ranks() {
    n=$1 want=$2
    shift 2
    timeout "${limit:-30}" "mpirun.$mpi" -n "$n" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    [ "$want" = any ] && [ $got != 0 ] && [ $got != 124 ] && want=$got
    ok "mpirun.$mpi -n $n $*: expected exit code $want, found $got" [ $got = "$want" ]
}
# says TEXT: what ran last, on standard output or error.
says() {
    ok "$mpi: expected the text: $1" grep -qF -e "$1" "$dir/out" "$dir/err"
}

# ---- without a launcher ----

unset TENON_MPI
LD_DEBUG=libs LD_DEBUG_OUTPUT=$dir/libs "$tenon" plan tests/ref/gpt2-tiny --batch-size 4 --seq-len 8 --mesh dp=2 >"$dir/out"
ok "no launcher, no MPI" [ "$(cat "$dir"/libs.* | grep -cE 'libmpi|tenon-mpi')" = 0 ]
ok "libraries are seen" [ "$(cat "$dir"/libs.* | grep -c libdnnl)" != 0 ]

# ---- launchers that cannot be served ----

# started TEXT VARIABLE=VALUE...: what a process says that such a launcher has started.
started() {
    text=$1
    shift
    ok "$*: fails" not env "$@" "$direct" messages >"$dir/out" 2>"$dir/err"
    ok "$*: expected the text: $text" grep -qF -e "$text" "$dir/out"
}
started 'no launcher has started this process' A=b
started 'no launcher has started this process' OMPI_COMM_WORLD_RANK=0
started 'no launcher has started this process' OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2x
started 'no launcher has started this process' SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1
started 'srun has started 4 processes that cannot find each other: expected --mpi=pmi2' \
    SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4
started 'mpirun of MPICH or srun --mpi=pmi2 has started this process, and tenon-mpi-none.so is not in' \
    PMI_RANK=0 PMI_SIZE=2 TENON_MPI=none
started "srun --mpi=pmix has started this process, and tenon-mpi-none.so is not in $build/tests/mpi, its" \
    PMIX_RANK=0 SLURM_STEP_NUM_TASKS=2 TENON_MPI=none
started 'cannot load the module of MPI: /none/tenon.so' PMI_RANK=0 PMI_SIZE=2 TENON_MPI=/none/tenon.so
library=$(ldd "$tenon" | sed -n 's/.*libdnnl[^ ]* => \([^ ]*\) .*/\1/p')
started "$library: expected a module of Tenon for MPI" PMI_RANK=0 PMI_SIZE=2 TENON_MPI="$library"

# ---- training by threads, for comparison ----

# trains NAME COMMAND...: three steps on four ranks, started by the command, with the options of $extra; what there is
# of them goes to a folder.
trains() {
    name=$1
    shift
    # shellcheck disable=SC2086 # words
    timeout 300 "$@" "$tenon" train tests/ref/gpt2-tiny --batch tests/ref/gpt2-tiny/batch.safetensors --steps 3 \
        --lr 1e-3 --dropout 0.1 --clip 0.5 --threads 1 --mesh fsdp=4 $extra --out "$dir/$name" >"$dir/$name.out" 2>"$dir/err"
    ok "$*: tenon train: exit code 0" [ $? = 0 ]
}
extra=
trains threads
ok "threads: three steps" [ "$(grep -c '^step [1-3] loss ' "$dir/threads.out")" = 3 ]

# ---- each MPI ----

sizes=3
[ -z "$TN_LONG" ] || sizes='1 3 8'

mpis=$(mpis)
cat "$dir/skipped"
for mpi in $mpis; do
    module=$build/tenon-mpi-$mpi.so
    ok "tenon --version: $mpi" sh -c '"$0" --version | grep -qx "mpi $1"' "$tenon" $mpi

    # The module beside these programs cuts messages as others cut those beyond an int.
    for test in messages reduce errors; do
        ranks 4 0 "$direct" $test
        says ": 4 ranks, 4 here"
        ok "$mpi: $test on every rank" [ "$(grep -c ' 0 failed' "$dir/out")" = 4 ]
    done

    # A rank that ends all, one that ends by itself, one that is killed.
    limit=10
    aborted=3
    [ $mpi = openmpi ] || aborted=any # mpirun of MPICH may give the code of a rank that it then kills
    ranks 3 $aborted "$direct" abort
    says "tenon: rank 1: says why"
    ranks 3 any "$direct" leave
    ranks 3 any "$direct" kill
    export TENON_MPI="$module"
    ranks 3 $aborted "$jobs" abort
    says "tenon: rank 1: the disk is full"
    ranks 3 any "$jobs" late
    says "rank 1 has not sent its part of a maximum of all ranks for 2 s"
    ok "$mpi: late: said once" [ "$(cat "$dir/out" "$dir/err" | grep -c ' has not ')" = 1 ]
    # A process that does not run is missed by one other, whatever the others wait for; soon, where it is to stop.
    for test in 'hang 2' 'stop 5'; do
        ranks 3 any "$jobs" ${test% *}
        says "tenon: rank 2: rank 1 has not answered for ${test#* } s: it hangs or has died"
        ok "$mpi: ${test% *}: said once" [ "$(cat "$dir/out" "$dir/err" | grep -c ' has not ')" = 1 ]
    done
    # A launcher may leave other ranks running where one ends all.
    if [ $mpi = openmpi ]; then
        timeout 10 mpirun.$mpi --enable-recovery -n 3 "$jobs" end >"$dir/out" 2>"$dir/err"
        ok "$mpi: ends ranks that its mpirun would leave" [ $? != 124 ]
        says "tenon: rank 1: the disk is full"
    fi
    limit=

    # What keeps all from joining is said once.
    for module in /none/tenon.so "$library"; do
        export TENON_MPI="$module"
        ranks 3 any "$tenon" eval tests/ref/gpt2-tiny --mesh fsdp=3
        ok "$mpi: TENON_MPI=$module: said once" [ "$(grep -c '^tenon: ' "$dir/err")" = 1 ]
    done
    # Also where the first process begins later than the others have failed.
    # shellcheck disable=SC2086
    timeout 30 mpirun.$mpi -n 1 sh -c "sleep 0.5; exec $tenon eval tests/ref/gpt2-tiny --mesh fsdp=3" : \
        -n 2 "$tenon" eval tests/ref/gpt2-tiny --mesh fsdp=3 >"$dir/out" 2>"$dir/err"
    ok "$mpi: the first process begins late: said once" [ "$(grep -c '^tenon: ' "$dir/err")" = 1 ]
    export TENON_MPI="$build/tenon-mpi-$mpi.so"
    ranks 3 any env TENON_COMM_DELAY=5x "$tenon" eval tests/ref/gpt2-tiny --mesh fsdp=3
    ok "$mpi: TENON_COMM_DELAY: said once" [ "$(grep -c '^tenon: TENON_COMM_DELAY: ' "$dir/err")" = 1 ]

    # Jobs as by threads.
    ranks 4 0 "$jobs" reduce
    ok "$mpi: sums of the library's own" [ "$(grep -c ' 0 failed' "$dir/out")" = 4 ]
    for n in $sizes; do
        ranks $n 0 env TENON_COMM_DELAY=500,$n "$build/tests/test_comm"
        ok "$mpi: $n ranks as threads" [ "$(grep -c ' 0 failed' "$dir/out")" = 1 ]
    done
    unset TENON_MPI

    trains $mpi "mpirun.$mpi" -n 4
    ok "$mpi: processes, not threads" not grep -q 'run as threads' "$dir/err"
    # A device whose memory other ranks do not reach: through the host's, as ranks on GPUs.
    extra='--backend emulated'
    trains $mpi-emulated "mpirun.$mpi" -n 4
    extra=
    for name in $mpi $mpi-emulated; do
        for file in .out /latest/model.safetensors /latest/optimizer.safetensors; do
            ok "$mpi: $name$file as of threads" cmp "$dir/threads$file" "$dir/$name$file"
        done
    done
done
totals
