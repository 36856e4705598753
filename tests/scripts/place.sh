#!/bin/sh
# tenon place from outside: offsets of CSV files, what is printed of them, capacities that are met, proved
# impossible or not found, its checker, wrong files, full disks, signals. Offsets are looked at by awk, pair
# by pair, too. Usage: tests/scripts/place.sh BUILD
. tools/checks.sh

# printed BOUND RESULT PROVED [FILE]: the one line on standard output.
printed() {
    waste=$(($2 - $1))
    ok "expected bound $1 result $2 proved $3, found: $(cat "${4:-$dir/out}")" \
        grep -Eqx "bound $1 result $2 waste $waste sec [0-9]+\.[0-9]{4} proved $3" "${4:-$dir/out}"
    ok "one line" [ "$(wc -l <"${4:-$dir/out}")" = 1 ]
}
result() { sed 's/.* result \([0-9]*\) .*/\1/' "$dir/out"; }
# placed FILE PEAK: that no pair of rows "id,lower,upper,size,offset" overlaps, and where the highest ends.
placed() {
    ok "$1: no two overlap, the peak is $2" awk -F, -v peak="$2" 'NR > 1 {
            n++; from[n] = $2; to[n] = $3; low[n] = $5; high[n] = $5 + $4
            if ($5 !~ /^[0-9]+$/) bad = 1
            if (high[n] > most) most = high[n]
            for (i = 1; i < n; i++)
                if (from[i] < to[n] && from[n] < to[i] && low[i] < high[n] && low[n] < high[i]) bad = 1
        } END { exit bad || most != peak }' "$1"
}

# ---- the least peak, and what is printed ----

# Its least peak is above its bound.
printf 'id,lower,upper,size\n' >"$dir/gap.csv"
n=0
for row in 4,6,1 3,6,1 2,4,2 5,7,2 0,3,2 3,5,1 6,7,2; do
    n=$((n + 1))
    echo "buffer $n,$row" >>"$dir/gap.csv"
done
gives 0 '' place "$dir/gap.csv"
printed 4 5 yes
ok "nothing else is said" [ ! -s "$dir/err" ]
gives 0 '' place "$dir/gap.csv" --capacity 5 # which is good enough: nothing lower is looked for
printed 4 5 no
gives 0 '' place "$dir/gap.csv" --output "$dir/placed.csv"
placed "$dir/placed.csv" 5
ok "rows as they were" sh -c "cut -d, -f1-4 '$dir/placed.csv' | cmp - '$dir/gap.csv'"
gives 3 "$dir/gap.csv: does not fit: needs 5 bytes, which is proved; the capacity is 4" \
    place "$dir/gap.csv" --capacity 4 -o "$dir/none.csv"
printed 4 5 yes
ok "it says that nothing is written" grep -qx '  --output is not written' "$dir/err"
ok "nothing is" [ -z "$(ls "$dir"/none* 2>/dev/null)" ]
gives 3 'needs 5 bytes, which is proved; the capacity is 1' place "$dir/gap.csv" --capacity 1
gives 0 '' place "$dir/gap.csv" --capacity 0.005kB
gives 0 '' place "$dir/gap.csv" --capacity 1KiB --effort 0
gives 0 '' place "$dir/gap.csv" --capacity 5000000000GB
"$tenon" place - <"$dir/gap.csv" -o - >"$dir/out" 2>"$dir/err"
ok "standard input and output" cmp "$dir/out" "$dir/placed.csv"
printed 4 5 yes "$dir/err"
cat "$dir/gap.csv" | "$tenon" place - --capacity 4 >"$dir/out" 2>"$dir/err"
ok "a pipe" grep -q '^tenon: standard input: does not fit' "$dir/err"

# Columns in another order, and one that is not read; onto the file itself, whose old offsets do not count.
printf '\357\273\277name,size,"upper",id,lower,offset\r\n"x, ""y""",7,2,"b,\n""0""",-2,\r\n\r\n,8,3,a,1,99\r\n' >"$dir/own.csv"
gives 0 "$dir/own.csv:1:1: not read, only copied: \"name\"" place "$dir/own.csv" -o "$dir/own.csv"
printed 15 15 yes
printf 'name,size,"upper",id,lower,offset\n"x, ""y""",7,2,"b,\n""0""",-2,8\n,8,3,a,1,0\n' >"$dir/want1"
printf 'name,size,"upper",id,lower,offset\n"x, ""y""",7,2,"b,\n""0""",-2,0\n,8,3,a,1,7\n' >"$dir/want2"
ok "all but offsets is kept" sh -c "cmp -s '$dir/own.csv' '$dir/want1' || cmp '$dir/own.csv' '$dir/want2'"
printf 'id,lower,upper,size\n' >"$dir/empty.csv"
gives 0 '' place "$dir/empty.csv" -o "$dir/placed.csv"
printed 0 0 yes
ok "no rows" [ "$(cat "$dir/placed.csv")" = id,lower,upper,size,offset ]

# ---- the checker ----

gives 0 '' place "$dir/own.csv" --check
printed 15 15 yes
printf 'id,lower,upper,size,offset\na,0,4,8,0\nb,4,9,8,0\nc,3,5,8,7\nd,0,9,0,7\n' >"$dir/wrong.csv"
gives 1 "$dir/wrong.csv:4:9: \"c\" at 7 to 15 overlaps \"a\" of line 2 at 0 to 8, both alive from 3 to 4" \
    place "$dir/wrong.csv" --check
ok "nothing on standard output" [ ! -s "$dir/out" ]
ok "the peak" grep -qx '  the peak is 15 bytes, the bound 16' "$dir/err"
sed 's/c,3,5,8,7/c,3,5,8,9/' "$dir/wrong.csv" >"$dir/loose.csv"
gives 0 '' place "$dir/loose.csv" --check
printed 16 17 no
gives 3 "$dir/loose.csv: does not fit: the peak is 17 bytes, the capacity is 16" place "$dir/loose.csv" --check --capacity 16
printed 16 17 no
gives 1 "$dir/gap.csv:1:1: expected a column offset, found none in" place "$dir/gap.csv" --check
sed 's/8,7$/8,/' "$dir/wrong.csv" >"$dir/some.csv"
gives 1 "$dir/some.csv:4:9: offset: expected an integer" place "$dir/some.csv" --check
gives 2 'place: --output is not for --check' place "$dir/wrong.csv" --check -o "$dir/x"
gives 2 'place: --effort is not for --check' place "$dir/wrong.csv" --check --effort 1

# ---- wrong usage, wrong files ----

gives 2 'expected 1 argument, found 0' place
gives 2 'expected 1 argument, found 2' place a b
gives 2 'the nearest is "--capacity"' place a --capasity 3
gives 2 '--capacity: expected bytes such as 3GiB, at least 1, found "lots"' place a --capacity lots
gives 2 '--capacity: expected bytes such as 3GiB, at least 1, found "0"' place "$dir/gap.csv" --capacity 0
gives 2 '--effort: expected an integer from 0 to 1000000, found "-1"' place a --effort -1
gives 1 "$dir/none.csv: cannot open" place "$dir/none.csv"
gives 1 "$dir: cannot read: Is a directory" place "$dir"
gives 1 'standard input:1:1: expected a header' place - </dev/null
wrong() { # LINE:COLUMN TEXT ROWS
    printf 'id,lower,upper,size\n%b' "$3" >"$dir/bad.csv"
    gives 1 "$dir/bad.csv:$1: $2" place "$dir/bad.csv" -o "$dir/bad.out"
}
wrong 3:3 'lower: expected an integer from -2^62 to 2^62, found "x"' 'a,0,1,2\nb,x,1,2\n'
wrong 2:7 'size: expected an integer from 0 to 2^62, found "-2"' 'a,0,1,-2\n'
wrong 2:7 'size: expected an integer from 0 to 2^62, found "4611686018427387905"' 'a,0,1,4611686018427387905\n'
wrong 2:5 'upper: expected at least lower, 3, found 1' 'a,3,1,2\n'
wrong 4:1 'expected 4 fields, as in the header, found 3' 'a,0,1,2\n\nb,1,2\n'
wrong 3:1 'expected each id once, found "a" as in line 2' 'a,0,1,2\na,3,4,2\n'
wrong 2:1 'expected a quote that closes this one, found the end of the file' '"a,0,1,2\n'
wrong 3:7 'size: expected at most 2^62 in all rows together, found more' 'a,0,1,4611686018427387904\nb,2,3,1\n'
ok "nothing was written" [ ! -e "$dir/bad.out" ]

# ---- larger ones ----

# rows COUNT SPAN LIFE: buffers by a generator of its own.
rows() {
    awk -v n="$1" -v span="$2" -v life="$3" 'function draw(below) {
            seed = (seed * 16807) % 2147483647
            return int(seed / 2147483647 * below)
        } BEGIN {
            seed = 11
            print "id,lower,upper,size"
            for (i = 0; i < n; i++) { s = draw(span); print "b" i "," s "," s + 1 + draw(life) "," 1 + draw(1000) }
        }'
}
rows 150 40 30 >"$dir/medium.csv"
last=1000000000
for effort in 0 1 2; do
    gives 0 '' place "$dir/medium.csv" --effort $effort -o "$dir/medium$effort.csv"
    ok "effort $effort is no worse than less: $(result), $last" [ "$(result)" -le "$last" ]
    last=$(result)
    placed "$dir/medium$effort.csv" "$last"
    gives 0 '' place "$dir/medium$effort.csv" --check --capacity "$last"
done
gives 0 '' place "$dir/medium2.csv" --effort 2 -o "$dir/again.csv"
ok "the same offsets again" cmp "$dir/again.csv" "$dir/medium2.csv"
rows 200000 200000 20 >"$dir/large.csv"
ok "200,000 rows" timeout 60 "$tenon" place "$dir/large.csv" --effort 0 -o "$dir/large.out" >"$dir/out"
gives 0 "$(cut -d' ' -f1-6 "$dir/out")" place "$dir/large.out" --check

for name in A B C D E F; do
    file=../shared/fixtures/placement/$name.1048576.csv
    if [ ! -f "$file" ]; then
        echo "note: place.sh: $file is not there, not tested"
        continue
    fi
    gives 0 '' place "$file" --capacity 1MiB -o "$dir/$name.csv"
    placed "$dir/$name.csv" "$(result)"
    gives 0 '' place "$dir/$name.csv" --check --capacity 1048576
    gives 3 '' place "$file" --capacity $(($(sed 's/bound \([0-9]*\) .*/\1/' "$dir/out") - 1)) --effort 0
    ok "below the bound none fits" grep -q 'proved yes$' "$dir/out"
done
if [ -f "$file" ]; then
    gives 3 'as far as was searched, which proves nothing' place "$file" --capacity 1MiB --effort 0
    ok "which is said" grep -q 'proved no$' "$dir/out"
fi

# ---- disks and signals ----

gives 1 '/dev/full: cannot write: No space left' place "$dir/large.csv" --effort 0 -o /dev/full
(ulimit -f 2 && exec "$tenon" place "$dir/large.csv" --effort 0 -o "$dir/cut.csv" >"$dir/out" 2>"$dir/err")
ok "beyond the largest file" grep -q "^tenon: $dir/cut.csv: cannot write: File too large" "$dir/err"
ok "no result is printed" [ ! -s "$dir/out" ]
ok "nothing is left aside" [ -z "$(ls "$dir"/cut* 2>/dev/null)" ]
mkfifo "$dir/pipe"
for signal in INT TERM HUP; do
    "$tenon" place "$dir/pipe" -o "$dir/cut.csv" >"$dir/out" 2>"$dir/err" &
    pid=$!
    exec 3>"$dir/pipe" # opens when the file is being read
    cat "$dir/gap.csv" >&3
    kill -$signal $pid
    wait $pid
    got=$?
    exec 3>&-
    ok "$signal: exit code 130, found $got" [ $got = 130 ]
    ok "$signal: what was done" grep -qx 'tenon: interrupted; nothing was written' "$dir/err"
done
rows 1500 100 40 >"$dir/hard.csv"
"$tenon" place "$dir/hard.csv" --effort 1000000 -o "$dir/cut.csv" >"$dir/out" 2>"$dir/err" &
pid=$!
sleep 1
kill -INT $pid 2>/dev/null
wait $pid
got=$?
if [ $got = 0 ]; then
    echo "note: place.sh: the search ended within a second: it was not interrupted"
    rm "$dir/cut.csv"
else
    ok "a search: exit code 130, found $got" [ $got = 130 ]
    ok "a search: what was done" grep -qx 'tenon: interrupted; nothing was written' "$dir/err"
fi
ok "nothing was written" [ -z "$(ls "$dir"/cut* 2>/dev/null)" ]

totals
