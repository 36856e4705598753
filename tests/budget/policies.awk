# Gives the forward nodes of a .tn text policies: must_save to those that a set names, must_recompute to the others.
# A view is in its base's memory: who saves the one saves the other, and views get no policy.
# Usage: awk -v ratio=0.3 -f policies.awk OPS SETS GRAPH.tn GRAPH.tn, where OPS is what `tenon ops` prints.
FNR == 1 { file++ }
file == 1 { if ($8 == "yes") view[$1] }
file == 2 {
    if ($1 == ratio ":") {
        found = 1
        for (i = 2; i <= NF; i++) wanted[$i]
    }
}
# A node's results, its op, its operands' first.
function parse() {
    split($0, half, / = /)
    op = half[2]
    sub(/\(.*/, "", op)
    from = half[2]
    if (!sub(/^[a-z0-9_]*\(%/, "", from)) from = ""
    sub(/[^A-Za-z0-9_.].*/, "", from)
    n = split(half[1], result, /%/)
    for (i = 2; i <= n; i++) sub(/:.*/, "", result[i])
    name = result[2]
}
file > 2 && /^  %.* = / {
    parse()
    if (file == 3) {
        for (i = 2; i <= n; i++) {
            base[result[i]] = op in view && from in base ? base[from] : op in view ? "" : name
            if (result[i] in wanted) {
                saved[base[result[i]]]
                delete wanted[result[i]]
            }
        }
    } else if (!(op in view)) {
        sub(/  (forward|loss)$/, name in saved ? "& must_save" : "& must_recompute")
    }
}
file == 4
END {
    for (name in wanted) {
        print "policies.awk: the graph has no " name >"/dev/stderr"
        found = 0
    }
    exit !found
}
