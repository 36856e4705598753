"""Models of transformers with random weights: captured, planned and trained as eager AdamW does. A few of them, all 41
with TN_LONG=1."""
import copy
import os
import sys
import unittest

import torch

try:
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"transformers cannot be imported: {error}")

import tenon
from tenon import _backend

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "..", "tools"))
from torch_models import CONFIGS  # noqa: E402

transformers.logging.set_verbosity_error()
FEW = ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration"]
NAMES = list(CONFIGS) if os.environ.get("TN_LONG") else FEW


def model_of(name, dropout):
    torch.manual_seed(1)
    settings = {k: dropout if "drop" in k else v for k, v in CONFIGS[name].items()}
    kind = getattr(transformers, name)
    return kind(kind.config_class(use_cache=False, **settings)).train()


def batches(count):
    return [(torch.randint(3, 40, (2, 8)), torch.randint(3, 40, (2, 8))) for _ in range(count)]


def loss_of(model):
    return lambda ids, labels: model(input_ids=ids, labels=labels).loss


class TestTransformers(unittest.TestCase):
    def one(self, name):
        model, data = model_of(name, 0.1).eval(), batches(3)
        reference = copy.deepcopy(model)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference)]
        plan = tenon.plan(tenon.capture(loss_of(model), *data[0], optimizer=optimizers[0]))
        step = tenon.compile(plan)
        for args in data:
            loss = loss_of(reference)(*args)
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            self.assertAlmostEqual(step(*args).item(), loss.item(), delta=1e-5)
        tenon._library.lib.tn_program_fill(step.program.pointer, 0x5A)
        step(*data[0])
        high = tenon._library.lib.tn_program_high(step.program.pointer, 0x5A)
        self.assertTrue(plan.peak - 4096 < high <= plan.peak, (high, plan.peak))

    def test_as_eager(self):
        for name in NAMES:
            with self.subTest(name):
                self.one(name)

    def test_dropout(self):
        for name in NAMES:
            with self.subTest(name):
                model, data = model_of(name, 0.1), batches(1)[0]
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
                step = tenon.compile(tenon.capture(loss_of(model), *data, optimizer=optimizer))
                state, runs = copy.deepcopy(step.state_dict()), []
                for _ in range(2):
                    step.load_state_dict(state)
                    torch.manual_seed(2)
                    runs.append([step(*data).item() for _ in range(8)])
                self.assertLess(runs[0][-1], runs[0][0])
                self.assertEqual(runs[0], runs[1])

    def gradients(self, model, data):
        """That a model's gradients are those that eager PyTorch gives it."""
        got = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        loss_of(model)(*data).backward()
        for n, p in model.named_parameters():
            if p.grad is None:
                self.assertNotIn(n, got)
            else:
                self.assertLess((got[n] - p.grad).norm().item(), 2e-5 * (1 + p.grad.norm().item()), n)

    def test_gradients(self):
        for name in NAMES:
            with self.subTest(name):
                model, data = model_of(name, 0.0), batches(1)[0]
                tenon.compile(tenon.capture(loss_of(model), *data))(*data)
                self.gradients(model, data)

    def test_backend(self):
        for name in NAMES:
            with self.subTest(name):
                torch._dynamo.reset()
                _backend.said.clear()
                model, data = model_of(name, 0.0), batches(1)[0]
                loss = torch.compile(model, backend="tenon")(input_ids=data[0], labels=data[1]).loss
                loss.backward()
                self.assertAlmostEqual(loss.item(), loss_of(model)(*data).item(), delta=2e-5)
                self.gradients(model, data)
                self.assertEqual(_backend.said, set())


if __name__ == "__main__":
    unittest.main()
