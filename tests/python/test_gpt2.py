"""A GPT-2 captured, planned and trained: the thin line."""
import copy
import unittest

import torch

import tenon
from models import GPT2, eager, tokens


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


class TestGPT2(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.model, self.data = GPT2(), tokens(3)

    def captured(self, optimizer=None):
        model = self.model
        return tenon.capture(lambda ids, labels: model(ids, labels), *self.data[0], optimizer=optimizer)

    def test_trains_as_eager(self):
        want, trained = eager(self.model, adamw, self.data)
        step = tenon.compile(self.captured(adamw(self.model)))
        for args, loss in zip(self.data, want):
            self.assertAlmostEqual(step(*args).item(), loss, delta=1e-5)
        names = dict(trained.named_parameters())
        for name, p in self.model.named_parameters():
            if "qkv.bias" not in name:  # a key's bias has no gradient but rounding
                self.assertLess((p - names[name]).abs().max().item(), 2e-5, name)

    def test_gradients(self):
        reference = copy.deepcopy(self.model)
        step = tenon.compile(self.captured())
        for args in self.data:
            step(*args)
            reference(*args).backward()
        for (name, p), q in zip(self.model.named_parameters(), reference.parameters()):
            self.assertLess((p.grad - q.grad).norm().item(), 2e-5 * (1 + q.grad.norm().item()), name)
            self.assertTrue(torch.equal(p, q), name)

    def test_scopes_and_names(self):
        plan = tenon.plan(self.captured(adamw(self.model)))
        scopes = {s["scope"]: s["count"] for s in plan.scopes}  # blocks in a row that are alike are one: h.0-1
        self.assertEqual(scopes["wte"], 1)
        self.assertEqual(sum(count for name, count in scopes.items() if name.startswith("h.")), 2, scopes)
        self.assertIn('param "h.0.qkv.weight"', plan.graph)
        self.assertIn('@"h.1.fc" backward', plan.graph)
        self.assertNotIn("lm_head.weight", plan.graph)  # it is wte.weight

    def test_exported(self):
        """What PyTorch makes of the planned graph is what the Step makes of it, recomputed or not."""
        for recompute in ("none", "full"):
            with self.subTest(recompute):
                model = copy.deepcopy(self.model)
                optimizer = adamw(model)
                captured = tenon.capture(lambda ids, labels: model(ids, labels), *self.data[0], optimizer=optimizer)
                plan = tenon.plan(captured, recompute=recompute)
                module = {}
                exec(plan.export(), module)
                tensors = {name: p.detach().clone() for name, p in captured.parameters.items()}
                for name, role, _, dtype, shape in module["INPUTS"]:
                    if role == "state":
                        tensors[name] = torch.zeros(shape, dtype=dtype)
                tensors.update(zip(captured.inputs, self.data[0]), lr=torch.tensor(1e-3), step=torch.tensor(1))
                out = module["run"](tensors)
                loss = tenon.compile(plan)(*self.data[0])
                self.assertAlmostEqual(out["loss"].item(), loss.item(), delta=1e-5)
                for name, p in model.named_parameters():
                    if "qkv.bias" not in name:
                        self.assertLess((out[f"new.{name}"] - p).abs().max().item(), 2e-5, name)


if __name__ == "__main__":
    unittest.main()
