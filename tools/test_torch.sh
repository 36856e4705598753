#!/bin/sh
# Graphs traced by the PyTorch at hand (PYTHON, python3 by default): imported, run, compared with
# PyTorch's own results; and models of transformers, where it has that, whose gradients by the pass
# grad are compared with autograd's. Usage: tools/test_torch.sh BUILD [CASE... | CLASS...]
build=$1
shift
python=${PYTHON:-python3}
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "test-torch: $python cannot import torch (apt-get install python3-torch, or PYTHON=...)" >&2
    exit 1
fi
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
"$python" -c 'import torch; print("PyTorch", torch.__version__)'
failed=0

# The loss of a case that was traced before dispatch, by grad.
differentiate()
{
    read -r loss params <"$1/forward.loss"
    "$build/tenon" import fx "$1/forward.txt" --inputs "$1/forward.safetensors" --alias pass \
        --loss "$loss" --params "$params" -o "$1/forward.tn" >"$1/summary" &&
        "$build/tenon" opt "$1/forward.tn" --passes=grad -o "$1/joint.tn" &&
        "$build/tenon" run "$1/joint.tn" --inputs "$1/forward.safetensors" \
            --outputs "$1/got-gradients.safetensors"
}

cases()
{
    "$python" tools/torch_cases.py make "$dir" "$@" >"$dir/cases" || return 1
    while read -r name; do
        at=$dir/$name
        "$build/tenon" import fx "$at/graph.txt" --inputs "$at/inputs.safetensors" \
            -o "$at/graph.tn" >"$at/summary" || { failed=1; continue; }
        "$build/tenon" run "$at/graph.tn" --inputs "$at/inputs.safetensors" \
            --outputs "$at/got.safetensors" || failed=1
        [ ! -f "$at/forward.loss" ] || differentiate "$at" || failed=1
    done <"$dir/cases"
    "$python" tools/torch_cases.py check "$dir" "$@"
}

# What is refused is printed by check.
models()
{
    "$python" tools/torch_models.py make "$dir" "$@" >"$dir/models" || return 1
    while read -r name; do
        at=$dir/$name
        # shellcheck disable=SC2046
        "$build/tenon" import fx "$at/graph.txt" --inputs "$at/inputs.safetensors" -o "$at/graph.tn" \
            $(cat "$at/options") >"$at/summary" 2>"$at/refused" || continue
        "$build/tenon" opt "$at/graph.tn" --passes=grad -o "$at/grad.tn" 2>"$at/refused" || continue
        "$build/tenon" run "$at/grad.tn" --inputs "$at/inputs.safetensors" \
            --outputs "$at/got.safetensors" 2>"$at/refused" || failed=1
    done <"$dir/models"
    "$python" tools/torch_models.py check "$dir" "$@"
}

# A class has capitals in its name, a case has none.
case ${1:-} in
*[A-Z]*) models "$@" || failed=1 ;;
?*) cases "$@" || failed=1 ;;
*)
    cases || failed=1
    if "$python" -c 'import transformers' 2>/dev/null; then
        models || failed=1
    else
        echo "models of transformers: left out, $python cannot import it"
    fi
    ;;
esac
[ $failed = 0 ] && echo "test-torch: all passed"
exit $failed
