#!/bin/sh
# Compares tokenize and detokenize with Hugging Face's tokenizers (PyPI), where PYTHON has that package:
# trains tokenizers of the kinds of GPT-2, Llama 3, Qwen 2 and others on mixed text made from a seed and
# from what Debian has installed, and compares every id of at least a megabyte, and of many short texts
# around added tokens. Usage: tools/tokenizer-oracle.sh BUILD [bless]; bless: also writes tests/tokenizer
# anew, which make test reads without Python. Tokenizers of SentencePiece's kind: tools/tokenizer-pieces.py.
build=$1
python=${PYTHON:-python3}
"$python" -c 'import tokenizers' 2>/dev/null || {
    echo "tokenizer-oracle: skipped: $python has no package tokenizers (pip install tokenizers)" >&2
    exit 0
}
folder=$build/tokenizer-oracle
mkdir -p "$folder" || exit 1
"$python" - "$build/tenon" "$folder" "$2" <<'END' || exit 1
import array, glob, json, os, random, subprocess, sys, unicodedata
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre, processors, trainers, __version__

tenon, folder, bless = sys.argv[1:4]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

# ---- text ----

WORDS = """the of and a to in gradient loss step memory plan buffer kernel tensor don't we're I'll they've
she'd I'm café naïve Zürich Ångström señor façade œuvre groß STRASSE's it's IT'S DON'T résumé élève
Ελληνικά καλημέρα мир обучение градиент שלום עולם مرحبا بالعالم ภาษาไทย สวัสดี हिन्दी नमस्ते 中文 訓練 模型
梯度下降 日本語 テンソル カタカナ が ぎ 한국어 경사 하강법 x1 y_2 3.14159 2024 1000000 ½ ² Ⅷ ٣٤٥ 0x7fff snake_case
camelCase HTTPServer e\u0301te\u0301 A\u030angstro\u0308m a\u0323\u0301 \u1100\u1161\u11a8 \u30ab\u3099 \ufb01n ﬁ ſ K \u212b""".split()
MARKS = ["🙂", "👩‍💻", "🏳️‍🌈", "👍🏽", "→", "…", "—", "“x”", "€", "©", "\u200b", "\ufeff", "\u00a0", "\u3000", "\u180e", "\u2028",
         "!!!", "?!", "...", "---", "==", "->", "(a)", "[i]", "{k: v}", "<b>", "&amp;", "$x$", "\\n", "'", "’s", "//", "/*", "*/"]
SPACES = [" "] * 30 + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "    ", "\n    ", "\n\t\t", "\r", "\x0b", "\x85"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xfe\xff",
          b"\xf0\x82\x82\xac", b"\xe0\x80\xaf", b"\0", b"\x1b[0m"]

# Python 3.11 and PCRE2 10.42 have the characters of Unicode 14; what was assigned later differs.
def known(c):
    return unicodedata.category(c) not in ("Cn", "Cs")

def line(r):
    out = b""
    for _ in range(r.randrange(1, 30)):
        k = r.random()
        if k < 0.72:
            out += r.choice(WORDS).encode()
        elif k < 0.85:
            out += r.choice(MARKS).encode()
        elif k < 0.88:
            out += str(r.randrange(10 ** r.randrange(1, 12))).encode()
        elif k < 0.90:
            c = chr(r.choice([r.randrange(0x20, 0x3000), r.randrange(0x3000, 0xd800), r.randrange(0xf900, 0x20000)]))
            out += c.encode() if known(c) else b""
        elif k < 0.92:
            out += r.choice(BROKEN)
        elif k < 0.93:
            out += r.choice([b" ", b"\n", b"=", b"\t", b"-"]) * r.choice([3, 17, 80, 700])
        out += r.choice(SPACES).encode() if r.random() < 0.9 else b""
    return out + b"\n"

def mixed(seed, size):
    r, out = random.Random(seed), []
    while sum(map(len, out[-1:])) + size > 0:
        out.append(line(r))
        size -= len(out[-1])
    return b"".join(out)

def system(size):
    out, r = b"", random.Random(1)
    paths = sorted(glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/include/*.h") + glob.glob(os.__file__[:-5] + "/*.py")
                   + glob.glob("/usr/share/i18n/locales/*") + glob.glob("/usr/share/perl/*/unicore/*.txt"))
    r.shuffle(paths)
    for p in paths:
        if len(out) < size:
            out += open(p, "rb").read(60000)
    return out[:size]

def all_characters():
    return "\n".join("a%s %sb1" % (chr(c), chr(c)) for c in range(0x110000) if known(chr(c)) and not 0xf0100 <= c < 0x10ff00).encode()

# ---- tokenizers ----

def train(name, text, size, pre_tokenizer, normalizer=None, special=("<|endoftext|>",), normalized=False, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator([text.decode(errors="replace")], trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[AddedToken(s, special=True, normalized=normalized) for s in special]))
    path = "%s/%s.json" % (folder, name)
    t.save(path)
    return path

def byte_level(regex, prefix=False):
    return pre.ByteLevel(add_prefix_space=prefix, use_regex=regex)

def split(pattern, literal=False):
    return pre.Split(pattern if literal else Regex(pattern), "isolated")

def all_kinds(text, size):
    specials = ["<|begin_of_text|>", "<|end_of_text|>"] + ["<|reserved_special_token_%d|>" % i for i in range(20)]
    yield train("gpt2", text, size, byte_level(True), normalized=True)
    path = train("llama3", text, size, pre.Sequence([split(LLAMA3), byte_level(False)]), special=specials, ignore_merges=True)
    j = json.load(open(path))
    j["post_processor"] = {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": specials[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {specials[0]: {"id": specials[0], "ids": [0], "tokens": [specials[0]]}}}]}
    json.dump(j, open(path, "w"), ensure_ascii=False)
    yield path
    yield train("qwen2", text, size, pre.Sequence([split(QWEN), byte_level(False)]), normalizers.NFC())

def more_kinds(text, size):
    yield train("prefix", text, size, byte_level(True, True))
    yield train("o200k", text, size, pre.Sequence([split(O200K), byte_level(False)]), normalizers.Sequence([normalizers.NFC()]))
    yield train("deepseek", text, size, pre.Sequence([split(p) for p in DEEPSEEK] + [byte_level(False)]))
    yield train("digits", text, size, pre.Sequence([pre.Digits(True), split(" the", True), byte_level(True, True)]))

# ---- comparison ----

failed = 0

def run(*args):
    p = subprocess.run([tenon, *args], capture_output=True)
    if p.returncode:
        sys.exit("tenon %s: %s" % (" ".join(args), p.stderr.decode()))
    return p.stdout

def ids_of(path, files, *more):
    a = array.array("I", run("tokenize", *files, "-o", "-", "--tokenizer", path, "--token-type", "u32", *more))
    return list(a)

def compare(path, file, what):
    global failed
    t, text = Tokenizer.from_file(path), open(file, "rb").read().decode(errors="replace")
    want, got = t.encode(text, add_special_tokens=False).ids, ids_of(path, [file])
    back = "%s/back.bin" % folder
    open(back, "wb").write(array.array("I", got).tobytes())
    decoded = run("detokenize", back, "--tokenizer", path, "--token-type", "u32").decode(errors="replace")
    same, same_text = want == got, decoded == t.decode(got, skip_special_tokens=False)
    if not same:
        i = next((i for i, (x, y) in enumerate(zip(want, got)) if x != y), min(len(want), len(got)))
        print("%s, %s: id %d differs: expected %r, found %r" % (os.path.basename(path), what, i,
              [t.id_to_token(x) for x in want[i:i + 8]], [t.id_to_token(x) for x in got[i:i + 8]]))
    failed += not same or not same_text
    print("%s, %s: %d bytes, %d ids %s, decoded %s" % (os.path.basename(path), what, len(text.encode()),
          len(want), "equal" if same else "DIFFER", "equal" if same_text else "DIFFERS"))

# Added tokens of every kind, one file; many short texts made of them and what is around them.
def flags(path, source):
    j = json.load(open(source))
    vocab = j["model"]["vocab"]
    n = len(vocab)
    kinds = [("<m>", 0, 1, 0, 0), ("[R]", 0, 0, 1, 0), ("word", 1, 0, 0, 0), ("word2", 0, 0, 0, 1), ("both", 1, 1, 1, 1),
             ("жé", 0, 0, 0, 1), ("e\u0301f", 0, 0, 0, 1), ("<mm>", 0, 1, 1, 0), ("<", 0, 0, 0, 0), (" q", 0, 0, 0, 0), ("wordy", 1, 0, 0, 0)]
    for content, single, left, right, normalized in kinds:
        token = vocab.get(content, n)
        n += token == n
        j["added_tokens"].append({"id": token, "content": content, "single_word": bool(single), "lstrip": bool(left),
                                  "rstrip": bool(right), "normalized": bool(normalized), "special": token % 2 == 0})
    json.dump(j, open(path, "w"), ensure_ascii=False)
    return path, [k[0] for k in kinds]

def short_texts(r, tokens):
    around = [" ", "  ", "\n", "\t", "a", "é", "e\u0301", "\u0301", "же\u0301", "ж", "_", "1", "\u3000", "-", "word", "wor", "bo", "q", "<", "<m", "\u200d", " the"]
    return "".join(r.choice(tokens + around) for _ in range(r.randrange(1, 14)))

training = mixed(7, 300000) + system(300000)
text = "%s/text" % folder
open(text, "wb").write(mixed(8, 1500000) + system(1500000) + b" " * 5000 + b"\xf0\x9f")
every = "%s/characters" % folder
open(every, "wb").write(all_characters())
print("tokenizers %s" % __version__)
paths = list(all_kinds(training, 2000)) + list(more_kinds(training, 1000))
for path in paths:
    compare(path, text, "mixed text")
for path in paths[:3]:
    compare(path, every, "every character")
path, tokens = flags("%s/flags.json" % folder, paths[2])
r, t = random.Random(3), Tokenizer.from_file(path)
end = t.token_to_id("<|endoftext|>")
for turn in range(int(os.environ.get("TURNS", "50"))):
    texts = [short_texts(r, tokens) for _ in range(60)]
    files = ["%s/short%d" % (folder, i) for i in range(len(texts))]
    for file, x in zip(files, texts):
        open(file, "w", newline="").write(x)
    got = [[]]
    for x in ids_of(path, files, "--end", "<|endoftext|>"):
        got[-1].append(x)
        if x == end:
            got.append([])
    for x, have in zip(texts, got):
        want = t.encode(x, add_special_tokens=False).ids + [end]
        if want != have:
            failed += 1
            print("flags, %r: expected %r, found %r" % (x, [t.id_to_token(i) for i in want], [t.id_to_token(i) for i in have]))
print("flags.json: %d short texts around added tokens" % (60 * turn + 60))
# Random patterns of what is supported, on random texts; those that one side refuses are skipped.
def pattern(depth=0):
    atoms = ["a", " ", r"\s", r"\S", r"\d", r"\D", r"\p{L}", r"\P{Lu}", r"\p{^N}", r"[^\s\p{L}\p{N}]", ".", "$", "é", r"[ab\n-]", "[-x]",
             "(?i:'s|'re)", "(?i:k[a-f]?)", r"\p{Han}", "[一-龥]", r"\x41", r"\x{e9}", r"\u0061", r"\-", r"\v", r"[\r\n/]"]
    out = ""
    for _ in range(r.randrange(1, 4)):
        group = depth < 3 and r.random() < 0.25
        atom = r.choice(["(", "(?:", "(?=", "(?!", "(?>", "(?i:"]) + pattern(depth + 1) + ")" if group else r.choice(atoms)
        out += atom + r.choice([""] * 5 + ["*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,3}", "{2,}"]) * (atom != "$")
        out += "|" * (r.random() < 0.25)
    return out

j, compared = json.load(open(paths[0])), 0
for _ in range(int(os.environ.get("PATTERNS", "300"))):
    regex = pattern()
    j["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": False}]}
    json.dump(j, open("%s/pattern.json" % folder, "w"))
    x = "".join(r.choice(["a", "b", "A", "B", " ", "\n", "1", "é", "É", "'s", "'S", "-", "中", "ſ", "K", "\u0301", "٣", "\r\n", "\u180e", "."]) for _ in range(60))
    open(files[0], "w", newline="").write(x)
    try:
        want = Tokenizer.from_file("%s/pattern.json" % folder).encode(x).ids
    except BaseException:
        continue
    p = subprocess.run([tenon, "tokenize", files[0], "-o", "-", "--token-type", "u32", "--tokenizer", "%s/pattern.json" % folder], capture_output=True)
    if p.returncode == 0:
        compared += 1
        if list(array.array("I", p.stdout)) != want:
            failed += 1
            print("pattern %r differs on %r" % (regex, x))
print("%d random patterns" % compared)
want = Tokenizer.from_file(paths[1]).encode("a b").ids
open(files[0], "w").write("a b")
failed += ids_of(paths[1], files[:1], "--add-special") != want

if bless:
    there = "tests/tokenizer"
    os.makedirs(there, exist_ok=True)
    sample = mixed(9, 2800) + b"<|endoftext|>It's  <|begin_of_text|>\n def f(x):\n        return x  # caf\xc3\xa9\xff\n   "
    open(there + "/mixed.txt", "wb").write(sample)
    folder += "/bless"
    os.makedirs(folder, exist_ok=True)
    for path in all_kinds(training, 400):
        j = json.load(open(path))
        if path.endswith("gpt2.json"):
            j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
        json.dump(j, open("%s/%s" % (there, os.path.basename(path)), "w"), ensure_ascii=False, separators=(",", ":"))
        t = Tokenizer.from_file("%s/%s" % (there, os.path.basename(path)))
        ids = t.encode(sample.decode(errors="replace"), add_special_tokens=False).ids
        open("%s/%s" % (there, os.path.basename(path).replace(".json", ".ids")), "wb").write(array.array("H", ids).tobytes())
print("%s" % ("%d comparisons FAILED" % failed if failed else "all equal"))
sys.exit(failed != 0)
END
"$python" -c 'import sentencepiece, transformers' 2>/dev/null || {
    echo "tokenizer-oracle: pieces: skipped: $python has not both packages sentencepiece and transformers" >&2
    exit 0
}
exec "$python" tools/tokenizer-pieces.py "$build/tenon" "$folder" $2
