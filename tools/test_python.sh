#!/bin/sh
# The tests of python/tenon, against the PyTorch of PYTHON where that imports it, else of a virtual environment that this
# makes: TORCH_VENV, by default BUILD/torch-venv, which stays for the next time. PyTorch is installed from PyPI without
# its dependencies (TORCH says which, such as torch==2.9.1) but for what its import needs; tools/torch_stubs.py stands
# in for CUDA's libraries; transformers, peft, and what runs the notebook, are installed too where they can be. A library
# under AddressSanitizer (make test-python-sanitized) has its runtime loaded first; leaks are not looked for, of which
# PyTorch has some.
# Usage: tools/test_python.sh BUILD [MODULE...]
build=$1
shift
python=${PYTHON:-python3}

# install VENV: PyTorch and what its import needs, or says why not
install()
{
    "$python" -m venv "$1" && "$1/bin/pip" install --quiet --no-deps "${TORCH:-torch}" typing_extensions sympy \
        mpmath networkx jinja2 MarkupSafe filelock fsspec numpy setuptools &&
        "$1/bin/python" tools/torch_stubs.py "$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
}

# install_more VENV: what some modules need, and say they lack.
install_more()
{
    "$1/bin/pip" install --quiet transformers nbclient ipykernel &&
        "$1/bin/pip" install --quiet --no-deps trl peft accelerate psutil
}

if ! "$python" -c 'import torch' 2>/dev/null; then
    venv=${TORCH_VENV:-$build/torch-venv}
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        log=$(mktemp) || exit 1
        if ! install "$venv" >"$log" 2>&1 || ! "$venv/bin/python" -c 'import torch' >>"$log" 2>&1; then
            echo "test-python: $python cannot import torch, and it cannot be installed: $(tail -1 "$log")" >&2
            rm -f "$log"
            exit 1
        fi
        install_more "$venv" >"$log" 2>&1 ||
            echo "note: test-python: modules that need more than PyTorch are left out: $(tail -1 "$log")"
        rm -f "$log"
    fi
    python=$venv/bin/python
fi
TENON_LIBRARY=${TENON_LIBRARY:-$(pwd)/$build/libtenon.so}
PYTHONPATH=${TENON_INSTALLED:+tests/python}
PYTHONPATH=${PYTHONPATH:-python:tests/python}
export TENON_LIBRARY PYTHONPATH BUILD="$build" TENON_MACHINE=none PYTHONDONTWRITEBYTECODE=1
[ -z "$TENON_INSTALLED" ] || unset TENON_LIBRARY
"$python" -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null
if [ $# = 0 ]; then
    for file in tests/python/test_*.py; do
        name=${file##*/}
        set -- "$@" "${name%.py}"
    done
fi
asan=$(ldd "$TENON_LIBRARY" 2>/dev/null | sed -n 's/.*libasan[^ ]* => \([^ ]*\).*/\1/p')
if [ -n "$asan" ]; then
    export LD_PRELOAD="$asan:$(${CC:-cc} -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0
fi
"$python" -W ignore tests/python/run.py "$@"
