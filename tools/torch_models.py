"""Small models of Hugging Face's transformers, for tools/test_torch.sh: their forwards with the loss as PyTorch
traces them, whose gradients by the pass grad are compared with those of PyTorch's autograd, in double.

torch_models.py make DIR [CLASS...]   writes DIR/CLASS.FORM/: graph.txt, inputs.safetensors, options (of import fx)
torch_models.py check DIR [CLASS...]  compares their got.safetensors with what autograd gave; fewer than 20 classes
                                      right is a failure

Forms: exported (print(program) of torch.export), decomposed (the same after run_decompositions) and make_fx (gm.code)."""
import os
import sys

import torch
import transformers as hf
from torch.fx.experimental.proxy_tensor import make_fx

from torch_cases import read_tensors, write_tensors

LEAST = 20
BATCH, LENGTH, VOCAB = 2, 8, 40
# Configurations name their sizes in two ways; dropout is off in each.
NAMED = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
             attention_dropout=0.0, hidden_dropout=0.0, resid_pdrop=0.0, embd_pdrop=0.0, residual_dropout=0.0,
             embedding_dropout=0.0, mlp_dropout=0.0)
BERT = dict(NAMED, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_key_value_heads=4)
GPT = dict(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
           attn_pdrop=0.0, hidden_dropout=0.0, attention_dropout=0.0)
MOE = dict(NAMED, num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=8,
           experts_implementation="batched_mm")
SEQUENCES = dict(vocab_size=VOCAB, d_model=16, max_position_embeddings=32, dropout=0.0, decoder_start_token_id=0,
                 num_heads=4, pad_token_id=0)

CONFIGS = {
    "GPT2LMHeadModel": GPT, "GPTJForCausalLM": dict(GPT, rotary_dim=4), "CodeGenForCausalLM": dict(GPT, rotary_dim=4),
    "GPTBigCodeForCausalLM": GPT, "BloomForCausalLM": dict(GPT, hidden_size=16),
    "GPTNeoForCausalLM": dict(GPT, hidden_size=16, num_layers=2, num_heads=4, window_size=4, max_position_embeddings=32,
                              attention_types=[[["global", "local"], 1]], resid_dropout=0.0, embed_dropout=0.0),
    "MptForCausalLM": dict(vocab_size=VOCAB, d_model=16, n_heads=4, n_layers=2, max_seq_len=32),
    "OPTForCausalLM": dict(NAMED, ffn_dim=24, word_embed_proj_dim=16, dropout=0.0),
    "LlamaForCausalLM": NAMED, "Qwen2ForCausalLM": NAMED, "OlmoForCausalLM": NAMED, "Olmo2ForCausalLM": NAMED,
    "Phi3ForCausalLM": NAMED, "StableLmForCausalLM": dict(NAMED, hidden_size=32), "CohereForCausalLM": NAMED,
    "GraniteForCausalLM": NAMED,
    "SmolLM3ForCausalLM": NAMED, "Starcoder2ForCausalLM": NAMED, "NemotronForCausalLM": NAMED,
    "PhiForCausalLM": dict(NAMED, num_key_value_heads=4), "GPTNeoXForCausalLM": NAMED,
    "PersimmonForCausalLM": dict(NAMED, num_key_value_heads=4), "HeliumForCausalLM": dict(NAMED, head_dim=4),
    "MistralForCausalLM": dict(NAMED, sliding_window=4), "Qwen3ForCausalLM": dict(NAMED, head_dim=8),
    "GemmaForCausalLM": dict(NAMED, head_dim=8), "Gemma2ForCausalLM": dict(NAMED, head_dim=8, sliding_window=4),
    "Gemma3ForCausalLM": dict(NAMED, head_dim=8, sliding_window=4), "Glm4ForCausalLM": dict(NAMED, head_dim=8),
    "FalconForCausalLM": dict(NAMED, new_decoder_architecture=True, num_kv_heads=2),
    "MixtralForCausalLM": MOE, "Qwen3MoeForCausalLM": MOE,
    "BertForMaskedLM": BERT, "RobertaForMaskedLM": BERT, "ElectraForMaskedLM": dict(BERT, embedding_size=16),
    "AlbertForMaskedLM": dict(BERT, embedding_size=8), "DebertaV2ForMaskedLM": BERT, "ModernBertForMaskedLM": NAMED,
    "DistilBertForMaskedLM": dict(vocab_size=VOCAB, dim=16, hidden_dim=24, n_layers=2, n_heads=4, dropout=0.0,
                                  max_position_embeddings=32, attention_dropout=0.0),
    "T5ForConditionalGeneration": dict(SEQUENCES, d_kv=4, d_ff=24, num_layers=2, dropout_rate=0.0),
    "BartForConditionalGeneration": dict(SEQUENCES, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                         decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24),
}
FORMS = ["exported", "decomposed", "make_fx"]


class Loss(torch.nn.Module):
    """The loss alone, of ids and labels. Decoders look into ids for packed sequences unless they are given a mask:
    make_fx, which cannot follow that, needs one."""
    def __init__(self, name, form):
        super().__init__()
        model = getattr(hf, name)
        config = model.config_class(use_cache=False, **CONFIGS[name])
        if form == "make_fx":
            config._attn_implementation = "eager"
        self.model = model(config).double().train()
        masked = form == "make_fx" and ("Causal" in name or "LMHead" in name or "Deberta" in name)
        self.more = {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)} if masked else {}

    def forward(self, ids, labels):
        return self.model(input_ids=ids, labels=labels, **self.more).loss


def exported(loss, args, form):
    """The text, the inputs by name, the parameter that each of them is, and the name of the loss."""
    program = torch.export.export(loss, args)
    if form == "decomposed":
        program = program.run_decompositions()
    s, inputs = program.graph_signature, {}
    for name, path in {**s.inputs_to_parameters, **s.inputs_to_buffers, **s.inputs_to_lifted_tensor_constants}.items():
        inputs[name] = program.state_dict[path] if path in program.state_dict else program.constants[path]
    inputs.update(zip(s.user_inputs, args))
    return str(program), inputs, dict(s.inputs_to_parameters), s.user_outputs[0]


def traced(loss, args, _):
    params, buffers = dict(loss.named_parameters()), dict(loss.named_buffers())
    gm = make_fx(lambda p, b, *a: torch.func.functional_call(loss, (p, b), a))(params, buffers, *args)
    nodes = list(gm.graph.nodes)
    names = [n.name for n in nodes if n.op == "placeholder"]
    inputs = dict(zip(names, [*params.values(), *buffers.values(), *args]))
    inputs.update((n.target, getattr(gm, n.target)) for n in nodes if n.op == "get_attr")
    result = nodes[-1].args[0]
    return gm.code, inputs, dict(zip(names, params)), (result[0] if isinstance(result, (list, tuple)) else result).name


def make_one(folder, name, form):
    torch.manual_seed(1)
    loss = Loss(name, form)
    args = (torch.randint(3, VOCAB, (BATCH, LENGTH)), torch.randint(3, VOCAB, (BATCH, LENGTH)))
    loss(*args).backward()
    text, inputs, params, out = (traced if form == "make_fx" else exported)(loss, args, form)
    same = {id(p): path for path, p in loss.named_parameters()}  # a tied one is several inputs
    every = dict(loss.named_parameters(remove_duplicate=False))
    params = {name: same[id(every[path])] for name, path in params.items()}
    want = {path: torch.zeros_like(p) if p.grad is None else p.grad for path, p in loss.named_parameters()}
    os.makedirs(folder)
    with open(os.path.join(folder, "graph.txt"), "w") as f:
        f.write(text)
    with open(os.path.join(folder, "options"), "w") as f:
        f.write(f"--loss {out} --params {','.join(params)}" + ("" if form == "exported" else " --alias pass"))
    write_tensors(os.path.join(folder, "inputs.safetensors"), {k: v.detach().clone() for k, v in inputs.items()})
    torch.save((params, want, "float32" in text), os.path.join(folder, "case.pt"))


def make(folder, names):
    for name in names or CONFIGS:
        for form in FORMS:
            case = f"{name}.{form}"
            try:
                make_one(os.path.join(folder, case), name, form)
                print(case, flush=True)
            except (AttributeError, RuntimeError, TypeError, ValueError) as error:
                with open(os.path.join(folder, case + ".left-out"), "w") as f:
                    f.write(str(error).strip().splitlines()[0])


def compare(folder):
    """The worst relative error, and what is wrong. A gradient that is nothing but rounding (of a key's bias) is
    measured by the greatest."""
    params, want, rounds = torch.load(os.path.join(folder, "case.pt"))
    got = read_tensors(os.path.join(folder, "got.safetensors"))
    limit = 1e-5 if rounds else 1e-12  # some work in f32 on the way
    greatest = max(w.norm().item() for w in want.values())
    sums, worst, bad = {}, 0.0, []
    for name, path in params.items():
        sums[path] = sums.get(path, 0) + got["grad." + name].double()
    for path, w in want.items():
        error = (sums[path] - w).norm().item() / (w.norm().item() + greatest / 100)
        worst = max(worst, error)
        if not error <= limit:
            bad.append(f"{path}: relative error {error:.2g}")
    return len(want), worst, bad


def check(folder, names):
    right, failed = set(), 0
    for name in names or CONFIGS:
        for form in FORMS:
            case = os.path.join(folder, f"{name}.{form}")
            reason = case + ".left-out"
            refused = os.path.join(case, "refused")
            if os.path.exists(reason):
                print(f"{name} {form}: left out, PyTorch cannot trace it: {open(reason).read()}")
            elif not os.path.exists(os.path.join(case, "got.safetensors")):
                print(f"{name} {form}: refused: {open(refused).read().strip()}")
            else:
                count, worst, bad = compare(case)
                print(f"{name} {form}: {count} gradients, largest error {worst:.2g}" + "".join("\n  " + b for b in bad))
                failed += bool(bad)
                right |= set() if bad else {name}
    print(f"{len(right)} classes of transformers {hf.__version__} have PyTorch's gradients")
    return failed + (not names and len(right) < LEAST)


if __name__ == "__main__":
    command, folder = sys.argv[1:3]
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    sys.exit(make(folder, sys.argv[3:]) if command == "make" else min(check(folder, sys.argv[3:]), 1))
