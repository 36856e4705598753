#!/bin/sh
# Where --memory does not suffice: the command line that fits is named, in the unit given, and when it is
# pasted it does fit. Usage: tests/scripts/fit.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny

# refused ARGUMENTS...: exit code 3, and a command line named last; it goes to $command.
refused() {
    gives 3 'does not fit' "$@"
    command=$(tail -1 "$dir/err")
    case $command in
    "  $tenon $1 "*) ok "" true ;;
    *)
        ok "$*: names a command, found $command" false
        command=false
        ;;
    esac
}
# pasted: that command does what it says.
pasted() {
    eval "$command" >"$dir/out" 2>"$dir/err2"
    ok "fits: $command" [ $? = 0 ]
}
says() {
    ok "expected the text: $1" grep -qF -e "$1" "$dir/err"
}
needs() { # bytes of arena and reserve of a plan
    "$tenon" plan "$@" --json | awk '/^ "(peak|library_reserve)_bytes"/ && /: [0-9]/ { sub(/.*: /, ""); n += $0 }
        END { printf "%.0f\n", n }'
}
over() { # over MIB ARGUMENTS: bytes, so many MiB of an arena and the reserve of a plan, which differs by processor
    mib=$1
    shift
    echo $((mib * 1048576 + $("$tenon" plan "$@" --json | sed -n 's/^ "library_reserve_bytes": \([0-9]*\),/\1/p')))
}

# ---- plan ----

own_least() { # in the error of a command that is refused: of its own settings
    sed -n 's/.*the least that would do is \([0-9]*\).*/\1/p' "$dir/err" | head -1
}
least_of() { # and of all settings that were tried
    own=$(own_least)
    other=$(sed -n 's/.*needs least, \([0-9]*\).*/\1/p' "$dir/err" | head -1)
    [ -n "$other" ] && [ "$other" -lt "$own" ] && echo "$other" || echo "$own"
}

set -- demo --batch-size 16 --seq-len 256 --recompute none
all=$(needs "$@")
refused plan "$@" --memory 1024
least=$(least_of)
lowest=$least
ok "the least is at most that of the words" [ "$least" -le "$(needs demo --batch-size 16 --seq-len 256 --recompute full --accumulate 16)" ]
ok "what can be saved: $all to $least" [ $((2 * least)) -lt "$all" ]
for part in ${TN_LONG:+0 1 3 6}; do
    limit=$((least + (all - least) * part / 8))
    refused plan "$@" --memory $limit
    says "this fits, by estimate the fastest of all that do; its planned peak is "
    pasted
    peak=$(sed -n 's/.*its planned peak is \([0-9]*\), with the library.*/\1/p' "$dir/err")
    ok "the peak that it says" grep -q "^ *peak *$peak bytes" "$dir/out"
done
# In the unit given; what was given before is replaced.
refused plan demo --batch-size 16 --seq-len 256 --memory '60 MiB' --recompute=none --accumulate 1
says 'the limit is 60.00MiB; the least that would do is '
says "this fits, by estimate the fastest of all that do; its planned peak is "
says 'MiB, with the library'
ok "an option stands once" not grep -Eq -e '--accumulate.*--accumulate|--recompute.*--recompute' "$dir/err"
ok "quoted for a shell" grep -q -e "--memory '60 MiB'" "$dir/err"
pasted
peak=$(sed -n 's/.*its planned peak is \([0-9.]*MiB\), with the library.*/\1/p' "$dir/err")
ok "the peak that it says, $peak" [ "$(awk '$1 == "peak" { printf "%.2fMiB\n", $2 / 1048576 }' "$dir/out")" = "$peak" ]
# A policy that was asked for stands where microbatches make it fit.
set -- demo --batch-size 8 --seq-len 64 --recompute full
refused plan "$@" --memory $(($(needs "$@") - 1))
says 'this fits, by estimate the fastest of all that do with --recompute full; its planned peak is '
case $command in
*' --recompute full'*' --accumulate '*) ok "" true ;;
*) ok "--recompute full stands: $command" false ;;
esac
pasted
set -- demo --batch-size 16 --seq-len 256 --recompute none
if [ -n "$TN_LONG" ]; then
    refused plan demo --batch-size 16 --seq-len 256 --memory 0.06GB --recompute full
    says 'GB, with the library'
    pasted
fi
# Nothing fits: what needs least, with the memory that it needs.
refused plan "$@" --memory 22MiB --json
cp "$dir/out" "$dir/refused.json"
says 'other plans fits; this one needs least, '
says 'MiB; with --'
says '  the limit is here of the step alone; train counts evaluation'
ok "few plans" [ "$(sed -n 's/.*none of \([0-9]*\) other.*/\1/p' "$dir/err")" -le 14 ]
ok "the same batch" not grep -q -e '--batch-size 1 ' "$dir/err"
pasted
cp "$dir/refused.json" "$dir/out"
ok "JSON: the least with the settings of the command" grep -qx " \"least_feasible_bytes\": $all," "$dir/out"
ok "JSON: what this plan needs" [ "$(awk '/^ "(peak|library_reserve)_bytes"/ { sub(/.*: /, ""); n += $0 } END { print n }' "$dir/out")" = "$all" ]
# With slices the least is the same command's; other settings may need less beside it.
rows=16
[ -z "$TN_LONG" ] || rows=64
set -- $ref --batch-size $rows --seq-len 16 --recompute none
for chunk in ${TN_LONG:+4} lm_head=4; do
    refused plan "$@" --chunk $chunk --memory 1KiB --json
    least=$(sed -n 's/^ "least_feasible_bytes": \([0-9]*\),*$/\1/p' "$dir/out")
    ok "--chunk $chunk: the least is what it needs" [ "$least" = "$(needs "$@" --chunk $chunk)" ]
    pasted
    gives 0 'chunk: ' plan "$@" --chunk $chunk --memory "$least"
    gives 3 "the least that would do is $least" plan "$@" --chunk $chunk --memory $((least - 1))
done
# All ways: where accumulators cost more than they save, where 4 parts of 10 rows need more than 2,
# and where less than what was asked is what fits. Without TN_LONG two of them.
brute() {
    for way in none selective every=2 full; do
        for iterations in 1 2 3 4 5 6 7 8 9 10; do
            needs "$@" --recompute $way --accumulate $iterations
        done
    done 2>/dev/null | awk '$1 && (!least || $1 < least) { least = $1 } END { print least }'
}
while read -r words; do
    [ "$words" ] || continue
    # shellcheck disable=SC2086
    set -- $words
    refused plan "$@" --memory 1024
    least=$(least_of)
    ok "$*: at most the least of all words" [ "$least" -le "$(brute "$@")" ]
    refused plan "$@" --recompute none --memory "$least"
    says "this fits, by estimate the fastest of all that do; its planned peak is "
    pasted
    [ -n "$TN_LONG" ] || continue
    refused plan "$@" --memory $((least - 1))
    ok "$*: less does not fit" not grep -q 'this fits' "$dir/err"
done <<EOF
$ref --batch-size 3 --seq-len 16
${TN_LONG:+$ref --batch-size 10 --seq-len 16}
${TN_LONG:+demo --batch-size 6 --seq-len 32 --dtype bf16 --accumulate 3}
${TN_LONG:+demo --batch-size 7 --seq-len 32 --dtype bf16}
${TN_LONG:+demo --batch-size 7 --seq-len 64 --optimizer sgd --dtype bf16}
EOF
set -- demo --batch-size 16 --seq-len 256 --recompute none
# Only with fewer rows: said so.
one=$(needs demo --batch-size 1 --seq-len 256 --recompute full)
if [ "$one" -lt "$lowest" ]; then
    refused plan "$@" --memory $one
    says 'only a smaller batch fits, which trains otherwise'
    pasted
fi
# A batch that powers of two do not divide; options that hold for what is suggested too.
refused plan demo --batch-size 7 --seq-len 256 --memory 40MiB --dtype bf16 --optimizer sgd --recompute none
pasted
# Numbers of microbatches where that word allows them: the fastest that fits, and one where one does.
set -- demo --batch-size 16 --seq-len 128 --recompute none
all=$(needs "$@")
gives 0 '' plan "$@" --accumulate auto --json
ok "auto without a limit: one part" [ "$(needs "$@" --accumulate auto)" = "$all" ]
gives 0 '' plan "$@" --accumulate auto --memory $((all - 1)) --json
seconds=$(sed -n 's/^ "est_step_sec": \([^,]*\),*$/\1/p' "$dir/out")
for parts in 2 4 8 16; do
    [ "$(needs "$@" --accumulate $parts)" -lt "$all" ] || continue
    "$tenon" plan "$@" --accumulate $parts --memory $((all - 1)) --json >"$dir/out" 2>"$dir/err" || continue
    ok "auto is as fast as $parts parts" awk -v auto="$seconds" -v now="$(sed -n 's/^ "est_step_sec": \([^,]*\),*$/\1/p' "$dir/out")" \
        'BEGIN { exit !(auto <= now) }'
done
# The lower bound and the reserve are enough wherever the whole plan needs no more.
for model in gpt2-tiny:3:17 mistral-tiny:7:19; do
    set -- "tests/ref/${model%%:*}" --batch-size "$(echo $model | cut -d: -f2)" --seq-len "${model##*:}" --threads 1 --recompute full
    gives 3 '' plan "$@" --memory 1 --json
    set -- "$@" --memory "$(sed -n 's/^ "least_feasible_bytes": \([0-9]*\),*$/\1/p' "$dir/out")" --json
    gives 0 '"waste_bytes": 0' plan "$@"
done
# The least that would do is so with what is chosen to be computed again, whatever the limit.
cat >"$dir/three.json" <<'END'
{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
 "num_attention_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
END
set -- "$dir/three.json" --batch-size 4 --seq-len 32 --threads 1 --accumulate auto
gives 3 '' plan "$@" --memory 1 --json
least=$(sed -n 's/^ "least_feasible_bytes": \([0-9]*\),*$/\1/p' "$dir/out")
gives 3 "the least that would do is $least" plan "$@" --memory $((least - 1))
gives 0 '' plan "$@" --memory "$least"
set -- demo --batch-size 16 --seq-len 128 --recompute none
if [ -n "$TN_LONG" ]; then
    refused plan "$@" --accumulate auto --memory 22MiB
    ok "auto becomes a number" not grep -q -e '--accumulate auto' "$dir/err"
    pasted
fi
gives 2 '--accumulate auto is for models, not for graphs' plan tests/ir/flat.tn --passes=default --accumulate auto
gives 2 'opt: --accumulate auto is for train, grad and plan' opt tests/ir/flat.tn --passes=cse --accumulate auto
# What this machine has free.
gives 0 'tenon: note: --memory auto: ' plan "$@" --memory auto
ok "auto: what is free is the limit and the margin" awk '/--memory auto/ { exit !($5 + $15 == $8 && $15 > 0) }' "$dir/err"
gives 3 'the limit is ' plan gpt2 --batch-size 100000 --seq-len 1024 --memory auto --passes=forward
says 'MiB; the least that would do is '
gives 2 'expected bytes such as 3GiB, from 1 to 4194304TiB, or auto' plan "$@" --memory Auto
gives 2 'plan: --memory: expected bytes such as 3GiB, from 1 to 4194304TiB, or auto, found "9223372036854775807"' \
    plan "$@" --memory 9223372036854775807

# Graphs: what their passes do.
"$tenon" plan tests/ir/flat.tn --memory 10 >"$dir/out" 2>"$dir/err"
ok "a graph as it is: nothing can be set" [ "$(tail -c 300 "$dir/err" | grep -c "$tenon")" = 0 ]

# ---- train, grad, eval, run ----

cp -r $ref "$dir/it's gpt2"
seq 1 3000 | tr '\n' ' ' >"$dir/text"
set -- train demo --data "$dir/text" --steps 2 --batch-size 8 --seq-len 128 --threads 2 --val-fraction 0.2 \
    --eval-windows all --recompute none
limit=$(over 30 demo --batch-size 8 --seq-len 128 --threads 2 --recompute none)
refused "$@" --out "$dir/o1" --memory "$limit"
says 'this fits'
ok "nothing is made where it does not fit" [ ! -e "$dir/o1" ]
pasted
ok "it was trained and evaluated" grep -q 'held-out loss' "$dir/err2"
if [ -n "$TN_LONG" ]; then
    refused "$@" --out "$dir/o2" --memory $((limit / 1000000))MB --sample-tokens 3 --eval-every 1
    says 'MB, with evaluation and sampling'
    pasted
    refused "$@" --out "$dir/o3" --memory 23MiB
    says 'MiB, with evaluation'
    says 'this one needs least'
    pasted
fi
# The same numbers but for the last bits: the mean over all labels of the step.
"$tenon" "$@" --out "$dir/o4" >"$dir/out" 2>"$dir/err2"
ok "the loss is that of the step in one piece" [ "$(sed -n 's/.*step 2 *held-out loss \(.....\).*/\1/p' "$dir/err2")" = \
    "$("$tenon" eval "$dir/o1" --data "$dir/text" --val-fraction 0.2 2>/dev/null | sed 's/loss \(.....\).*/\1/')" ]
# The number that was found is the run's, also where the same command goes on.
set -- "$@" --out "$dir/o6" --save-every 1 --memory "$limit" --accumulate auto
gives 0 '' "$@"
found=$(sed -n 's/.*"accumulate": *\([0-9]*\).*/\1/p' "$dir/o6/latest/state.json")
ok "microbatches: $found" [ "${found:-0}" -gt 1 ]
cp "$dir/o6/latest/model.safetensors" "$dir/want"
rm -r "$dir/o6/step-2"
ln -sfn step-1 "$dir/o6/latest"
gives 0 '' "$@" --resume
ok "goes on with the same bits" cmp "$dir/want" "$dir/o6/latest/model.safetensors"
ok "with as many" grep -q "\"accumulate\": *$found" "$dir/o6/latest/state.json"
rm -r "$dir/o6/step-2"
ln -sfn step-1 "$dir/o6/latest"
gives 0 '' "$@" --resume --memory auto
ok "what is free changes no bits" cmp "$dir/want" "$dir/o6/latest/model.safetensors"
zeros=$(awk 'BEGIN { while (i++ < 1024) printf "\\0\\0\\0\\0\\0\\0\\0\\0" }')
tensors "$dir/b" '{"input_ids":{"dtype":"I64","shape":[32,32],"data_offsets":[0,8192]},"labels":{"dtype":"I64","shape":[32,32],"data_offsets":[8192,16384]}}' "$zeros$zeros"
limit=$(over 4 $ref --batch-size 32 --seq-len 32)
refused grad "$dir/it's gpt2" --batch "$dir/b" --out "$dir/g" --recompute none --memory "$limit"
pasted
ok "gradients were written" [ -s "$dir/g" ]
refused train "$dir/it's gpt2" --batch "$dir/b" --steps 1 --out "$dir/o5" --recompute none --memory "$limit"
pasted
ok "a step was made" grep -q '^step 1 loss' "$dir/out"
refused eval demo --data "$dir/text" --seq-len 256 --batch-size 20 --memory "$(over 14 demo --batch-size 20 --seq-len 256 --passes=forward)"
ok "evaluation: fewer rows at once" grep -q -e '--batch-size [1-9]' "$dir/err"
pasted
says 'this fits'
gives 0 '' grad "$dir/it's gpt2" --batch "$dir/b" --out "$dir/g2" --recompute none --memory "$limit" --accumulate auto
gives 0 '' eval demo --data "$dir/text" --seq-len 64 --batch-size 2 --memory auto
gives 0 '' generate demo --prompt a --tokens 3 --memory auto
gives 3 'the limit is 0.01MiB; the least that would do is' generate demo --prompt a --tokens 3 --memory 0.01MiB

totals
