"""Small models and training by eager PyTorch, which the tests compare Steps with."""
import copy

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln_2, self.fc, self.out = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """A GPT-2 whose head is its embedding; forward gives the loss."""

    def __init__(self, vocab=97, length=32, width=32, heads=4, layers=2, dropout=0.0):
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(vocab, width), nn.Embedding(length, width), nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.wte.weight.data.mul_(0.1)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids, labels):
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), labels.flatten())


def tokens(count, batch=2, length=16, vocab=97):
    """Pairs of ids and labels."""
    return [(torch.randint(0, vocab, (batch, length)), torch.randint(0, vocab, (batch, length))) for _ in range(count)]


def eager(model, make_optimizer, data, loss=None):
    """Losses of training a copy of a model by eager PyTorch, and the copy."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model)
    losses = []
    for args in data:
        out = model(*args) if loss is None else loss(model, *args)
        optimizer.zero_grad()
        out.backward()
        optimizer.step()
        losses.append(out.item())
    return losses, model
