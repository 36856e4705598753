#!/bin/sh
# tenon shard from outside: both forms of problems, what is printed and written, limits that nothing fits, wrong
# files. Usage: tests/scripts/shard.sh BUILD
. tools/checks.sh
seeds=tests/seeds/pick

# printed COST BOUND GAP FEASIBLE [FILE]: the one line on standard output.
printed() {
    ok "expected cost $1 bound $2 gap $3 feasible $4, found: $(cat "${5:-$dir/out}")" \
        grep -Eqx "cost $1 bound $2 gap $3 sec [0-9]+\.[0-9]{4} feasible $4" "${5:-$dir/out}"
    ok "one line" [ "$(wc -l <"${5:-$dir/out}")" = 1 ]
}

# ---- solutions ----

gives 0 '' shard $seeds/own.json
printed 2 '2' 0 yes
ok "nothing else is said" [ ! -s "$dir/err" ]
gives 0 '' shard $seeds/own.json -o "$dir/own.out"
printf '{\n  "cost": 2,\n  "bound": 2,\n  "strategies": [0, 0]\n}\n' >"$dir/want"
ok "the solution in Tenon's own form" cmp "$dir/own.out" "$dir/want"
gives 0 '' shard $seeds/contest.json --output="$dir/contest.out" --effort 0
printed 6 6 0 yes
ok "the solution in the contest's form" [ "$(cat "$dir/contest.out")" = '[0, 1, 0]' ]
cat $seeds/contest.json | "$tenon" shard - -o - >"$dir/out" 2>"$dir/err"
ok "standard input and output" cmp "$dir/out" "$dir/contest.out"
printed 6 6 0 yes "$dir/err"
gives 0 '"cost": 2,' shard $seeds/own.json --json
ok "an object" grep -qx '  "feasible": true,' "$dir/out"
ok "the most that is used" grep -qx '  "peak_usage": 4096,' "$dir/out"
echo '{"nodes": [], "edges": []}' >"$dir/empty.json"
gives 0 '' shard "$dir/empty.json" -o "$dir/empty.out"
printed 0 0 0 yes
ok "no strategies" grep -qx '  "strategies": \[\]' "$dir/empty.out"

# ---- nothing fits ----

sed 's/4096$/1023/' $seeds/own.json >"$dir/tight.json"
gives 3 "$dir/tight.json: does not fit: needs a limit of 1024, which is proved; the limit is 1023" \
    shard "$dir/tight.json" -o "$dir/none.out"
printed - - - no
ok "it says that nothing is written" grep -qx '  --output is not written' "$dir/err"
ok "nothing is" [ ! -e "$dir/none.out" ]
gives 3 '"cost": null,' shard "$dir/tight.json" --json
ok "the least that does" grep -qx '  "least_usage": 1024,' "$dir/out"
sed 's/4096$/1024/' $seeds/own.json >"$dir/fits.json"
gives 0 '' shard "$dir/fits.json" -o -
echo '{"nodes": [{"cost": [1, null]}], "edges": [{"nodes": [0, 0], "cost": [[null, 1], [1, 1]]}]}' >"$dir/never.json"
gives 3 'does not fit: every choice has a forbidden strategy or pair' shard "$dir/never.json"

# ---- wrong usage, wrong files ----

gives 2 'expected 1 argument, found 0' shard
gives 2 'the nearest is "--effort"' shard a --efort 3
gives 2 '--effort: expected an integer from 0 to 1000000, found "-1"' shard a --effort -1
gives 1 "$dir/none.json: cannot open" shard "$dir/none.json"
gives 2 '--batch-size is missing, for the problem of a model' shard "$dir"
gives 2 'as "/missing" is no file' shard /missing
gives 1 'standard input:1:1: expected {, found the end' shard - </dev/null
gives 1 'cannot create: No such file' shard $seeds/own.json -o "$dir/nowhere/x"
sed 's/2, null, 1/2, nul, 1/' $seeds/own.json >"$dir/bad.json"
gives 1 "$dir/bad.json:4:21: expected null" shard "$dir/bad.json"
n=$(wc -c <$seeds/own.json)
i=0
while [ $i -lt $((n - 2)) ]; do # all but the last bracket
    head -c $i $seeds/own.json >"$dir/cut.json"
    gives 1 "$dir/cut.json:" shard "$dir/cut.json"
    i=$((i + 7))
done

# ---- a sum that no number holds ----

echo '{"nodes": [{"cost": [1e308, 1e308]}, {"cost": [1e308]}], "edges": []}' >"$dir/large.json"
gives 1 "$dir/large.json: costs: expected a sum of at most 1.07151e+301, found " shard "$dir/large.json"

# ---- sizes, sums and keys that do not go together ----

# refuses TEXT PROBLEM
refuses() {
    echo "$2" >"$dir/odd.json"
    gives 1 "$1" shard "$dir/odd.json"
}
pair='"nodes": [{"cost": [0, 1]}, {"cost": [0, 0, 0]}]'
refuses 'edges: cost[0]: expected 2 rows of 3 numbers, found 3 rows, row 0 of 2' \
    "{$pair, \"edges\": [{\"nodes\": [0, 1], \"cost\": [[1, 2], [3, 4], [5, 6]]}]}"
refuses 'edges: cost[0]: expected 2 rows of 3 numbers, found 2 rows, row 0 of 1' \
    "{$pair, \"edges\": [{\"nodes\": [0, 1], \"cost\": [[1], [2, 3, 4, 5, 6]]}]}"
refuses 'nodes: interval[0]: expected a begin and an end, found 3 and 0' \
    '{"nodes": [{"cost": [0], "usage": [1], "interval": [3, 0]}], "edges": []}'
most='{"cost": [0], "usage": [9007199254740992], "interval": [0, 1]}'
refuses 'usages: their sum is beyond 9007199254740992, with a limit' \
    "{\"usage_limit\": 9007199254740992, \"nodes\": [$most, {\"cost\": [0], \"usage\": [1], \"interval\": [0, 1]}], \"edges\": []}"
one='{"nodes": {"intervals": [[0, 1]], "costs": [[1]], "usages": [[0]]}, "edges": {"nodes": [], "costs": []}}'
refuses 'key "problem" stands twice' "{\"problem\": $one, \"problem\": $one}"
refuses 'expected "problem" as the first key' "{\"usage_limit\": 5, \"problem\": $one}"
# Two nodes of many strategies, one of which decides the other.
awk 'BEGIN {
    n = 50000
    printf "{\"nodes\": ["
    for (k = 0; k < 3; k++) {
        printf "%s{\"cost\": [0", k ? "," : ""
        for (i = 1; i < (k == 1 ? 2 : n); i++) printf ",0"
        printf "]}"
    }
    printf "], \"edges\": [{\"nodes\": [0, 1], \"cost\": ["
    for (i = 0; i < n; i++) printf "%s[%s]", i ? "," : "", i % 2 ? "null,0" : "0,null"
    printf "]}, {\"nodes\": [1, 2], \"cost\": ["
    for (k = 0; k < 2; k++) {
        printf "%s[1", k ? "," : ""
        for (i = 1; i < n; i++) printf ",%d", (i * 7 + k * 3 * i) % 5
        printf "]"
    }
    print "]}]}"
}' >"$dir/wide.json"
gives 0 'feasible yes' shard "$dir/wide.json"
gives 2 '--mesh: expected AXIS=N,..., the mesh of the problem, found auto' shard demo --batch-size 4 --seq-len 8 --mesh auto -o "$dir/x.json"
gives 2 '--output: expected a file for the problem, found /dev/null, which is none' shard demo --batch-size 4 --seq-len 8 --mesh dp=2 -o /dev/null

# ---- the same again ----

awk 'function draw(below) {
        seed = (seed * 16807) % 2147483647
        return int(seed / 2147483647 * below)
    } BEGIN {
        seed = 11
        print "{\"usage_limit\": 700, \"nodes\": ["
        for (i = 0; i < 60; i++)
            printf "%s{\"cost\": [%d, %d, %d], \"usage\": [%d, %d, %d], \"interval\": [%d, %d]}\n", i ? "," : "", draw(90),
                draw(90), draw(90), draw(90), draw(90), draw(90), i, i + 1 + draw(20)
        print "], \"edges\": ["
        for (i = 0; i < 120; i++) {
            printf "%s{\"nodes\": [%d, %d], \"cost\": [", i ? "," : "", draw(60), draw(60)
            for (j = 0; j < 3; j++)
                printf "%s[%d, %d, %d]", j ? ", " : "", draw(90), draw(90), draw(90)
            print "]}"
        }
        print "]}"
    }' >"$dir/drawn.json"
gives 0 '' shard "$dir/drawn.json" --effort 1 -o "$dir/first.out"
gives 0 '' shard "$dir/drawn.json" --effort 1 -o "$dir/second.out"
ok "the same solution" cmp "$dir/first.out" "$dir/second.out"
totals
