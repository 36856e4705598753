#!/bin/sh
# Every prototype of include/tenon.h has a docstring: a comment that ends on the line before it, prose
# first, then the fields
#
#     in:        arguments: dtype[shape], units, layout, ownership
#     out:       result
#     error:     when it fails, and with which code
#     cost:      time and memory
#     from:      the name by which users of other systems know it
#     see also:  other names
#
# each at the start of a line (after the comment's star) and not empty. One docstring serves the
# prototypes that follow it without a blank line. Writes docs/api.md from docs/api.md.in, the examples and them; from the table of
# options the members of tn_options into the header and python/tenon/_options.py, and the list of options into docs/tenon.1, between a
# line "begin WHAT: made from src/base/options.def" and the next "end".
# Usage: tools/docs.sh [check]; check: writes nothing, and fails where one of them is out of date.
header=${HEADER:-include/tenon.h}
page=${PAGE:-docs/api.md}
man=${MAN:-docs/tenon.1}
python=${PYTHON_OPTIONS:-python/tenon/_options.py}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
new=$dir/page
failed=0

# keep NEW FILE: makes it the file; with check: that it is.
check=$1
keep() {
    if cmp -s "$1" "$2"; then
        return
    elif [ "$check" = check ]; then
        echo "$2: not what it is made from says; run tools/docs.sh" >&2
        failed=1
    else
        cp "$1" "$2"
    fi
}
# between FILE: the file with what tools/options.c prints between its marks.
between() {
    awk -v program="$dir/options " '
        on && /^ *(\/\*|\.\\"|#) end( \*\/)?$/ { on = 0 }
        !on
        / begin [a-zA-Z-]*: made from src\/base\/options.def/ {
            match($0, /begin [a-zA-Z-]*/)
            command = program substr($0, RSTART + 6, RLENGTH - 6)
            while ((command | getline line) > 0)
                print line
            bad = close(command) || on
            on = ++found
        }
        END { exit bad || on || !found }' "$1"
}
${CC:-cc} -Wall -Wextra -Werror tools/options.c -o "$dir/options" || exit 1
for file in "$header" "$man" "$python"; do
    between "$file" >"$dir/${file##*/}" || { echo "$file: marks of tools/options.c" >&2; exit 1; }
    keep "$dir/${file##*/}" "$file"
done

awk -v header="$header" '
BEGIN {
    nfield = split("in out error cost from see_also", field, " ")
}
function strip(s)
{
    sub(/^[ \t]*(\/\*)?[ \t]*\*?[ \t]?/, "", s)
    sub(/[ \t]*\*\/[ \t]*$/, "", s)
    return s
}
function lack(what)
{
    printf "%s:%d: %s: %s\n", header, at, name, what > "/dev/stderr"
    failed++
}
function spelled(key)
{
    sub(/_/, " ", key)
    return key
}
# Cuts the docstring into prose and fields.
function cut(    i, n, line, now)
{
    split("", text)
    now = "prose"
    n = split(doc, lines, "\n")
    for (i = 1; i <= n; i++) {
        line = lines[i]
        if (match(line, /^(in|out|error|cost|from|see also):/)) {
            now = substr(line, 1, RLENGTH - 1)
            sub(/ /, "_", now)
            line = substr(line, RLENGTH + 1)
        }
        gsub(/^[ \t]+|[ \t]+$/, "", line)
        text[now] = text[now] (text[now] == "" || line == "" ? "" : " ") line
    }
}
function prototype(    i)
{
    count++
    name = proto
    sub(/\(.*/, "", name)
    sub(/^.*[ *]/, "", name)
    if (doc == "") {
        lack("no docstring on the line before")
        return
    }
    cut()
    if (text["prose"] == "")
        lack("the docstring says nothing before its fields")
    for (i = 1; i <= nfield; i++)
        if (text[field[i]] == "")
            lack("the docstring has no \"" spelled(field[i]) ":\"")
    gsub(/[ \t]+/, " ", proto)
    if (shown != doc) {
        printf "\n### %s\n\n%s\n\n", name, text["prose"]
        for (i = 1; i <= nfield; i++)
            printf "- **%s**: %s\n", spelled(field[i]), text[field[i]]
        print ""
    }
    printf "    %s\n", proto
    shown = doc
}
# A type as it stands in the header, under its name where a docstring is before it.
function type(line)
{
    if (!body && doc != "") {
        name = line
        sub(/^typedef (struct|enum) /, "", name)
        sub(/ .*/, "", name)
        cut()
        printf "\n### %s\n\n%s\n\n", name, text["prose"]
    } else if (!body && line !~ /;$/)
        print ""
    print "    " line
}
/ (begin|end) .*made from|^ *\/\* end \*\/$/ { next }
/^\/\* ---- .* ---- \*\/$/ {
    gsub(/^\/\* ---- | ---- \*\/$/, "")
    print "\n## " toupper(substr($0, 1, 1)) substr($0, 2)
    next
}
macro { macro = /\\$/; next }
/^[ \t]*#/ && !comment { macro = /\\$/; doc = ""; next }
/^[ \t]*\/\*/ && !comment && proto == "" && !body { comment = 1; doc = "" }
comment {
    doc = doc (doc == "" ? "" : "\n") strip($0)
    if (/\*\//)
        comment = 0
    next
}
/^[ \t]*$/ { doc = ""; next }
/^extern "C"/ || /^}[ \t]*$/ { doc = ""; next }
body || (proto == "" && /^(typedef|struct|enum|union)/ && !/\(/) {
    type($0)
    body += gsub(/\{/, "{") - gsub(/\}/, "}")
    if (!body)
        doc = ""
    next
}
{
    line = $0
    sub(/\/\*.*\*\//, "", line)
    if (proto == "")
        at = FNR
    proto = proto (proto == "" ? "" : " ") line
    if (proto ~ /;[ \t]*$/) {
        if (proto ~ /\(/ && proto !~ /^typedef/)
            prototype()
        proto = ""
    }
}
END {
    if (!count) {
        print header ": no prototypes found" > "/dev/stderr"
        failed = 1
    }
    exit failed != 0
}' "$dir/${header##*/}" >"$dir/reference" || exit 1

# The page: its text with the programs, the options and the reference in their places.
"$dir/options" markdown >"$dir/table" || exit 1
awk -v dir="$dir/" '
    function put(path, before, line, good) {
        while ((good = (getline line < path)) > 0)
            print line == "" ? "" : before line
        close(path)
        if (good < 0) {
            print "docs/api.md.in: cannot read " path > "/dev/stderr"
            exit failed = 1
        }
    }
    /^    @/ { put(substr($0, 6), "    "); next }
    $0 == "@options" { put(dir "table", ""); next }
    $0 == "@reference" { put(dir "reference", ""); next }
    { print }
    END { exit failed }' docs/api.md.in >"$new" || exit 1
keep "$new" "$page"
exit $failed
