#!/bin/sh
# Graphs traced by the PyTorch at hand (PYTHON, python3 by default): imported, run, compared with
# PyTorch's own results. Usage: tools/test_torch.sh BUILD [CASE...]
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
"$python" tools/torch_cases.py make "$dir" "$@" >"$dir/cases" || exit 1
failed=0
while read -r name; do
    at=$dir/$name
    "$build/tenon" import fx "$at/graph.txt" --inputs "$at/inputs.safetensors" -o "$at/graph.tn" \
        >"$at/summary" || { failed=1; continue; }
    "$build/tenon" run "$at/graph.tn" --inputs "$at/inputs.safetensors" \
        --outputs "$at/got.safetensors" || failed=1
done <"$dir/cases"
"$python" tools/torch_cases.py check "$dir" "$@" || failed=1
[ $failed = 0 ] && echo "test-torch: all passed"
exit $failed
