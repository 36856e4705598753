#!/bin/sh
# --memory without --recompute: what the backward computes again is chosen so that the step fits, or the exit code
# is 3; losses and checkpoints have the bits of a run without it, also where it goes on; a given --recompute binds.
# TN_LONG=1: of more steps, and more of each. Usage: tests/scripts/decide.sh BUILD
. tools/checks.sh

total() { # bytes of arena and reserve in the last plan's JSON
    awk '/^ "(peak|library_reserve)_bytes"/ && /: [0-9]/ { sub(/.*: /, ""); n += $0 } END { printf "%.0f\n", n }' "$dir/out"
}
# needs ARGUMENTS...: of a plan, whether it fits or not.
needs() {
    "$tenon" plan "$@" --json >"$dir/out" 2>"$dir/err"
    total
}
recomputed() { # bytes, in the last plan
    sed -n 's/^ "recomputed_bytes": \([0-9]*\),*$/\1/p' "$dir/out"
}
seconds() { # of the last plan, estimated
    sed -n 's/^ "est_step_sec": \([^,]*\),*$/\1/p' "$dir/out"
}
# fits LIMIT ARGUMENTS...: it does, in at most as many bytes.
fits() {
    limit=$1
    shift
    gives 0 '' plan "$@" --memory "$limit" --json
    ok "$*: needs $(total) within $limit" [ "$(total)" -le "$limit" ]
}
# between LEAST MOST PART: so many tenths of the way.
between() { echo $(($1 + ($2 - $1) * $3 / 10)); }

# ---- plan ----

# searched ARGUMENTS...: at several limits, of which a larger one is never slower.
searched() {
    all=$(needs "$@")
    none=$(needs "$@" --recompute none)
    ok "$*: without a limit all is saved" [ "$all" = "$none" ]
    fastest=$(seconds)
    least=$(needs "$@" --memory 1)
    ok "$*: the least, $least, is less than $all" [ "$least" -lt "$all" ]
    gives 3 'does not fit' plan "$@" --memory $((least - 1))
    last=
    for part in 0 5 10; do
        fits "$(between "$least" "$all" $part)" "$@"
        now=$(seconds)
        ok "$*: at $part tenths $now s, with less memory $last s" \
            awk -v now="$now" -v last="${last:-$now}" 'BEGIN { exit !(now > 0 && now <= last) }'
        last=$now
        [ $part != 5 ] || halved=$(total)
    done
    ok "$*: with what all saved needs it is as fast" [ "$last" = "$fastest" ]
}
[ -z "$TN_LONG" ] || searched demo --batch-size 9 --seq-len 128 --accumulate 2 --dtype bf16
[ -z "$TN_LONG" ] || searched demo --batch-size 16 --seq-len 256
[ -z "$TN_LONG" ] || searched gpt2 --batch-size 4 --seq-len 1024
[ -z "$TN_LONG" ] || searched demo --batch-size 16 --seq-len 128 --mesh fsdp=2
# A mixture of blocks that seemed fastest by a short step is not taken where the whole step is slower than with another
# choice that fits.
if [ -n "$TN_LONG" ]; then
    set -- llama3-1b --batch-size 4 --seq-len 512 --dtype bf16 --machine h100
    fits 20603120657 "$@"
    last=$(seconds)
    fits 20690000000 "$@"
    now=$(seconds)
    ok "$*: $now s, with less memory $last s" awk -v now="$now" -v last="$last" 'BEGIN { exit !(now > 0 && now <= last) }'
fi

# A policy that is given binds.
set -- tests/ref/llama-tiny --batch-size 16 --seq-len 64 --dropout 0.1
searched "$@"
half=$(between "$least" "$all" 5)
for policy in none full; do
    given=$(needs "$@" --recompute $policy)
    again=$(recomputed)
    want=3
    [ "$given" -le "$half" ] && want=0
    gives $want '' plan "$@" --recompute $policy --memory "$half" --json
    ok "--recompute $policy binds" [ "$again" -a "$(recomputed)" = "$again" ]
done
gives 3 'the least that would do is ' plan "$@" --recompute none --memory $((all - 1))
gives 0 '' plan "$@" --recompute none --memory "$all"
ok "auto is the default" [ "$(needs "$@" --recompute auto --memory "$half")" = "$halved" ]
# So do rules.
gives 3 'does not fit' plan "$@" --memory "$half" --save '*::*'
fits "$(between "$least" "$all" 9)" "$@" --recompute-rule '*::*norm'

# ---- PyTorch's graphs: searched with passes, else as they are written ----

for graph in gpt2_step ${TN_LONG:+bert_mlm}; do
    file=$dir/$graph.tn
    gives 0 '' import fx tests/fx/$graph/graph.txt --inputs tests/fx/$graph/inputs.safetensors -o "$file"
    all=$(needs "$file" --passes=default)
    least=$(needs "$file" --passes=default --memory 1)
    ok "$graph: the least, $least, is less than $all" [ "$least" -lt "$all" ]
    for part in 0 5 9; do
        fits "$(between "$least" "$all" $part)" "$file" --passes=default
    done
    gives 3 'does not fit' plan "$file" --passes=default --memory $((least - 1))
    gives 3 'does not fit' plan "$file" --memory $(($(needs "$file") - 1))
done

# What the search chose is not told as if the user had asked for it; what has no scope is told without.
least=$(needs "$dir/gpt2_step.tn" --passes=default --memory 1)
gives 0 'chosen for --memory' plan "$dir/gpt2_step.tn" --passes=default --memory $((least + 1)) --explain
ok "--explain: no policy that nobody gave, no empty scope" not grep -q -e must_ -e ' @::' -e ' in , ' "$dir/out"

# A name that means less than one may think.
gives 0 'block 0 alone is computed again' plan tests/ref/llama-tiny --batch-size 1 --seq-len 8 --recompute every=99
gives 0 '' plan tests/ref/llama-tiny --batch-size 1 --seq-len 8 --recompute every=2
ok "every=2 of two blocks" not grep -q alone "$dir/err"

# ---- train ----

# What does not depend on the time, of a metrics file.
curve() {
    sed -n 's/.*\("step": [0-9]*\), \("loss": [^,]*, "grad_norm": [^,]*, "lr": [^,]*\),.*/\1 \2/p
            s/.*\("step": [0-9]*\), \("eval_loss": [^,]*\),.*/\1 \2/p' "$dir/$1.jsonl"
}
# same A B: that two runs gave the same metrics and the same last checkpoint.
same() {
    curve "$1" >"$dir/want"
    curve "$2" >"$dir/got"
    ok "$2: a curve" [ -s "$dir/want" ]
    ok "$2: metrics" cmp "$dir/want" "$dir/got"
    for file in model.safetensors optimizer.safetensors; do
        ok "$2: $file" cmp "$dir/$1/latest/$file" "$dir/$2/latest/$file"
    done
}
# peak NAME: bytes that a run has written at most.
peak() { sed -n 's/.*"measured_peak_bytes": \([0-9]*\).*/\1/p' "$dir/$1.jsonl" | sort -n | tail -1; }

seq 1 3000 | tr '\n' ' ' >"$dir/text"
for model in ${TN_LONG:+demo} tests/ref/gpt2-tiny; do
    seq=128
    [ $model = demo ] || seq=32
    set -- $model --batch-size 8 --seq-len $seq --dropout 0.1
    all=$(needs "$@")
    least=$(needs "$@" --recompute full)
    limit=$(between "$least" "$all" 5)
    set -- train "$@" --data "$dir/text" --steps 4 --save-every 2 --eval-every 2 --eval-windows 2 --threads 2 --lr 1e-3
    [ $model = demo ] || set -- "$@" --tokenizer bytes --token-type byte
    gives 0 '' "$@" --out "$dir/saved" --metrics "$dir/saved.jsonl"
    gives 0 '' "$@" --out "$dir/within" --metrics "$dir/within.jsonl" --memory "$limit"
    same saved within
    ok "$model: within $limit bytes $(peak within), without a limit $(peak saved)" [ "$(peak within)" -lt "$(peak saved)" ]
    cp -r "$dir/within" "$dir/on"
    cp "$dir/within.jsonl" "$dir/on.jsonl"
    rm -r "$dir/on/step-4"
    ln -sfn step-2 "$dir/on/latest"
    ok "$model: the checkpoint has what was decided" grep -q '"decided": "[a-z]' "$dir/on/latest/state.json"
    gives 0 '' train --resume --out "$dir/on" --metrics "$dir/on.jsonl" --memory "$limit"
    same within on
    rm -r "$dir/on/step-4"
    ln -sfn step-2 "$dir/on/latest"
    gives 0 '' train --resume --out "$dir/on" --metrics "$dir/on.jsonl"
    same within on
    rm -r "$dir/on/step-4"
    ln -sfn step-2 "$dir/on/latest"
    gives 0 '' train --resume --out "$dir/on" --metrics "$dir/on.jsonl" --memory 1GiB
    same within on
    rm -r "$dir/on/step-4"
    ln -sfn step-2 "$dir/on/latest"
    tight=$(between "$least" "$all" 3)
    gives 3 '--retune decides anew' train --resume --out "$dir/on" --metrics "$dir/on.jsonl" --memory "$tight"
    gives 0 'the plan is another' train --resume --out "$dir/on" --metrics "$dir/on.jsonl" --memory "$tight" --retune
    ok "$model: --retune with another limit: the machine is the same" not grep -q 'figures of the machine' "$dir/err"
    gives 3 'does not fit' "$@" --out "$dir/none" --memory "$limit" --recompute none
    [ -z "$TN_LONG" ] || gives 3 'does not fit' "$@" --out "$dir/none" --memory 1000
    ok "nothing is made where it does not fit" [ ! -e "$dir/none" ]
    rm -r "$dir/saved" "$dir/within" "$dir/on"
done

# On a device with a memory of its own values go to the host's; ranks keep the gathered parameters that fit. Bits stay.
chosen() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$dir/plan"; }
for how in "--backend emulated" "--mesh fsdp=2 --overlap off" ${TN_LONG:+"--mesh fsdp=4" "--mesh fsdp=2 --backend emulated"}; do
    set -- tests/ref/gpt2-tiny --batch-size 8 --seq-len 32 --dropout 0.1 $how
    all=$(needs "$@")
    less=$(needs "$@" --recompute full)
    limit=$(between "$less" "$all" 6)
    gives 0 '' plan "$@" --memory "$limit" --json
    cp "$dir/out" "$dir/plan"
    case $how in *emulated*) ok "$how: something goes to the host's memory" [ "$(chosen offloaded)" -gt 0 ] ;; esac
    gives 0 '' plan "$@" --memory $((2 * all)) --json
    cp "$dir/out" "$dir/plan"
    case $how in *mesh*) ok "$how: with more memory gathered parameters are kept" [ "$(chosen gathers_kept)" -gt 0 ] ;; esac
    set -- train "$@" --data "$dir/text" --tokenizer bytes --token-type byte --steps 2 --threads 1 --lr 1e-3
    gives 0 '' "$@" --out "$dir/saved" --metrics "$dir/saved.jsonl"
    gives 0 '' "$@" --out "$dir/within" --metrics "$dir/within.jsonl" --memory "$limit"
    same saved within
    gives 0 '' "$@" --out "$dir/kept" --metrics "$dir/kept.jsonl" --memory $((2 * all))
    same saved kept
    ok "$how: planned is measured" [ "$(peak within)" = \
        "$(sed -n 's/.*"planned_peak_bytes": \([0-9]*\).*/\1/p' "$dir/within.jsonl" | head -1)" ]
    for part in ${TN_LONG:+3 5 7 8}; do
        gives 0 '' "$@" --out "$dir/part" --metrics "$dir/part.jsonl" --memory "$(between "$less" "$all" $part)"
        same saved part
        rm -r "$dir/part" "$dir/part.jsonl"
    done
    rm -r "$dir/saved" "$dir/within" "$dir/kept"
done

# On ranks with a slow network what is chosen is no slower than a word by hand within the bytes of that: what is kept is
# gathered once, also by two readers of a parameter, and before a loop of microbatches.
printf 'machine 1\nname slow\nlike avx2\nnetwork 0.1\n' >"$dir/slow"
bucket=block
[ -z "$TN_LONG" ] || bucket=auto # which searches twice
for how in ${TN_LONG:+"--accumulate 1"} "--accumulate 2"; do
    set -- tests/ref/gpt2-tiny --batch-size 8 --seq-len 32 --mesh fsdp=2 --machine "$dir/slow" --bucket $bucket $how
    for hand in ${TN_LONG:+"--reshard never"} "--reshard always --recompute full"; do
        limit=$(needs "$@" $hand)
        by_hand=$(seconds)
        fits "$limit" "$@"
        ok "$how: $(seconds) s within $limit bytes, $by_hand by $hand" \
            awk -v now="$(seconds)" -v hand="$by_hand" 'BEGIN { exit !(now > 0 && now <= hand * (1 + 1e-9)) }'
    done
done

# Where collectives run beside computing, a larger limit is never slower either.
for mesh in ${TN_LONG:+fsdp=2 fsdp=2,tp=2}; do
    set -- tests/ref/gpt2-tiny --batch-size 8 --seq-len 32 --mesh $mesh --machine "$dir/slow"
    [ $mesh = fsdp=2 ] || set -- gpt2 --batch-size 8 --seq-len 256 --mesh $mesh --machine "$dir/slow"
    all=$(needs "$@" --recompute none --reshard never)
    least=$(needs "$@" --memory 1)
    last=
    for part in $(seq 0 40); do
        limit=$((least + (all - least) * part / 40))
        fits "$limit" "$@"
        ok "$mesh: $(seconds) s within $limit bytes, with less memory $last s" \
            awk -v now="$(seconds)" -v last="${last:-$(seconds)}" 'BEGIN { exit !(now > 0 && now <= last * (1 + 1e-9)) }'
        last=$(seconds)
    done
done

# Just above the least none needs less than that, or is slower than with less memory: choices that need less as they
# would run than tries tell are found for smaller limits too.
for how in "llama-tiny --lora r=2" ${TN_LONG:+"gpt2-tiny --lora r=2 --mesh dp=2,tp=2 --overlap off" "llama-tiny --lora r=2 --mesh tp=2"}; do
    # shellcheck disable=SC2086 # words
    set -- tests/ref/$how --batch-size 4 --seq-len 16
    all=$(needs "$@" --recompute none) least=$(needs "$@" --memory 1) last=
    for part in 0 2 4; do
        fits $((least + (all - least) * part / 40)) "$@"
        ok "$how: needs $(total), the least is $least" [ "$(total)" -ge "$least" ]
        ok "$how: $(seconds) s, with less memory $last s" \
            awk -v now="$(seconds)" -v last="${last:-$(seconds)}" 'BEGIN { exit !(now > 0 && now <= last * (1 + 1e-9)) }'
        last=$(seconds)
    done
done

# A curve over 12 limits: none is slower than one with less memory, or faster than the bound by more than what fused
# nodes gain; the last has all saved.
set -- plan tests/ref/gpt2-tiny --batch-size 16 --seq-len 32
gives 2 'expected --recompute auto' "$@" --pareto --recompute full
gives 2 'exclude each other' "$@" --pareto --chunk auto
gives 2 'is not for --pareto' "$@" --pareto --memory 1GiB
gives 2 'expects the passes' plan tests/ir/flat.tn --pareto
gives 1 "$dir/none/curve.html: cannot create" "$@" --pareto --html "$dir/none/curve.html"
gives 2 'freeze "none": matches no parameter' "$@" --pareto --freeze none
# A file that cannot be written is refused before anything is planned.
gives 1 "$dir/none/curve.html: cannot create" "$@" --pareto --freeze none --html "$dir/none/curve.html"
gives 1 '/dev/full: cannot write' "$@" --pareto --freeze none --html /dev/full
gives 0 '' "$@" --pareto --json --html "$dir/curve.html"
ok "--pareto: 12 points within their limits, monotone, from a bound to all saved" awk '
/"budget_bytes"/ { limit = $2 + 0 }
/"need_bytes"/ { n++; need = $2 + 0; bad += need > limit; last = need == limit }
/"peak_bytes"/ { bad += $2 + 0 >= need || $2 + 0 <= 0 }
/"added_sec"/ { bad += n > 1 && $2 + 0 > sec + 1e-12; sec = $2 + 0 }
/"bound_sec"/ { bound = $2 + 0; bad += bound > sec + 1e-12; first = n == 1 ? bound : first; bad += n > 1 && bound > before + 1e-12; before = bound }
/"policy"/ { none = $2 ~ /none/ }
END { exit bad || n != 12 || !none || !last || bound != 0 || first <= 0 }' "$dir/out"
ok "--pareto --html: a picture" grep -q '<svg' "$dir/curve.html"
ok "whose ticks of bytes differ" [ "$(sed -n 's/.*y="328" text-anchor="middle">\([0-9.]*\)<.*/\1/p' "$dir/curve.html" | sort -u | wc -l)" = 6 ]
# On ranks whose collectives hide behind nothing, with sums of microbatches and with early updates too.
for how in "--mesh fsdp=2,tp=2 --overlap off --bucket off" ${TN_LONG:+"--accumulate 2" "--mesh fsdp=2 --overlap off" "--clip 0"}; do
    gives 0 '' "$@" --pareto --json $how
    ok "$how: no point adds less than the bound" awk '
    /"added_sec"/ { sec = $2 + 0 } /"bound_sec"/ { n += $2 + 0 > 0; bad += $2 + 0 > sec + 1e-12 } END { exit bad || !n }' "$dir/out"
done
# Nor where all that a point tries is known from those before it.
for how in dp=2 ${TN_LONG:+dp=4} dp=2,tp=2; do
    gives 0 '' plan tests/ref/gpt2-tiny --batch-size 4 --seq-len 16 --mesh $how --overlap off --pareto --json
    ok "$how: no point of few rows adds less than the bound" awk '
    /"added_sec"/ { sec = $2 + 0 } /"bound_sec"/ { n++; bad += $2 + 0 > sec + 1e-12 } END { exit bad || n != 12 }' "$dir/out"
done
# A step that cannot be planned fails as it does without.
gives 1 'expected sizes of at most' plan tests/ref/gpt2-tiny --batch-size 70000000 --seq-len 32 --pareto

# Where nothing is known of a bound there is none, which is another thing than 0; what is offloaded is told.
for how in "--chunk 2" ${TN_LONG:+"--backend emulated" "--mesh fsdp=2 --overlap on"}; do
    gives 0 '' "$@" --pareto $how
    ok "$how: no bound" awk 'NR > 1 { bad += $5 != "none" } END { exit bad || NR != 13 }' "$dir/out"
    case $how in *emulated*) ok "$how: values in the host's memory" awk 'NR == 2 { exit !($NF == 0 && $(NF - 1) > 0) }' "$dir/out" ;; esac
    [ "$TN_LONG" ] || continue # the text says it too
    gives 0 '' "$@" --pareto --json $how
    ok "$how: null" [ "$(grep -c '"bound_sec": null' "$dir/out")" = 12 ]
done

# Blocks that are equal: what goes to the host's memory makes the step shorter.
set -- llama3-1b --batch-size 8 --seq-len 2048 --dtype bf16 --machine h200 --memory 24GiB --json
gives 0 '' plan "$@"
alone=$(seconds)
gives 0 '' plan "$@" --backend emulated
ok "no slower than without the host's memory: $(seconds), $alone" awk "BEGIN { exit !($(seconds) <= $alone) }"

# Fused kernels that compute cheap values again take less time than those that read them: also where all saved fits.
set -- bench/llama3-1b-4-layers.json --batch-size 8 --seq-len 2048 --dtype bf16 --machine h200 --backend cuda
fits 16777216000 "$@"
last=$(seconds)
fits 83886080000 "$@"
ok "$(seconds) s, with less memory $last s" awk "BEGIN { exit !($(seconds) <= $last) }"

# Within the bytes of `selective` a faster choice is found: the last layer saves what is alive beside all else in any case.
set -- gpt2 --batch-size 4 --seq-len 1024 --machine avx512_bf16 --threads 2
gives 0 '' plan "$@" --recompute selective --json
alone=$(seconds)
fits "$(total)" "$@"
ok "faster than selective in its bytes: $(seconds), $alone" awk "BEGIN { exit !($(seconds) < $alone) }"
totals
