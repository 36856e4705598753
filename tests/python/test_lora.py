"""Adapters beside PEFT: its folders read here, ours read there, and the numbers between: logits, gradients, losses of a
run, and the weights that both merge. In f32, on the small models of tests/ref; TN_LONG=1: on all of them, in all forms."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import torch

try:
    import peft
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"peft or transformers cannot be imported: {error}")

from safetensors.torch import load_file, save_file

import tenon as tenon_front

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
HERE = os.path.dirname(os.path.abspath(__file__))
REF = os.path.join(HERE, "..", "ref")
TENON = os.path.join(os.environ["BUILD"], "tenon")
LONG = bool(os.environ.get("TN_LONG"))
TARGETS = {"gpt2": ["c_attn"], "other": ["q_proj", "v_proj"]}
# Ranks and factors of some modules: the first name that means a module holds. PEFT writes names sorted.
PATTERNS = {"rank_pattern": {"h.0.attn.c_attn": 3, "layers.0.self_attn.q_proj": 2, "q_proj": 8},
            "alpha_pattern": {"0.attn.c_attn": 2.5, "layers.1.self_attn.v_proj": 100, "v_proj": 3}}
# Names are regular expressions of Python, of a module's name from its beginning or from after a dot on.
REGEX = {"rank_pattern": {r"[^q]_proj": 7, r"_proj": 9, r"layers\.0\.self_attn\.(q|v)_proj": 2, r"layers\.\d+\..*\bq_proj$": 3},
         "alpha_pattern": {r"^model\.layers\.\d+\.(?!mlp)\w+\.v_proj": 2.5, r"q.proj": 11}}
FORMS = {"lora": {}, "all": {"target_modules": "all-linear"}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True},
         "patterns": PATTERNS, "regex": REGEX}
# (model, form)
SHORT = [("llama-tiny", "all"), ("gpt2-tiny", "lora"), ("gpt2-tiny", "dora"), ("qwen2-tiny", "rslora"), ("qwen2-tiny", "dora"),
         ("llama-tiny", "patterns"), ("llama-tiny", "regex")]
ALL = [(m, f) for m in ("llama-tiny", "llama-tied", "gpt2-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny") for f in FORMS]
STEPS, LR = 20, 1e-2


def tenon(*args):
    done = subprocess.run([TENON, *map(str, args), "--threads", "1"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"tenon {' '.join(map(str, args))}: {done.stderr}")
    return done.stdout


def base_of(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits.flatten(0, 1)


def batch_of(folder):
    batch = load_file(os.path.join(folder, "batch.safetensors"))
    return batch["input_ids"], batch["labels"]


def loss_of(model, ids, labels):
    return torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def adapted(folder, form, **more):
    """PEFT's model of a base, with a second matrix that is not zero, so that all of it counts."""
    which = "gpt2" if os.path.basename(folder).startswith("gpt2") else "other"
    config = dict(r=4, lora_alpha=6, target_modules=TARGETS[which], fan_in_fan_out=which == "gpt2", task_type="CAUSAL_LM")
    torch.manual_seed(7)
    model = peft.get_peft_model(base_of(folder), peft.LoraConfig(**{**config, **FORMS[form], **more}))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    return model


def names_of(model):
    """Parameters that PEFT trains, by their names in its files."""
    found = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            name = name.replace(".default.weight", ".weight").replace(".lora_magnitude_vector.weight",
                                                                       ".lora_magnitude_vector")
            found[name.replace(".modules_to_save.weight", ".weight")] = p
    return found


class Lora(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def near(self, x, y, tolerance, what):
        self.assertEqual(x.shape, y.shape, what)
        far = (x - y).abs().max().item() / max(1, y.abs().max().item())
        self.assertLess(far, tolerance, f"{what}: {far:.3g}")

    def logits(self, model, *options):
        tenon("eval", model, "--batch", os.path.join(self.base, "batch.safetensors"), "--logits", self.path("logits"), *options)
        return load_file(self.path("logits"))["logits"]

    def begin(self, name, form, **more):
        shutil.rmtree(self.dir)
        os.mkdir(self.dir)
        self.base = os.path.join(REF, name)
        self.ids, self.labels = batch_of(self.base)
        self.model = adapted(self.base, form, **more)
        self.model.save_pretrained(self.path("peft"))

    def check_read(self, what):
        """PEFT's folder, read here: logits and gradients."""
        self.near(self.logits(self.base, "--adapter", self.path("peft")), logits_of(self.model, self.ids), 1e-5, what)
        tenon("grad", self.base, "--adapter", self.path("peft"), "--batch", os.path.join(self.base, "batch.safetensors"),
              "--out", self.path("grads"))
        grads = load_file(self.path("grads"))
        trained = names_of(self.model)
        self.model.zero_grad()
        loss_of(self.model, self.ids, self.labels).backward()
        for name, p in trained.items():
            self.near(grads.get(name, grads.get(name.removeprefix("base_model.model."))), p.grad, 2e-6, f"{what}: gradient of {name}")
        return trained

    def check_train(self, what):
        """20 steps of AdamW from the same adapters."""
        out = tenon("train", self.base, "--adapter", self.path("peft"), "--batch",
                    os.path.join(self.base, "batch.safetensors"), "--steps", STEPS, "--out", self.path("run"), "--lr", LR,
                    "--schedule", "constant", "--weight-decay", 0.02, "--clip", 0, "--beta2", 0.999)
        mine = [float(line.split()[3]) for line in out.splitlines()]
        trained = names_of(self.model)
        decay = [p for p in trained.values() if p.dim() > 1]
        rest = [p for p in trained.values() if p.dim() == 1]
        optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0}],
                                      lr=LR, betas=(0.9, 0.999), eps=1e-8)
        self.model.eval()  # GPT-2's base has dropout
        for step in range(STEPS):
            loss = loss_of(self.model, self.ids, self.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.assertAlmostEqual(mine[step], loss.item(), delta=1e-5, msg=f"{what}: step {step + 1}")
        saved = load_file(self.path("run/latest/adapter_model.safetensors"))
        self.assertEqual(set(saved), set(trained), what)
        for name, p in trained.items():
            self.near(saved[name], p.detach(), 2e-4, f"{what}: {name} after {STEPS} steps")

    def check_written(self, what):
        """Our folder, read by PEFT, and the merged one by transformers."""
        here = self.logits(self.path("run"))
        theirs = peft.PeftModel.from_pretrained(base_of(self.base), self.path("run/latest"))
        self.near(here, logits_of(theirs, self.ids), 1e-5, f"{what}: PEFT reads ours")
        tenon("merge", self.base, "--adapter", self.path("run"), "-o", self.path("merged"))
        merged = base_of(self.path("merged"))
        self.near(here, logits_of(merged, self.ids), 1e-5, f"{what}: merged")
        for name, p in theirs.merge_and_unload().state_dict().items():
            self.near(merged.state_dict()[name], p, 1e-6, f"{what}: merged {name}")

    def check(self, name, form, **more):
        what = f"{name} {form}"
        self.begin(name, form, **more)
        self.check_read(what)
        self.check_train(what)
        self.check_written(what)

    def test_forms(self):
        for name, form in ALL if LONG else SHORT:
            with self.subTest(model=name, form=form):
                self.check(name, form)

    def test_saved_whole(self):
        """Modules that are trained whole."""
        self.check("llama-tiny", "lora", modules_to_save=["lm_head", "embed_tokens"])

    def test_modules(self):
        """Modules by a regular expression, or of some layers: which they are the tensors say."""
        for more in ({"target_modules": r".*\.0\.mlp\.(up|down)_proj"}, {"layers_to_transform": [1]}):
            with self.subTest(**more):
                self.begin("llama-tiny", "lora", **more)
                self.check_read(str(more))
                self.check_train(str(more))
                self.check_written(str(more))

    def test_dropout(self):
        """The inputs of adapters are dropped in training alone, by streams of seed and step."""
        self.begin("llama-tiny", "lora", lora_dropout=0.5)
        self.near(self.logits(self.base, "--adapter", self.path("peft")), logits_of(self.model, self.ids), 1e-5, "logits")
        train = ["train", self.base, "--adapter", self.path("peft"), "--batch", os.path.join(self.base, "batch.safetensors"),
                 "--steps", 2, "--lr", 0]
        first = tenon(*train, "--out", self.path("a"))
        self.assertEqual(first, tenon(*train, "--out", self.path("b")))
        self.assertNotEqual(first, tenon(*train, "--out", self.path("c"), "--seed", 1))
        losses = [float(line.split()[3]) for line in first.splitlines()]
        self.assertNotEqual(losses[0], losses[1])

    def test_default(self):
        """New adapters of all linear modules, which is the default: PEFT reads them."""
        for name in ("llama-tiny", "gpt2-tiny"):
            with self.subTest(model=name):
                self.base = os.path.join(REF, name)
                self.ids, self.labels = batch_of(self.base)
                tenon("train", self.base, "--lora", "r=4", "--batch", os.path.join(self.base, "batch.safetensors"), "--steps", 3,
                      "--lr", LR, "--out", self.path(name))
                theirs = peft.PeftModel.from_pretrained(base_of(self.base), self.path(name + "/latest"))
                self.near(self.logits(self.path(name)), logits_of(theirs, self.ids), 1e-5, name)

    def test_first_values(self):
        """New adapters: A is uniform, B zero, a magnitude the norm of its row, as PEFT's."""
        base = os.path.join(REF, "qwen2-tiny")
        tenon("train", base, "--lora", "r=8,dora,targets=gate_proj", "--batch", os.path.join(base, "batch.safetensors"),
              "--steps", 1, "--lr", 0, "--out", self.path("run"))
        mine = load_file(self.path("run/latest/adapter_model.safetensors"))
        model = peft.get_peft_model(base_of(base), peft.LoraConfig(r=8, use_dora=True, target_modules=["gate_proj"],
                                                                   task_type="CAUSAL_LM"))
        for name, p in names_of(model).items():
            if "lora_A" in name:
                bound = p.shape[1] ** -0.5
                for x in (mine[name], p.detach()):
                    self.assertLess(x.abs().max().item(), bound)
                    self.assertGreater(x.abs().max().item(), 0.95 * bound)
                    self.assertLess(abs(x.mean().item()), 0.1 * bound)
            else:
                self.near(mine[name], p.detach(), 1e-6, name)

    def test_bf16(self):
        """A base in bf16 with adapters in f32: near PEFT's losses in the same dtypes."""
        self.begin("llama-tiny", "all")
        out = tenon("train", self.base, "--adapter", self.path("peft"), "--batch",
                    os.path.join(self.base, "batch.safetensors"), "--steps", 5, "--out", self.path("run"), "--lr", 1e-3,
                    "--schedule", "constant", "--weight-decay", 0, "--clip", 0, "--beta2", 0.999, "--dtype", "bf16",
                    "--param-dtype", "bf16")
        mine = [float(line.split()[3]) for line in out.splitlines()]
        saved = load_file(self.path("run/latest/adapter_model.safetensors"))
        self.assertEqual({x.dtype for x in saved.values()}, {torch.float32})
        model = peft.PeftModel.from_pretrained(base_of(self.base).to(torch.bfloat16), self.path("peft"), is_trainable=True)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.assertEqual({p.dtype for p in trained}, {torch.float32})
        optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        for step in range(5):
            with torch.autocast("cpu", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(self.ids).logits.float().flatten(0, 1), self.labels.flatten(),
                                                         ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.assertAlmostEqual(mine[step], loss.item(), delta=5e-3, msg=f"step {step + 1}")

    def test_captured(self):
        """A model of PEFT that is captured, and trained on chats from Python: the losses of `tenon train --adapter`."""
        base, chats = self.path("base"), self.path("chats.jsonl")
        config = transformers.LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
        torch.manual_seed(5)
        model = transformers.LlamaForCausalLM(config)
        model.save_pretrained(base)
        shutil.copy(os.path.join(HERE, "..", "tokenizer", "gpt2.json"), os.path.join(base, "tokenizer.json"))
        shutil.copy(os.path.join(HERE, "..", "chat", "chat_template.jinja"), base)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        model.save_pretrained(self.path("peft"))
        with open(chats, "w") as f:
            for i in range(20):
                f.write(json.dumps({"prompt": [{"role": "user", "content": f"say {i}"}],
                                    "completion": [{"role": "assistant", "content": f"it is {i}"}]}) + "\n")
        ids = torch.zeros(4, 64, dtype=torch.int64)

        def step(input_ids, labels):
            return torch.nn.functional.cross_entropy(model(input_ids).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

        trained = tenon_front.train(tenon_front.capture(step, ids, ids), chats, tokenizer=base, steps=8, out=self.path("here"),
                                    lr=LR, schedule="constant", weight_decay=0, val_fraction=0, quiet=True)
        tenon("train", base, "--adapter", self.path("peft"), "--data", chats, "--batch-size", 4, "--seq-len", 64, "--steps", 8,
              "--out", self.path("there"), "--lr", LR, "--schedule", "constant", "--weight-decay", 0, "--val-fraction", 0,
              "--metrics", self.path("m.jsonl"))
        with open(self.path("m.jsonl")) as f:
            for mine, line in zip(trained.losses, f, strict=True):
                self.assertAlmostEqual(mine, json.loads(line)["loss"], delta=1e-5)
        self.assertLess(trained.losses[-1], trained.losses[0] - 0.1)
        model.save_pretrained(self.path("after"))
        tenon("merge", base, "--adapter", self.path("after"), "-o", self.path("merged"))
        with torch.no_grad():
            self.near(base_of(self.path("merged"))(ids + 7).logits, model.eval()(ids + 7).logits, 1e-5, "merged")

    def test_refused(self):
        """Keys that change the mathematics, by name."""
        self.begin("llama-tiny", "lora")
        config = json.load(open(self.path("peft/adapter_config.json")))
        for key, value in (("rank_pattern", {"(?<=q)_proj": 8}), ("alpha_pattern", {"q_proj(": 8}), ("bias", "all"),
                           ("target_parameters", ["x"]), ("trainable_token_indices", [1]), ("layer_replication", [[0, 1]]),
                           ("lora_bias", True), ("init_lora_weights", "pissa"), ("peft_type", "IA3"),
                           ("use_qalora", True), ("a_later_key", 3)):
            with open(self.path("peft/adapter_config.json"), "w") as f:
                json.dump({**config, key: value}, f)
            with self.assertRaisesRegex(RuntimeError, f'key "{key}"'):
                tenon("eval", self.base, "--adapter", self.path("peft"), "--batch", os.path.join(self.base, "batch.safetensors"))
        with open(self.path("peft/adapter_config.json"), "w") as f:
            json.dump(config, f)
        tensors = load_file(self.path("peft/adapter_model.safetensors"))
        save_file({**tensors, "base_model.model.model.embed_tokens.weight": torch.zeros(140, 64)},
                  self.path("peft/adapter_model.safetensors"))
        with self.assertRaisesRegex(RuntimeError, "embed_tokens.weight.*is no part of the adapters"):
            tenon("eval", self.base, "--adapter", self.path("peft"), "--batch", os.path.join(self.base, "batch.safetensors"))


if __name__ == "__main__":
    unittest.main()
