"""Values that a step reads and changes outside of itself: others than at the capture are refused, changes are undone
and told, what it would do once is refused or told."""
import contextlib
import io
import random
import threading
import unittest
import warnings
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

    def doubted(self, words, step, change, *args):
        """A Step runs, and tells once where `change` was made since."""
        made, _ = self.told(step, *args)
        made(*args)
        change()
        with self.assertWarnsRegex(RuntimeWarning, words):
            made(*args)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
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
        self.doubted(r"^tenon: w\[0\] is 0\.25, and was 0\.5", step, lambda: w.__setitem__(0, 0.25), self.x)
        w[0] = 0.5
        self.other("^y is another tensor .* constant", step, lambda: change(y=torch.zeros(3, 2)), self.x,
                   back=lambda: change(y=torch.ones(3, 2)))  # an equal one is the same
        self.other("^y was written to since", step, lambda: y.add_(1), self.x)

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
        self.doubted("^tenon: scale is 2, and was 1.0", made, lambda: setattr(made, "scale", 2), self.x)
        self.other("^mask is another tensor", made, lambda: setattr(made, "mask", torch.zeros(2)), self.x)
        loop = Loop()
        self.doubted("^tenon: Loop.beta is 0, and was 1.0 .* goes on with that", loop.step,
                     lambda: setattr(loop, "beta", 0), self.x)
        self.doubted(r"^tenon: Loop.words\['alpha'\] is 0, and was 1.0", loop.step, lambda: loop.words.update(alpha=0), self.x)
        words = SimpleNamespace(rate=1.0)
        self.doubted(r"^tenon: words\.rate is nan, and was 1.0", lambda x: self.net(x).sum() * words.rate,
                   lambda: setattr(words, "rate", float("nan")), self.x)

    def test_names_of_other_objects(self):
        """A name in the step's code that is a member of the loop too: the Step runs."""
        class Trainer:
            def __init__(self, net):
                self.net, self.loss, self.sum = net, 0.0, 0

            def step(self, x):
                return SimpleNamespace(loss=self.net(x).square().sum()).loss
        trainer = Trainer(self.net)
        step, _ = self.told(trainer.step, self.x)
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trainer.loss = step(self.x).item()
            trainer.sum += 1
        torch.testing.assert_close(trainer.loss, trainer.step(self.x).item())

    def test_what_no_code_names(self):
        """What the step does not read may change, and what a module counts outside of a Step."""
        loop, made = Loop(), Scaled()
        step, _ = self.told(lambda x: loop.step(x) + made(x), self.x)
        loop.steps, loop.words["seen"], made.calls = 7, 7, 7
        loop.log.append(1.0)
        step(self.x)


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
