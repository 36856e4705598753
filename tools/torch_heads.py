"""Joint graphs of losses over large logits, as PyTorch traces them, for tests/fx and tests/programs/test_chunk.c.

torch_heads.py DIR [CASE...]    writes DIR/CASE/graph.txt, inputs.safetensors, outputs.safetensors

Rows are 20 (bert: 16), so that few numbers of slices divide them; logits are larger than all else. Each case is
traced twice: `head_NAME` as the dispatcher shows it, `head_NAME_ops` by the decompositions of torch.export, in
primitive operations. Needs torch and nothing else."""
import os
import re
import sys
import warnings

import torch
import torch.nn.functional as F
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._functorch.aot_autograd import aot_export_module
from torch.fx.experimental.proxy_tensor import make_fx

from torch_cases import flat, grads, leaves, normal, printed, write_tensors

ROWS, HIDDEN, VOCAB = 20, 6, 37
BOTH, OPS = (False, True), (True,)
CASES = []


def case(inputs, forms=BOTH):
    def add(f):
        CASES.append((f, inputs, forms))
        return f
    return add


def label_ids(rows=ROWS, first=6, last=10):
    """Some rows have no label, one after the other: with many slices some have none at all."""
    ids = torch.randint(0, VOCAB, (rows,))
    ids[first:last] = -100
    ids[rows - 1] = -100
    return ids


def head(*more):
    """x, a layer before the head, the head, labels."""
    return lambda: [normal(ROWS, HIDDEN), normal(HIDDEN, HIDDEN, scale=.5), normal(VOCAB, HIDDEN), label_ids()] + \
        [m() for m in more]


def logits_of(x, u, w):
    leaves([u, w])
    return torch.tanh(x @ u) @ w.t()


@case(head())
def cross_entropy(x, u, w, labels):
    return grads(F.cross_entropy(logits_of(x, u, w), labels), u, w)


@case(lambda: [torch.randint(0, VOCAB, (ROWS,)), normal(VOCAB, HIDDEN), normal(HIDDEN, HIDDEN, scale=.5), label_ids()])
def tied(ids, w, u, labels):
    return grads(F.cross_entropy(logits_of(F.embedding(ids, w), u, w), labels), u, w)


@case(head())
def label_smoothing(x, u, w, labels):
    return grads(F.cross_entropy(logits_of(x, u, w), labels, label_smoothing=.1), u, w)


@case(head(), OPS)
def z_loss(x, u, w, labels):
    """The square of the normaliser, as PaLM adds it, a mean over rows that have a label."""
    logits = logits_of(x, u, w)
    valid = labels != -100
    z = torch.logsumexp(logits, -1).pow(2) * valid
    return grads(F.cross_entropy(logits, labels) + 1e-2 * z.sum() / valid.sum(), u, w)


@case(lambda: [normal(ROWS, HIDDEN), normal(HIDDEN, HIDDEN, scale=.5), normal(VOCAB, HIDDEN), normal(ROWS, HIDDEN),
               normal(VOCAB, HIDDEN)])
def distillation(x, u, w, teacher_x, teacher_w):
    """Kullback-Leibler divergence from a teacher's logits at temperature 2."""
    student = F.log_softmax(logits_of(x, u, w) / 2, -1)
    teacher = F.log_softmax(teacher_x @ teacher_w.t() / 2, -1)
    return grads(4 * F.kl_div(student, teacher, log_target=True, reduction="batchmean"), u, w)


@case(lambda: [normal(ROWS, HIDDEN), normal(HIDDEN, HIDDEN, scale=.5), normal(VOCAB, HIDDEN),
               torch.randint(0, VOCAB, (ROWS,)), normal(4), (torch.rand(ROWS) < .8).float()])
def dpo(x, u, w, ids, reference, keep):
    """Direct preference optimisation: four sequences of five tokens, chosen before rejected; the loss is a function
    of sums over whole sequences."""
    log_p = F.log_softmax(logits_of(x, u, w), -1).gather(1, ids[:, None]).squeeze(1) * keep
    margin = log_p.view(4, 5).sum(1) - reference
    return grads(-F.logsigmoid(.1 * (margin[:2] - margin[2:])).mean(), u, w)


@case(head(label_ids), OPS)
def two_losses(x, u, w, labels, more):
    """Two sets of labels over the same logits, each a mean over its own."""
    logits = logits_of(x, u, w)
    return grads(F.cross_entropy(logits, labels) + .3 * F.cross_entropy(logits, more), u, w)


@case(head(label_ids), OPS)
def two_heads(x, u, w, labels, more):
    """One matrix, two logits: the token after the next."""
    leaves([u, w])
    h = torch.tanh(x @ u)
    loss = F.cross_entropy(h @ w.t(), labels) + .3 * F.cross_entropy(torch.sin(h) @ w.t(), more)
    return grads(loss, u, w)


@case(head(lambda: torch.tensor(512.)), OPS)
def scaled(x, u, w, labels, scale):
    """A loss times a scale that is an input."""
    return grads(F.cross_entropy(logits_of(x, u, w), labels) * scale, u, w)


@case(head(), OPS)
def late_scale(x, u, w, labels):
    """By what the gradient is multiplied is known only when all rows have been seen."""
    return grads(F.softplus(.02 * F.cross_entropy(logits_of(x, u, w), labels, reduction="sum") - 1), u, w)


@case(lambda: [normal(16, HIDDEN), normal(HIDDEN, HIDDEN, scale=.5), normal(HIDDEN), 1 + normal(HIDDEN, scale=.1),
               normal(HIDDEN, scale=.1), normal(VOCAB, HIDDEN), normal(VOCAB), label_ids(16)])
def bert(x, u, b, gain, shift, w, bias, labels):
    """BERT's masked-language-model head: few rows have a label."""
    leaves([u, b, gain, shift, w, bias])
    h = F.layer_norm(F.gelu(F.linear(x, u, b)), (HIDDEN,), gain, shift, 1e-12)
    return grads(F.cross_entropy(F.linear(h, w, bias), labels), u, b, gain, shift, w, bias)


def primitives():
    """What PyTorch's compiler makes of losses: maxima, sums, exponentials."""
    aten = torch.ops.aten
    more = (aten._log_softmax, aten._log_softmax_backward_data, aten.logsumexp, aten.native_layer_norm,
            aten.native_layer_norm_backward, aten.gelu, aten.gelu_backward, aten.tanh_backward)
    return {**core_aten_decompositions(), **get_decompositions(more)}


class Joint(torch.nn.Module):
    """What aot_export_module wants: parameters of a module, a loss among its results."""
    def __init__(self, u, w):
        super().__init__()
        self.u, self.w = torch.nn.Parameter(u), torch.nn.Parameter(w)

    def forward(self, x, labels):
        return (F.cross_entropy(torch.tanh(x @ self.u) @ self.w.t(), labels),)


def write(folder, name, gm, args, form):
    where = os.path.join(folder, name)
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, "graph.txt"), "w") as out:
        out.write(re.sub(r"[^\s:]*/(?=site-packages/)", "", printed(gm, form)))
    inside = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = dict(zip(inside, [a.detach().clone() for a in args]))
    tensors.update({n.target: getattr(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"})
    write_tensors(os.path.join(where, "inputs.safetensors"), tensors)
    want = gm(*[a.detach().clone() for a in args])
    write_tensors(os.path.join(where, "outputs.safetensors"), {f"out{i}": t for i, t in enumerate(flat(want))})
    print(name)


def export_joint(folder):
    torch.manual_seed(99)
    x, u, w, labels = head()()
    module = Joint(u, w)
    gm, _ = aot_export_module(module, (x, labels), trace_joint=True, output_loss_index=0,
                              decompositions=primitives())
    args = [*module.parameters(), x, labels]
    write(folder, "head_exported", gm, args, 2)


def make(folder, names):
    for number, (f, inputs, forms) in enumerate(CASES):
        for ops in forms:
            name = f"head_{f.__name__}" + ("_ops" if ops else "")
            if names and name not in names:
                continue
            torch.manual_seed(number)
            args = inputs()
            table = primitives() if ops else {}
            gm = make_fx(f, decomposition_table=table)(*[a.detach().clone() for a in args])
            write(folder, name, gm, args, (number + ops) % 4)
    if not names or "head_exported" in names:
        export_joint(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    make(sys.argv[1], sys.argv[2:])
