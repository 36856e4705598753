"""PyTorch's figures for the same training steps on the same GPU: what `tools/gpu-check bench` prints
beside ours. Ceilings first: a copy in device memory and a bf16 product.

usage: gpu_peer.py gpt2|llama|ceilings [compile|eager] [--batch N] [--seq N] [--recompute]
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50257, length=1024, width=768, heads=12, layers=12):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        n = self.norm1(x)
        q = self.rotate(self.q(n).view(b, t, self.heads, self.size).transpose(1, 2), cos, sin)
        k = self.rotate(self.k(n).view(b, t, self.groups, self.size).transpose(1, 2), cos, sin)
        v = self.v(n).view(b, t, self.groups, self.size).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Llama(nn.Module):
    """The shape of Llama-3.2-1B: embedding and head are one matrix."""

    def __init__(self, recompute, vocabulary=128256, width=2048, heads=32, groups=8, inner=8192, layers=16):
        super().__init__()
        self.recompute, self.size = recompute, width // heads
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids, labels):
        t = ids.shape[1]
        rate = 5e5 ** -(torch.arange(0, self.size, 2, device=ids.device) / self.size)
        angle = torch.outer(torch.arange(t, device=ids.device), rate).repeat(1, 2)
        x = self.token(ids)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if self.recompute else block(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


def seconds(step, count):
    """Median over runs of one step, by device events."""
    taken = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return statistics.median(taken)


def ceilings():
    x, y = (torch.empty(1 << 30, dtype=torch.float32, device="cuda") for _ in range(2))
    x.normal_()
    sec = seconds(lambda: y.copy_(x), 10)
    print(f"copy {2 * x.nbytes / sec / 1e9:.0f} GB/s")
    del x, y
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    print(f"product_bf16 {2 * 8192**3 / seconds(lambda: a @ b, 10) / 1e12:.0f} TFLOP/s")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=["gpt2", "llama", "ceilings"])
    p.add_argument("how", nargs="?", choices=["compile", "eager"], default="eager")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--recompute", action="store_true")
    p.add_argument("--attention", choices=["cudnn", "flash"], default="cudnn")
    o = p.parse_args()
    torch.manual_seed(0)
    if o.model == "ceilings":
        return ceilings()
    gpt2 = o.model == "gpt2"
    model = (Gpt2() if gpt2 else Llama(o.recompute)).cuda()
    vocabulary = model.token.num_embeddings
    if not gpt2:
        model = model.to(torch.bfloat16)
    fused = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) if gpt2 else None
    run = torch.compile(model) if o.how == "compile" else model
    ids, labels = (torch.randint(vocabulary, (o.batch, o.seq), device="cuda") for _ in range(2))

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=gpt2):
            loss = run(ids, labels)
        loss.backward()
        if fused:
            fused.step()
        model.zero_grad(set_to_none=True)

    kind = SDPBackend.CUDNN_ATTENTION if o.attention == "cudnn" else SDPBackend.FLASH_ATTENTION
    start = time.time()
    with sdpa_kernel([kind, SDPBackend.FLASH_ATTENTION]):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        ready = time.time() - start
        torch.cuda.reset_peak_memory_stats()
        sec = seconds(step, o.steps)
    peak = torch.cuda.max_memory_allocated()
    print(f"{o.model} {o.how} {o.attention} B={o.batch} T={o.seq} recompute={o.recompute}: "
          f"{1e3 * sec:.2f} ms a step, peak {peak / 2**20:.0f} MiB allocated, ready after {ready:.0f} s")


main()
