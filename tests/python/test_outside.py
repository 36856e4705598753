"""Values that a step reads and changes outside of itself: others than at the capture are refused, changes are undone
and told, what it would do once is refused or told."""
import contextlib
import copy
import dataclasses
import functools
import gc
import io
import random
import threading
import unittest
import warnings
import weakref
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tenon

HERE = r"test_outside\.py:\d+"
scale, count, kept, table = 1.0, 0, [], torch.ones(2)
net = nn.Linear(4, 2)


def of_file(x):
    global count
    count += 1
    kept.append(x)
    return (net(x) * table).square().mean() * scale


@functools.lru_cache
def counted(n):
    return torch.arange(n).float()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.drop, self.scale, self.calls = nn.Linear(4, 2), nn.Dropout(0.5), 1.0, 0
        self.mask = torch.ones(2)

    def forward(self, x):
        return (self.drop(self.net(x)) * self.scaled()).square().mean()

    def scaled(self):
        return self.scale * self.mask


class Loop:
    def __init__(self):
        self.net, self.words, self.log, self.beta, self.steps = nn.Linear(4, 2), {"alpha": 1.0, "seen": 0}, [], 1.0, 0

    def step(self, x):
        loss = self.net(x).square().mean() * self.beta * self.words["alpha"]
        self.log.append(loss)
        return loss


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.x, self.net = torch.randn(3, 4), nn.Linear(4, 2)

    def told(self, step, *args, **options):
        """A Step of what is captured, and what the capture has said."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            made = tenon.compile(tenon.capture(step, *args, **options))
        return made, [str(w.message) for w in found if "tenon" in str(w.message)]

    def refused(self, words, step, *args):
        with self.assertRaisesRegex(tenon.CaptureError, words):
            tenon.capture(step, *args)

    def other(self, words, step, change, *args, back=None):
        """A Step runs, and refuses to where `change` was made since; it runs again where that is undone."""
        made, _ = self.told(step, *args)
        made(*args)
        change()
        with self.assertRaisesRegex(tenon.NotSupported, words):
            made(*args)
        with self.assertRaisesRegex(tenon.NotSupported, words):
            tenon.compile(made.captured)
        if back:
            back()
            made(*args)


class TestReads(Case):
    def test_variables(self):
        y, beta, w = torch.ones(3, 2), 2.0, [0.5, 0.5]
        step = lambda x: (self.net(x) - y).square().mean() * beta * w[0]

        def change(**words):
            nonlocal beta, y
            beta, y = words.get("beta", beta), words.get("y", y)
        self.other(rf"^beta is 3\.0, and was 2\.0 when the step was captured, in which it is fixed \(\S*{HERE}\); give it as an "
                   "argument", step, lambda: change(beta=3.0), self.x, back=lambda: change(beta=2.0))
        self.other(r"^w\[0\] is 0\.25, and was 0\.5", step, lambda: w.__setitem__(0, 0.25), self.x,
                   back=lambda: w.__setitem__(0, 0.5))
        self.other("^y is another tensor .* constant", step, lambda: change(y=torch.zeros(3, 2)), self.x,
                   back=lambda: change(y=torch.ones(3, 2)))  # an equal one is the same
        self.other("^y was written to since", step, lambda: y.add_(1), self.x)

    def test_kinds_of_numbers(self):
        words, ids = {"a": 1, "b": [1, 2]}, torch.randint(5, (3,))
        step = lambda x: (self.net(x) / (ids * words["a"] // 2 + words["b"][0])[:, None]).sum() * len([*words["b"]])
        made, _ = self.told(step, self.x)
        for change, back, told in ((lambda: words.update(a=1.0), lambda: words.update(a=1), r"\['a'\] is 1.0, and was 1"),
                                   (lambda: words["b"].__setitem__(0, 1.5), lambda: words["b"].__setitem__(0, 1), "1.5")):
            change()
            with self.assertRaisesRegex(tenon.NotSupported, told):
                made(self.x)
            back()
            made(self.x)

    def test_variables_of_the_file(self):
        g = globals()
        self.other("^scale is 0.5, and was 1.0", of_file, lambda: g.update(scale=0.5), self.x, back=lambda: g.update(scale=1.0))
        before = table
        self.other("^table is another tensor", of_file, lambda: g.update(table=torch.zeros(2)), self.x,
                   back=lambda: g.update(table=before))
        twice = lambda x: of_file(x) * 2  # a function that the step calls
        self.other("^scale is 0.5", twice, lambda: g.update(scale=0.5), self.x, back=lambda: g.update(scale=1.0))

    def test_members(self):
        made = Scaled()
        self.other("^drop.p is 0.1, and was 0.5", made, lambda: setattr(made.drop, "p", 0.1), self.x,
                   back=lambda: setattr(made.drop, "p", 0.5))
        self.other("^scale is 2, and was 1.0", made, lambda: setattr(made, "scale", 2), self.x,
                   back=lambda: setattr(made, "scale", 1.0))
        self.other("^mask is another tensor", made, lambda: setattr(made, "mask", torch.zeros(2)), self.x)
        loop = Loop()
        self.other("^Loop.beta is 0, and was 1.0", loop.step, lambda: setattr(loop, "beta", 0), self.x,
                   back=lambda: setattr(loop, "beta", 1.0))
        self.other(r"^Loop.words\['alpha'\] is 0, and was 1.0", loop.step, lambda: loop.words.update(alpha=0), self.x)
        words = SimpleNamespace(rate=1.0)
        self.other(r"^words\.rate is nan, and was 1.0", lambda x: self.net(x).sum() * words.rate,
                   lambda: setattr(words, "rate", float("nan")), self.x)

    def silent(self, step, change, *args):
        """A Step says nothing and computes as eager PyTorch, though `change(i)` is made before each call."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            made = tenon.compile(tenon.capture(step, *args))
            for i in range(4):
                change(i)
                torch.testing.assert_close(made(*args).item(), step(*args).item(), rtol=1e-5, atol=1e-5)

    def test_names_of_other_objects(self):
        """A name in the step's code that is a member of the loop too, and entries and members beside those that it reads."""
        class Trainer:
            def __init__(self, net):
                self.net, self.loss, self.words, self.rows = net, 0.0, {"alpha": 2.0, "loss": 1}, [[1.0, 2.0]] * 2

            def step(self, x):
                return SimpleNamespace(loss=self.net(x).square().sum()).loss * self.words["alpha"] * self.rows[0][1]
        trainer = Trainer(self.net)

        def change(i):
            trainer.loss, trainer.words["loss"], trainer.sum = i, i, i
        self.silent(trainer.step, change, self.x)

    def test_chains(self):
        """Members of what a loop, an argument, a comprehension, a default or a closure gives."""
        rows, parts = [[1.0, 2.0], [3.0]], [SimpleNamespace(rate=1.0), SimpleNamespace(rate=2.0)]
        twice = lambda words, by=parts[0]: words["rate"] * by.rate
        step = lambda x: self.net(x).sum() * sum(p.rate for p in parts) * twice({"rate": 2.0}) * sum(map(sum, rows))
        self.other("rate is 5.0, and was 2.0", step, lambda: setattr(parts[1], "rate", 5.0), self.x,
                   back=lambda: setattr(parts[1], "rate", 2.0))
        self.other("rate is 5.0, and was 1.0", step, lambda: setattr(parts[0], "rate", 5.0), self.x,
                   back=lambda: setattr(parts[0], "rate", 1.0))
        step = lambda x: self.net(x).sum() * sum([sum(row) for row in rows])
        self.other(r"^rows\[1\] is \[3.0, 1.0\], and was \[3.0\]", step, lambda: rows[1].append(1.0), self.x,
                   back=lambda: rows[1].pop())
        step = lambda x: self.net(x).sum() * getattr(parts[0], "rate")
        self.other("rate is 5.0", step, lambda: setattr(parts[0], "rate", 5.0), self.x)

    def test_no_difference(self):
        """A value that is read, and changes nothing: told once, after some changes, and not looked at any more; one that
        changes seldom is looked at."""
        loop = Loop()

        def step(x):
            if loop.steps % 1000 == 999:
                return self.net(x).sum() * 2
            return self.net(x).sum()
        made, _ = self.told(step, self.x)
        for loop.steps in (1, 2, 3):
            made(self.x)
        loop.steps = 4
        with self.assertWarnsRegex(RuntimeWarning, "the step reads loop.steps .*no difference 3 times"):
            made(self.x)
        loop.steps = 999
        made(self.x)
        loop.steps = 0
        made, _ = self.told(step, self.x)
        for loop.steps in range(5):
            for _ in range(50):
                made(self.x)
        loop.steps = 999
        with self.assertRaisesRegex(tenon.NotSupported, "loop.steps is 999"):
            made(self.x)

    def test_objects(self):
        """Objects and containers in the place of others, members of a class, an entry that was not there, and what is returned
        beside the loss."""
        class Part:
            words = {"beta": 1.0}
            rate = 1.0

        part, rows, seen = Part(), [0.5, 0.5], {"epoch": 1}
        step = lambda x: self.net(x).sum() * part.rate * part.words["beta"] * rows[0] * seen.get("gain", 1.0)

        def change(**words):
            nonlocal part, rows
            part, rows = words.get("part", part), words.get("rows", rows)
        before = part
        self.other("^part is a SimpleNamespace", step, lambda: change(part=SimpleNamespace(rate=2.0, words=Part.words)), self.x,
                   back=lambda: change(part=before))
        self.other(r"^rows is \[0.25, 0.5\]", step, lambda: change(rows=[0.25, 0.5]), self.x, back=lambda: change(rows=[0.5, 0.5]))
        self.other(r"words\['beta'\] is 3.0", step, lambda: Part.words.update(beta=3.0), self.x,
                   back=lambda: Part.words.update(beta=1.0))
        self.other(r"gain", step, lambda: seen.update(gain=2.0), self.x, back=lambda: seen.pop("gain"))
        self.other(r"epoch", lambda x: (self.net(x).sum(), seen["epoch"]), lambda: seen.update(epoch=2), self.x)

    def test_a_tensor_beside_a_count(self):
        """A constant that was written to is told though a value that makes no difference is another too."""
        mask, loop = torch.ones(2), Loop()
        step = lambda x: ((self.net(x) * mask).sum(), loop.steps < 0)[0]
        made, _ = self.told(step, self.x)
        loop.steps = 1
        mask.zero_()
        with self.assertRaisesRegex(tenon.NotSupported, "^mask was written to"):
            made(self.x)

    def test_a_branch_that_is_read_later(self):
        """A value that changes nothing lets the step read another, which is fixed from then on."""
        words = SimpleNamespace(epoch=0, aux=False)
        step = lambda x: self.net(x).sum() * (2 if words.epoch >= 2 and words.aux else 1)
        made, _ = self.told(step, self.x)
        words.aux = True
        made(self.x)
        words.aux, words.epoch = False, 2
        made(self.x)
        words.aux = True
        with self.assertRaisesRegex(tenon.NotSupported, "^words.aux is True, and was False"):
            made(self.x)

    def test_modules_and_functions(self):
        """A variable that has another module, or function, than at the capture, as when a cell of a notebook runs again."""
        net, loss = self.net, nn.MSELoss()
        step = lambda x: loss(net(x), torch.ones(3, 2))

        def change(**words):
            nonlocal net, loss
            net, loss = words.get("net", net), words.get("loss", loss)
        self.other("^net is another Linear than when the step .* fixed .*; capture again. It would not be captured now: .* none of "
                   "the step's modules", step, lambda: change(net=nn.Linear(4, 2)), self.x, back=lambda: change(net=self.net))
        self.silent(step, lambda i: change(loss=nn.MSELoss()) if i < 2 else None, self.x)
        self.other("^loss is a L1Loss, and was a MSELoss", step, lambda: change(loss=nn.L1Loss()), self.x)
        change(loss=lambda x, y: (x - y).sum())
        self.other("^loss is another function", step, lambda: change(loss=lambda x, y: (y - x).sum()), self.x)

    def test_caches(self):
        """What a step's caches keep at first is not of the capture, and nothing is told."""
        class Cached(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(4, 2)

            @functools.cached_property
            def mask(self):
                return torch.ones(2)

            def forward(self, x):
                return (self.net(x) * self.mask * counted(2)).sum()
        made = Cached()
        self.silent(made, lambda i: None, self.x)
        self.assertEqual(counted(2).tolist(), [0.0, 1.0])

    def test_emptied_caches(self):
        """Results of a functools.lru_cache are those of the capture until it is emptied: then the step is recorded again."""
        factor = [2.0]

        class Object:
            @functools.lru_cache
            def factor(self):
                return factor[0]

        @functools.lru_cache
        def of_closure():
            return factor[0]
        held = Object()
        for cache, step in ((of_closure, lambda x: self.net(x).sum() * of_closure()),
                            (Object.factor, lambda x: self.net(x).sum() * held.factor())):
            factor[0] = 2.0
            step(self.x)
            made, said = self.told(step, self.x)
            self.assertEqual(said, [])
            for change in (lambda: factor.__setitem__(0, 2.0), cache.cache_clear, lambda: factor.__setitem__(0, 3.0)):
                change()
                self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-5)
            cache.cache_clear()
            step(self.x)
            with self.assertRaisesRegex(tenon.NotSupported, f"has other results in its cache, .*emptied, than when .*{HERE}"):
                made(self.x)

    def test_classes_are_freed(self):
        """A class whose functions refer to a closure is not kept by the package."""
        def trained(k):
            class Net(nn.Module):
                def forward(_, x):
                    return self.net(x).sum() * k
            step, _ = self.told(Net(), self.x, model=self.net)
            self.assertAlmostEqual(step(self.x).item(), self.net(self.x).sum().item() * k, delta=1e-5)
            return weakref.ref(Net)
        net = trained(2.0)
        gc.collect()
        self.assertIsNone(net())

    def test_what_no_code_names(self):
        """What the step does not read may change, and what a module counts outside of a Step."""
        loop, made = Loop(), Scaled()
        step, _ = self.told(lambda x: loop.step(x) + made(x), self.x)
        loop.steps, loop.words["seen"], made.calls = 7, 7, 7
        loop.log.append(1.0)
        step.captured.recorded_again = lambda: self.fail("it is recorded again")
        step(self.x)

    def test_code_of_modules(self):
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        hooks, step = [], lambda x: net(x).square().mean()
        words, back = "^1 has another class, forward or hook than when the step", lambda: hooks.pop().remove()
        twice = lambda m, x, y: y * 2
        self.other(words, step, lambda: hooks.append(net[1].register_forward_hook(twice)), self.x, back=back)
        before, after = lambda m, x: (x[0] * 2,), lambda m, x, y: (x[0] * 2,)
        self.other(words, step, lambda: hooks.append(net[1].register_forward_pre_hook(before)), self.x, back=back)
        self.other(words, step, lambda: hooks.append(net[1].register_full_backward_hook(after)), self.x, back=back)
        self.other(words, step, lambda: setattr(net[1], "forward", lambda x: x[:, :2]), self.x,
                   back=lambda: delattr(net[1], "forward"))
        kind = type("Twice", (nn.Linear,), {"forward": lambda m, x: nn.Linear.forward(m, x) * 2})
        self.other(words, step, lambda: setattr(net[1], "__class__", kind), self.x,
                   back=lambda: setattr(net[1], "__class__", nn.Linear))
        kept = [net[1].register_forward_hook(twice)]
        self.other(words, step, lambda: kept.pop().remove(), self.x)
        made, _ = self.told(step, self.x)
        seen = []
        net[1].register_forward_hook(lambda m, x, y: seen.append(0))  # which makes no difference
        self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-4)


class TestConstants(Case):
    """Tensors that no place is known of."""

    def test_written(self):
        words = SimpleNamespace(y0=torch.ones(2))
        step = lambda x: (self.net(x) - getattr(words, "y" + str(0))).square().mean()
        self.other(rf"^a tensor of \[2\] was written to since .* constant \(made by \S*{HERE}", step,
                   lambda: words.y0.add_(1), self.x)

    def test_written_and_recorded_again(self):
        words, beta = SimpleNamespace(y0=torch.ones(2)), [1.0]
        step = lambda x: (self.net(x) - getattr(words, "y" + str(0))).square().mean() * (beta[0] > 0)
        made, _ = self.told(step, self.x)
        beta[0] = 2.0
        made(self.x)
        words.y0.add_(1)
        with self.assertRaisesRegex(tenon.NotSupported, r"^a tensor of \[2\] was written to"):
            made(self.x)

    def test_module_of_the_step(self):
        weights, labels = torch.tensor([1.0, 3.0]), torch.tensor([0, 1, 1])
        step = lambda x: nn.CrossEntropyLoss(weight=weights)(self.net(x), labels)
        made, _ = self.told(step, self.x)
        self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-5)

    def test_loss_with_weights(self):
        criterion, labels = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])), torch.tensor([0, 1, 1])
        step = lambda x: criterion(self.net(x), labels)
        made = tenon.compile(tenon.capture(step, self.x, model=self.net))
        self.assertAlmostEqual(made(self.x).item(), step(self.x).item(), delta=1e-5)
        criterion.weight.mul_(2)
        with self.assertRaisesRegex(tenon.NotSupported, r"^a tensor of \[2\] was written to"):
            made(self.x)

    def test_module_of_no_model(self):
        teacher = nn.Sequential(nn.Linear(4, 2).requires_grad_(False))
        step = lambda x: (self.net(x) - teacher(x)).square().mean()
        words = rf"^a Linear that the step calls is in none of the step's modules \(\S*{HERE}\); give model="
        with self.assertRaisesRegex(tenon.CaptureError, words):
            tenon.capture(step, self.x, model=self.net)
        made, _ = self.told(step, self.x, model={"": self.net, "teacher": teacher})
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), self.net.parameters()):
                p.copy_(q)
        self.assertEqual(made(self.x).item(), 0)


class TestChanges(Case):
    def test_undone_and_told(self):
        loop, seen, n = Loop(), set(), 0

        def step(x):
            nonlocal n
            n += 1
            seen.add(n)
            return loop.step(x) + of_file(x)
        made, said = self.told(step, self.x)
        self.assertEqual(len(said), 1)
        for word in ("seen", "kept", r"loop\.log", "and 2 more"):
            self.assertRegex(said[0], word)
        self.assertRegex(said[0], rf"^tenon: the step changes .*, which a Step does not \(\S*{HERE}\): .*beside the loss")
        for _ in range(2):
            made(self.x)
        self.assertEqual((n, seen, loop.log, count, kept), (0, set(), [], 0, []))

    def test_name_in_a_list(self):
        """getattr by an entry of a list, as configurations of transformers look for those inside of them."""
        words, names = SimpleNamespace(alpha=2.0), ["alpha"]

        def step(x):
            found = names
            return self.net(x).square().mean() * getattr(words, found[0])
        made, _ = self.told(step, self.x)
        torch.testing.assert_close(made(self.x), step(self.x))

    def test_module_that_is_replaced(self):
        """A module that takes another in the place of one of its own while it runs, as BigBird does for short texts."""
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.kind, self.act, self.net = "long", nn.Sigmoid(), nn.Linear(4, 2)

            def forward(self, x):
                if self.kind == "long":
                    self.kind, self.act = "short", nn.Tanh()
                return self.act(self.net(x)).square().mean()

        layer = Layer()
        made, said = self.told(lambda x: layer(x), self.x)
        self.assertRegex(said[0], r"^tenon: the step changes kind, act, which")
        self.assertIs(type(layer.act), nn.Sigmoid)
        for _ in range(2):
            got = made(self.x)
        self.assertEqual((layer.kind, type(layer.act)), ("long", nn.Sigmoid))
        torch.testing.assert_close(got, copy.deepcopy(layer)(self.x))

    def test_hooks_of_the_first_run(self):
        """A module that hooks those inside of it when it runs first, to collect what they give, and notes that it has."""
        class Layers(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers, self.hooked, self.found = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), False, []

            def forward(self, x):
                if not self.hooked:
                    self.hooked = True
                    for layer in self.layers:
                        layer.register_forward_hook(lambda _, args, out: self.found.append(out))
                self.found.clear()
                self.layers(x)
                return self.found[1].square().mean()

        model = Layers()
        eager = copy.deepcopy(model)
        made, said = self.told(lambda x: model(x), self.x)
        loss, want = made(self.x), eager(self.x)
        want.backward()
        for got, p in zip([loss, *(p.grad for p in model.parameters())], [want, *(p.grad for p in eager.parameters())]):
            torch.testing.assert_close(got, p)
        self.assertEqual((model.hooked, [len(m._forward_hooks) for m in model.layers]), (False, [0, 0]))
        torch.testing.assert_close(model(self.x), want)
        self.assertRegex(said[0], r"^tenon: the step changes .*layers\.0\._forward_hooks")

    def test_hooks(self):
        for register in ("register_forward_hook", "register_full_backward_hook"):
            layers, kept = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), {}
            getattr(layers[1], register)(lambda *args: kept.update(last=args[-1]))
            _, said = self.told(lambda x: layers(x).square().mean(), self.x)
            self.assertEqual(kept, {})
            self.assertRegex(said[0], "the step changes kept, which")

    def test_prints(self):
        def step(x):
            loss = self.net(x).square().mean()
            print("loss", loss)
            return loss
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            _, said = self.told(step, self.x)
        self.assertEqual(out.getvalue(), "")
        self.assertRegex(said[0], rf"the step prints.*\(\S*{HERE}, in step\), which a Step does not")
        self.assertEqual(print.__module__, "builtins")
        _, said = self.told(lambda x: self.net(x).sum() + 0 * len(f"{x}"), self.x)
        self.assertRegex(said[0], "makes text of a tensor")
        for call in (lambda loss: f"{loss:.3f}", lambda loss: loss.detach().numpy()):
            self.refused(rf"asks for a tensor's numbers \(in \S*{HERE}.*beside the loss",
                         lambda x: (self.net(x).sum(), call(self.net(x).sum()))[0], self.x)


class TestOnce(Case):
    """Calls whose result would be that of the capture at every call."""

    def test_batches(self):
        batches = iter([(torch.ones(3, 4),)] * 9)
        loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
        words = rf"the step takes a batch from {{}} \(\S*{HERE}, in .*Step\(\*next\(batches\)\)"
        self.refused(words.format("next"), lambda: self.net(*next(batches)).sum())
        self.refused(words.format("a DataLoader"), lambda: sum(self.net(x).sum() for x, in loader))
        under_way = iter(loader)
        self.refused(words.format("a DataLoader"), lambda: self.net(*next(under_way)).sum())
        tenon.capture(lambda x: self.net(x).sum().to(next(self.net.parameters()).dtype), self.x)
        masks = [torch.ones(3), torch.ones(2)]  # one's own constants are no batch
        tenon.capture(lambda x: (self.net(x) * next(m for m in masks if len(m) == 2)).sum(), self.x)

    def test_objects_with_tensors(self):
        @dataclasses.dataclass
        class Batch:
            x: torch.Tensor
        step = lambda batch: self.net(batch.x).square().mean()
        with self.assertRaisesRegex(tenon.NotSupported, r"argument 0 is a Batch, whose tensors \(x\).*register_dataclass\(Batch\)"):
            tenon.capture(step, Batch(self.x))
        torch.export.register_dataclass(Batch)
        made, other = tenon.compile(tenon.capture(step, Batch(self.x))), Batch(self.x * 2)
        torch.testing.assert_close(made(other).item(), step(other).item())

    def test_random_numbers(self):
        self.refused(rf"draws random numbers of Python's random \(before \S*{HERE}", lambda x: self.net(x).sum() *
                     random.random(), self.x)
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy cannot be imported")
        self.refused("draws random numbers of numpy.random", lambda x: self.net(x).sum() * float(numpy.random.rand()), self.x)
        self.refused(r"calls torch\.manual_seed .*before loss = Step", lambda x: (torch.manual_seed(0), self.net(x).sum())[1],
                     self.x)

    def test_other_threads(self):
        """They print and draw as they do."""
        end, out, failed = threading.Event(), io.StringIO(), []

        def other():
            while not end.is_set():
                try:
                    next(iter([torch.ones(2)]))
                    torch.manual_seed(3)
                except tenon.Error as error:
                    failed.append(error)
        thread = threading.Thread(target=other)
        thread.start()
        with contextlib.redirect_stdout(out):
            tenon.capture(lambda x: self.net(x).sum(), self.x)
        end.set()
        thread.join()
        self.assertEqual(failed, [])


class TestBackward(Case):
    def test_of_a_step(self):
        """The loss of a Step has its backward behind it; what is made of it too."""
        step = tenon.compile(tenon.capture(lambda x: self.net(x).square().mean(), self.x))
        for loss in (step(self.x), step(self.x) / 4):
            with self.assertRaisesRegex(tenon.Error, r"added the gradients to \.grad: leave loss\.backward\(\) out"):
                loss.backward()
        trains = tenon.compile(tenon.capture(lambda x: {"loss": self.net(x).square().mean(), "y": self.net(x)}, self.x,
                                             optimizer=torch.optim.SGD(self.net.parameters(), lr=0.1)))
        out = trains(self.x)
        with self.assertRaisesRegex(tenon.Error, r"updated the parameters: leave loss\.backward\(\), optimizer\.step\(\)"):
            out["loss"].backward()
        self.assertFalse(out["y"].requires_grad)

    def test_several_optimizers(self):
        with self.assertRaisesRegex(TypeError, "with several, capture without one, and call the step"):
            tenon.capture(lambda x: self.net(x).sum(), self.x, optimizer=[torch.optim.SGD(self.net.parameters())])


if __name__ == "__main__":
    unittest.main()
