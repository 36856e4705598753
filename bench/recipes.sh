#!/bin/sh
# Steps by `--shard auto` beside steps by the recipes, within the memory that the recipes need: six models on four
# meshes of H100, by the clock. With models as arguments those alone. The last line counts the steps that are slower
# than by the recipes, and those that are at least 2 % faster. Usage: bench/recipes.sh [TENON [MODEL...]]
tenon=${1:-build/tenon}
[ $# -gt 0 ] && shift
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# number KEY: the last number of that key in the plan on standard input.
number() {
    sed -n "s/^ *\"$1\": \([0-9.e-]*\),*$/\1/p" | tail -n 1
}

# one MODEL ROWS TOKENS MESH
one() {
    step="$1 --batch-size $2 --seq-len $3 --dtype bf16 --recompute selective --machine h100 --mesh $4"
    "$tenon" plan $step --json >"$dir/recipes" 2>"$dir/err" || {
        echo "recipes $1 $4: refused: $(head -n 1 "$dir/err")"
        return
    }
    peak=$(number peak_bytes <"$dir/recipes")
    limit=$((peak + $(number library_reserve_bytes <"$dir/recipes")))
    "$tenon" plan $step --shard auto --memory $limit --json >"$dir/auto" 2>"$dir/err" || {
        echo "recipes $1 $4: failed: $(head -n 1 "$dir/err")"
        return
    }
    echo "$1 $4 $limit $(number est_step_sec <"$dir/recipes") $(number est_step_sec <"$dir/auto")" | awk '{
        printf "recipes %-16s %-16s limit %8.2f GiB  recipes %9.3f ms  auto %9.3f ms  %6.2f %% faster\n", $1, $2,
            $3 / 1073741824, 1000 * $4, 1000 * $5, 100 * ($4 - $5) / $4
    }'
}

while read -r model rows tokens; do
    asked=$([ $# = 0 ] && echo yes)
    for name; do
        [ "$name" = "$model" ] && asked=yes
    done
    for mesh in fsdp=8 fsdp=8,tp=4 dp=2,fsdp=4,tp=4 dp=8,tp=2; do
        [ "$asked" ] && one "$model" "$rows" "$tokens" $mesh
    done
done <<END | tee "$dir/table"
gpt2 64 1024
gpt2-medium 64 1024
llama3-1b 64 4096
bench/mistral-7b.json 64 8192
llama3-8b 64 8192
llama3-70b 64 8192
END
awk '/ faster$/ { worse += $(NF - 2) < 0; better += $(NF - 2) >= 2; next } { bad++ }
    END { printf "recipes: %d steps, %d slower, %d at least 2 %% faster, %d refused or failed\n", NR, worse, better, bad }' "$dir/table"
