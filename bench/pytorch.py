#!/usr/bin/env python3
"""A training step of GPT-2 against PyTorch's, in this run, on the same cores.

Runs `tenon bench step` and the same step in PyTorch (eager, then torch.compile) in turn, each in a
process of its own, and prints the ratios of step time and of peak resident memory. The same step:
GPT-2's architecture with random weights, no dropout, tied head, PyTorch's scaled-dot-product
attention, mean cross-entropy, gradients clipped to norm 1, fused AdamW; bf16 is autocast over f32
parameters, as Tenon's --dtype bf16. Needs torch (2.1 or newer) and nothing else.

usage: bench/pytorch.py [--tenon PATH] [--batch-size N] [--seq-len N] [--runs N] [--rounds N]
                      [--threads N] [--dtype f32|bf16] [--modes eager,compile]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

VOCAB, HIDDEN, HEADS, LAYERS, POSITIONS = 50257, 768, 12, 12, 1024


def make_model(torch):
    """GPT-2 124M."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (
                part.view(B, T, HEADS, C // HEADS).transpose(1, 2)
                for part in self.qkv(self.ln_1(x)).split(C, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
            return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.ln_f = nn.LayerNorm(HIDDEN)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, labels):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            logits = F.linear(self.ln_f(self.blocks(x)), self.wte.weight)
            return F.cross_entropy(logits.view(-1, VOCAB).float(), labels.view(-1))

    return GPT2()


def torch_step(o):
    """Prints the seconds of each step and this process's peak resident KiB, as JSON."""
    import torch

    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    model = make_model(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if o.worker == "compile" else model

    def step():
        ids = torch.randint(VOCAB, (o.batch_size, o.seq_len + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bf16"):
            loss = forward(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(2):  # the first compiles; both make the optimizer's state
        step()
    seconds = []
    for _ in range(o.runs):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "kib": peak}))


def run(argv, o):
    """The JSON that a program prints, given the step's options."""
    for name in ("batch_size", "seq_len", "runs", "threads", "dtype"):
        argv += ["--" + name.replace("_", "-"), str(getattr(o, name))]
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)


def run_torch(o, mode):
    """One process of this script: (median seconds, MiB)."""
    got = run([sys.executable, __file__, "--worker", mode], o)
    return statistics.median(got["seconds"]), got["kib"] / 1024


def run_tenon(o):
    """(median seconds, MiB) of `tenon bench step`."""
    rows = run([o.tenon, "bench", "step", "--json", "--model", "gpt2"], o)

    def value(name):
        return next(row["value"] for row in rows if row["name"].endswith(" " + name))

    return value("step"), value("peak resident")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--tenon", default="build/tenon", help="the program (build/tenon)")
    p.add_argument("--batch-size", type=int, default=4, help="sequences (4)")
    p.add_argument("--seq-len", type=int, default=1024, help="tokens (1024)")
    p.add_argument("--runs", type=int, default=5, help="timed steps, of which the median counts (5)")
    p.add_argument("--rounds", type=int, default=1, help="turns of all programs (1)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="of computation (f32)")
    p.add_argument("--modes", default="eager,compile", help="of PyTorch (eager,compile)")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.worker:
        return torch_step(o)
    import torch

    head = f"gpt2 B={o.batch_size} T={o.seq_len} {o.dtype}, {o.threads} threads"
    modes = o.modes.split(",")
    got = {name: [] for name in ["tenon"] + modes}
    for _ in range(o.rounds):
        got["tenon"].append(run_tenon(o))
        for mode in modes:
            got[mode].append(run_torch(o, mode))
    of = {name: [statistics.median(x) for x in zip(*runs)] for name, runs in got.items()}
    print(f"{head}: tenon: {of['tenon'][0]:.3f} s a step, peak resident {of['tenon'][1]:.0f} MiB")
    for mode in modes:
        seconds, peak = of[mode]
        print(f"{head}: PyTorch {torch.__version__} {mode}: {seconds:.3f} s a step,"
              f" peak resident {peak:.0f} MiB; time / tenon's {seconds / of['tenon'][0]:.2f},"
              f" tenon's memory / its {of['tenon'][1] / peak:.2f}")


if __name__ == "__main__":
    main()
