#!/bin/sh
# What --chunk auto takes where one kind of region holds the peak: MLPs along tokens, their activations alone, attention
# along heads and along queries, whole microbatches. The peak falls by at least half of what the region has there above
# one slice. What computes much again, as MLPs in these small steps, is taken where the memory asks for it.
# Usage: tests/scripts/chunk_auto.sh BUILD
. tools/checks.sh

number() { # KEY: of the last plan's JSON
    sed -n "s/^ \"$1\": \([0-9]*\),*$/\1/p" "$dir/out" | head -1
}

# takes NAME LINE SED...: in tests/chunk/NAME.tn with other sizes, auto makes the region that LINE is of; with `share`
# in that many hundredths of the memory.
takes() {
    name=$1 line=$2
    shift 2
    sed "$@" "tests/chunk/$name.tn" >"$dir/graph.tn"
    set -- plan "$dir/graph.tn" --passes=default --optimizer none
    gives 0 '' "$@" --json
    whole=$(number peak_bytes)
    [ -z "$share" ] || set -- "$@" --memory $((whole * share / 100 + $(number library_reserve_bytes)))
    gives 0 '' "$@" --chunk auto
    ok "$name: $line" grep -q "^chunk: $line" "$dir/out"
    gives 0 '' "$@" --chunk auto --json
    sliced=$(number peak_bytes)
    above=$(awk -F '[:,]' '/"chunk_candidates"/ { listed = 1 }
        /"bytes_at_peak":/ { bytes = $2 } /"bytes_with_slices":/ { slice = $2 }
        /"taken": true/ { sum += listed ? bytes - slice : 0 } END { printf "%.0f", sum }' "$dir/out")
    ok "$name: peak $whole, then $sliced; the regions have $above above a slice" \
        [ "$above" -gt 0 -a $((2 * (whole - sliced))) -ge "$above" ]
}

share=45
takes mlp '.*mlp.* slices of ' -e 's/\b20\b/4096/g' -e 's/\b6\b/256/g' -e 's/\b40\b/4096/g'
share=
takes mlp_cheap 'layers.0.mlp (%g): .* slices of ' -e 's/\b20\b/2048/g' -e 's/\b6\b/2048/g' -e 's/\b40\b/8192/g'
takes attention_alone 'attn.* slices of .* rows' -e 's/\b12\b/256/g' -e 's/\b17\b/128/g'
takes attention_queries 'attn.* slices of .* along axis 1' -e 's/\[3, 17, 4, 5\]/[1, 2048, 1, 20]/g' \
    -e 's/\[12, 17, 17\]/[1, 2048, 2048]/g' -e 's/\[12, 17, 5\]/[1, 2048, 20]/g' \
    -e 's/\[12, 5, 17\]/[1, 20, 2048]/g' -e 's/\[3, 4, 17, 5\]/[1, 1, 2048, 20]/g' -e 's/\[51/[2048/g'
takes microbatches '(%e): [248] slices of [124] rows' -e 's/\b5\b/2048/g' -e 's/\b40\b/16384/g' -e 's/\b37\b/7/g'
totals
