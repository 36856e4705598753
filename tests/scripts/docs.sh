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

# ---- output that the guides show ----

# shown COMMAND: the lines below it in $page, up to the next command or the end of the block.
shown() {
    awk -v command="    \$ $1" 'on && (/^    \$ / || !/^    /) { exit }
        on { print substr($0, 5) } index($0, command) == 1 { on = 1 }' "$page"
}
# masked: without numbers, and without what is aligned by them; without the processor, its times, kernels and scratch.
masked() {
    sed -E 's/^( *)(estimate|of it|ways) .*/\1\2/; s/onednn_[a-z]+/onednn/g; s/ work @[0-9]+ [0-9]+//' |
        sed -E 's/[0-9]+(\.[0-9]+)?/N/g; s/ +/ /g; s/^ //'
}
# prints TEXT COMMAND...: that $page shows what the command prints below "$ TEXT".
prints() {
    text=$1
    shift
    shown "$text" | masked >"$dir/shown"
    (cd "$dir" && "$@") | masked >"$dir/printed"
    ok "$page: nothing below: $text" [ -s "$dir/shown" ]
    ok "$page: other lines than now: $text" diff "$dir/shown" "$dir/printed"
}
page=docs/memory.md
prints 'tenon plan gpt2 ' "$tenon" plan gpt2 --batch-size 4 --seq-len 64
# What is saved does not depend on the machine.
saved=$("$tenon" plan gpt2 --batch-size 4 --seq-len 64 | grep '^saved for the backward')
ok "$page: expected \"$saved\"" grep -qF "    $saved" $page

page=docs/tutorial.md
shown 'cat >mlp.tn' | sed '/^END$/,$d' >"$dir/mlp.tn"
ok "$page: opt" "$tenon" opt "$dir/mlp.tn" --passes=grad,cse,dce -o "$dir/grad.tn"
changes() { "$tenon" opt mlp.tn --passes=grad,cse,dce --diff | head -4; }
prints 'tenon opt mlp.tn --passes=grad,cse,dce --diff' changes
calls() { "$tenon" plan grad.tn --steps | tail -6; }
prints 'tenon plan grad.tn --steps' calls
compare() { "$tenon" opt mlp.tn --passes=grad | "$tenon" check - grad.tn; }
prints 'tenon opt mlp.tn --passes=grad |' compare
shown 'cat >buffers.csv' | sed '/^END$/,$d' >"$dir/buffers.csv"
prints 'tenon place buffers.csv' "$tenon" place buffers.csv --capacity 1MiB --output placed.csv

# ---- links ----

# anchors FILE: of its headings, as GitHub names them; of equal ones the second ends in -1.
anchors() {
    sed -n 's/^##* //p' "$1" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-' | awk '{ print $0 (seen[$0] ? "-" seen[$0] : ""); seen[$0]++ }'
}
nlink=0
for page in README.md docs/*.md tests/README.md; do
    # shellcheck disable=SC2013 # no link has a space
    for link in $(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//'); do
        case $link in http*) continue ;; esac
        nlink=$((nlink + 1))
        file=${link%%#*}
        file=${file:+$(dirname "$page")/$file}
        ok "$page: no file of $link" [ -e "${file:-$page}" ]
        case $link in
        *'#'*)
            anchors "${file:-$page}" >"$dir/anchors"
            ok "$page: no heading of $link" grep -qxF -e "${link#*#}" "$dir/anchors"
            ;;
        esac
    done
done
ok "links were found" [ $nlink -gt 50 ]

# ---- each test is named, alone or by a pattern ----

tr -cs 'a-z0-9_.*' '\n' <tests/README.md | sort -u >"$dir/words"
# named NAME: whether tests/README.md has it, or a pattern that it matches.
named() {
    while read -r word; do
        # shellcheck disable=SC2254 # a pattern
        case $1 in $word) return 0 ;; esac
    done <"$dir/names"
    return 1
}
grep -E '^(test_|[a-z0-9_]*\.sh$)' "$dir/words" >"$dir/names"
for file in tests/programs/test_*.c tests/scripts/*.sh tests/test_*.c tests/*.sh; do
    [ -e "$file" ] || continue
    name=${file##*/}
    ok "tests/README.md: no $name" named "${name%.c}"
done

# ---- lengths that readers were promised, and folders ----

ok "README.md: at most 200 lines" [ "$(wc -l <README.md)" -le 200 ]
ok "docs/architecture.md: at most 2500 words" [ "$(wc -w <docs/architecture.md)" -le 2500 ]
for folder in src/*/; do
    ok "docs/architecture.md: no row of $folder" grep -q "^| \`${folder%/}\` |" docs/architecture.md
done

totals
