"""Functions of PyTorch that call modules or functions of the user's for each element, or are an op of their own to
autograd: flex_attention, linear_cross_entropy, ctc_loss, embedding_bag; and those whose shapes depend on data."""
import copy
import unittest

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

import tenon

LENGTH = 16
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7 + [2] * 4, [0] * 9 + [1] * 7])
SLOPES = torch.tensor([.5, .25, .125, .0625])


def causal(b, h, q, k):
    return q >= k


def sliding(b, h, q, k):
    return (q >= k) & (q - k < 4)


def documents(b, h, q, k):
    return (q >= k) & (DOCUMENTS[b, q] == DOCUMENTS[b, k])


def none_early(b, h, q, k):
    """The first queries see nothing."""
    return (q >= k) & (q > 2)


def alibi(score, b, h, q, k):
    return score + SLOPES[h] * (k - q)


def plain(q, k, v, block_mask=None, score_mod=None, enable_gqa=False, return_lse=False):
    """flex_attention by its definition."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** .5
    if score_mod:
        b, h, m, n = (torch.arange(size) for size in scores.shape)
        scores = score_mod(scores, b.view(-1, 1, 1, 1), h.view(-1, 1, 1), m.view(-1, 1), n)
    if block_mask is not None:
        scores = scores.masked_fill(~create_mask(block_mask.mask_mod, *scores.shape, device="cpu"), -float("inf"))
    out = scores.softmax(-1).nan_to_num() @ v
    return (out, scores.logsumexp(-1)) if return_lse else out


class Attention(nn.Module):
    def __init__(self, heads=4, make=None, **words):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 16 * heads), nn.Linear(32, 1)
        self.heads, self.make, self.words, self.attend = heads, make, words, flex_attention

    def forward(self, x, ids):
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.heads, 8).permute(2, 0, 3, 1, 4)
        words = {"block_mask": self.make(ids), **self.words} if self.make else self.words
        y = self.attend(q, k, v, **words, enable_gqa=self.heads != 4)
        if words.get("return_lse"):
            y = y[0] + y[1].unsqueeze(-1)
        return self.out(y.transpose(1, 2).reshape(x.shape)).square().mean()


def block_mask(mask_mod, batch=None):
    return create_block_mask(mask_mod, batch, None, LENGTH, LENGTH, device="cpu")


def of_argument(ids):
    return block_mask(lambda b, h, q, k: (q >= k) & (ids[b, q] == ids[b, k]), len(ids))


class TestFlexAttention(unittest.TestCase):
    def check(self, net, attention=True):
        """That a Step of net computes what the definition does, by Tenon's attention or without."""
        args = torch.randn(2, LENGTH, 32), DOCUMENTS
        reference = copy.deepcopy(net)
        reference.attend = plain
        captured = tenon.capture(lambda x, ids: net(x, ids), *args)
        want = reference(*args)
        want.backward()
        self.assertAlmostEqual(tenon.compile(captured)(*args).item(), want.item(), delta=1e-6)
        for p, q in zip(net.parameters(), reference.parameters()):
            self.assertLess((p.grad - q.grad).norm().item(), 2e-5 * (1 + q.grad.norm().item()))
        self.assertEqual("= flash_attention(" in captured.text, attention)
        return captured

    def test_masks(self):
        """Causal attention is Tenon's, any other mask is an operand of it."""
        for mask in (None, causal):
            text = self.check(Attention(block_mask=mask and block_mask(mask))).text
            self.assertEqual("causal=false" in text, mask is None)
            self.assertFalse("where(" in text)
        for mask, batch in ((sliding, None), (documents, 2), (none_early, None)):
            with self.subTest(mask.__name__):
                self.check(Attention(block_mask=block_mask(mask, batch)))

    def test_mask_of_an_argument(self):
        captured = self.check(Attention(make=of_argument))
        net, other = captured.source[0].__closure__[0].cell_contents, torch.zeros_like(DOCUMENTS)
        x = torch.randn(2, LENGTH, 32)
        reference = copy.deepcopy(net)
        reference.attend = plain
        self.assertAlmostEqual(tenon.compile(captured.again(x, DOCUMENTS))(x, other).item(), reference(x, other).item(),
                               delta=1e-6)

    def test_forms(self):
        self.check(Attention(heads=2, block_mask=block_mask(causal)))
        net = Attention(block_mask=block_mask(causal))
        net.attend = torch.compile(flex_attention)
        self.assertFalse("causal=false" in self.check(net).text)

    def test_scores(self):
        """What changes scores, or wants their log-sum-exp, has them as a matrix."""
        self.check(Attention(block_mask=block_mask(causal), score_mod=alibi), False)
        self.check(Attention(block_mask=block_mask(none_early), score_mod=lambda s, *_: 20 * torch.tanh(s / 20)),
                   False)
        self.check(Attention(block_mask=block_mask(sliding), return_lse=True), False)


class TestLinearCrossEntropy(unittest.TestCase):
    def test_as_defined(self):
        try:
            from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions as Options
        except ImportError:
            self.skipTest(f"PyTorch {torch.__version__} has no linear_cross_entropy with options")
        x, labels = torch.randn(24, 32), torch.randint(0, 50, (24,))
        labels[3] = -100
        for words in ({}, {"options": Options()}, {"options": Options(), "reduction": "sum", "label_smoothing": 0.1}):
            with self.subTest(str(words)):
                net = nn.Linear(32, 50)
                logits = copy.deepcopy(net)
                step = tenon.compile(tenon.capture(
                    lambda x, y: F.linear_cross_entropy(x, net.weight, y, linear_bias=net.bias, **words), x, labels))
                want = F.cross_entropy(logits(x), labels, **{k: v for k, v in words.items() if k != "options"})
                want.backward()
                self.assertAlmostEqual(step(x, labels).item(), want.item(), delta=2e-5)
                self.assertLess((net.weight.grad - logits.weight.grad).norm().item(), 1e-5 * (1 + want.item()))


class Alignments(nn.Module):
    """Frames with their labels; `as_lists`: lengths are numbers."""

    def __init__(self, as_lists=False, **words):
        super().__init__()
        self.net, self.as_lists, self.words = nn.Linear(5, 7), as_lists, words

    def forward(self, x, labels, frames, lengths):
        if self.as_lists:
            frames, lengths = (12, 10, 3), (4, 2, 4)
        return F.ctc_loss(self.net(x).log_softmax(-1), labels, frames, lengths, zero_infinity=True, **self.words)


class Bags(nn.Module):
    def __init__(self, **words):
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 4, **words)

    def forward(self, ids, offsets):
        return self.bag(ids, offsets).square().sum()


def as_eager(test, net, *args):
    eager = copy.deepcopy(net)
    want = eager(*args)
    want.backward()
    step = tenon.compile(tenon.capture(net, *args))
    test.assertAlmostEqual(step(*args).item(), want.item(), delta=2e-5 * max(1, abs(want.item())))
    for (name, p), q in zip(net.named_parameters(), eager.parameters()):
        test.assertLess((p.grad - q.grad).norm().item(), 2e-5 * q.grad.norm().item(), name)


class TestByData(unittest.TestCase):
    """Sizes and places that are data, in results of shapes that are not."""

    def test_alignments(self):
        """One example has more labels than frames."""
        torch.manual_seed(0)
        args = [torch.randn(12, 3, 5), torch.randint(1, 7, (3, 4)), torch.tensor([12, 10, 3]), torch.tensor([4, 2, 4])]
        for words in ({}, {"as_lists": True}, {"reduction": "sum"}):
            with self.subTest(str(words)):
                as_eager(self, Alignments(**words), *args)
        args[1] = torch.tensor([1, 2, 2, 3, 4, 4, 1, 1, 5, 6])
        as_eager(self, Alignments(), *args)

    def test_bags(self):
        torch.manual_seed(0)
        ids, offsets = torch.tensor([3, 1, 3, 8, 0, 3, 7, 7, 2, 5]), torch.tensor([0, 4, 4, 7])
        for words in ({"mode": "sum"}, {"mode": "mean", "padding_idx": 3}, {"mode": "max"}):
            with self.subTest(str(words)):
                as_eager(self, Bags(**words), ids, offsets)

    def test_refused(self):
        """The refusal says what to write."""
        net, x, i = nn.ParameterList([torch.ones(6)]), torch.arange(6.) - 2, torch.tensor([0, 1, 1, 2, 2, 5])
        for step, words in {lambda x, i: (net[0] * x)[(x > 0).nonzero()].sum(): r"torch.where\(mask, x, 0\).*nonzero_static",
                            lambda x, i: (net[0] * x)[x > 0].square().mean(): r"torch.where\(mask, x, 0\).*mask.sum",
                            lambda x, i: (net[0] * x).masked_select(x > 0).sum(): r"torch.where\(mask, x, 0\)",
                            lambda x, i: net[0].sum() * i.unique().sum(): r"x.sort\(\).values",
                            lambda x, i: net[0].sum() * i.unique_consecutive().sum(): r"neighbours",
                            lambda x, i: (net[0] * x).repeat_interleave(i).sum(): "output_size=N",
                            lambda x, i: (net[0][0] * i.bincount()).sum(): "scatter_add"}.items():
            with self.subTest(words), self.assertRaisesRegex(tenon.CaptureError, words):
                tenon.capture(step, x, i, model=net)
        step = lambda x, i: (net[0] * x)[torch.nonzero_static(x > 0, size=4, fill_value=2).squeeze(1)].sum()
        self.assertEqual(tenon.compile(tenon.capture(step, x, i, model=net))(x, i).item(), 6)


if __name__ == "__main__":
    unittest.main()
