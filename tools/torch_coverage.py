"""How many of the models of Hugging Face's transformers, and of vision models of our own, are captured as steps that
agree with eager PyTorch: a tiny one of each class with random weights, loss within 2e-5, gradients within 2e-5 of their
norm (and a hundredth of the greatest one's), planned memory as measured. Where eager PyTorch's own gradients are further
than that from f64's, ours must be within 2e-5 of those instead, or nearer to them than eager's.

torch_coverage.py [--list | --classes PATTERN,...] [--tasks TASK,...] [--out FILE] [--seconds N] [--every N]

Prints a line for each class: agrees, differs, refused (with the reason), untraced (PyTorch's own tracing fails), or
left out (no tiny model of it can be made or run, with the reason); and the counts. --out appends each result to a file of JSON
lines, whose classes a later run leaves out. --seconds: the limit of one class, in a process of its own; 0: all in this one.
--every N: each Nth class, for a sample."""
import argparse
import copy
import fnmatch
import json
import logging
import os
import select
import signal
import sys
import warnings

TASKS = {"CAUSAL_LM": "tokens", "MASKED_LM": "tokens", "SEQ_TO_SEQ_CAUSAL_LM": "tokens", "IMAGE_CLASSIFICATION": "image",
         "AUDIO_CLASSIFICATION": "audio", "BACKBONE": "image", "SEMANTIC_SEGMENTATION": "image", "DEPTH_ESTIMATION": "image",
         "OBJECT_DETECTION": "image", "SPEECH_SEQ_2_SEQ": "speech", "MASKED_IMAGE_MODELING": "image",
         "ZERO_SHOT_IMAGE_CLASSIFICATION": "pair", "IMAGE_TEXT_TO_TEXT": "pair", "TIME_SERIES_PREDICTION": "tokens"}
NAMES = {"vocab_size": 64, "decoder_vocab_size": 64, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32,
         "embedding_size": 32, "word_embed_proj_dim": 32, "model_dim": 32, "attention_hidden_size": 32, "lru_width": 32, "n_inner": 48,
         "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
         "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "d_kv": 8,
         "d_inner": 48, "hidden_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "moe_intermediate_size": 16, "head_dim": 8,
         "shared_expert_intermediate_size": 16, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "image_size": 64,
         "patch_size": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
         "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12, "state_size": 8, "conv_kernel": 4, "time_step_rank": 4,
         "sliding_window": 8, "num_labels": 4, "projection_dim": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
         "rotary_dim": 4, "encoder_hidden_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
         "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8, "chunk_size": 8, "ssm_state_size": 8,
         "mamba_num_heads": 8, "mamba_head_dim": 8, "depth": 2, "drop_path_rate": 0.0, "use_cache": False}
BATCH, LENGTH = 2, 12


DEEP = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth",
        "drop_path_rate", "use_cache", "vocab_size", "decoder_vocab_size", "pad_token_id",
        "bos_token_id", "eos_token_id", "decoder_start_token_id", "num_labels")
MADE = ("layer_types", "layers_block_type", "mlp_layer_types", "stage_names", "out_features", "out_indices", "architectures",
        "id2label", "label2id", "model_type", "transformers_version", "torch_dtype", "dtype")  # what a configuration makes of its sizes
PARAMETERS = 30_000_000  # at most, of a model whose widths are its own


def shrunk(config, names=NAMES):
    """Sets sizes of a configuration, and of those inside of it, to small ones."""
    from transformers import PretrainedConfig

    for key, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrunk(value, names)
        elif "drop" in key and isinstance(value, float):
            put(config, key, 0.0)
        elif key in names and value is not None and type(value) in (int, float, bool):
            put(config, key, NAMES[key])
    if names is NAMES:
        agree(config)
    for key in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if getattr(config, key, None):
            put(config, key, list(getattr(config, key))[:2])
    if getattr(config, "languages", None):
        put(config, "default_language", list(config.languages)[0])
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        put(config, "decoder_start_token_id", 1)
    return config


def agree(config):
    """Sizes that go with others."""
    if getattr(config, "kv_lora_rank", None):  # latent attention has keys for each head
        put(config, "num_key_value_heads", config.num_attention_heads)
    if getattr(config, "num_experts_per_tok", 1) is None:
        put(config, "num_experts_per_tok", 2)
    if getattr(config, "qk_rope_head_dim", None):
        put(config, "head_dim", config.qk_rope_head_dim)
    if getattr(config, "expand", None) and hasattr(config, "n_groups"):  # Mamba-2's heads make up its inner width
        put(config, "num_heads", config.expand * config.hidden_size // config.head_dim)
    if getattr(config, "num_stages", 0) > 1 and type(getattr(config, "patch_size", None)) is int:  # each halves its image
        put(config, "patch_size", 4)


def four(config):
    """A configuration with four layers, for heads that join what four of them give."""
    put(config, "num_hidden_layers", 4)
    for key, indices in (("out_indices", [1, 2, 3, 4]), ("backbone_out_indices", [0, 1, 2, 3])):
        if hasattr(config, key):
            put(config, key, indices)
    return config


def made_of(kind, names):
    """A configuration that is made of small sizes, so that what it makes of them goes with them."""
    def small(words):
        return {key: small(x) if isinstance(x, dict) else 0.0 if "drop" in str(key) and isinstance(x, float) else
                NAMES[key] if key in names and type(x) in (int, float, bool) else x
                for key, x in words.items() if key not in MADE}

    return kind.config_class(**small(kind.config_class().to_dict()))


def put(config, key, value):
    try:
        setattr(config, key, value)
    except AttributeError:
        pass  # a property, of other sizes


def candidates():
    """(class, task) of all that the task's mapping names."""
    from transformers.models.auto import modeling_auto

    found = {}
    for task in TASKS:
        mapping = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})
        for name in mapping.values():
            for one in name if isinstance(name, (list, tuple)) else [name]:
                found.setdefault(one, task)
    return dict(sorted(found.items()))


def models(name):
    """Functions that make a model of a class, each in another way, the smallest first."""
    import torch
    import transformers

    kind = getattr(transformers, name)

    def model(config, most=None):
        if most:
            with torch.device("meta"):
                count = sum(p.numel() for p in kind(config).parameters())
            if count > most:
                raise ValueError(f"{count} parameters")
        torch.manual_seed(1)
        made = kind(config).eval()
        with torch.no_grad():
            for p in made.parameters():  # gates of zeros give scores that are all alike, of which any may be the greatest
                if p.is_floating_point() and p.numel() > 1 and p.min() == p.max():
                    p.add_(torch.randn_like(p), alpha=0.02)
        return made

    return [lambda: model(shrunk(kind.config_class())), lambda: model(made_of(kind, NAMES)),
            lambda: model(made_of(kind, set(NAMES) - {"hidden_dim"})), lambda: model(four(shrunk(kind.config_class()))),
            lambda: model(made_of(kind, DEEP), PARAMETERS), lambda: model(shrunk(kind.config_class(), DEEP), PARAMETERS)]


def arguments(model, kind):
    """Each a dict of what the model's forward may be given, by keyword."""
    import torch

    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocab = getattr(text, "vocab_size", None) or 64
    inner = getattr(config, "vision_config", config)
    size = getattr(inner, "image_size", 32)
    size = size if isinstance(size, (list, tuple)) else (size, size)
    ids, pixels = torch.randint(3, vocab, (BATCH, LENGTH)), torch.randn(BATCH, getattr(inner, "num_channels", 3), *size)
    names = forward_names(model)
    labels = {"labels": ids} if "labels" in names else {}
    if kind == "tokens":
        return [{"input_ids": ids, **labels}]
    if kind == "image":
        return [{"pixel_values": pixels}]
    if kind == "pair":
        return [{"input_ids": ids, "pixel_values": pixels}, {"input_ids": ids, **labels}]
    mel = next((n for n in (getattr(x, "num_mel_bins", None) for x in (config, getattr(config, "encoder_config", None))) if n), 80)
    text = {"decoder_input_ids": ids, **labels} if kind == "speech" else {}
    return [{name: torch.randn(BATCH, *shape), **text} for name in ("input_features", "input_values") if name in names
            for shape in ((1024, 128), (mel, 64), (64, mel), (2000,))]


def running(name, task):
    """A model, and the arguments with which its step runs: names and tensors."""
    first = None
    for make in models(name):
        try:
            model = make()
        except Exception as error:
            first = first or error
            continue
        for words in arguments(model, TASKS[task]):
            try:
                loss_of(copy.deepcopy(model), list(words))(*words.values()).backward()
                return model, list(words.values()), list(words)
            except Exception as error:
                first = first or error
    raise first


def forward_names(model):
    import inspect

    return set(inspect.signature(model.forward).parameters)


def loss_of(model, names):
    """The model's loss; without labels the mean square of its floating results, in which all of them count."""
    from torch.utils import _pytree as pytree
    import torch

    def loss(*tensors):
        out = model(**dict(zip(names, tensors)))
        if getattr(out, "loss", None) is not None:
            return out.loss
        leaves = [t for t in pytree.tree_leaves(tuple(dict(out).values()) if hasattr(out, "keys") else out)
                  if isinstance(t, torch.Tensor) and t.dtype.is_floating_point and t.requires_grad]
        return sum((t.float() ** 2).mean() for t in leaves)

    return loss


def errors(model, reference):
    """The worst distance of gradients from a reference's, of their norm, or of a hundredth of the greatest."""
    want = {name: p.grad.double() for name, p in reference.named_parameters() if p.grad is not None}
    most = max((g.norm().item() for g in want.values()), default=0.0)
    return max(((p.grad.double() - want[name]).norm().item() / (want[name].norm().item() + most / 100 + 1e-30)
                for name, p in model.named_parameters() if name in want), default=0.0)


def compare(model, loss, args):
    """(verdict, reason)"""
    import torch

    import tenon

    eager, double = copy.deepcopy(model), copy.deepcopy(model).double()
    want = loss(eager)(*args)
    want.backward()
    try:
        plan = tenon.plan(tenon.capture(loss(model), *args, model=model))
    except (tenon.CaptureError, tenon.NotSupported, tenon.Error) as error:
        untraced = "PyTorch cannot record" in str(error)
        return "untraced" if untraced else "refused", str(error).splitlines()[0]
    step = tenon.compile(plan)
    got = step(*args)
    trained = [{n for n, p in m.named_parameters() if p.grad is not None} for m in (model, eager)]
    if trained[0] != trained[1]:
        return "differs", f"{sorted(trained[0] ^ trained[1])[0]} has a gradient in one of both only"
    worst = max(abs(got.item() - want.item()) / max(abs(want.item()), 1), errors(model, eager))
    said = f"{worst:.2g}"
    if not worst <= 2e-5:
        for config in filter(None, (getattr(m, "config", None) for m in double.modules())):
            config._experts_implementation = "eager"  # grouped products are not for f64
        loss(double)(*(t.double() if t.dtype.is_floating_point else t for t in args)).backward()
        ours, theirs = errors(model, double), errors(eager, double)
        said += f"; from f64 ours is {ours:.2g}, eager's {theirs:.2g}"
        if theirs <= 2e-5 or ours > max(theirs, 2e-5):
            return "differs", said
    tenon._library.lib.tn_program_fill(step.program.pointer, 0x5A)
    step(*args)
    high = tenon._library.lib.tn_program_high(step.program.pointer, 0x5A)
    if not plan.peak - 4096 < high <= plan.peak:
        return "differs", f"planned {plan.peak} bytes, measured {high}"
    return "agrees", said


def one(name, task):
    try:
        if task == "vision":
            from torch_vision import MODELS

            model, args, names = *MODELS[name](), None
        else:
            model, args, names = running(name, task)
    except Exception as error:  # whatever a configuration breaks is said
        return "left out", short(error)
    loss = (lambda m: loss_of(m, names)) if names else (lambda m: lambda *x: (m(*x) ** 2).mean())
    try:
        return compare(model, loss, args)
    except Exception as error:
        return "differs", f"it fails: {short(error)}"


def short(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def run_apart(name, task, seconds):
    """One class in a process of its own, which may take so long. It is a fork of this one, which has imported all and
    computed nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            os.write(writer, json.dumps(one(name, task)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    ended = select.select([reader], [], [], seconds)[0]
    with open(reader, "rb") as f:
        if not ended:
            os.kill(child, signal.SIGKILL)
        text = f.read()
    status = os.waitpid(child, 0)[1]
    if not ended:
        return "left out", f"more than {seconds} s"
    return tuple(json.loads(text)) if text else ("differs", f"it fails: exit status {status}")


def main():
    parser = argparse.ArgumentParser()
    for option in ("--list", "--classes", "--tasks", "--out"):
        parser.add_argument(option, **({"action": "store_true"} if option == "--list" else {}))
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--every", type=int, default=1)
    o = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    import tenon  # before processes are forked
    from torch_vision import MODELS

    every = {**candidates(), **{name: "vision" for name in MODELS}}
    patterns, tasks = (o.classes or "*").split(","), o.tasks.split(",") if o.tasks else [*TASKS, "vision"]
    names = [n for n, task in every.items() if task in tasks and any(fnmatch.fnmatch(n, p) for p in patterns)][::o.every]
    if o.list:
        print("\n".join(f"{n} {every[n]}" for n in names))
        return 0
    done = {}
    if o.out and os.path.exists(o.out):
        with open(o.out, encoding="utf-8") as f:
            done = {x["name"]: (x["verdict"], x["reason"]) for x in map(json.loads, f)}
    counts = {}
    for name in names:
        if name in done:
            verdict, reason = done[name]
        else:
            verdict, reason = run_apart(name, every[name], o.seconds) if o.seconds else one(name, every[name])
        if o.out and name not in done:
            with open(o.out, "a", encoding="utf-8") as f:
                f.write(json.dumps({"name": name, "task": every[name], "verdict": verdict, "reason": reason}) + "\n")
        counts[verdict] = counts.get(verdict, 0) + 1
        print(f"{name}: {verdict}: {reason}", flush=True)
    able = sum(counts.get(k, 0) for k in ("agrees", "differs", "refused"))
    print(f"{len(names)} classes: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())) +
          (f"; {100 * counts.get('agrees', 0) / able:.1f} % of the {able} that PyTorch traces agree" if able else ""))
    return 0


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
