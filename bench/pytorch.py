#!/usr/bin/env python3
"""Training steps of Tenon and of PyTorch on the same cores, in turns: seconds and peak resident memory.

For each case GPT-2 124M or the four-layer Llama of bench/, in f32 or bf16, each program runs in a
process of its own, one after the other, as many rounds as asked: `tenon bench time`, PyTorch eager,
PyTorch with torch.compile. The median of a process' timed steps, and of all rounds. The same step:
random weights, no dropout, tied head, PyTorch's scaled-dot-product attention, mean cross-entropy, gradients
clipped to norm 1, fused AdamW; bf16 is autocast over f32 parameters, as Tenon's --dtype bf16. The
first step, which compiles and makes the optimizer's state, is not timed.

Where a case asks for memory, Tenon runs with `--chunk auto` and each of `--recompute none, selective
and full` as well, against PyTorch without recomputation. Peaks are of a process (VmHWM). Beside PyTorch's
stands what it takes by itself, importing it and one step of a model of a few KiB: its builds differ
in that (with CUDA or without), so that ratios to the rest are printed too.

Each ratio stands beside what is asked of it. With --keep FILE what was measured is kept there, a line
for each process, and not measured again by the same programs: a run that was stopped goes on.

usage: bench/pytorch.py [--tenon PATH] [--cases PATTERN] [--rounds N] [--runs N] [--threads N]
                        [--clock wall|cpu] [--modes eager,compile] [--keep FILE] [--list]
Needs torch (2.1 or newer) and nothing else."""

import argparse
import fnmatch
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = os.path.join(HERE, "llama3-1b-4-layers.json")

FASTER = 1.3  # asked: PyTorch's seconds by Tenon's, at least
MEMORY = {"none": 0.72, "selective": 0.58, "full": 0.42}  # asked: Tenon's bytes by PyTorch's, at most

# name: model, batch size, sequence length, rounds, timed steps a round, whether memory is asked for
CASES = {
    f"{name} {dtype}": dict(model=model, batch_size=batch, seq_len=seq, rounds=rounds, runs=runs,
                            memory=memory, dtype=dtype)
    for name, model, batch, seq, rounds, runs, memory in (
        ("gpt2 4x64", "gpt2", 4, 64, 2, 7, False),
        ("llama 4x64", LLAMA, 4, 64, 2, 3, False),
        ("gpt2 4x1024", "gpt2", 4, 1024, 2, 1, True),
        ("llama 1x2048", LLAMA, 1, 2048, 1, 1, False),
    )
    for dtype in ("f32", "bf16")
}


# ---- PyTorch's step, in a process of its own ----


def gpt2(torch):
    """GPT-2 124M."""
    nn, F = torch.nn, torch.nn.functional
    vocab, hidden, heads, layers, positions = 50257, 768, 12, 12, 1024

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (
                part.view(B, T, heads, C // heads).transpose(1, 2)
                for part in self.qkv(self.ln_1(x)).split(C, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
            return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.vocab = vocab
            self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.ln_f = nn.LayerNorm(hidden)

        def forward(self, ids, labels):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            logits = F.linear(self.ln_f(self.blocks(x)), self.wte.weight)
            return F.cross_entropy(logits.view(-1, vocab).float(), labels.view(-1))

    return GPT2()


def llama(torch, config):
    """A Llama by its config.json, tied head; the table of rope without Llama 3's scaling, which costs
    nothing in a step."""
    nn, F = torch.nn, torch.nn.functional
    hidden, inner, eps = config["hidden_size"], config["intermediate_size"], config["rms_norm_eps"]
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    size, vocab = config.get("head_dim", hidden // heads), config["vocab_size"]

    def rope(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def linear(i, o):
        return nn.Linear(i, o, bias=False)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
            self.q, self.o = linear(hidden, heads * size), linear(heads * size, hidden)
            self.k, self.v = linear(hidden, shared * size), linear(hidden, shared * size)
            self.gate, self.up = linear(hidden, inner), linear(hidden, inner)
            self.down = linear(inner, hidden)

        def forward(self, x, cos, sin):
            B, T, _ = x.shape
            h = self.norm_1(x)
            q, k, v = (p(h).view(B, T, -1, size).transpose(1, 2) for p in (self.q, self.k, self.v))
            q, k = rope(q, cos, sin).to(v.dtype), rope(k, cos, sin).to(v.dtype)
            k, v = (t.repeat_interleave(heads // shared, dim=1) for t in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(B, T, heads * size))
            h = self.norm_2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.vocab = vocab
            self.embed = nn.Embedding(vocab, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(config["num_hidden_layers"]))
            self.norm = nn.RMSNorm(hidden, eps)
            power = torch.arange(0, size, 2).float() / size
            self.register_buffer("frequency", config["rope_theta"] ** -power)

        def forward(self, ids, labels):
            x = self.embed(ids)
            angle = torch.outer(torch.arange(ids.shape[1]).float(), self.frequency)
            angle = torch.cat((angle, angle), dim=-1)
            for block in self.blocks:
                x = block(x, angle.cos(), angle.sin())
            logits = F.linear(self.norm(x), self.embed.weight)
            return F.cross_entropy(logits.view(-1, vocab).float(), labels.view(-1))

    return Llama()


def peak_kib():
    """Of this process alone: getrusage's figure starts at the peak of the parent process."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def make_model(torch, name):
    if name == "gpt2":
        model = gpt2(torch)
    else:
        with open(name) as f:
            model = llama(torch, json.load(f))
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.02)
    return model


TINY = dict(hidden_size=32, intermediate_size=32, rms_norm_eps=1e-5, num_attention_heads=2, vocab_size=64,
            num_key_value_heads=2, num_hidden_layers=1, rope_theta=1e4)


def make_step(torch, o, model, rows, length, compile):
    """A function that makes a training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compile else model

    def step():
        ids = torch.randint(model.vocab, (rows, length + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bf16"):
            loss = forward(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def worker(o):
    """Prints the median seconds of a step and this process's peak resident MiB, as JSON."""
    import torch

    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    make_step(torch, o, llama(torch, TINY), 1, 8, False)()
    alone = peak_kib() / 1024
    model = make_model(torch, o.model)
    step = make_step(torch, o, model, o.batch_size, o.seq_len, o.worker == "compile")
    now = time.process_time if o.clock == "cpu" else time.perf_counter
    step()
    seconds = []
    for _ in range(o.runs):
        start = now()
        step()
        seconds.append(now() - start)
    print(json.dumps({"sec": statistics.median(seconds), "mib": peak_kib() / 1024, "alone": alone}))


# ---- processes ----


class Kept:
    """What was measured, by what it was measured of; a line of the file each."""

    def __init__(self, path):
        self.path, self.known = path, {}
        if path and os.path.exists(path):
            with open(path) as f:
                for line in f:
                    if line.endswith("\n"):
                        row = json.loads(line)
                        self.known[row["key"]] = row["got"]

    def get(self, key, measure):
        if key not in self.known:
            self.known[key] = measure()
            if self.path:
                with open(self.path, "a") as f:
                    f.write(json.dumps({"key": key, "got": self.known[key]}) + "\n")
        return self.known[key]


def flags(case, o):
    of = dict(case, threads=o.threads, clock=o.clock)
    names = ("model", "batch_size", "seq_len", "runs", "threads", "clock", "dtype")
    return [x for n in names for x in ("--" + n.replace("_", "-"), str(of[n]))]


def output(argv):
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)


def run_torch(o, case, mode):
    return output([sys.executable, __file__, "--worker", mode] + flags(case, o))


def run_tenon(o, case, more=()):
    rows = output([o.tenon, "bench", "time", "--json"] + flags(case, o) + list(more))

    def value(name):
        return next(r["value"] for r in rows if r["name"].endswith(" " + name))

    return {"sec": value("step"), "mib": value("peak resident")}


def program_id(o):
    """Of what is compared: the program's bytes, PyTorch's version, the machine."""
    with open(o.tenon, "rb") as f:
        tenon = hashlib.sha256(f.read()).hexdigest()[:12]
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"],
                           check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return tenon, torch


# ---- the comparison ----


def asked(value, bound, least):
    good = value >= bound if least else value <= bound
    return f"(asked {'>=' if least else '<='} {bound}: {'met' if good else 'MISSED'})"


def compare_time(name, got, best):
    own = got["tenon"]
    print(f"{name}: tenon {own['sec']:.3f} s a step, peak resident {own['mib']:.0f} MiB")
    for mode, x in got.items():
        if mode == "tenon":
            continue
        ratio = x["sec"] / own["sec"]
        verdict = " " + asked(ratio, FASTER, True) if mode == best else ""
        print(f"{name}: PyTorch {mode} {x['sec']:.3f} s, {x['mib']:.0f} MiB, of which PyTorch alone"
              f" {x['alone']:.0f}; its time by tenon's {ratio:.2f}{verdict},"
              f" tenon's memory by its {own['mib'] / x['mib']:.2f}")


def compare_memory(o, name, case, kept, id, their):
    for recompute, bound in MEMORY.items():
        more = ("--chunk", "auto", "--recompute", recompute)
        key = f"{id[0]} {name} {o.threads} {' '.join(more)}"
        mib = kept.get(key, lambda: run_tenon(o, dict(case, runs=1), more))["mib"]
        ratio, bare = mib / their["mib"], mib / (their["mib"] - their["alone"])
        print(f"{name}: --chunk auto --recompute {recompute} {mib:.0f} MiB, of PyTorch's without"
              f" recomputation {ratio:.2f} {asked(ratio, bound, False)};"
              f" of that less PyTorch alone {bare:.2f}", flush=True)


def measure(o, name, case, kept, id):
    programs = ["tenon"] + o.modes.split(",")
    rows = {p: [] for p in programs}
    for turn in range(o.rounds or case["rounds"]):
        for p in programs:
            key = f"{id[p != 'tenon']} {name} {o.threads} {o.clock} {case['runs']} {p} {turn}"
            run = (lambda: run_tenon(o, case)) if p == "tenon" else lambda: run_torch(o, case, p)
            rows[p].append(kept.get(key, run))
    return {
        p: {"sec": statistics.median(r["sec"] for r in x),
            "mib": min(r["mib"] for r in x),  # compiling is done once, and may be in the first
            "alone": min(r.get("alone", 0) for r in x)}
        for p, x in rows.items()
    }


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--tenon", default="build/tenon", help="the program (build/tenon)")
    p.add_argument("--cases", default="*", help="those whose names match the pattern (*)")
    p.add_argument("--rounds", type=int, help="turns of all programs (by the case)")
    p.add_argument("--runs", type=int, help="timed steps of a process (by the case)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="cpu: seconds of one thread's work, where others use the machine (wall)")
    p.add_argument("--modes", default="eager,compile", help="of PyTorch (eager,compile)")
    p.add_argument("--keep", help="file of what was measured, to go on with")
    p.add_argument("--list", action="store_true", help="print the names of the cases")
    for name in ("worker", "model", "dtype"):
        p.add_argument("--" + name, help=argparse.SUPPRESS)
    for name in ("batch-size", "seq-len"):
        p.add_argument("--" + name, type=int, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.worker:
        return worker(o)
    cases = {n: c for n, c in CASES.items() if fnmatch.fnmatch(n, o.cases)}
    if o.list:
        return print("\n".join(cases))
    if not cases:
        p.error(f"no case matches {o.cases}; --list prints their names")
    if o.clock == "cpu":
        o.threads = 1
    id, kept = program_id(o), Kept(o.keep)
    print(f"{processor()}, {o.threads} threads, {o.clock} seconds; PyTorch {id[1]}", flush=True)
    for name, case in cases.items():
        case = dict(case, runs=o.runs or case["runs"])
        got = measure(o, name, case, kept, id)
        best = min((m for m in got if m != "tenon"), key=lambda m: got[m]["sec"])
        compare_time(name, got, best)
        if case["memory"]:
            compare_memory(o, name, case, kept, id, got[best])


if __name__ == "__main__":
    main()
