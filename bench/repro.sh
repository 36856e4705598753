#!/bin/sh
# A rank's graph in a repro file of PyTorch, such as those of the AutoParallel project's overlap simulator: a step as
# it is written, and with buckets and overlap within LIMIT (none: two of the largest buckets more), by one table of
# seconds; pointwise ops apart and fused. Exits 1 where ASKED is given and the step takes more than that share of what
# it took.
# Usage: bench/repro.sh FILE [LIMIT [ASKED [TENON]]]
set -e
file=$1
limit=${2:+--memory $2}
asked=$3
tenon=${4:-build/tenon}
machine=${MACHINE:-h100}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

number() {
    sed -n "s/^ \"$2\": \([0-9.e-]*\),*\$/\1/p" "$1"
}

# row TITLE OPTION...: seconds, exposed seconds and peak of a plan, into the file TITLE.
row() {
    title=$1
    shift
    "$tenon" plan "$dir/graph.tn" --machine "$machine" "$@" --json >"$dir/$title"
    echo "$title" "$(number "$dir/$title" est_step_sec)" "$(number "$dir/$title" est_comm_sec)" \
        "$(number "$dir/$title" est_exposed_sec)" "$(number "$dir/$title" peak_bytes)"
}

"$tenon" import fx "$file" --params "${PARAMS:-primals_*}" -o "$dir/graph.tn"
echo "step, collectives, exposed (ms), peak (GiB), by $machine"
{
    row written
    row moved --passes bucket --overlap on $limit
    row fused --passes fuse
    row fused-moved --passes bucket,fuse --overlap on $limit
} | awk -v asked="$asked" '{
    printf "%-12s %9.2f %9.2f %9.2f %7.3f", $1, 1e3 * $2, 1e3 * $3, 1e3 * $4, $5 / 2 ^ 30
    share = $2 / before
    if (NR % 2 == 0)
        printf "  %.3f of before", share
    slow += asked != "" && NR == 2 && share > asked
    before = $2
    printf "\n" }
    END { exit slow > 0 }'
