#!/bin/sh
# That the documents say what the program does: what is made from options.def and tenon.h is up to date; each long option of each command is in docs/tenon.1, each
# command too; and what README.md shows of the program's output has the lines that it prints, whatever the
# numbers in them, which depend on the machine. Runs in the root of the project. Usage: tests/scripts/docs.sh BUILD
. tools/checks.sh

# ---- what is made from others ----

ok "tools/docs.sh check" tools/docs.sh check

# ---- the man page ----

sed 's/\\-/-/g; s/\\f.//g' docs/tenon.1 >"$dir/man"
for command in $("$tenon" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    ok "docs/tenon.1: no command $command" grep -qE "^\.(BI?R?|B) \"?$command( |\"|\$)" "$dir/man"
    for option in $("$tenon" "$command" --help | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p'); do
        ok "docs/tenon.1: no $option (of $command)" grep -qE -e "$option([^a-z-]|\$)" "$dir/man"
    done
done
ok "options were found" [ $passed -gt 150 ]

# ---- README.md ----

# shown COMMAND: the lines below it, up to the next command or the end of the block.
shown() {
    awk -v command="    \$ $1" 'on && (/^    \$ / || !/^    /) { exit }
        on { print substr($0, 5) } index($0, command) == 1 { on = 1 }' README.md
}
# masked: without numbers, and without what is aligned by them; without the processor and its times.
masked() {
    sed -E 's/^( *)(estimate|of it) .*/\1\2/' | sed -E 's/[0-9]+(\.[0-9]+)?/N/g; s/ +/ /g; s/^ //'
}
# prints TEXT COMMAND...: that README.md shows what the command prints below "$ TEXT".
prints() {
    text=$1
    shift
    shown "$text" | masked >"$dir/shown"
    (cd "$dir" && "$@") | masked >"$dir/printed"
    ok "README.md: nothing below: $text" [ -s "$dir/shown" ]
    ok "README.md: other lines than now: $text" diff "$dir/shown" "$dir/printed"
}
shown 'cat mlp.tn' >"$dir/mlp.tn"
prints 'tenon plan gpt2 ' "$tenon" plan gpt2 --batch-size 4 --seq-len 64
ok "README.md: opt" "$tenon" opt "$dir/mlp.tn" --passes=grad,cse,dce -o "$dir/grad.tn"
calls() { "$tenon" plan grad.tn --steps | tail -6; }
prints 'tenon plan grad.tn --steps' calls
compare() { "$tenon" opt mlp.tn --passes=grad | "$tenon" check - grad.tn; }
prints 'tenon opt mlp.tn --passes=grad |' compare
printf 'id,lower,upper,size\na,0,4,8\nb,3,9,8\n' >"$dir/buffers.csv"
prints 'tenon place buffers.csv' "$tenon" place buffers.csv --capacity 1MiB --output placed.csv

# What is saved does not depend on the machine.
saved=$("$tenon" plan gpt2 --batch-size 4 --seq-len 64 | grep '^saved for the backward')
ok "README.md: expected \"$saved\"" grep -qF "    $saved" README.md

totals
