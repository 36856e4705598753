# Compares tokenize and detokenize with Hugging Face's tokenizers for tokenizers of SentencePiece's kind:
# trains BPE and Unigram models on text that is installed, lets transformers convert them as it does Llama 2,
# Gemma, T5, XLM-R and ALBERT, adds the forms that files of older versions have, and compares every id.
# Called by tools/tokenizer-oracle.sh: tokenizer-pieces.py TENON FOLDER [bless]
import array, glob, io, json, os, random, re, shlex, subprocess, sys, time, unicodedata
import sentencepiece
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

tenon, folder, bless = sys.argv[1], sys.argv[2], sys.argv[3:] == ["bless"]
folder += "/pieces"
os.makedirs(folder, exist_ok=True)
failed = 0

# ---- text ----

WORDS = """the of and a to in gradient loss step memory plan buffer kernel tensor don't we're café naïve Zürich Ångström
façade œuvre groß résumé Ελληνικά καλημέρα мир обучение градиент שלום עולם مرحبا ภาษาไทย हिन्दी नमस्ते 中文 訓練 模型 梯度下降
日本語 テンソル が 한국어 경사 x1 y_2 3.14159 2024 ½ ² Ⅷ snake_case HTTPServer e\u0301te\u0301 a\u0323\u0301 \u1100\u1161\u11a8 ﬁ ſ K ＡＢＣ ｶﾞ ㍿ ﷺ İstanbul ǅ
``quoted'' ▁ x▁y <0x41> <unk> <s> 🙂 👩‍💻 👍🏽 🇩🇪🇫🇷 → … — “x” € \u200b \ufeff \u00a0 \u3000 \u2028 \u0000 \u0001 \x7f !!! ... --- == -> (a) {k: v} &amp; //""".split(" ")
SPACES = [" "] * 30 + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\n    ", "\r", "\x0b", "\x85", "", ""]

def known(c):
    return unicodedata.category(c) not in ("Cn", "Cs")

def line(r):
    out = ""
    for _ in range(r.randrange(1, 30)):
        k = r.random()
        if k < 0.9:
            out += r.choice(WORDS)
        elif k < 0.93:
            out += str(r.randrange(10 ** r.randrange(1, 12)))
        elif k < 0.98:
            c = chr(r.choice([r.randrange(0x20, 0x3000), r.randrange(0x3000, 0xd800), r.randrange(0xf900, 0x20000)]))
            out += c if known(c) else ""
        else:
            out += r.choice([" ", "\n", "=", "\t", "-", "☃", "ba"]) * r.choice([3, 17, 80, 700])
        out += r.choice(SPACES)
    return out + "\n"

def mixed(seed, size):
    r, out, n = random.Random(seed), [], 0
    while n < size:
        out.append(line(r))
        n += len(out[-1].encode())
    return "".join(out)

def system(size):
    out, r = "", random.Random(1)
    paths = sorted(glob.glob("/usr/share/common-licenses/*") + glob.glob(os.__file__[:-5] + "/*.py") + glob.glob("/usr/share/i18n/locales/*"))
    r.shuffle(paths)
    for p in paths:
        if len(out) < size:
            out += open(p, encoding="utf-8", errors="replace").read(60000)
    return out[:size]

# ---- tokenizers ----

def train(name, text, size, kind, **how):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=size, model_type=kind, num_threads=2,
        minloglevel=2, hard_vocab_limit=False, max_sentence_length=100000, **how)
    there = "%s/%s" % (folder, name)
    os.makedirs(there, exist_ok=True)
    open(there + "/tokenizer.model", "wb").write(model.getvalue())
    return there

# The line that tenon prints where a folder has no tokenizer.json, with what it needs to know the class.
def convert(there, kind, cls, **settings):
    for old in glob.glob(there + "/*.json"):
        os.remove(old)
    json.dump(dict(model_type=kind), open(there + "/config.json", "w"))
    json.dump(dict(tokenizer_class=cls, **settings), open(there + "/tokenizer_config.json", "w"))
    p = subprocess.run([tenon, "tokenize", "/dev/null", "-o", "/dev/null", "--tokenizer", there], capture_output=True, text=True)
    python = re.search(r"\n  python3 (-c .*)", p.stderr)
    if p.returncode != 1 or not python:
        sys.exit("%s: expected the line that converts it, found %r" % (there, p.stderr))
    subprocess.run([sys.executable, *shlex.split(python.group(1))], check=True, stderr=subprocess.DEVNULL)
    return there + "/tokenizer.json"

def variant(path, name, change):
    j = json.load(open(path))
    change(j)
    there = "%s/%s.json" % (folder, name)
    json.dump(j, open(there, "w"), ensure_ascii=False)
    return there

META = {"type": "Metaspace", "replacement": "▁"}
LLAMA2 = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
DECODERS = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]

def added(content, j, **flags):
    vocab = j["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {x[0]: i for i, x in enumerate(vocab)}
    most = max([len(ids) - 1] + [x["id"] for x in j["added_tokens"]])
    x = {"id": ids.get(content, most + 1), "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False}
    x.update(flags)
    j["added_tokens"].append(x)

def with_tokens(j):
    for content, flags in [("<m>", dict(lstrip=True)), ("[R]", dict(rstrip=True)), ("word", dict(single_word=True)),
                           ("both", dict(lstrip=True, rstrip=True, single_word=True, normalized=True)), ("norm", dict(normalized=True)),
                           ("Ünï", dict(normalized=True, lstrip=True)), ("a b", dict(normalized=True)), ("<mm>", dict(lstrip=True, rstrip=True))]:
        added(content, j, **flags)

def steps(normalizer=0, pre=0, decoder=0, tokens=False, model=None):
    def change(j):
        for key, value in (("normalizer", normalizer), ("pre_tokenizer", pre), ("decoder", decoder)):
            if value != 0:
                j[key] = value
        j["model"].update(model or {})
        if tokens:
            with_tokens(j)
    return change

def sequence(kind, *items):
    key = {"pre": "pretokenizers", "normal": "normalizers", "decode": "decoders"}[kind]
    return {"type": "Sequence", key: list(items)}

def all_kinds(text):
    size = 2000
    bpe = dict(byte_fallback=True, split_digits=True, add_dummy_prefix=True, normalization_rule_name="identity",
               remove_extra_whitespaces=False, allow_whitespace_only_pieces=True)
    llama = convert(train("llama", text, size, "bpe", **bpe), "llama", "LlamaTokenizer")
    yield llama
    gemma = convert(train("gemma", text, size, "bpe", pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=["<mask>"],
                          **dict(bpe, add_dummy_prefix=False)), "gemma", "GemmaTokenizer")
    yield gemma
    yield convert(train("t5", text, size, "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1), "t5", "T5Tokenizer")
    xlmr = convert(train("xlmr", text, size, "unigram", normalization_rule_name="nmt_nfkc_cf"), "xlm-roberta", "XLMRobertaTokenizer")
    yield xlmr
    yield convert(train("albert", text, size, "unigram", pad_id=0, unk_id=1, bos_id=2, eos_id=3, bos_piece="[CLS]", eos_piece="[SEP]",
                        user_defined_symbols=["[MASK]"]), "albert", "AlbertTokenizer")
    fallback = convert(train("fallback", text, size, "unigram", byte_fallback=True, character_coverage=0.98), "t5", "T5Tokenizer")
    # Files of older versions, and every setting.
    old = sequence("decode", *DECODERS, STRIP)
    yield variant(llama, "llama2", steps(LLAMA2, None, old))
    yield variant(llama, "llama2-unk", steps(LLAMA2, None, old, model=dict(unk_token="<unk>", byte_fallback=False, fuse_unk=True)))
    yield variant(llama, "llama2-unfused", steps(LLAMA2, None, old, model=dict(unk_token="<unk>", byte_fallback=False, fuse_unk=False)))
    def half(j): # bytes of which some have no token: unknown ones wait behind the others
        j["model"]["unk_token"] = "<unk>"
        for b in list(range(0x80, 0xa0)):
            j["model"]["vocab"]["<gone%d>" % b] = j["model"]["vocab"].pop("<0x%02X>" % b)
    yield variant(llama, "llama2-half", half)
    yield variant(llama, "llama2-tokens", steps(LLAMA2, None, old, True))
    yield variant(llama, "ignore", steps(LLAMA2, None, old, True, model=dict(ignore_merges=True)))
    for scheme in "always", "first", "never":
        for cut in True, False:
            yield variant(llama, "%s-%d" % (scheme, cut), steps(None, dict(META, prepend_scheme=scheme, split=cut), dict(META, prepend_scheme=scheme), True))
            yield variant(fallback, "unigram-%s-%d" % (scheme, cut), steps(None, dict(META, prepend_scheme=scheme, split=cut),
                          dict(META, prepend_scheme=scheme), True, model=dict(byte_fallback=True)))
    yield variant(llama, "prefix", steps(None, dict(META, add_prefix_space=True), dict(META, add_prefix_space=True, str_rep="▁"), True))
    yield variant(llama, "spaces", steps(None, sequence("pre", {"type": "WhitespaceSplit"}, dict(META, prepend_scheme="first")), None, True))
    yield variant(gemma, "gemma-tokens", steps(tokens=True))
    yield variant(xlmr, "xlmr-tokens", steps(tokens=True))
    j = json.load(open(xlmr))
    def replace(a, b, regex=False):
        return {"type": "Replace", "pattern": {"Regex" if regex else "String": a}, "content": b}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    yield variant(xlmr, "xlmr-strip", steps(sequence("normal", j["normalizer"], strip, replace(" {2,}", "▁", True)), dict(META, prepend_scheme="always"), tokens=True))
    yield variant(fallback, "many", steps(sequence("normal", replace("ba", "X"), {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True},
                  replace("..", "…"), {"type": "Lowercase"}, replace("==", "")), dict(META, prepend_scheme="always"), tokens=True))
    yield variant(fallback, "nfkd", steps(sequence("normal", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "NFD"}, {"type": "NFC"}),
                  dict(META, prepend_scheme="always", split=False), sequence("decode", DECODERS[1], dict(META), {"type": "Strip", "content": "a", "start": 2, "stop": 0}), True))

# ---- comparison ----

def run(*args):
    p = subprocess.run([tenon, *args], capture_output=True)
    if p.returncode:
        sys.exit("tenon %s: %s" % (" ".join(args), p.stderr.decode()))
    return p.stdout

def ids_of(path, files, *more):
    return list(array.array("I", run("tokenize", *files, "-o", "-", "--tokenizer", path, "--token-type", "u32", *more)))

def text_of(path, ids):
    back = folder + "/back.bin"
    open(back, "wb").write(array.array("I", ids).tobytes())
    return run("detokenize", back, "--tokenizer", path, "--token-type", "u32").decode()

def compare(path, t, file, text, what):
    global failed
    start = time.time()
    got = ids_of(path, [file])
    sec = time.time() - start
    want = t.encode(text, add_special_tokens=False).ids
    same, same_text = want == got, text_of(path, want) == t.decode(want, skip_special_tokens=False)
    if not same:
        i = next((i for i, (x, y) in enumerate(zip(want, got)) if x != y), min(len(want), len(got)))
        print("%s, %s: id %d differs: expected %r, found %r" % (path, what, i, [t.id_to_token(x) for x in want[i - 3:i + 8]], [t.id_to_token(x) for x in got[i - 3:i + 8]]))
    failed += not same or not same_text
    print("%s, %s: %d bytes, %d ids %s, decoded %s, %.1f MB/s" % (os.path.relpath(path, folder), what, len(text.encode()), len(want),
          "equal" if same else "DIFFER", "equal" if same_text else "DIFFERS", len(text.encode()) * 1e-6 / sec))

AROUND = [" ", "  ", "\n", "\t", "a", "é", "e\u0301", "\u0301", "ж", "_", "1", "\u3000", "-", "word", "wor", "bo", "both", "norm", "Ünï", "a b", "a  b", "<m>", "[R]",
          "<mm>", "<s>", "</s>", "<unk>", "<0x41>", "▁", "▁a", "☃", "𝔘", "中文", "🙂", "the", " of", "\u0001", "ba", "..", "==", "A\u0300", "\r\n", "in", "don't"]

def short(path, t, r, count):
    global failed
    texts = ["".join(r.choice(AROUND) for _ in range(r.randrange(1, 14))) for _ in range(count)]
    files = ["%s/short%d" % (folder, i) for i in range(60)]
    mark = "</s>" if t.token_to_id("</s>") is not None else t.id_to_token(0)
    bad = 0
    for at in range(0, count, 60):
        some = texts[at:at + 60]
        for file, x in zip(files, some):
            open(file, "w", newline="").write(x)
        want = []
        for x in some:
            want += t.encode(x, add_special_tokens=False).ids + [t.token_to_id(mark)]
        if ids_of(path, files[:len(some)], "--end", mark) == want:
            continue
        for file, x in zip(files, some):
            w, h = t.encode(x, add_special_tokens=False).ids, ids_of(path, [file])
            if w != h:
                bad += 1
                if bad <= 3:
                    print("%s, %r: expected %r, found %r" % (path, x, [t.id_to_token(i) for i in w], [t.id_to_token(i) for i in h]))
    open(files[0], "w", newline="").write("in the word")
    bad += ids_of(path, files[:1], "--add-special") != t.encode("in the word").ids
    r2 = random.Random(5)
    for _ in range(30):
        ids = [r2.randrange(t.get_vocab_size()) for _ in range(r2.randrange(1, 40))]
        ids = [i for i in ids if t.id_to_token(i) is not None]
        if r2.random() < 0.5:
            ids = [i for x in ids for i in [x, *[t.token_to_id("<0x%02X>" % r2.choice([0xe2, 0x82, 0xac, 0x41, 0xff]))]] if i is not None]
        want, got = t.decode(ids, skip_special_tokens=False), text_of(path, ids)
        if want != got:
            bad += 1
            print("%s: decoding %r: expected %r, found %r" % (path, [t.id_to_token(i) for i in ids], want, got))
    failed += bad
    print("%s: %d short texts, %d differ" % (os.path.relpath(path, folder), count, bad))

# Characters that the forms and lists of Hugging Face's tables, of an older version of Unicode, do not know.
def unknown_to_tables():
    forms = [(getattr(normalizers, f)(), f) for f in ("NFD", "NFKC", "NFKD")]
    accents = normalizers.StripAccents()
    for c in map(chr, range(0x80, 0x110000)):
        x = "a%sb" % c
        if known(c) and (any(h.normalize_str(x) != unicodedata.normalize(f, x) for h, f in forms)
                         or (accents.normalize_str(x) == "ab") != (unicodedata.category(c)[0] == "M")):
            yield c

new = re.compile("[%s]" % "".join(unknown_to_tables()))
training = mixed(7, 200000) + system(400000)
text = mixed(8, int(os.environ.get("MIXED", "1500000"))) + system(1000000) + " " * 5000
text = new.sub("", text)
file = folder + "/text"
open(file, "w", newline="").write(text)
every = "\n".join("a%s %sb1" % (chr(c), chr(c)) for c in range(0x110000) if known(chr(c)) and not 0xf0100 <= c < 0x10ff00)
every = re.sub("a%s %sb1\n" % ((new.pattern,) * 2), "", every)
open(folder + "/characters", "w", newline="").write(every)
r = random.Random(3)
only = os.environ.get("ONLY", "")
for path in all_kinds(training):
    if not re.search(only, path):
        continue
    t = Tokenizer.from_file(path)
    compare(path, t, file, text, "mixed text")
    compare(path, t, folder + "/characters", every, "every character")
    short(path, t, r, int(os.environ.get("SHORT", "1200")))
# What make test reads without Python: small tokenizers, their ids of one text, and what these are decoded as.
SAMPLE = "Byte fallback: ☃ 𝔘 \u0001\t▁x▁y  (three   spaces)   the gradient of  <unk>the loss</s> in it  <m> both[R]  \n\n word wordy Ünï x\r\n"
MAP = {"Ａ": "A", "ａ": "a", "①": "1", "ﬁ": "fi", "\u3000": " ", "\u0001": "", "e\u0301": "é", "\t": " ", "\n": " ", "\r": " ", "ſ": "s"}

def small_kinds(text):
    rules = folder + "/rules.tsv"
    open(rules, "w").write("".join("%s\t%s\n" % tuple(" ".join("%X" % ord(c) for c in x) for x in item) for item in MAP.items()))
    how = dict(character_coverage=0.98, byte_fallback=True, remove_extra_whitespaces=False, normalization_rule_name="identity")
    llama = convert(train("small-bpe", text, 420, "bpe", **how), "llama", "LlamaTokenizer")
    yield "llama2", variant(llama, "s1", steps(LLAMA2, None, sequence("decode", *DECODERS, STRIP), True))
    yield "llama5", variant(llama, "s2", steps(None, dict(META, prepend_scheme="first", split=False), tokens=True))
    gemma = steps(tokens=True, model=dict(unk_token="<unk>", byte_fallback=False, fuse_unk=True), decoder=sequence("decode", *DECODERS),
                  normalizer=LLAMA2["normalizers"][1], pre={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})
    yield "gemma", variant(llama, "s3", gemma)
    del how["byte_fallback"], how["normalization_rule_name"]
    t5 = convert(train("small-t5", text, 250, "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_tsv=rules, **how), "t5", "T5Tokenizer", extra_ids=2)
    yield "t5", variant(t5, "s4", steps(tokens=True))
    how["byte_fallback"] = True
    unigram = convert(train("small-unigram", text, 480, "unigram", normalization_rule_name="identity", **how), "t5", "T5Tokenizer", extra_ids=2)
    normal = sequence("normal", {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
                      {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})
    yield "unigram", variant(unigram, "s5", steps(normal, dict(META, prepend_scheme="always", split=False),
                             dict(META, prepend_scheme="always", split=False), True, model=dict(byte_fallback=True)))

if bless:
    there = "tests/tokenizer"
    sample = (SAMPLE + mixed(9, 2400)).replace("\0", "")
    open(there + "/pieces.txt", "w", newline="").write(sample)
    for name, path in small_kinds(re.sub("[^ -~\né中文▁]", "", training)[:150000]):
        j = json.load(open(path))
        json.dump(j, open("%s/%s.json" % (there, name), "w"), ensure_ascii=False, separators=(",", ":"))
        t = Tokenizer.from_file("%s/%s.json" % (there, name))
        ids = t.encode(sample, add_special_tokens=False).ids
        open("%s/%s.ids" % (there, name), "wb").write(array.array("H", ids).tobytes())
        open("%s/%s.txt" % (there, name), "w", newline="").write(t.decode(ids, skip_special_tokens=False))
print("%s" % ("%d comparisons of pieces FAILED" % failed if failed else "all pieces equal"))
sys.exit(failed != 0)
