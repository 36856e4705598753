#!/bin/sh
# How near the order of nodes comes to the least peak of any: for each preset, dtype, recomputation and
# accumulation the peak, the bound on any order, how far the largest live sum lies above that in what is not
# persistent, what placement loses, and the CPU seconds of the command. With OLD, another build, also its peak
# and seconds. Batches of 4 rows of 1024 tokens an iteration. Exits 1 where a gap is above 1 %.
# Usage: bench/order.sh [TENON [OLD]]
set -e
tenon=${1:-build/tenon}
old=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# seconds FILE COMMAND...: the CPU seconds of a command whose output goes to FILE.
seconds() {
    file=$1
    shift
    sh -c '"$@" >"$0" && times' "$file" "$@" | awk 'NR == 2 {
        for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] }
        printf "%.2f", sum }'
}

number() {
    sed -n "s/^ \"$2\": \([0-9]*\),*\$/\1/p" "$1"
}

for model in gpt2 llama3-1b llama3-8b; do
    for dtype in f32 bf16; do
        for recompute in none selective full; do
            for iterations in 1 4; do
                set -- plan $model --dtype $dtype --recompute $recompute --accumulate $iterations \
                    --batch-size $((4 * iterations)) --seq-len 1024 --json
                sec=$(seconds "$dir/new" "$tenon" "$@")
                echo "$model $dtype $recompute $iterations" "$(number "$dir/new" lower_bound_bytes)" \
                    "$(number "$dir/new" order_bound_bytes)" "$(number "$dir/new" persistent_bytes)" \
                    "$(number "$dir/new" waste_bytes)" "$sec" \
                    "${old:+$(seconds "$dir/old" "$old" "$@") $(number "$dir/old" peak_bytes)}"
            done
        done
    done
done | awk '{
    gap = 100 * ($5 - $6) / ($5 - $7)
    most = gap > most ? gap : most
    printf "%-10s %-4s %-9s x%d  peak %12.0f  bound %12.0f  gap %.2f %%  waste %8.0f  %5.2f s", $1, $2, $3, $4,
        $5 + $8, $6, gap, $8, $9
    if (NF > 9)
        printf "  old peak %12.0f (%+.2f %%) %5.2f s", $11, 100 * ($5 + $8 - $11) / $11, $10
    printf "\n" }
    END { printf "largest gap %.2f %%\n", most; exit most > 1 }'
