"""Chats: texts, ids and masks as transformers' apply_chat_template makes them, by the templates of tests/chat and those
that trl ships, where it is installed; and the loss of a step as PyTorch computes it. Random chats, 1,000 for each of
our templates with TN_LONG=1 and 100 else; a tenth of that for each of trl's."""
import ctypes
import importlib.util
import json
import os
import random
import subprocess
import tempfile
import unittest
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

import torch

try:
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"transformers cannot be imported: {error}")

import chats

transformers.logging.set_verbosity_error()
chats.module()
lib = ctypes.CDLL(os.environ["TENON_LIBRARY"])
HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.join(HERE, "..", "chat")
COUNT = 1000 if os.environ.get("TN_LONG") else 100
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Span(ctypes.Structure):
    _fields_ = [("begin", c_size_t), ("end", c_size_t)]


class TextOptions(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("keep", c_int), ("between", c_int64), ("holds", c_int), ("chat", c_char_p),
                ("seq", c_int64), ("val_fraction", c_double), ("vocab", c_int64), ("progress", c_void_p),
                ("progress_arg", c_void_p), ("warn", c_void_p), ("warn_arg", c_void_p)]


class RowCounts(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("rows", "tokens", "learned", "cut", "lost", "left_out")]


lib.tn_context_new.restype = c_void_p
lib.tn_error.restype = c_char_p
lib.tn_error.argtypes = [c_void_p]
lib.tn_context_free.argtypes = [c_void_p]
lib.tn_chat_open.argtypes = [c_void_p, c_char_p, POINTER(c_void_p)]
lib.tn_chat_text.argtypes = [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_void_p), POINTER(c_size_t),
                             POINTER(POINTER(Span)), POINTER(c_int)]
lib.tn_chat_free.argtypes = [c_void_p]
lib.tn_tokenizer_open.argtypes = [c_void_p, c_char_p, POINTER(c_void_p)]
lib.tn_data_open.argtypes = [c_void_p, c_int, POINTER(c_char_p), c_char_p, c_double, c_int64, POINTER(c_void_p)]
lib.tn_data_holds.argtypes = [c_void_p, POINTER(c_int)]
lib.tn_data_tokenize.argtypes = [c_void_p, c_void_p, POINTER(TextOptions), POINTER(c_void_p), POINTER(c_int)]
lib.tn_data_row_counts.argtypes = [c_void_p, POINTER(RowCounts)]
lib.tn_data_val.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_int64, POINTER(c_int64), POINTER(c_int64),
                            POINTER(c_int64)]


class Context:
    """One of the library, whose errors are raised."""

    def __init__(self):
        self.ctx = c_void_p(lib.tn_context_new())

    def free(self):
        lib.tn_context_free(self.ctx)

    def check(self, code):
        if code:
            raise RuntimeError(lib.tn_error(self.ctx).decode())

    def chat(self, folder):
        chat = c_void_p()
        self.check(lib.tn_chat_open(self.ctx, folder.encode(), byref(chat)))
        return chat

    def text(self, chat, line, prompt):
        text, size, span, nspan = c_void_p(), c_size_t(), POINTER(Span)(), c_int()
        self.check(lib.tn_chat_text(chat, line, len(line), prompt, byref(text), byref(size), byref(span),
                                    byref(nspan)))
        return ctypes.string_at(text, size.value), [[span[i].begin, span[i].end] for i in range(nspan.value)]

    def rows(self, folder, path, seq):
        """Ids and labels of each row of a file."""
        tokenizer, data, rows = c_void_p(), c_void_p(), c_void_p()
        holds, made, count, counts = c_int(), c_int(), c_int64(), RowCounts()
        paths = (c_char_p * 1)(path.encode())
        self.check(lib.tn_tokenizer_open(self.ctx, folder.encode(), byref(tokenizer)))
        self.check(lib.tn_data_open(self.ctx, 1, paths, b"auto", 1.0, 0, byref(data)))
        self.check(lib.tn_data_holds(data, byref(holds)))
        options = TextOptions(between=-1, holds=holds, chat=folder.encode(), seq=seq, val_fraction=1.0)
        self.check(lib.tn_data_tokenize(data, tokenizer, byref(options), byref(rows), byref(made)))
        assert lib.tn_data_row_counts(rows, byref(counts)) == 1
        ids, labels = (c_int64 * seq)(), (c_int64 * seq)()
        result = []
        for k in range(counts.rows):
            self.check(lib.tn_data_val(rows, k, 1, 1, seq, ids, labels, byref(count)))
            result.append((list(ids), list(labels)))
        return result, counts


def templates():
    """Names and texts: ours, then trl's."""
    found = [(name, os.path.join(OURS, name)) for name in sorted(os.listdir(OURS)) if name.endswith(".jinja")]
    spec = importlib.util.find_spec("trl")
    folder = os.environ.get("TN_TRL") or (spec and os.path.join(os.path.dirname(spec.origin), "chat_templates"))
    theirs = []
    if folder and os.path.isdir(folder):
        theirs = [("trl/" + name, os.path.join(folder, name)) for name in sorted(os.listdir(folder))
                  if name.endswith(".jinja")]
    return found, theirs


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    return path


def model_tokenizer(folder, which, template):
    """A tokenizer of tests/tokenizer in a folder, with the tokens that templates write."""
    t = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, "..", "tokenizer", which + ".json"))
    t.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": [
        "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>",
        "<end_of_turn>"]})
    t.chat_template = template
    t.save_pretrained(folder)
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def labels_of(ids, mask):
    return [i if m else -100 for i, m in zip(ids[1:], mask[1:])]


class TestChat(unittest.TestCase):
    def setUp(self):
        self.c = Context()
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.c.free()
        self.folder.cleanup()

    def texts(self, name, template, count):
        """Texts and spans of random chats; how many transformers refuses, as this does."""
        write(self.folder.name, "chat_template.jinja", template)
        write(self.folder.name, "tokenizer_config.json", json.dumps(TOKENS))
        chat, refused = self.c.chat(self.folder.name), 0
        marked = "endgeneration" in template
        for seed in range(count):
            r = random.Random(f"{name} {seed}")
            record, prompt = chats.record(r, seed % 50 == 49), not marked or r.random() < 0.3
            expected = chats.render(template, record, prompt, TOKENS)
            line = json.dumps(record, ensure_ascii=r.random() < 0.5).encode()
            if expected is None:
                refused += 1
                with self.assertRaises(RuntimeError, msg=line):
                    self.c.text(chat, line, prompt)
                continue
            text, spans = self.c.text(chat, line, prompt)
            self.assertEqual(text.decode(), expected[0], (name, line))
            self.assertEqual(spans, expected[1], (name, line))
        lib.tn_chat_free(chat)
        return refused

    def test_texts(self):
        ours, theirs = templates()
        for name, path in ours:
            with self.subTest(name):
                self.assertLess(self.texts(name, read(path), COUNT), COUNT / 2)
        for name, path in theirs:
            with self.subTest(name):
                self.texts(name, read(path), COUNT // 10)
        if not theirs:
            self.skipTest("trl's templates: it is not installed (pip install --no-deps trl, or TN_TRL=FOLDER)")

    def masks(self, name, template, which, count):
        """Ids and labels of chats that are accepted, as one file."""
        t = model_tokenizer(self.folder.name, which, template)
        lines, expected = [], []
        for seed in range(count):
            record = chats.record(random.Random(f"mask {name} {seed}"), seed % 50 == 49)
            try:
                out = t.apply_chat_template(record["messages"], tools=record.get("tools"), return_dict=True,
                                            return_assistant_tokens_mask=True)
            except Exception:
                continue
            lines.append(json.dumps(record, ensure_ascii=False))
            ids, mask = out["input_ids"], out["assistant_masks"]
            if any(mask[1:]):
                expected.append((ids, labels_of(ids, mask)))
        if not expected:
            return
        path = write(self.folder.name, "chats.jsonl", "\n".join(lines) + "\n")
        seq = max(len(ids) for ids, _ in expected)
        rows, counts = self.c.rows(self.folder.name, path, seq)
        self.assertEqual(len(rows), len(expected), name)
        self.assertEqual(counts.left_out, len(lines) - len(expected))
        for (ids, labels), (ids_expected, labels_expected) in zip(rows, expected):
            n = len(labels_expected)
            self.assertEqual(ids[:n], ids_expected[:n], name)
            self.assertEqual(labels[:n], labels_expected, name)
            self.assertEqual(labels[n:], [-100] * (seq - n), name)

    def test_masks(self):
        ours, theirs = templates()
        few = max(COUNT // 10, 10)
        for which in ("llama3", "qwen2", "llama2", "gpt2", "gemma"):
            for name, path in ours:
                template = read(path)
                if "endgeneration" in template:
                    with self.subTest(name, tokenizer=which):
                        self.masks(name, template, which, few)
        for name, path in theirs:
            template = read(path)
            if "endgeneration" in template and "vl" not in name:
                with self.subTest(name):
                    self.masks(name, template, "qwen2", few)

    def test_prefixes(self):
        """Without tags: what is between the prompt of each turn and its end is learned."""
        t = model_tokenizer(self.folder.name, "llama3", read(os.path.join(OURS, "chat_template.jinja")))
        lines, expected = [], []
        for seed in range(COUNT // 2):
            r = random.Random(f"prefix {seed}")
            record = {"messages": [m for i in range(r.randint(1, 3)) for m in (
                {"role": "user", "content": chats.text(r)}, {"role": "assistant", "content": chats.text(r)})]}
            text, spans = "", []
            for m in record["messages"]:
                text += f"<|im_start|>{m['role']}\n"
                begin = len(text)
                text += m["content"] + "<|im_end|>"
                spans += [(begin, len(text))] if m["role"] == "assistant" else []
                text += "\n"
            self.assertEqual(text, t.apply_chat_template(record["messages"], tokenize=False))
            out = t(text, add_special_tokens=False, return_offsets_mapping=True)
            mask = [any(b < end and e > begin for begin, end in spans) for b, e in out["offset_mapping"]]
            lines.append(json.dumps(record))
            expected.append((out["input_ids"], labels_of(out["input_ids"], mask)))
        path = write(self.folder.name, "chats.jsonl", "\n".join(lines))
        rows, _ = self.c.rows(self.folder.name, path, max(len(ids) for ids, _ in expected))
        for (ids, labels), (ids_expected, labels_expected) in zip(rows, expected):
            n = len(labels_expected)
            self.assertEqual((ids[:n], labels[:n]), (ids_expected[:n], labels_expected))

    def test_loss(self):
        """A step's loss, of answers alone, is that of transformers."""
        folder = self.folder.name
        t = model_tokenizer(folder, "llama3", read(os.path.join(OURS, "thinking.jinja")))
        torch.manual_seed(0)
        config = transformers.LlamaConfig(vocab_size=len(t), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                          bos_token_id=t.bos_token_id, eos_token_id=t.eos_token_id)
        model = transformers.LlamaForCausalLM(config).eval()
        model.save_pretrained(folder)
        records = [chats.record(random.Random(f"loss {i}")) for i in range(40)]
        seq, rows = 64, []
        for record in records:
            out = t.apply_chat_template(record["messages"], tools=record.get("tools"), return_dict=True,
                                        return_assistant_tokens_mask=True)
            ids, mask = out["input_ids"][:seq + 1], out["assistant_masks"][:seq + 1]
            if any(mask[1:]):
                rows.append((ids + [0] * (seq + 1 - len(ids)), [i if m else -100 for i, m in zip(ids, mask)]
                             + [-100] * (seq + 1 - len(ids))))
        expected = model(input_ids=torch.tensor([r[0] for r in rows]), labels=torch.tensor([r[1] for r in rows])).loss
        path = write(folder, "chats.jsonl", "\n".join(json.dumps(r) for r in records))
        done = subprocess.run([os.path.join(os.environ["BUILD"], "tenon"), "train", folder, "--data", path, "--steps",
                               "1", "--batch-size", str(len(rows)), "--seq-len", str(seq), "--val-fraction", "0",
                               "--metrics", os.path.join(folder, "m.jsonl"), "--out", os.path.join(folder, "out")],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("of them learned", done.stderr)
        loss = json.loads(read(os.path.join(folder, "m.jsonl")).splitlines()[0])["loss"]
        self.assertLess(abs(loss - expected.item()), 1e-5)
        self.assertGreater(len(rows), 20)
