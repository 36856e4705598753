#!/bin/sh
# What a rank of Llama-3 8B takes and sends, against the numbers of other systems and those that follow from the
# model's sizes: bytes, and collectives by phase, of what they are and kind. Usage: tests/scripts/collectives.sh BUILD
. tools/checks.sh
model="llama3-8b --seq-len 8192 --dtype bf16 --machine h100"
on128="$model --batch-size 32 --mesh fsdp=16,tp=8 --bucket off --overlap off" # what each value alone takes

# number NAME: of the JSON in $dir/out.
number() {
    sed -n "s/^ \"$1\": \([0-9]*\),*$/\1/p" "$dir/out"
}

# sent PHASE ROLE KIND N: that so many values are.
sent() {
    found=$(tr -d ' ",' <"$dir/out" | awk -F: -v phase="$1" -v role="$2" -v kind="$3" '
        /^\{/ { split("", x) }
        { x[$1] = $2 }
        /^\}/ && x["phase"] == phase && x["role"] == role && x["kind"] == kind { n += x["count"] }
        END { print n + 0 }')
    ok "$1: $4 values by $3 of $2, found $found" [ "$found" = "$4" ]
}

# most N: that the peak is at most so many MiB, and no byte is lost.
most() {
    ok "a peak of at most $1 MiB, found $(number peak_bytes) bytes" [ "$(number peak_bytes)" -le $(($1 * 1048576)) ]
    ok "no waste" [ "$(number waste_bytes)" = 0 ]
}

# ---- Llama-3 8B on 128 ranks ----

gives 0 '"persistent_bytes": 752836992' plan $on128 --recompute selective --json
most 5632
ok "the mesh" grep -q '^ "mesh": "fsdp=16,tp=8",$' "$dir/out"
ok "its ranks" [ "$(number ranks) $(number rank)" = "128 0" ]
hash=$(grep plan_hash "$dir/out")
sent forward parameter all_gather 291
sent backward parameter all_gather 290
sent backward gradient reduce_scatter 291
sent backward gradient all_reduce 0
sent forward activation all_gather 65
sent backward activation all_gather 129
sent forward activation reduce_scatter 65
sent backward activation reduce_scatter 65
sent optimizer norm all_reduce 1

gives 0 "$hash" plan $on128 --recompute selective --rank 77 --json
ok "another rank" [ "$(number rank)" = 77 ]

gives 0 '' plan $on128 --recompute full --json
most 2457

gives 0 '' plan $on128 --json
sent forward parameter all_gather 291
sent backward parameter all_gather 290
always=$(number saved_bytes)
peak=$(number peak_bytes)
gives 0 '' plan $on128 --reshard never --json
sent forward parameter all_gather 291
sent backward parameter all_gather 0
sent backward gradient reduce_scatter 291
ok "what is kept: the matrices but the embedding, and 65 norms" \
    [ $(($(number saved_bytes) - always)) = $(((8030261248 - 128256 * 4096 - 65 * 4096) / 8 * 2 + 65 * 4096 * 2)) ]

ok "so much higher is the peak, but for the head, which both have gathered there" \
    [ $(($(number peak_bytes) - peak)) = $(($(number saved_bytes) - always - 128256 * 4096 / 8 * 2)) ]

# ---- on 64 ----

gives 0 '"persistent_bytes": 1505673984' plan $model --batch-size 16 --mesh fsdp=8,tp=8 --json

# ---- as many values in one call as a node can have ----

# sums N FILE CALLS: a graph of N values that are summed, each in a call of its own or (one) all in one.
sums() {
    awk -v n="$1" -v calls="$3" 'BEGIN {
        printf "tenon 1\ngraph g mesh(dp=2) at(0) (%%x: f32[4] param \"x\") {\n"
        for (i = 0; i < n; i++)
            if (calls == "one") {
                to = to (i ? ", " : "") "%a" i; from = from (i ? ", " : "") "%x"
            } else {
                printf "  %%a%d = all_reduce(%%x, reduce_op=\"sum\", group=\"dp\")  backward\n", i
                printf "  %%w%d = wait_tensor(%%a%d, %%x)  backward\n", i, i
                outs = outs (i ? ", " : "") "%w" i
            }
        if (calls == "one") {
            printf "  %s = all_reduce(%s, reduce_op=\"sum\", group=\"dp\")  backward\n", to, from
            outs = "%x"
        }
        printf "  return %s\n}\n", outs
    }' >"$2"
}
sums 257 "$dir/many.tn" one
gives 1 'all_reduce: takes at most 256 inputs, found 257' show "$dir/many.tn"
sums 300 "$dir/each.tn" each
gives 0 '' opt "$dir/each.tn" --passes bucket --bucket 1GiB
ok "two calls" [ "$(grep -c 'all_reduce(' "$dir/out")" = 2 ]

totals
