#!/usr/bin/env python3
"""Steps of a LoRA fine-tune by Tenon and by PEFT on the same cores, from the same adapters: losses, tokens a second, and
peak resident memory above what a process has before the model is loaded.

A Llama of 134 million parameters with random weights, adapters of rank 16 beside all linear modules, written by PEFT,
AdamW without decay or clipping. bf16 is a base in bf16 with adapters in f32: autocast there, --dtype bf16 --param-dtype
bf16 here. Each program runs in a process of its own; the first two steps are not timed. Of Tenon's memory nothing is
taken off. --by says what runs the other steps:

  peft  a plain loop on one batch, eagerly, without what a trainer adds
  trl   SFTTrainer of TRL on a file of chats in their order (--shuffle off here): the folder's tokenizer and template, loss
        of the answers; answers are longer than a row, so that both read as many tokens. Without gradient checkpointing,
        which is its default, as it takes longer; --checkpointing leaves it on. --emulate has its products of bf16
        computed by those of f32, as ours are, on processors without instructions for bf16

usage: bench/lora.py [--tenon PATH] [--by peft|trl] [--steps N] [--rows N] [--length T] [--layers N] [--dtypes f32,bf16]
                     [--threads N] [--lr X] [--checkpointing] [--emulate] [--losses FILE] [--follow FILE]
Needs torch, transformers and peft, for --by trl also trl and datasets."""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "tokenizer", "gpt2.json")
TEMPLATE = """{%- for m in messages %}
    {{- '<' ~ m.role ~ '>' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}
            {{- m.content ~ eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- m.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""


def resident(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":")) * 1024


def make_chats(folder, count, length):
    """A tokenizer, a template and chats with answers of more than `length` tokens."""
    shutil.copy(TOKENIZER, folder + "/base/tokenizer.json")
    with open(folder + "/base/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}, f)
    with open(folder + "/base/chat_template.jinja", "w") as f:
        f.write(TEMPLATE)
    r = random.Random(3)
    words = ["the", "of", "and", "license", "copy", "program", "you", "may", "work", "source", "free", "terms"]
    with open(folder + "/chats.jsonl", "w") as f:
        for i in range(count):
            answer = " ".join(r.choice(words) for _ in range(length + 50))
            messages = [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": answer}]
            f.write(json.dumps({"messages": messages}) + "\n")


def make(folder, o):
    """The base, its adapters, a batch or chats."""
    import peft
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(1)
    config = transformers.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=o.layers,
                                      num_attention_heads=12, num_key_value_heads=12, vocab_size=32000,
                                      tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder + "/base")
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.01)
    model.save_pretrained(folder + "/adapters")
    ids = torch.randint(32000, (o.rows, o.length + 1))
    save_file({"input_ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone()}, folder + "/batch.safetensors")
    make_chats(folder, o.steps * o.rows, o.length)


def adapted(folder, dtype):
    import peft
    import torch
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(
        folder + "/base", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    return peft.PeftModel.from_pretrained(base, folder + "/adapters", is_trainable=True)


def by_peft(folder, dtype, o):
    """In a process of its own, as by_trl."""
    import peft  # noqa: F401: what importing takes is not the model's
    import torch
    import transformers  # noqa: F401
    from safetensors.torch import load_file

    torch.set_num_threads(o.threads)
    before = resident("VmRSS")
    model = adapted(folder, dtype)
    batch = load_file(folder + "/batch.safetensors")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=o.lr, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0)
    losses, seconds, cpu = [], [], []
    for _ in range(o.steps):
        start, used = time.time(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(batch["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.time() - start)
        cpu.append(time.process_time() - used)
    return {"losses": losses, "sec": seconds, "cpu": cpu, "bytes": resident("VmHWM") - before}


def by_floats(torch):
    """Where a processor has no instructions for bf16: its products by those of f32, rounded once, as such instructions do.
    PyTorch's own loops take 7 to 70 times as long there."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    aten = torch.ops.aten
    products = {aten.mm.default, aten.addmm.default, aten.bmm.default,
                aten._scaled_dot_product_flash_attention_for_cpu.default,
                aten._scaled_dot_product_flash_attention_for_cpu_backward.default}

    def widen(x):
        return x.float() if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 else x

    def first(y):  # attention's log-sum-exp stays in f32
        return (y[0].bfloat16(), *y[1:])

    class Floats(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            narrow = func in products and any(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in args)
            if not narrow:
                return func(*args, **(kwargs or {}))
            y = func(*tree_map(widen, args), **(kwargs or {}))
            if isinstance(y, torch.Tensor):
                return y.bfloat16()
            return first(y) if len(y) == 2 else tuple(x.bfloat16() for x in y)

    return Floats()


def by_trl(folder, dtype, o):
    import datasets
    import peft  # noqa: F401
    import torch
    import transformers
    import trl

    torch.set_num_threads(o.threads)
    products = by_floats(torch) if o.emulate and dtype == "bf16" else contextlib.nullcontext()
    transformers.utils.logging.disable_progress_bar()
    # One id more than labels: a row of T labels here.
    config = trl.SFTConfig(
        output_dir=folder + "/trl", max_steps=o.steps, per_device_train_batch_size=o.rows, max_length=o.length + 1,
        assistant_only_loss=True, train_sampling_strategy="sequential", learning_rate=o.lr, lr_scheduler_type="constant",
        warmup_steps=0, weight_decay=0, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=0, use_cpu=True,
        bf16=dtype == "bf16", gradient_checkpointing=o.checkpointing, logging_steps=1, logging_nan_inf_filter=False,
        save_strategy="no", report_to="none", disable_tqdm=True)
    data = datasets.load_dataset("json", data_files=folder + "/chats.jsonl", split="train", cache_dir=folder + "/cache")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder + "/base")
    seconds, cpu = [], []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start, self.used = time.time(), time.process_time()

        def on_step_end(self, *_, **__):
            seconds.append(time.time() - self.start)
            cpu.append(time.process_time() - self.used)

        def on_log(self, args, state, control, logs=None, **_):
            if o.follow and "loss" in (logs or {}):
                with open(o.follow, "a") as f:
                    f.write(f"{dtype} {state.global_step} {logs['loss']:.9g} {seconds[-1]:.3f} {cpu[-1]:.3f}\n")

    before = resident("VmRSS")
    trainer = trl.SFTTrainer(model=adapted(folder, dtype), args=config, train_dataset=data, processing_class=tokenizer,
                             callbacks=[Clock()])
    with products:
        trainer.train()
    losses = [x["loss"] for x in trainer.state.log_history if "loss" in x]
    return {"losses": losses, "sec": seconds, "cpu": cpu, "bytes": resident("VmHWM") - before}


def used_by(command):
    """Seconds of the processor that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_tenon(folder, dtype, o):
    metrics = f"{folder}/{dtype}.jsonl"
    command = [o.tenon, "train", folder + "/base", "--adapter", folder + "/adapters", "--lr", o.lr, "--schedule", "constant",
               "--weight-decay", 0, "--clip", 0, "--threads", o.threads, "--save-sec", 0]
    if o.by == "trl":
        command += ["--data", folder + "/chats.jsonl", "--shuffle", "off", "--val-fraction", 0, "--batch-size", o.rows,
                    "--seq-len", o.length]
    else:
        command += ["--batch", folder + "/batch.safetensors"]
    if dtype == "bf16":
        command += ["--dtype", "bf16", "--param-dtype", "bf16"]
    begin = used_by(command + ["--steps", 2, "--out", f"{folder}/{dtype}-2"])
    cpu = used_by(command + ["--steps", o.steps, "--out", f"{folder}/{dtype}", "--metrics", metrics]) - begin
    with open(metrics) as f:
        lines = [json.loads(line) for line in f if '"loss"' in line]
    return {"losses": [x["loss"] for x in lines], "sec": [x["step_sec"] for x in lines],
            "cpu": [cpu / (o.steps - 2)] * o.steps, "bytes": max(x["rss_peak_bytes"] for x in lines)}


def by_other(folder, dtype, o):
    out = f"{folder}/{dtype}.json"
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--worker", f"{folder}:{dtype}"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(out) as f:
        return json.load(f)


def check_needs(by):
    """Before Tenon's steps, which take minutes: that the other's packages can be imported, in a process of its own."""
    needs = ["torch", "transformers", "peft", "safetensors"] + ["datasets", "trl"] * (by == "trl")
    done = subprocess.run([sys.executable, "-c", f"import {', '.join(needs)}"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"--by {by} needs {', '.join(needs)}: {done.stderr.strip().splitlines()[-1]}")


def compare(folder, dtype, o):
    ours, theirs = by_tenon(folder, dtype, o), by_other(folder, dtype, o)
    if o.losses:
        with open(o.losses, "a") as f:
            for i, pair in enumerate(zip(ours["losses"], theirs["losses"]), 1):
                f.write(f"{dtype} {i} {pair[0]:.9g} {pair[1]:.9g}\n")
    if len(ours["losses"]) != o.steps or len(theirs["losses"]) != o.steps:
        sys.exit(f"{dtype}: expected {o.steps} losses of each, found {len(ours['losses'])} and {len(theirs['losses'])}")
    mine, peer = (statistics.median(x["sec"][2:]) for x in (ours, theirs))
    used, peer_used = (statistics.mean(x["cpu"][2:]) for x in (ours, theirs))
    far = max(abs(x - y) for x, y in zip(ours["losses"], theirs["losses"]))
    tokens = o.rows * o.length
    mib, peer_mib = (x["bytes"] / 2**20 for x in (ours, theirs))
    print(f"{dtype}: losses differ by at most {far:.2g} in {o.steps} steps ({ours['losses'][0]:.5f} to "
          f"{ours['losses'][-1]:.5f}); tokens/s {tokens / mine:.0f} and by {o.by} {tokens / peer:.0f}, {peer / mine:.2f} "
          f"times; seconds of processors a step {used:.2f} and {peer_used:.2f}, {peer_used / used:.2f} times; memory "
          f"{mib:.0f} and {peer_mib:.0f} MiB, {mib / peer_mib:.2f} of it", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tenon", default="build/tenon")
    parser.add_argument("--by", choices=("peft", "trl"), default="peft")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--follow", help="TRL's steps as they come: dtype, step, loss, seconds, those of processors")
    parser.add_argument("--losses", help="appends dtype, step and both losses")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.worker:
        folder, dtype = o.worker.rsplit(":", 1)
        result = (by_trl if o.by == "trl" else by_peft)(folder, dtype, o)
        with open(f"{folder}/{dtype}.json", "w") as f:
            json.dump(result, f)
        return
    check_needs(o.by)
    with tempfile.TemporaryDirectory() as folder:
        make(folder, o)
        for dtype in o.dtypes.split(","):
            compare(folder, dtype, o)


if __name__ == "__main__":
    main()
