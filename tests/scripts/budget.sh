#!/bin/sh
# Against PyTorch's activation_memory_budget: what its partitioner saves of a joint graph at a ratio becomes must_save,
# the rest of the forward must_recompute, and the plan's peak the limit of a plan of the same graph without policies.
# That one is never slower, and of 33 sets faster at 25 or more, in seconds of one table of a machine (h100).
# tools/torch_budget.py made tests/budget. With TN_LONG=1 all sets, and a table in BUILD/budget.txt; else three.
# Usage: tests/scripts/budget.sh BUILD [MACHINE]
. tools/checks.sh
machine=${2:-h100}

# planned GRAPH ARGUMENTS...: sets `bytes` (arena and reserve) and `sec` of a plan, which fits; 0 where it does not.
planned() {
    gives 0 '' plan "$@" --passes=default --machine "$machine" --json
    # shellcheck disable=SC2046 # two words
    set -- $(awk '/^ "(peak|library_reserve)_bytes"/ && /: [0-9]/ { sub(/.*: /, ""); n += $0 }
        /^ "est_step_sec"/ { sub(/.*: /, ""); sub(/,/, ""); sec = $0 }
        END { printf "%.0f %s\n", n, sec }' "$dir/out")
    bytes=$1 sec=$2
    [ "$got" = 0 ] || bytes=0
}

# compare MODEL RATIO: one row.
compare() {
    ok "$1 $2: policies" awk -v ratio="$2" -f tests/budget/policies.awk "$dir/ops" "tests/budget/$1.sets" \
        "$dir/$1.tn" "$dir/$1.tn" >"$dir/set.tn"
    planned "$dir/set.tn"
    peak=$bytes theirs=$sec
    ok "$1 $2: what PyTorch saves needs $peak of $all bytes" [ "$peak" -lt "$all" ]
    planned "$dir/$1.tn" --memory "$peak"
    row=$(awk -v all="$all" -v none="$none" -v peak="$peak" -v theirs="$theirs" -v bytes="$bytes" -v sec="$sec" 'BEGIN {
        what = !bytes ? "unfit" : sec < theirs ? "less" : sec > theirs ? "more" : "equal"
        printf "%10.1f %10.1f %10.1f %10.4f %10.4f  %s\n", all / 2^20, peak / 2^20, bytes / 2^20,
            (theirs - none) * 1e3, (sec - none) * 1e3, what
    }')
    printf '%-6s %5s %s\n' "$1" "$2" "$row" >>"$dir/table"
    ok "$1 $2: ${row##* }: PyTorch $theirs s in $peak bytes, Tenon $sec s in $bytes" \
        grep -Eqx '.* (less|equal)' <<END
$row
END
}

# model NAME RATIO...
model() {
    name=$1
    shift
    params=$(sed -n 's/^params: //p' "tests/budget/$name.sets")
    gives 0 '' import fx "tests/budget/$name.txt" --params "$(seq -s, -f primals_%g 1 "$params")" -o "$dir/$name.tn"
    planned "$dir/$name.tn" --recompute none
    all=$bytes none=$sec
    for ratio; do
        compare "$name" "$ratio"
    done
}

"$tenon" ops >"$dir/ops"
echo 'model  ratio   none MiB   peak MiB  Tenon MiB   added ms   Tenon ms' >"$dir/table"
if [ -n "$TN_LONG" ]; then
    ratios='0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1.0'
    for name in llama gpt2 bert; do
        # shellcheck disable=SC2086 # a word for each
        model $name $ratios
    done
    less=$(grep -c ' less$' "$dir/table")
    ok "less at $less of 33" [ "$less" -ge 25 ]
    cp "$dir/table" "$build/budget.txt"
    echo "note: against PyTorch's budget: less at $less of 33, the same or less at $(grep -Ec ' (less|equal)$' "$dir/table")"
else
    model llama 0.5
    model gpt2 0.1
    model bert 0.3
fi
totals
