#!/bin/sh
# Runs every command of docs/tutorial.md as a reader would, in an empty folder, with a twentieth of the
# training steps, and 32 windows of its evaluation. Usage: tests/scripts/tutorial.sh BUILD
build=$(cd "${1:-build}" && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
PATH=$build:$PATH
passed=0
failed=0

# Lines "    $ ...", and of a here-document those that follow, to one command a line of a script.
awk '/^    \$ / { sub(/^    \$ /, ""); print; inside = /<<.END.$/; next }
     inside { sub(/^    /, ""); print; inside = $0 != "END" }' docs/tutorial.md |
    sed -E 's/--steps ([0-9]+)0( |$)/--steps $(( (\10 + 19) \/ 20 ))\2/; s/tenon eval run --data .*/& --eval-windows 32/' >"$dir/commands"
n=$(grep -c . "$dir/commands")
cd "$dir" || exit 1
command=
while IFS= read -r line; do
    command="$command$line
"
    case $command in
    *"<<'END'"*) [ "$line" = END ] || continue ;;
    esac
    if eval "$command" >out 2>err; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'docs/tutorial.md: %s' "$command"
        sed 's/^/  /' err | tail -3
    fi
    command=
done <commands
[ "$n" -gt 20 ] || { echo "tests/scripts/tutorial.sh: found only $n lines"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ $failed = 0 ]
