#!/bin/sh
# What deciding takes on steps that repeat nothing: forwards of blocks with widths, ops and heads drawn at random, with
# scopes and without, as steps of about 12,000, 35,000 and 100,000 nodes. For each the CPU seconds of planning with all
# saved, and within limits at a half and at an eighth of the range from all computed again to none, and what is added
# there. Exits with 1 where a limit is not kept, where a larger one gives a slower step, or where deciding more than
# triples the seconds of the largest step. BLOCKS="N...": of other numbers of blocks. Usage: bench/large.sh [TENON]
set -e
tenon=${1:-build/tenon}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_MACHINE=none
bad=0

# write BLOCKS SCOPED: the forward of so many blocks.
write() {
    awk -v blocks="$1" -v scoped="$2" '
        function draw(k) {
            state = (state * 1103515245 + 12345) % 2147483648
            return int(state / 65536) % k
        }
        function add(text) { node[++count] = "  " text scope }
        function param(name, type) { params = params ", %" name ": f32[" type "] param \"" name "\"" }
        function mlp(i,   width, last, k) {
            width = 8 * (8 + draw(500))
            param("u" i, "256, " width)
            param("d" i, width ", 256")
            add("%v" i " = mm(%x" i ", %u" i ")")
            last = "v" i
            for (k = draw(4); k >= 0; k--) {
                add("%a" i "_" k " = " op[1 + draw(6)] "(%" last ")")
                last = "a" i "_" k
            }
            if (draw(2)) {
                param("g" i, "256, " width)
                add("%w" i " = mm(%x" i ", %g" i ")")
                add("%m" i " = mul(%" last ", %w" i ")")
                last = "m" i
            }
            add("%y" i " = mm(%" last ", %d" i ")")
        }
        function attention(i,   heads, size, width, k) {
            heads = 1 + draw(8)
            size = 8 * (4 + draw(13))
            width = heads * size
            for (k = 1; k <= 3; k++) {
                param(part[k] i, "256, " width)
                add("%" part[k] "p" i " = mm(%x" i ", %" part[k] i ")")
                add("%" part[k] "h" i " = view(%" part[k] "p" i ", size=[1, 1024, " heads ", " size "])")
            }
            add("%o" i ", %s" i " = flash_attention(%qh" i ", %kh" i ", %vh" i ", causal=true)")
            add("%of" i " = view(%o" i ", size=[1024, " width "])")
            param("p" i, width ", 256")
            add("%y" i " = mm(%of" i ", %p" i ")")
        }
        BEGIN {
            state = 1
            split("gelu silu tanh sin relu sigmoid", op, " ")
            split("q k v", part, " ")
            scope = "  forward"
            add("%h0 = tanh(%x)")
            for (i = 0; i < blocks; i++) {
                scope = scoped ? "  @\"layers." i "\" forward" : "  forward"
                param("n" i, 256)
                add("%x" i ", %r" i " = rms_norm(%h" i ", %n" i ")")
                if (draw(2))
                    mlp(i)
                else
                    attention(i)
                add("%h" (i + 1) " = add(%h" i ", %y" i ")")
            }
            print "tenon 1\ngraph large(%x: f32[1024, 256] batch" params ") {"
            for (i = 1; i <= count; i++)
                print node[i]
            print "  %l = sum(%h" blocks ")  loss\n  return loss %l\n}"
        }'
}

# plan ARGUMENTS...: CPU seconds, nodes, seconds of a step, bytes that it needs.
plan() {
    sh -c '"$@" >"$0" && times' "$dir/plan" "$tenon" plan "$dir/step.tn" --passes=default --machine avx512_bf16 \
        --threads 2 --json "$@" | awk 'NR == 2 {
            for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] }
            printf "%.2f ", sum }'
    awk -F '[:,]' '/^ "nodes"/ { n = $2 + 0 } /^ "peak_bytes"/ { need += $2 } /^ "library_reserve_bytes"/ { need += $2 }
        /^ "est_step_sec"/ { sec = $2 + 0 } END { printf "%d %.9g %.0f\n", n, sec, need }' "$dir/plan"
}

for blocks in ${BLOCKS:-330 1000 2860}; do
    for scoped in 1 0; do
        write $blocks $scoped >"$dir/step.tn"
        all=$(plan)
        # parameters, state and gradients are about a fourth of what is needed with all saved
        for part in 2 8; do
            memory=$(echo "$all" | awk -v part=$part '{ printf "%.0f", $4 * (0.45 + 0.55 / part) }')
            echo "$blocks $scoped $part $memory $all $(plan --memory "$memory")"
        done
    done
done | awk '{
    times = $9 / $5
    slow = $6 > 90000 && times > 3
    late = $3 == 8 && $11 < last
    last = $11
    wrong = $12 > $4 || late || slow
    printf "%s%6d nodes, scopes %s, limit %8.1f MiB: %6.2f s, with all saved %6.2f s (x %.2f); added %.2f %%\n",
        wrong ? "BAD: " : "", $6, $2 ? "yes" : "no ", $4 / 2 ^ 20, $9, $5, times, 100 * ($11 / $7 - 1)
    bad += wrong }
    END { exit bad > 0 }' || bad=1
exit $bad
