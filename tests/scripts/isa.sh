#!/bin/sh
# TN_ISA: what is in use is the least of what the processor has and what it allows, by our dispatch and oneDNN's; a
# wrong one is an error; products against ref at each level that this processor has, and with TN_LONG=1 attention and
# products with a bias too. Usage: tests/scripts/isa.sh BUILD
. tools/checks.sh
levels='base avx2 avx512 bf16 amx'
top=$("$tenon" --version | sed -n 's/^isa //p')
ops='mm bmm'
[ -z "$TN_LONG" ] || ops='mm bmm addmm flash_attention flash_attention_backward'
unset TN_ISA

ok "one of the levels is in use" [ -n "$top" ]
ok "which is one of them" grep -qw -e "$top" <<.
$levels
.
# The name of the machine whose processors have that level.
machine() {
    case $1 in
    base) echo x86_64 ;;
    avx2 | avx512) echo "$1" ;;
    bf16 | amx) echo "avx512_$1" ;;
    esac
}

# Against ref.
products() {
    # shellcheck disable=SC2086 # names
    "$build/tests/test_op" $ops >"$dir/err"
}

# Of avx2 the library's gemm asks how many threads there are whenever it runs.
onednn() {
    "$build/tests/test_onednn" >"$dir/err"
}

# Intel's without AMX widen bf16 unless they are asked for AVX512_BF16: then that is a level of its own.
slow=$("$tenon" plan demo --batch-size 1 --seq-len 32 --dtype bf16 2>&1 >"$dir/out" | grep 'no bf16 products')
[ "$top" = bf16 ] || slow=
has=1 # whether the processor has the level
for level in $levels; do
    export TN_ISA="$level"
    [ $has = 0 ] || most=$level
    gives 0 "isa $most" --version
    if [ "$(uname -m)" = x86_64 ]; then
        name=$(machine "$most") # where bf16 does not pay, that of a processor without it, unless it is asked for
        [ -z "$slow" ] || [ "$level" = bf16 ] || [ "$most" != bf16 ] || name=avx512
        gives 0 "\"machine\": \"$name\"" plan demo --batch-size 1 --seq-len 32 --json
    fi
    if [ $has = 1 ] && { [ "$level" != "$top" ] || [ -n "$slow$TN_LONG" ]; }; then
        ok "TN_ISA=$level test_op $ops" products
        [ "$level" != avx2 ] || ok "TN_ISA=$level test_onednn" onednn
    fi
    [ "$level" != "$top" ] || has=0
done
if [ -n "$slow" ]; then
    TN_ISA=bf16 gives 0 '"machine": "avx512_bf16"' plan demo --batch-size 1 --seq-len 32 --dtype bf16 --json
    ok "AVX512_BF16 is in use where it is asked for" not grep -q 'no bf16 products' "$dir/err"
fi

export TN_ISA=avx3
for command in --version 'ops mm' 'plan demo --batch-size 1 --seq-len 32' 'place nothing.csv'; do
    # shellcheck disable=SC2086 # words
    gives 2 'TN_ISA: expected base, avx2, avx512, bf16 or amx, found "avx3"' $command
done
export TN_ISA=
gives 0 "isa $top" --version
totals
