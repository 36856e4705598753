#!/bin/sh
# Whether computing hides a link: a step of the demo model on two ranks of one thread with fsdp, of the same plan without
# a link, with one that comm injects (a delay for each message and a bandwidth), and with it but collectives where the
# order of the least peak has them (--overlap off). The plan is by kernels' seconds that are measured here first (tenon
# tune). Runs alternate, and the least step of each counts, as other programs on the machine only add to it; RUN is a
# command before each, such as RUN="chrt -f 1", with which others do not run beside. Exits 1 where the link costs more
# than 5 %. Usage: [RUN=COMMAND] bench/hidden.sh [BUILD [ROUNDS]]
build=$(cd "${1:-build}" && pwd) || exit 1
rounds=${2:-3}
tenon=$build/tenon
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_MACHINE=none
unset TENON_COMM_LINK
wait=0.0005 rate=500e6 # seconds, bytes in a second
rows=32 length=256

# shellcheck disable=SC2086 # several words
$RUN "$tenon" tune demo --clock cpu --threads 1 --dtype f32 --batch-size $((rows / 2)) --seq-len $length \
    -o "$dir/tuned" >"$dir/out" 2>&1 || cat "$dir/out"
awk -v wait=$wait -v rate=$rate '
    /^(gather|reduce)_2/ { next }
    /^host_ranks/ {
        printf "host_ranks 2\ngather_2 %.9g\ngather_2_wait %.9g\n", rate * 2 / 1e9, wait * 1e6
        printf "reduce_2 %.9g\nreduce_2_wait %.9g\n", rate / 1e9, 2e6 * wait
        next
    }
    { print }' "$dir/tuned" >"$dir/machine"
cat docs/*.md >"$dir/text.txt"

# timed NAME LINK OPTIONS...: the least step of a run of 6 goes to $dir/NAME, by `plan` what is expected.
timed() {
    name=$1 link=$2
    shift 2
    set -- --dtype f32 --batch-size $rows --seq-len $length --mesh fsdp=2 --threads 1 --machine "$dir/machine" "$@"
    [ -z "$link" ] || export TENON_COMM_LINK="$link"
    # shellcheck disable=SC2086
    $RUN "$tenon" train demo --data "$dir/text.txt" --steps 6 --metrics "$dir/steps.jsonl" --eval-every 1000 \
        --out "$dir/run" "$@" >"$dir/out" 2>&1 || {
        cat "$dir/out"
        exit 1
    }
    unset TENON_COMM_LINK
    "$tenon" plan demo "$@" | sed -n 's/^  estimate *\(.*\) a step.*/\1/p; s/^collectives.* \([^ ]* [^ ]*\) of it exposed.*/\1 exposed/p' | paste -sd ' ' >"$dir/$name.plan"
    sed -n 's/.*"step_sec": *\([0-9.e-]*\).*/\1/p' "$dir/steps.jsonl" | sort -g | head -1 >>"$dir/$name"
    rm -rf "$dir/run" "$dir/steps.jsonl"
}
i=0
while [ $i -lt "$rounds" ]; do
    timed without ''
    timed hidden "$wait,$rate"
    timed exposed "$wait,$rate" --overlap off
    i=$((i + 1))
done
least() { sort -g "$dir/$1" | head -1; }
echo "link of $wait s and $rate B/s"
for name in without hidden exposed; do
    echo "$name: least step $(least $name) s; planned $(cat "$dir/$name.plan")"
done
awk -v without="$(least without)" -v hidden="$(least hidden)" -v exposed="$(least exposed)" 'BEGIN {
    printf "ratio %.3f, with --overlap off %.3f\n", hidden / without, exposed / without
    exit hidden > 1.05 * without
}'
