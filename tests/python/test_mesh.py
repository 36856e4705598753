"""plan(mesh=...): one rank of several, of a captured step."""
import unittest

import torch
import torch.nn.functional as F
from torch import nn

import tenon


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.up, self.head = nn.Embedding(64, 32), nn.Linear(32, 128), nn.Linear(128, 64)

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(F.gelu(self.up(self.emb(ids)))).view(-1, 64), labels.view(-1))


class TestMesh(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        net, ids = Net(), torch.zeros(8, 16, dtype=torch.int64)
        cls.captured = tenon.capture(lambda x, y: net(x, y), ids, ids, optimizer=torch.optim.AdamW(net.parameters()))
        cls.one = tenon.plan(cls.captured, machine="none")

    def test_forms_of_a_mesh(self):
        plans = [tenon.plan(self.captured, machine="none", mesh=mesh) for mesh in ("fsdp=4", {"fsdp": 4})]
        for p in plans:
            self.assertEqual((p.data["mesh"], p.data["ranks"]), ("fsdp=4", 4))
            self.assertLess(p.persistent, self.one.persistent / 3)
            self.assertTrue(p.data["collectives"])
        self.assertEqual(plans[0].data["plan_hash"], plans[1].data["plan_hash"])
        device_mesh = type("Mesh", (), {"mesh_dim_names": ("fsdp",), "mesh": torch.zeros(4)})()
        self.assertEqual(tenon.plan(self.captured, machine="none", mesh=device_mesh).data["mesh"], "fsdp=4")

    def test_shard(self):
        rule = tenon.plan(self.captured, machine="none", mesh="tp=2", shard="up.*=0:tp")
        half = sum(p.numel() for p in self.captured.parameters.values()) // 2  # the embedding and the head are cut too
        self.assertEqual(self.one.persistent - rule.persistent, 3 * 4 * half)  # f32, with two moments

    def test_refused(self):
        for error, settings in ((TypeError, {"mesh": 3}), (ValueError, {"shard": "auto"}), (ValueError, {"mesh": "fsdp"}),
                                (ValueError, {"mesh": "fsdp=2", "shard": "nothing=0:fsdp"})):
            with self.assertRaises(error, msg=settings):
                tenon.plan(self.captured, **settings)
        with self.assertRaisesRegex(tenon.NotSupported, "one of the ranks of mesh fsdp=2"):
            tenon.compile(tenon.plan(self.captured, mesh="fsdp=2"))
