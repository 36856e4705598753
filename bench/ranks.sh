#!/bin/sh
# A step of GPT-2 124M (batch 8, T=1024, f32) on eight ranks of one thread, by mpirun on this machine, against one
# process with two threads: what ranks cost where they share two cores, and how much of their step they wait for each
# other. Only a machine that is quiet otherwise says anything. Usage: bench/ranks.sh [TENON] [RUNS]
tenon=${1:-build/tenon}
runs=${2:-3}
model=${MODEL:-gpt2} length=${LENGTH:-1024}
step="bench step --model $model --batch-size 8 --seq-len $length --runs $runs"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# measure COMMAND...: "SECONDS SHARE CPU": of a step (median), of it the share that rank 0 waits, and CPU seconds of all
# processes, start and limits included.
measure() (
    "$@" >"$out"
    times >>"$out"
    awk '
        / waits for other ranks/ { share = $NF; next }
        { for (i = 1; i < NF; i++) if ($i == "step" && $(i + 1) > 0) step = $(i + 1) }
        /m[0-9.]+s [0-9]+m/ { cpu = $1 " " $2 }
        END { split(cpu, t, /[ms ]+/); printf "%s %s %s", step, share + 0, 60 * (t[1] + t[3]) + t[2] + t[4] }' "$out"
)

out=$(mktemp)
trap 'rm -f "$out"' EXIT
one=$(measure "$tenon" $step --threads 2)
for mpi in openmpi mpich; do
    command -v mpirun.$mpi >/dev/null || { echo "no mpirun.$mpi"; continue; }
    more=
    [ $mpi = openmpi ] && more=--oversubscribe
    ranks=$(measure mpirun.$mpi $more -n 8 "$tenon" $step --threads 1 --mesh fsdp=8)
    echo "$one $ranks" | awk -v mpi=$mpi -v model="$model" -v length_="$length" '{ printf "%s B=8 T=%s f32: fsdp=8 by %s %.2f s / one process %.2f s = %.2f; " \
        "waits %.1f %% of it; CPU %.0f s / %.0f s = %.2f\n", model, length_, mpi, $4, $1, $4 / $1, 100 * $5, $6, $3, $6 / $3 }'
done
