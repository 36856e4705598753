"""What a graph has fixed beside the values that a step's lines name: settings of PyTorch, code that is replaced, contents of
arrays, other containers than Python's own. A Step refuses where they are others than at the capture, with the name."""
import unittest

import torch
from torch import nn

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

    def test_default_dtype(self):
        made, _ = self.told(lambda x: (self.net(x) * torch.ones(2)).sum(), self.x)
        torch.set_default_dtype(torch.float64)
        try:
            with self.assertRaisesRegex(tenon.NotSupported, "^torch.get_default_dtype.. is torch.float64, and was torch.float32"):
                made(self.x)
        finally:
            torch.set_default_dtype(torch.float32)
        made(self.x)


if __name__ == "__main__":
    unittest.main()
