"""What capture makes of steps: names, roles, policies, refusals."""
import copy
import functools
import unittest
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import tenon
from models import GPT2, eager, tokens


class Layer(nn.Module):
    """x @ w1, gelu, @ w2, as in pytorch#178935, in a region of checkpoint."""

    def __init__(self, context_fn=None, **options):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(64, 256)), nn.Parameter(torch.randn(256, 64))
        self.options = dict(options, **({"context_fn": context_fn} if context_fn else {}))

    def layer(self, x):
        return F.gelu(x @ self.w1) @ self.w2

    def forward(self, x):
        y = checkpoint(self.layer, x, **self.options) if self.options else self.layer(x)
        return y.sum()


def selective(mm, other):
    """A context function with one policy for products and another for all else."""
    policy = lambda _, op, *args, **kwargs: mm if op == torch.ops.aten.mm.default else other
    return functools.partial(create_selective_checkpoint_contexts, policy)


class TestPolicies(unittest.TestCase):
    def products(self, model):
        """How many products the plan of a step has, whose gradients must be autograd's. Parameters hold its peak: where
        activations do, a plan computes one once more if that lowers the peak by a greater share than it adds of the work."""
        x = torch.randn(16, 64)
        plan = tenon.plan(tenon.capture(model, x))
        tenon.compile(plan)(x)
        plain = Layer()
        plain.load_state_dict(model.state_dict())
        plain(x).backward()
        for p, q in zip(model.parameters(), plain.parameters()):
            self.assertLess((p.grad - q.grad).norm().item(), 2e-5 * (1 + q.grad.norm().item()))
        return plan.data["op_counts"]["mm"]

    def test_plain_checkpoint(self):
        self.assertEqual(self.products(Layer()), 5)
        self.assertEqual(self.products(Layer(use_reentrant=False)), 6)
        self.assertEqual(self.products(Layer(use_reentrant=True)), 6)

    def test_any_mix_of_policies(self):
        again = (CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_RECOMPUTE)
        save = (CheckpointPolicy.PREFER_SAVE, CheckpointPolicy.MUST_SAVE)
        for other in again + save:
            for mm in again:
                self.assertEqual(self.products(Layer(selective(mm, other), use_reentrant=False)), 6, (mm, other))
            for mm in save:
                self.assertEqual(self.products(Layer(selective(mm, other), use_reentrant=False)), 5, (mm, other))

    def test_regions_keep_their_results(self):
        model, data = GPT2(layers=4), tokens(1)[0]

        def loss(ids, labels):
            x = model.wte(ids)
            for block in model.h:
                x = checkpoint(block, x, use_reentrant=False)
            return F.cross_entropy(model.lm_head(x).flatten(0, 1), labels.flatten())

        counts = tenon.plan(tenon.capture(loss, *data)).data["op_counts"]
        self.assertLessEqual(counts["addmm"], 32)  # 16, each computed again once at most


class TestFinding(unittest.TestCase):
    def test_modules(self):
        class Trainer:
            def __init__(self):
                self.net = nn.Linear(3, 2)

            def step(self, x):
                return self.net(x).square().mean()

        x = torch.randn(4, 3)
        trainer, net = Trainer(), nn.Linear(3, 2)
        self.assertEqual(set(tenon.capture(trainer.step, x).parameters), {"weight", "bias"})
        self.assertEqual(set(tenon.capture(functools.partial(lambda m, y: m(y).sum(), net), x).parameters),
                         {"weight", "bias"})
        two = tenon.capture(lambda y: (net(y) - trainer.net(y)).square().sum(), x, model={"a": net, "b": trainer.net})
        self.assertEqual(set(two.parameters), {"a.weight", "a.bias", "b.weight", "b.bias"})
        with self.assertRaisesRegex(tenon.CaptureError, "give model="):
            tenon.capture(lambda y: y.sum(), x)

    def test_results(self):
        net, x = nn.Linear(3, 2), torch.randn(4, 3)

        def step(x, scale=1.0):
            y = net(x)
            return {"loss": y.square().mean() * scale, "y": y, "name": "linear"}

        out = tenon.compile(tenon.capture(step, x, scale=2.0))(x, scale=2.0)
        self.assertTrue(torch.allclose(out["y"], net(x)))
        self.assertTrue(torch.allclose(out["loss"], 2 * net(x).square().mean()))
        self.assertEqual(out["name"], "linear")

    def test_buffers_written_in_place(self):
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        reference, data = copy.deepcopy(model), [torch.randn(8, 3) for _ in range(3)]
        step = tenon.compile(tenon.capture(lambda x: model(x).square().mean(), data[0]))
        for x in data:
            self.assertAlmostEqual(step(x).item(), reference(x).square().mean().item(), delta=1e-6)
        for (name, b), c in zip(model.named_buffers(), reference.buffers()):
            self.assertTrue(torch.allclose(b, c), name)

    def test_buffers_replaced(self):
        """A buffer that the step sets is written by the Step; a member of any other kind is told, and as before."""
        class Counted(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.calls, self.last = nn.Linear(3, 2), 0, None
                self.register_buffer("mean", torch.zeros(2))
                self.register_buffer("none", None)

            def forward(self, x):
                y = self.net(x)
                self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
                if members:
                    self.calls, self.last, self.none = self.calls + 1, y, y.detach()
                return (y - self.mean).square().mean()

        members, x = False, torch.randn(4, 3)
        net = Counted()
        twin = copy.deepcopy(net)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step = tenon.compile(tenon.capture(net, x))
        for _ in range(3):
            self.assertAlmostEqual(step(x).item(), twin(x).item(), delta=1e-6)
        self.assertTrue(torch.allclose(net.mean, twin.mean))
        self.assertGreater(net.mean.abs().max().item(), 0)
        members = True
        with self.assertWarnsRegex(RuntimeWarning, "the step changes calls, last, which a Step does not"):
            tenon.capture(net, x)
        self.assertEqual((net.calls, net.last, net.none), (0, None, None))

        def grows(x):
            net.mean = net.mean.repeat(2)
            return net.net(x).sum()
        with self.assertRaisesRegex(tenon.NotSupported, r"replaces the buffer mean, torch.float32 \[2\], by one of .*\[4\]"):
            tenon.capture(grows, x)
        self.assertEqual(net.mean.shape, (2,))

    def test_buffers_of_shared_modules(self):
        """A module that two others have, whose buffers are written in place and replaced."""
        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(3)
                self.register_buffer("mean", torch.zeros(3))

            def forward(self, x):
                self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
                return self.norm(x) - self.mean

        shared = Shared()
        net = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 3), shared), "b": nn.Sequential(nn.Linear(4, 3), shared)})
        twin = copy.deepcopy(net)
        loss = lambda net: lambda x: (net["a"](x) * net["b"](2 * x)).sum()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (net, twin)]
        step = tenon.compile(tenon.capture(loss(net), torch.randn(5, 4), optimizer=optimizers[0]))
        for _ in range(3):
            x = torch.randn(5, 4)
            want = loss(twin)(x)
            optimizers[1].zero_grad()
            want.backward()
            optimizers[1].step()
            self.assertAlmostEqual(step(x).item(), want.item(), delta=1e-5)
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        self.assertIs(net["a"][1], net["b"][1])

    def test_constants_and_frozen(self):
        net, mask, x = nn.Linear(3, 2), torch.tensor([1.0, 0.0]), torch.randn(4, 3)
        net.bias.requires_grad_(False)
        step = tenon.compile(tenon.capture(lambda y: (net(y) * mask).sum(), x))
        self.assertAlmostEqual(step(x).item(), (net(x) * mask).sum().item(), delta=1e-5)
        self.assertIsNone(net.bias.grad)
        self.assertTrue(torch.allclose(net.weight.grad, torch.outer(mask, x.sum(0))))


class TestGradients(unittest.TestCase):
    """Calls whose gradient autograd gives as one call more, beside eager PyTorch."""

    def setUp(self):
        torch.manual_seed(0)  # of two near points a distance of p = 0.5 has a gradient that rounding changes

    def same(self, net, loss, *args):
        net.zero_grad()
        tenon.compile(tenon.capture(loss, *args, model=net))(*args)
        got = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        loss(*args).backward()
        for g, p in zip(got, net.parameters()):
            self.assertLess((g - p.grad).norm().item(), 2e-5 * (1 + p.grad.norm().item()))

    def test_distances(self):
        net, x = nn.Linear(3, 5), torch.randn(6, 3)
        for p in (0.5, 1, 1.5, 2, 3, float("inf")):
            with self.subTest(p=p):
                self.same(net, lambda y, p=p: torch.cdist(net(y), 2 * net(y) + 1, p=p).square().sum(), x)
        self.same(net, lambda y: torch.cdist(net(y), net(y)).sum(), x)  # some are 0

    def test_lstm(self):
        net = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
        self.same(net, lambda y: net(y)[0].square().sum(), torch.randn(5, 2, 3))


class TestRefusals(unittest.TestCase):
    def setUp(self):
        self.net, self.x = nn.Linear(3, 3), torch.randn(4, 3)

    def refused(self, words, step, *args, kind=tenon.CaptureError, **options):
        with self.assertRaisesRegex(kind, words):
            tenon.capture(step, *args, **options)

    def test_names_the_op_and_the_line(self):
        net = self.net
        self.refused(r"linalg_eigh.*test_capture\.py:\d+", lambda x: torch.linalg.eigh(net(x)[:3])[0].sum(), self.x)
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):  # earlier ones drop the check
            self.refused(r"_linalg_check_errors.* has an effect .*test_capture\.py:\d+",
                         lambda x: torch.linalg.inv(net(x)[:3]).sum(), self.x)
        self.refused(r"test_capture\.py:\d+", lambda x: net(x).sum() if x.sum() > 0 else net(x).mean(), self.x)

    def test_losses(self):
        net = self.net

        def trains(x):
            loss = net(x).sum()
            loss.backward()
            return loss
        self.refused(r"calls backward .*test_capture\.py:\d+", trains, self.x)
        self.refused("scalar", lambda x: net(x), self.x)
        self.refused("loss", lambda x: None if net is None else 3, self.x)
        self.refused("does not depend", lambda x: net(x).detach().sum(), self.x)

    def test_data_that_is_set(self):
        """A tensor whose .data a step sets keeps in a graph what it had: a parameter, a buffer, a result."""
        net, kept = self.net, nn.BatchNorm1d(3)

        def of_parameter(x):
            net.weight.data = net.weight.data.clamp(-0.2, 0.2)
            return net(x).square().mean()

        def of_buffer(x):
            kept.running_mean.data = kept.running_mean.data + 1
            return kept(net(x)).square().mean()

        def of_result(x):
            y = net(x)
            y.data = y.data.clamp(-0.1, 0.1)
            return y.square().mean()
        for step in (of_parameter, of_buffer, of_result):
            self.refused(rf"the step sets the \.data of a tensor \(\S*test_capture\.py:\d+, in {step.__name__}\)", step, self.x)

    def test_torchscript(self):
        scripted = torch.jit.script(self.net)
        for model, path in ((scripted, "RecursiveScriptModule"), (nn.Sequential(self.net, scripted), "1")):
            self.refused(f"^{path} is made by torch.jit.script", lambda x: model(x).sum(), self.x, kind=tenon.NotSupported)

    def test_calls_of_a_training_loop(self):
        """Calls that belong around a step are refused inside of one, with the line and what to write, and have no effect."""
        net = self.net
        optimizer = torch.optim.AdamW(net.parameters(), lr=1.0)
        schedule, scaler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), torch.amp.GradScaler("cpu")
        off = torch.amp.GradScaler("cpu", enabled=False)
        net.weight.grad, before = torch.ones(3, 3), net.weight.detach().clone()
        clip = torch.nn.utils.clip_grad_norm_
        for words, call in ((r"AdamW\.step .*where tenon.capture has optimizer=", lambda loss: optimizer.step()),
                            (r"zero_grad .*before loss = Step", lambda loss: optimizer.zero_grad()),
                            (r"zero_grad ", lambda loss: net.zero_grad(set_to_none=False)),
                            (r"clip_grad_norm_ .*capture without optimizer=.*clip_grad_norm_\(model\.parameters\(\), ",
                             lambda loss: clip(net.parameters(), 1.0)),
                            (r"\.grad ", lambda loss: net.weight.grad.mul_(0)),
                            (r"ExponentialLR\.step .*after loss = Step", lambda loss: schedule.step()),
                            (r"GradScaler\.scale .*return the loss as it is", lambda loss: scaler.scale(loss))):
            with self.subTest(words):
                def step(x):
                    loss = net(x).square().mean()
                    call(loss)
                    return loss
                for have in (None, optimizer):
                    self.refused(rf"the step (calls|reads or writes) {words}", step, self.x, optimizer=have)
                    self.refused(r"\(\S*test_capture\.py:\d+, in <lambda>\)", step, self.x, optimizer=have)
        self.assertTrue(torch.equal(net.weight, before))
        self.assertTrue(torch.equal(net.weight.grad, torch.ones(3, 3)))
        self.assertEqual(optimizer.param_groups[0]["lr"], 1.0)
        tenon.capture(lambda x: off.scale(net(x).square().mean()), self.x)
        clip(net.parameters(), 1.0)  # outside of a capture they are as before
        optimizer.step()
        schedule.step()
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)
        self.assertFalse(torch.equal(net.weight, before))

    def test_what_a_user_may_pass(self):
        net = self.net
        step = lambda x: net(x).sum()
        self.refused("x: a tensor of torch.int16", step, self.x.to(torch.int16), kind=tenon.NotSupported)
        self.refused("x: a tensor on meta", step, self.x.to("meta"), kind=tenon.NotSupported)
        self.refused("argument 1 is an optimizer: give it by its name", step, self.x,
                     torch.optim.SGD(net.parameters()), kind=TypeError)
        for wrong, found in ((torch.optim.AdamW, "the class AdamW"), ([1], "list")):
            self.refused(f"optimizer: expected one of torch.optim's, found {found}", step, self.x, optimizer=wrong,
                         kind=TypeError)
        lazy, table = nn.LazyLinear(4), torch.zeros(4, 3)
        self.refused("weight has no shape yet", lambda x: lazy(x).sum(), self.x, kind=tenon.NotSupported)
        self.refused(r"neither argument nor buffer .*test_capture\.py:\d+.*register_buffer",
                     lambda x: table.copy_(net(x)).sum(), self.x)
        with torch.inference_mode():
            self.refused("inference_mode", step, self.x)
        self.assertEqual(tenon.compile(tenon.capture(lambda m, x: m(x).sum(), net, self.x))(net, self.x).shape, ())

    def test_arguments(self):
        net = self.net
        step = lambda x: net(x).sum()
        self.refused("requires a gradient", step, self.x.clone().requires_grad_(), kind=tenon.NotSupported)
        self.refused("complex128|dtype", step, self.x.to(torch.complex128), kind=tenon.NotSupported)

        def writes(x):
            x.add_(1)
            return net(x).sum()
        self.refused("in place", writes, self.x, kind=tenon.NotSupported)

    def test_optimizers(self):
        net = self.net
        step = lambda x: net(x).sum()
        for make, words in [(lambda p: torch.optim.Adagrad(p), "Adagrad"),
                            (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
                            (lambda p: torch.optim.SGD(p, lr=1, momentum=.9, nesterov=True), "nesterov"),
                            (lambda p: torch.optim.SGD(p, lr=1, momentum=.9, dampening=.1), "dampening")]:
            self.refused(words, step, self.x, optimizer=make(net.parameters()), kind=tenon.NotSupported)
        other = torch.optim.AdamW(nn.Linear(2, 2).parameters())
        self.refused("none of the step's modules", step, self.x, optimizer=other, kind=tenon.NotSupported)


if __name__ == "__main__":
    unittest.main()
