"""`tenon export fx` by PyTorch: graphs that PyTorch traced are imported, exported and run by PyTorch; what
comes out is compared with what PyTorch computed when they were traced, at 2e-5 (1e-2 in 16 bits). The same
of the graph after passes: recomputed, in slices, fused. What is computed again has the bits of what is not.
A graph with dropout has the mask that Tenon draws.

Usage: export_fx.py BUILD FOLDER...
"""

import json
import os
import subprocess
import sys
import tempfile

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
failures = 0
COUNT = {}  # graphs of each variant that were run


def fail(text):
    global failures
    failures += 1
    print(f"FAIL {text}")


def read(path):
    """The tensors of a safetensors file."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    tensors = {}
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        x = torch.frombuffer(data[begin:end] or bytearray(8), dtype=DTYPES[entry["dtype"]])
        count = torch.Size(entry["shape"]).numel()
        tensors[name] = x[:count].reshape(entry["shape"]).clone()
    return tensors


def tenon(*words):
    done = subprocess.run([BUILD + "/tenon", *words], capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def module_of(path):
    names = {"__name__": "exported"}
    with open(path) as f:
        exec(compile(f.read(), path, "exec"), names)
    return names


def error(got, want):
    """|got - want| / |want| where neither has what the other has not: NaN, infinity."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"expected {want.dtype} {list(want.shape)}, found {got.dtype} {list(got.shape)}"
    if not want.dtype.is_floating_point:
        return 0.0 if torch.equal(got, want) else "integers differ"
    a, b = got.double(), want.double()
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, 0.0, a - b)
    if not apart.isfinite().all():
        return "not finite in one of them"
    size = torch.where(b.isfinite(), b, 0.0).norm()
    return float(apart.norm() / (size if size > 0 else 1.0))


def compare(what, got, want):
    worst = 0.0
    for name, x in want.items():
        e = error(got[name], x)
        bound = 1e-2 if x.dtype in (torch.float16, torch.bfloat16) else 2e-5
        if isinstance(e, str) or not e < bound:
            fail(f"{what}: {name}: {e}")
        elif bound < 1e-2:
            worst = max(worst, e)
    return worst


# Variants of a graph: a name, options of `tenon opt`; those of the graph whose bits it has, or None.
VARIANTS = [
    ("recomputed", ["--passes=remat", "--recompute-rule", "*::*"], []),
    ("in slices", ["--passes=canonicalize,chunk", "--chunk", "2"], None),
    ("fused", ["--passes=canonicalize,cse,dce,fuse"], ["--passes=canonicalize,cse,dce"]),
]


def run_graph(folder, graph, inputs, want, what):
    module = graph[:-3] + ".py"
    code, message = tenon("export", "fx", graph, "-o", module)
    if code:
        fail(f"{what}: {message}")
        return None, 0.0
    names = module_of(module)
    loaded = names["load"](inputs)
    results = names["run"](loaded)
    return results, compare(what, results, want)


def bits(x):
    """The bytes of x, row-major."""
    row = torch.empty(x.numel(), dtype=x.dtype)
    row.copy_(x.reshape(-1))
    return row.view(torch.uint8)


def same_bits(what, got, want):
    for name, x in want.items():
        if got[name].dtype != x.dtype or not torch.equal(bits(got[name]), bits(x)):
            fail(f"{what}: {name}: other bits than without")


def round_trip(folder, scratch):
    name = os.path.basename(folder.rstrip("/"))
    inputs = folder + "/inputs.safetensors"
    want = read(folder + "/outputs.safetensors")
    graph = f"{scratch}/{name}.tn"
    code, message = tenon("import", "fx", folder + "/graph.txt", "--inputs", inputs, "-o", graph)
    if code:
        fail(f"{name}: {message}")
        return
    plain, worst = run_graph(folder, graph, inputs, want, name)
    line = f"{name}: {worst:.1e}"
    for variant, options, like in VARIANTS:
        made, base = (f"{scratch}/{name}.{kind}.tn" for kind in ("made", "base"))
        code, message = tenon("opt", graph, *options, "-o", made)
        if code or not changed(variant, made):
            line += f"; not {variant}: {message.splitlines()[0] if code else 'nothing to do'}"
            continue
        COUNT[variant] = COUNT.get(variant, 0) + 1
        got, worst = run_graph(folder, made, inputs, want, f"{name}, {variant}")
        line += f"; {variant} {worst:.1e}"
        if like == []:
            same_bits(f"{name}, {variant}", got, plain)
        elif like:
            tenon("opt", graph, *like, "-o", base)
            same_bits(f"{name}, {variant}", got, run_graph(folder, base, inputs, want, f"{name}, {like}")[0])
    print(line)


def changed(variant, path):
    with open(path) as f:
        return {"recomputed": " origin=", "in slices": " = loop(", "fused": " = fused("}[variant] in f.read()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for folder in sys.argv[2:]:
            if os.path.exists(folder + "/graph.txt"):
                round_trip(folder, scratch)
    print(COUNT)
    print(f"{failures} failures")
    return 1 if failures else 0


BUILD = sys.argv[1] if len(sys.argv) > 1 else "build"
if __name__ == "__main__":
    sys.exit(main())
