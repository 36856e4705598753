#!/bin/sh
# Sees to it that the named Debian packages are installed: installs what is missing, with sudo where not
# root. On another system it says what is missing and stops.
# Usage: tools/deps.sh build|lint
build="gcc make pkg-config libdnnl-dev libjansson-dev"
case $1 in
build) packages=$build ;;
lint) packages="$build clang libomp-dev clang-format cppcheck" ;;
*) echo "usage: tools/deps.sh build|lint" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
    # No Debian: what can be compiled against counts.
    for header in dnnl.h jansson.h omp.h; do
        echo "#include <$header>" | ${CC:-cc} -fopenmp -fsyntax-only -xc - 2>/dev/null ||
            missing="$missing $header"
    done
    [ -z "$missing" ] && exit 0
    echo "tenon: not a Debian system, and these headers are missing:$missing" >&2
    echo "  install oneDNN, Jansson and a C compiler with OpenMP (on Debian 12: $packages)" >&2
    exit 1
fi

for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
[ -z "$missing" ] && exit 0
root=
[ "$(id -u)" = 0 ] || root=sudo
if [ -n "$root" ] && ! command -v sudo >/dev/null; then
    echo "tenon: missing packages, and no sudo to install them:$missing" >&2
    exit 1
fi
echo "tenon: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$root apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 ||
    { $root apt-get update -qq && $root apt-get install -qq -y --no-install-recommends $missing; }
