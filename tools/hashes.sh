#!/bin/sh
# Names the first result in which two runs differ, by what TENON_HASHES had them write (docs/formats.md). With
# MICROBATCH the first is of one rank that accumulates and the second of the rank that has this microbatch alone:
# then the loop's results are compared, and behind it those that are not made of parts or terms of the whole.
# Exits 1 where they differ, 2 where nothing could be compared.
# Usage: tools/hashes.sh FILE FILE [MICROBATCH]
awk -F '\t' -v part="$3" '
NR == FNR {
    there[$1, $2, $4, $5, $7] = $3
    operands[$1, $2, $4, $5, $7] = $9
    next
}
part != "" && $5 == "wait_tensor" {
    next
}
{
    from = $2
    if (part != "" && ($1, part, $4, $5, $7) in there)
        from = part
    unlike = !(($1, from, $4, $5, $7) in there)
    if (from == $2) {
        unlike = unlike || operands[$1, from, $4, $5, $7] != $9
        n = split($8, operand, " ")
        for (i = 1; i <= n; i++)
            unlike = unlike || ($1, $2, operand[i]) in parts
    }
    if (unlike || from != $2)
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
    exit count ? 0 : 2
}' "$1" "$2"
