#!/bin/sh
# The measurable rules of the house style: lengths of functions and files, a head comment in each file,
# no promises in comments, rows of op.def against files, no mutable globals. What tools/exceptions.txt
# lists, with its reason, may differ. PARTIAL=1 allows rows without a case file.
# Usage: tools/style.sh [BUILD], BUILD being the folder with the object files (build).
build=${1:-build}
exceptions=tools/exceptions.txt
failed=0

# complain RULE WHAT MESSAGE: fails, but for what is listed.
complain()
{
    awk -v rule="$1" -v what="$2" '$1 == rule && $2 == what { found = 1 } END { exit !found }' \
        "$exceptions" && return
    echo "$3 (rule $1)"
    failed=1
}

awk '/^[^#]/ && NF < 3 { print FILENAME ":" FNR ": a reason is missing"; bad = 1 } END { exit bad }' \
    "$exceptions" || failed=1

sources=$(git ls-files -co --exclude-standard 'src/*.[ch]' 'src/*.cu' 'src/*.cuh' 'tests/*/*.[ch]' 'tests/*/*.cu' \
    'bench/*.[ch]' 'bench/*.cu' 'include/*.h' 'examples/*.[ch]' | while read -r file; do [ -f "$file" ] && echo "$file"; done)

for file in $sources; do
    lines=$(wc -l <"$file")
    [ "$lines" -gt 600 ] && complain file "$file" "$file: $lines lines, at most 600"
    promise=$(grep -nE '\b(TODO|FIXME|XXX|HACK)\b' "$file" | head -1)
    [ -n "$promise" ] && complain promise "$file" "$file:$promise: a promise"
    head -1 "$file" | grep -q '^/\*' || complain head "$file" "$file:1: no head comment"
done

# Functions lie between a "{" and a "}" in column one. "LINES NAME FILE:LINE", shortest first.
functions=$(awk '
/^[A-Za-z_].*\(/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
/^{/ { from = FNR }
/^}/ && from { print FNR - from - 1, name, FILENAME ":" from; from = 0 }' $sources | sort -n)
for long in $(echo "$functions" | awk '$1 > 100 { print $2 "," $1 "," $3 }'); do
    name=${long%%,*}
    complain function "$name" "${long##*,}: $name has more than 100 lines"
done
for where in src/ ''; do
    echo "$functions" | awk -v where="$where" 'index($3, where) == 1 || where == "" { n[++count] = $1 } END {
        median = n[int((count + 1) / 2)]
        most = n[int(count * 0.9 + 0.999)]
        printf "style: %s%d functions, median %d lines, 90th percentile %d, longest %d\n",
            where == "" ? "with tests: " : where ": ", count, median, most, n[count]
        exit median > 15 || most > 45 }' ||
        complain length all "functions: median above 15 or 90th percentile above 45"
done

# Types: one name, one type in all of src.
awk '
/^} [A-Z][A-Za-z0-9]*;/ { name = $2; sub(/;.*/, "", name) }
/^typedef (struct|enum|union) [A-Z][A-Za-z0-9]* \{/ { name = $3 }
name && file[name] != FILENAME {
    if (file[name])
        print name, file[name], FILENAME
    file[name] = FILENAME
}
{ name = "" }' $(echo "$sources" | grep '^src/') >"${TMPDIR:-/tmp}/style.$$"
while read -r name one two; do
    complain type "$name" "$two: the type $name is defined in $one as well"
done <"${TMPDIR:-/tmp}/style.$$"
rm -f "${TMPDIR:-/tmp}/style.$$"

# Rows: every op of op.def has a case file, every op_NAME defined by name is a row. The linker sees to
# rows that are not defined.
rows=$(sed -n 's/^OP( *\([A-Za-z0-9_]*\),.*/\1/p' src/op/op.def)
for op in $rows; do
    [ -n "$PARTIAL" ] || [ -f "tests/op/$op.case" ] ||
        complain case "$op" "src/op/op.def: $op has no tests/op/$op.case"
done
for op in $(cat src/op/*.c | sed -n 's/^const OpRules op_\([A-Za-z0-9_]*\) =.*/\1/p'); do
    echo "$rows" | grep -qx "$op" || complain row "$op" "src/op: op_$op has no row in op.def"
done

# Mutable globals: objects in a section that stays writable after relocation. What nvcc puts beside a kernel
# so that the host can launch it is its own.
of_nvcc='__cudaFatCubinHandle$|__device_stub__'
objects=$(find "$build/src" -name '*.o' 2>/dev/null)
[ -n "$objects" ] || complain objects "$build" "$build/src: no object files; build first"
for object in $objects; do
    for name in $(objdump -t "$object" | awk '
        $3 == "O" && $4 ~ /^\.(data|bss|tdata|tbss)/ && $4 !~ /^\.data\.rel\.ro/ { print $NF }
        $2 == "O" && $3 == "*COM*" { print $NF }' | grep -Ev "$of_nvcc"); do
        name=${name%.[0-9]*}
        complain global "$name" "${object#"$build"/}: $name is a mutable global"
    done
done
exit $failed
