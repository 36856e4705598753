"""A captured step in files, as `tenon` reads them: the graph's text, and its weights as safetensors
(https://github.com/huggingface/safetensors: the header's bytes as a little-endian u64, a JSON header, the data)."""
import json
import os

import torch

from . import _watch

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def real(t):
    """A tensor whose elements are real numbers, of a complex one their pairs, as a graph has them."""
    return torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()


def save_tensors(path, tensors):
    """Writes {name: tensor} as one safetensors file."""
    tensors = {name: real(t) for name, t in tensors.items()}
    header, at = {}, 0
    for name, t in tensors.items():
        nbytes = t.numel() * t.element_size()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little"))
        f.write(text)
        for t in tensors.values():
            if t.numel():
                f.write(t.resolve_neg().contiguous().flatten().view(torch.uint8).numpy().data)


def read_tensors(folder, kind):
    """{name: tensor} of a checkpoint's files KIND*.safetensors, copies."""
    dtypes, out = {name: dtype for dtype, name in DTYPES.items()}, {}
    for file in sorted(os.listdir(folder)):
        if not (file.startswith(kind) and file.endswith(".safetensors")):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            n = int.from_bytes(f.read(8), "little")
            for name, entry in json.loads(f.read(n)).items():
                if name == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                f.seek(8 + n + begin)
                data = bytearray(f.read(end - begin))
                dtype = dtypes[entry["dtype"]]
                flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype, device="cpu")
                out[name] = flat.view(entry["shape"])
    return out


def save(captured, folder):
    """Writes step.tn and weights.safetensors of a captured step into a folder."""
    if captured.ranks:
        captured.ranks.refuse("save")
    captured.check()
    _watch.check_modes(captured)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "step.tn"), "w", encoding="utf-8") as f:
        f.write(captured.text)
    roles = captured.ports.role
    save_tensors(os.path.join(folder, "weights.safetensors"),
                 {roles(name): t for kind in (captured.parameters, captured.buffers, captured.constants)
                  for name, t in kind.items()})
