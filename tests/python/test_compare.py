"""A plan beside PyTorch's own count of the same step."""
import copy
import unittest

import torch
from torch.utils.checkpoint import checkpoint

import tenon
from models import GPT2, tokens


def tracked(model, optimizer, args):
    """Bytes at the peak of a step that PyTorch computes, by its tracker."""
    from torch.distributed._tools.mem_tracker import MemTracker
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *args)
    with tracker:
        loss = model(*args)
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


class Checkpointed(GPT2):
    """Each block in a checkpoint."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        for block in self.h:
            block.forward = lambda x, whole=block.forward: checkpoint(whole, x, use_reentrant=False)


class TestCompare(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.sizes = {"vocab": 256, "length": 64, "layers": 3}
        (self.args,) = tokens(1, batch=4, length=64, vocab=256)

    def planned(self, model, make=torch.optim.AdamW):
        optimizer = make(model.parameters()) if make else None
        return tenon.plan(tenon.capture(lambda *args: model(*args), *self.args, optimizer=optimizer))

    def test_is_the_count_of_a_run(self):
        """The rows count on tensors without data what the tracker counts while PyTorch computes."""
        momentum = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
        for make in (torch.optim.AdamW, momentum):
            model = GPT2(**self.sizes)
            before = copy.deepcopy(model.state_dict())
            rows = self.planned(model, make).compare(budgets=[]).rows
            self.assertEqual([row["name"] for row in rows], ["this plan", "PyTorch, eager"])
            for name, x in model.state_dict().items():
                self.assertTrue(torch.equal(x, before[name]), name)
            self.assertTrue(all(p.grad is None for p in model.parameters()))
            twin = copy.deepcopy(model)
            optimizer = make(twin.parameters())
            tracked(twin, optimizer, self.args)  # the first step makes the state
            self.assertEqual(rows[1]["peak"], tracked(twin, optimizer, self.args))
            self.assertLessEqual(rows[0]["peak"], rows[1]["peak"])

    def test_budgets(self):
        model = GPT2(**self.sizes, dropout=0.1)
        comparison = self.planned(model).compare(budgets=(1, 0.4))
        eager, all_saved, less = (row["peak"] for row in comparison.rows[1:])
        self.assertLessEqual(all_saved, eager)
        self.assertLess(less, 0.8 * all_saved)
        self.assertRegex(str(comparison), f"PyTorch, activation_memory_budget 0.4 +{less:,} ")
        self.assertIn(f"<td>{less:,}</td>", comparison._repr_html_())
        self.planned(model).compare(budgets=())  # hooks and modes are gone: the model is captured as before
        for wrong in (-0.1, 1.5, True, "half"):
            with self.assertRaisesRegex(ValueError, "budgets: expected numbers from 0 to 1, found"):
                self.planned(model).compare(budgets=(wrong,))

    def test_checkpoints_are_pytorchs(self):
        whole = self.planned(GPT2(**self.sizes), None).compare(budgets=()).rows[1]["peak"]
        parts = self.planned(Checkpointed(**self.sizes), None).compare(budgets=()).rows[1]["peak"]
        self.assertLess(parts, 0.8 * whole)

    def test_frozen_parameters(self):
        model = GPT2(**self.sizes)
        whole = self.planned(model).compare(budgets=()).rows[1]["peak"]
        model.wte.weight.requires_grad_(False)
        plan = tenon.plan(tenon.capture(lambda *args: model(*args), *self.args,
                                        optimizer=torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)))
        eager, saved = (row["peak"] for row in plan.compare(budgets=(1,)).rows[1:])
        self.assertLess(eager, whole)
        self.assertLess(saved, whole)

    def test_two_plans_and_pytorch(self):
        plan = self.planned(GPT2(**self.sizes))
        other = tenon.plan(plan.captured, recompute="full")
        comparison = plan.compare(other, budgets=())
        self.assertEqual([row["peak"] for row in comparison.rows[:2]], [plan.peak, other.peak])
        self.assertIn("computed again", comparison.text)
        self.assertEqual(len(comparison.rows), 3)
        with self.assertRaisesRegex(TypeError, "compare: expected a Plan, found str"):
            plan.compare("pytorch")

    def test_after_compile(self):
        """Where the parameters lie in a Step's arena the count is the same."""
        model = GPT2(**self.sizes)
        plan = self.planned(model)
        before = plan.compare(budgets=()).rows[1]["peak"]
        step = tenon.compile(plan)
        step(*self.args)
        self.assertEqual(plan.compare(budgets=()).rows[1]["peak"], before)
        step(*self.args)


if __name__ == "__main__":
    unittest.main()
