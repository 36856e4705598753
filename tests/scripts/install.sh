#!/bin/sh
# make install: what lies where, that the examples compile against it with pkg-config and nothing else
# (shared and static) and learn, that the libraries export tenon.h and no more, and make uninstall.
# Usage: tests/scripts/install.sh BUILD
build=${1:-build}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

# ok WHAT COMMAND...: that the command succeeds; what it prints is shown where it does not.
ok() {
    what=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "tests/scripts/install.sh: $what"
        head -20 "$dir/log" | sed 's/^/  /'
    fi
}

ok "make install" make BUILD="$build" PREFIX="$dir/p" install
for file in bin/tenon include/tenon.h lib/libtenon.a lib/libtenon.so lib/pkgconfig/tenon.pc share/man/man1/tenon.1 \
    share/doc/tenon/api.md share/doc/tenon/clusters.md share/doc/tenon/formats.md share/doc/tenon/gpu.md \
    share/doc/tenon/memory.md share/doc/tenon/tutorial.md; do
    ok "$file" [ -s "$dir/p/$file" ]
done
version=$("$dir/p/bin/tenon" --version | sed -n '1s/tenon //p')
ok "the library's version" [ -f "$dir/p/lib/libtenon.so.$version" ]
export PKG_CONFIG_PATH="$dir/p/lib/pkgconfig" LD_LIBRARY_PATH="$dir/p/lib"
ok "pkg-config's version" [ "$(pkg-config --modversion tenon)" = "$version" ]

# The examples, as their head comments say, also as C++ and against the archive.
cc=${CC:-gcc}
for example in graph model ranks; do
    # shellcheck disable=SC2046
    ok "$example.c against the shared library" $cc -Wall -Wextra -Werror tests/example/$example.c \
        $(pkg-config --cflags --libs tenon) -lm -o "$dir/$example"
    # shellcheck disable=SC2046
    ok "$example.c against the archive" $cc tests/example/$example.c -I"$dir/p/include" "$dir/p/lib/libtenon.a" \
        $(pkg-config --static --libs-only-l tenon | sed 's/-ltenon//') -o "$dir/$example.static"
done
# docs/api.md has all programs whole.
page() {
    awk -v title="## $1" '/^## / { on = $0 == title; next } on { print substr($0, 5) }' \
        "$dir/p/share/doc/tenon/api.md" | sed '1d; $d'
}
page "A training program" >"$dir/page.c"
ok "docs/api.md has model.c" cmp "$dir/page.c" tests/example/model.c
page "Training on several ranks" >"$dir/page.c"
ok "docs/api.md has ranks.c" cmp "$dir/page.c" tests/example/ranks.c
page "A graph of one's own" >"$dir/page.c"
ok "docs/api.md has graph.c" cmp "$dir/page.c" tests/example/graph.c
ok "docs/api.md names nothing that is not installed" sh -c '! grep -nE "src/|tests/|tools/|DESIGN|CLI\.md" "$0"' \
    "$dir/p/share/doc/tenon/api.md"
# The archive keeps its own names to itself.
echo 'int emit(void) { return 0; } int fail(void) { return 0; } int place(void) { return 0; }' >"$dir/names.c"
# shellcheck disable=SC2046
ok "a program's own names" $cc tests/example/graph.c "$dir/names.c" -I"$dir/p/include" "$dir/p/lib/libtenon.a" \
    $(pkg-config --static --libs-only-l tenon | sed 's/-ltenon//') -o "$dir/names"

# Back ends: those of the program in the shared library; of the archive what needs no CUDA.
echo '#include <tenon.h>
#include <stdio.h>
int main(void) { puts(tn_version()); }' >"$dir/version.c"
"$dir/p/bin/tenon" --version | grep '^backend' >"$dir/backends"
# Modules of MPI: found by the program and by what the shared library is in.
"$build/tenon" --version | grep '^mpi' >"$dir/want"
"$dir/p/bin/tenon" --version | grep '^mpi' >"$dir/out"
ok "the program's modules of MPI" cmp "$dir/want" "$dir/out"
# shellcheck disable=SC2046
$cc "$dir/version.c" $(pkg-config --cflags --libs tenon) -o "$dir/version" && "$dir/version" | grep '^backend' >"$dir/shared"
ok "the shared library has the program's back ends" cmp "$dir/backends" "$dir/shared"
"$dir/version" | grep '^mpi' >"$dir/out"
ok "the shared library's modules of MPI" cmp "$dir/want" "$dir/out"
# shellcheck disable=SC2046
$cc "$dir/version.c" -I"$dir/p/include" "$dir/p/lib/libtenon.a" \
    $(pkg-config --static --libs-only-l tenon | sed 's/-ltenon//') -o "$dir/version" && "$dir/version" | grep '^backend' >"$dir/archive"
grep -v cuda "$dir/backends" >"$dir/want"
ok "the archive has those that need no CUDA" cmp "$dir/want" "$dir/archive"
ok "the shared library asks nobody for kernels" sh -c '! nm -D --undefined-only "$0" | grep cuda_' "$dir/p/lib/libtenon.so"

for program in graph graph.static; do
    ok "$program runs" sh -c '"$0" >"$1"' "$dir/$program" "$dir/out"
    ok "$program learns" awk '/^step/ { loss[++n] = $4 } END { exit !(n == 4 && loss[4] < 0.02 * loss[1]) }' "$dir/out"
done
ref=tests/ref/gpt2-tiny
ok "model runs" sh -c '"$0" "$1" "$1/batch.safetensors" 3 "$2/saved" >"$2/out" 2>"$2/plan"' "$dir/model" $ref "$dir"
"$dir/p/bin/tenon" train $ref --batch $ref/batch.safetensors --steps 3 --lr 1e-3 --schedule constant --out "$dir/t" >"$dir/want"
ok "model and the program agree" cmp "$dir/out" "$dir/want"
ok "model prints its plan" grep -q 'lower bound' "$dir/plan"
ok "model saves" cmp "$dir/saved/model.safetensors" "$dir/t/step-3/model.safetensors"


# Four ranks are threads where nobody has started any; with an mpirun they are processes. Losses are those of
# one rank but for rounding. Bits are equal where threads are as many.
export OMP_NUM_THREADS=1
close() {
    paste -d' ' "$dir/out" "$1" | awk '{ d = $4 - $8; bad += d * d > 1e-8 } END { exit bad || NR != 3 }'
}
ok "ranks runs" sh -c '"$0" "$1" "$1/batch.safetensors" 3 "$2/of-threads" >"$2/threads"' "$dir/ranks" $ref "$dir"
ok "ranks and model agree" close "$dir/threads"
ok "ranks saves" [ -s "$dir/of-threads/model.safetensors" ]
ok "ranks from the archive" sh -c '"$0" "$1" "$1/batch.safetensors" 3 "$2/of-archive" >"$2/static"' "$dir/ranks.static" $ref "$dir"
ok "the archive gives the same" cmp "$dir/threads" "$dir/static"
ok "one rank's failure is told" sh -c '! "$0" "$1" nothing 3 "$2/none" 2>"$2/err" && grep -q "^ranks: nothing: cannot open" "$2/err"' \
    "$dir/ranks" $ref "$dir"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
for mpi in openmpi mpich; do
    if ! command -v mpirun.$mpi >/dev/null || ! [ -f "$dir/p/lib/tenon/tenon-mpi-$mpi.so" ]; then
        echo "note: mpirun.$mpi or its module is not there: ranks were not run by it"
        continue
    fi
    ok "ranks by mpirun.$mpi" sh -c 'mpirun.$3 -n 4 "$0" "$1" "$1/batch.safetensors" 3 "$2/$3" >"$2/by"' "$dir/ranks" $ref "$dir" $mpi
    ok "mpirun.$mpi and threads agree" cmp "$dir/threads" "$dir/by"
    ok "mpirun.$mpi and threads save the same" cmp "$dir/of-threads/model.safetensors" "$dir/$mpi/model.safetensors"
done

# What the libraries export is what tenon.h declares.
sed -n 's/^TN_API .*\(tn_[a-z0-9_]*\)(.*/\1/p' include/tenon.h | sort >"$dir/declared"
nm -D --defined-only "$dir/p/lib/libtenon.so" | awk '{ print $3 }' | sort >"$dir/exported"
ok "exported and declared" diff "$dir/declared" "$dir/exported"
nm --defined-only --extern-only "$dir/p/lib/libtenon.a" | awk 'NF == 3 { print $3 }' | sort >"$dir/exported"
ok "exported by the archive and declared" diff "$dir/declared" "$dir/exported"

if command -v man >/dev/null; then
    ok "the man page has no warnings" sh -c '[ -z "$(LC_ALL=C.UTF-8 man --warnings -l "$0" 2>&1 >/dev/null)" ]' \
        "$dir/p/share/man/man1/tenon.1"
    for command in $(sed -n 's/^COMMAND( *\([a-z]*\),.*/\1/p' src/cli/command.def); do
        ok "the man page has $command" grep -Eq "^\.B[IR]? \"?$command" docs/tenon.1
    done
else
    echo "note: man is not there: the man page was not formatted"
fi

ok "make uninstall" make BUILD="$build" PREFIX="$dir/p" uninstall
ok "nothing is left" [ -z "$(find "$dir/p" ! -type d)" ]
ok "make install with DESTDIR" make BUILD="$build" DESTDIR="$dir/d" PREFIX=/usr install
ok "the prefix is not the stage's" grep -qx 'prefix=/usr' "$dir/d/usr/lib/pkgconfig/tenon.pc"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
