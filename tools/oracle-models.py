"""Models against transformers, both ways: see tools/oracle-models.sh. oracle-models.py bless FOLDER writes
tests/ref's mistral-tiny, qwen2-tiny and qwen3-tiny anew."""
import glob, json, math, os, shutil, subprocess, sys, types
import torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
V, B, T = 67, 2, 19

def decoder(model_type, **more):
    return dict(dict(model_type=model_type, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=V, max_position_embeddings=64, rms_norm_eps=1e-6, hidden_act="silu",
                     initializer_range=0.15, tie_word_embeddings=False), **more)

def gpt2(**more):
    return dict(dict(model_type="gpt2", n_embd=32, n_head=4, n_layer=2, n_positions=24, vocab_size=V, initializer_range=0.15), **more)

CASES = {
    "gpt2": gpt2(), "gpt2-untied": gpt2(tie_word_embeddings=False, n_inner=40, activation_function="relu"),
    "gpt2-gelu": gpt2(activation_function="gelu", layer_norm_epsilon=1e-3),
    "llama": decoder("llama"), "llama-tied": decoder("llama", tie_word_embeddings=True, head_dim=6, num_key_value_heads=1),
    "llama-bias": decoder("llama", attention_bias=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh"),
    "llama-llama3": decoder("llama", rope_theta=5e3, rope_scaling=LLAMA3),
    "llama-linear": decoder("llama", rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=500.0)),
    "mistral": decoder("mistral", sliding_window=None), "mistral-window": decoder("mistral", sliding_window=T, head_dim=12),
    "mistral-default": {k: x for k, x in decoder("mistral", num_attention_heads=8).items() if k != "num_key_value_heads"},
    "qwen2": decoder("qwen2", rope_theta=1e6, sliding_window=4, max_window_layers=1),
    "qwen2-tied": decoder("qwen2", tie_word_embeddings=True, use_sliding_window=True, sliding_window=T, max_window_layers=1),
    "qwen3": decoder("qwen3", head_dim=12), "qwen3-tied": decoder("qwen3", head_dim=8, tie_word_embeddings=True),
    "qwen3-bias": decoder("qwen3", head_dim=4, attention_bias=True, rope_parameters=dict(LLAMA3, rope_theta=5e3)),
}

def write_config(folder, keys):
    os.makedirs(folder, exist_ok=True)
    json.dump(dict(keys, architectures=[CLASSES[keys["model_type"]]]), open(folder + "/config.json", "w"), indent=1)

def write_batch(path, seed):
    g = torch.Generator().manual_seed(seed)
    ids, labels = (torch.randint(0, V, (B, T), generator=g) for _ in range(2))
    labels[0, 3:6] = -100
    save_file({"input_ids": ids, "labels": labels}, path)
    return ids, labels

def randomize(model):
    """Values that differ where initial ones do not: norms, biases."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name or ".ln_" in name:
                p.copy_(0.2 * torch.randn_like(p) + (not name.endswith("bias")))
            else:
                p.copy_((0.2 if name.endswith("bias") else 0.15) * torch.randn_like(p))

# ---- both ways ----

def logits_of(folder, ids):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    with torch.no_grad():
        return model.eval()(ids, use_cache=False).logits

class Comparison:
    def __init__(self, build, folder):
        self.tenon, self.folder, self.failed, self.worst = build + "/tenon", folder, 0, 0
        self.batch = folder + "/batch.safetensors"
        self.ids, self.labels = write_batch(self.batch, 1)

    def run(self, *args):
        p = subprocess.run([self.tenon, *args], capture_output=True, text=True)
        if p.returncode:
            raise RuntimeError("tenon %s: %s" % (" ".join(args), p.stderr))
        return p.stdout

    def compare(self, name, model):
        """Logits and loss of a folder, here and there."""
        out = self.folder + "/logits.safetensors"
        loss = float(self.run("eval", model, "--batch", self.batch, "--logits", out).split()[1])
        got, want = load_file(out)["logits"].view(B, T, V), logits_of(model, self.ids)
        other = torch.nn.functional.cross_entropy(want.view(-1, V), self.labels.view(-1)).item()
        error = max(((got - want).abs().max() / want.abs().max()).item(), abs(loss / other - 1))
        self.worst, bad = max(self.worst, error), not error < 1e-5
        self.failed += bad
        print("%-28s %.2e%s" % (name, error, "  FAILED" if bad else ""))

    def written_here(self, name, keys, *options):
        folder, out = self.folder + "/" + name, self.folder + "/" + name + "-out"
        shutil.rmtree(out, ignore_errors=True)
        write_config(folder, keys)
        self.run("train", folder + "/config.json", "--batch", self.batch, "--steps", "2", "--lr", "0.01", "--out", out, *options)
        saved = os.path.join(out, "step-2")
        files = glob.glob(saved + "/model*.safetensors")
        assert len(files) > 1 or "--shard-size" not in options, files
        self.compare(name + " written" + "".join(" " + o for o in options if not o.startswith("--")), saved)

    def written_there(self, name, keys, dtype):
        folder = "%s/%s-%s" % (self.folder, name, dtype)
        shutil.rmtree(folder, ignore_errors=True)
        write_config(folder, keys)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        randomize(model)
        model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="20KB")
        assert os.path.exists(folder + "/model.safetensors.index.json")
        self.compare("%s read, %s" % (name, dtype), folder)

def main(build, folder):
    os.makedirs(folder, exist_ok=True)
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    c = Comparison(build, folder)
    print("transformers %s, torch %s: largest relative error of logits and loss" % (transformers.__version__, torch.__version__))
    bf16 = "bf16" in c.run("train", "--help").split("--param-dtype", 1)[1].split("\n", 1)[0]
    for name, keys in CASES.items():
        c.written_here(name, keys)
        c.written_here(name, keys, "--shard-size", "20kB")
        if bf16:
            c.written_here(name, keys, "--param-dtype", "bf16", "--shard-size", "20kB")
        for dtype in ("float32", "float16", "bfloat16"):
            c.written_there(name, keys, dtype)
    if not bf16:
        print("note: this tenon has no --param-dtype bf16: not compared")
    print("%d comparisons FAILED" % c.failed if c.failed else "all agree; the worst %.2e" % c.worst)
    return c.failed != 0

# ---- references in double ----

def double_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

def double_rotary(self, x, position_ids):
    r, c = self.config.rope_parameters, self.config
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    f = r["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if r["rope_type"] == "llama3":
        wave, old = 2 * math.pi / f, r["original_max_position_embeddings"]
        s = ((old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])).clamp(0, 1)
        f = (1 - s) * f / r["factor"] + s * f
    angle = torch.cat(2 * [position_ids[0].double()[:, None] * f], -1)[None]
    return angle.cos(), angle.sin()

def double_attention(module, q, k, v, mask, scaling, **more):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    w = (q @ k.transpose(2, 3) * scaling).masked_fill(later, -math.inf).softmax(-1)
    return (w @ v).transpose(1, 2).contiguous(), w

def doubled(model):
    model = model.double()
    for part in model.modules():
        kind = type(part).__name__
        if kind.endswith("RMSNorm"):
            part.forward = types.MethodType(double_norm, part)
        elif kind.endswith("RotaryEmbedding"):
            part.forward = types.MethodType(double_rotary, part)
    transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["double"] = double_attention
    model.config._attn_implementation = "double"
    return model

def adamw_steps(model, folder, ids, labels):
    params, curve, norms = dict(model.named_parameters()), [], []
    state = {k: (torch.zeros_like(p), torch.zeros_like(p)) for k, p in params.items()}
    for step in range(1, 6):
        logits = model(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, V), labels.view(-1))
        grads = dict(zip(params, torch.autograd.grad(loss, list(params.values()))))
        if step == 1:
            save_file({k: g.float() for k, g in grads.items()}, folder + "/grads.safetensors")
        curve.append(loss.item())
        norms.append(math.sqrt(sum(g.pow(2).sum().item() for g in grads.values())))
        with torch.no_grad():
            for k, p in params.items():
                m, v = state[k]
                g = grads[k] * min(1, 1 / (norms[-1] + 1e-6))
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g * g)
                p.mul_(1 - 1e-3 * 0.1 * (p.dim() > 1))
                p.sub_(1e-3 * (m / (1 - 0.9 ** step)) / ((v / (1 - 0.95 ** step)).sqrt() + 1e-8))
    return curve, norms

REFERENCES = {
    "mistral-tiny": decoder("mistral", head_dim=6, sliding_window=T, rope_theta=1e4),
    "qwen2-tiny": decoder("qwen2", tie_word_embeddings=True, use_sliding_window=False, sliding_window=4096, max_window_layers=1, rope_theta=1e6),
    "qwen3-tiny": decoder("qwen3", head_dim=12, tie_word_embeddings=True, use_sliding_window=False, sliding_window=None,
                          max_window_layers=28, rope_parameters=dict(LLAMA3, rope_theta=5e3)),
}

def bless(out):
    for seed, (name, keys) in enumerate(REFERENCES.items(), 1):
        folder = os.path.join(out, name)
        write_config(folder, keys)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        randomize(model)
        save_file({k: p.detach().clone() for k, p in model.named_parameters()}, folder + "/model.safetensors", metadata={"format": "pt"})
        ids, labels = write_batch(folder + "/batch.safetensors", seed)
        curve, norms = adamw_steps(doubled(model), folder, ids, labels)
        json.dump({"loss": curve[0], "adamw_loss_curve": curve, "grad_norms": norms, "B": B, "T": T,
                   "adamw": {"lr": 0.001, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08, "weight_decay": 0.1,
                             "decay_on": "tensors of 2 or more dimensions", "clip_global_norm": 1.0, "clip": "g * min(1, 1/(norm + 1e-6))"},
                   "reference": "transformers and PyTorch, float64; grads rounded to float32"}, open(folder + "/expected.json", "w"), indent=1)

sys.exit(bless(sys.argv[2]) if sys.argv[1] == "bless" else main(*sys.argv[1:]))
