"""A fine-tune with SIGTERM in the middle, resumed, evaluated, loaded by transformers: see tools/oracle-finetune.sh."""
import array, glob, math, os, re, shutil, signal, subprocess, sys
import torch, transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STEPS, STOP_AFTER, V, B, T = 120, 25, 700, 2, 48

def write_tokenizer(folder, text):
    """Of Llama 2's kind: SentencePiece's spaces, byte fallback, a beginning of each text."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.train_from_iterator(text.splitlines(), trainers.BpeTrainer(vocab_size=V, show_progress=False, max_token_length=12,
        special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)], initial_alphabet=[]))
    PreTrainedTokenizerFast(tokenizer_object=t, unk_token="<unk>", bos_token="<s>", eos_token="</s>").save_pretrained(folder)

def write_model(folder):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=V, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1, bos_token_id=1, eos_token_id=2)).save_pretrained(folder)

def run(tenon, *args, code=0, after=0):
    """A run of tenon in the current folder; with after, it gets SIGTERM once it has said that step or a later one."""
    p = subprocess.Popen([tenon, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = ""
    for line in p.stderr:
        said += line
        step = re.match(r"step (\d+)/", line)
        if step and 0 < after <= int(step[1]):
            p.send_signal(signal.SIGTERM)
            after = 0
    out = p.stdout.read()
    if p.wait() != code:
        sys.exit("tenon %s: exit code %d, expected %d\n%s" % (" ".join(args), p.returncode, code, said))
    return out, said

class Checks:
    failed = 0

    def ok(self, what, good, found=""):
        self.failed += not good
        print("%-64s %s%s" % (what, "ok" if good else "FAILED", "" if found == "" else "  " + str(found)))

def same_files(a, b):
    return [n for n in ("config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json")
            if open("%s/latest/%s" % (a, n), "rb").read() != open("%s/latest/%s" % (b, n), "rb").read()]

def finetune(tenon, c):
    train = ["train", "M", "--data", "text.txt", "--steps", str(STEPS), "--batch-size", str(B), "--seq-len", str(T)]
    run(tenon, *train, "--out", "whole")
    _, said = run(tenon, *train, "--out", "run", code=130, after=STOP_AFTER)
    stopped = int(os.readlink("run/latest").split("-")[1])
    c.ok("SIGTERM: exit code 130, saved in the middle", STOP_AFTER <= stopped < STEPS, "at step %d of %d" % (stopped, STEPS))
    c.ok("it says how to go on", "to go on: " in said)
    run(tenon, "train", "--resume", "--out", "run")
    c.ok("resumed: the same bits as a run left alone", not same_files("whole", "run"), " ".join(same_files("whole", "run")))

def evaluate(tenon, c):
    model, info = AutoModelForCausalLM.from_pretrained("run/latest", dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    c.ok("transformers misses and ignores no tensor", not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")))
    ids = torch.randint(0, V, (3, 40), generator=torch.Generator().manual_seed(1))
    save_file({"input_ids": ids, "labels": ids.roll(-1, 1).contiguous()}, "batch.safetensors")
    run(tenon, "eval", "run", "--batch", "batch.safetensors", "--logits", "logits.safetensors")
    with torch.no_grad():
        want = model(ids).logits
    got = load_file("logits.safetensors")["logits"].view_as(want)
    error = ((got - want).abs().max() / want.abs().max()).item()
    c.ok("logits of eval against transformers, within 1e-5", error < 1e-5, "%.2e" % error)

    tokenizer = AutoTokenizer.from_pretrained("run/latest")
    text = open("held.txt", encoding="utf-8").read()
    here = array.array("I", subprocess.run([tenon, "tokenize", "held.txt", "-o", "-", "--tokenizer", "run", "--token-type", "u32"],
                                           capture_output=True, check=True).stdout).tolist()
    there = tokenizer(text, add_special_tokens=False)["input_ids"]
    c.ok("ids of unseen text, here and there", [i for i in here if i != 2] == there, "%d tokens" % len(there))
    loss = float(re.search(r"[\d.]+", run(tenon, "eval", "run", "--data", "held.txt")[0].split("loss", 1)[1]).group())
    c.ok("eval of unseen text: better than chance", 0 < loss < math.log(V), "%.3f, chance %.3f" % (loss, math.log(V)))

    prompt = "The planner"
    start = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        whole = model.generate(start, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    want = tokenizer.decode(whole[0])
    got = run(tenon, "generate", "run", "--prompt", prompt, "--tokens", "20", "--temperature", "0")[0]
    c.ok("greedy text, here and there", want.strip() in got, repr(got) if want.strip() not in got else "")

def main(build, folder):
    tenon = os.path.abspath(build + "/tenon")
    text = "".join(open(p, encoding="utf-8").read() for p in sorted(glob.glob("docs/*.md")) + ["README.md"])
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder + "/M")
    os.chdir(folder)
    transformers.logging.disable_progress_bar()
    cut = len(text) * 9 // 10
    open("text.txt", "w", encoding="utf-8").write(text[:cut])
    open("held.txt", "w", encoding="utf-8").write(text[cut:])
    write_model("M")
    write_tokenizer("M", text[:cut])
    c = Checks()
    finetune(tenon, c)
    evaluate(tenon, c)
    print("%d checks FAILED" % c.failed if c.failed else "all hold (transformers %s)" % transformers.__version__)
    return c.failed != 0

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
