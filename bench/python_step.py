#!/usr/bin/env python3
"""GPT-2 124M trained from Python, 4 x 64, f32, AdamW without clipping: seconds of a Step beside `tenon train`'s and
torch.compile's, and resident memory beside the plan.

The three train in turns on the same cores: the program `tenon train gpt2` in a process of its own, a Step and
PyTorch's torch.compile (Inductor) with its fused AdamW in this one, with equal weights. The medians of all timed steps are
compared; the first steps of a turn are not timed. The resident memory is a second process': what is resident at most
once the Step is compiled, less what PyTorch, Tenon and one Step of a tiny model take there, beside peak and
reserve of the plan.

usage: bench/python_step.py [--rounds N] [--steps N] [--batch-size B] [--seq-len T] [--threads N]
                            [--skip train,compile,memory] [--cpu]
Needs torch and a C++ compiler. Where others use the processor, --cpu counts the processor's seconds (user, of all
threads) instead; `tenon train`'s are those of a turn less those of a run of its first steps alone."""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "python")]

from pytorch import asked, gpt2, processor  # noqa: E402

SLOWER = 1.03   # asked: a Step's seconds by `tenon train`'s, at most
FASTER = 1.3    # asked: torch.compile's seconds by a Step's, at least
BESIDE = 64     # asked: MiB resident beside PyTorch's own and the plan, at most
UNTIMED = 2


def batch(torch, o):
    return torch.randint(50257, (o.batch_size, o.seq_len)), torch.randint(50257, (o.batch_size, o.seq_len))


def make_model(torch):
    torch.manual_seed(1)
    model = gpt2(torch)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.02)
    return model


def adamw(torch, model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)


def user_seconds(who):
    return resource.getrusage(who).ru_utime


def timed(o, step):
    """Seconds of o.steps steps."""
    clock, out = (lambda: user_seconds(resource.RUSAGE_SELF)) if o.cpu else time.perf_counter, []
    for i in range(UNTIMED + o.steps):
        begin = clock()
        step()
        if i >= UNTIMED:
            out.append(clock() - begin)
    return out


def run_train(o, folder, data):
    """Seconds of the steps of `tenon train`, by its metrics; of the processor, the mean of a turn's."""
    from tenon._train import program

    def run(steps):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            metrics, before = os.path.join(out, "metrics"), user_seconds(resource.RUSAGE_CHILDREN)
            subprocess.run([program(), "train", "gpt2", "--batch", data, "--steps", str(steps), "--clip", "0",
                            "--lr", "1e-4", "--schedule", "constant", "--threads", str(o.threads), "--metrics", metrics,
                            "--out", os.path.join(out, "run")], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            with open(metrics, encoding="utf-8") as f:
                seconds = [json.loads(line)["step_sec"] for line in f]
            return seconds, user_seconds(resource.RUSAGE_CHILDREN) - before
    seconds, whole = run(UNTIMED + o.steps)
    return [(whole - run(UNTIMED)[1]) / o.steps] if o.cpu else seconds[UNTIMED:]


def resident(o):
    """Prints MiB that are resident at most while Steps run, less those of PyTorch by itself, and the plan's."""
    import torch
    import tenon

    def peak():
        """MiB that were resident at most since `reset`."""
        with open("/proc/self/status", encoding="utf-8") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024

    def reset():
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as f:
            f.write("5")

    torch.set_num_threads(o.threads)
    tiny = torch.nn.Linear(8, 8)
    step = tenon.compile(tenon.capture(lambda x: tiny(x).square().mean(), torch.ones(4, 8), optimizer=adamw(torch, tiny)))
    step(torch.ones(4, 8))
    del step
    reset()
    alone = peak()
    model = make_model(torch)
    args = batch(torch, o)
    plan = tenon.plan(tenon.capture(lambda x, y: model(x, y), *args, optimizer=adamw(torch, model)))
    step = tenon.compile(plan)
    whole = peak()
    reset()
    for _ in range(3):
        step(*args)
    print(json.dumps({"alone": alone, "peak": peak(), "compiling": whole, "plan": plan.peak / 2**20,
                      "reserve": plan.reserve / 2**20}))


def memory(o):
    out = subprocess.run([sys.executable, os.path.abspath(__file__), "--worker", "--threads", str(o.threads),
                          "--batch-size", str(o.batch_size), "--seq-len", str(o.seq_len)], check=True,
                         stdout=subprocess.PIPE)
    got = json.loads(out.stdout.decode().splitlines()[-1])
    more = got["peak"] - got["alone"] - got["plan"] - got["reserve"]
    print(f"resident: {got['peak']:.0f} MiB, of which PyTorch by itself {got['alone']:.0f}, the plan {got['plan']:.0f} and"
          f" its reserve {got['reserve']:.0f}: {more:+.0f} beside them {asked(more, BESIDE, False)};"
          f" at most {got['compiling']:.0f} until the Step was compiled", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--rounds", type=int, default=3, help="turns of all (3)")
    p.add_argument("--steps", type=int, default=5, help="timed steps of a turn (5)")
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=64)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--skip", default="", help="of train, compile, memory")
    p.add_argument("--cpu", action="store_true", help="seconds of the processor")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.worker:
        return resident(o)
    import torch
    import tenon
    from tenon._save import save_tensors

    skip = o.skip.split(",")
    torch.set_num_threads(o.threads)
    print(f"{processor() or platform.processor()}, {o.threads} threads; PyTorch {torch.__version__},"
          f" Tenon {tenon.__version__}, {o.rounds} turns of {o.steps} steps, {o.batch_size} x {o.seq_len}", flush=True)
    if "memory" not in skip:
        memory(o)
    args = batch(torch, o)
    model, other = make_model(torch), make_model(torch)
    step = tenon.compile(tenon.capture(lambda x, y: model(x, y), *args, optimizer=adamw(torch, model)))
    ways = {"Step": lambda: timed(o, lambda: step(*args).item())}
    if "compile" not in skip:
        compiled, optimizer = torch.compile(other), adamw(torch, other)

        def one():
            loss = compiled(*args)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        want = [step(*args).item() for _ in range(2)]
        assert all(abs(one() - x) < 1e-3 for x in want), "the Step and torch.compile disagree"
        ways["torch.compile"] = lambda: timed(o, one)
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "batch.safetensors")
        save_tensors(data, dict(zip(("input_ids", "labels"), args)))
        if "train" not in skip:
            ways = {"tenon train": lambda: run_train(o, folder, data), **ways}
        seconds = {name: [] for name in ways}
        for turn in range(o.rounds):
            for name, way in ways.items():
                seconds[name] += (now := way())
                print(f"turn {turn + 1}: {name} {statistics.median(now):.3f} s a step", flush=True)
    mid = {name: statistics.median(x) for name, x in seconds.items()}
    for name, x in seconds.items():
        print(f"{name}: {mid[name]:.3f} s a step, {min(x):.3f} to {max(x):.3f}")
    if "train" not in skip:
        ratio = mid["Step"] / mid["tenon train"]
        print(f"Step by tenon train: {ratio:.3f} {asked(ratio, SLOWER, False)}")
    if "compile" not in skip:
        ratio = mid["torch.compile"] / mid["Step"]
        print(f"torch.compile by Step: {ratio:.2f} {asked(ratio, FASTER, True)}")


if __name__ == "__main__":
    main()
