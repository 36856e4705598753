#!/usr/bin/env python3
"""Convolutions of ResNet-50, ViT-B and Whisper-base, of Mamba, MobileNet and ConvNeXt, beside PyTorch's in the same
run: each one's forward (with its bias), the gradient of its image and that of its weight, in f32 and bf16, on the same
tensors and cores, in turns.

The medians of all turns. Each ratio, Tenon's seconds by PyTorch's, stands beside what is asked of those that take
PyTorch more than a millisecond. A first call of both is not timed.

usage: bench/convolution.py [--cases PATTERN] [--batch N] [--rounds N] [--threads N] [--dtypes f32,bf16] [--steps] [--cpu]
--steps measures steps of whole models instead (forward, backward, SGD; it wants transformers), with the peak of the plan,
which is limited to what is asked, and what PyTorch's tensors take at most. Needs torch. Where others use the processor,
--cpu measures seconds of all threads' CPU instead."""

import argparse
import fnmatch
import os
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "python")]

SLOWER, LEAST = 1.0, 1e-3  # asked: Tenon's seconds by PyTorch's, at most, of what takes PyTorch so many seconds
STEP, PEAK = 0.8, 0.7      # asked of a step: seconds and bytes by PyTorch's, at most

# name: channels, size of the image, channels of the result, kernel, stride, padding, groups
CASES = {
    "resnet50.stem": (3, (224, 224), 64, 7, 2, 3, 1), "resnet50.1.reduce": (256, (56, 56), 64, 1, 1, 0, 1),
    "resnet50.1.conv": (64, (56, 56), 64, 3, 1, 1, 1), "resnet50.1.expand": (64, (56, 56), 256, 1, 1, 0, 1),
    "resnet50.2.down": (128, (56, 56), 128, 3, 2, 1, 1), "resnet50.2.short": (256, (56, 56), 512, 1, 2, 0, 1),
    "resnet50.2.conv": (128, (28, 28), 128, 3, 1, 1, 1), "resnet50.3.conv": (256, (14, 14), 256, 3, 1, 1, 1),
    "resnet50.3.expand": (256, (14, 14), 1024, 1, 1, 0, 1), "resnet50.4.conv": (512, (7, 7), 512, 3, 1, 1, 1),
    "vit_b.patches": (3, (224, 224), 768, 16, 16, 0, 1),
    "whisper_base.1": (80, (3000,), 512, 3, 1, 1, 1), "whisper_base.2": (512, (3000,), 512, 3, 2, 1, 1),
    "mamba.causal": (1536, (1024,), 1536, 4, 1, 3, 1536), "mobilenet.depthwise": (512, (14, 14), 512, 3, 1, 1, 512),
    "convnext.depthwise": (512, (7, 7), 512, 7, 1, 3, 512), "resnext.grouped": (128, (56, 56), 128, 3, 1, 1, 32),
}
PARTS = ("forward", "dx", "dw")


def code(part, dtype, x, w, y, how):
    """The text of a call that PyTorch would trace."""
    def type_of(shape):
        return f'"{dtype}[{", ".join(map(str, shape))}]"'

    if part == "forward":
        return (f"def forward(self, x: {type_of(x)}, w: {type_of(w)}, b: {type_of([w[0]])}):\n"
                f"    y = torch.ops.aten.convolution.default(x, w, b, {how})\n    return (y,)\n")
    mask = [part == "dx", part == "dw", False]
    return (f"def forward(self, dy: {type_of(y)}, x: {type_of(x)}, w: {type_of(w)}):\n"
            f"    out = torch.ops.aten.convolution_backward.default(dy, x, w, [0], {how}, {mask})\n"
            f"    y = out[{PARTS.index(part) - 1}]\n    return (y,)\n")


def program(tenon, text):
    from tenon import _plan, _step, _tn
    from tenon._library import Context

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "call.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        graph, _ = _tn.import_fx(path)
    made = _plan.Made(SimpleNamespace(text=graph, passes=b"compiled"), _plan.Settings(None, None, None, None, None), Context())
    return _step.Program(made)


def turns(o, *calls):
    """The medians of the seconds that each call takes, one after the other in each round; no call is timed first."""
    clock, rounds = time.process_time if o.cpu else time.perf_counter, o.rounds
    seconds = [[] for _ in calls]
    for i in range(rounds + 1):
        for call, out in zip(calls, seconds):
            begin = clock()
            call()
            if i:
                out.append(clock() - begin)
    return [statistics.median(x) for x in seconds]


def one(torch, tenon, o, name, dtype, part):
    channels, size, out, kernel, stride, padding, groups = CASES[name]
    n, axes = o.batch, len(size)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    x = torch.randn(n, channels, *size).to(kind)
    w = (torch.randn(out, channels // groups, *[kernel] * axes) * 0.05).to(kind)
    b = torch.randn(out).to(kind)
    lists = [[stride] * axes, [padding] * axes, [1] * axes, False, [0] * axes, groups]
    y = torch.ops.aten.convolution.default(x, w, b, *lists)
    dy = torch.randn_like(y)
    step = program(tenon, code(part, dtype, x.shape, w.shape, y.shape, ", ".join(map(str, lists))))
    for key, t in {"x": x, "w": w, "b": b, "dy": dy}.items():
        if step.has(key):
            step.write(key, t)
    if part == "forward":
        eager = lambda: torch.ops.aten.convolution.default(x, w, b, *lists)
    else:
        mask = [part == "dx", part == "dw", False]
        eager = lambda: torch.ops.aten.convolution_backward.default(dy, x, w, [0], *lists, mask)
    lib = tenon._library.lib
    ours, theirs = turns(o, lambda: step.check(lib.tn_program_run(step.pointer)), eager)
    ratio = ours / theirs
    asked = "" if theirs < LEAST else f"asked {SLOWER:.2f} {'met' if ratio <= SLOWER else 'missed'}"
    print(f"{name:22} {dtype:5} {part:8} {1e3 * ours:9.3f} ms {1e3 * theirs:9.3f} ms {ratio:6.2f}  {asked}", flush=True)


def models(torch):
    import transformers as hf

    def images(net):
        return lambda x, y: torch.nn.functional.cross_entropy(net(x).logits, y)

    def classes(o):
        return torch.randn(o.batch, 3, 224, 224), torch.randint(0, 1000, (o.batch,))

    def speech(net):
        return lambda x, ids: net(input_features=x, decoder_input_ids=ids, labels=ids).loss

    return {
        "resnet50": (lambda: hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)), images, classes),
        "vit_b": (lambda: hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000, hidden_dropout_prob=0.0)), images, classes),
        "whisper_base": (lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig(
            d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048,
            decoder_ffn_dim=2048, dropout=0.0, use_cache=False)), speech,
            lambda o: (torch.randn(o.batch, 80, 3000), torch.randint(0, 1000, (o.batch, 64)))),
    }


def step_of(tenon, captured, most):
    """The plan without a limit where its peak is at most so many bytes; else one that computes values again, by the greatest
    limit tried whose plan has such a peak, or by the least that fits."""
    whole, best = tenon.plan(captured), None
    if whole.peak <= most:
        return whole
    limit = int(most) + whole.reserve
    for _ in range(3):  # a plan may stay below its limit
        try:
            plan = tenon.plan(captured, memory=limit)
        except tenon.DoesNotFit as error:
            return best or tenon.plan(captured, memory=error.least)
        if plan.peak > most:
            break
        best, limit = plan, limit + int(most) - plan.peak
    return best or plan


def one_step(torch, tenon, o, name, dtype):
    make, loss_of, inputs = models(torch)[name]
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    torch.manual_seed(1)
    nets = [make().train().to(kind) for _ in range(2)]
    args = [x.to(kind) if x.dtype.is_floating_point else x for x in inputs(o)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9) for net in nets]
    captured = tenon.capture(loss_of(nets[0]), *args, model=nets[0], optimizer=optimizers[0])
    theirs = tenon.plan(captured).compare(budgets=()).rows[1]["peak"]
    plan = step_of(tenon, captured, PEAK * theirs)
    step, loss = tenon.compile(plan), loss_of(nets[1])

    def eager():
        optimizers[1].zero_grad()
        loss(*args).backward()
        optimizers[1].step()

    seconds = turns(o, lambda: step(*args), eager)
    ratio, part = seconds[0] / seconds[1], plan.peak / theirs
    print(f"{name:13} {dtype:5} batch {o.batch}: {seconds[0]:7.3f} s {seconds[1]:7.3f} s {ratio:5.2f} asked {STEP:.2f} "
          f"{'met' if ratio <= STEP else 'missed'}; peak {plan.peak / 2**20:6.0f} MiB {theirs / 2**20:6.0f} MiB {part:5.2f} asked {PEAK:.2f} "
          f"{'met' if part <= PEAK else 'missed'}", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--cases", default="*")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    o = parser.parse_args()
    import torch

    import tenon

    threads = o.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    tenon._library.lib.tn_threads(threads)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {threads} threads, batch {o.batch}; seconds are Tenon's, PyTorch's, their ratio")
    for dtype in o.dtypes.split(","):
        for name in models(torch) if o.steps else CASES:
            for part in ["step"] if o.steps else PARTS:
                if fnmatch.fnmatch(name, o.cases):
                    one_step(torch, tenon, o, name, dtype) if o.steps else one(torch, tenon, o, name, dtype, part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
