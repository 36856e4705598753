"""Joint graphs of three models, and what PyTorch's partitioner saves of them at 11 ratios of
torch._functorch.config.activation_memory_budget, for tests/scripts/budget.sh.

torch_budget.py DIR [MODEL...]   writes DIR/MODEL.txt, the joint graph that the partitioner cuts, for `tenon import fx`,
                                 and DIR/MODEL.sets, for each ratio the names of the nodes that it saves

Tensors are fake, so nothing is computed. Operations are those of PyTorch's compiler, and attention is the kernel that
a GPU has for f32. A line of MODEL.sets is a ratio, a colon and names; two are left out: inputs, which are there in any
case, and the seeds that attention returns, which are not tensors of Tenon and without dropout nobody reads. Its first
line has the number of parameters: primals_1 to that one are they."""
import copy
import math
import os
import re
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch import config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode

RATIOS = [i / 10 for i in range(11)]


def attention(q, k, v, causal):
    """Of f32 on a GPU; F.scaled_dot_product_attention asks the device which kernel it has."""
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[0]


def heads(x, n):
    return x.view(*x.shape[:2], n, -1).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, width, heads_, inner):
        super().__init__()
        self.n = heads_
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (heads(p(y), self.n) for p in (self.q, self.k, self.v))
        x = x + self.o(joined(attention(rotated(q, cos, sin), rotated(k, cos, sin), v, True)))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocab, layers, width, heads_, inner, length):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads_, inner) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.register_buffer("cos", torch.ones(length, width // heads_))
        self.register_buffer("sin", torch.ones(length, width // heads_))

    def forward(self, ids, labels):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class GPT2Layer(nn.Module):
    def __init__(self, width, heads_):
        super().__init__()
        self.n = heads_
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (heads(p, self.n) for p in self.qkv(self.norm1(x)).split(x.shape[-1], -1))
        x = x + self.o(joined(attention(q, k, v, True)))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab, layers, width, heads_, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(GPT2Layer(width, heads_) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy((self.norm(x) @ self.tokens.weight.t()).flatten(0, 1), labels.flatten())


class BertLayer(nn.Module):
    """Attention in products and a softmax, as BERT was written, and norms behind the sums."""
    def __init__(self, width, heads_):
        super().__init__()
        self.n = heads_
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (heads(p(x), self.n) for p in (self.q, self.k, self.v))
        scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(-1)
        x = self.norm1(x + self.o(joined(scores @ v)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class BERT(nn.Module):
    def __init__(self, vocab, layers, width, heads_, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads_) for _ in range(layers))
        self.dense, self.last = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids, labels):
        x = self.norm(self.tokens(ids) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        x = self.last(F.gelu(self.dense(x)))
        return F.cross_entropy((x @ self.tokens.weight.t() + self.bias).flatten(0, 1), labels.flatten())


# The model, its batch and length, and its vocabulary.
MODELS = {
    "llama": (lambda: Llama(4096, 32, 512, 8, 1376, 1024), 4, 1024, 4096),
    "gpt2": (lambda: GPT2(50257, 12, 768, 12, 1024), 4, 1024, 50257),
    "bert": (lambda: BERT(30522, 12, 768, 12, 512), 8, 512, 30522),
}


def joint_graph(name):
    """The joint graph of a model's step, and the numbers of its parameters and of its forward's results."""
    make, batch, length, vocab = MODELS[name]
    found = []

    def keep(joint, inputs, *, num_fwd_outputs, **more):
        found.append((copy.deepcopy(joint), len(params), num_fwd_outputs))
        return min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make()
        names, params = zip(*model.named_parameters())
        ids = torch.zeros(batch, length, dtype=torch.long)
        buffers = dict(model.named_buffers())
        step = aot_function(
            lambda params, buffers, ids, labels: torch.func.functional_call(
                model, (dict(zip(names, params)), buffers), (ids, labels)),
            fw_compiler=lambda gm, _: gm.forward, partition_fn=keep, decompositions=select_decomp_table())
        step(params, buffers, ids, ids)
    return found[0]


def is_seed(node):
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64 and not value.shape


def cut(joint, outputs, ratio):
    """The graph as the partitioner leaves it, and the names that the backward is given."""
    joint = copy.deepcopy(joint)
    with config.patch(activation_memory_budget=ratio):
        _, backward = min_cut_rematerialization_partition(joint, None, num_fwd_outputs=outputs)
    given = [n.name for n in backward.graph.nodes if n.op == "placeholder"]
    tensor = {n.name for n in joint.graph.nodes if n.op == "call_function" and not is_seed(n)}
    return joint, [n for n in given if n in tensor]


def write(folder, name):
    joint, params, outputs = joint_graph(name)
    merged, _ = cut(joint, outputs, 1.0)  # equal nodes have become one
    names = [n.name for n in merged.graph.nodes]
    text = merged.print_readable(print_output=False)
    text = re.sub(r"\n *#.*|;  \w+ = .*None", "", text)  # comments, ends of lives
    text = re.sub(r'(\n +\w+): "[^"]*" = ', r"\1 = ", text)  # types that follow
    with open(os.path.join(folder, f"{name}.txt"), "w") as f:
        f.write(text.strip() + "\n")
    with open(os.path.join(folder, f"{name}.sets"), "w") as f:
        f.write(f"params: {params}\n")
        for ratio in RATIOS:
            again, saved = cut(merged, outputs, ratio)
            assert [n.name for n in again.graph.nodes] == names
            f.write(f"{ratio:.1f}: {' '.join(saved)}\n")
            print(name, ratio, len(saved), "saved", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("PyTorch", torch.__version__)
    os.makedirs(sys.argv[1], exist_ok=True)
    for one in sys.argv[2:] or MODELS:
        write(sys.argv[1], one)
