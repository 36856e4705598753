#!/bin/sh
# Sees to it that what a target needs is there: does nothing where it is, else installs Debian packages,
# with sudo where not root; on a system without apt it says what is missing and stops.
# A build takes MPI, zlib and zstd where they are there, and needs none.
# Usage: tools/deps.sh build|compress|test|browser|lint|onednn3|demo...

# What is needed, how to see that it is there, and the packages that bring it.
needs() {
    case $1 in
    build)
        echo "command make make
command ${CC:-cc} gcc libc6-dev
header stdio.h libc6-dev
header omp.h gcc
header oneapi/dnnl/dnnl.h libdnnl-dev
header jansson.h libjansson-dev
header pcre2.h libpcre2-dev
header utf8proc.h libutf8proc-dev" ;;
    compress) # what a build takes where it is there
        echo "header zlib.h zlib1g-dev
header zstd.h libzstd-dev" ;;
    test)
        needs build
        needs compress
        echo "command ${CXX:-g++} g++
command pkg-config pkg-config
header coin/Cbc_C_Interface.h coinor-libcbc-dev
mpi mpicc.openmpi libopenmpi-dev
command mpirun.openmpi openmpi-bin
mpi mpicc.mpich libmpich-dev
command mpirun.mpich mpich" ;;
    browser) # of tests: what pages show
        echo "command chromium chromium" ;;
    lint)
        needs test
        echo "command clang clang
openmp clang libomp-dev
command clang-format clang-format
command cppcheck cppcheck
command git git" ;;
    onednn3) # to test with, where the system has 2.x
        needs build
        echo "command python3 python3
pip python3 python3-pip" ;;
    demo)
        needs build
        echo "command bible bible-kjv bible-kjv-text
command xz xz-utils" ;;
    *)
        echo "usage: tools/deps.sh build|compress|test|browser|lint|onednn3|demo..." >&2
        exit 2 ;;
    esac
}

there() {
    case $1 in
    command) command -v "$2" >/dev/null ;;
    header) echo "#include <$2>" |
        ${CC:-cc} -fopenmp -DPCRE2_CODE_UNIT_WIDTH=8 -fsyntax-only -xc - 2>/dev/null ;;
    pip) "$2" -m pip --version >/dev/null 2>&1 ;;
    mpi) echo "#include <mpi.h>" | "$2" -c -xc - -o /dev/null 2>/dev/null ;;
    openmp) echo "#include <omp.h>" | "$2" -fopenmp -fsyntax-only -xc - 2>/dev/null ;;
    esac
}

# Fills names and packages with what is missing.
look() {
    names= packages=
    while read -r how what from; do
        [ -z "$how" ] || there "$how" "$what" || {
            names="$names $what"
            packages="$packages $from"
        }
    done <<END
$list
END
}

list=$(for kind in "${@:-build}"; do needs "$kind" || exit; done) || exit
look
[ -z "$names" ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "tenon: missing:$names; and no apt-get to install them (on Debian 12:$packages)" >&2
    exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then
    root=sudo
    command -v sudo >/dev/null || {
        echo "tenon: missing:$names; not root, and no sudo to install:$packages" >&2
        exit 1
    }
fi
echo "tenon: installing$packages" >&2
install() {
    # shellcheck disable=SC2086
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages \
        </dev/null >/dev/null
}
install 2>/dev/null || { $root apt-get update -qq </dev/null && install; }
look
[ -z "$names" ] && exit 0
echo "tenon: still missing:$names" >&2
exit 1
