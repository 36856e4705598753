#!/bin/sh
# What `make` prints: one short line for each file that it makes, the whole command with V=1, nothing with
# -s. With `true` for every tool, so that nothing is compiled. And what a new op compiles.
# Usage: tests/scripts/make.sh BUILD
. tools/checks.sh

# prints FILE ARGUMENTS...: what make prints goes to the file.
prints() {
    file=$1
    shift
    # make's own variables would make it part of the make that runs the tests
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make "$@" BUILD="$dir/b" CC=true CXX=true NVCC=true \
        LD=true AR=true OBJCOPY=true \
        >"$dir/$file" 2>"$dir/err"
    ok "make $*" [ $? = 0 ]
}
# What make itself runs.
mkdir -p "$dir/b/tests"
ln -s /bin/true "$dir/b/tests/fused_texts"
all="all tests $dir/b/fuzz_tn"
# shellcheck disable=SC2086
prints short -j4 $all
ok "a line for each file" [ "$(wc -l <"$dir/short")" -gt "$(find src -name '*.c' | wc -l)" ]
ok "each says what is done and which file is made" not grep -Evx "  (CC|CXX|NVCC|GEN|LD|AR) +$dir/b/[^ ]+" "$dir/short"
for file in src/base/map.o src/page/page.css.inc libtenon.a libtenon.so tenon tests/help.a tests/test_ir fuzz_tn; do
    ok "$file has one line" [ "$(grep -c " $dir/b/$file\$" "$dir/short")" = 1 ]
done
prints long V=1 "$dir/b/src/base/map.o"
ok "V=1: the command" grep -Eq '^true -std=.* -c src/base/map.c -o ' "$dir/long"
prints silent -s "$dir/b/src/base/map.o" "$dir/b/libtenon.so"
ok "-s: nothing" [ ! -s "$dir/silent" ]
# A number of jobs as make is told it, which tools/test.sh has of `make race JOBS=-j2`.
ok "JOBS=-j2" env JOBS=-j2 tools/test.sh "$build" layers.sh >"$dir/out" 2>"$dir/err"

# A new row of op.def compiles op.c and the table of CUDA kernels again, and no other file.
others=
for d in "$build"/src/*/*.d; do
    name=${d#"$build/"} name=${name%.d}
    [ -f "$name" ] || name=$name.c
    case $name in src/op/op.c | src/cuda/kernels_cuda.c) continue ;; esac
    if [ -f "$name" ] && grep -q 'op/op\.def' "$d"; then others="$others $name"; fi
done
ok "op.c is compiled with op.def" grep -q 'op/op\.def' "$build/src/op/op.d"
ok "op.def is included, by way of others, in$(printf '%.300s' "$others")" [ -z "$others" ]

totals
