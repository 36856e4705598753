"""What tests of `tenon export fx` share: files of tensors, the program, exported modules, errors."""

import json
import os
import subprocess
import tempfile

import torch

BUILD = os.environ.get("BUILD", "build")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


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
        tensors[name] = x[: torch.Size(entry["shape"]).numel()].reshape(entry["shape"]).clone()
    return tensors


def bits(x):
    """The bytes of x, row-major."""
    row = torch.empty(x.numel(), dtype=x.dtype)
    row.copy_(x.reshape(-1))
    return row.view(torch.uint8)


def write(path, tensors):
    names = {dtype: name for name, dtype in DTYPES.items()}
    head, data = {}, b""
    for name, x in tensors.items():
        raw = bytes(bits(x).tolist())
        head[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def tenon(*words):
    """The exit code and what stood on standard error."""
    done = subprocess.run([BUILD + "/tenon", *words], capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def load(path):
    """The names of an exported module."""
    names = {"__name__": "exported"}
    with open(path) as f:
        exec(compile(f.read(), path, "exec"), names)
    return names


def export(graph):
    """The exported module of a .tn file; None and the reason where there is none."""
    module = graph[:-3] + ".py"
    code, message = tenon("export", "fx", graph, "-o", module)
    return (None, message) if code else (load(module), "")


def error(got, want):
    """|got - want| / |want| where neither has what the other has not, NaN or infinity; or what is wrong, a text."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"expected {want.dtype} {list(want.shape)}, found {got.dtype} {list(got.shape)}"
    if not want.dtype.is_floating_point:
        return 0.0 if torch.equal(got, want) else "integers differ"
    a, b = got.double(), want.double()
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, 0.0, a - b)
    if not apart.isfinite().all():
        return "not finite in one of them"
    known = torch.where(b.isfinite(), b, 0.0)
    most = max([float(x.abs().max()) for x in (apart, known) if x.numel()], default=0.0) or 1.0  # squares may overflow
    size = (known / most).norm()
    return float((apart / most).norm() / (size if size > 0 else 1.0 / most))


def wrong(got, want, narrow=1e-2, wide=2e-5):
    """What of `want` is not in `got`: lines "NAME: what"."""
    lines = []
    for name, x in want.items():
        e = error(got[name], x) if name in got else "is missing"
        bound = narrow if x.dtype in (torch.float16, torch.bfloat16) else wide
        if isinstance(e, str) or not e <= bound:
            lines.append(f"{name}: {e}")
    return lines


def same_bits(got, want):
    """What of `want` has other bits in `got`."""
    return [name for name, x in want.items() if got[name].dtype != x.dtype or not torch.equal(bits(got[name]), bits(x))]


def scratch():
    return tempfile.TemporaryDirectory()
