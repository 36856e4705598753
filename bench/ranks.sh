#!/bin/sh
# A step of GPT-2 124M (batch 8, T=1024, f32) on eight ranks of one thread, by mpirun on this machine, against one
# process with two threads: what ranks cost where they share two cores, and how much of their step they wait for each
# other. Only a machine that is quiet otherwise says anything. Usage: bench/ranks.sh [TENON] [RUNS]
tenon=${1:-build/tenon}
runs=${2:-3}
step="bench step --model gpt2 --batch-size 8 --seq-len 1024 --runs $runs"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# measure COMMAND...: "SECONDS WAITED CPU": of a step and, of rank 0, of its waits (medians), and CPU seconds of all.
measure() {
    before=$(cut -d' ' -f14-17 /proc/$$/stat)
    "$@" | awk '{ for (i = 1; i < NF; i++) {
        if ($i == "step" && $(i + 2) == "s") step = $(i + 1)
        if ($i == "wait_tensor" && $(i + 2) == "s") wait = $(i + 1) } }
        END { printf "%s %s ", step, wait + 0 }'
    echo "$before $(cut -d' ' -f14-17 /proc/$$/stat)" |
        awk -v hz="$(getconf CLK_TCK)" '{ print ($7 + $8 - $3 - $4) / hz }'
}

one=$(measure "$tenon" $step --threads 2)
for mpi in openmpi mpich; do
    command -v mpirun.$mpi >/dev/null || { echo "no mpirun.$mpi"; continue; }
    more=
    [ $mpi = openmpi ] && more=--oversubscribe
    ranks=$(measure mpirun.$mpi $more -n 8 "$tenon" $step --threads 1 --mesh fsdp=8)
    echo "$one $ranks" | awk -v mpi=$mpi '{ printf "gpt2 B=8 T=1024 f32: fsdp=8 by %s %.2f s / one process %.2f s = %.2f; " \
        "waits %.1f %% of it; CPU %.0f s / %.0f s = %.2f\n", mpi, $4, $1, $4 / $1, 100 * $5 / $4, $6, $3, $6 / $3 }'
done
