#!/bin/sh
# Measured steps against estimated ones over a curve of six limits of memory, by a file that `tenon tune` makes here of
# the same step, or by FILE. MODEL, BATCH, LENGTH, DTYPE: the step (gpt2 2 512 f32). ROUNDS (2): steps of each limit.
# CLOCK=cpu: CPU time of one thread, for a machine that others use. Usage: bench/curve.sh [BUILD [FILE]]
set -e
build=${1:-build}
model=${MODEL:-gpt2} batch=${BATCH:-2} length=${LENGTH:-512} dtype=${DTYPE:-f32} clock=${CLOCK:-wall}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
make -s BUILD="$build" "$build/bench/curve"
file=${2:-$dir/here.machine}
threads=
[ "$clock" = cpu ] && threads='--clock cpu --threads 1'
for recompute in none full; do
    [ "$2" ] && break
    # shellcheck disable=SC2086 # several words
    "$build/tenon" tune "$model" --batch-size "$batch" --seq-len "$length" --dtype "$dtype" --recompute $recompute \
        $threads -o "$file"
done
"$build/bench/curve" "$model" "$batch" "$length" "$dtype" "${ROUNDS:-2}" "$clock" "$file"
