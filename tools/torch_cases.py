"""Graphs that PyTorch traces, for tools/test_torch.sh.

torch_cases.py make DIR    writes DIR/CASE/graph.txt, inputs.safetensors, outputs.safetensors
torch_cases.py check DIR   compares DIR/CASE/got.safetensors (what Tenon made of it) with the latter

Each case is a function of tensors. It is traced by make_fx and printed in one of the forms that
print(gm), gm.code and print_readable have. Needs torch and nothing else."""
import ctypes
import inspect
import json
import math
import os
import struct
import sys

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
          torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def write_tensors(path, tensors):
    head, data, at = {}, [], 0
    for name, t in tensors.items():
        t = t.detach().contiguous().cpu()
        n = t.numel() * t.element_size()
        data.append(ctypes.string_at(t.data_ptr(), n) if n else b"")
        head[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_tensors(path):
    kinds = {v: k for k, v in DTYPES.items()}
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, e in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = e["data_offsets"]
        part = bytearray(raw[8 + n + begin:8 + n + end])
        dtype = kinds[e["dtype"]]
        out[name] = (torch.frombuffer(part, dtype=dtype) if part else
                     torch.empty(0, dtype=dtype)).reshape(e["shape"])
    return out


CASES = []


def case(inputs):
    """Registers a function; inputs() makes its arguments."""
    def add(f):
        CASES.append((f.__name__, f, inputs))
        return f
    return add


def normal(*shape, scale=1.0, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype) * scale


def grads(loss, *params):
    return (loss, *torch.autograd.grad(loss, params))


def leaves(params):
    return [p.requires_grad_(True) for p in params]


def sdpa(q, k, v, **options):
    """F.scaled_dot_product_attention, which PyTorch 1 does not have."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, **options)
    s = q @ k.transpose(-1, -2) * options.get("scale", q.size(-1) ** -0.5)
    if options.get("is_causal"):
        s = s + torch.full(s.shape[-2:], float("-inf")).triu(1)
    if options.get("attn_mask") is not None:
        s = s.masked_fill(~options["attn_mask"], float("-inf"))
    return torch.softmax(s, -1) @ v


# ---- models ----

@case(lambda: [normal(6, 8), normal(16, 8, scale=.3), normal(16), normal(4, 16, scale=.3),
               torch.randint(0, 4, (6,))])
def mlp_dropout(x, w1, b1, w2, labels):
    leaves([w1, b1, w2])
    h = F.dropout(F.relu(F.linear(x, w1, b1)), 0.5, training=True)
    loss = F.cross_entropy(F.linear(h, w2), labels)
    return grads(loss, w1, b1, w2)


def gpt2_params(V=50, T=12, C=32, L=2):
    p = [torch.randint(0, V, (2, T)), torch.randint(0, V, (2, T)), normal(V, C, scale=.1),
         normal(T + 4, C, scale=.1)]
    for _ in range(L):
        p += [1 + normal(C, scale=.1), normal(C, scale=.1), normal(3 * C, C, scale=.1),
              normal(3 * C, scale=.1), normal(C, C, scale=.1), normal(C, scale=.1),
              1 + normal(C, scale=.1), normal(C, scale=.1), normal(4 * C, C, scale=.1),
              normal(4 * C, scale=.1), normal(C, 4 * C, scale=.1), normal(C, scale=.1)]
    p += [1 + normal(C, scale=.1), normal(C, scale=.1)]
    p[1][0, :3] = -100
    return p


@case(gpt2_params)
def gpt2(ids, labels, wte, wpe, *w):
    leaves([wte, wpe, *w])
    B, T = ids.shape
    C, H = wte.shape[1], 4
    x = F.embedding(ids, wte) + F.embedding(torch.arange(T), wpe)
    for i in range(0, len(w) - 2, 12):
        ln1, ln1b, wqkv, bqkv, wo, bo, ln2, ln2b, wf, bf, wp, bp = w[i:i + 12]
        q, k, v = F.linear(F.layer_norm(x, (C,), ln1, ln1b), wqkv, bqkv).split(C, dim=2)
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in (q, k, v))
        y = sdpa(q, k, v, is_causal=True)
        x = x + F.linear(y.transpose(1, 2).contiguous().view(B, T, C), wo, bo)
        h = F.gelu(F.linear(F.layer_norm(x, (C,), ln2, ln2b), wf, bf), approximate="tanh")
        x = x + F.linear(h, wp, bp)
    logits = F.layer_norm(x, (C,), w[-2], w[-1]) @ wte.t()
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)
    return grads(loss, wte, wpe, *w)


def llama_params(V=40, T=10, C=32, KV=2, H=4, L=2):
    D = C // H
    p = [torch.randint(0, V, (2, T)), torch.randint(0, V, (2, T)), normal(V, C, scale=.3)]
    for _ in range(L):
        p += [1 + normal(C, scale=.1), normal(C, C, scale=.2), normal(KV * D, C, scale=.2),
              normal(KV * D, C, scale=.2), normal(C, C, scale=.2), 1 + normal(C, scale=.1),
              normal(48, C, scale=.2), normal(48, C, scale=.2), normal(C, 48, scale=.2)]
    return p + [1 + normal(C, scale=.1), normal(V, C, scale=.2)]


def rms(x, w):
    return w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


@case(llama_params)
def llama_gqa(ids, labels, emb, *w):
    leaves([emb, *w])
    B, T = ids.shape
    C, H, KV = emb.shape[1], 4, 2
    D = C // H
    freq = 1.0 / (10000.0 ** (torch.arange(0, D, 2).float() / D))
    angle = torch.outer(torch.arange(T).float(), freq)
    angle = torch.cat((angle, angle), dim=-1)
    cos, sin = angle.cos()[None, None], angle.sin()[None, None]
    mask = torch.full((T, T), float("-inf")).triu(1)
    x = F.embedding(ids, emb)
    for i in range(0, len(w) - 2, 9):
        n1, wq, wk, wv, wo, n2, wg, wu, wd = w[i:i + 9]
        h = rms(x, n1)
        q = (h @ wq.t()).view(B, T, H, D).transpose(1, 2)
        k = (h @ wk.t()).view(B, T, KV, D).transpose(1, 2)
        v = (h @ wv.t()).view(B, T, KV, D).transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k = k[:, :, None].expand(B, KV, H // KV, T, D).reshape(B, H, T, D)
        v = v.repeat_interleave(H // KV, dim=1)
        s = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D) + mask, dim=-1)
        x = x + (s @ v).transpose(1, 2).reshape(B, T, C) @ wo.t()
        h = rms(x, n2)
        x = x + (F.silu(h @ wg.t()) * (h @ wu.t())) @ wd.t()
    logits = rms(x, w[-2]) @ w[-1].t()
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
    return grads(loss, emb, *w)


def bert_params(V=60, T=10, C=32, L=2):
    ids = torch.randint(0, V, (3, T))
    labels = torch.where(torch.rand(3, T) < 0.3, ids, torch.full_like(ids, -100))
    labels[0, 0] = 5
    length = torch.tensor([T, T - 3, T - 5])
    keep = torch.arange(T)[None] < length[:, None]
    p = [ids, labels, keep, torch.randint(0, 2, (3, T)), normal(V, C, scale=.2), normal(T, C, scale=.2),
         normal(2, C, scale=.2), 1 + normal(C, scale=.1), normal(C, scale=.1)]
    for _ in range(L):
        for shape in ((C, C), (C, C), (C, C), (C, C)):
            p += [normal(*shape, scale=.2), normal(C, scale=.1)]
        p += [1 + normal(C, scale=.1), normal(C, scale=.1), normal(64, C, scale=.2), normal(64, scale=.1),
              normal(C, 64, scale=.2), normal(C, scale=.1), 1 + normal(C, scale=.1), normal(C, scale=.1)]
    return p + [normal(C, C, scale=.2), normal(C), 1 + normal(C, scale=.1), normal(C, scale=.1), normal(V)]


@case(bert_params)
def bert_mlm(ids, labels, keep, types, wte, wpe, wty, g0, b0, *w):
    leaves([wte, wpe, wty, g0, b0, *w])
    w = [t.detach() if i < len(w) - 5 and i % 16 == 3 else t for i, t in enumerate(w)]  # bk: gradient 0
    B, T = ids.shape
    C, H = wte.shape[1], 4
    x = F.embedding(ids, wte, padding_idx=0) + F.embedding(types, wty) + wpe[:T].unsqueeze(0)
    x = F.layer_norm(x, (C,), g0, b0, 1e-12)
    for i in range(0, len(w) - 5, 16):
        wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, wf, bf, wp, bp, g2, b2 = w[i:i + 16]
        q, k, v = (F.linear(x, a, b).view(B, T, H, C // H).permute(0, 2, 1, 3)
                   for a, b in ((wq, bq), (wk, bk), (wv, bv)))
        s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(C // H)
        s = s.masked_fill(~keep[:, None, None, :], torch.finfo(s.dtype).min)
        y = torch.matmul(F.softmax(s, dim=-1), v).permute(0, 2, 1, 3).reshape(B, T, C)
        x = F.layer_norm(x + F.linear(y, wo, bo), (C,), g1, b1, 1e-12)
        x = F.layer_norm(x + F.linear(F.gelu(F.linear(x, wf, bf)), wp, bp), (C,), g2, b2, 1e-12)
    wh, bh, gh, ch, bias = w[-5:]
    h = F.layer_norm(F.gelu(F.linear(x, wh, bh)), (C,), gh, ch, 1e-12)
    logits = F.linear(h, wte, bias)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
    return grads(loss, wte, wpe, wty, g0, b0, *[t for t in w if t.requires_grad])


@case(lambda: [normal(12, 16), normal(4, 16), normal(4, 24, 16, scale=.2), normal(4, 16, 24, scale=.2),
               normal(12, 16)])
def moe_topk(x, router, up, down, target):
    leaves([router, up, down])
    prob = F.softmax(x @ router.t(), dim=-1)
    weight, index = prob.topk(2, dim=-1)
    weight = weight / weight.sum(-1, keepdim=True)
    gate = torch.zeros_like(prob).scatter_(1, index, weight)
    h = F.silu(torch.einsum("nc,efc->nef", x, up))
    y = torch.einsum("nef,ecf->nec", h, down)
    y = (gate.unsqueeze(-1) * y).sum(1)
    load = (index.unsqueeze(-1) == torch.arange(len(router))).float().sum(1).mean(0)
    loss = F.mse_loss(y, target) + 0.01 * len(router) * (load * prob.mean(0)).sum()
    return (*grads(loss, router, up, down), load)


@case(lambda: [normal(12, 16), normal(4, 16), normal(4, 24, 16, scale=.2), normal(4, 16, 24, scale=.2),
               normal(12, 16)])
def moe_dispatch(x, router, up, down, target):
    """Tokens sorted by expert, weights gathered, results added back."""
    leaves([router, up, down])
    N, K = x.shape[0], 2
    prob = F.softmax(x @ router.t(), dim=-1)
    weight, index = prob.topk(K, dim=-1)
    flat = index.reshape(-1)
    order = torch.argsort(flat, stable=True)
    token = order // K
    rows = x.index_select(0, token)
    expert = flat[order]
    h = F.relu(torch.bmm(up[expert], rows.unsqueeze(-1)))
    out = torch.bmm(down[expert], h).squeeze(-1) * weight.reshape(-1)[order].unsqueeze(-1)
    y = torch.zeros_like(x).index_add(0, token, out)
    loss = (y - target).pow(2).mean()
    return grads(loss, router, up, down)


@case(lambda: [normal(6, 4), normal(3, 8, 4), normal(3, 4, 8), torch.tensor([2, 0, 2, 1, 2, 0])])
def moe_grouped(x, up, down, expert):
    """Tokens sorted by expert, one product for each expert's rows, back by the inverse permutation."""
    leaves([x, up, down])
    order = torch.sort(expert)[1]
    end = torch.histc(expert.float(), 3, 0, 2).cumsum(0, dtype=torch.int32)
    rows = x[order]
    if hasattr(torch, "_grouped_mm"):
        y = torch._grouped_mm(F.silu(torch._grouped_mm(rows, up.mT, offs=end)), down.mT, offs=end)
    else:
        y = torch.bmm(down[expert[order]], F.silu(torch.bmm(up[expert[order]], rows[..., None])))[..., 0]
    back = torch.empty_like(order)
    back[order] = torch.arange(6)
    y = y[back]
    return (*grads((y ** 2).sum(), x, up, down), y, end)


def adam_params():
    w = [normal(8, 6, scale=.3), normal(8, scale=.3), normal(1, 8, scale=.3)]
    return ([normal(10, 6), normal(10, 1)] + w + [normal(*t.shape, scale=.01) for t in w] +
            [normal(*t.shape, scale=.01).square() for t in w] + [torch.tensor(3.0)])


@case(adam_params)
def adam_step(x, y, *state):
    """AdamW as torch.optim writes it for one tensor, in place."""
    p, m, v, step = list(state[:3]), state[3:6], state[6:9], state[9]
    leaves(p)
    loss = F.mse_loss(torch.tanh(F.linear(x, p[0], p[1])) @ p[2].t(), y)
    g = torch.autograd.grad(loss, p)
    lr, b1, b2, eps, wd = 1e-2, 0.9, 0.95, 1e-8, 0.1
    with torch.no_grad():
        step = step + 1
        for w, d, a, b in zip(p, g, m, v):
            w = w.detach()
            w.mul_(1 - lr * wd)
            a.lerp_(d, 1 - b1)
            b.mul_(b2).addcmul_(d, d, value=1 - b2)
            size = lr / (1 - b1 ** step)
            denom = (b.sqrt() / (1 - b2 ** step).sqrt()).add_(eps)
            w.add_(-size * a / denom)
    return (loss, *[w.detach() for w in p], *m, *v, step)


@case(lambda: [normal(4, 4), normal(4, 4), torch.tensor(0.0)])
def adam_two_steps(w, t, zero):
    m, v, out = torch.zeros_like(w), torch.zeros_like(w), []
    for i in range(2):
        w = w.detach().requires_grad_(True)
        loss = ((w @ w.t() - t) ** 2).sum()
        g, = torch.autograd.grad(loss, w)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        w = w - 0.01 * (m / (1 - 0.9 ** (i + 1))) / ((v / (1 - 0.999 ** (i + 1))).sqrt() + 1e-8)
        out.append(loss)
    return (*out, w + zero)


def lists(*tensors):
    return list(tensors[:2]), list(tensors[2:4])


@case(lambda: [normal(3, 2), normal(4), torch.rand(3, 2) + .5, torch.rand(4) + .5, torch.tensor([.5, 1.5])])
def foreach(a, b, c, d, s):
    """What optimizers call for lists of tensors."""
    x, y = lists(a, b, c, d)
    out = [*torch._foreach_add(x, y, alpha=.3), *torch._foreach_mul(x, [2, 3.5]), *torch._foreach_addcdiv(x, x, y, [.5, 2]),
           *torch._foreach_maximum(x, y), *torch._foreach_abs(x)]
    if hasattr(torch, "_foreach_lerp"):
        out += [*torch._foreach_lerp(x, y, .7), *torch._foreach_pow(1.3, x), *torch._foreach_norm(x, 1),
                *torch._foreach_addcmul(x, x, y, s), *torch._foreach_clamp_min(x, .1)]
    x, y = lists(*[t.clone() for t in (a, b, c, d)])
    torch._foreach_add_(x, 1)
    torch._foreach_sub_(x, [1., 2.])
    torch._foreach_mul_(x, y)
    torch._foreach_sqrt_(y)
    torch._foreach_neg_(y)
    torch._foreach_addcdiv_(x, x, y, value=.3)
    torch._foreach_zero_(y)
    return (*out, *x, *y)


@case(lambda: [normal(3, 2), normal(4), normal(3, 2), normal(4), normal(3, 2), normal(4), torch.rand(3, 2), torch.rand(4),
               torch.tensor(3.), torch.tensor(4.), torch.tensor(.02), torch.tensor(8.), torch.tensor(0.)])
def fused(p, q, g, h, m, n, v, w, t, u, lr, scale, found):
    """Steps of the optimizers that are one call."""
    if not hasattr(torch, "_fused_sgd_"):
        return p + 1
    one = dict(beta1=.9, beta2=.99, eps=1e-6)
    torch._fused_adamw_([p, q], [g, h], [m, n], [v, w], [], [t, u], lr=.01, weight_decay=.1, amsgrad=False,
                        maximize=False, **one)
    torch._fused_adam_([p, q], [g, h], [m, n], [v, w], [], [t, u], lr=lr, weight_decay=.1, amsgrad=False,
                       maximize=True, grad_scale=scale, found_inf=found, **one)
    most = [v.clone(), w.clone()]
    r = torch.ops.aten._fused_adamw.default([p, q], [g, h], [m, n], [v, w], most, [t, u], lr=.01, weight_decay=.1, amsgrad=True,
                                              maximize=False, **one)
    common = dict(weight_decay=.1, momentum=.9, nesterov=True, maximize=False, dampening=0.)
    buffers = [torch.empty_like(p), torch.empty_like(q)]
    torch._fused_sgd_([p, q], [g, h], buffers, lr=.01, is_first_step=True, **common)
    torch._fused_sgd_([p, q], [g, h], buffers, lr=lr, is_first_step=False, **common)
    torch._fused_adagrad_([p, q], [g, h], [v, w], [t, u], lr=.01, lr_decay=.1, weight_decay=0., eps=1e-6, maximize=False)
    return (p, q, g, h, m, n, v, w, *buffers, *flat(r))


# ---- what models use less ----

@case(lambda: [normal(3, 4, dtype=torch.float64), normal(4, dtype=torch.float64),
               torch.tensor(2.5, dtype=torch.float64)])
def doubles(x, w, s):
    leaves([w])
    y = torch.softmax(x * w + s, -1).log().sum()
    return (y, *torch.autograd.grad(y, w), x.var(), x.std(1), x @ w, x.float() * s)


@case(lambda: [normal(3, 4), torch.arange(12).reshape(3, 4), torch.randint(0, 2, (3, 4)).bool(),
               torch.tensor(3), torch.tensor(0.5, dtype=torch.float64), normal(3, 4).to(torch.bfloat16),
               torch.arange(3, dtype=torch.int32)[:, None]])
def promotion(f, i, b, i0, d0, h, j):
    return (f + i, f * b, i * b, i / 2, i * 0.5, i + i0, f * d0, i * d0, h + d0, h * f, h + 1.5, b + 1,
            b * 2.0, i // 3, -i // 4, i % 5, f % 0.7, i ** 2, 2 ** f, f ** 3, f ** 0.5, i > 3, f > i, b & (i > 2),
            b | ~b, b ^ b, torch.where(b, f, 0.0), torch.where(b, i, 1.5), i.sum(), b.sum(), b.sum(0), i.float().mean(),
            f.clamp(-0.5), f.clamp(max=0), i.clamp(2, 7), torch.maximum(f, d0.float()), 1 - f, 1 / f,
            f.sub(i, alpha=2), i.exp(), b.float(), f.to(torch.int64), j + i, j * 2, i0 + 1, i0 / 2,
            torch.div(i, 3, rounding_mode="trunc"), torch.div(f, 0.3, rounding_mode="floor"), f.isnan(), f.isinf(),
            f.sign(), f.abs().log1p(), i.max(), f.amin(1), b.any(), b.all(1), torch.logical_xor(b, i > 5),
            torch.logical_not(i), f.round(), f.floor(), f.masked_fill(b, 7), f.reciprocal(), (f * 0).eq(0))


@case(lambda: [normal(3, 4, 5), torch.randint(0, 3, (6,)), torch.randint(0, 4, (3, 4, 2)), normal(3, 4, 2)])
def indexing(x, i, j, src):
    a = x[i]
    b = x[:, i, :]
    c = x[i, :, i]
    d = x.gather(2, j)
    e = torch.zeros_like(x).scatter(2, j, 1.5)
    f = torch.zeros_like(x).scatter_add(2, j, src)
    g = x.index_put((i,), torch.tensor(1.0), accumulate=True)
    h = x.index_add(0, i, x.new_ones(6, 4, 5), alpha=0.5)
    k = x.index_select(1, i)
    v, n = x.sort(-1, descending=True)
    return (a, b, c, d, e, f, g, h, k, v, n, x.cumsum(1), x.argmax(), x.argmax(1), x.argmin(2, keepdim=True),
            *x.max(1), *x.min(2), x.flip(1), x.tril(), x[0].triu(-1), torch.roll(x, 2, 1), x.repeat(2, 1, 3),
            torch.stack([x, x], 2), x.unbind(1)[2], x[..., ::2], x[1:, -1], x.logsumexp(1), x.var(1), x.std(),
            *torch.var_mean(x, 2), x.norm(), x.norm(1, dim=1), torch.eye(3), torch.arange(0, 1, 0.25),
            x.diagonal(0, 0, 1), F.pad(x, (1, 2)), x.narrow(1, 1, 2), x.permute(2, 0, 1).reshape(5, 12))


@case(lambda: [normal(3, 5, 4), normal(3, 4), normal(3, 2, 4), normal(5, 3)])
def places(x, y, w, d):
    """Views at other strides, their gradients, writes through them, also with a gradient."""
    leaves([x, d])
    out = [x.diagonal(1, 0, 2), x.unfold(1, 3, 2), x.select_scatter(y, 1, 2), x.slice_scatter(w, 1, 1, 4, 2),
           torch.diagonal_scatter(x, d, 1, 0, 2), torch.diag_embed(d, 1), x.as_strided((3, 4), (7, 1), 4)]
    loss = sum((t ** 3).sum() for t in out)
    z = x * 1
    v = z[:, 1:3]
    v.mul_(2)
    z.permute(2, 0, 1)[0].add_(1)
    z.diagonal(0, 1, 2).mul_(y[:, 0:1])
    a = y.t().contiguous()
    a.as_strided((3, 2), (4, 1)).add_(1)
    b = torch.empty_strided((3, 4), (1, 3))
    b.copy_(y)
    b.unfold(1, 2, 2).mul_(3)
    return (*out, *torch.autograd.grad(loss + (z ** 2).sum(), [x, d]), z, a, b, b.as_strided((4, 3), (3, 1)), y[:, :3].trace())


@case(lambda: [normal(4, 6), normal(4, 6), torch.tensor([1, 3])])
def in_place(x, y, i):
    a = x.clone()
    v = a[:, ::2]
    v.mul_(2)
    a[1].add_(y[0])
    a.t()[2].copy_(torch.arange(4))
    v.sub_(y[:, 1::2])
    b = torch.empty_like(x)
    b[:, :3] = x[:, 3:]
    b[:, 3:] = a[:, :3]
    c = torch.zeros(4, 6)
    c[i] = 5.0
    c[x > 1] = -1.0
    p, q = c.view(2, 12).split(6, dim=1)
    q.fill_(2)
    p += 1
    d = torch.zeros(3, dtype=torch.int64)
    d += 2
    e = a.unsqueeze(0).expand(3, 4, 6).sum(0)
    f = x.detach().clone().requires_grad_(True)
    g, = torch.autograd.grad((f * f).sum(), f)
    g.add_(1).clamp_(min=0)
    return a, v, b, c, p, d, e, g


@case(lambda: [torch.cat([normal(3, 6, scale=2), torch.tensor([[0, -.5, .5, 3, -3, 1]])]), torch.rand(6)])
def activations(x, w):
    """Each with its gradient; some of x lies where a formula changes."""
    leaves([x, w])
    functions = (lambda t: F.elu(t, 0.7), lambda t: F.celu(t, 1.3), F.selu, lambda t: F.hardtanh(t, -.5, .5), F.relu6,
                 F.hardswish, F.hardsigmoid, F.mish, lambda t: F.threshold(t, 0.5, -2), lambda t: F.softshrink(t, .4),
                 lambda t: F.hardshrink(t, .5), lambda t: F.leaky_relu(t, .2), lambda t: F.softplus(t, 2, 3),
                 F.logsigmoid, F.tanhshrink, F.softsign, lambda t: F.prelu(t, w), lambda t: F.prelu(t, w[2:3]),
                 lambda t: F.rrelu(t, training=False), lambda t: F.elu_(t * 1), lambda t: F.hardswish(t * 1, inplace=True))
    y = [f(x) for f in functions]
    return (*y, *(torch.autograd.grad(t.square().sum(), x)[0] for t in y),
            *torch.autograd.grad((F.prelu(x, w) * F.prelu(x, w[2:3])).sum(), w))


@case(lambda: [normal(3, 4, 5), 1 + normal(4, scale=.1), normal(4, scale=.1), normal(4), torch.rand(4) + .1,
               torch.tensor([[0, 1, 2, 2], [5, 1, 2, 0]]), normal(6, 4), torch.rand(5), torch.rand(3, 4, 5)])
def norms(x, w, b, mean, var, ids, table, weight, t):
    """Of groups and of the batch; losses and embeddings that weigh."""
    leaves([x, w, b, table])
    y = F.batch_norm(x, mean, var, w, b, training=True, momentum=.2) + F.batch_norm(x, mean, var, w, b)
    z = F.group_norm(x, 2, w, b) + F.instance_norm(x) + F.batch_norm(x, None, None, training=True)
    e = F.embedding(ids, table, padding_idx=1, scale_grad_by_freq=True)
    loss = (y ** 3).sum() + (z ** 2 * y).sum() + e.square().sum()
    loss = loss + F.binary_cross_entropy_with_logits(y + z, t, weight, pos_weight=2 * weight)
    return (*grads(loss, x, w, b, table), y, z, mean, var)


@case(lambda: [normal(2, 6, 8, scale=.5), normal(8, 8, scale=.3), normal(8), torch.randint(0, 8, (12,)),
               torch.rand(8)])
def losses(x, w, b, labels, weight):
    leaves([w, b])
    h = F.leaky_relu(F.linear(x, w, b), 0.1) + F.softplus(x) + F.hardtanh(x) + F.silu(x) + torch.sigmoid(x)
    h = F.layer_norm(h, (6, 8))
    z = h.view(12, 8)
    loss = (F.cross_entropy(z, labels, weight=weight) + F.cross_entropy(z, labels, reduction="sum") * 0.1 +
            F.nll_loss(F.log_softmax(z, 1), labels, reduction="none").mean() + F.mse_loss(z, x.view(12, 8)) +
            F.smooth_l1_loss(z, x.view(12, 8)) + torch.logsumexp(z, 1).pow(2).mean() +
            F.binary_cross_entropy_with_logits(z, torch.sigmoid(x.view(12, 8))) + F.kl_div(F.log_softmax(z, 1), F.softmax(x.view(12, 8), 1), reduction="batchmean"))
    return grads(loss, w, b)


@case(lambda: [normal(2, 4, 6, 8), normal(2, 4, 6, 8), normal(2, 4, 6, 8), torch.rand(2, 1, 6, 6) < 0.7])
def attention(q, k, v, keep):
    leaves([q, k, v])
    keep = keep | torch.eye(6, dtype=torch.bool)
    loss = (sdpa(q, k, v).sum() +
            (sdpa(q, k, v, is_causal=True, scale=0.3) ** 2).sum() +
            (sdpa(q, k, v, attn_mask=keep) ** 2).sum())
    return grads(loss, q, k, v)


EDGES = [0., -0., 1e-6, -1e-6, .3, -.3, .5, -.5, 1., -1., 1.5, 2.5, -2.5, 9., -9., 30., -30., 1e6, -1e6, float("inf"),
         -float("inf"), float("nan")]


@case(lambda: [torch.tensor(EDGES), normal(3, 4), normal(3, 4), torch.randint(-4, 5, (3, 4)), torch.randint(1, 5, (3, 4)),
               torch.rand(3, 4) < 0.5])
def elementary(e, x, y, i, j, b):
    inf = float("inf")
    k = torch.tensor([0, 5, 62, 63, 64, -1])
    return (e.sinh(), e.cosh(), e.asinh(), (e.abs() + 1).acosh(), e.atanh(), e.tan(), e.log10(), e.frac(), e.sinc(),
            e.signbit(), e.isposinf(), e.isneginf(), e.deg2rad(), e.rad2deg(), e.logit(), e.abs().logit(1e-3), e.nan_to_num(),
            e.nan_to_num(1., 2., -3.), e.round(decimals=1), (e * 100).round(decimals=-1), e.sign(), e.trunc(), i.floor(),
            i.round(), i.trunc(), i.ceil(), i.sinh(), j.log10(), b.sign(), i.signbit(), i.nan_to_num(), b.square(),
            i.square(), torch.hypot(x, y), torch.hypot(e, e.flip(0)), torch.copysign(e, e.flip(0)), torch.copysign(i, j),
            torch.copysign(x, -1.), torch.logaddexp(x, y), torch.logaddexp(e, e), torch.logaddexp2(x, y),
            torch.xlogy(i, j), torch.xlogy(x.abs(), 2.), torch.fmax(e, e.flip(0)), torch.fmin(e, e.flip(0)), torch.fmin(i, x),
            torch.heaviside(e, e.flip(0)), i << j, i >> j, i << 2, i >> 1, 2 << j, k[:, None] << k, (k - 3)[:, None] >> k,
            k.int()[:, None] << k.int(), (k - 3).int()[:, None] >> k.int(), k.byte()[:, None] >> k.byte(), i & 3, i ^ j,
            torch.ops.aten.__or__.Scalar(i, 4), torch.addcmul(i, i, j, value=2), i.clamp(min=0.5), b.clamp(0, 1))


@case(lambda: [normal(5, 7, dtype=torch.bfloat16), normal(5, 7, dtype=torch.bfloat16), torch.tensor(0.3711)])
def numbers_beside_bf16(x, y, z):
    """Products and quotients take a number unrounded; compositions round once."""
    return (x * 0.1, x / 0.1, x * z, x / z, z * x, z / x, x // 0.1, torch.div(x, z, rounding_mode="trunc"), x + 0.1, x - z,
            0.1 - x, x.addcmul(x, y, value=0.1), x.addcdiv(x, y, value=0.1), x.lerp(y, 0.3711), x.lerp(y, 0.7), x ** -2,
            x.tan(), x.sinh(), torch.hypot(x, y), torch.logaddexp(x, y), x == 0.1, x > z, x % 0.3, x.clamp(min=0.1))


@case(lambda: [normal(2, 4, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8), torch.rand(2, 1, 3, 5) < 0.7])
def attention_oblong(q, k, v, keep):
    """Fewer or more keys than queries; fewer heads of keys."""
    leaves([q, k, v])
    grouped = {"enable_gqa": True} if "enable_gqa" in (F.scaled_dot_product_attention.__doc__ or "") else {}
    if not grouped:
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    out = [sdpa(q, k, v, is_causal=True, **grouped), sdpa(q, k, v, attn_mask=keep, **grouped),
           sdpa(q[:, :2], k[:, :2, :2], v[:, :2, :2], is_causal=True), sdpa(q[0], q[0], q[1], is_causal=True)]
    return (*out, *torch.autograd.grad(sum((y ** 2).sum() for y in out), [q, k, v]))


@case(lambda: [normal(3, 5), torch.sort(normal(7)).values, torch.randint(0, 6, (11,)), torch.randint(-2, 3, (3, 8)),
               torch.tensor(EDGES), torch.rand(3, 5) < 0.5])
def searches(x, s, ids, i, e, b):
    down = torch.arange(6, -1, -1)
    first, second = torch.sort(x, 1).values, x.flip(0)
    median, k = x.median(1), x.kthvalue(2, dim=0, keepdim=True)
    mode, low = i.float().mode(), torch.searchsorted(s, x, side="right")
    return (torch.histc(ids.float(), bins=6, min=0, max=5), torch.histc(x, bins=4), torch.histc(x, bins=4, min=-1, max=1),
            torch.histc(x * 0, bins=3), torch.searchsorted(s, x), low, torch.searchsorted(first, second, out_int32=True),
            torch.searchsorted(s.flip(0), x, sorter=down), torch.searchsorted(s, 0.3), torch.bucketize(x, s),
            torch.bucketize(i, torch.tensor([-1, 0, 0, 1]), right=True), torch.bucketize(e, s), *median, *k, *mode, x.median(),
            e.median(), e.nanmedian(), *e.reshape(2, 11).nanmedian(0), i.median(), torch.isin(ids, torch.tensor([1, 4])),
            torch.isin(x, x[0, :2], invert=True), torch.isin(ids, 3), ids.count_nonzero(), x.count_nonzero(1), b.count_nonzero(0),
            torch.take(x, torch.tensor([[0, 3], [14, -1]])), x.put(ids[:2], s[:2], accumulate=True), x.argmin(), x.argsort(0),
            x.sort(0).indices, *torch.aminmax(x, dim=1, keepdim=True), *torch.aminmax(i), b.byte().any(),
            b.byte().all(1), torch.zeros(0, 3).any(0), torch.zeros(0, 3).all(), x.scatter_reduce(1, ids[:3, None] % 5, s[:3, None], "mean"),
            x.scatter_reduce(1, ids[None, :4] % 5, s[None, :4], "sum", include_self=False), torch.nansum(e.clamp(-9, 9)), i.trace())


@case(lambda: [normal(3, 5), torch.randint(-4, 5, (3, 5)), torch.rand(3, 5) < 0.7, torch.tensor(EDGES), normal(3, 5).bfloat16()])
def running(x, i, b, e, h):
    leaves([x])
    x0 = torch.cat([x[:, :2], x[:, 2:] * 0], 1)
    top, log = torch.cummax(x, 1), torch.logcumsumexp(x, 1)
    loss = (x.prod(1) * x.prod()).sum() + (x.cumprod(1) ** 2).sum() + (x * top.values).sum() + (x * log).sum()
    dx, = torch.autograd.grad(loss, x)
    zero, = torch.autograd.grad(x0.prod(1).sum(), x)
    return (loss, dx, zero, *top, log, *torch.cummin(x, 0), *torch.cummax(i, 1), *torch.cummax(b, 0), *torch.cummax(e, 0),
            *torch.cummin(e, 0), i.prod(), i.prod(1), b.prod(0, keepdim=True), x.prod(0, dtype=torch.float64), i.cumprod(0),
            b.cumprod(1), torch.logcumsumexp(x * 100, 0), torch.logcumsumexp(e, 0), h.prod(1), h.cumprod(0), x[:0].prod(0),
            x[:, :0].cumprod(1), torch.tensor(3.).prod(), torch.tensor(3.).cumprod(0), *torch.cummax(torch.tensor(2), 0))


@case(lambda: [normal(3, 5), normal(5), normal(3), normal(2, 3, 4), normal(2, 4, 5), torch.randint(-4, 5, (3, 5)),
               torch.randint(-4, 5, (2, 5, 3))])
def products(x, v, w, p, q, i, j):
    return (torch.addmv(w, x, v), torch.addmv(w, x, v, beta=0.5, alpha=2), torch.addr(x, w, v, beta=0.5, alpha=2),
            torch.outer(w, v), torch.dot(v, v), torch.vdot(v, v), x @ v, torch.baddbmm(x, p, q, beta=0.5, alpha=2),
            torch.addbmm(x, p, q), i @ j[0], i[0] @ j[0], torch.bmm(i.expand(2, 3, 5), j), torch.dot(i[0], i[1]),
            torch.addmm(j[0, 0], i, j[1]), torch.linalg.cross(w, w.flip(0)), torch.linalg.norm(x), torch.norm(x, 3, dim=1),
            x.norm(p=1, dtype=torch.float64), torch.linalg.vector_norm(x, float("inf"), dim=0), *torch.std_mean(x, 1), x.std(0, correction=0),
            x.diagonal(1).diag_embed(-1), v.diag(), x.rot90(), x.rot90(2), x.rot90(-1, [0, 1]), torch.linspace(-3, 7.5, 8),
            torch.linspace(5, 0, 6, dtype=torch.int64), torch.linspace(2, 3, 1), torch.logspace(-1, 1, 5, base=2), x.asin(),
            x.acos(), x.atan(), torch.atan2(x, x.flip(0)), torch.atan2(i, i.flip(0)), x.erfc(), (x / 4).erfinv(), i.relu(),
            torch.special.entr(x.abs()))


@case(lambda: [normal(3, 4), normal(3, 4)])
def results_elsewhere(x, y):
    """Results written to `out`, axes that go in place, tensors without elements, numbers as results."""
    a, b = torch.zeros(3, 4), torch.empty(3)
    view = a[0]
    torch.add(x, y, alpha=2, out=a)
    torch.sum(x, 1, out=b)
    c = torch.mm(x, y.t(), out=torch.empty(3, 3))
    d = torch.cat([x, y], out=torch.empty(6, 4)).unsqueeze_(0)
    e = d.transpose_(1, 2).mul_(2)
    z, k = x[:0], torch.zeros(0, dtype=torch.int64)
    return (a, view, b, c, d, e, 3, None, True, 2.5, z, z.sum(), z.sum(0), z.prod(), z.mean(1), z + 1, z @ y.t(), z.t() @ z,
            torch.cat([z, x]), z.softmax(1), x[k], x.index_add(0, k, z), x.gather(1, k.reshape(0, 1)), z.relu().cumsum(0),
            z.argsort(1), z.any(0), z.all(), z.to(torch.int64), x[:, :0] @ y[:, :0].t(), z.reshape(4, 0), z.t().contiguous())


@case(lambda: [torch.tensor(EDGES), torch.rand(6) * 4, torch.rand(6) * 4])
def gamma_function(e, a, b):
    """The log-probability of a beta distribution and its gradients."""
    leaves([a, b])
    p = torch.linspace(0.1, 0.9, 6)
    log = (a - 1) * p.log() + (b - 1) * (1 - p).log() + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    return (*grads(log.sum(), a, b), e.lgamma(), e.digamma(), torch.tensor([1., 2.]).lgamma(), torch.arange(1, 9).lgamma(),
            e.double().lgamma(), a.bfloat16().digamma())


@case(lambda: [torch.tensor(1.7), torch.tensor(3), torch.randint(-4, 5, (3, 5)), torch.rand(3, 5) < 0.5])
def without_axes(f, k, i, b):
    """Tensors without axes where others name an axis; sums of integers in the dtype asked for."""
    zero, other = torch.tensor([0]), torch.tensor([4])
    return (*f.sort(0), k.argsort(), *f.topk(1), f.cumsum(0), *k.max(0), f.logsumexp(0), f.softmax(0), *f.median(0), *k.kthvalue(1),
            k.index_select(0, zero), f.index_add(0, zero, f), k.index_copy(0, zero, other), k.gather(0, zero[0]), f.amax(0),
            k.repeat(3), k.count_nonzero(0), torch.isin(k, other), i.sum(dtype=torch.int32), b.sum(1, dtype=torch.int32),
            i.byte().sum(0, dtype=torch.uint8), i.sum(dtype=torch.float32), b.sum(0, dtype=torch.bfloat16),
            i.cumsum(1, dtype=torch.int32), i.prod(1, dtype=torch.int32), i.int().sum(), i.int().cumsum(0))


# ---- rows that a mask or an index names, mixed dtypes, rotations ----

@case(lambda: [normal(4, 5, 3), normal(3), normal(1, 3), torch.tensor(2.), torch.rand(4, 5) < .5, torch.rand(5) < .5,
               normal(2, 3, 2, 3, 2)])
def masked_rows(x, row, wide, number, mask, columns, five):
    """One row or number put where a mask says, before and behind axes that are taken whole; the gradients of both."""
    leaves([x, row, wide, number, five])
    z = x * 1
    z[mask] = row
    z[:, columns] = number
    out = [x.index_put((mask,), wide), x.index_put((mask,), row, accumulate=True), z, x.index_put((mask,), number),
           F.pad(five, (1, 0, 0, 1, 2, -1, 1, 1, 0, 2), value=.5)]
    return (*out, *torch.autograd.grad(sum((y ** 3).sum() for y in out), [x, row, wide, number, five]))


@case(lambda: [normal(5, 3), torch.rand(5, 3, dtype=torch.float64), torch.randint(0, 5, (5, 3)), normal(5, 3).bfloat16()])
def mixed_losses(x, d, i, h):
    """Losses and joints of tensors of several dtypes."""
    leaves([x, d, h])
    out = [F.mse_loss(x, d), F.mse_loss(h, x), F.mse_loss(x, i, reduction="sum"), F.smooth_l1_loss(x, d), F.l1_loss(d, x),
           F.binary_cross_entropy_with_logits(x, d), torch.stack([x, d, i]), torch.stack([h, x], 1), torch.hstack([i, x]),
           F.cosine_similarity(x, d), F.huber_loss(d, d.detach() / 2)]
    loss = sum((y.double() ** 2).sum() for y in out)
    return (*out, *torch.autograd.grad(loss, [x, d]))


@case(lambda: [normal(4, 3), normal(6, 3), torch.randint(0, 3, (6, 3)), torch.randint(0, 3, (6,)), torch.randint(-4, 5, (4, 3)),
               torch.randint(-4, 5, (6, 3))])
def extremes(x, src, at, rows, i, j):
    """The greatest and least of what goes to one place, with ties, whose gradient is shared."""
    leaves([x, src])
    tied = src - src.fmod(1)
    out = [x.scatter_reduce(0, at, s, how, include_self=own) for s in (src, tied) for how in ("amax", "amin") for own in (True, False)]
    if hasattr(torch.Tensor, "index_reduce"):
        out += [x.index_reduce(0, rows, src, how, include_self=own) for how in ("amax", "amin", "mean") for own in (True, False)]
    whole = [i.scatter_reduce(0, at, j, how, include_self=own) for how in ("amax", "amin") for own in (True, False)]
    whole += [x.detach().scatter_reduce(0, at[:3, :2], src.detach(), "amax"), i.byte().scatter_reduce(0, at, j.byte(), "amin", include_self=False),
              (i > 0).scatter_reduce(0, at, j > 0, "amax"), x.bfloat16().scatter_reduce(0, at, src.bfloat16(), "amin")]
    return (*out, *whole, *torch.autograd.grad(sum((y ** 3).sum() for y in out), [x, src]))


@case(lambda: [normal(2, 5, 4, 8), normal(2, 5, 2, 8).bfloat16(), torch.rand(2, 5, 4), normal(7, 4, 2)])
def rotary_complex(q, k, angle, table):
    """Rotary embeddings in complex numbers, as Llama 4 writes them; the gradients of queries, keys and angles."""
    leaves([q, k, angle, table])
    turn = torch.polar(torch.ones_like(angle), angle) * 1.0
    q2, k2 = (torch.view_as_complex(t.float().reshape(*t.shape[:-1], -1, 2)) for t in (q, k))
    a, b = (torch.view_as_real(t * turn[:, :, None, :]).flatten(3) for t in (q2, k2))
    cut = torch.view_as_complex(table)[:5].unsqueeze(1)
    c = torch.view_as_real(q2 * cut.conj()).flatten(3)
    d = torch.complex(angle.cos(), angle.sin())
    out = [a, b.type_as(k), c, (d * turn).real + d.imag]
    return (*out, *torch.autograd.grad(sum((y.float() ** 3).sum() for y in out), [q, k, angle, table]))


@case(lambda: [normal(3, 4), normal(3, 4), torch.randint(-4, 5, (3, 4)), torch.randint(1, 5, (3, 4)), normal(4)])
def primitives(x, y, i, j, v):
    """What PyTorch's decompositions end in."""
    try:
        from torch._inductor import inductor_prims  # registers them, with those of torch._prims
    except ImportError:
        return x + 1
    p = torch.ops.prims
    f = torch.float64
    made = dict(dtype=torch.float32, device=torch.device("cpu"), requires_grad=False)
    return (p.add(x, y), p.sub(x, y), p.mul(x, y), p.div(x, y), p.div(i, j), p.eq(x, y), p.ne(i, j), p.lt(x, y), p.le(x, y),
            p.gt(x, y), p.ge(x, y), p.remainder(x, y), p.fmod(x, y), p.bitwise_and(i, j), p.bitwise_or(i, j), p.bitwise_xor(i, j),
            p.pow(p.abs(x), y), p.shift_left(j, j), p.shift_right_arithmetic(i, j), p.maximum(x, y), p.add(x, 1.5), p.fma(x, y, x),
            p.neg(x), p.erf_inv(p.div(x, 9.)), p.where(p.gt(x, y), x, y), p.fill(x, 2.), p.convert_element_type(x, f),
            p.broadcast_in_dim(v, [2, 3, 4], [2]), p.broadcast_in_dim(x, [3, 5, 4], [0, 2]), p.collapse_view(x, 0, 1),
            p.split_dim(x, 1, 2), p.squeeze(p.broadcast_in_dim(v, [1, 4, 1], [1]), [0, 2]), p.transpose(x, [1, 0]), p.view_of(x),
            p.reshape(x, [4, 3]), p.rev(x, [0]), p.cat([x, y], 1), p.sum(x, [0]), p.sum(x, [0, 1]), p.sum(i, [1]),
            p.amax(x, [1]), p.amin(x, [0, 1]), p.prod(x, [0, 1]), p.var(x, [1], 1.), p.var(x, [0, 1], 0.), p.full([2, 3], 1.5, **made),
            p.device_put(x, torch.device("cpu")))


# ---- traced before dispatch, differentiated by Tenon ----

def forward(inputs):
    """Registers a function that is traced before dispatch; its gradients are compared with Tenon's own of the forward."""
    def add(f):
        f.before = True
        return case(inputs)(f)
    return add


@forward(lambda: [normal(6), normal(4), normal(2, 12, 4, 4), normal(2, 3), normal(3, 2), normal(3, 4, 5), normal(4, 5, 3)])
def arrangements(a, b, image, m, k, p, q):
    """Grids, shuffles, blocks, splits and products over any axes."""
    return (*torch.meshgrid(a, b, indexing="ij"), *torch.meshgrid(a, b, a[:2], indexing="xy"), F.pixel_shuffle(image, 2),
            F.pixel_unshuffle(image, 2), F.channel_shuffle(image, 3), torch.block_diag(m, k, a), torch.kron(m, k), torch.kron(a, m),
            *a.tensor_split(4), *image.tensor_split((1, -2), 1), *m.hsplit((1,)), *a.hsplit(2), *image.vsplit(2),
            *image.dsplit((1, 3)), torch.atleast_1d(a.sum()), torch.atleast_2d(a), *torch.atleast_3d(a, m), torch.tensordot(p, q, 2),
            torch.tensordot(p, q, dims=([1, 0], [0, -1])), torch.linalg.multi_dot([m, k, m]), p.moveaxis(0, -1), m.reshape_as(k))


@forward(lambda: [normal(3, 4), normal(3, 4), normal(2, 3, 4), normal(4), torch.randint(0, 4, (3,)), normal(3), torch.randint(0, 4, (3,))])
def everyday(x, y, batch, v, labels, w, order):
    """Functions that a trace made before dispatch shows whole."""
    return (batch @ v, w @ batch, F.cross_entropy(x, labels, label_smoothing=.1), F.cross_entropy(x, labels, v.detach().exp(), label_smoothing=.2),
            F.pairwise_distance(x, y), F.pairwise_distance(x, y, 1, keepdim=True), torch.linalg.matrix_norm(x), torch.linalg.norm(x, "fro"),
            torch.special.ndtr(x), torch.float_power(x.abs(), 2.5), torch.float_power(2, x), torch.msort(x), torch.linalg.vecdot(x, y),
            torch.cross(x[:, :3], y[:, 1:], dim=-1), torch.cross(x, y), F.alpha_dropout(x, .5, training=False), torch.arctan(x),
            torch.special.logit(x.sigmoid()), torch.special.digamma(x.abs() + 1), torch.special.logsumexp(x, 1))


@forward(lambda: [normal(3, 4), normal(4, 4), normal(2, 5, 4, 8), torch.rand(2, 5, 4), normal(4, 3), normal(6, 3), torch.randint(0, 3, (6, 3)),
                  torch.rand(3) < .6, normal(4), torch.rand(3, 4, dtype=torch.float64)])
def forwards(x, w, q, angle, table, src, at, mask, row, d):
    """What torch.no_grad computes passes no gradient; masks, rotations, extremes and mixed dtypes do."""
    with torch.no_grad():
        teacher = (x @ w).tanh()
    turn = torch.polar(torch.ones_like(angle), angle)
    turned = torch.view_as_real(torch.view_as_complex(q.reshape(2, 5, 4, 4, 2)) * turn[..., None]).flatten(3)
    z = x * 1
    z[mask] = row
    return ((x @ w - teacher), teacher * w[:3], turned, z, table.scatter_reduce(0, at, src, "amax"),
            table.scatter_reduce(0, at, src - src.fmod(1), "amin"), table.scatter_reduce(0, at, src, "amin", include_self=False), F.mse_loss(x, d),
            torch.stack([x, d]), F.pad(q[None], (1, 0, 0, 1, 2, 0, 1, 1, 0, 1)))


# ---- type promotion: every pair of dtypes, of tensors with and without axes and Python's numbers ----

KINDS = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
SCALARS = [True, 3, -2, 0.1, 2.5]
MIXED = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "pow": lambda x, y: x ** y, "eq": lambda x, y: x == y, "lt": lambda x, y: x < y,
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else x.clamp(min=y),
    "where": lambda x, y: torch.where(torch.tensor([True, False, False, True]) if getattr(x, "ndim", 0) + getattr(y, "ndim", 0)
                                      else torch.tensor(False), x, y),
    "remainder": lambda x, y: x % y, "floor_divide": lambda x, y: x // y, "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "in_place": lambda x, y: x.clone().mul_(y), "copysign": lambda x, y: torch.copysign(x, y), "shift": lambda x, y: x << y,
}


def mixed_tensors():
    """Two of each dtype with an axis, then two of each without."""
    made = []
    for shape in ((4,), ()):
        for k in range(2):
            for d in KINDS:
                x = torch.randn(shape) + 1.3 if d.is_floating_point else torch.randint(1, 7, shape)
                made.append((x > 3).to(d) if d == torch.bool else x.to(d))
    return made


def mixed_pairs(t):
    n = len(KINDS)
    for i in range(2 * n):
        for j in range(2 * n):
            yield t[i % n + i // n * 2 * n], t[n + j % n + j // n * 2 * n]
        for s in SCALARS:
            yield t[i % n + i // n * 2 * n], s
            yield s, t[i % n + i // n * 2 * n]


def mixed(*names, every=1):
    """The results of these functions for every so many pairs of those that PyTorch takes."""
    taken = []

    def inputs():
        tensors = mixed_tensors()
        for name in names:
            for k, pair in enumerate(mixed_pairs(tensors)):
                try:
                    MIXED[name](*pair)
                    taken.append((name, k))
                except Exception:
                    pass
        taken[:] = taken[::every]
        return tensors

    def f(*tensors):
        pairs = list(mixed_pairs(tensors))
        return tuple(MIXED[name](*pairs[k]) for name, k in taken)

    f.__name__ = "mixed_" + (names[0] if len(names) == 1 else "some")
    case(inputs)(f)


for op in MIXED:
    mixed(op)
mixed("add", "mul", "div", "pow", "eq", "where", every=17)


# ---- ties, masked rows, values that stand for nothing elsewhere ----

def tied(*shape):
    """Few distinct values."""
    return torch.randint(-1, 3, shape).float()


@forward(lambda: [tied(4, 6), tied(4, 6), tied(2, 3, 4), tied(5)])
def ties(x, y, z, v):
    """Which of equal elements a gradient goes to: to the index that is returned, to all that tie, or to none at a bound."""
    return (*x.max(1), *x.max(0, keepdim=True), *z.min(1), *z.min(-1, keepdim=True), *v[2].max(0), *z.mode(1), *x.mode(0, keepdim=True),
            x.max(), z.min(), x.median(), v.nanmedian(), torch.where(y > 1, float("nan"), x).nanmedian(), x.amax(1), z.amin((0, 2)),
            *torch.aminmax(x, dim=1), *x.cummax(1), *z.cummin(2), *torch.sort(x, dim=1, stable=True), torch.maximum(x, y), torch.minimum(x, y),
            torch.fmax(x, y), x.clamp(0, 1), torch.clamp(x, y, y + 1), x.clamp(2, 1), F.relu(x), F.relu6(3 * x), F.hardtanh(x), F.threshold(x, 1, 7),
            F.leaky_relu(x, -.5), F.hardshrink(x, 1), F.softshrink(x, 1), F.hardswish(3 * x), F.huber_loss(x, y), F.smooth_l1_loss(x, y),
            F.l1_loss(x, y), x.norm(float("inf"), dim=1), x.norm(-float("inf"), dim=0), (0 * x).norm(dim=1), (0 * x).std(1), x.prod(1), z.cumprod(2),
            x.unfold(1, 3, 1).max(-1)[0], torch.zeros(4, 6).scatter_reduce(1, torch.zeros(4, 6, dtype=torch.int64), x, "amax"))


@forward(lambda: [normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(4, 6)])
def masked(q, k, v, x):
    """Rows of which a mask leaves nothing: weights and gradients are 0."""
    row, mask = torch.zeros(4, 1), torch.zeros(5, 5)
    row[1], mask[1], mask[0, 2:] = -math.inf, -math.inf, -math.inf
    attend = torch.ops.aten._scaled_dot_product_attention_math
    return (torch.ops.aten._safe_softmax(x + row, 1), torch.ops.aten._safe_softmax((x + row).expand(2, 4, 6), 2, torch.float64),
            torch.ops.aten._safe_softmax(x + torch.tensor([0, -math.inf, 0, 0, 0, 0]), 0), *attend(q, k, v, mask),
            *attend(q, k[:, :, :4], v[:, :, :4], mask[:, :4], scale=-.5), attend(q, k, v, mask > -1)[0], sdpa(q, k, v, attn_mask=mask),
            sdpa(q, k, v, attn_mask=mask > -1), sdpa(q, k, v, attn_mask=mask, scale=0.), torch.logsumexp(x + row, 0))


@forward(lambda: [normal(2, 4, 5, 4), normal(2, 2, 7, 4), normal(2, 2, 7, 4), normal(5, 7), normal(7, 3), normal(4, 6)])
def given(q, k, v, mask, table, x):
    """Values that elsewhere stand for none: a scale of 0 or below, factors of 0, an index that repeats."""
    ids = torch.tensor([[0, 3, 3], [6, 3, 0]])
    k2, v2 = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    attend = torch.ops.aten._scaled_dot_product_attention_math
    return (sdpa(q, k2, v2, scale=0.), sdpa(q, k2, v2, scale=-.7), sdpa(q, k2, v2, attn_mask=mask, scale=0.), sdpa(q, k2, v2, attn_mask=mask, scale=-.3),
            sdpa(q, k2, v2), attend(q, k2, v2, scale=0.)[0], attend(q, k2, v2, scale=-2.)[0], F.embedding(ids, table, scale_grad_by_freq=True),
            F.embedding(ids, table, 3, scale_grad_by_freq=True), F.embedding(ids, table, -1), F.embedding(ids[0, 1], table, scale_grad_by_freq=True),
            torch.addmm(x, x, x.t() @ x, beta=0, alpha=.5), torch.addmm(x, x, x.t() @ x, beta=2, alpha=0), torch.add(x, x, alpha=0),
            F.rms_norm(x, (6,), eps=0.), F.rms_norm(x, (4, 6)), F.layer_norm(x, (6,), eps=0.), F.leaky_relu(x, 0.), F.elu(x, 0.), x ** 1, x.std(0, correction=0),
            torch.logit(x.sigmoid(), eps=0.), F.cross_entropy(x, torch.tensor([1, 0, 5, 0]), ignore_index=0), F.smooth_l1_loss(x, x.flip(0), beta=0.))


@case(lambda: [tied(3, 4), normal(4, 6)])
def bounds(x, y):
    """Bounds of NaN, of infinity; reductions over no axes."""
    nan = float("nan")
    return (x.clamp(min=nan), x.clamp(0, nan), x.clamp_max(nan), x.clamp(-math.inf, math.inf), x.clamp(math.inf), x.int().clamp(min=nan), x.bool().any([]),
            x.all(dim=()), x.sum([]), x.amax([]), x.mean([]), x.var([]), F.rms_norm(y.bfloat16() / 256, (6,)), F.rms_norm(y.half() / 256, (6,)))


# ---- tracing, printing, comparing ----

class Replay(torch.fx.Interpreter):
    """Runs the graph again with the masks that Tenon drew instead of PyTorch's own."""
    def __init__(self, gm, masks):
        super().__init__(gm)
        self.masks = list(masks)

    def call_function(self, target, args, kwargs):
        if target == torch.ops.aten.bernoulli_.float:
            return args[0].copy_(self.masks.pop(0) * (args[1] if len(args) > 1 else 0.5))
        return super().call_function(target, args, kwargs)


# ---- models whose axes ranks divide: tests/programs/test_shard_imported.c ----

def bert_even_params():
    p = bert_params(V=64, T=8, C=16, L=1)
    for i, top in ((0, 64), (1, 64), (3, 2)):
        p[i] = torch.randint(0, top, (8, 8))
    p[1][:, ::3] = -100
    p[2] = torch.arange(8)[None] < torch.arange(1, 9)[:, None]
    return p


@case(bert_even_params)
def bert_even(*a):
    return bert_mlm(*a)


def t5_params(V=64, C=16, H=4, F=32, L=1, B=8, S=8, T=8):
    p = [torch.randint(1, V, (B, S)), torch.arange(S)[None] <= torch.arange(B)[:, None],
         torch.randint(1, V, (B, T)), torch.randint(1, V, (B, T)), normal(V, C, scale=.3),
         normal(8, H, scale=.3), normal(8, H, scale=.3)]
    p[3][:, -1] = -100
    norm = lambda: 1 + normal(C, scale=.1)
    attention = lambda: [normal(C, C, scale=.2) for _ in range(4)] + [norm()]
    feed = lambda: [normal(F, C, scale=.2), normal(C, F, scale=.2), norm()]
    for _ in range(L):
        p += attention() + feed() + attention() + attention() + feed()
    return p + [norm(), norm()]


def t5_buckets(queries, keys, both, count=8, most=16):
    """T5's buckets of relative positions (Raffel et al. 2020): half of them exact, the others by logarithm."""
    place = torch.arange(keys)[None] - torch.arange(queries)[:, None]
    first = torch.zeros_like(place)
    if both:
        count //= 2
        first = (place > 0).long() * count
        place = place.abs()
    else:
        place = -torch.min(place, torch.zeros_like(place))
    exact = count // 2
    far = exact + (torch.log(place.float().clamp(min=1) / exact) / math.log(most / exact) * (count - exact)).long()
    return first + torch.where(place < exact, place, far.clamp(max=count - 1))


@case(t5_params)
def t5(ids, keep, begun, labels, wte, bias_in, bias_out, *w):
    """Encoder and decoder: positions as biases of scores, which are not scaled, norms without means, tied embeddings."""
    leaves([wte, bias_in, bias_out, *w])
    H = bias_in.shape[1]
    C = wte.shape[1]
    heads = lambda x: x.view(x.shape[0], -1, H, C // H).transpose(1, 2)

    def attention(x, y, add, wq, wk, wv, wo, norm):
        h = rms(x, norm)
        y = h if y is None else y
        q, k, v = heads(h @ wq.t()), heads(y @ wk.t()), heads(y @ wv.t())
        s = F.softmax((q @ k.transpose(-1, -2) + add).float(), dim=-1)
        return x + (s @ v).transpose(1, 2).reshape(x.shape) @ wo.t()

    def feed(x, wi, wo, norm):
        return x + F.relu(rms(x, norm) @ wi.t()) @ wo.t()

    S, T = ids.shape[1], begun.shape[1]
    low = torch.finfo(torch.float32).min
    hidden = torch.where(keep, 0.0, low)[:, None, None, :]
    add = F.embedding(t5_buckets(S, S, True), bias_in).permute(2, 0, 1)[None] + hidden
    before = torch.full((T, T), low).triu(1)[None, None]
    own = F.embedding(t5_buckets(T, T, False), bias_out).permute(2, 0, 1)[None] + before
    x, y = F.embedding(ids, wte), F.embedding(begun, wte)
    for i in range(0, len(w) - 2, 21):
        x = feed(attention(x, None, add, *w[i:i + 5]), *w[i + 5:i + 8])
    x = rms(x, w[-2])
    for i in range(0, len(w) - 2, 21):
        y = attention(y, None, own, *w[i + 8:i + 13])
        y = attention(y, x, hidden, *w[i + 13:i + 18])
        y = feed(y, *w[i + 18:i + 21])
    logits = (rms(y, w[-1]) * C ** -0.5) @ wte.t()
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
    return grads(loss, wte, bias_in, bias_out, *w)


def moe_even_params():
    return [normal(32, 16), normal(8, 16), normal(8, 24, 16, scale=.2), normal(8, 16, 24, scale=.2), normal(32, 16)]


@case(moe_even_params)
def moe_even(*a):
    return moe_topk(*a)


@case(moe_even_params)
def moe_even_dispatch(*a):
    return moe_dispatch(*a)


# ---- convolutions ----

# Sizes of x and w, whether there is a bias, and what F.convN (transposed: F.conv_transposeN) is told beside them.
CONVOLUTIONS = [
    ((2, 3, 7), (4, 3, 3), True, dict(padding=1)),
    ((2, 6, 9), (6, 1, 4), True, dict(padding=3, groups=6)),
    ((3, 4, 10), (8, 1, 3), False, dict(stride=2, padding=1, dilation=2, groups=4)),
    ((2, 3, 8, 8), (8, 3, 4, 4), True, dict(stride=4)),
    ((2, 4, 7, 6), (6, 2, 3, 2), True, dict(stride=(1, 2), padding=(1, 0), dilation=(2, 1), groups=2)),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), True, dict(stride=(1, 2, 1), padding=(0, 1, 1), dilation=(1, 1, 2))),
    ((2, 4, 5), (4, 3, 3), True, dict(stride=2, padding=1, output_padding=1)),
    ((2, 4, 5), (4, 1, 3), False, dict(dilation=3, output_padding=2, groups=4)),
    ((2, 4, 3, 4), (4, 5, 2, 3), True, dict(stride=(2, 3), padding=(0, 1), output_padding=(0, 2))),
    ((1, 4, 2, 3, 2), (4, 3, 2, 1, 3), True, dict(stride=(1, 2, 2), padding=(0, 0, 1), output_padding=(0, 1, 0))),
]


def convolution_inputs(dtype):
    made = []
    for x, w, bias, how in CONVOLUTIONS:
        channels = w[1] * how.get("groups", 1) if "output_padding" in how else w[0]
        made += [normal(*x, dtype=dtype), normal(*w, dtype=dtype)] + [normal(channels, dtype=dtype)] * bias
    return made


def all_convolutions(tensors):
    out, rest = [], list(tensors)
    for x, w, bias, how in CONVOLUTIONS:
        in_use = leaves([rest.pop(0) for _ in range(2 + bias)])
        name = f"conv_transpose{len(x) - 2}d" if "output_padding" in how else f"conv{len(x) - 2}d"
        y = getattr(F, name)(*in_use, **how)
        out += [y, *torch.autograd.grad((y ** 2).sum(), in_use)]
    return out


@case(lambda: convolution_inputs(torch.float64))
def convolutions_double(*tensors):
    """Every kind of convolution and its gradients; the bound of doubles is 1e-12."""
    return all_convolutions(tensors)


@case(lambda: convolution_inputs(torch.float32))
def convolutions(*tensors):
    return all_convolutions(tensors)


@case(lambda: [normal(2, 3, 8, 8), normal(16, 3, 4, 4, scale=.2), normal(16), normal(1, 1, 16), normal(1, 5, 16), normal(16), normal(16),
               normal(16, 10, scale=.2), torch.randint(0, 10, (2,))])
def patch_embedding(image, w, b, token, positions, norm_w, norm_b, head, labels):
    """A step of what a vision transformer begins with."""
    params = leaves([w, b, token, positions, norm_w, norm_b, head])
    x = F.conv2d(image, w, b, stride=4).flatten(2).transpose(1, 2)
    x = torch.cat([token.expand(2, -1, -1), x], 1) + positions
    x = F.layer_norm(x, (16,), norm_w, norm_b)
    return grads(F.cross_entropy(x[:, 0] @ head, labels), *params)


@case(lambda: [normal(2, 9, 8), normal(8, 24, scale=.3), normal(12, 1, 4), normal(12), normal(12, 8, scale=.3)])
def causal_convolution(x, w_in, w, b, w_out):
    """A step of Mamba's way through a depthwise convolution."""
    params = leaves([x, w_in, w, b, w_out])
    h, gate = (x @ w_in).transpose(1, 2).chunk(2, 1)
    h = F.silu(F.conv1d(h, w, b, padding=3, groups=12)[..., :9])
    y = (h * F.silu(gate) + F.silu(gate)).transpose(1, 2) @ w_out
    return grads((y ** 2).mean(), *params)


@forward(lambda: [normal(2, 3, 6, 7), normal(4, 3, 2, 3), normal(4), normal(3, 6), normal(5, 3, 4)])
def padded_convolutions(x, w, b, line, taps):
    """Paddings by name, one image without a batch; traced before dispatch."""
    return (F.conv2d(x, w, b, padding="same"), F.conv2d(x, w, b, padding="valid", stride=2), F.conv2d(x[0], w, b),
            F.conv1d(line[None], taps, padding="same", dilation=2), F.conv1d(line, taps, padding=3),
            F.conv_transpose2d(x, w.transpose(0, 1), stride=2, output_padding=1))


# What F.NAME is told beside a tensor of these sizes.
POOLS = [
    ((2, 3, 7, 6), "max_pool2d", dict(kernel_size=3, stride=2, padding=1)),
    ((2, 3, 8, 5), "max_pool2d", dict(kernel_size=(2, 3), dilation=(2, 1))),
    ((1, 2, 8, 8), "max_pool2d", dict(kernel_size=3, stride=2, ceil_mode=True)),
    ((2, 3, 9), "max_pool1d", dict(kernel_size=3, stride=2)),
    ((1, 2, 4, 5, 6), "max_pool3d", dict(kernel_size=2, padding=1)),
    ((2, 3, 7, 6), "avg_pool2d", dict(kernel_size=3, stride=2, padding=1)),
    ((2, 3, 7, 6), "avg_pool2d", dict(kernel_size=3, stride=2, padding=1, count_include_pad=False)),
    ((2, 3, 6, 6), "avg_pool2d", dict(kernel_size=2, divisor_override=3)),
    ((2, 3, 8), "avg_pool1d", dict(kernel_size=4, stride=2)),
    ((1, 2, 4, 5, 6), "avg_pool3d", dict(kernel_size=(2, 3, 2))),
    ((2, 3, 6, 8), "adaptive_avg_pool2d", dict(output_size=(3, 2))),
    ((2, 3, 6, 8), "adaptive_avg_pool2d", dict(output_size=1)),
]


@case(lambda: [normal(*size) for size, _, _ in POOLS])
def pools(*tensors):
    """Pools and their gradients; the first has equal elements, of which the first counts."""
    tensors = [tensors[0].round(), *tensors[1:]]
    out = []
    for x, (_, name, how) in zip(leaves(tensors), POOLS):
        y = getattr(F, name)(x, **how)
        out += [y, *torch.autograd.grad((y ** 2).sum(), x)]
    inside = tensors[-1].detach().permute(0, 3, 1, 2) # whose channels lie innermost
    return (*out, *F.max_pool2d_with_indices(tensors[0].detach(), 3, 2, 1), F.adaptive_avg_pool2d(inside, 1))


# ---- resampling, borders, windows, systems of equations ----

# What F.interpolate is told beside a tensor of these sizes.
RESIZED = [
    ((2, 3, 5), dict(size=10)), ((2, 3, 5), dict(size=7)), ((2, 3, 6), dict(scale_factor=1.7)),
    ((2, 3, 4, 5), dict(scale_factor=2)), ((2, 3, 4, 5), dict(size=(7, 3), mode="nearest-exact")),
    ((2, 3, 4, 5), dict(size=(2, 11), mode="nearest")), ((1, 2, 3, 4, 2), dict(scale_factor=(2, 1, 3))),
    ((2, 3, 5), dict(size=9, mode="linear")), ((2, 3, 5), dict(size=9, mode="linear", align_corners=True)),
    ((2, 3, 4, 5), dict(scale_factor=2, mode="bilinear")), ((2, 3, 7, 5), dict(size=(4, 8), mode="bilinear", align_corners=True)),
    ((2, 3, 7, 5), dict(scale_factor=(1.3, .6), mode="bilinear")), ((2, 3, 4, 5), dict(size=(1, 1), mode="bilinear", align_corners=True)),
    ((2, 3, 4, 5), dict(scale_factor=2.5, mode="bicubic")), ((2, 3, 6, 5), dict(size=(4, 9), mode="bicubic", align_corners=True)),
    ((1, 2, 3, 4, 3), dict(size=(5, 3, 6), mode="trilinear")), ((2, 3, 1, 6), dict(size=(3, 6), mode="bicubic")),
    *(((2, 3, 9, 7), dict(mode=mode, antialias=True, **how)) for mode in ("bilinear", "bicubic")
      for how in (dict(size=(4, 3)), dict(size=(13, 3)), dict(scale_factor=.4), dict(size=(4, 12), align_corners=True))),
]


def all_resized(tensors):
    out = []
    for x, (_, how) in zip(leaves(tensors), RESIZED):
        y = F.interpolate(x, **how)
        out += [y, *torch.autograd.grad((y ** 2).sum(), x)]
    return out


@case(lambda: [normal(*size) for size, _ in RESIZED])
def resized(*tensors):
    """Every kind of resampling and its gradient."""
    return all_resized(tensors)


@case(lambda: [normal(*size, dtype=torch.float64) for size, _ in RESIZED])
def resized_double(*tensors):
    """The same; the bound of doubles is 1e-12."""
    return all_resized(tensors)


@forward(lambda: [normal(*size) for size, _ in RESIZED])
def resized_before(*tensors):
    """The same, traced before dispatch, differentiated by Tenon."""
    return [F.interpolate(x, **how) for x, (_, how) in zip(tensors, RESIZED)]


def bordered(a, b, c):
    return [F.pad(a, (2, 1), mode="reflect"), F.pad(a[0], (3, 0), mode="replicate"), F.pad(b, (1, 3, 2, 0), mode="reflect"),
            F.pad(b, (4, 1, 0, 6), mode="replicate"), F.pad(b[0], (1, 1, 2, 2), mode="reflect"), F.pad(c, (1, 2, 0, 1, 2, 1), mode="reflect"),
            F.pad(c, (1, 2, 3, 1, 4, 0), mode="replicate"), F.pad(b, (-1, 2, 1, -2), mode="replicate")]


@case(lambda: [normal(2, 3, 5), normal(2, 3, 4, 6), normal(1, 2, 3, 4, 5)])
def borders(*tensors):
    """Paddings by a tensor's own elements, and their gradients."""
    ys = bordered(*leaves(tensors))
    return (*ys, *grads(sum((y ** 3).sum() for y in ys), *tensors))


@forward(lambda: [normal(2, 3, 5), normal(2, 3, 4, 6), normal(1, 2, 3, 4, 5)])
def borders_before(*tensors):
    """The same, and circular ones, traced before dispatch, differentiated by Tenon."""
    a, b, _ = tensors
    return [*bordered(*tensors), F.pad(b, (2, 1, 3, 0), mode="circular"), F.pad(a, (1, 4), mode="circular")]


WINDOWS = [dict(kernel_size=3), dict(kernel_size=(2, 3), padding=(1, 0), stride=2), dict(kernel_size=(3, 1), padding=(1, 0), dilation=(1, 2)),
           dict(kernel_size=2, dilation=(2, 3), padding=1, stride=(1, 2))]


def windowed(image):
    ys = [F.unfold(image, **how) for how in WINDOWS]
    return [*ys, F.unfold(image[0], 2), *(F.fold(y ** 2, image.shape[2:], **how) for y, how in zip(ys, WINDOWS)), F.fold(ys[0][0] ** 2, (6, 7), 3)]


@case(lambda: [normal(2, 3, 6, 7)])
def windows(image):
    """im2col and col2im, and their gradients, each the other."""
    ys = windowed(*leaves([image]))
    return (*ys, *grads(sum((y ** 2).sum() for y in ys), image))


@forward(lambda: [normal(2, 3, 6, 7)])
def windows_before(image):
    """The same, traced before dispatch, differentiated by Tenon."""
    return windowed(image)


# What F.NAME is told beside a tensor of these sizes: windows of several sizes, and those that end behind the padding.
UNEVEN_POOLS = [
    ((2, 3, 7, 5), "adaptive_avg_pool2d", dict(output_size=(3, 2))), ((2, 3, 7), "adaptive_avg_pool1d", dict(output_size=4)),
    ((3, 7, 5), "adaptive_avg_pool2d", dict(output_size=(None, 3))), ((1, 2, 4, 5, 7), "adaptive_avg_pool3d", dict(output_size=(2, 3, 9))),
    ((2, 3, 7, 5), "adaptive_max_pool2d", dict(output_size=(3, 2))), ((2, 3, 6, 8), "adaptive_max_pool2d", dict(output_size=(3, 4))),
    ((3, 7), "adaptive_max_pool1d", dict(output_size=4)), ((1, 2, 4, 5, 3), "adaptive_max_pool3d", dict(output_size=(2, 3, 2))),
    ((2, 3, 7, 6), "avg_pool2d", dict(kernel_size=2, stride=2, ceil_mode=True)),
    ((2, 3, 8, 6), "avg_pool2d", dict(kernel_size=3, stride=2, padding=1, ceil_mode=True)),
    ((2, 3, 8, 6), "avg_pool2d", dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)),
    ((2, 3, 8, 6), "avg_pool2d", dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, divisor_override=5)),
    ((2, 3, 8), "avg_pool1d", dict(kernel_size=3, stride=2, ceil_mode=True)),
    ((2, 3, 2, 5), "adaptive_avg_pool2d", dict(output_size=6)), ((2, 3, 2, 5), "adaptive_max_pool2d", dict(output_size=(6, 5))),
    ((2, 3, 4, 5), "avg_pool2d", dict(kernel_size=9, ceil_mode=True)), ((2, 3, 5), "max_pool1d", dict(kernel_size=8, ceil_mode=True)),
    ((2, 3, 4, 5), "avg_pool2d", dict(kernel_size=(9, 12), padding=2, ceil_mode=True)),
    ((2, 3, 4, 5), "avg_pool2d", dict(kernel_size=(9, 12), padding=2, ceil_mode=True, count_include_pad=False)),
]


@case(lambda: [normal(*size) for size, _, _ in UNEVEN_POOLS])
def uneven_pools(*tensors):
    """Pools whose windows have several sizes, and their gradients."""
    out = []
    for x, (_, name, how) in zip(leaves(tensors), UNEVEN_POOLS):
        y = getattr(F, name)(x, **how)
        out += [y, *torch.autograd.grad((y ** 2).sum(), x)]
    return (*out, *F.adaptive_max_pool2d_with_indices(tensors[4].detach(), (3, 2)))


def equations(a, b, spd, batch, x, y):
    lower = a.tril() + 3 * torch.eye(5, dtype=a.dtype)
    square = spd @ spd.mT + torch.eye(7, dtype=a.dtype)
    solve = torch.linalg.solve_triangular
    return [solve(lower, b, upper=False), solve(lower.mT, b, upper=True), solve(lower, b.mT, upper=False, left=False),
            solve(a.tril(-1), b, upper=False, unitriangular=True), solve(lower, batch, upper=False),
            torch.linalg.cholesky(square), torch.linalg.cholesky(square, upper=True), torch.linalg.inv(square), torch.inverse(batch[..., :3, :3]),
            torch.cdist(x, y), torch.cdist(x, y, p=1), torch.cdist(x, y, p=3), torch.cdist(x, y, p=math.inf), torch.cdist(x[0], x[0], p=1)]


def equation_inputs(dtype):
    return lambda: [normal(5, 5, dtype=dtype), normal(5, 3, dtype=dtype), normal(2, 7, 7, dtype=dtype), normal(2, 5, 4, dtype=dtype),
                    normal(2, 4, 3, dtype=dtype), normal(2, 6, 3, dtype=dtype)]


@case(equation_inputs(torch.float32))
def systems(*tensors):
    """Triangular systems, factorizations, inverses, distances."""
    return equations(*tensors)


@forward(equation_inputs(torch.float64))
def systems_before(*tensors):
    """The same in double, traced before dispatch, differentiated by Tenon."""
    return equations(*tensors)


@case(lambda: [normal(2, 6, 8), normal(3, 7)])
def fourier(x, y):
    """Fourier transforms of small sizes, and their gradients."""
    leaves([x, y])
    z = torch.fft.fftn(x, dim=(1, 2))
    half = torch.fft.rfft(y)
    ys = [z.real, z.imag, torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, half.abs(), torch.fft.rfft(x, norm="ortho").imag,
          torch.fft.irfft(half * torch.fft.rfft(y.flip(1)), n=7), torch.fft.irfft2(torch.fft.rfft2(x) * torch.polar(y[0, :5].exp(), y[1, :5])),
          torch.fft.ifft(z, norm="backward").real]
    return (*ys, *grads(sum((t ** 2).sum() for t in ys), x, y))


@case(lambda: [normal(4, 3, 5), normal(4, 1, 1), normal(1, 1, 5)])
def weight_norms(v, first, last):
    """Weights by their direction and size, along either end's axis, and the gradients."""
    leaves([v, first, last])
    ys = [torch._weight_norm(v, first, 0), torch._weight_norm(v, last, 2)]
    return (*ys, *grads(sum((y ** 3).sum() for y in ys), v, first, last))


@case(lambda: [normal(5, 6), normal(2, 3)])
def strided_scatter(x, src):
    """Writes where strides say."""
    return torch.as_strided_scatter(x, src, (2, 3), (12, 2), 1), torch.as_strided_scatter(x, src, (2, 3), (1, 7))


@case(lambda: [normal(4, 3), normal(6, 3), torch.randint(0, 4, (6, 3)), torch.randint(0, 4, (6,)), torch.rand(4, 3) < .5, normal(14)])
def scattered_products(x, src, at, rows, mask, source):
    """Products of what is scattered, and what a mask puts in order."""
    ys = [x.scatter_reduce(0, at, src, "prod"), x.scatter_reduce(0, at, src, "prod", include_self=False),
          x.index_reduce(0, rows, src, "prod"), x.index_reduce(0, rows, src, "prod", include_self=False)]
    leaves([x, source])
    y = x.masked_scatter(mask, source)
    return (*ys, y, x.masked_scatter(mask[:, :1], source), *grads((y ** 2).sum(), x, source))


def bag_inputs(dtype):
    return lambda: [normal(9, 5, dtype=dtype), torch.tensor([3, 1, 3, 8, 0, 3, 7, 7, 2, 5]), torch.tensor([0, 4, 4, 7]),
                    normal(10, dtype=dtype), torch.tensor([0, 2, 9, 10]), torch.randint(0, 9, (3, 4))]


def all_bags(table, ids, offsets, factors, ends, rows):
    bag = F.embedding_bag
    return [*(bag(ids, table, offsets, mode=mode, padding_idx=p) for mode in ("sum", "mean", "max") for p in (None, 3)),
            bag(ids, table, offsets, mode="sum", per_sample_weights=factors), bag(rows, table, mode="mean"),
            bag(ids, table, ends, mode="sum", include_last_offset=True), bag(ids.int(), table, ends.int(), mode="max", include_last_offset=True),
            bag(ids, table, offsets, mode="sum", per_sample_weights=factors, padding_idx=7)]


@case(bag_inputs(torch.float64))
def bags_double(table, ids, offsets, factors, ends, rows):
    """Bags of a table's rows: sums, means and maxima, an empty bag, padding; and their gradients."""
    leaves([table, factors])
    ys = all_bags(table, ids, offsets, factors, ends, rows)
    return (*ys, *grads(sum((y ** 3).sum() for y in ys), table, factors))


@forward(bag_inputs(torch.float64))
def bags_before(*tensors):
    """The same, traced before dispatch, differentiated by Tenon."""
    return all_bags(*tensors)


def alignment_inputs(dtype):
    """Of 5 examples one has equal labels side by side, one no labels, one more of them than frames."""
    labels = torch.tensor([[1, 2, 3, 4], [2, 2, 2, 2], [5, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 3]])
    return lambda: [normal(9, 5, 6, dtype=dtype), labels, torch.tensor([9, 8, 6, 4, 3]), torch.tensor([4, 4, 2, 0, 4]),
                    torch.cat([row[:n] for row, n in zip(labels, (4, 4, 2, 0, 4))]), normal(7, 1, 4, dtype=dtype), torch.tensor([[3, 1, 1]])]


def all_alignments(x, labels, frames, lengths, line, one, few):
    ctc = lambda *a, **how: F.ctc_loss(*a, zero_infinity=True, **how)
    p = x.log_softmax(2)
    return [ctc(p, labels, frames, lengths, reduction="none"), ctc(p, labels, frames, lengths),
            ctc(p[:, :3], labels[:3], (9, 8, 6), (4, 4, 2), reduction="sum"), ctc(p, line, frames, lengths, reduction="none"),
            ctc(x[:, :3], labels[:3], frames[:3], lengths[:3], reduction="none"), ctc(one.log_softmax(2)[:, 0], few[0], torch.tensor(7), torch.tensor(3), blank=2)]


@case(alignment_inputs(torch.float64))
def alignments_double(x, labels, frames, lengths, line, one, few):
    """Losses over alignments by lengths that are data, and their gradients."""
    leaves([x, one])
    ys = all_alignments(x, labels, frames, lengths, line, one, few)
    return (*ys, *grads(sum((y ** 3).sum() for y in ys), x, one))


@forward(alignment_inputs(torch.float64))
def alignments_before(*tensors):
    """The same, traced before dispatch, differentiated by Tenon."""
    return all_alignments(*tensors)


@case(lambda: [torch.tensor([0., 2, 0, 3, 1]), torch.rand(3, 4) < .5, torch.arange(24).view(2, 3, 4) % 5])
def found(x, mask, i):
    """Where elements are not 0, of which at most so many are asked for."""
    return (torch.nonzero_static(x, size=2), torch.nonzero_static(x, size=6), torch.nonzero_static(mask, size=12, fill_value=7),
            torch.nonzero_static(i, size=5))


NAN, INF = float("nan"), float("inf")


def cut(*shape, rows, columns):
    """An image whose corner is -inf."""
    x = normal(*shape)
    x[..., rows, columns] = -INF
    return x


@case(lambda: [cut(1, 2, 6, 6, rows=slice(1, 4), columns=slice(0, 2)), cut(1, 2, 8, 6, rows=slice(0, 8), columns=slice(0, 6)), cut(1, 2, 4, rows=1, columns=slice(0, 2)),
               cut(1, 1, 5, 6, 4, rows=slice(0, 6), columns=slice(0, 3))])
def infinite_windows(x, none, line, space):
    """Maxima of windows of -inf alone that cross the padding: their places are in the image."""
    return (*F.max_pool2d(x, 3, 2, 1, return_indices=True), *F.max_pool2d(none, 3, 2, 1, dilation=2, ceil_mode=True, return_indices=True),
            F.max_pool1d(line, 3, 2, 1), *F.max_pool3d(space, 3, 2, 1, return_indices=True))


# What F.interpolate is told: scales that sizes round to what they were, or twice that.
ROUNDED = [
    ((1, 2, 7, 6), dict(scale_factor=1.1)), ((1, 2, 7, 6), dict(scale_factor=2.1)), ((1, 2, 7, 6), dict(scale_factor=1.1, mode="bilinear")),
    ((1, 2, 7, 6), dict(scale_factor=1.1, mode="bicubic")), ((1, 2, 7, 6), dict(scale_factor=(1.1, 1.5), mode="bicubic")), ((1, 2, 6), dict(scale_factor=1.1)),
    ((1, 2, 6), dict(scale_factor=2.1)), ((1, 2, 6), dict(scale_factor=1.1, mode="linear")), ((1, 2, 3, 4, 6), dict(scale_factor=1.1)),
    ((1, 2, 3, 4, 6), dict(scale_factor=1.1, mode="trilinear")), ((1, 2, 7, 6), dict(scale_factor=1.1, mode="nearest-exact")),
    ((1, 2, 7, 6), dict(scale_factor=(1.1, 1.5), mode="bilinear", antialias=True)), ((1, 2, 7, 6), dict(scale_factor=1.1, mode="bicubic", antialias=True)),
    ((1, 1, 5, 1), dict(size=(205, 3))),
]


@case(lambda: [normal(*size) for size, _ in ROUNDED])
def rounded_scales(*tensors):
    """Resampling to sizes that say more than the scale does, and its gradients."""
    out = []
    for x, (_, how) in zip(leaves(tensors), ROUNDED):
        y = F.interpolate(x, **how)
        out += [y, *torch.autograd.grad((y ** 2).sum(), x)]
    return out


@case(lambda: [(torch.rand(1, 2, 8, 8) * 1e4 + 2e4).half(), (normal(100) * 3e-3).half()])
def large_halves(x, small):
    """Means and deviations in f16 whose sums and variances it cannot hold."""
    leaves([x])
    ys = [F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool1d(x[0], 3), F.avg_pool2d(x, 8), F.avg_pool2d(x, 2, count_include_pad=False, padding=1)]
    g, = torch.autograd.grad(sum((y.float() / 1e4).square().sum() for y in ys), x)
    big = x.detach()
    return (*ys, g, big.std(), big.std(1), *torch.std_mean(big, 2), small.std(), F.avg_pool2d(torch.ones_like(big).repeat(1, 1, 40, 40), 320))


@case(lambda: [normal(6, 3), torch.tensor([0, 2, 5, 1, 2, 2, 4]), torch.tensor([0, 3, 5]), torch.tensor([], dtype=torch.int64), torch.tensor([0, 0]),
               torch.tensor([[NAN, 1], [3, NAN], [2, 4]]), torch.tensor([0, 1, 2, 2]), torch.tensor([0, 3])])
def bags_cut(table, ids, ends, none, begins, unknown, rows, two):
    """Bags that end before the indices do, bags without indices, maxima of NaN."""
    bag = F.embedding_bag
    return (bag(ids, table, ends, mode="sum", include_last_offset=True), bag(ids, table, ends, mode="sum", include_last_offset=True, padding_idx=2),
            bag(ids, table, ends, mode="max", include_last_offset=True), bag(ids, table.double(), ends, mode="mean", include_last_offset=True),
            *(bag(none, table, begins, mode=mode) for mode in ("sum", "mean", "max")), bag(rows, unknown[:, :1], two, mode="max"))


RANGES = [(-.9, 2.1, 2.), (.5, 5, 1), (2.1, -2.9, -1.), (3.9, -4.4, -.36), (3, 5.18, 1), (-5, 5, 3)]
SPACES = [(.5, 9.7, 5), (4.3, 0, 50), (0, 255, 7), (2.9, .9, 4), (1.5, 7.5, 1)]
INTEGERS = (torch.int64, torch.int32)


@case(lambda: [torch.rand(20) > .5, torch.rand(20) > .5])
def integers_of_floats(a, b):
    """Integers that floats count, integers that no double is, and a bool as alpha."""
    return (*(torch.arange(*r, dtype=d) for r in RANGES for d in INTEGERS), torch.arange(2 ** 53, 2 ** 53 + 5), torch.arange(2 ** 62, 2 ** 62 + 9, 4),
            *(torch.linspace(*r, dtype=d) for r in SPACES for d in (*INTEGERS, torch.uint8)), torch.logspace(.9, 4.2, 4, dtype=torch.int64),
            torch.add(a, b, alpha=False), torch.add(a, b, alpha=True))


@case(lambda: [normal(3), normal(2, 1), torch.rand(5, 3) < .5, normal(15)])
def masked_wider(x, y, mask, source):
    """A mask that is larger than what it puts elements in."""
    leaves([x, source])
    out = [x.masked_scatter(mask, source), y.masked_scatter(mask[:2], source)]
    return (*out, *grads((out[0] ** 2).sum(), x, source))


def listed(a, b):
    """A list of nodes has devices and equations without quotes."""
    return (torch.full((2, 2), 1.5), torch.einsum("ij,jk->ik", a, b), torch.einsum("ij, jk -> ki", a, b), torch.einsum("ij,jk", a, b),
            a.div(3, rounding_mode="floor"), torch.cat([a]))


listed.whole, listed.form = True, "list"
case(lambda: [normal(2, 3), normal(3, 2)])(listed)


def written(make):
    """A tensor and what make gives of it, after the latter was written."""
    def both(x):
        x = x * 1.
        y = make(x)
        y.add_(1.)
        return x, y
    return both


# What PyTorch makes as a view, or as a copy.
SHAPED = [lambda x: x.t().reshape(-1), lambda x: x.reshape(-1), lambda x: x.t().flatten(), lambda x: x.flatten(), lambda x: x.ravel(), lambda x: x.t().ravel(),
          lambda x: x.t().reshape_as(x), lambda x: x[:, 1:].reshape(9), lambda x: x[:, 1:].reshape(3, 3, 1), lambda x: x[1:].reshape(-1), lambda x: x[0, ::2].ravel(),
          lambda x: x[0, ::2].reshape(-1), lambda x: (x.t() * 2.).reshape(2, 2, 3), lambda x: torch.einsum("ij->ji", x), lambda x: torch.einsum("ii->i", x[:, :3]),
          lambda x: torch.einsum("ij->ij", x), lambda x: torch.einsum("ij->i", x), lambda x: torch.meshgrid(x[0], indexing="ij")[0],
          lambda x: torch.broadcast_tensors(x, torch.zeros(3, 4))[0], lambda x: torch.atleast_3d([x])[0]]


def shaped(x):
    out = [y for make in SHAPED for y in written(make)(x)]
    z = x * 1.
    y = z.t().reshape(-1)
    z.add_(1.)
    u = (x.t() * 2.).reshape(-1) # by strides that are not known, but nobody reads what it is made of
    return (*out, z, y, u.mul_(3.))


shaped.whole, shaped.form = True, 0 # its text has no strides
case(lambda: [normal(3, 4)])(shaped)


def printed(gm, form):
    if form == "list":
        return str(gm.graph)
    if form == 0 or not hasattr(gm, "print_readable"):
        return gm.code
    if form == 1:
        return str(gm)
    options = {"print_output": False}
    known = inspect.signature(gm.print_readable).parameters
    if "print_output" not in known:
        return gm.code
    if form == 3:
        options.update({k: True for k in ("include_stride", "include_device", "expanded_def") if k in known})
    return gm.print_readable(**options)


def trace(f, args):
    torch.manual_seed(1)
    options = {"pre_dispatch": True} if getattr(f, "before", False) or getattr(f, "whole", False) else {}
    gm = make_fx(f, **options)(*[a.detach().clone() for a in args])
    out = next(n for n in gm.graph.nodes if n.op == "output")
    divided = (torch.ops.aten.div_.Tensor, torch.ops.aten.div_.Scalar)
    drawn = [n for n in gm.graph.nodes if n.target in divided and
             n.args[0].target == torch.ops.aten.bernoulli_.float]
    if drawn:
        out.args = (list(out.args[0]) + drawn,)
        gm.recompile()
    return gm, len(drawn)


def differentiated(where, f, args):
    """A loss of the results of f, before dispatch, for Tenon to differentiate, and PyTorch's gradients of it."""
    def loss(*inputs):
        floats = [y for y in flat(f(*inputs)) if y.dtype.is_floating_point]
        return sum((y.double() ** 3).sum() for y in floats)

    free = [i for i, a in enumerate(args) if a.dtype.is_floating_point]
    inputs = [a.detach().clone().requires_grad_(i in free) for i, a in enumerate(args)]
    want = torch.autograd.grad(loss(*inputs), [inputs[i] for i in free])
    loss.before = True
    gm, _ = trace(loss, args)
    inside = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = dict(zip(inside, [a.detach().clone() for a in args]))
    tensors.update({n.target: getattr(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"})
    result = next(n for n in gm.graph.nodes if n.op == "output").args[0]
    with open(os.path.join(where, "forward.txt"), "w") as out:
        out.write(gm.code)
    with open(os.path.join(where, "forward.loss"), "w") as out:
        out.write(f"{result.name} {','.join(inside[i] for i in free)}\n")
    write_tensors(os.path.join(where, "forward.safetensors"), tensors)
    write_tensors(os.path.join(where, "gradients.safetensors"), {f"grad.{inside[i]}": g for i, g in zip(free, want)})


def make(folder, names):
    for number, (name, f, inputs) in enumerate(CASES):
        if names and name not in names:
            continue
        torch.manual_seed(number)
        try:
            args = inputs()
            gm, drawn = trace(f, args)
        except (AttributeError, RuntimeError, TypeError) as error:
            if NEWEST:
                raise
            left_out(folder, name, error)
            continue
        where = os.path.join(folder, name)
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, "graph.txt"), "w") as out:
            out.write(printed(gm, getattr(f, "form", number % 4)))
        inside = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
        tensors = dict(zip(inside, [a.detach().clone() for a in args]))
        for n in gm.graph.nodes:
            if n.op == "get_attr":
                tensors[n.target] = getattr(gm, n.target)
        write_tensors(os.path.join(where, "inputs.safetensors"), tensors)
        torch.save((drawn, [a.detach() for a in args]), os.path.join(where, "case.pt"))
        if getattr(f, "before", False):
            differentiated(where, f, args)
        if not drawn:
            want = gm(*[a.detach().clone() for a in args])
            write_tensors(os.path.join(where, "outputs.safetensors"),
                          {f"out{i}": t for i, t in enumerate(flat(want))})
        print(name)


# Cases are written for PyTorch 2.
NEWEST = int(torch.__version__.split(".")[0]) > 1


def left_out(folder, name, error):
    """What an old PyTorch cannot trace is said, not compared."""
    reason = f"this PyTorch cannot trace it: {str(error).strip().splitlines()[0]}"
    with open(os.path.join(folder, name + ".left-out"), "w") as out:
        out.write(reason)


def flat(x):
    if isinstance(x, torch.Tensor):
        return [x]
    if x is None or isinstance(x, (bool, int, float)):
        return []  # left out, and said
    return [t for y in (x.values() if isinstance(x, dict) else x) for t in flat(y)]


def expected(where, f, got):
    path = os.path.join(where, "outputs.safetensors")
    if os.path.exists(path):
        return read_tensors(path)
    drawn, args = torch.load(os.path.join(where, "case.pt"))
    gm, _ = trace(f, args)
    count = sum(1 for k in got if k.startswith("out"))
    masks = [got[f"out{count - drawn + i}"] for i in range(drawn)]
    with torch.no_grad():
        want = Replay(gm, masks).run(*[a.clone() for a in args])
    return {f"out{i}": t for i, t in enumerate(flat(want))}


# PyTorch 1 rounds elsewhere.
EXACT = ["numbers_beside_bf16"] + ["mixed_" + op for op in "add sub mul maximum where in_place".split()] if NEWEST else []


def check(folder, names):
    failed = 0
    for name, f, _ in CASES:
        where = os.path.join(folder, name)
        path = os.path.join(where, "got.safetensors")
        if names and name not in names:
            continue
        reason = os.path.join(folder, name + ".left-out")
        if os.path.exists(reason):
            with open(reason) as text:
                print(f"{name}: left out, {text.read()}")
            continue
        if not os.path.exists(path):
            print(f"{name}: nothing to compare")
            failed += 1
            continue
        got, worst, bad = read_tensors(path), 0.0, []
        want = expected(where, f, got)
        if getattr(f, "before", False):
            want.update(read_tensors(os.path.join(where, "gradients.safetensors")))
            path = os.path.join(where, "got-gradients.safetensors")
            got.update(read_tensors(path) if os.path.exists(path) else {})
        for key, t in want.items():
            if key not in got or got[key].shape != t.shape or got[key].dtype != t.dtype:
                bad.append(f"{key}: expected {list(t.shape)} {t.dtype}, found " +
                           (f"{list(got[key].shape)} {got[key].dtype}" if key in got else "nothing"))
                continue
            x, y = got[key].double(), t.double()
            same = (x == y) | (x.isnan() & y.isnan())
            x, y = x[~same], y[~same]
            error = ((x - y).norm() / max(t.double()[t.double().isfinite()].norm().item(), 1e-30)).item() if x.numel() else 0.0
            limit = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float64: 1e-12}.get(t.dtype, 2e-5)
            if name in EXACT or not t.dtype.is_floating_point:
                limit = 0
            worst = max(worst, error) if limit < 1e-2 else worst
            if not error <= limit:
                bad.append(f"{key}: relative error {error:.2g}")
        print(f"{name}: {len(want)} outputs, largest error {worst:.2g}" + "".join("\n  " + b for b in bad))
        failed += bool(bad)
    return failed


if __name__ == "__main__":
    command, folder = sys.argv[1:3]
    torch.set_num_threads(1)
    sys.exit(make(folder, sys.argv[3:]) if command == "make" else min(check(folder, sys.argv[3:]), 1))
