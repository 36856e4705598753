"""What a user may get wrong, or call as the graph does: names that clash, replaced tensors, hooks, arguments."""
import copy
import json
import os
import subprocess
import tempfile
import unittest

import torch
import torch.nn.functional as F
from torch import nn

import tenon
from tenon._library import _paths
from tenon._save import read_tensors, save_tensors
from models import GPT2, tokens

# Names of nodes, of the importer's and the optimizer's inputs, of outputs and of parameters.
NAMES = ("t", "mul", "sum_1", "tn_tangent", "tn_p0", "tn_c0", "weight", "bias", "seed", "lr", "step", "loss", "out1")


def function(names, body, **scope):
    exec(f"def made({', '.join(names)}):\n    return {body}", scope)
    return scope["made"]


class TestNames(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.x, self.y = torch.randn(6, 8), torch.randn(6, 4)

    def trains(self, net, step, *args):
        """Two steps of AdamW by Tenon and by PyTorch: the same losses and parameters."""
        twin = copy.deepcopy(net)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (net, twin)]
        made = tenon.compile(tenon.capture(lambda *a, **k: step(net, *a, **k), *args, model=net,
                                           optimizer=optimizers[0]))
        for _ in range(2):
            loss = step(twin, *args)
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            self.assertAlmostEqual(made(*args).item(), loss.item(), delta=1e-4)
        for (name, p), q in zip(net.named_parameters(), twin.parameters()):
            self.assertTrue(torch.allclose(p, q, atol=1e-5), name)

    def test_arguments(self):
        for name in NAMES:
            with self.subTest(name):
                net = nn.Linear(8, 4)
                step = function(["input", name], f"(net(F.dropout(input, 0.0)) * {name} * K).square().sum()", net=net,
                                F=F, K=torch.rand(4))
                want = step(self.x, self.y)
                want.backward()
                gradient, net.weight.grad, before = net.weight.grad, None, net.weight.detach().clone()
                got = tenon.compile(tenon.capture(step, self.x, self.y, model=net))(self.x, self.y)
                self.assertAlmostEqual(got.item(), want.item(), delta=1e-3)
                self.assertTrue(torch.allclose(net.weight.grad, gradient, atol=1e-3))
                self.assertTrue(torch.equal(net.weight, before))

    def test_parameters(self):
        for name in (*NAMES, "new", "grad", "metric"):
            with self.subTest(name):
                net = nn.Linear(8, 4, bias=False)
                if name in ("new", "grad", "metric"):
                    setattr(net, name, nn.Linear(8, 4, bias=False))
                    net.out1 = nn.Parameter(torch.rand(4))
                    step = lambda m, x, y: (F.linear(x, m.weight + getattr(m, name).weight) * m.out1 -
                                            y).square().mean()
                else:
                    setattr(net, name, nn.Parameter(torch.rand(4) if name != "weight" else torch.rand(4, 8)))
                    step = lambda m, x, y: ((m(x) - y) * getattr(m, name).mean()).square().mean()
                self.trains(net, step, self.x, self.y)

    def test_seed_and_argument(self):
        net = nn.Linear(8, 4)
        step = tenon.compile(tenon.capture(lambda x, seed: F.dropout(net(x), 0.5).sum() + seed.sum(), self.x,
                                           torch.tensor(3)))
        got = []
        for seed in (3, 5):
            torch.manual_seed(0)
            got.append(step(self.x, torch.tensor(seed)).item())
        self.assertAlmostEqual(got[1] - got[0], 2, delta=1e-5)

    def test_same_tensor_twice(self):
        net = nn.Linear(8, 4)
        step = lambda a, b, *more, c: (net(a) - net(b) + net(more[0]) * 3 - net(c)).square().mean()
        captured = tenon.capture(step, self.x, self.x, self.x, c=self.x)
        self.assertEqual(captured.inputs, ["a", "b", "arg2", "c"])
        args = [torch.randn(6, 8) for _ in range(4)]
        self.assertAlmostEqual(tenon.compile(captured)(*args[:3], c=args[3]).item(), step(*args[:3], c=args[3]).item(),
                               delta=1e-5)


class TestReplaced(unittest.TestCase):
    """A member of the model that is another than at capture, before compile and between steps."""

    def setUp(self):
        self.x = torch.randn(6, 8)

    def make(self):
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
        net[1].weight = net[0].weight
        net.register_buffer("s", torch.ones(8))
        net.register_buffer("cache", torch.ones(8), persistent=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return net, optimizer, tenon.capture(lambda x: (net(x) * net.s).square().mean(), self.x, model=net,
                                             optimizer=optimizer)

    def refused(self, words, change):
        for early in (True, False):
            with self.subTest(words, before_compile=early):
                net, optimizer, captured = self.make()
                step = None
                if not early:
                    step = tenon.compile(captured)
                    step(self.x)
                change(net, optimizer)
                with self.assertRaisesRegex(tenon.NotSupported, words):
                    step(self.x) if step else tenon.compile(captured)

    def test_members(self):
        zeros = lambda net: {k: torch.zeros_like(v) for k, v in net.state_dict().items()}
        self.refused(r"^(s|0\.weight) is another tensor", lambda net, _: net.load_state_dict(zeros(net), assign=True))
        self.refused(r"^0\.bias is another", lambda net, _: setattr(net[0], "bias", nn.Parameter(torch.zeros(8))))
        self.refused(r"^0\.bias is another", lambda net, _: setattr(net[0], "bias", None))
        self.refused(r"^1\.weight is another", lambda net, _: setattr(net[1], "weight", nn.Parameter(torch.ones(8, 8))))
        self.refused(r"^1 is another module", lambda net, _: net.__setitem__(1, nn.Linear(8, 8)))
        self.refused(r"^s is another", lambda net, _: setattr(net, "s", torch.zeros(8)))
        self.refused(r"^2\.running_var is another", lambda net, _: setattr(net[2], "running_var", torch.ones(8)))
        self.refused(r"^3 was added", lambda net, _: net.append(nn.ReLU()))

    def test_frozen(self):
        self.refused(r"^0\.bias does not require a gradient, and did", lambda net, _: net[0].bias.requires_grad_(False))
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        net[0].requires_grad_(False)
        step = tenon.compile(tenon.capture(lambda x: net(x).sum(), self.x))
        net[1].bias.requires_grad_(False)  # as PyTorch, which then gives it no gradient
        step(self.x)
        self.assertEqual([p.grad is None for p in net.parameters()], [True, True, False, True])
        net[0].weight.requires_grad_(True)
        with self.assertRaisesRegex(tenon.NotSupported, r"^0\.weight requires a gradient, and did not"):
            step(self.x)

    def test_shared_memory(self):
        def compiled(change):
            net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
            change(net)
            tenon.compile(tenon.capture(lambda x: net(x).square().mean(), self.x, model=net))(self.x)
            return net
        def untied(net):
            net[1].weight = nn.Parameter(net[0].weight.data)
        def frozen(net):
            untied(net)
            net[1].weight.requires_grad_(False)
        def row(net):
            net[1].bias = nn.Parameter(net[0].weight.data[:, 3])
        def buffer(net):
            net.register_buffer("mine", net[0].weight.data)
        for change, words in ((untied, r"0\.weight and 1\.weight|1\.weight and 0\.weight"), (frozen, r"0\.weight|1\.weight"),
                              (row, r"0\.weight and 1\.bias"), (buffer, "mine|0")):
            with self.subTest(change.__name__), self.assertRaisesRegex(tenon.NotSupported, f"^({words}).* share memory"):
                compiled(change)
        def parts(net):
            both = torch.randn(8, 16)
            net[0].weight, net[1].weight = nn.Parameter(both[:, :8]), nn.Parameter(both[:, 8:])
        def both_frozen(net):
            frozen(net)
            net[0].weight.requires_grad_(False)
        for change in (parts, both_frozen):
            compiled(change)

    def test_hooks(self):
        self.refused(r"0\.weight has a hook of register_hook",
                     lambda net, _: net[0].weight.register_hook(lambda g: g * 0))
        self.refused(r"0\.bias has a hook of register_post_accumulate",
                     lambda net, _: net[0].bias.register_post_accumulate_grad_hook(lambda p: None))
        self.refused("SGD has a hook of register_step_pre_hook", lambda _, o: o.register_step_pre_hook(lambda *a: None))
        self.refused("SGD has a hook of register_step_post_hook",
                     lambda _, o: o.register_step_post_hook(lambda *a: None))
        net = nn.Linear(8, 8)
        net.weight.register_hook(lambda g: g * 0)
        with self.assertRaisesRegex(tenon.NotSupported, "weight has a hook"):
            tenon.capture(lambda x: net(x).sum(), self.x)

    def test_other_strides(self):
        net, _, captured = self.make()
        step = tenon.compile(captured)
        net[0].weight.data = net[0].weight.data.t()  # at the same address
        with self.assertRaisesRegex(tenon.Error, r"^0\.weight: its \.data is another"):
            step(self.x)

    def test_what_may_change(self):
        net, _, captured = self.make()
        step = tenon.compile(captured)
        net.cache = torch.zeros(8)
        net.load_state_dict({k: torch.zeros_like(v) for k, v in net.state_dict().items()})
        self.assertEqual(step(self.x).item(), 0)


class TestAutocast(unittest.TestCase):
    def test_norms(self):
        """Under autocast a norm has bf16 input and f32 weights."""
        for norm in (nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.LayerNorm(8, elementwise_affine=False),
                     nn.BatchNorm1d(8)):
            with self.subTest(str(norm)):
                torch.manual_seed(0)
                net, x = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 4)), torch.randn(6, 8)
                twin = copy.deepcopy(net)

                def loss(m, x):
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        return m(x).float().square().mean()
                step = tenon.compile(tenon.capture(lambda x: loss(net, x), x))
                want, got = loss(twin, x), step(x)
                want.backward()
                self.assertAlmostEqual(got.item(), want.item(), delta=0.02 * want.item())
                for (name, p), q in zip(net.named_parameters(), twin.parameters()):
                    self.assertLess((p.grad - q.grad).abs().max().item(), 0.02 + 0.02 * q.grad.abs().max().item(), name)


class Callable:
    def __init__(self, net):
        self.nets = [net]

    def __call__(self, x):
        return self.nets[0](x).square().mean()


class TestArguments(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.x, self.net = torch.randn(6, 8), nn.Linear(8, 4)

    def step(self, x, scale=1.0):
        return self.net(x).square().mean() * scale

    def test_fresh_optimizer_state(self):
        for make in (lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
                     lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)):
            for change in (lambda o, m: o.load_state_dict(make(m).state_dict()), lambda o, m: o.state.clear()):
                twin = copy.deepcopy(self.net)
                mine, other = make(self.net), make(twin)
                step = tenon.compile(tenon.capture(self.step, self.x, optimizer=mine))
                for i in range(4):
                    if i == 2:
                        change(mine, self.net)
                        change(other, twin)
                    loss = twin(self.x).square().mean()
                    other.zero_grad()
                    loss.backward()
                    other.step()
                    self.assertAlmostEqual(step(self.x).item(), loss.item(), delta=1e-5)

    def test_state_dict_is_a_copy(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        step = tenon.compile(tenon.capture(self.step, self.x, optimizer=optimizer))
        step(self.x)
        kept = step.state_dict()
        want = copy.deepcopy(kept)
        losses = [step(self.x).item() for _ in range(3)]
        for name in ("exp_avg", "exp_avg_sq", "step"):
            self.assertTrue(torch.equal(kept["optimizer"]["state"][0][name], want["optimizer"]["state"][0][name]), name)
        step.load_state_dict(kept)
        self.assertEqual([step(self.x).item() for _ in range(3)], losses)

    def test_settings(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=9)
        step = tenon.compile(tenon.capture(self.step, self.x, optimizer=optimizer))
        step(self.x)
        schedule.step()
        with self.assertRaisesRegex(tenon.NotSupported, "beta1 is .*cycle_momentum=False"):
            step(self.x)
        for lr in (None, "fast", True, torch.ones(2)):
            optimizer.param_groups[0]["lr"] = lr
            with self.assertRaisesRegex(ValueError, "lr: expected a number, found"):
                tenon.capture(self.step, self.x, optimizer=optimizer)

    def test_groups(self):
        net, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), self.x
        optimizer = torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 0.1}], lr=0.2)
        step = tenon.compile(tenon.capture(lambda x: net(x).square().mean(), x, optimizer=optimizer))
        groups = [group["params"] for group in optimizer.param_groups]
        for change in (lambda: groups[1].append(groups[0].pop()), lambda: groups[1].pop(), lambda: groups[0].__setitem__(
                0, nn.Parameter(torch.ones(8, 8)))):
            kept = [list(group) for group in groups]
            change()
            with self.assertRaisesRegex(tenon.NotSupported, r"^group [01] has other parameters than in the captured step; capture"):
                step(x)
            for group, before in zip(groups, kept):
                group[:] = before
        step(x)

    def test_numbers_that_are_not_finite(self):
        """They are refused before anything is written."""
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        step = tenon.compile(tenon.capture(self.step, self.x, optimizer=optimizer))
        before = self.net.weight.clone()
        group = optimizer.param_groups[0]
        for key, value in (("lr", float("nan")), ("lr", torch.tensor(float("inf"))), ("eps", float("nan")),
                           ("weight_decay", float("inf")), ("betas", (0.9, float("nan")))):
            with self.subTest(key), self.assertRaisesRegex(ValueError, f"{key}: expected a finite number"):
                kept, group[key] = group[key], value
                try:
                    step(self.x)
                finally:
                    group[key] = kept
        self.assertTrue(torch.equal(self.net.weight, before))
        step(self.x)

    def test_values(self):
        nan = float("nan")
        step = tenon.compile(tenon.capture(self.step, self.x, scale=nan))
        self.assertTrue(torch.isnan(step(self.x, scale=float("nan"))))
        step = tenon.compile(tenon.capture(self.step, self.x))
        for bad, words in ((self.x.to_sparse(), "x: expected a dense tensor, found torch.sparse_coo"),
                           (self.x.numpy(), "x: expected torch.float32 .* found ndarray")):
            with self.assertRaisesRegex(ValueError, words):
                step(bad)
            with self.assertRaisesRegex(tenon.NotSupported, "expected a (dense one|tensor, found a numpy.ndarray)"):
                tenon.capture(self.step, bad)

    def test_gradient_of_an_argument(self):
        step = tenon.compile(tenon.capture(self.step, self.x))
        with self.assertRaisesRegex(tenon.NotSupported, r"^x requires a gradient: .* detach\(\) it"):
            step(nn.Linear(8, 8)(self.x))
        step(self.x)

    def test_kinds_of_numbers(self):
        ids = torch.randint(5, (6,))
        step = tenon.compile(tenon.capture(lambda x, ids, p, q: (self.net(x) * (ids * p)[:, None]).sum() * q[0], self.x, ids, p=1,
                                           q=(1.0,)))
        step(self.x, ids, p=1, q=(1.0,))
        for p, q in ((True, (1.0,)), (1.0, (1.0,)), (1, (True,)), (1, (1,))):
            with self.assertRaisesRegex(ValueError, "is fixed in the captured step"):
                step(self.x, ids, p=p, q=q)

    def test_a_negative_bit(self):
        x = torch.zeros(6, 8, dtype=torch.complex64).add(1j).mul(self.x).conj().imag  # whose memory has the other sign
        self.assertTrue(x.is_neg())
        step = tenon.compile(tenon.capture(lambda a: (self.net(a) + self.net(x)).sum(), self.x))
        want = self.net(x).sum().item() * 2
        for a in (x, torch._neg_view(-x.resolve_neg())):
            self.assertAlmostEqual(step(a).item(), want, delta=1e-4)
        with tempfile.TemporaryDirectory() as folder:
            step.captured.save(folder)
            found = read_tensors(folder, "weights")
        self.assertTrue(any(t.shape == x.shape and torch.equal(t, x) for t in found.values()))

    def test_another_default_device(self):
        from tenon._backend import backend
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        captured = tenon.capture(lambda x: (F.dropout(self.net(x), 0.5).square().mean(), x.sum()), self.x, optimizer=optimizer)
        run = torch.compile(lambda x: (x.sin() + 1).t(), backend=backend)
        run(self.x)
        with torch.device("meta"):
            found = tenon.compile(captured)(self.x)
            again = run(self.x)
        self.assertEqual([str(x.device) for x in (*found, again)], ["cpu"] * 3)
        self.assertTrue(torch.isfinite(found[0]))
        self.assertEqual(optimizer.state[self.net.weight]["step"].item(), 1)

    def test_nothing_returned(self):
        step = tenon.compile(tenon.capture(lambda x: (self.net(x).square().mean(), x[:0] * 2), self.x))
        self.assertEqual(step(self.x)[1].shape, (0, 8))

    def test_without_gradients(self):
        captured = tenon.capture(self.step, self.x)
        with torch.inference_mode(), self.assertRaisesRegex(tenon.Error, r"^tenon.compile under torch.inference_mode"):
            tenon.compile(captured)
        step = tenon.compile(captured)
        with torch.inference_mode(), self.assertRaisesRegex(tenon.Error, r"^Step\(...\) under torch.inference_mode"):
            step(self.x)
        with torch.no_grad(), self.assertRaisesRegex(tenon.Error, r"^a Step trains, and torch.no_grad\(\) is on: evaluate with"):
            step(self.x)
        self.assertIsNone(self.net.weight.grad)
        step(self.x)

    def test_words_of_plan(self):
        captured = tenon.capture(self.step, self.x)
        for words, kind, options in (("policies: expected a dict", TypeError, {"policies": ["a"]}),
                                     ("policies: expected a dict", TypeError, {"policies": {"a": 3}}),
                                     ("recompute: expected text, found int", TypeError, {"recompute": 3}),
                                     ("chunk: expected a number", TypeError, {"chunk": 3.5}),
                                     ("machine: expected text", TypeError, {"machine": 3}),
                                     ("^policies: expected a policy", ValueError, {"policies": {"a::b": "wrong"}}),
                                     ("^policies: expected PATTERN::OP", ValueError, {"policies": {"a": "must_save"}}),
                                     ("^mesh axis .*: no shard names it", ValueError, {"mesh": "fsdp=2,x=2"}),
                                     (r"memory: expected 1 to \d+ bytes, found 10{30}", ValueError, {"memory": 10**30})):
            with self.assertRaisesRegex(kind, words):
                tenon.plan(captured, **options)
        with self.assertRaises(tenon.DoesNotFit) as raised:
            tenon.plan(captured, memory=1000)
        self.assertRegex(str(raised.exception), r"^does not fit: needs \d+ bytes .* the limit is 1000; .*$")
        self.assertIn("peak", raised.exception.table)
        limit = tenon.plan(captured, memory="auto").settings.options.memory
        self.assertTrue(2**20 < limit < 2**50, limit)

    def test_arguments(self):
        step = tenon.compile(tenon.capture(self.step, self.x, scale=2.0))
        for args, words, found in (((), {}, r"Step\(\)"), ((self.x,), {}, r"Step\(tensor\)"),
                                   ((self.x, 3), {"scale": 2.0}, r"Step\(tensor, 3, scale=2.0\)"),
                                   (([self.x],), {"scale": "x" * 80}, r"Step\(\[tensor\], scale='x{36}\.\.\.\)")):
            with self.assertRaisesRegex(ValueError, r"captured, Step\(x, scale=2.0\), found " + found):
                step(*args, **words)

    def test_where_modules_are_found(self):
        nets, holder = [nn.Linear(8, 8), nn.Linear(8, 4)], {"head": self.net}
        inner = lambda x: self.net(x)
        for step, count in ((Callable(self.net), 2), (lambda x: nets[1](nets[0](x)).sum(), 4),
                            (lambda x: holder["head"](x).sum(), 2), (lambda x: inner(x).sum(), 2),
                            (lambda x, net=self.net: net(x).sum(), 2)):
            captured = tenon.capture(step, self.x)
            self.assertEqual(len(captured.parameters), count)
            self.assertAlmostEqual(tenon.compile(captured)(self.x).item(), step(self.x).item(), delta=1e-4)
        with self.assertRaisesRegex(TypeError, "expected a function or a module, found int"):
            tenon.capture(3, self.x)
        free = nn.Parameter(torch.ones(4))
        with self.assertRaisesRegex(tenon.CaptureError, r"none of the step's modules .*test_misuse\.py"):
            tenon.capture(lambda x: (self.net(x) * free).sum(), self.x)


class TestSave(unittest.TestCase):
    def test_train_from_files(self):
        """A saved step is trained by `tenon train`, which begins with the loss that the Step has."""
        torch.manual_seed(0)
        net, mask, data = GPT2(layers=1), torch.rand(97) + 0.5, tokens(1)

        def step(input_ids, labels):
            return net(input_ids, labels) + (net.wte.weight.mean(1) * mask).square().mean()
        captured = tenon.capture(step, *data[0])
        loss = step(*data[0]).item()
        program = os.path.join(os.path.dirname(os.path.abspath(_paths()[0])), "tenon")
        with tempfile.TemporaryDirectory() as folder:
            at = lambda name: os.path.join(folder, name)
            captured.save(folder)
            save_tensors(at("batch.safetensors"), dict(zip(("input_ids", "labels"), data[0])))
            run = subprocess.run([program, "train", at("step.tn"), "--inputs", at("weights.safetensors"), "--batch",
                                  at("batch.safetensors"), "--steps", "1", "--out", at("run"), "--metrics", at("m")],
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 0, run.stderr)
            with open(at("m"), encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
        losses = [line["loss"] for line in lines if "loss" in line]
        self.assertAlmostEqual(losses[0], loss, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
