"""What a graph has fixed beside the values that a step's lines name: settings of PyTorch, code that is replaced, contents of
arrays, other containers than Python's own. A Step refuses where they are others than at the capture, with the name."""
import array
import collections
import functools
import itertools
import os
import random
import re
import time
import types
import unittest
import warnings
from time import monotonic as clock
from types import SimpleNamespace
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

try:
    import numpy
except ImportError:
    numpy = None

import tenon
from test_outside import HERE as OUTSIDE, Case

HERE = OUTSIDE.replace("outside", "fixed")


class TestSettings(Case):
    def test_autocast(self):
        step, words = lambda x: self.net(x).square().mean(), "^torch.autocast on the CPU is {}, and was {} when .* capture again"
        made, _ = self.told(step, self.x)
        with torch.autocast("cpu", torch.bfloat16), self.assertRaisesRegex(tenon.NotSupported, words.format("torch.bfloat16", "off")):
            made(self.x)
        self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-6)
        with torch.autocast("cpu", torch.bfloat16):
            captured = tenon.capture(step, self.x)
        made = tenon.compile(captured)
        with self.assertRaisesRegex(tenon.NotSupported, words.format("off", "torch.bfloat16")):
            made(self.x)
        with torch.autocast("cpu", torch.bfloat16):
            self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-3)

    def test_autocast_of_the_step(self):
        """One that says itself how it computes is the same graph under any."""
        def step(x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(x).square().mean()
        made, _ = self.told(step, self.x)
        want = made(self.x).item()
        with torch.autocast("cpu", torch.float16):
            self.assertEqual(made(self.x).item(), want)

    def test_autocast_around_the_backward(self):
        """The backward of a part that autocast leaves out is not in that which is around the step."""
        def step(x):
            with torch.autocast("cpu", enabled=False):
                return self.net(x).square().mean()
        with torch.autocast("cpu", torch.bfloat16):
            made, _ = self.told(step, self.x)
            made(self.x)
            loss = step(self.x)
        got, self.net.weight.grad = self.net.weight.grad, None
        loss.backward()
        torch.testing.assert_close(got, self.net.weight.grad, rtol=1e-5, atol=1e-6)

    def test_again(self):
        """Another capture of a step, and one for a compile, are under the autocast of the first."""
        of = SimpleNamespace(n=1)
        step = lambda x: self.net(x).square().mean() if of.n else None
        with torch.autocast("cpu", torch.bfloat16):
            captured = tenon.capture(step, self.x)
        of.n = 2
        made, more = tenon.compile(captured), tenon.compile(captured.again(self.x[:2]))
        with torch.autocast("cpu", torch.bfloat16):
            for run, x in ((made, self.x), (more, self.x[:2])):
                self.assertAlmostEqual(run(x).item(), step(x).item(), delta=1e-3)

    def test_default_dtype(self):
        made, _ = self.told(lambda x: (self.net(x) * torch.ones(2)).sum(), self.x)
        torch.set_default_dtype(torch.float64)
        try:
            with self.assertRaisesRegex(tenon.NotSupported, "^torch.get_default_dtype.. is torch.float64, and was torch.float32"):
                made(self.x)
        finally:
            torch.set_default_dtype(torch.float32)
        made(self.x)


def alpha(x, beta=2.0, *, gamma=2.0):
    return x * beta * gamma


class Described:
    """A descriptor."""

    def __get__(self, of, _):
        return of.__dict__["_beta"]


class WithDescribed:
    beta = Described()

    def __init__(self):
        self._beta = 2.0


G = 2.0


class TestWays(Case):
    """Ways in which a step's line reads a value."""

    def fixed(self, name, now, then, step, change, back):
        self.other(rf"^{re.escape(name)} is {re.escape(now)}, and was {re.escape(then)} when the step was captured, in which it is "
                   rf"fixed \(\S*{HERE}\)", lambda x: self.net(x).sum() * step(), change, self.x, back=back)

    def test_members(self):
        of, made, g = SimpleNamespace(beta=2.0), WithDescribed(), globals()
        beta = "of.beta", "3.0", "2.0"
        change = lambda: setattr(of, "beta", 3.0), lambda: setattr(of, "beta", 2.0)
        self.fixed(*beta, lambda: vars(of)["beta"], *change)
        self.fixed(*beta, lambda: of.__dict__["beta"], *change)
        self.fixed(*beta, lambda: vars(of).get("beta"), *change)
        self.fixed("of.zeta", "1", "gone", lambda: 3 if hasattr(of, "zeta") else 2, lambda: setattr(of, "zeta", 1),
                   lambda: delattr(of, "zeta"))
        self.fixed("made._beta", "3.0", "2.0", lambda: made.beta, lambda: setattr(made, "_beta", 3.0),
                   lambda: setattr(made, "_beta", 2.0))
        self.fixed("G", "3.0", "2.0", lambda: globals()["G"], lambda: g.update(G=3.0), lambda: g.update(G=2.0))

    def test_environment(self):
        change = lambda: os.environ.update(TENON_BETA="3"), lambda: os.environ.update(TENON_BETA="2")
        change[1]()
        beta = "os.environ['TENON_BETA']", "'3'", "'2'"
        self.fixed(*beta, lambda: float(os.environ["TENON_BETA"]), *change)
        self.fixed(*beta, lambda: float(os.environ.get("TENON_BETA", 2)), *change)
        self.fixed(*beta, lambda: float(os.getenv("TENON_BETA")), *change)
        self.fixed("os.environ['TENON_GAMMA']", "'3'", "gone", lambda: float(os.getenv("TENON_GAMMA", "2")),
                   lambda: os.environ.update(TENON_GAMMA="3"), lambda: os.environ.pop("TENON_GAMMA"))

    def test_containers(self):
        inner = {"beta": 2.0}
        words, rows, chained = collections.UserDict(beta=2.0), collections.UserList([2.0]), collections.ChainMap({}, inner)
        shown, seen, some = types.MappingProxyType(inner), collections.deque([2.0]), {2.0}
        raw, numbers = bytearray([2]), array.array("d", [2.0])
        self.fixed("words['beta']", "3.0", "2.0", lambda: words["beta"], lambda: words.update(beta=3.0), lambda: words.update(beta=2.0))
        self.fixed("rows[0]", "3.0", "2.0", lambda: rows[0], lambda: rows.__setitem__(0, 3.0), lambda: rows.__setitem__(0, 2.0))
        for name, step in (("chained", lambda: chained["beta"]), ("shown", lambda: shown["beta"])):
            self.fixed(f"{name}['beta']", "3.0", "2.0", step, lambda: inner.update(beta=3.0), lambda: inner.update(beta=2.0))
        self.fixed("seen", "deque([2.0, 3.0])", "deque([2.0])", lambda: sum(seen) / len(seen), lambda: seen.append(3.0), seen.pop)
        self.fixed("some", "{2.0, 3.0}", "{2.0}", lambda: max(some), lambda: some.add(3.0), lambda: some.remove(3.0))
        self.fixed("raw", "a bytearray", "a bytearray", lambda: sum(raw), lambda: raw.append(3), raw.pop)
        self.fixed("numbers", "a array", "a array", lambda: sum(numbers), lambda: numbers.append(3), numbers.pop)

    def test_bound(self):
        """Values of a partial and defaults."""
        part = functools.partial(lambda b: b, b=2.0)
        self.fixed("part.keywords", "{'b': 3.0}", "{'b': 2.0}", lambda: part(), lambda: part.keywords.update(b=3.0),
                   lambda: part.keywords.update(b=2.0))
        self.fixed("alpha.__defaults__", "(3.0,)", "(2.0,)", lambda: alpha(1), lambda: setattr(alpha, "__defaults__", (3.0,)),
                   lambda: setattr(alpha, "__defaults__", (2.0,)))
        self.fixed("alpha.__kwdefaults__", "{'gamma': 3.0}", "{'gamma': 2.0}", lambda: alpha(1),
                   lambda: alpha.__kwdefaults__.update(gamma=3.0), lambda: alpha.__kwdefaults__.update(gamma=2.0))


class TestOnce(Case):
    """Objects that give another value at each call."""

    def test_generators(self):
        drawn = rf"draws random numbers of {{}} \(\S*{HERE}\), which would be those of the capture"
        of = SimpleNamespace(rng=random.Random(0))
        self.refused(drawn.format("of.rng, a Random"), lambda x: self.net(x).sum() * of.rng.random(), self.x)
        tenon.capture(lambda x: self.net(x).sum() * (of.rng is not None), self.x)
        if numpy:
            of.rng, old = numpy.random.default_rng(0), numpy.random.RandomState(0)
            self.refused(drawn.format("of.rng, a Generator"), lambda x: self.net(x).sum() * of.rng.uniform(), self.x)
            self.refused(drawn.format("old, a RandomState"), lambda x: self.net(x).sum() * old.rand(), self.x)

    def test_iterators(self):
        def schedule():
            while True:
                yield 2.0
        words = rf"takes {{}} from an iterator that was there before \(next, \S*{HERE}.*as an argument that is a tensor"
        for now, iterator in (("3.0", itertools.cycle([3.0])), ("2.0", schedule()), ("7", iter([7]))):
            self.refused(words.format(now), lambda x: self.net(x).sum() * next(iterator), self.x)
        tenon.capture(lambda x: self.net(x).sum() * next(itertools.count(2)), self.x)

    def test_counts(self):
        """A step may make names by an itertools.count, which is told and not refused."""
        numbers = itertools.count(2)

        def step(x):
            name = f"call-{next(numbers)}"
            return self.net(x).sum() * bool(name)
        made, said = self.told(step, self.x)
        self.assertRegex(said[0], rf"^tenon: the step takes \d+ from an itertools.count \(next, \S*{HERE}.*, which a Step has")
        made(self.x)

    def test_clocks(self):
        words = rf"^tenon: the step asks for the time \(\S*{HERE}\), which a Step does not"
        for step in (lambda x: self.net(x).sum() * time.perf_counter(), lambda x: self.net(x).sum() * clock()):
            self.assertRegex(self.told(step, self.x)[1][0], words)


class TestStrides(Case):
    def test_as_strided(self):
        """An argument's strides are of the graph where the step reads its memory by them, and not elsewhere."""
        column = self.x.t().contiguous().t()
        for read in (lambda x: torch.as_strided(x, (5,), (1,)), lambda x: torch.as_strided(x[1:], (5,), (1,))):
            step = lambda x: self.net(x).sum() * read(x).sum()
            made, _ = self.told(step, column)
            self.assertAlmostEqual(made(column).item(), step(column).item(), delta=1e-5)
            with self.assertRaisesRegex(ValueError, r"^x: expected strides \(1, 3\), .* found \(4, 1\)$"):
                made(self.x)
        made, _ = self.told(lambda x: self.net(x).square().sum(), column)
        self.assertAlmostEqual(made(column).item(), made(self.x).item(), delta=1e-6)

    def test_one_entry(self):
        """An axis of one entry has no stride; a batch that was contiguous is asked for so."""
        wide = torch.randn(4, 8)
        step = lambda x: self.net(torch.as_strided(x, (x.shape[0], 4), (x.stride(0), x.stride(1)))).square().sum()
        made, _ = self.told(step, self.x[:1])
        self.assertAlmostEqual(made(wide[:1, :4]).item(), step(wide[:1, :4]).item(), delta=1e-5)
        made, _ = self.told(step, self.x)
        with self.assertRaisesRegex(ValueError, r"found \(8, 1\); give its \.contiguous\(\)$"):
            made(wide[:3, :4])
        self.assertAlmostEqual(made(wide[:3, :4].contiguous()).item(), step(wide[:3, :4]).item(), delta=1e-5)


    def test_part(self):
        """A slice of a larger tensor has not the memory that its strides reach over."""
        wide = torch.randn(4, 8)
        step = lambda x: self.net(torch.as_strided(x, (3, 4), (x.stride(0), x.stride(1)))).square().sum()
        self.refused(r"^aten.as_strided.default: it reads the memory of x, a part of a larger tensor, of which a Step has the part "
                     rf"alone; give its \.contiguous\(\) \(.*{HERE}", step, wide[:3, :4])
        both = lambda x, y: step(x) + torch.as_strided(y, (3, 4), (8, 1)).sum()
        for said, x, y in (("x", wide[:3, :4], wide[1:, :4]), ("y", wide[:3, :4].contiguous(), wide[1:, :4])):
            self.refused(f"it reads the memory of {said}, a part", both, x, y)
        made, _ = self.told(step, wide[:3, :4].contiguous())
        self.assertAlmostEqual(made(wide[:3, :4].contiguous()).item(), step(wide[:3, :4]).item(), delta=1e-5)


class TestComplex(Case):
    def test_results(self):
        """Results beside the loss that are complex are complex tensors, not pairs."""
        turns = torch.polar(torch.ones(3), torch.arange(3.0))

        def step(x):
            z = torch.view_as_complex(self.net(x)) * turns
            return torch.view_as_real(z).square().mean(), {"z": z}, z.abs()
        got, want = self.told(step, self.x)[0](self.x), step(self.x)
        for a, b in ((got[1]["z"], want[1]["z"]), (got[2], want[2])):
            self.assertEqual(a.dtype, b.dtype)
            torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-6)


class TestEqual(Case):
    """Constants in whose place equal ones come, or whose memory is another."""

    def setUp(self):
        super().setUp()
        self.w = torch.ones(2)
        self.of = SimpleNamespace(w=self.w, n=0)

    def step(self, x):
        return (self.net(x) * self.of.w).sum()

    def stays(self, change):
        """A Step runs after a change; it refuses where the constant that it has since is written to."""
        made, _ = self.told(self.step, self.x)
        want = made(self.x).item()
        change()
        self.assertEqual(made(self.x).item(), want)
        self.assertEqual(tenon.compile(made.captured)(self.x).item(), want)
        self.of.w.data.mul_(2)
        with self.assertRaisesRegex(tenon.NotSupported, r"\.w was written to since"):
            made(self.x)

    def test_replaced(self):
        """Those that were there earlier are no longer of the step."""
        made, _ = self.told(self.step, self.x)
        want, earlier = made(self.x).item(), [self.of.w]
        for n in range(3):
            self.of.n += n  # the step is recorded again too
            self.of.w = torch.ones(2)
            made(self.x)
            earlier.append(self.of.w)
        fixed = made.captured.fixed
        self.assertEqual(len(fixed.contents.small) + len(fixed.contents.parts), 1)
        for w in earlier[:-1]:
            w.mul_(2)
            self.assertEqual(made(self.x).item(), want)
        self.assertEqual(tenon.compile(made.captured)(self.x).item(), want)
        earlier[-1].mul_(2)
        with self.assertRaisesRegex(tenon.NotSupported, r"\.w was written to since"):
            made(self.x)

    def test_recorded_again(self):
        """Nor are they where the step was recorded again for another value."""
        step = lambda x: self.step(x) if self.of.n < 9 else self.step(x) * 2
        made, _ = self.told(step, self.x)
        want = made(self.x).item()
        for n in range(2):
            earlier, self.of.w, self.of.n = self.of.w, torch.ones(2), n
            self.assertEqual(made(self.x).item(), want)
            earlier.mul_(2)
        self.assertEqual(made(self.x).item(), want)

    def test_shared(self):
        self.stays(lambda: self.of.w.share_memory_())

    def test_data(self):
        self.stays(lambda: setattr(self.of.w, "data", self.of.w.data.clone()))

    def test_buffer_of_another(self):
        """A constant that is another model's buffer, which moves when that is compiled."""
        other = nn.BatchNorm1d(4, affine=False)
        other.register_buffer("w", self.of.w)
        end = nn.Linear(4, 1)
        self.stays(lambda: tenon.compile(tenon.capture(lambda x: (end(other(x)) * other.w).sum(), self.x)))

    def test_inference(self):
        with torch.inference_mode():
            self.of.w = torch.ones(2)
        made, _ = self.told(lambda x: (self.net(x) + self.of.w).sum(), self.x)
        made(self.x)

    @unittest.skipUnless(numpy, "numpy cannot be imported")
    def test_view(self):
        """Elements between those of a view are not of it."""
        columns = numpy.ones((2, 3), numpy.float32)
        self.of.w = torch.from_numpy(columns)[:, 1]
        self.stays(lambda: columns.__setitem__((slice(None), 2), 5))

    @unittest.skipUnless(numpy, "numpy cannot be imported")
    def test_arrays(self):
        """An equal array is no change, however often it comes."""
        self.of.w = numpy.ones(2, numpy.float32)
        step = lambda x: self.net(x).sum() * float(self.of.w[0])
        made, _ = self.told(step, self.x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(5):
                self.of.w = numpy.ones(2, numpy.float32)
                made(self.x)
        self.of.w = numpy.full(2, 3, numpy.float32)
        with self.assertRaisesRegex(tenon.NotSupported, r"\.w is another ndarray than"):
            made(self.x)


class TestContents(Case):
    """Memory that is written to without PyTorch's count of it."""

    def test_data(self):
        y = torch.ones(2)
        step = lambda x: (self.net(x) - y).square().mean()
        words = rf"^y was written to since the step was captured, in which it is a constant \(\S*{HERE}\)"
        self.other(words, step, lambda: y.data.fill_(3), self.x, back=lambda: y.data.fill_(1))
        self.other(words, step, lambda: setattr(y, "data", torch.zeros(2)), self.x)

    def test_unnamed(self):
        words = SimpleNamespace(y0=torch.ones(2))
        step = lambda x: (self.net(x) - getattr(words, "y" + str(0))).square().mean()
        self.other(rf"^a tensor of \[2\] was written to since .* constant \(made by \S*{HERE}", step,
                   lambda: words.y0.data.fill_(3), self.x, back=lambda: words.y0.data.fill_(1))

    def arrays(self, words, step, array):
        """A Step refuses where an array is written in place."""
        before = array.copy()
        self.other(words, step, lambda: array.__setitem__(-1, 5), self.x, back=lambda: array.__setitem__(..., before))

    @unittest.skipUnless(numpy, "numpy cannot be imported")
    def test_arrays(self):
        w, of = numpy.ones(2, numpy.float32), SimpleNamespace(w=numpy.ones(2), rows=[numpy.ones(2, numpy.float32)])
        t, large = torch.from_numpy(w), numpy.ones((2000, 2), numpy.float32)
        fixed = rf"^{{}} has other contents than when the step was captured, in which it is fixed \(\S*{HERE}\); give it as an arg"
        self.arrays("was written to", lambda x: (self.net(x) * torch.as_tensor(w)).sum(), w)
        self.arrays("^t was written to", lambda x: (self.net(x) * t).sum(), w)
        self.arrays(fixed.format("of.w"), lambda x: self.net(x).sum() * float(of.w[1]), of.w)
        self.arrays(fixed.format("of.w"), lambda x: self.net(x).sum() * of.w.sum(), of.w)
        self.arrays(r"rows\[0\]", lambda x: self.net(x).sum() * sum(float(row[1]) for row in of.rows), of.rows[0])
        made, _ = self.told(lambda x: self.net(x).sum() * float(large.sum()), self.x)
        large[-1] = 5
        with self.assertRaisesRegex(tenon.NotSupported, "large has other contents"):
            for _ in range(9):
                made(self.x)

    @unittest.skipUnless(numpy, "numpy cannot be imported")
    def test_array_of_the_step(self):
        """One that the step writes is as before, and the capture tells."""
        seen = numpy.zeros(2)

        def step(x):
            seen[0] += 1
            return self.net(x).sum()
        made, said = self.told(step, self.x)
        self.assertEqual(seen.tolist(), [0, 0])
        self.assertRegex(said[0], "^tenon: the step changes seen, which a Step does not")
        seen[1] = 1
        made(self.x)


class Base(nn.Module):
    def gain(self):
        return 2.0


class Gained(Base):
    def __init__(self):
        super().__init__()
        self.net, self.act = nn.Linear(4, 2), nn.GELU()

    def forward(self, x):
        return (self.act(self.net(x)) * self.gain()).square().mean()


def gained(x):
    return x * 2


class TestCode(Case):
    """Code that is replaced where all of its kind have it, as libraries do that patch others."""

    def patched(self, words, step, owner, name, other):
        """A Step refuses while a member of a class or module is another, and runs before and after."""
        made, _ = self.told(step, self.x)
        want = made(self.x).item()
        self.assertAlmostEqual(want, step(self.x).item(), delta=1e-5)
        with mock.patch.object(owner, name, other), self.assertRaisesRegex(tenon.NotSupported, words):
            made(self.x)
        made(self.x)
        with mock.patch.object(owner, name, getattr(owner, name)):  # by itself
            self.assertEqual(made(self.x).item(), want)

    def test_classes(self):
        made = Gained()
        words = rf"^Gained.{{}} is another function than when the step was captured, .*\(\S*{HERE}\); capture again$"
        self.patched(words.format("forward"), made, Gained, "forward", lambda m, x: m.net(x).sum())
        self.patched(words.format("gain"), made, Base, "gain", lambda m: 3.0)
        self.patched("^Linear.forward is another function than", made, nn.Linear, "forward", lambda m, x: F.linear(x, m.weight))

    def test_functions(self):
        """Of a file that the step calls, of PyTorch's that it names itself, or that PyTorch's modules do."""
        here = __import__(__name__)
        self.patched("^gained is another function", lambda x: gained(self.net(x)).sum(), here, "gained", lambda x: x * 3)
        self.patched("^torch.nn.functional.gelu is a function, and was a builtin", lambda x: F.gelu(self.net(x)).sum(), F, "gelu",
                     lambda x: x.relu())
        self.patched("^torch.nn.functional.relu is another function", lambda x: torch.nn.functional.relu(self.net(x)).sum(), F,
                     "relu", lambda x: x)
        self.patched("^torch.nn.functional.gelu is a function", Gained(), F, "gelu", lambda x, approximate: x.relu())

    def test_hooks_of_all_modules(self):
        every, step = nn.modules.module, lambda x: self.net(x).square().mean()
        for register, hook in ((every.register_module_forward_hook, lambda m, x, y: y * 2),
                               (every.register_module_forward_pre_hook, lambda m, x: (x[0] * 2,)),
                               (every.register_module_full_backward_hook, lambda m, x, y: (x[0] * 2,))):
            kept = []
            self.other("^torch.nn.modules.module has other hooks of all modules", step, lambda: kept.append(register(hook)), self.x,
                       back=lambda: kept.pop().remove())
        kept = [every.register_module_forward_hook(lambda m, x, y: None)]
        made, _ = self.told(step, self.x)
        kept.pop().remove()
        self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-5)

    def test_hooks_that_come_and_go(self):
        """Those that make no difference are looked at three times."""
        made, _ = self.told(lambda x: self.net(x).square().mean(), self.x)
        with warnings.catch_warnings(record=True) as found, mock.patch.object(made.captured, "recorded_again",
                                                                              wraps=made.captured.recorded_again) as again:
            warnings.simplefilter("always")
            for _ in range(8):
                kept = nn.modules.module.register_module_forward_hook(lambda m, x, y: None)
                made(self.x)
                kept.remove()
                made(self.x)
        self.assertLess(again.call_count, 8)
        self.assertEqual([str(x.message)[:54] for x in found], ["tenon: the step reads hooks of all modules, which chan"])


class TestOwn(Case):
    """What is not looked at: a step's own values, and those of packages."""

    def unwatched(self, step, change):
        made, found = self.told(step, self.x)
        want = made(self.x).item()
        change()
        with mock.patch.object(made.captured, "recorded_again", wraps=made.captured.recorded_again) as again:
            for _ in range(4):
                self.assertEqual(made(self.x).item(), want)
        self.assertEqual((again.call_count, found), (0, []))

    def test_what_a_step_writes_before_it_reads_it(self):
        """A flag that is on within a step is that of the step, whatever it was outside."""
        flags, table = SimpleNamespace(on=False), {"k": 1.0}

        def step(x):
            flags.on = True
            table["k"] = 2.0
            out = (self.net(x) * (table["k"] if flags.on else 1)).sum()
            flags.on, table["k"] = False, 1.0
            return out
        self.unwatched(step, lambda: (setattr(flags, "on", 5), table.update(k=7.0)))
        table["k"], flags.on = 1.0, 1.0
        self.other(r"^table\['k'\] is 3.0, and was 1.0", lambda x: self.written_after(x, table), lambda: table.update(k=3.0), self.x)

    def written_after(self, x, table):
        out = (self.net(x) * table["k"]).sum()
        table["k"] = table["k"] + 0.0
        return out

    def test_packages_of_another_environment(self):
        """One that a .pth file or PYTHONPATH finds is a package's code as those of this environment are."""
        words = {}
        exec(compile("class Of: k = 2.0\nof = Of()\ndef scaled(x): return x * of.k", "/elsewhere/site-packages/a/b.py", "exec"), words)
        self.unwatched(lambda x: self.net(words["scaled"](x)).sum(), lambda: setattr(words["of"], "k", 3.0))


class TestOdd(Case):
    """Objects that have not all that others of their kind have."""

    def test_of_python(self):
        class Empty(collections.UserDict):
            def __init__(self):
                pass

            def __getitem__(self, key):
                return 2.0

        class Nowhere:
            beta = 2.0
        Nowhere.__module__ = None
        empty, nowhere = Empty(), Nowhere()

        def around(x):
            return self.net(x).sum() * empty["beta"] * nowhere.beta
        around.__wrapped__ = around
        made, _ = self.told(around, self.x)
        self.assertAlmostEqual(made(self.x).item(), around(self.x).item(), delta=1e-5)

    @unittest.skipUnless(numpy, "numpy cannot be imported")
    def test_array_that_is_only_read(self):
        """PyTorch says once in a process that it has been given one."""
        w = numpy.ones(2)
        w.setflags(write=False)
        torch.set_warn_always(True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                made = tenon.compile(tenon.capture(lambda x: self.net(x).sum() * float(w[0]), self.x))
        finally:
            torch.set_warn_always(False)
        made(self.x)


if __name__ == "__main__":
    unittest.main()
