#!/bin/sh
# What recomputation costs and saves: plans of three shapes with each policy, GPT-2's step with each, and how
# the pass grows with the graph, to more than 100,000 nodes. BENCH=short leaves out the steps.
# Usage: bench/recompute.sh [TENON]
set -e
tenon=${1:-build/tenon}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bf16="--dtype bf16 --param-dtype bf16 --optimizer none"

# shellcheck disable=SC2086 # several words
for policy in none selective every=3 every=2 full; do
    "$tenon" bench plan --model gpt2 --batch-size 4 --seq-len 1024 --recompute $policy
    "$tenon" bench plan --model llama3-1b --batch-size 2 --seq-len 2048 $bf16 --recompute $policy
    "$tenon" bench plan --model llama3-8b --batch-size 4 --seq-len 4096 $bf16 --recompute $policy
done
for policy in none selective every=3 every=2 full; do
    [ "$BENCH" = short ] && break
    "$tenon" bench step --model gpt2 --batch-size 4 --seq-len 1024 --runs 3 --recompute $policy |
        grep -E ' (planned peak|measured peak \(highest byte\)|step)  '
done

# blocks N: a forward of N blocks and its loss.
blocks() {
    awk -v n="$1" 'BEGIN {
        print "tenon 1\ngraph blocks(%x: f32[64, 64] batch, %w: f32[64, 64] param \"w\") {"
        for (i = 0; i < n; i++) {
            end = "  @\"layers." i "\" forward"
            x = i ? "h" i - 1 : "x"
            printf "  %%a%d: f32[64, 64] = mm(%%%s, %%w)%s\n", i, x, end
            printf "  %%b%d: f32[64, 64] = gelu(%%a%d)%s\n", i, i, end
            printf "  %%c%d: f32[64, 64] = mm(%%b%d, %%w)%s\n", i, i, end
            printf "  %%d%d: f32[64, 64] = tanh(%%c%d)%s\n", i, i, end
            printf "  %%h%d: f32[64, 64] = add(%%%s, %%d%d)%s\n", i, x, i, end
        }
        printf "  %%l: f32[] = sum(%%h%d)  loss\n  return loss %%l\n}\n", n - 1
    }'
}

# best PASS ARGUMENTS: seconds of the pass on joint.tn, the best of three runs.
best() {
    pass=$1
    shift
    for _ in 1 2 3; do
        "$tenon" opt "$dir/joint.tn" --passes="$pass" --timing "$@" -o "$dir/out.tn" 2>&1
    done | awk '{ print $4 }' | sort -n | head -1
}

# Past the caches each node costs more: what dce takes, which only walks the graph, shows by how much.
for n in 32 100 400 1600 6400; do
    blocks $n >"$dir/forward.tn"
    "$tenon" opt "$dir/forward.tn" --passes=grad,canonicalize,cse,dce -o "$dir/joint.tn"
    walk=$(best dce)
    nodes=$(grep -c ' = ' "$dir/joint.tn")
    for rule in '--recompute full' '--recompute-rule *::*'; do
        # shellcheck disable=SC2086 # two words
        sec=$(set -f; best remat $rule)
        made=$(grep -c ' origin=' "$dir/out.tn")
        echo "$nodes nodes, $rule: remat $sec s, $made copies," \
            "$(echo "$sec $nodes $walk" | awk '{ printf "%.3g ns a node, %.1f times dce", 1e9 * $1 / $2, $1 / $3 }')"
    done
done
