"""Steps: training as eager PyTorch does, memory, what is refused."""
import copy
import gc
import io
import os
import pickle
import signal
import threading
import time
import unittest
from unittest import mock

import torch
from torch import nn

import tenon
from tenon._library import lib
from models import GPT2, eager, tokens


def capture(model, data, optimizer=None):
    return tenon.capture(lambda ids, labels: model(ids, labels), *data[0], optimizer=optimizer)


class TestOptimizers(unittest.TestCase):
    def trains(self, make, steps=5, **model):
        torch.manual_seed(0)
        net, data = GPT2(layers=1, **model), tokens(steps)
        want, trained = eager(net, make, data)
        optimizer = make(net)
        step = tenon.compile(capture(net, data, optimizer))
        for args, loss in zip(data, want):
            self.assertAlmostEqual(step(*args).item(), loss, delta=1e-5)
        return step, net, optimizer

    def test_all(self):
        for make in (lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.3, betas=(.8, .9)),
                     lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, weight_decay=0.1),
                     lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, maximize=True),
                     lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
                     lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)):
            with self.subTest(str(make(nn.Linear(1, 1))).replace("\n", " ")):
                self.trains(make)

    def test_groups_and_schedules(self):
        def make(m):
            decayed = [p for p in m.parameters() if p.dim() > 1]
            others = [p for p in m.parameters() if p.dim() < 2]
            return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.5}, {"params": others, "lr": 1e-2}],
                                     lr=1e-3, weight_decay=0)
        torch.manual_seed(0)
        net, data = GPT2(layers=1), tokens(4)
        reference = copy.deepcopy(net)
        opts = [make(net), make(reference)]
        schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in opts]
        step = tenon.compile(capture(net, data, opts[0]))
        for args in data:
            loss = reference(*args)
            opts[1].zero_grad()
            loss.backward()
            opts[1].step()
            self.assertAlmostEqual(step(*args).item(), loss.item(), delta=1e-5)
            for schedule in schedules:
                schedule.step()

    def test_rates_of_doubles(self):
        """Learning rates of f64 parameters are f64: parameters are PyTorch's to 1e-13."""
        for make in (lambda m: torch.optim.AdamW(m.parameters(), lr=0.1), lambda m: torch.optim.SGD(m.parameters(), lr=0.1)):
            torch.manual_seed(0)
            net, data = torch.nn.Linear(4, 3).double(), [(torch.randn(5, 4).double(),)] * 3
            loss = lambda m, x: m(x).square().mean()
            want, reference = eager(net, make, data, loss)
            step = tenon.compile(tenon.capture(lambda x: loss(net, x), *data[0], optimizer=make(net)))
            for args, value in zip(data, want):
                self.assertAlmostEqual(step(*args).item(), value, delta=1e-13)
            for a, b in zip(net.parameters(), reference.parameters()):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-13)

    def test_state_goes_on(self):
        """State that the optimizer had, and state that load_state_dict puts there, are the step's."""
        make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)
        torch.manual_seed(0)
        net, data = GPT2(layers=1), tokens(6)
        want, _ = eager(net, make, data)
        optimizer = make(net)
        for args in data[:2]:
            optimizer.zero_grad()
            net(*args).backward()
            optimizer.step()
        step = tenon.compile(capture(net, data, optimizer))
        for args, loss in zip(data[2:4], want[2:4]):
            self.assertAlmostEqual(step(*args).item(), loss, delta=1e-5)
        saved = io.BytesIO()
        torch.save(step.state_dict(), saved)
        for args in data[:2]:
            step(*args)
        saved.seek(0)
        step.load_state_dict(torch.load(saved))
        for args, loss in zip(data[4:], want[4:]):
            self.assertAlmostEqual(step(*args).item(), loss, delta=1e-5)
        self.assertEqual(int(optimizer.state[net.wte.weight]["step"]), 6)

    def test_other_sizes(self):
        """A Step refuses arguments of other sizes; Steps of these go on where it was, as eager PyTorch does."""
        torch.manual_seed(0)
        adamw = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)
        net = GPT2(layers=1)
        data = [*tokens(2), *tokens(2, batch=3, length=9), *tokens(1)]
        want, trained = eager(net, adamw, data)
        captured = capture(net, data, adamw(net))
        step = tenon.compile(captured)
        for args, loss in zip(data, want):
            if args[0].shape != captured.types[0][0]:
                with self.assertRaisesRegex(ValueError, r"^ids: expected torch.int64 \[\d+, \d+\] on cpu, found torch.int64 "
                                                        r"\[\d+, \d+\] on cpu; a plan is of fixed sizes: .*captured.again"):
                    step(*args)
                captured = captured.again(*args)
                step = tenon.compile(captured)
            self.assertAlmostEqual(step(*args).item(), loss, delta=1e-5)
        names = dict(trained.named_parameters())
        for name, p in net.named_parameters():
            if "qkv.bias" not in name:  # a key's bias has no gradient but rounding
                self.assertLess((p - names[name]).abs().max().item(), 2e-5, name)

    def test_gradients_in_a_loop(self):
        """Gradients of two batches by a Step without an optimizer, clipped, then PyTorch's own step and schedule."""
        torch.manual_seed(0)
        nets = [GPT2(layers=1)]
        nets.append(copy.deepcopy(nets[0]))
        optimizers = [torch.optim.RMSprop(m.parameters(), lr=1e-3) for m in nets]
        schedules = [torch.optim.lr_scheduler.StepLR(o, 2) for o in optimizers]
        data = tokens(8)
        step = tenon.compile(capture(nets[0], data))
        for i, args in enumerate(data):
            loss = nets[1](*args)
            loss.backward()
            self.assertAlmostEqual(step(*args).item(), loss.item(), delta=1e-5)
            if i % 2:
                norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in nets]
                self.assertAlmostEqual(norms[0].item(), norms[1].item(), delta=1e-4 * norms[1].item())
                for x in (*optimizers, *schedules):
                    x.step()
                for o in optimizers:
                    o.zero_grad()

    def test_changed_settings_are_refused(self):
        step, net, optimizer = self.trains(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3), steps=1)
        optimizer.param_groups[0]["betas"] = (0.5, 0.5)
        with self.assertRaisesRegex(tenon.NotSupported, "beta1 is 0.5"):
            step(*tokens(1)[0])

    def test_bf16(self):
        torch.manual_seed(0)
        net, data = GPT2(layers=1).bfloat16(), tokens(3)
        make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)
        want, _ = eager(net, make, data)
        step = tenon.compile(capture(net, data, make(net)))
        for args, loss in zip(data, want):
            self.assertAlmostEqual(step(*args).item(), loss, delta=0.05)


class TestDropout(unittest.TestCase):
    def test_masks(self):
        net = nn.Linear(4, 4, bias=False)
        nn.init.ones_(net.weight)
        drop, x = nn.Dropout(0.25), torch.ones(64, 4)

        def run(x):
            y = drop(net(x))
            return {"loss": y.mean(), "y": y}
        step = tenon.compile(tenon.capture(run, x, model={"net": net, "drop": drop}))
        torch.manual_seed(3)
        first, second = step(x), step(x)
        torch.manual_seed(3)
        again = step(x)
        self.assertTrue(torch.equal(first["y"], again["y"]))
        self.assertFalse(torch.equal(first["y"], second["y"]))
        kept = first["y"][first["y"] != 0]
        self.assertTrue(torch.allclose(kept, torch.full_like(kept, 4 / 0.75)))
        self.assertAlmostEqual(kept.numel() / 256, 0.75, delta=0.12)

    def test_mode(self):
        net, data = GPT2(layers=1, dropout=0.1), tokens(1)
        step = tenon.compile(capture(net, data))
        net.eval()
        with self.assertRaisesRegex(tenon.NotSupported, "evaluation mode"):
            step(*data[0])


class TestMemory(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.net, self.data = GPT2(layers=1), tokens(2)

    def test_planned_is_measured(self):
        step = tenon.compile(capture(self.net, self.data))
        lib.tn_program_fill(step.program.pointer, 0x5A)
        step(*self.data[0])
        high = lib.tn_program_high(step.program.pointer, 0x5A)
        self.assertLessEqual(high, step.plan.peak)
        self.assertGreater(high, step.plan.peak - 4096)

    def test_limit(self):
        captured = capture(self.net, self.data, torch.optim.AdamW(self.net.parameters()))
        free = tenon.plan(captured)
        need = free.peak + free.reserve
        less = tenon.plan(captured, memory=need - 4096, machine="none")
        self.assertLessEqual(less.peak + less.reserve, need - 4096)
        with self.assertRaises(tenon.DoesNotFit) as raised:
            tenon.plan(captured, memory=free.persistent)
        self.assertGreater(raised.exception.least, free.persistent)
        with self.assertRaises(ValueError):
            tenon.plan(captured, memory="3 furlongs")
        with self.assertRaises(ValueError):
            tenon.plan(captured, recompute="some")

    def test_recompute_keeps_the_loss(self):
        want = tenon.compile(capture(self.net, self.data))(*self.data[0])
        got = tenon.compile(capture(self.net, self.data), recompute="full")(*self.data[0])
        self.assertEqual(want.item(), got.item())

    def test_tensors_outlive_the_step(self):
        step = tenon.compile(capture(self.net, self.data, torch.optim.AdamW(self.net.parameters())))
        step(*self.data[0])
        before = {k: v.clone() for k, v in self.net.state_dict().items()}
        del step
        gc.collect()
        for name, v in self.net.state_dict().items():
            self.assertTrue(torch.equal(v, before[name]), name)
        saved = io.BytesIO()
        torch.save(self.net.ln_f.weight, saved)
        self.assertLess(len(saved.getvalue()), 5000)  # a storage of its own, not the arena
        weight = self.net.wte.weight
        del self.net
        gc.collect()
        self.assertTrue(torch.equal(weight, before["wte.weight"]))

    def test_freed_in_any_order(self):
        """In cycles that the collector takes apart, whichever of them it begins with; a tensor keeps what it needs."""
        gc.collect()  # what other tests left
        freed = []

        def told(name):
            free = getattr(lib, name)
            return mock.patch.object(lib, name, lambda pointer: (freed.append(name), free(pointer))[1])
        for name in ("tn_program_free", "tn_compiled_free", "tn_context_free"):
            patch = told(name)
            patch.start()
            self.addCleanup(patch.stop)

        def ring(things, turn):
            things = things[::-1] if turn % 2 else things
            for a, b in zip(things, things[1:] + things[:1]):
                a.__dict__["next"] = b
            freed.clear()
        gc.collect()  # what earlier tests have left in cycles is none of this one's
        for turn in range(2):
            net = GPT2(layers=1)
            captured = capture(net, self.data, torch.optim.AdamW(net.parameters()))
            plan = tenon.plan(captured)
            step = tenon.compile(plan)
            step(*self.data[0])
            weight, want = net.wte.weight, net.wte.weight.detach().clone()
            ring([net, captured, plan, step], turn)
            del net, captured, plan, step
            gc.collect()
            self.assertEqual(freed, [])
            self.assertTrue(torch.equal(weight, want))
            del weight
            gc.collect()
            self.assertEqual(freed, ["tn_program_free", "tn_compiled_free", "tn_context_free"])
        captured = capture(self.net, self.data)
        for turn in range(2):
            plan = tenon.plan(captured)
            ring([plan, plan.made, plan.context, tenon._step.Program(plan.made)], turn)
            del plan
            gc.collect()
            self.assertEqual(freed.index("tn_context_free"), len(freed) - 1, freed)  # what it has is gone with it

    def test_two_steps_of_a_model(self):
        """Steps of one model and one optimizer, of two sizes, in turns: as eager PyTorch trains."""
        make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)
        data = [x for pair in zip(tokens(3), tokens(3, batch=3, length=9)) for x in pair]
        want, trained = eager(self.net, make, data)
        optimizer = make(self.net)
        steps = [tenon.compile(capture(self.net, data[i:], optimizer)) for i in range(2)]
        for i, args in enumerate(data):
            self.assertAlmostEqual(steps[i % 2](*args).item(), want[i], delta=1e-5)
            if i == 3:
                steps[1] = tenon.compile(capture(self.net, data[1:], optimizer))
        names = dict(trained.named_parameters())
        for name, p in self.net.named_parameters():
            if "qkv.bias" not in name:  # a key's bias has no gradient but rounding
                self.assertLess((p - names[name]).abs().max().item(), 2e-5, name)
        del steps[1]  # the model's tensors stay in the arena of the Step that is gone
        gc.collect()
        before = self.net.wte.weight.clone()
        with mock.patch.object(lib, "tn_program_run", lambda _: 0):
            steps[0](*data[0])
        self.assertTrue(torch.equal(self.net.wte.weight, before))

    def test_generator_and_discriminator(self):
        """Two Steps that share modules, with an optimizer each, as eager PyTorch trains them."""
        nets = [nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)),
                nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 1))]
        twins, x, y = copy.deepcopy(nets), torch.randn(8, 4), torch.randn(8, 6)
        first = lambda g, d: lambda x, y: nn.functional.softplus(d(g(x).detach())).mean() - d(y).mean()
        second = lambda g, d: lambda x: nn.functional.softplus(-d(g(x))).mean()
        sgd = lambda pair: [torch.optim.SGD(m.parameters(), lr=0.1) for m in pair]
        eagers, optimizers = sgd(twins), sgd(nets)
        of_d = tenon.compile(tenon.capture(first(*nets), x, y, optimizer=optimizers[1]))
        of_g = tenon.compile(tenon.capture(second(*nets), x, optimizer=optimizers[0]))
        for _ in range(4):
            for step, loss, optimizer, args in ((of_d, first(*twins), eagers[1], (x, y)),
                                                (of_g, second(*twins), eagers[0], (x,))):
                want = loss(*args)
                for o in eagers:
                    o.zero_grad()
                want.backward()
                optimizer.step()
                self.assertAlmostEqual(step(*args).item(), want.item(), delta=1e-5)
        for net, twin in zip(nets, twins):
            for (name, p), q in zip(net.state_dict().items(), twin.state_dict().values()):
                self.assertTrue(torch.allclose(p, q, atol=2e-5), name)

    def test_taken_by_one_that_runs(self):
        """A Step does not take what another one in another thread reads."""
        first, second = (tenon.compile(capture(self.net, self.data)) for _ in range(2))
        run, began, end = lib.tn_program_run, threading.Event(), threading.Event()

        def slow(program):
            began.set()
            end.wait()
            return run(program)
        with mock.patch.object(lib, "tn_program_run", slow):
            thread = threading.Thread(target=second, args=self.data[0])
            thread.start()
            began.wait()
            with self.assertRaisesRegex(tenon.Error, r"wte\.weight is in the arena of another Step, which is running"):
                first(*self.data[0])
            end.set()
            thread.join()
        first(*self.data[0])

    def test_data_of_another_tensor(self):
        """A parameter over the memory of another one is no parameter that another Step has taken."""
        first, second = (tenon.compile(capture(self.net, self.data)) for _ in range(2))
        for step in (second, first):
            step(*self.data[0])
            self.net.h[0].ln_1.weight.data = self.net.h[0].ln_2.weight.data
            with self.assertRaisesRegex(tenon.Error, r"h\.0\.ln_1\.weight: its \.data is another"):
                first(*self.data[0])
            self.net.h[0].ln_1.weight.data = torch.ones(32)
            first, second = (tenon.compile(capture(self.net, self.data)) for _ in range(2))

    def test_replaced_data(self):
        step = tenon.compile(capture(self.net, self.data))
        self.net.wpe.weight.data = self.net.wpe.weight.data.clone()
        with self.assertRaisesRegex(tenon.Error, r"wpe\.weight"):
            step(*self.data[0])

    def test_load_into_the_model(self):
        other = GPT2(layers=1)
        step = tenon.compile(capture(self.net, self.data))
        self.net.load_state_dict(other.state_dict())
        self.assertAlmostEqual(step(*self.data[0]).item(), other(*self.data[0]).item(), delta=1e-5)

    def test_versions(self):
        """A backward over parameters that a Step has changed meanwhile is an error of autograd's."""
        step = tenon.compile(capture(self.net, self.data, torch.optim.AdamW(self.net.parameters())))
        loss = self.net(*self.data[1])
        step(*self.data[0])
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_copies(self):
        captured = capture(self.net, self.data)
        plan = tenon.plan(captured)
        step = tenon.compile(plan)
        for x in (captured, plan, step):
            for copies in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(tenon.NotSupported, "cannot be copied"):
                    copies(x)
        twin = copy.deepcopy(self.net)
        step(*self.data[0])
        self.assertNotEqual(twin.wte.weight.data_ptr(), self.net.wte.weight.data_ptr())

    def test_arguments(self):
        step = tenon.compile(capture(self.net, self.data))
        ids, labels = self.data[0]
        for bad in ((ids[:1], labels), (ids.int(), labels), (ids,), (ids, labels, 1), (ids, None)):
            with self.assertRaisesRegex((ValueError,), "expected"):
                step(*bad)
        with self.assertRaisesRegex(tenon.Error, "embedding"):
            step(ids + 1000, labels)
        step(ids, labels)

    def test_interrupted(self):
        """Ctrl-C within a step: the step ends, is counted, and training goes on to the same losses."""
        data = tokens(6)
        make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)
        want, _ = eager(self.net, make, data)
        optimizer = make(self.net)
        step = tenon.compile(capture(self.net, data, optimizer))
        run, got = lib.tn_program_run, []

        def interrupted(program):
            os.kill(os.getpid(), signal.SIGINT)
            return run(program)
        for i, args in enumerate(data):
            if i == 2:
                with mock.patch.object(lib, "tn_program_run", interrupted), self.assertRaises(KeyboardInterrupt):
                    step(*args)
            else:
                got.append((step(*args).item(), want[i]))
        self.assertEqual(int(optimizer.state[self.net.wte.weight]["step"]), 6)
        for g, w in got:
            self.assertAlmostEqual(g, w, delta=1e-5)

    def test_compiled_while_another_step_runs(self):
        """A second Step of a model waits for the first one's run, and has its update."""
        make = lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
        _, trained = eager(self.net, make, self.data[:1])
        first = tenon.compile(capture(self.net, self.data, make(self.net)))
        captured, run, began = capture(self.net, self.data), lib.tn_program_run, threading.Event()

        def slow(program):
            began.set()
            time.sleep(0.5)
            return run(program)
        with mock.patch.object(lib, "tn_program_run", slow):
            thread = threading.Thread(target=first, args=self.data[0])
            thread.start()
            began.wait()
            second = tenon.compile(captured)
            thread.join()
        for (name, p), q in zip(self.net.named_parameters(), trained.parameters()):
            self.assertLess((p - q).abs().max().item(), 2e-5, name)
        second(*self.data[0])

    def test_threads(self):
        steps = [tenon.compile(capture(GPT2(layers=1), self.data)) for _ in range(2)]
        want = [s(*self.data[0]).item() for s in steps]
        got = [[], []]

        def work(i):
            for _ in range(5):
                got[i].append(steps[i](*self.data[0]).item())
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, [[w] * 5 for w in want])


class TestPlan(unittest.TestCase):
    def test_what_it_says(self):
        net, data = GPT2(layers=2), tokens(1)
        plan = tenon.plan(capture(net, data, torch.optim.AdamW(net.parameters())), recompute="full")
        self.assertEqual(sum(plan.categories.values()), plan.peak)
        self.assertTrue(any(d["kind"] == "recompute" and d["scope"].startswith("h.0") for d in plan.decisions))
        self.assertIn("alive at the peak", str(plan))
        self.assertIn("<html", plan.html())
        self.assertIn("iframe", plan._repr_html_())
        self.assertGreater(plan.seconds, 0)

    def test_compare(self):
        net, data = GPT2(layers=2), tokens(1)
        captured = capture(net, data)
        plan = tenon.plan(captured)
        text = str(plan.compare(tenon.plan(captured, recompute="full")))
        self.assertRegex(text, r"peak +[\d.]+ +[\d.]+ +-[\d.]+ KiB")
        self.assertRegex(text, r"computed again +0\.00 +[1-9]")


if __name__ == "__main__":
    unittest.main()
