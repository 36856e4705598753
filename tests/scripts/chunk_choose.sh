#!/bin/sh
# The driver of --chunk auto and N: what it chooses fits, what it says would do does, more memory never
# takes more time, and every rank and every run choose the same. TN_LONG=1: of more steps. Usage: tests/scripts/chunk_choose.sh BUILD
. tools/checks.sh

# number KEY: of the last plan's JSON.
number() {
    sed -n "s/^ \"$1\": \"*\([0-9.e+-]*\)\"*,*\$/\1/p" "$dir/out" | head -1
}
needed() { # bytes of arena and reserve
    echo $(($(number peak_bytes) + $(number library_reserve_bytes)))
}
hash() {
    sed -n 's/^ "plan_hash": "*\([^",]*\)"*,*$/\1/p' "$dir/out"
}
loops() {
    sed -n 's/^  "loop": \([0-9]*\),*$/\1/p' "$dir/out"
}

while read -r words; do
    [ "$words" ] || continue
    # shellcheck disable=SC2086
    set -- $words
    gives 0 '' plan "$@" --json
    whole=$(needed)
    whole_hash=$(hash)
    gives 0 '' plan "$@" --chunk auto --json
    knee=$(needed)
    knee_hash=$(hash)
    ok "$*: no more than the whole: $knee of $whole" [ "$knee" -le "$whole" ]
    gives 0 '' plan "$@" --chunk auto --json
    ok "$*: the same choice again" [ "$(hash)" = "$knee_hash" ]
    # Nothing to be reached: as it is.
    gives 0 '' plan "$@" --chunk auto --memory "$whole" --json
    ok "$*: no slices where it fits" [ "$(hash)" = "$whole_hash" ]
    gives 0 '' plan "$@" --chunk 1 --json
    ok "$*: one slice is the whole" [ "$(hash)" = "$whole_hash" ]
    # The least, to the byte.
    gives 3 'does not fit' plan "$@" --chunk auto --memory 1MiB --json
    least=$(number least_feasible_bytes)
    ok "$*: the least $least is below the knee $knee" [ "$least" -le "$knee" ]
    gives 0 '' plan "$@" --chunk auto --memory "$least" --json
    ok "$*: what would do does" [ "$(needed)" -le "$least" ]
    gives 3 "the least that would do is $least" plan "$@" --chunk auto --memory $((least - 1))
    # More memory, no more time.
    last=
    for part in 0 3 6; do
        limit=$((least + (whole - least) / 8 * part))
        gives 0 '' plan "$@" --chunk auto --memory $limit --json
        ok "$*: within $limit" [ "$(needed)" -le $limit ]
        sec=$(number est_step_sec)
        ok "$*: at $limit $sec s, with less memory $last s" \
            awk "BEGIN { exit !(\"$last\" == \"\" || $sec <= \"$last\" + 0) }"
        last=$sec
    done
done <<EOF
tests/ref/gpt2-tiny --batch-size 8 --seq-len 32 --dtype bf16 --recompute none
${TN_LONG:+tests/ref/gpt2-tiny --batch-size 8 --seq-len 32 --dtype bf16 --recompute full --accumulate 2}
${TN_LONG:+demo --batch-size 16 --seq-len 256 --recompute none}
${TN_LONG:+demo --batch-size 8 --seq-len 256 --recompute full --accumulate 2}
${TN_LONG:+demo --batch-size 16 --seq-len 256}
${TN_LONG:+tests/ref/gpt2-tiny --batch-size 8 --seq-len 32 --dtype bf16}
EOF

# A run: with evaluation and sampling, which need some memory of their own beside the step's.
echo '{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 10000}' >"$dir/config.json"
set -- train "$dir/config.json" --data README.md --token-type byte --tokenizer bytes --threads 1 --steps 1 \
    --batch-size 16 --seq-len 64 --sample-tokens 2 --chunk auto --recompute none
if [ -n "$TN_LONG" ]; then
    gives 3 'does not fit' "$@" --memory 1MiB --out "$dir/run"
    least=$(sed -n 's/.*the least that would do is \([0-9.]*MiB\).*/\1/p' "$dir/err")
    gives 0 '' "$@" --memory "$least" --out "$dir/run"
    gives 0 '' train --resume --steps 2 --out "$dir/run"
fi

# What holds the peak of these steps: blocks along tokens, attention along queries or, where softmax goes
# along these too, heads, and whole sequences. The peak falls by half of what the region has above one slice.
sized() { # NAME SED: a graph of tests/chunk with other sizes
    sed -n '/^tenon 1/,$p' tests/chunk/$1.tn | sed -E "$2" >"$dir/$1.tn"
}
peak() {
    sed -n 's/^  peak *\([0-9]*\) bytes.*/\1/p' "$dir/out"
}
chosen() { # TEXT ARGUMENTS...: of plan; the text is what is said of the slices; with `share` in that many hundredths of it
    of=$1
    shift
    gives 0 '' plan "$@"
    before=$(peak)
    [ -z "$share" ] || set -- "$@" --memory $((before * share / 100 + (32 << 20)))
    gives 0 '' plan "$@" --chunk auto
    ok "$*: expected slices $of" grep -q "^chunk: .* slices of [0-9]* $of, " "$dir/out"
    freed=$(sed -n 's/^chunk: .* slices of .*, \([0-9.]*\) MiB -> \([0-9.]*\) MiB at the peak,.*/\1 \2/p' "$dir/out" |
        awk '{ n += ($1 - $2) * 1048576 / 2 } END { printf "%.0f", n }')
    ok "$*: $before to $(peak) bytes, expected $freed less" [ $((before - $(peak))) -ge "$freed" ]
}
sized mlp 's/\b20\b/8192/g; s/\b40\b/2048/g; s/\b6\b/64/g'
sized attention_queries 's/\b17\b/1024/g; s/\b51\b/3072/g; s/\b20\b/64/g; s/\b5\b/16/g; s/\b6\b/64/g'
sized attention_heads 's/\b17\b/1024/g; s/\b51\b/3072/g; s/\b20\b/64/g; s/\b5\b/16/g; s/\b6\b/2048/g
    s/(.*)%p = (_softmax.%scores), dim=-1(.*)/\1%p0 = \2, dim=1\3\n\1%p = _softmax(%p0, dim=-1\3/'
share=75
chosen rows "$dir/mlp.tn" --passes gradients
share=
chosen 'along axis 1' "$dir/attention_queries.tn" --passes gradients
share=75
chosen rows "$dir/attention_heads.tn" --passes gradients --recompute none
share=
chosen 'rows' demo --batch-size 16 --seq-len 256
ok "whole sequences" grep -q '^chunk: embed_tokens, layers.* loss' "$dir/out"

# Every rank.
echo '{"model_type":"gpt2","n_embd":768,"n_layer":3,"n_head":4,"n_positions":64,"vocab_size":50257}' \
    >"$dir/ranks.json"
set -- "$dir/ranks.json" --batch-size 8 --seq-len 64 --mesh dp=2,tp=2 --machine avx512_bf16 --chunk auto
gives 0 '' plan "$@" --json
first=$(hash)
ok "a rank's graph is sliced: $(loops)" [ "$(loops)" -gt 0 ]
for rank in ${TN_LONG:+1 2} 3; do
    gives 0 '' plan "$@" --rank $rank --json
    ok "rank $rank: the plan of rank 0" [ "$(hash)" = "$first" ]
done

# Where auto takes nothing, no candidate says that another is taken.
echo '{"model_type":"gpt2","n_embd":32,"n_layer":2,"n_head":2,"n_positions":64,"vocab_size":1000}' \
    >"$dir/small.json"
gives 0 'unchunked ' plan "$dir/small.json" --batch-size 8 --seq-len 32 \
    --accumulate 2 --chunk auto --explain
ok "nothing is taken" [ "$(grep -c '^chunk ' "$dir/out")" = 0 ]
ok "nor said to be" [ "$(grep -c 'that is taken' "$dir/out")" = 0 ]

# Those that share a region hold no more together than it does.
gives 0 '' plan demo --batch-size 8 --seq-len 64 --json
gives 0 '' plan demo --batch-size 8 --seq-len 64 --chunk auto --memory $(($(number library_reserve_bytes) + 19000000)) --json
ok "no candidate has more bytes than the step" awk -F '[:,]' '/^ "peak_bytes"/ { peak = $2 }
    /"group":/ { g = $2 } /"bytes_at_peak": [0-9]/ { sum[g] += $2 } END { for (g in sum) if (sum[g] > 60000000) exit 1; exit !peak }' "$dir/out"

# N slices of what holds the peak, also without a model.
gives 0 'chunk: ' plan demo --batch-size 16 --seq-len 256 --chunk 4
ok "4 slices" grep -q '^chunk: .* 4 slices' "$dir/out"
gives 0 '      n=4,' opt tests/chunk/tied.tn --passes chunk --chunk 4
gives 0 'return loss' opt tests/chunk/tied.tn --passes chunk --chunk auto

# Cheap regions, which make no product twice, are auto's alone: a pattern that names the activation means the region
# around it, N another; and where auto finds something better, what was tried is said of them.
sed -e 's/\b20\b/2048/g' -e 's/\b6\b/2048/g' -e 's/\b40\b/8192/g' tests/chunk/mlp.tn >"$dir/mlp.tn"
set -- plan "$dir/mlp.tn" --passes=default --optimizer none --explain
gives 0 '4 slices' "$@" --chunk layers.0.mlp::gelu=4
ok "a pattern takes none that is cheap" not grep -q '^chunk .* no product twice' "$dir/out"
gives 0 'auto alone takes such regions' "$@" --chunk layers.0.mlp::addmm=1 --chunk 4
ok "N takes none that is cheap" not grep -q '^chunk .* no product twice' "$dir/out"
gives 0 '' "$@" --chunk auto
ok "auto takes one" grep -q '^chunk .* no product twice' "$dir/out"
gives 0 'chunk: layers.0.mlp (%a)' "$@" --chunk auto --memory 485MB
ok "why the other is not taken" grep -q '^unchunked .* ms .* no product twice.* not taken: another choice is better' "$dir/out"
totals
