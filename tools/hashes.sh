#!/bin/sh
# Names the first result in which two runs differ, by what TENON_HASHES had them write (docs/formats.md). With
# MICROBATCH the first is of one rank that accumulates and the second of the rank that has this microbatch alone;
# then the loop's results are compared, and behind it those that are not made of parts or terms of the whole. With
# MICROBATCH/RANKS the second is of a rank that accumulates too, whose microbatches are this one and each RANKS
# further: then the loop's results alone are compared, as others add up fewer microbatches, or in another order.
# Exits 1 where they differ, 2 where nothing could be compared.
# Usage: tools/hashes.sh FILE FILE [MICROBATCH[/RANKS]]
awk -F '\t' -v asked="$3" '
BEGIN {
    part = asked
    ranks = sub(/\/.*/, "", part) ? substr(asked, length(part) + 2) : 0
}
# Where the first run has what the second has in an iteration.
function there_of(iteration, outer) {
    outer = iteration
    if (!ranks)
        return iteration == "-" ? part : part "." iteration
    sub(/\..*/, "", outer)
    return outer * ranks + part substr(iteration, length(outer) + 1)
}
NR == FNR {
    there[$1, $2, $4, $5, $7] = $3
    operands[$1, $2, $4, $5, $7] = $9
    next
}
part != "" && $5 == "wait_tensor" {
    next
}
{
    in_loop = part != "" && ($1, there_of($2), $4, $5, $7) in there
    from = in_loop ? there_of($2) : $2
    left += part != "" && $2 != "-" && !in_loop
    if (!in_loop && (ranks || left))
        next
    unlike = !(($1, from, $4, $5, $7) in there)
    if (!in_loop) {
        unlike = unlike || operands[$1, from, $4, $5, $7] != $9
        n = split($8, operand, " ")
        for (i = 1; i <= n; i++)
            unlike = unlike || ($1, $2, operand[i]) in parts
    }
    if (unlike || in_loop)
        parts[$1, $2, $4]
    if (unlike)
        next
    count++
    hash = there[$1, from, $4, $5, $7]
    if (hash != $3) {
        printf "run %s, iteration %s: %s %s of %s, scope \"%s\": %s and %s\n", $1, from, $4, $7, $5, $6, hash, $3
        differs = 1
        exit
    }
}
END {
    if (differs)
        exit 1
    printf "%d results are the same\n", count
    if (left && !ranks)
        print "the second file is of a rank that accumulates: expected MICROBATCH/RANKS"
    exit count && (ranks || !left) ? 0 : 2
}' "$1" "$2"
