# Read by the scripts of tests (". tools/checks.sh"): $build, $tenon, a folder $dir of the script's own that is
# removed at its end, and checks that are counted. A script ends with `totals`.
build=$(cd "${1:-build}" && pwd) || exit 1
tenon=$build/tenon
dir=$(mktemp -d) || exit 1
mount= # a file system to be unmounted
trap '[ -z "$mount" ] || umount "$mount"; chmod -R u+rwx "$dir"; rm -rf "$dir"' EXIT
export TENON_MACHINE=none # not what was tuned here
passed=0
failed=0

# ok WHAT [COMMAND...]: that the command (by default what ran last) succeeds.
ok() {
    code=$?
    what=$1
    shift
    if [ $# -gt 0 ]; then "$@" && code=0 || code=$?; fi
    if [ $code = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$0: $what"
        sed 's/^/  /' "$dir/err" 2>/dev/null | head -8
    fi
}

not() {
    ! "$@"
}

# gives CODE TEXT ARGUMENTS...: tenon's exit code, and that standard output or error contains the text. What
# was printed stays in $dir/out and $dir/err.
gives() {
    want=$1 text=$2
    shift 2
    "$tenon" "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    ok "tenon $*: expected exit code $want, found $got" [ $got = "$want" ]
    [ -z "$text" ] || ok "tenon $*: expected the text: $text" grep -qF -e "$text" "$dir/out" "$dir/err"
    if [ "$want" != 0 ] && [ "$want" != 130 ]; then # one line, details begin with two spaces
        ok "tenon $*: expected an error of one line" \
            awk '/^tenon: (warning|note)/ || /^window:/ || (!n && /^  /) { next } !n++ ? !/^tenon: / : !/^  / { bad = 1 } END { exit bad }' \
            "$dir/err"
    fi
}

# said TEXT: on standard error of the last command.
said() {
    ok "it says: $1" grep -qF -e "$1" "$dir/err"
}

# train_gives CODE TEXT ARGUMENTS...: exit code of train, and a text on standard error.
train_gives() {
    want=$1 text=$2
    shift 2
    "$tenon" train "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    ok "train $*: expected exit code $want, found $got" [ $got = "$want" ]
    [ -z "$text" ] || ok "train $*: expected the text: $text" grep -qF -e "$text" "$dir/err"
}

# trains OUT OPTIONS...: a run in the script's folder, or one that goes on there.
trains() {
    to=$1
    shift
    "$tenon" train "$@" --out "$dir/$to" >"$dir/out" 2>"$dir/err"
    ok "$to: train $*" [ $? = 0 ]
}

# tensors FILE HEADER DATA: a safetensors file; the data in printf's escapes.
tensors() {
    n=$(printf %s "$2" | wc -c)
    # shellcheck disable=SC2059
    {
        printf "$(printf '\\%03o\\%03o\\0\\0\\0\\0\\0\\0' $((n % 256)) $((n / 256)))"
        printf %s "$2"
        printf "$3"
    } >"$1"
}

# random MOST SEED: a number below MOST.
random() { awk -v most="$1" -v seed="$2" 'BEGIN { srand(seed); rand(); printf "%.3f", most * rand() }'; }

totals() {
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}
