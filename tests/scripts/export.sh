#!/bin/sh
# tenon export fx without PyTorch: the text of a module (tests/export/step.py); every op but those of regions, of other
# ranks and of nobody has an expression; modules of tests/fx are Python in which every name is defined; what cannot be
# exported is refused. tests/python runs the modules. With TN_LONG all of tests/fx, else each eighth.
# Usage: tests/scripts/export.sh BUILD
. tools/checks.sh

"$tenon" export fx tests/export/step.tn -o "$dir/step.py" 2>"$dir/err"
ok "step: exported"
[ -n "$TN_BLESS" ] && cp "$dir/step.py" tests/export/step.py
ok "step: the version stands in the first line" grep -q "^# The graph step, written by .tenon export fx. (Tenon [0-9.]*)" "$dir/step.py"
sed 1d tests/export/step.py >"$dir/want"
ok "step: other text than tests/export/step.py" sh -c "sed 1d '$dir/step.py' | cmp - '$dir/want'" 2>"$dir/err"
ok "standard output" sh -c "'$tenon' export fx - <tests/export/step.tn | cmp - '$dir/step.py'"

cat >"$dir/far.tn" <<'END'
tenon 1
graph far(%x: f32[2]) {
  %a: f32[2] = full(size=[2], fill_value=-1e+300, dtype=f32)
  %d: f16[2] = full(size=[2], fill_value=65519, dtype=f16)
  %e: bf16[2] = full(size=[2], fill_value=3.4e+38, dtype=bf16)
  return %a, %d, %e
}
END
"$tenon" export fx "$dir/far.tn" >"$dir/far.py" 2>"$dir/err"
for number in -inf 65519 inf; do
    ok "numbers that a dtype cannot hold: $number" grep -q "full\..*$number" "$dir/far.py"
done

mkdir "$dir/ops" "$dir/fx"
"$build/tests/export_cases" "$dir/ops" 1000 2>"$dir/err" >"$dir/out"
ok "every op has an expression: $(cat "$dir/out")"
number=0
for graph in tests/fx/*/graph.txt; do
    name=${graph%/graph.txt}
    name=${name##*/}
    number=$((number + 1))
    [ -z "$TN_LONG" ] && [ $((number % 8)) != 0 ] && continue
    "$tenon" import fx "$graph" --inputs "tests/fx/$name/inputs.safetensors" -o "$dir/graph.tn" >/dev/null 2>"$dir/err" &&
        "$tenon" export fx "$dir/graph.tn" -o "$dir/fx/$name.py" 2>"$dir/err"
    ok "$name: imported and exported"
done

cat >"$dir/check.py" <<'END'
"""Modules whose every function reads names that it, the module or Python defines."""
import ast
import builtins
import glob
import re
import sys


def names_of(tree, context):
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def check(what, text):
    tree = ast.parse(text, what)
    known = set(dir(builtins)) | names_of(ast.Module([n for n in tree.body if not isinstance(n, ast.FunctionDef)], []), ast.Store)
    for n in tree.body:
        if isinstance(n, ast.FunctionDef):
            known.add(n.name)
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            known |= {a.asname or a.name for a in n.names}
    bad = []
    for f in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
        own = names_of(f, ast.Store) | {a.arg for a in ast.walk(f) if isinstance(a, ast.arg)}
        own |= {n.name for n in ast.walk(f) if isinstance(n, ast.FunctionDef)}
        own |= {a.asname or a.name for n in ast.walk(f) if isinstance(n, ast.Import) for a in n.names}
        own |= {n.name for n in ast.walk(f) if isinstance(n, ast.ExceptHandler) and n.name}
        bad += [f"{what}: {f.name}: {name} is not defined" for name in names_of(f, ast.Load) - own - known]
    return bad


wrong, count = [], 0
for path in sorted(glob.glob(sys.argv[1] + "/*/*.py") + glob.glob(sys.argv[1] + "/ops/*.txt")):
    with open(path) as f:
        for text in re.split(r"^### \d+\n", f.read(), flags=re.M):
            wrong += check(path, text)
            count += text != ""
print(count, *wrong, sep="\n")
sys.exit(bool(wrong) or count < 130)
END
python3 "$dir/check.py" "$dir" >"$dir/err" 2>&1
ok "modules: Python in which every name is defined"

cat >"$dir/opaque.tn" <<'END'
tenon 1
graph g(%x: f32[4]) {
  %y: f32[4] = opaque(%x, call="a.b", size=[4], dtype=f32)
  return %y
}
END
gives 1 'opaque.tn:3:3: opaque %y: export: opaque has no expression in PyTorch' export fx "$dir/opaque.tn"
gives 2 'export: expected fx or json' export onnx "$dir/opaque.tn"
gives 1 'nowhere.tn' export fx "$dir/nowhere.tn"
gives 0 'usage: tenon export' export --help
gives 2 'changes nothing in a graph without --passes' export fx tests/export/step.tn --chunk 2
gives 2 'machine changes nothing in a graph without --passes' export fx tests/export/step.tn --machine none
gives 3 'does not fit' export json tests/export/step.tn --memory 100
gives 2 'fuse off and --passes with fuse' export json tests/export/step.tn --passes=fuse --fuse off
gives 0 '"machine": "h100"' export json tests/export/step.tn --machine h100 --threads 1

# The plan as data: nodes are those of the text, buffers lie in the arena and those that live together do not overlap.
cat >"$dir/data.py" <<'END'
import json
import sys

x = json.load(open(sys.argv[1]))
names = [n["results"][0]["name"] for n in x["nodes"]]
shown = [line.split(":")[0].strip()[1:] for line in open(sys.argv[2]) if line.startswith("  %")]
assert sorted(names) == sorted(shown), (names, shown)
live = [b for b in x["buffers"] if b["space"] == 0 and b["bytes"]]
assert max(b["offset"] + b["bytes"] for b in live) == x["plan"]["peak_bytes"]
for i, a in enumerate(live):
    for b in live[:i]:
        together = a["persistent"] or b["persistent"] or (a["first"] < b["end"] and b["first"] < a["end"])
        apart = a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"]
        assert apart or not together, (a, b)
for c in x["calls"]:
    for buffer, byte in c.get("operands", []) + c.get("results", []):
        assert 0 <= byte <= x["buffers"][buffer]["bytes"], c
print(len(names), len(live), len(x["calls"]), len(x["plan"]["decisions"]))
END
"$tenon" import fx tests/fx/gpt2_step/graph.txt --inputs tests/fx/gpt2_step/inputs.safetensors -o "$dir/g.tn" >/dev/null
gives 0 '' export json "$dir/g.tn" -o "$dir/g.json"
python3 "$dir/data.py" "$dir/g.json" "$dir/g.tn" >"$dir/out" 2>"$dir/err"
ok "json: a plan in which buffers do not overlap"
gives 0 '' export json "$dir/g.tn" --passes=remat --recompute-rule '*::_softmax' -o "$dir/less.json"
ok "json: decisions" grep -q '"kind": "recompute"' "$dir/less.json"
"$tenon" opt "$dir/g.tn" --passes=remat --recompute-rule '*::mm' | "$tenon" export fx - -o "$dir/less.py"
gives 0 '' export fx "$dir/g.tn" --passes=remat --recompute-rule '*::mm' -o "$dir/again.py"
ok "fx after passes" cmp -s "$dir/less.py" "$dir/again.py"
totals
