"""Networks of convolutions, pools and batch norms: steps and weights as in eager PyTorch."""
import copy
import unittest

import torch
import torch.nn.functional as F
from torch import nn

import tenon


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, groups=4)
        self.short = nn.Conv2d(channels, out, 1, stride)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.short(x))


def images():
    return nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.MaxPool2d(3, 2, 1), Residual(8, 8, 1), Residual(8, 16, 2),
                         nn.ConvTranspose2d(16, 8, 3, 2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, 10))


def gradient(net, x):
    net.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in net.parameters())]


class TestImages(unittest.TestCase):
    def test_padding_modes(self):
        """What is around an image is its own: loss and gradients as in eager PyTorch."""
        torch.manual_seed(0)
        for mode in ("circular", "reflect", "replicate"):
            for kind, sizes in ((nn.Conv1d, (7,)), (nn.Conv2d, (6, 5)), (nn.Conv3d, (4, 5, 4))):
                with self.subTest(mode, kind=kind.__name__):
                    first = kind(2, 3, 3, padding=1, padding_mode=mode)
                    net = nn.Sequential(first, nn.Tanh(), kind(3, 2, 5, padding=2, padding_mode=mode))
                    x = torch.randn(2, 2, *sizes)
                    want = gradient(net, x)
                    net.zero_grad(set_to_none=True)
                    loss = tenon.compile(tenon.capture(lambda x: net(x).square().mean(), x, model=net))(x)
                    for got, wanted in zip([loss, *(p.grad for p in net.parameters())], want):
                        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)

    def test_steps(self):
        torch.manual_seed(0)
        net = images()
        eager = copy.deepcopy(net)
        draw = lambda: (torch.randn(4, 3, 24, 24), torch.randint(0, 10, (4,)))
        optimizers = [torch.optim.SGD(n.parameters(), lr=0.05, momentum=0.9) for n in (net, eager)]
        step = tenon.compile(tenon.capture(lambda x, y: F.cross_entropy(net(x), y), *draw(), model=net,
                                           optimizer=optimizers[0]))
        for _ in range(3):
            x, y = draw()
            loss = step(x, y)
            optimizers[1].zero_grad()
            want = F.cross_entropy(eager(x), y)
            want.backward()
            optimizers[1].step()
            torch.testing.assert_close(loss, want.detach(), rtol=2e-5, atol=0)
        for (name, got), want in zip(net.state_dict().items(), eager.state_dict().values()):
            with self.subTest(name):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
