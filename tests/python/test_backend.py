"""torch.compile(model, backend="tenon"): as eager PyTorch, parameters where they were, and what PyTorch runs itself."""
import copy
import gc
import subprocess
import sys
import threading
import unittest
import warnings
import weakref

import torch
from torch import nn

from models import GPT2, tokens
from tenon import _backend


class Norms(nn.Module):
    """Buffers that a forward writes, a parameter of another order in memory, results that are views."""

    def __init__(self):
        super().__init__()
        self.inside, self.norm, self.out = nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.randn(4, 8).t())

    def forward(self, x):
        y = torch.relu(self.norm(self.inside(x)))
        return self.out(y), (x @ self.scale).t(), y[:, :3]


IMPORTED = """
import sys
import torch
import tenon
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
from importlib.metadata import version
assert version("tenon") == tenon.__version__
"""
LOOKED = """
import sys
import torch
path = sys.path[:]
sys.path[:] = [p for p in path if not p.endswith("python")]
assert "tenon" not in torch._dynamo.list_backends()
sys.path[:] = path
import tenon
"""
COMPILED = """
assert torch.compile(torch.nn.Linear(4, 3), backend="tenon")(torch.ones(2, 4)).shape == (2, 3)
assert sys.modules["tenon._backend"].said == set()
"""


class TestImport(unittest.TestCase):
    """An import is cheap, and PyTorch finds the backend where it has looked for backends before and where not."""

    def test_processes(self):
        for script in (IMPORTED, LOOKED):
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", script + COMPILED], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


class TestBackend(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()
        _backend.said.clear()

    def pair(self, model, **options):
        """A compiled model and an eager copy of it."""
        return torch.compile(model, backend="tenon", **options), copy.deepcopy(model)

    def near(self, got, want, what=""):
        self.assertLess((got - want).norm().item(), 2e-5 * (1 + want.norm().item()), what)

    def same_gradients(self, model, reference):
        for (name, p), q in zip(model.named_parameters(), reference.named_parameters()):
            self.near(p.grad, q[1].grad, name)

    def test_trains_as_eager(self):
        model = GPT2()
        at = {name: p.data_ptr() for name, p in model.named_parameters()}
        compiled, reference = self.pair(model)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference)]
        for data in tokens(3):
            losses = [m(*data) for m in (compiled, reference)]
            self.assertAlmostEqual(losses[0].item(), losses[1].item(), delta=1e-5)
            for optimizer, loss in zip(optimizers, losses):
                optimizer.zero_grad()
                loss.backward()
            self.same_gradients(model, reference)
            for optimizer in optimizers:
                optimizer.step()
        self.assertEqual(at, {name: p.data_ptr() for name, p in model.named_parameters()})
        with torch.no_grad():
            self.near(compiled(*data), reference(*data))
        self.assertEqual(_backend.said, set())

    def test_results_and_buffers(self):
        model = Norms()
        compiled, reference = self.pair(model)
        x = torch.randn(9, 8)
        for rows in (slice(0, 5), slice(1, 6), slice(4, 9)):  # the second begins where no line of memory does
            outs = [m(x[rows]) for m in (compiled, reference)]
            for got, want in zip(*outs):
                self.near(got, want)
                self.assertEqual(got.stride(), want.stride())
            for out in outs:
                sum((y * y).sum() for y in out).backward()
            self.same_gradients(model, reference)
        for (name, b), c in zip(model.named_buffers(), reference.buffers()):
            self.near(b.float(), c.float(), name)
        self.assertEqual(_backend.said, set())

    def test_forwards_before_backwards(self):
        model = GPT2()
        compiled, reference = self.pair(model)
        data = tokens(3)
        for m in (compiled, reference):
            losses = [m(*one) for one in data]
            for loss in reversed(losses):
                loss.backward()
        self.same_gradients(model, reference)

    def test_input_gradient_and_replaced_data(self):
        model = Norms()
        compiled, reference = self.pair(model)
        for _ in range(2):
            x = torch.randn(5, 8)
            given = [x.clone().requires_grad_() for _ in range(2)]
            for m, y in zip((compiled, reference), given):
                m(y)[0].square().sum().backward()
            self.near(given[0].grad, given[1].grad)
            for m in (model, reference):
                m.out.weight.data = torch.ones_like(m.out.weight) / 4  # memory of PyTorch's may be other memory

    def test_negative_bit(self):
        """Between inputs whose memory is bound."""
        compiled, reference = self.pair(nn.Linear(8, 4))
        x = torch.randn(6, 8)
        for a in (x, torch._neg_view(x), x, torch.view_as_complex(torch.randn(6, 8, 2)).conj().imag):
            self.near(compiled(a), reference(a))

    def test_dropout(self):
        model = GPT2(dropout=0.5)
        compiled, data = torch.compile(model, backend="tenon"), tokens(1)[0]
        losses = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            losses.append(compiled(*data).item())
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])
        self.assertEqual(_backend.said, set())

    def fallback(self, words, model, *batches, **options):
        """PyTorch runs the graph, right, and one warning has the words."""
        compiled, reference = self.pair(model, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for args in batches:
                got, want = compiled(*args), reference(*args)
                self.near(got, want)
                got.sum().backward()
                want.sum().backward()
        self.same_gradients(model, reference)
        said = [str(w.message) for w in caught if "PyTorch runs a graph itself" in str(w.message)]
        self.assertEqual(len(said), len(set(said)), said)
        self.assertTrue(said and words in said[0], said)

    def test_symbolic_sizes(self):
        self.fallback("dynamic=False", nn.Linear(4, 3), (torch.randn(2, 4),), (torch.randn(5, 4),), dynamic=True)

    def test_each_size(self):
        compiled, reference = self.pair(nn.Linear(4, 3), dynamic=False)
        for n in (2, 5, 7):
            x = torch.randn(n, 4)
            self.near(compiled(x), reference(x))
        self.assertEqual(_backend.said, set())

    def test_constant(self):
        """A tensor that the forward makes of a number is a constant of the graph, with a value."""
        model = Clipped()
        compiled, reference = self.pair(model)
        x = torch.randn(5, 4)
        for m in (compiled, reference):
            m(x).square().sum().backward()
        self.near(compiled(x), reference(x))
        self.same_gradients(model, reference)
        self.assertEqual(_backend.said, set())

    def test_graph_that_tenon_has_not(self):
        x = torch.randn(2, 6)
        self.fallback("polygamma", Digamma(), (x,), (x,))
        self.assertIn("test_backend.py", next(iter(_backend.said)))

    def test_options(self):
        for words, options in (("expected options among", {"fast": 1}), ("the least that would do", {"memory": 64})):
            with self.subTest(words):
                torch._dynamo.reset()
                compiled = torch.compile(nn.Linear(4, 3), backend="tenon", options=options)
                with self.assertRaisesRegex(torch._dynamo.exc.BackendCompilerFailed, words):
                    compiled(torch.ones(2, 4))

    def test_threads(self):
        model = GPT2()
        compiled, reference = self.pair(model)
        data = tokens(4)
        compiled(*data[0])
        got = {}
        threads = [threading.Thread(target=lambda i=i: got.update({i: compiled(*data[i]).item()})) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(4):
            self.assertAlmostEqual(got[i], reference(*data[i]).item(), delta=1e-5)

    def test_nothing_is_left(self):
        model, data = GPT2(), tokens(1)[0]
        compiled = torch.compile(model, backend="tenon")
        programs, made = [], _backend.Program

        def watched(plan):
            program = made(plan)
            programs.append(weakref.ref(program))
            return program

        def tensors():
            gc.collect()
            return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())
        _backend.Program = watched
        try:
            for i in range(6):
                compiled(*data).backward()
                if i == 1:
                    before = tensors()
        finally:
            _backend.Program = made
        self.assertLessEqual(tensors(), before)  # what earlier tests left may be freed
        self.assertEqual(len(programs), 2)
        del compiled
        torch._dynamo.reset()
        gc.collect()
        self.assertEqual([p() for p in programs], [None, None])


class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 3)

    def forward(self, x):
        y = self.inside(x)
        return torch.where(y > 0, y, torch.tensor(-2.0))


class Digamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 6) + 1)

    def forward(self, x):
        return x @ torch.digamma(self.weight)


if __name__ == "__main__":
    unittest.main()
