#!/bin/sh
# Sees to it that oneDNN 3.x is at hand: writes to DIR/where the folder that has include and lib of oneDNN 3.2
# (PyPI's wheels onednn-devel-cpu-gomp and onednn-cpu-gomp, downloaded once), or nothing where the system's is 3.x.
# Usage: tools/onednn3.sh DIR
wheels="onednn-devel-cpu-gomp==2023.2.0 onednn-cpu-gomp==2023.2.0"
mkdir -p "$1" && dir=$(cd "$1" && pwd) || exit 1
major=$(echo '#include <oneapi/dnnl/dnnl_version.h>
DNNL_VERSION_MAJOR' | ${CC:-cc} -E -P -xc - 2>/dev/null | tail -1)
if [ "$major" = 3 ]; then
    : >"$dir/where"
    exit 0
fi
to=$dir/root
if ! [ -e "$to/lib/libdnnl.so" ]; then
    rm -rf "$dir/wheels"
    # shellcheck disable=SC2086 # two words
    python3 -m pip download -q --disable-pip-version-check --no-deps -d "$dir/wheels" $wheels || exit 1
    for wheel in "$dir"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$dir/wheels" || exit 1
    done
    mkdir -p "$to/lib" && rm -rf "$to/include" && mv "$dir"/wheels/*.data/data/include "$to" &&
        mv "$dir"/wheels/*.data/data/lib/libdnnl.so.3 "$to/lib" &&
        ln -sf libdnnl.so.3 "$to/lib/libdnnl.so" && rm -rf "$dir/wheels" || exit 1
fi
echo "$to" >"$dir/where"
