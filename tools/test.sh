#!/bin/sh
# Runs the test programs of a build folder and the scripts of tests, one more at a time than there are cores, as some
# wait for others (or JOBS); each prints what fails, then its totals, which are added up. The end repeats what failed.
# Usage: tools/test.sh BUILD [NAME...]; a name is of BUILD/tests or tests/scripts/NAME.sh; without names all of them.

# What does not hold of a test's output of many lines, and its last lines: show FILE LAST
show() {
    head -n "-$2" "$1" | grep -A 2 -e 'does not hold' -e '^tests/scripts/' | head -40
    tail -n "$2" "$1"
}

# One test: tools/test.sh --one BUILD FOLDER NAME. Its output goes to FOLDER until it ends.
if [ "$1" = --one ]; then
    build=$2 dir=$3 name=$4
    start=$(date +%s)
    case $name in
    *.sh) run="tests/scripts/$name $build" ;;
    *) run=$build/tests/$name ;;
    esac
    # Tests send signals: also where what started them ignores some, as nohup does.
    if env --default-signal $run >"$dir/$name" 2>&1; then code=0; else code=$?; fi
    times >"$dir/$name.times" # the second line says what the test took: user and system, as 1m2.3s 0m4.5s
    cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%.0f", 60 * ($1 + $3) + $2 + $4 }' "$dir/$name.times")
    last=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$dir/$name" | tail -1)
    {
        if [ $code = 0 ] && [ -n "$last" ]; then
            grep '^note: ' "$dir/$name"
        else
            show "$dir/$name" 60
            [ -n "$last" ] || echo "$name: no totals, exit code $code"
        fi
        # shellcheck disable=SC2086 # four words
        set -- ${last:-0 passed, 1 failed}
        printf '%-20s %6d passed %4d failed %4d s %4d s of a core\n' "$name" "$1" "$3" \
            $(($(date +%s) - start)) "$cpu"
        echo "$1 $(($3 + (code != 0 && $3 == 0)))" >"$dir/$name.totals"
    } >"$dir/$name.text"
    [ "$(cut -d' ' -f2 "$dir/$name.totals")" = 0 ] || cp "$dir/$name.text" "$dir/$name.failed"
    exec flock "$dir" cat "$dir/$name.text"
fi

build=$1
shift
# shellcheck disable=SC2046 # a word for each
[ $# -gt 0 ] || set -- $(cd tests/scripts && ls -- *.sh) $(cd "$build/tests" && ls -d test_* | grep -v '\.')
# What takes longest begins first, so that no core waits for it at the end.
first=
for name in ranks.sh cli.sh test_op fit.sh signals.sh nvrtc.sh chunk_choose.sh ranks_kill.sh test_decide test_chunk emulated.sh \
    decide.sh test_cuda test_remat_graph test_scale other_tools.sh tune.sh text.sh chunk.sh test_spmd_ref test_prop mpi.sh; do
    for given; do
        [ "$given" != $name ] || first="$first $name"
    done
done
# shellcheck disable=SC2046,SC2086 # a word for each
set -- $first $(printf '%s\n' "$@" | grep -vxF "$(printf '%s\n' ${first:-none})")
jobs=$(printf '%s' "$JOBS" | tr -dc 0-9) # make's is -j2
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads of busy machines do not spin
export TENON_MACHINE=none # tests are of what is shipped, not of what was tuned here
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
printf '%s\n' "$@" | xargs -P "${jobs:-$(($(nproc) + 1))}" -n 1 "$0" --one "$build" "$dir"
# What failed is shown once more, where a reader of the last lines finds it.
for failed in "$dir"/*.failed; do
    [ ! -e "$failed" ] || { echo && show "$failed" 40; }
done
cat "$dir"/*.totals | awk -v build="$build" -v count=$# '
{ passed += $1; failed += $2 }
END {
    failed += count - NR # what left no totals
    printf "%s: %d passed, %d failed\n", build, passed, failed
    exit failed != 0
}'
