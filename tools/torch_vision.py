"""Small networks in the manner of torchvision's, torchaudio's and state-space models, for torch_coverage.py: MODELS[NAME]()
gives a module and its arguments."""
import torch
import torch.nn.functional as F
from torch import nn


def conv(a, b, k=3, stride=1, groups=1, act=nn.ReLU, norm=nn.BatchNorm2d):
    return nn.Sequential(nn.Conv2d(a, b, k, stride, k // 2, groups=groups, bias=False), norm(b), act())


class Residual(nn.Module):
    def __init__(self, body, short=None):
        super().__init__()
        self.body, self.short = body, short

    def forward(self, x):
        return self.body(x) + (x if self.short is None else self.short(x))


class Branches(nn.Module):
    """Branches side by side, joined along channels."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al. 2018)."""

    def __init__(self, channels):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, channels // 2, 1), nn.Conv2d(channels // 2, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.fc2(F.silu(self.fc1(F.adaptive_avg_pool2d(x, 1)))))


class Shuffle(nn.Module):
    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(conv(half, half, 1), conv(half, half, 3, groups=half), conv(half, half, 1))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        return F.channel_shuffle(torch.cat([a, self.body(b)], 1), 2)


def head(channels, classes=5):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def image(size=32, channels=3):
    return [torch.randn(2, channels, size, size)]


class Pyramid(nn.Module):
    """A feature pyramid: coarse maps resampled and added to fine ones."""

    def __init__(self, mode):
        super().__init__()
        self.mode, widths = mode, [8, 12, 16]
        self.down = nn.ModuleList(conv(a, b, stride=2) for a, b in zip([3, *widths], widths))
        self.side = nn.ModuleList(nn.Conv2d(w, 8, 1) for w in widths)

    def forward(self, x):
        maps = []
        for layer in self.down:
            x = layer(x)
            maps.append(x)
        y = self.side[-1](maps[-1])
        for side, m in zip(self.side[-2::-1], maps[-2::-1]):
            more = {} if self.mode == "nearest" else {"align_corners": False}
            y = side(m) + F.interpolate(y, size=m.shape[-2:], mode=self.mode, **more)
        return y


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1, self.enc2, self.mid = conv(3, 8), conv(8, 16), conv(16, 16, norm=lambda c: nn.GroupNorm(4, c), act=nn.SiLU)
        self.up, self.dec, self.out = nn.ConvTranspose2d(16, 8, 2, 2), conv(16, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.avg_pool2d(b, 2, ceil_mode=True))
        b = b + F.interpolate(c, scale_factor=2, mode="bicubic")
        return self.out(self.dec(torch.cat([a, self.up(b)], 1)))


class Atrous(nn.Module):
    """Dilated branches and a pooled one, resampled to the image's size."""

    def __init__(self):
        super().__init__()
        self.stem = conv(3, 8, stride=4)
        self.branches = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.pooled, self.out = nn.Conv2d(8, 8, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x):
        y = self.stem(x)
        p = F.interpolate(self.pooled(F.adaptive_avg_pool2d(y, (3, 2))), size=y.shape[-2:], mode="bilinear")
        y = self.out(torch.cat([*(b(y) for b in self.branches), p], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=True)


class Style(nn.Module):
    """Reflected borders, instance norms, shuffled pixels."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
                                 nn.ReplicationPad2d(1), nn.Conv2d(8, 16, 3, 2), nn.InstanceNorm2d(16), nn.LeakyReLU(0.2),
                                 nn.Conv2d(16, 32, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(8), nn.Conv2d(8, 3, 1), nn.Tanh())

    def forward(self, x):
        return self.net(x)


class Transformer(nn.Module):
    """A vision transformer; its positions resampled to another size."""

    def __init__(self, patch=4, width=24):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, width, patch, patch), nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, width, 6, 6))
        layer = nn.TransformerEncoderLayer(width, 4, 48, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 5)

    def forward(self, x):
        x = self.patch(x)
        x = (x + F.interpolate(self.positions, size=x.shape[-2:], mode="bicubic")).flatten(2).transpose(1, 2)
        return self.head(self.layers(torch.cat([self.token.expand(len(x), -1, -1), x], 1))[:, 0])


class Windowed(nn.Module):
    """Attention in shifted windows (Liu et al. 2021), by rolls and reshapes."""

    def __init__(self, width=16, window=4):
        super().__init__()
        self.window, self.patch = window, nn.Conv2d(3, width, 4, 4)
        self.qkv, self.proj, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def attend(self, x):
        b, h, w, c = x.shape
        k = self.window
        y = self.norm(x).view(b, h // k, k, w // k, k, c).transpose(2, 3).reshape(-1, k * k, c)
        q, key, v = self.qkv(y).view(len(y), k * k, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = self.proj(F.scaled_dot_product_attention(q, key, v).transpose(1, 2).reshape(len(y), k * k, c))
        return x + y.view(b, h // k, w // k, k, k, c).transpose(2, 3).reshape(b, h, w, c)

    def forward(self, x):
        x = self.attend(self.patch(x).permute(0, 2, 3, 1))
        x = self.attend(x.roll((-2, -2), (1, 2))).roll((2, 2), (1, 2))
        return self.head(x.mean((1, 2)))


class Speech(nn.Module):
    """Strided convolutions over sound, a grouped one for positions, a transformer's layer."""

    def __init__(self, width=16):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, width, 10, 5, bias=False), nn.Conv1d(width, width, 3, 2)
        self.norm, self.position = nn.GroupNorm(width, width), nn.Conv1d(width, width, 8, padding=4, groups=4)
        self.layer, self.head = nn.TransformerEncoderLayer(width, 4, 32, 0.0, batch_first=True), nn.Linear(width, 6)

    def forward(self, x):
        x = F.gelu(self.conv2(F.gelu(self.norm(self.conv1(x)))))
        x = (x + F.gelu(self.position(x)[..., :-1])).transpose(1, 2)
        return F.log_softmax(self.head(self.layer(x)), -1)


class Separated(nn.Module):
    """Depthwise separable convolutions over time with global norms, in the manner of Conv-TasNet."""

    def __init__(self, width=12):
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, width, 16, 8), nn.ConvTranspose1d(width, 1, 16, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv1d(width, 24, 1), nn.PReLU(), nn.GroupNorm(1, 24),
                                                  nn.Conv1d(24, 24, 3, padding=d, dilation=d, groups=24), nn.PReLU(), nn.Conv1d(24, width, 1))
                                    for d in (1, 2, 4))

    def forward(self, x):
        y = e = F.relu(self.encode(x))
        for block in self.blocks:
            y = y + block(y)
        return self.decode(e * torch.sigmoid(y))


class StateSpace(nn.Module):
    """A diagonal state space over a sequence, by a running sum in log space (S4D-like) and by steps (Mamba-like)."""

    def __init__(self, width=12, states=4, steps=False):
        super().__init__()
        self.steps, self.embed, self.head = steps, nn.Embedding(20, width), nn.Linear(width, 20)
        self.decay, self.b, self.c = (nn.Parameter(torch.randn(width, states)) for _ in range(3))
        self.conv, self.dt = nn.Conv1d(width, width, 4, padding=3, groups=width), nn.Linear(width, width)

    def forward(self, ids):
        x = self.embed(ids)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :ids.shape[1]]).transpose(1, 2)
        dt = F.softplus(self.dt(x))
        a = dt[..., None] * -F.softplus(self.decay)
        u = (dt * x)[..., None] * self.b
        if self.steps:
            state, out = torch.zeros_like(u[:, 0]), []
            for t in range(ids.shape[1]):
                state = a[:, t].exp() * state + u[:, t]
                out.append((state * self.c).sum(-1))
            return self.head(torch.stack(out, 1))
        run = a.cumsum(1)
        mix = run[:, :, None] - run[:, None]
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, :, :, None, None]
        y = torch.where(seen, mix, -torch.inf).exp() * u[:, None]
        return self.head((y.sum(2) * self.c).sum(-1))


MODELS = {
    "alexnet": lambda: (nn.Sequential(nn.Conv2d(3, 8, 7, 2, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
                                      nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(), nn.Linear(144, 5)), image()),
    "vgg": lambda: (nn.Sequential(conv(3, 8), nn.MaxPool2d(2, 2), conv(8, 16), nn.MaxPool2d(2, 2), nn.AdaptiveAvgPool2d(7), nn.Flatten(),
                                  nn.Linear(784, 5)), image()),
    "resnet_basic": lambda: (nn.Sequential(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), Residual(nn.Sequential(conv(8, 8), conv(8, 8))), head(8)), image()),
    "resnet_bottleneck": lambda: (nn.Sequential(conv(3, 16), Residual(nn.Sequential(conv(16, 4, 1), conv(4, 4), conv(4, 16, 1))), head(16)), image()),
    "resnext": lambda: (nn.Sequential(conv(3, 16), Residual(nn.Sequential(conv(16, 8, 1), conv(8, 8, groups=4), conv(8, 16, 1))), head(16)), image()),
    "densenet": lambda: (nn.Sequential(conv(3, 8), Branches(nn.Identity(), conv(8, 4)), Branches(nn.Identity(), conv(12, 4)), nn.AvgPool2d(2),
                                       head(16)), image()),
    "googlenet": lambda: (nn.Sequential(conv(3, 8), Branches(conv(8, 4, 1), conv(8, 4, 3), conv(8, 4, 5), nn.Sequential(
        nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv(8, 4, 1))), head(16)), image()),
    "squeezenet": lambda: (nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), conv(8, 4, 1),
                                         Branches(conv(4, 8, 1), conv(4, 8, 3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()), image()),
    "mobilenet_v2": lambda: (nn.Sequential(conv(3, 8, act=nn.ReLU6), Residual(nn.Sequential(conv(8, 24, 1, act=nn.ReLU6), conv(
        24, 24, 3, groups=24, act=nn.ReLU6), nn.Conv2d(24, 8, 1), nn.BatchNorm2d(8))), head(8)), image()),
    "mobilenet_v3": lambda: (nn.Sequential(conv(3, 8, act=nn.Hardswish), conv(8, 16, 5, 2, act=nn.Hardswish), Squeeze(16), head(16)), image()),
    "efficientnet": lambda: (nn.Sequential(conv(3, 8, act=nn.SiLU), conv(8, 8, 3, groups=8, act=nn.SiLU), Squeeze(8), conv(8, 8, 1), head(8)), image()),
    "shufflenet": lambda: (nn.Sequential(conv(3, 16, stride=2), Shuffle(16), Shuffle(16), head(16)), image()),
    "convnext": lambda: (nn.Sequential(nn.Conv2d(3, 16, 4, 4), Residual(nn.Sequential(nn.Conv2d(16, 16, 7, padding=3, groups=16),
                                                                                      nn.GroupNorm(1, 16), nn.Conv2d(16, 32, 1), nn.GELU(),
                                                                                      nn.Conv2d(32, 16, 1))), head(16)), image()),
    "mlp_mixer": lambda: (nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.Flatten(2), Residual(nn.Sequential(nn.Linear(16, 24), nn.GELU(),
                                                                                                      nn.Linear(24, 16))),
                                        nn.AdaptiveAvgPool1d(5), nn.Flatten(), nn.Linear(80, 5)), image()),
    "fpn_nearest": lambda: (Pyramid("nearest"), image()), "fpn_bilinear": lambda: (Pyramid("bilinear"), image()),
    "unet": lambda: (UNet(), image()), "deeplab": lambda: (Atrous(), image()), "style": lambda: (Style(), image()),
    "vit": lambda: (Transformer(), image()), "swin": lambda: (Windowed(), image()),
    "video": lambda: (nn.Sequential(nn.Conv3d(3, 8, 3, (1, 2, 2), 1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1),
                                    nn.Flatten(), nn.Linear(8, 5)), [torch.randn(2, 3, 4, 16, 16)]),
    "wav2vec": lambda: (Speech(), [torch.randn(2, 1, 400)]), "tasnet": lambda: (Separated(), [torch.randn(2, 1, 400)]),
    "s4d": lambda: (StateSpace(), [torch.randint(0, 20, (2, 10))]), "mamba_steps": lambda: (StateSpace(steps=True), [torch.randint(0, 20, (2, 10))]),
}
