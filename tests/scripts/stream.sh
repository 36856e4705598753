#!/bin/sh
# Kernels whose results go past the caches where they are large: the same bits as in parts that are small
# enough to stay in them, with rows that are whole cache lines and others.
# Usage: tests/scripts/stream.sh BUILD
. tools/checks.sh

# graphs ROWS COLUMNS: a graph whose norms see all rows at once, and one where they see them in four parts.
graphs() {
    part=$(($1 / 4)) columns=$2
    inputs="%x: f32[$1, $2], %g: f32[$1, $2], %w: f32[$2], %b: f32[$2]"
    {
        printf 'tenon 1\ngraph whole(%s) {\n' "$inputs"
        norms "" "$1" %x %g
        printf '  return %%y, %%r, %%dx, %%rx\n}\n'
    } >"$dir/whole.tn"
    {
        printf 'tenon 1\ngraph parts(%s) {\n' "$inputs"
        for i in 0 1 2 3; do
            for v in x g; do
                printf '  %%%s%s: f32[%s, %s] = slice(%%%s, start=%s, end=%s)\n' $v $i $part "$2" $v \
                    $((i * part)) $((i * part + part))
            done
            norms $i $part %x$i %g$i
        done
        for v in y r dx rx; do
            printf '  %%%s: f32[%s, %s] = cat(%%%s0, %%%s1, %%%s2, %%%s3)\n' $v "$1" "$2" $v $v $v $v
        done
        printf '  return %%y, %%r, %%dx, %%rx\n}\n'
    } >"$dir/parts.tn"
}

# norms SUFFIX ROWS X G: the norms of X and their gradients for G.
norms() {
    t="f32[$2, $columns]" s="f32[$2, 1]" w="f32[$columns]"
    printf '  %%y%s: %s, %%m%s: %s, %%s%s: %s = native_layer_norm(%s, %%w, %%b, normalized_shape=[%s])\n' \
        "$1" "$t" "$1" "$s" "$1" "$s" "$3" "$columns"
    printf '  %%dx%s: %s, %%dw%s: %s, %%db%s: %s = native_layer_norm_backward(%s, %s, %%m%s, %%s%s, %%w, normalized_shape=[%s])\n' \
        "$1" "$t" "$1" "$w" "$1" "$w" "$4" "$3" "$1" "$1" "$columns"
    printf '  %%r%s: %s, %%q%s: %s = rms_norm(%s, %%w)\n' "$1" "$t" "$1" "$s" "$3"
    printf '  %%rx%s: %s, %%rw%s: %s = rms_norm_backward(%s, %s, %%q%s, %%w)\n' \
        "$1" "$t" "$1" "$w" "$4" "$3" "$1"
}

# chain ROWS COLUMNS: pointwise ops that become one body.
chain() {
    t="f32[$1, $2]"
    cat <<END
tenon 1
graph chain(%x: $t, %g: $t, %b: f32[$2]) {
  %s: $t = add(%x, %b)
  %e: $t = tanh(%s)
  %u: $t = mul(%e, %g)
  %v: $t = add(%u, %x)
  return %v
}
END
}

for columns in 1024 769; do
    chain 11200 $columns >"$dir/chain.tn"
    gives 0 "" opt "$dir/chain.tn" --passes=fuse -o "$dir/fused.tn"
    ok "expected one fused node" [ "$(grep -c ' = fused' "$dir/fused.tn")" = 1 ]
    gives 0 equal check "$dir/chain.tn" "$dir/fused.tn" --threads $((1 + columns % 2))
    graphs 11200 $columns
    gives 0 equal check "$dir/whole.tn" "$dir/parts.tn" --threads $((1 + columns % 2))
done
totals
