"""Graphs that PyTorch traces on several ranks, for tests/programs/test_fx_ranks.c.

torch_ranks.py DIR    writes for each case and rank R: DIR/CASE/graph.R.txt, inputs.R.safetensors,
                      outputs.R.safetensors and mesh.R.txt

mesh.R.txt has the mesh, then NAME=AXIS for each of the rank's process groups. A case is a function
of the rank's own tensors. It is traced by make_fx and run over gloo. Needs torch alone."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.fsdp  # noqa: F401, its ops
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx

from torch_cases import write_tensors


def local(x, mesh, *placement):
    return DTensor.from_local(x, mesh, placement, run_check=False)


def gathered(w, mesh):
    """A parameter that is cut over a data axis, as FSDP reads it: its gradient is averaged."""
    whole = local(w, mesh, Shard(0)).redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Partial("avg")])


def leaves(*w):
    return [x.detach().requires_grad_() for x in w]


class Fsdp:
    """A step of an MLP whose parameters are cut along axis 0."""
    mesh = {"fsdp": 2}
    inputs = {"x": (4, 6), "y": (4, 4), "w1": (4, 6), "b1": (4,), "w2": (2, 8)}

    def step(self, x, y, w1, b1, w2):
        own = leaves(w1, b1, w2)
        w1, b1, w2 = [gathered(w, self.over) for w in own]
        loss = F.mse_loss(F.linear(F.relu(F.linear(x, w1, b1)), w2), y)
        return (loss, *torch.autograd.grad(loss, own))


class Tp:
    """The same cut along features, activations between layers along rows (sequence-parallel)."""
    mesh = {"tp": 2}
    inputs = {"x": (4, 6), "y": (4, 4), "w1": (4, 6), "b1": (4,), "w2": (4, 4), "b2": (4,)}
    same = ["b2"]

    def step(self, x, y, w1, b1, w2, b2):
        own = leaves(w1, b1, w2, b2)
        m = self.over
        x = local(x, m, Shard(0)).redistribute(placements=[Replicate()])
        h = F.relu(F.linear(x, local(own[0], m, Shard(0)), local(own[1], m, Shard(0))))
        h = F.linear(h, local(own[2], m, Shard(1))).redistribute(placements=[Shard(0)])
        h = h + local(own[3], m, Replicate())
        loss = ((h - local(y, m, Shard(0))) ** 2).sum() / 32
        loss = loss.redistribute(placements=[Replicate()]).to_local()
        return (loss, *torch.autograd.grad(loss, own))


class FsdpTp:
    """Both, on four ranks; the gradients' norm is summed over all of them."""
    mesh = {"fsdp": 2, "tp": 2}
    inputs = {"x": (4, 6), "y": (4, 4), "w1": (4, 6), "b1": (4,), "w2": (2, 8)}
    by_data = ["x", "y"]

    def step(self, x, y, w1, b1, w2):
        own = leaves(w1, b1, w2)
        tp = self.over["tp"]
        w1, b1, w2 = [gathered(w, self.over["fsdp"]) for w in own]
        h = F.linear(local(x, tp, Replicate()), local(w1, tp, Shard(0)), local(b1, tp, Shard(0)))
        h = F.linear(F.relu(h), local(w2, tp, Shard(1)))
        loss = F.mse_loss(h.redistribute(placements=[Replicate()]).to_local(), y)
        grad = torch.autograd.grad(loss, own)
        norm = functional.all_reduce(sum((g * g).sum() for g in grad), "sum", self.all)
        return (loss, norm, *grad)


class Moves:
    """From each placement to each other, along axes 0 and 1."""
    mesh = {"tp": 2}
    inputs = {"x": (4, 3), "w": (4, 6)}

    def step(self, x, w):
        m = self.over

        def moved(x, before, after):
            return local(x, m, before).redistribute(placements=[after]).to_local()
        return (moved(x, Shard(1), Replicate()), moved(x, Shard(1), Shard(0)),
                moved(x, Shard(0), Shard(1)), moved(w, Replicate(), Shard(1)),
                moved(w, Partial(), Shard(1)), moved(w, Partial(), Shard(0)),
                moved(w, Partial(), Replicate()), moved(w, Partial("max"), Replicate()),
                moved(w, Partial("avg"), Replicate()))


class Functional:
    """Functional collectives called by name, with lists and unequal parts."""
    mesh = {"tp": 2}
    inputs = {"x": (4, 3), "w": (4, 6)}

    def step(self, x, w):
        g = self.over.get_group()
        parts = [3, 1] if dist.get_rank() == 0 else [1, 3]
        return (functional.all_gather_tensor(x, 0, g),
                functional.all_to_all_single(x, None, None, g),
                *functional.all_reduce_coalesced([x, w], "sum", g),
                *functional.all_gather_into_tensor_coalesced([x, w], g),
                functional.reduce_scatter_tensor(w, "avg", 0, g),
                functional.all_reduce(x, "min", g), functional.all_reduce(w, "product", g),
                functional.all_to_all_single(w, parts, parts, g))


class Copies:
    """The calls of FSDP2 (fully_shard) around its collectives."""
    mesh = {"fsdp": 2}
    inputs = {"w": (4, 6), "b": (4,), "g": (4, 7), "x": (4, 6)}

    def step(self, w, b, g, x):
        ops, group = torch.ops._c10d_functional, self.over.get_group().group_name
        size, n = [w.numel(), b.numel()], w.numel() + b.numel()
        out = torch.empty(2 * n)
        send, out = torch.ops.fsdp.all_gather_copy_in([w.flatten(), b], out, size, n,
                                                      dist.get_rank())
        out = ops.wait_tensor(ops.all_gather_into_tensor_out(send, 2, group, out=out))
        ws, bs = torch.empty(2 * size[0]), torch.empty(2 * size[1])
        torch.ops.fsdp.split_with_sizes_copy(out.view(2, -1), size, dim=1,
                                             out=[ws.view(2, -1), bs.view(2, -1)])
        grad = [g.t() @ x, g.sum(0)]  # 7 rows: one is filled up
        send = torch.empty(8 * 6 + 8)
        torch.ops.fsdp.chunk_cat(grad, dim=0, num_chunks=2, out=send.view(2, -1))
        received = ops.wait_tensor(ops.reduce_scatter_tensor(send, "avg", 2, group))
        return F.linear(x, ws.view(8, 6), bs), send, received


CASES = {"fsdp": Fsdp, "tp": Tp, "fsdp_tp": FsdpTp, "moves": Moves, "functional": Functional,
         "fsdp2_copies": Copies}


def draw(case, rank):
    """What several ranks have is drawn alike."""
    tensors, k = [], 0
    for name, size in case.inputs.items():
        seed = 0 if name in getattr(case, "same", []) else rank + 1
        if name in getattr(case, "by_data", []):
            seed = rank // 2 + 1
        k += 1
        tensors.append(torch.randn(size, generator=torch.Generator().manual_seed(100 * k + seed)))
    return tensors


def groups(mesh):
    names = [(mesh.get_group(i).group_name, axis) for i, axis in enumerate(mesh.mesh_dim_names)]
    return names + ([(dist.group.WORLD.group_name, ",".join(mesh.mesh_dim_names))]
                    if mesh.ndim > 1 else [])


def write(folder, case, rank, mesh):
    case.over, case.all = mesh, dist.group.WORLD
    x = draw(case, rank)
    traced = make_fx(lambda *x: case.step(*x))(*x)
    text = traced.print_readable(print_output=False)
    names = [n.name for n in traced.graph.nodes if n.op == "placeholder"]
    with open(f"{folder}/graph.{rank}.txt", "w") as f:
        f.write(text)
    write_tensors(f"{folder}/inputs.{rank}.safetensors", dict(zip(names, x)))
    write_tensors(f"{folder}/outputs.{rank}.safetensors",
                  {f"out{i}": t for i, t in enumerate(traced(*x))})
    own = " ".join(f"{name}={axis}" for name, axis in groups(mesh) if f"'{name}')" in text or
                   f"'{name}'," in text)
    with open(f"{folder}/mesh.{rank}.txt", "w") as f:
        f.write(",".join(f"{axis}={n}" for axis, n in case.mesh.items()) + f" {own}\n")


def run(rank, name, out, port):
    case = CASES[name]()
    sizes = tuple(case.mesh.values())
    n = torch.Size(sizes).numel()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=n)
    folder = f"{out}/{name}"
    os.makedirs(folder, exist_ok=True)
    write(folder, case, rank, init_device_mesh("cpu", sizes, mesh_dim_names=tuple(case.mesh)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for i, name in enumerate(CASES):
        n = torch.Size(tuple(CASES[name].mesh.values())).numel()
        torch.multiprocessing.spawn(run, (name, sys.argv[1], 29600 + i), nprocs=n)
