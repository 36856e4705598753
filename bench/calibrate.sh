#!/bin/sh
# Steps of Llama 3.1 on H100s that others measured, and our estimates of the same model, batch, mesh and policy, by
# each table of a machine that is named: tokens a second and GPU, and how far the seconds of a step are off. Half of the
# nine points (set) are those on which the row h100_measured was set, the others (judged) say what it is worth.
# Usage: bench/calibrate.sh [TENON [MACHINE...]]
#
# What is assumed: sequences of 8,192 tokens; bf16 with f32 masters, AdamW; theirs by torch.compile where they say so, ours
# fused. SAC is their policy of ops, ours `selective`. Sources, all public:
#   [gt]  torchtitan #3429 (graph_trainer), 8 H100; batch not given: one row a data rank, that of its configuration
#   [tt]  torchtitan's benchmark of December 2024: H100 of 500 W and 2.4 TB/s, 8 a host, 400 Gbit/s each; two rows a rank
#   [as]  torchtitan's benchmark of asynchronous tensor parallelism, June 2025: the same machines; without it
#   [ap]  AutoParallel, the hand-written reference beside it: its fastest step
set -e
tenon=${1:-build/tenon}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- "$(dirname "$0")/h100_before.machine" h100_measured
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# points: use, source, published tokens a second and GPU, GPUs, model, rows, mesh, policy
cat >"$dir/points" <<'END'
set    gt 7890 8   llama3-8b  8   fsdp=8        selective
judged gt 7006 8   llama3-8b  8   fsdp=8        full
judged gt 6607 8   llama3-8b  4   fsdp=4,tp=2   selective
set    gt 5933 8   llama3-8b  4   fsdp=4,tp=2   full
judged tt 6667 8   llama3-8b  16  fsdp=8        selective
set    tt 6514 128 llama3-8b  256 fsdp=128      selective
judged as 4378 64  llama3-8b  96  fsdp=8,tp=8   selective
set    as 597  256 llama3-70b 512 fsdp=32,tp=8  full
judged ap 5593 128 llama3-8b  32  fsdp=16,tp=8  selective
END

for machine; do
    echo "by $machine:"
    while read -r use source rate gpus model rows mesh policy; do
        "$tenon" plan "$model" --batch-size "$rows" --seq-len 8192 --dtype bf16 --mesh "$mesh" \
            --recompute "$policy" --machine "$machine" --json >"$dir/plan"
        sec=$(sed -n 's/^ "est_step_sec": \([0-9.e-]*\),*$/\1/p' "$dir/plan")
        echo "$use $source $rate $gpus $model $rows $mesh $policy $sec"
    done <"$dir/points" >"$dir/rows"
    awk '{
        theirs = $6 * 8192 / $4 / $3
        off = $9 / theirs - 1
        printf "  %-6s [%s] %-10s %-13s %-9s x%-3d  published %5d tokens/s %8.1f ms, ours %5.0f %8.1f ms  %+6.1f %%\n",
            $1, $2, $5, $7, $8, $6, $3, 1e3 * theirs, $6 * 8192 / $4 / $9, 1e3 * $9, 100 * off
        errors[$1, ++count[$1]] = off < 0 ? -off : off }
    END { for (use in count) {
        n = count[use]
        for (i = 1; i <= n; i++) for (k = i + 1; k <= n; k++) if (errors[use, k] < errors[use, i]) {
            t = errors[use, i]; errors[use, i] = errors[use, k]; errors[use, k] = t }
        median = n % 2 ? errors[use, (n + 1) / 2] : (errors[use, n / 2] + errors[use, n / 2 + 1]) / 2
        printf "  %-6s median error %.1f %%, largest %.1f %%\n", use, 100 * median, 100 * errors[use, n] } }' "$dir/rows"
done
