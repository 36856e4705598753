"""tenon.train: the loop of `tenon train` over a captured step."""
import copy
import os
import tempfile
import unittest

import torch

import tenon
from models import GPT2, eager, tokens
from tenon._save import save_tensors


class TestTrain(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = lambda name: os.path.join(folder.name, name)
        self.model, self.data = GPT2(layers=1), tokens(1)[0]
        save_tensors(self.at("batch.safetensors"), dict(zip(("input_ids", "labels"), self.data)))

    def captured(self, optimizer=None):
        model = self.model
        return tenon.capture(lambda input_ids, labels: model(input_ids, labels), *self.data, optimizer=optimizer)

    def train(self, captured, steps, out="run", **options):
        return tenon.train(captured, batch=self.at("batch.safetensors"), steps=steps, out=self.at(out), quiet=True,
                           **options)

    def test_as_eager(self):
        """By a captured optimizer: losses, parameters and state are eager PyTorch's, which goes on from them."""
        make = lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)
        want, reference = eager(self.model, make, [self.data] * 5)
        optimizer = make(self.model)
        trained = self.train(self.captured(optimizer), 3)
        self.assertEqual(trained.steps, 3)
        for got, loss in zip(trained.losses, want):
            self.assertAlmostEqual(got, loss, delta=1e-5)
        self.assertTrue(os.path.exists(os.path.join(trained.folder, "model.safetensors")))
        for loss in want[3:]:
            optimizer.zero_grad()
            out = self.model(*self.data)
            out.backward()
            optimizer.step()
            self.assertAlmostEqual(out.item(), loss, delta=2e-5)

    def test_loops_own_update(self):
        before = copy.deepcopy(self.model.state_dict())
        trained = self.train(self.captured(), 2, lr=1e-2, schedule="constant", warmup=0, no_decay=["*bias", "*ln*"])
        self.assertLess(trained.losses[1], trained.losses[0])
        self.assertFalse(torch.equal(before["wte.weight"], self.model.wte.weight))
        more = self.train(self.captured(), 4, resume=True)
        self.assertEqual(more.steps, 2)
        self.assertLess(more.losses[-1], trained.losses[-1])

    def test_doubles(self):
        """The loop writes a rate as the graph has it, f64 where the parameters are."""
        self.model.double()
        make = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
        want, reference = eager(self.model, make, [self.data] * 3)
        for got, value in zip(self.train(self.captured(make(self.model)), 3).losses, want):
            self.assertAlmostEqual(got, value, delta=1e-7)
        for a, b in zip(self.model.parameters(), reference.parameters()):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)

    def test_complex(self):
        """Complex parameters and buffers are trained too, and saved as pairs of numbers."""
        self.model.turn = torch.nn.Parameter(torch.polar(torch.rand(32), torch.arange(32.0)))
        self.model.register_buffer("other", torch.polar(torch.ones(32), -torch.arange(32.0)).conj())
        loss = lambda model, input_ids, labels: (model(input_ids, labels) + ((model.turn * model.other).real - 1).square().mean())
        make = lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)
        want, reference = eager(self.model, make, [self.data] * 3, loss)
        model, optimizer = self.model, make(self.model)
        captured = tenon.capture(lambda input_ids, labels: loss(model, input_ids, labels), *self.data, optimizer=optimizer)
        for got, value in zip(self.train(captured, 3).losses, want):
            self.assertAlmostEqual(got, value, delta=1e-5)
        torch.testing.assert_close(model.turn, reference.turn, rtol=1e-5, atol=1e-5)
        self.assertEqual(optimizer.state[model.turn]["exp_avg"].dtype, torch.complex64)

    def test_another_model(self):
        """A capture that is no longer of its model is neither trained nor saved, but with what it was captured with."""
        drop, wte, frozen = self.model.drop, self.model.wte, self.model.wpe.weight.requires_grad_(False)
        captured = self.captured()
        for words, change, back in (
                ("^drop.p is 0.5, and was 0.0", lambda: setattr(drop, "p", 0.5), lambda: setattr(drop, "p", 0.0)),
                ("^wte is another module", lambda: setattr(self.model, "wte", copy.deepcopy(wte)),
                 lambda: setattr(self.model, "wte", wte)),
                ("^wpe.weight requires a gradient, and did not", lambda: frozen.requires_grad_(True),
                 lambda: frozen.requires_grad_(False)),
                ("^GPT2 is in evaluation mode", self.model.eval, self.model.train)):
            with self.subTest(words):
                change()
                for call in (lambda: self.train(captured, 1), lambda: captured.save(self.at("saved"))):
                    with self.assertRaisesRegex(tenon.NotSupported, words):
                        call()
                back()
        captured.save(self.at("saved"))

    def test_refused(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        captured = self.captured(optimizer)
        for words, kind, call in (
                ("--nothing", ValueError, lambda: self.train(captured, 1, nothing=3)),
                ("weight-decay.*update already", ValueError, lambda: self.train(captured, 1, weight_decay=0.1)),
                ("expected what capture returned", TypeError, lambda: self.train(self.model, 1))):
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                call()
        with self.assertRaisesRegex(tenon.DoesNotFit, "does not fit") as raised:
            self.train(captured, 1, memory="1KiB")
        error = raised.exception
        self.assertEqual((error.limit, error.least), (1024, error.peak + error.reserve))
        self.assertIn("alive at the peak", error.table)
        tenon.compile(captured)(*self.data)
        with self.assertRaisesRegex(tenon.NotSupported, "has a state"):
            self.train(captured, 1)


if __name__ == "__main__":
    unittest.main()
