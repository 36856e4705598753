# The graph step, written by `tenon export fx` (Tenon 0.1.0). forward(...) takes the tensors of INPUTS in
# order and returns those of OUTPUTS; run({name: tensor}) does so by name; load(path, ...)
# reads what of INPUTS safetensors files have.
import json
from math import ceil, inf, nan, prod

import torch

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
DEVICE = torch.device('cpu')
SAVED = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16, 'BF16': torch.bfloat16,
         'I64': torch.int64, 'I32': torch.int32, 'U8': torch.uint8, 'BOOL': torch.bool}

# name, role, name of the weight or scalar, dtype, shape
INPUTS = [
    ('x', 'batch', '', torch.float32, [7, 8]),
    ('w', 'param', 'mlp.0.weight', torch.float32, [8, 4]),
    ('seed', 'seed', '', torch.int64, []),
    ('step', 'step', '', torch.int64, []),
]
OUTPUTS = [
    'loss',
    'metric.most',
    'out2',
    'out3',
]


def tenon_words(position, seed, stream, step):
    """The 32 random bits of each position, as int64."""
    low = 0xFFFFFFFF
    block = position >> 2
    c = [block & low, (block >> 32) & low, stream + 0 * block, (step & low) + 0 * block]
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [((p1 >> 32) & low) ^ c[1] ^ k0, p1 & low, ((p0 >> 32) & low) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    lane = position & 3
    return aten.where.self(lane < 2, aten.where.self(lane == 0, c[0], c[1]), aten.where.self(lane == 2, c[2], c[3]))


def tenon_positions(shape, extents, places, device):
    """Row-major positions in a whole tensor of the sizes `extents`; places: what each axis' indices become."""
    position = aten.zeros.default([1] * len(shape), dtype=torch.int64, device=device)
    stride = 1
    for d in reversed(range(len(shape))):
        index = places(d, aten.arange.default(shape[d], device=device)) * stride
        position = position + aten.reshape.default(index, [shape[d] if d == e else 1 for e in range(len(shape))])
        stride *= extents[d]
    return position


def tenon_drawn(stream, axes, extents, x, seed, step, offsets):
    """The 24 random bits of each of x's elements, by its position in the whole tensor."""
    whole = [extents[axes.index(d)] if d in axes else n for d, n in enumerate(x.shape)]
    position = tenon_positions(x.shape, whole, lambda d, i: i + offsets[axes.index(d)] if d in axes else i, x.device)
    return tenon_words(position, seed, stream, step) >> 8


def tenon_dropout(p, stream, axes, extents, x, seed, step, *offsets):
    """y, mask: an element is kept where its random bits are at least p 2^24."""
    mask = tenon_drawn(stream, axes, extents, x, seed, step, offsets) >= ceil(p * 2**24)
    return aten.where.ScalarOther(mask, x * (1 / (1 - p) if p < 1 else 0.0), 0.0), mask


def body_1(xb: "f32[3, 8]", w: "f32[8, 4]"):
    # forward mlp
    mm: "f32[3, 4]" = torch.ops.aten.mm.default(xb, w);  xb = w = None
    # loss
    s: "f32[]" = torch.ops.aten.sum.dim_IntList(mm, [0, 1], False, dtype=torch.float32)
    return (mm, s)


def body_2(xb: "f32[1, 8]", w: "f32[8, 4]"):
    # forward mlp
    mm: "f32[1, 4]" = torch.ops.aten.mm.default(xb, w);  xb = w = None
    # loss
    s: "f32[]" = torch.ops.aten.sum.dim_IntList(mm, [0, 1], False, dtype=torch.float32)
    return (mm, s)


def forward(x: "f32[7, 8]", w: "f32[8, 4]", seed: "i64[]", step: "i64[]"):
    # loss
    y = torch.ops.aten.empty.memory_format([7, 4], dtype=torch.float32, device=DEVICE)
    l = torch.ops.aten.zeros.default([], dtype=torch.float32, device=DEVICE)
    for iteration in range(2):
        y_part, l_part = body_1(torch.ops.aten.slice.Tensor(x, 0, 3 * iteration, 3 * iteration + 3), w)
        torch.ops.aten.copy_.default(torch.ops.aten.slice.Tensor(y, 0, 3 * iteration, 3 * iteration + 3), y_part)
        torch.ops.aten.add_.Tensor(l, l_part)
    iteration = 2
    y_part, l_part = body_2(torch.ops.aten.slice.Tensor(x, 0, 3 * iteration, 3 * iteration + 1), w)
    torch.ops.aten.copy_.default(torch.ops.aten.slice.Tensor(y, 0, 3 * iteration, 3 * iteration + 1), y_part)
    torch.ops.aten.add_.Tensor(l, l_part)
    y_part = l_part = None
    x = w = None
    # backward mlp.1
    tanh_1: "f32[7, 4]" = torch.ops.aten.tanh.default(y);  y = None  # again: lambda
    d, mask = tenon_dropout(0.5, 3, [], [], tanh_1, seed, step);  tanh_1 = seed = step = None
    # backward
    total: "f32[]" = torch.ops.aten.amax.default(d, [0, 1], False)
    in_1: "f32[7, 4]" = torch.ops.aten.clone.default(d, memory_format=torch.contiguous_format);  d = None
    return (l, total, in_1, mask)


def load(*paths):
    """The inputs that safetensors files have, under their own names or those of weights, and those without elements."""
    none = [(name, dtype, shape) for name, _, _, dtype, shape in INPUTS if not prod(shape)]
    tensors = {name: torch.empty(shape, dtype=dtype, device=DEVICE) for name, dtype, shape in none}
    for path in paths:
        with open(path, "rb") as f:
            head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            first = f.tell()
            for name, _, weight, dtype, shape in INPUTS:
                entry = head.get(name) or head.get(weight)
                if entry is None:
                    continue
                if entry["shape"] != shape:
                    raise ValueError(f"{path}: {name}: expected the shape {shape}, found {entry['shape']}")
                begin, end = entry["data_offsets"]
                f.seek(first + begin)
                data = bytearray(f.read(end - begin)) or bytearray(8)
                x = torch.frombuffer(data, dtype=SAVED[entry["dtype"]])
                tensors[name] = x[: prod(shape)].reshape(shape).to(device=DEVICE, dtype=dtype)
    return tensors


def run(tensors):
    """The results by name, of inputs by name."""
    tensors = {**load(), **tensors}
    missing = [name for name, *_ in INPUTS if name not in tensors]
    if missing:
        raise KeyError(f"inputs are missing: {missing}")
    return dict(zip(OUTPUTS, forward(*(tensors[name] for name, *_ in INPUTS))))
