#!/bin/sh
# Whether a larger --memory ever gives a slower step, and whether a choice by hand that is the same for all layers is
# ever faster within its own bytes: estimates of plans of ten graphs, at BUDGETS (40) limits each, from the least that
# would do to what the step needs with all values saved, on ranks to a fourth more. Words by hand are those of
# --recompute; on ranks each with parameters kept and gathered again, with --overlap off and --bucket off too.
# Exits with 1 where one is slower. CASE=N takes one of the graphs, WORDS= no word. Usage: bench/budgets.sh [TENON]
tenon=${1:-build/tenon}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
budgets=${BUDGETS:-40}
bad=0
printf 'machine 1\nname office\nlike avx512_bf16\nnetwork 0.117\n' >"$dir/office" # GB/s: 1 Gbit/s
export TENON_MACHINE=none

# plan ARGUMENTS...: seconds and bytes of the plan, also of one that does not fit; nothing: it cannot be planned.
plan() {
    "$tenon" plan "$@" --json 2>"$dir/err" | awk -F '[:,]' '
        /^ "peak_bytes"/ { need += $2 } /^ "library_reserve_bytes"/ { need += $2 } /^ "est_step_sec"/ { sec = $2 + 0 }
        END { if (need) printf "%.9g %.0f\n", sec, need }'
}

# by_hand GRAPH OPTIONS ARGUMENTS...: what options come to, and what is chosen within the bytes that they need.
by_hand() {
    graph=$1 options=$2
    shift 2
    # shellcheck disable=SC2086 # several words
    hand=$(plan "$@" $options)
    [ "$hand" ] || return 0
    chosen=$(plan "$@" --memory "${hand#* }")
    echo "$hand $chosen" | awk -v graph="$graph" -v options="$options" '{
        slower = $3 > $1 * (1 + 1e-9) || $4 > $2
        printf "%s%s: %s: %.6g s in %.1f MiB; chosen %.6g s, %+.2f %%\n", slower ? "SLOWER: " : "", graph, options, $1,
            $2 / 2 ^ 20, $3, 100 * ($3 / $1 - 1)
        exit slower }' || bad=1
}

words=${WORDS-none selective every=2 full}

# curve GRAPH KIND ARGUMENTS...: of `one` processor, or of `ranks`.
curve() {
    number=$((number + 1))
    [ "${CASE:-$number}" = $number ] || return 0
    graph=$1 kind=$2
    shift 2
    all=$(plan "$@" --recompute none)
    least=$(plan "$@" --memory 1)
    from=${least#* } most=${all#* }
    [ "$kind" = one ] || most=$((most + (most - from) / 4))
    i=0
    while [ $i -lt "$budgets" ]; do
        memory=$(awk -v from="$from" -v most="$most" -v i=$i -v n="$budgets" 'BEGIN {
            printf "%.0f", from + (most - from) * i / (n - 1) }')
        echo "$memory $(plan "$@" --memory "$memory")"
        i=$((i + 1))
    done | awk -v graph="$graph" '
        NF != 3 || $3 > $1 { printf "UNFIT: %s: %s\n", graph, $0; bad++ }
        n++ && $2 > last * (1 + 1e-9) {
            slower++; most = $2 / last - 1 > most ? $2 / last - 1 : most
            printf "  %.1f MiB %.6g s, with less %.6g s\n", $1 / 2 ^ 20, $2, last }
        { last = last && last < $2 ? last : $2 }
        END { printf "%s%s: %d limits, %d slower than a lower one, at most by %.3g %%\n", slower || bad ? "SLOWER: " : "",
            graph, n, slower, 100 * most; exit slower + bad > 0 }' || bad=1
    for word in $words; do
        by_hand "$graph" "--recompute $word" "$@"
        [ "$kind" = ranks ] || continue
        for reshard in always never; do
            for more in '' ' --overlap off' ' --bucket off'; do
                by_hand "$graph" "--recompute $word --reshard $reshard$more" "$@"
            done
        done
    done
}

for name in gpt2_step llama_gqa; do
    "$tenon" import fx tests/fx/$name/graph.txt --inputs tests/fx/$name/inputs.safetensors -o "$dir/$name.tn" || exit 1
done
gpt2='gpt2 --machine avx512_bf16 --threads 2'
# shellcheck disable=SC2086 # several words
{
    curve 'gpt2 4x1024' one $gpt2 --batch-size 4 --seq-len 1024
    curve 'gpt2 16x512 bf16, 4 microbatches' one $gpt2 --batch-size 16 --seq-len 512 --dtype bf16 --accumulate 4
    curve 'demo 16x256' one demo --batch-size 16 --seq-len 256 --machine avx2
    curve 'llama3-1b 2x2048' one llama3-1b --batch-size 2 --seq-len 2048 --machine avx512_bf16 --threads 2
    curve 'llama3-1b 8x2048 bf16 on h200' one llama3-1b --batch-size 8 --seq-len 2048 --dtype bf16 --machine h200 \
        --backend cuda
    curve 'gpt2_step by PyTorch' one "$dir/gpt2_step.tn" --passes=default --machine avx2
    curve 'gpt2 2x1024 fsdp=2,tp=2, slow' ranks gpt2 --machine "$dir/office" --threads 2 --batch-size 2 --seq-len 1024 \
        --mesh fsdp=2,tp=2
    curve 'gpt2 8x1024 fsdp=8, slow' ranks gpt2 --machine "$dir/office" --threads 8 --batch-size 8 --seq-len 1024 \
        --mesh fsdp=8
    curve 'gpt2 8x1024 fsdp=4, slow, 2 microbatches' ranks gpt2 --machine "$dir/office" --threads 2 --batch-size 8 \
        --seq-len 1024 --mesh fsdp=4 --accumulate 2
    curve 'llama3-8b 32x8192 bf16 fsdp=16,tp=8 on h100' ranks llama3-8b --batch-size 32 --seq-len 8192 --dtype bf16 \
        --mesh fsdp=16,tp=8 --machine h100
}
exit $bad
