#!/bin/sh
# tools/layers.sh on a small tree: what each kind of file may include, and what not. Usage: tests/scripts/layers.sh BUILD
. tools/checks.sh

# includes FILE TEXT: a tree in which only that file includes something.
includes() {
    rm -rf "$dir/src"
    mkdir -p "$dir/src/op" "$dir/src/exec" "$dir/src/base"
    printf '#include %s\n' "$2" >"$dir/src/$1"
    tools/layers.sh "$dir/src" >"$dir/out" 2>"$dir/err"
}
for kind in c h cu cuh def; do
    includes "op/x.$kind" '"../exec/exec.h"'
    ok "op/x.$kind may not include exec" [ $? != 0 ]
    ok "op/x.$kind: where and what" grep -q "op/x.$kind:1: op may include base ir op; found \"../exec/exec.h\"" "$dir/out"
    includes "op/x.$kind" '"../base/base.h"'
    ok "op/x.$kind may include base" [ $? = 0 ]
    includes "exec/x.$kind" '"../op/cuda.cuh"'
    ok "exec/x.$kind may include op" [ $? = 0 ]
    includes "op/x.$kind" '<cuda_runtime.h>'
    ok "op/x.$kind may include what is not ours" [ $? = 0 ]
done

totals
