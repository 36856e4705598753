#!/bin/sh
# Sharding problems of the ASPLOS / EuroSys 2025 contest, where ../shared/fixtures/iopddl has them: cost and bound that
# `tenon shard` finds with 1, 10 and 50 units of effort, CPU seconds after reading, and the cost over the contest's
# best and the best known. Usage: bench/shard.sh [TENON]
tenon=${1:-build/tenon}
from=../shared/fixtures/iopddl
if [ ! -d $from ]; then
    echo "shard: no $from, nothing was solved"
    exit
fi
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
# one NAME CONTEST KNOWN: the contest's best, and the best known.
one() {
    gunzip -c "$from/$1.json.gz" >"$dir/$1.json" || return
    for effort in 1 10 50; do
        "$tenon" shard "$dir/$1.json" --effort $effort |
            awk -v name="$1" -v effort=$effort -v contest="$2" -v known="$3" '{
                printf "shard %s effort %d: %s; %.6f of the contest'\''s best, %.6f of the best known\n", name, effort, $0,
                    $2 / contest, $2 / known
            }'
    done
    rm "$dir/$1.json"
}
one A 6548641531 6548553650
one B 532843 532843
one C 84102445260 84102392579
one G 217039 217039
one K 2274276676 2198257291
one P 662197407330 651833115436
one V 1632051 1617084
