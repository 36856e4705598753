#!/usr/bin/env python3
"""Steps of a LoRA fine-tune by Tenon and by PEFT on the same cores, from the same adapters and the same batch: losses,
tokens a second, and peak resident memory above what a process has before the model is loaded.

A Llama of 134 million parameters with random weights, adapters of rank 16 beside all linear modules, written by PEFT,
4 rows of 512 tokens, AdamW without decay or clipping. bf16 is a base in bf16 with adapters in f32: autocast there,
--dtype bf16 --param-dtype bf16 here. PEFT runs eagerly in a plain loop, without what a trainer adds. Each program runs
in a process of its own; the first two steps are not timed. Of Tenon's memory nothing is taken off.

usage: bench/lora.py [--tenon PATH] [--steps N] [--rows N] [--dtypes f32,bf16] [--threads N]
Needs torch, transformers and peft."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

LENGTH, RATE = 512, 1e-3


def resident(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":")) * 1024


def make(folder, rows):
    """The base, its adapters and a batch."""
    import peft
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(1)
    config = transformers.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                                      num_key_value_heads=12, vocab_size=32000, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder + "/base")
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.01)
    model.save_pretrained(folder + "/adapters")
    ids = torch.randint(32000, (rows, LENGTH + 1))
    save_file({"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}, folder + "/batch.safetensors")


def by_peft(folder, dtype, steps, threads):
    """In a process of its own."""
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file

    torch.set_num_threads(threads)
    before = resident("VmRSS")
    base = transformers.AutoModelForCausalLM.from_pretrained(
        folder + "/base", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder + "/adapters", is_trainable=True)
    batch = load_file(folder + "/batch.safetensors")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.time()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(batch["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.time() - start)
    print(json.dumps({"losses": losses, "sec": seconds, "bytes": resident("VmHWM") - before}))


def by_tenon(tenon, folder, dtype, steps, threads):
    metrics = f"{folder}/{dtype}.jsonl"
    command = [tenon, "train", folder + "/base", "--adapter", folder + "/adapters", "--batch", folder + "/batch.safetensors",
               "--steps", steps, "--lr", RATE, "--schedule", "constant", "--weight-decay", 0, "--clip", 0, "--threads", threads,
               "--out", f"{folder}/{dtype}", "--metrics", metrics, "--save-sec", 0]
    if dtype == "bf16":
        command += ["--dtype", "bf16", "--param-dtype", "bf16"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(metrics) as f:
        lines = [json.loads(line) for line in f if '"loss"' in line]
    return {"losses": [x["loss"] for x in lines], "sec": [x["step_sec"] for x in lines],
            "bytes": max(x["rss_peak_bytes"] for x in lines)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tenon", default="build/tenon")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.worker:
        folder, dtype = o.worker.rsplit(":", 1)
        return by_peft(folder, dtype, o.steps, o.threads)
    with tempfile.TemporaryDirectory() as folder:
        make(folder, o.rows)
        for dtype in o.dtypes.split(","):
            ours = by_tenon(o.tenon, folder, dtype, o.steps, o.threads)
            done = subprocess.run([sys.executable, __file__, "--worker", f"{folder}:{dtype}", "--steps", str(o.steps),
                                   "--threads", str(o.threads)], check=True, stdout=subprocess.PIPE, text=True)
            theirs = json.loads(done.stdout.splitlines()[-1])
            mine, peer = (statistics.median(x["sec"][2:]) for x in (ours, theirs))
            far = max(abs(x - y) for x, y in zip(ours["losses"], theirs["losses"]))
            tokens = o.rows * LENGTH
            print(f"{dtype}: losses differ by at most {far:.2g} in {o.steps} steps ({ours['losses'][0]:.5f} to "
                  f"{ours['losses'][-1]:.5f}); tokens/s {tokens / mine:.0f} and PEFT's {tokens / peer:.0f}, {peer / mine:.2f} "
                  f"times; memory {ours['bytes'] / 2**20:.0f} and {theirs['bytes'] / 2**20:.0f} MiB, "
                  f"{ours['bytes'] / theirs['bytes']:.2f} of it", flush=True)


if __name__ == "__main__":
    main()
