#!/bin/sh
# Runs the test programs of a build folder and the scripts of tests, in order; each prints what fails,
# then its totals, which are added up. Usage: tools/test.sh BUILD [NAME...]; a name is of BUILD/tests or
# tests/NAME.sh; without names all of them.
build=$1
shift
[ $# -gt 0 ] || set -- $(cd "$build/tests" && ls -d test_* | grep -v '\.') $(cd tests && ls -- *.sh)
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads of busy machines do not spin
passed=0
failed=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for name in "$@"; do
    start=$(date +%s)
    case $name in
    *.sh) run="tests/$name $build" ;;
    *) run=$build/tests/$name ;;
    esac
    if $run >"$log" 2>&1; then code=0; else code=$?; fi
    last=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -1)
    if [ $code = 0 ] && [ -n "$last" ]; then
        grep '^note: ' "$log"
    else
        tail -60 "$log"
        [ -n "$last" ] || echo "$name: no totals, exit code $code"
    fi
    set -- ${last:-0 passed, 1 failed}
    printf '%-20s %6d passed %4d failed %4d s\n' "$name" "$1" "$3" $(($(date +%s) - start))
    passed=$((passed + $1))
    failed=$((failed + $3 + (code != 0 && $3 == 0)))
done
echo "$build: $passed passed, $failed failed"
[ $failed = 0 ]
