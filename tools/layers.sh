#!/bin/sh
# Fails where an #include runs against the layers of docs/architecture.md.
# Usage: tools/layers.sh [SRC], SRC being the folder of the layers (src).
src=${1:-src}
awk '
BEGIN {
    may["base"] = "base"
    may["ir"] = "base ir"
    may["op"] = "base ir op"
    may["product"] = "base ir op product"
    may["attention"] = "base ir op product attention"
    may["cuda"] = "base ir op cuda"
    may["machine"] = "base ir op product machine"
    may["cut"] = "base ir op machine cut"
    may["flow"] = "base ir op machine flow"
    may["pass"] = "base ir op machine flow cut pass"
    may["spmd"] = "base ir op machine flow cut pass pick spmd"
    may["chunk"] = "base ir op machine flow cut pass chunk"
    may["place"] = "base place"
    may["pick"] = "base pick"
    may["plan"] = "base ir op product machine flow cut pass chunk place plan"
    may["decide"] = "base ir op product machine flow cut pass chunk place plan decide"
    may["page"] = "base ir op machine flow cut pass chunk plan decide page"
    may["comm"] = "base comm"
    may["exec"] = "base ir op product cuda machine flow cut pass chunk plan decide page comm exec"
    may["jinja"] = "base jinja"
    may["io"] = "base ir op jinja io"
    may["model"] = "base ir op io model"
    may["fx"] = "base ir op fx"
    may["run"] = "base ir op product machine flow cut pass spmd chunk place plan decide page comm exec io fx model run public"
    may["api"] = "base ir op product machine flow cut pass spmd chunk place pick plan decide page comm exec io fx model run api public"
    may["train"] = "public train"
    may["cli"] = "public train cli"
}
function bad(text)
{
    printf "%s:%d: %s\n", FILENAME, FNR, text
    failed++
}
/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    n = split(FILENAME, path, "/")
    own = path[n - 1]
    match($0, /[<"][^>"]*[>"]/)
    name = substr($0, RSTART + 1, RLENGTH - 2)
    if (name ~ /(^|\/)tenon\.h$/)
        layer = "public"
    else if ($0 ~ /include[ \t]*</ || name ~ /^\.\.\/base\/options\.def$/) # a table for all of them
        next
    else if (name ~ /^\.\.\//) {
        split(name, part, "/")
        layer = part[2]
    } else
        layer = name ~ /\// ? name : own
    if (!(own in may))
        bad(own " is no layer of docs/architecture.md")
    else if (index(" " may[own] " ", " " layer " ") == 0)
        bad(own " may include " may[own] "; found \"" name "\"")
}
END {
    if (failed)
        exit 1
}' $(find "$src" -mindepth 2 -maxdepth 2 \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) | sort)
