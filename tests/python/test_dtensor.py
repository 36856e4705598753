"""Modules whose parameters are DTensors, of tensor parallelism and of fully_shard: captured as the step of all ranks, and
planned as they lie on these. The process group is PyTorch's fake one: rank 0 of eight."""
import re
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import tenon

ROWS = 97  # of the embedding, which no mesh here divides


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.up, self.head = nn.Embedding(ROWS, 32), nn.Linear(32, 128), nn.Linear(128, 64)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(F.gelu(self.up(self.emb(ids)))).view(-1, 64) * self.scale, labels.view(-1))


def capture(net, **settings):
    ids = torch.zeros(8, 16, dtype=torch.int64)
    return tenon.capture(lambda ids, labels: net(ids, labels), ids, ids,
                         optimizer=torch.optim.AdamW(net.parameters()), **settings)


def tensor_parallel(net, mesh):
    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "head": RowwiseParallel()})


def put(net, name, value):
    """A module with another tensor as its parameter."""
    owner, _, key = name.rpartition(".")
    setattr(net.get_submodule(owner), key, nn.Parameter(value))
    return net


class TestDTensor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
        cls.two = init_device_mesh("cpu", (4, 2), mesh_dim_names=("fsdp", "tp"))
        cls.plain = capture(Net())

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def check(self, net, mesh, rules):
        """That a module is captured as the plain one, and that a rank has of it what PyTorch's rank 0 has."""
        before = list(net.named_parameters())
        captured = capture(net)
        self.assertEqual([(n, id(p)) for n, p in before], [(n, id(p)) for n, p in net.named_parameters()])
        self.assertEqual([id(p) for p in captured.parameters.values()], [id(p) for _, p in before])
        self.assertEqual(captured.text, self.plain.text)
        self.assertEqual(captured.mesh, mesh)
        self.assertEqual(captured.ranks.rules(captured), rules)
        plan = tenon.plan(captured, machine="none")
        self.assertEqual(plan.data["mesh"], mesh)
        local = 0
        for _, p in before:
            part = p._local_tensor if isinstance(p, DTensor) else p
            local += 3 * -(-4 * part.numel() // 64) * 64  # with two moments, each at a multiple of 64 bytes
        self.assertEqual(plan.persistent, local + 4 * 64)  # the buffer
        return plan

    def test_two_axes(self):
        net = tensor_parallel(Net(), self.two["tp"])
        fully_shard(net.up, mesh=self.two["fsdp"])
        fully_shard(net, mesh=self.two["fsdp"])
        hooks = {name: list(m._forward_pre_hooks.values()) for name, m in net.named_modules()}
        plan = self.check(net, "fsdp=4,tp=2", ["emb.weight=0:fsdp", "up.weight=0:tp,fsdp", "up.bias=0:tp,fsdp",
                                               "head.weight=0:fsdp;1:tp", "head.bias=0:fsdp"])
        self.assertEqual(hooks, {name: list(m._forward_pre_hooks.values()) for name, m in net.named_modules()})
        self.assertTrue({("all_gather", "fsdp"), ("reduce_scatter", "fsdp")} <=
                        {(c["kind"], c["group"]) for c in plan.data["collectives"]})
        other = tenon.plan(plan.captured, machine="none", mesh="dp=8")
        self.assertEqual((other.data["mesh"], other.persistent), ("dp=8", tenon.plan(self.plain).persistent))

    def test_tensor_parallel_alone(self):
        """The mesh's other axis cuts the batch, by its name; what is not a DTensor is whole."""
        self.check(tensor_parallel(Net(), self.two["tp"]), "fsdp=4,tp=2",
                   ["emb.weight=", "up.weight=0:tp", "up.bias=0:tp", "head.weight=1:tp", "head.bias="])

    def test_own_names(self):
        """The axes of fully_shard are those that Tenon calls so; others keep their names."""
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("copies", "parts", "model"))
        net = tensor_parallel(Net(), mesh["model"])
        fully_shard(net, mesh=mesh["copies", "parts"])
        plan = self.check(net, "dp=2,fsdp=2,model=2",
                          ["emb.weight=0:fsdp", "up.weight=0:model,fsdp", "up.bias=0:model,fsdp",
                           "head.weight=0:fsdp;1:model", "head.bias=0:fsdp"])
        self.assertTrue({("all_gather", "parameter", "fsdp"), ("reduce_scatter", "gradient", "fsdp")} <=
                        {(c["kind"], c["role"], c["group"]) for c in plan.data["collectives"]})

    def test_without_names(self):
        net = Net()
        fully_shard(net)
        self.check(net, "fsdp=8", [f"{name}=0:fsdp" for name, _ in net.named_parameters()])

    def test_placements(self):
        net = Net()
        for name, placements in (("up.weight", [Replicate(), Shard(1)]), ("head.weight", [Shard(1), Shard(1)]),
                                 ("head.bias", [Replicate(), Replicate()])):
            put(net, name, distribute_tensor(net.get_parameter(name).detach(), self.two, placements))
        self.check(net, "fsdp=4,tp=2", ["emb.weight=", "up.weight=1:tp", "up.bias=", "head.weight=1:fsdp,tp",
                                        "head.bias="])

    def test_without_data(self):
        """A module on the meta device; along the mesh's other axis ranks do the same."""
        with torch.device("meta"):
            net = Net()
        fully_shard(net, mesh=self.two["fsdp"])
        self.check(net, "fsdp=4", [f"{name}=0:fsdp" for name, _ in net.named_parameters()])

    def test_local_map(self):
        """A function over parts is one over the whole, where each part is its own."""
        rows = local_map(lambda x: x.softmax(-1), out_placements=[Shard(0)], in_placements=([Shard(0)],),
                         device_mesh=self.two["fsdp"])

        class Local(Net):
            def forward(self, ids, labels):
                x = rows(self.up(self.emb(ids)))
                return F.cross_entropy(self.head(x).view(-1, 64) * self.scale, labels.view(-1))

        captured = capture(tensor_parallel(Local(), self.two["tp"]))
        self.assertTrue("= _softmax(" in captured.text)
        self.assertEqual(tenon.plan(captured, machine="none").data["mesh"], "fsdp=4,tp=2")

    def test_mixed_precision(self):
        """What fully_shard casts is cast in the graph."""
        class Cast(Net):
            def forward(self, ids, labels):
                p = {name: t.bfloat16() for name, t in self.named_parameters()}
                x = F.gelu(F.linear(F.embedding(ids, p["emb.weight"]), p["up.weight"], p["up.bias"]))
                x = F.linear(x, p["head.weight"], p["head.bias"])
                return F.cross_entropy(x.view(-1, 64) * self.scale, labels.view(-1)).float()

        net = Net()
        fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32))
        got, want = (capture(x).text for x in (net, Cast()))
        self.assertEqual(*(re.sub(r'( +@"[^"]*")? +', " ", text) for text in (got, want)))  # scopes are not the same

    def test_refused(self):
        bias, weight = torch.zeros(16), torch.zeros(16, 32)
        mesh, tp = self.two, self.two["tp"]
        for said, tensor in (
                (r"up.bias is P.* over mesh axis tp", DTensor.from_local(torch.zeros(128), tp, [Partial()])),
                ("up.bias: a strided shard of 4 over mesh axis fsdp",
                 DTensor.from_local(bias, mesh, [_StridedShard(0, split_factor=4), Shard(0)])),
                (r"up.bias lies on a DeviceMesh of \[8\] without names",
                 DTensor.from_local(bias, init_device_mesh("cpu", (8,)), [Shard(0)]))):
            with self.subTest(said), self.assertRaisesRegex(tenon.NotSupported, said):
                capture(put(Net(), "up.bias", tensor))
        other = init_device_mesh("cpu", (4, 2), mesh_dim_names=("x", "y"))
        net = put(Net(), "up.bias", distribute_tensor(torch.zeros(128), mesh, [Shard(0), Replicate()]))
        net.up.weight = torch.nn.Parameter(distribute_tensor(net.up.weight.detach(), other, [Shard(0), Replicate()]))
        with self.assertRaisesRegex(tenon.NotSupported, "axes .*, others on one of .*, and ranks are in both"):
            capture(net)
        net = tensor_parallel(Net(), tp)
        captured = capture(net)
        with tempfile.TemporaryDirectory() as folder:
            for call in (lambda: tenon.compile(captured), lambda: captured.save(folder),
                         lambda: tenon.train(captured, "x", steps=1, out=folder),
                         lambda: tenon.plan(captured).compare()):
                with self.assertRaisesRegex(tenon.NotSupported, "DTensors on the ranks of mesh fsdp=4,tp=2"):
                    call()
        captured = capture(put(Net(), "up.bias", distribute_tensor(torch.zeros(128), tp, [Replicate()])))
        with self.assertRaisesRegex(tenon.NotSupported, "compile: the parameters are DTensors"):
            tenon.compile(captured)
        with self.assertRaisesRegex(tenon.NotSupported, "x is a DTensor"):
            tenon.capture(lambda x: net.up(x).sum(), distribute_tensor(weight, tp, [Replicate()]), model=net)
        replicas = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
        for model in (replicas, replicas.module):
            with self.assertRaisesRegex(tenon.NotSupported, r"^DistributedDataParallel reduces .*; capture \.module without"):
                tenon.capture(lambda x: replicas(x).sum(), torch.ones(3, 4), model=model)
        flat = FullyShardedDataParallel(nn.Linear(4, 2), device_id=torch.device("cpu"))
        with self.assertRaisesRegex(tenon.NotSupported, r"^FullyShardedDataParallel \(FSDP1\) .*; capture the module before"):
            tenon.capture(lambda x: flat(x).sum(), torch.ones(3, 4))
        before = net.up.forward
        net.up.forward = lambda x: 1 / 0
        with self.assertRaisesRegex(tenon.CaptureError, "division by zero"):
            capture(net)
        net.up.forward = before
        self.assertTrue(all(isinstance(p, DTensor) for p in net.up.parameters()))


if __name__ == "__main__":
    unittest.main()
