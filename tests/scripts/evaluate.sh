#!/bin/sh
# The evaluation at the end of a run, and eval: how much is evaluated, what is said, that a finished run does not
# repeat it, and that a signal ends it with what it has. tests/programs/test_evaluate.c has what needs no process.
# Usage: tests/scripts/evaluate.sh BUILD
. tools/checks.sh

seq 1 9000 | tr '\n' ' ' >"$dir/text"
set -- train demo --data "$dir/text" --seq-len 16 --threads 1
# evaluated N WHAT: that the last evaluation was of N windows.
evaluated() {
    ok "$2" grep -q "held-out loss .* in $1 of [0-9]* windows" "$dir/err"
}
gives 0 'evaluating 4 of ' "$@" --steps 10 --batch-size 4 --out "$dir/tenth" --metrics "$dir/tenth.jsonl"
evaluated 4 "a tenth of what was trained"
ok "with an estimate" grep -q '^evaluating 4 of [0-9]* windows, about [0-9.e-]* s$' "$dir/err"
gives 0 'evaluating 64 of ' "$@" --steps 10 --batch-size 70 --out "$dir/most"
evaluated 64 "64 at most"
gives 0 'evaluating 5 of ' "$@" --steps 1 --batch-size 2 --out "$dir/five" --eval-windows 5
gives 2 'or all, found "some"' "$@" --steps 1 --batch-size 2 --out "$dir/none" --eval-windows some
gives 2 '--eval-windows does not go with --val-fraction 0' "$@" --steps 1 --batch-size 2 --out "$dir/none" \
    --eval-windows 3 --val-fraction 0

# A finished run that is resumed has its evaluation, in its metrics too; another count is another evaluation.
cp "$dir/tenth.jsonl" "$dir/want"
gives 0 'in 4 of ' train --resume --out "$dir/tenth"
ok "it is not repeated" not grep -q '^evaluating' "$dir/err"
ok "it is what was known" grep -q 'windows (evaluated before)$' "$dir/err"
ok "the metrics are as they were" cmp "$dir/want" "$dir/tenth.jsonl"
gives 0 '(evaluated before)' train --resume --out "$dir/tenth" --metrics "$dir/new.jsonl"
ok "other metrics get it" [ "$(grep -o '"eval_loss": [^,]*' "$dir/new.jsonl")" = "$(grep -o '"eval_loss": [^,]*' "$dir/want")" ]
gives 0 'evaluating 7 of ' train --resume --out "$dir/tenth" --eval-windows 7
gives 0 'evaluating 8 of ' train --resume --out "$dir/tenth" --steps 11 --eval-windows 8
rm "$dir/tenth/.evaluated" && mkfifo "$dir/tenth/.evaluated"
timeout 60 "$tenon" train --resume --out "$dir/tenth" >"$dir/out" 2>"$dir/err"
ok "a pipe in its place is not waited for" [ $? = 0 ]
evaluated 8 "and is no evaluation"

# --max-sec: training leaves a twentieth, and what is over ends the evaluation after a pass.
gives 0 'evaluating' "$@" --max-sec 0.2 --batch-size 2 --out "$dir/short" --eval-windows all
ok "in time, or ended" grep -q 'held-out loss' "$dir/err"
gives 0 'already at step' train --resume --out "$dir/short"
for _ in 1 2 3 4 5 6 7 8; do cat docs/*.md; done >"$dir/much"
gives 0 ', of which --max-sec leaves ' train demo --data "$dir/much" --seq-len 16 --threads 1 --max-sec 0.4 --batch-size 1 \
    --out "$dir/late" --eval-windows all --metrics "$dir/late.jsonl"
ok "the clock ended it, which is said" grep -q 'of [0-9]* windows; --max-sec ended it before [0-9]*$' "$dir/err"
late=$(grep -o 'partial held-out loss.*' "$dir/err")
ok "the metrics have the windows too" grep -q "\"eval_windows\": $(echo "$late" | sed 's/.* in \([0-9]*\) of .*/\1/'), " "$dir/late.jsonl"
gives 0 "$late (evaluated before)" train --resume --out "$dir/late"
gives 0 "$late (evaluated before)" train --resume --out "$dir/late"
gives 0 'evaluating 3 of ' train --resume --out "$dir/late" --eval-windows 3

# Ctrl-C in an evaluation that would take minutes.
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat docs/*.md; done >"$dir/long"
# interrupted COMMAND...: ended by a signal once it evaluates; its exit code.
interrupted() {
    "$tenon" "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    for i in $(seq 600); do
        grep -q '^evaluating' "$dir/err" && break
        sleep 0.1
    done
    sleep 1
    kill -INT $pid
    wait $pid
}
interrupted train demo --data "$dir/long" --seq-len 16 --threads 1 --steps 1 --batch-size 1 --val-fraction 0.9 \
    --out "$dir/ended" --eval-windows all
ok "train: Ctrl-C in the evaluation: exit code 130, found $?" [ $? = 130 ]
ok "it is saved" grep -q "interrupted after step 1; saved in $dir/ended/step-1" "$dir/err"
ok "and what it has is printed" grep -q 'step 1  partial held-out loss .* windows; interrupted before' "$dir/err"
gives 0 'evaluating 3 of' train --resume --out "$dir/ended" --eval-windows 3
interrupted eval "$dir/ended" --data "$dir/long" --batch-size 1 --threads 1
ok "eval: Ctrl-C: exit code 130, found $?" [ $? = 130 ]
ok "eval: what it has" grep -q '^loss [0-9.]*$' "$dir/out"
ok "eval: how much that is of" grep -q '^tenon: interrupted after [0-9]* of [0-9]* windows, whose loss this is$' "$dir/err"
gives 0 ' windows of 16 tokens, ' eval "$dir/ended" --data "$dir/long" --eval-windows 6
ok "eval: how many that is of" grep -q ' in 6 of [0-9]* windows of 16 tokens, ' "$dir/err"
# As one object: whether it is of all, and whether that was asked for.
field() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p" "$dir/out"; }
interrupted eval "$dir/ended" --data "$dir/long" --batch-size 1 --threads 1 --eval-windows 300000 --json
ok "eval --json: Ctrl-C: exit code 130, found $?" [ $? = 130 ]
ok "it was interrupted, found $(cat "$dir/out")" [ "$(field interrupted)" = true ]
ok "windows of those planned: $(cat "$dir/out")" [ "$(field windows)" -lt "$(field windows_planned)" ]
ok "and of all: $(cat "$dir/out")" [ "$(field windows_planned)" -lt "$(field windows_all)" ]
ok "the text says it too" grep -q "^tenon: interrupted after $(field windows) of $(field windows_planned) windows" "$dir/err"
"$tenon" eval "$dir/ended" --data "$dir/text" --eval-windows 6 --json >"$dir/out" 2>"$dir/err"
ok "all that were asked for" [ "$(field windows) $(field windows_planned) $(field interrupted)" = "6 6 false" ]
ok "which are not all, found $(field windows_all)" [ "$(field windows_all)" -gt 6 ]
gives 2 '--eval-windows does not go with --batch' eval "$dir/ended" --batch x --eval-windows 6

totals
