"""Modules whose parameters are DTensors, by tensor parallelism or FSDP2's fully_shard, as the step of all ranks together:
each parameter whole, without data, no collective, and how parameters lie on the ranks as the rules of a plan."""
import contextlib
import math
import re
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ._errors import NotSupported

DATA = ("dp", "fsdp")  # axes that cut the batch


def distributed():
    """torch.distributed.tensor where something has imported it: without it nothing is a DTensor."""
    return sys.modules.get("torch.distributed.tensor")


def groups_of(module):
    """FSDP2's groups of parameters of a module, none where fully_shard has not had it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(module, getattr(fsdp, "FSDPModule", ())):
        return []
    state = module._get_fsdp_state()
    return getattr(state, "_fsdp_param_groups", None) or [g for g in [state._fsdp_param_group] if g is not None]


def root_of(mesh):
    """The mesh that one is cut out of, or itself."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources  # as in PyTorch 2.9
    return _mesh_resources.get_root_mesh(mesh)


class Axes:
    """The axes of the meshes on which parameters lie, {name: ranks}, in the order of the mesh that they are part of. The
    axis on which fully_shard cuts is called fsdp whatever its name, and that on which it has copies dp: by these names
    Tenon gathers parameters before they are read, and cuts the batch."""

    def __init__(self, groups):
        self.size, self.meshes = {}, []  # of the latter the names and ranks of each
        self.renamed, self.unnamed = {}, {}  # by the name; names of the axes of a mesh that has none, by its shape
        for info in (group.mesh_info for group in groups):
            names = {getattr(info, "shard_mesh_dim", None): "fsdp", getattr(info, "replicate_mesh_dim", None): "dp"}
            if info.mesh.mesh_dim_names:
                self.renamed.update({info.mesh.mesh_dim_names[i]: name for i, name in names.items() if i is not None})
            else:
                self.unnamed[tuple(info.mesh.mesh.shape)] = [names[i] for i in range(info.mesh.mesh.dim())]

    def names(self, mesh, what):
        """What a mesh's axes are called."""
        if not mesh.mesh_dim_names:
            if tuple(mesh.mesh.shape) in self.unnamed:
                return self.unnamed[tuple(mesh.mesh.shape)]
            raise NotSupported(f"{what} lies on a DeviceMesh of {list(mesh.mesh.shape)} without names; give it "
                               "mesh_dim_names")
        names = [self.renamed.get(name, name) for name in mesh.mesh_dim_names]
        if len(set(names)) < len(names):
            raise NotSupported(f"{what} lies on a DeviceMesh of axes {', '.join(mesh.mesh_dim_names)}, two of which would be "
                               "fsdp or dp, as fully_shard's are called")
        return names

    def add(self, mesh, what):
        """The axes of a mesh, and of the one that it is cut out of."""
        names = self.names(mesh, what)
        root = root_of(mesh)
        if root.mesh_dim_names and set(names) <= set(self.names(root, what)):
            mesh, names = root, self.names(root, what)
        ranks = set(mesh.mesh.flatten().tolist())
        for others, held in self.meshes:
            if others != names and held & ranks:
                raise NotSupported(f"{what} lies on a DeviceMesh of axes {', '.join(names)}, others on one of "
                                   f"{', '.join(others)}, and ranks are in both; make one mesh of all axes, and cut it")
        self.meshes.append((names, ranks))
        for name, n in zip(names, mesh.mesh.shape):
            if self.size.setdefault(name, n) != n:
                raise NotSupported(f"{what} lies on {n} ranks of mesh axis {name}, others on {self.size[name]}")


def cut_of(path, tensor, axes):
    """How a DTensor lies on the ranks, as `--shard` has it: "0:tp,fsdp;1:dp", "" where each rank has it all."""
    tensors = distributed()
    names, sizes = axes.names(tensor.device_mesh, path), tensor.device_mesh.mesh.shape
    lists = {}  # of each axis of the tensor those of the mesh that cut it, the outermost first
    for i in reversed(range(len(names))):
        placement = tensor.placements[i]
        if isinstance(placement, tensors.Replicate):
            continue
        strided = getattr(placement, "split_factor", None)
        if type(placement) is not tensors.Shard and strided is None:
            raise NotSupported(f"{path} is {placement} over mesh axis {names[i]}: parameters must be whole (Replicate) or cut "
                               "(Shard)")
        order = lists.setdefault(placement.dim % tensor.dim(), [])
        if strided is None:
            order.insert(0, i)
        elif strided == math.prod(sizes[j] for j in order):
            order.append(i)
        else:
            raise NotSupported(f"{path}: a strided shard of {strided} over mesh axis {names[i]}, which is not that of "
                               "the axes that cut it before")
    return ";".join(f"{dim}:{','.join(names[i] for i in order)}" for dim, order in sorted(lists.items()))


class Ranks:
    """How the parameters of a holder's modules lie on ranks.

    axes  {name of a mesh axis: ranks}
    cuts  {name of a parameter or buffer: what `--shard` says of it}"""

    def __init__(self, holder):
        self.modules = [m for m in holder.modules() if m is not holder]
        axes, self.cuts = Axes([group for module in self.modules for group in groups_of(module)]), {}
        for module in self.modules:
            if groups_of(module):
                module.reshard()
        tensors = {holder.path(name): t for name, t in [*holder.named_parameters(), *holder.named_buffers()]}
        for path, t in tensors.items():
            if is_dtensor(t):
                axes.add(t.device_mesh, path)
                self.cuts[path] = cut_of(path, t, axes)
            elif isinstance(t, torch.nn.Parameter):
                self.cuts[path] = ""
        used = set(DATA).union(*(re.split("[:,;]", cut) for cut in self.cuts.values()))
        self.axes = {name: n for name, n in axes.size.items() if name in used}  # along others ranks do the same
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.original = {}  # by the id of what stands for them

    @property
    def mesh(self):
        return ",".join(f"{name}={n}" for name, n in self.axes.items()) or None

    def refuse(self, what):
        raise NotSupported(f"{what}: the parameters are DTensors"
                           f"{f' on the ranks of mesh {self.mesh}' if self.mesh else ''}; such a step is planned only")

    def rules(self, captured):
        """What `--shard` says of a captured step's parameters and buffers."""
        ports = captured.ports
        return [f"{ports.role(name) if name in captured.parameters else ports.tensor(name)}={cut}"
                for name, cut in self.cuts.items() if ports.tensor(name) is not None and
                (cut or name in captured.parameters)]

    # ---- while the step is recorded ----

    @contextlib.contextmanager
    def whole(self):
        """While it is on, modules have plain tensors without data in the place of DTensors and of what is not on the CPU,
        and no hooks but those of their user; what fully_shard casts is cast."""
        with contextlib.ExitStack() as stack:
            plain = {}
            for module in self.modules:
                for members in (module._parameters, module._buffers):
                    stack.callback(members.update, dict(members))
                    members.update({key: self.plain(t, plain) for key, t in members.items() if t is not None and
                                    (is_dtensor(t) or t.device.type != "cpu")})
                for hooks in (module._forward_pre_hooks, module._forward_hooks):
                    stack.callback(restore, hooks, dict(hooks))
                    for key, hook in list(hooks.items()):
                        if (getattr(hook, "__module__", None) or "").startswith("torch.distributed."):
                            del hooks[key]
            for module in self.modules:
                if groups_of(module):
                    Casts(module).register(stack)
            yield

    def plain(self, t, known):
        if id(t) not in known:
            with self.mode:
                whole = torch.empty(t.shape, dtype=t.dtype, device="cpu")
            known[id(t)] = torch.nn.Parameter(whole, t.requires_grad) if isinstance(t, torch.nn.Parameter) else whole
            self.original[id(known[id(t)])] = t
        return known[id(t)]

    def give_back(self, captured):
        """The modules' own tensors in the place of what stood for them."""
        for kind in (captured.parameters, captured.frozen, captured.buffers):
            kind.update({name: self.original.get(id(t), t) for name, t in kind.items()})


def restore(hooks, before):
    hooks.clear()
    hooks.update(before)


def is_dtensor(t):
    tensors = distributed()
    return tensors is not None and isinstance(t, tensors.DTensor)


class Casts:
    """What fully_shard casts by its MixedPrecisionPolicy: a module's parameters and floating-point arguments while it
    runs, and its results."""

    def __init__(self, module):
        self.module, self.policy = module, module._get_fsdp_state()._mp_policy
        self.places = []  # (module, name, dtype) of parameters
        for group in groups_of(module):
            for p in group.fsdp_params:
                dtype, info = getattr(p, "mp_policy", self.policy).param_dtype, p._module_info
                for owner, name in [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)]:
                    if dtype is not None:
                        self.places.append((owner, name, dtype))
        self.before = []

    def register(self, stack):
        handles = [self.module.register_forward_pre_hook(self.begin, prepend=True, with_kwargs=True),
                   self.module.register_forward_hook(self.end, always_call=True)]
        for handle in handles:
            stack.callback(handle.remove)

    def begin(self, _, args, kwargs):
        self.before.append([(owner, name, owner._parameters[name]) for owner, name, _ in self.places])
        for owner, name, dtype in self.places:
            if owner._parameters[name].dtype.is_floating_point:
                owner._parameters[name] = owner._parameters[name].to(dtype)
        if self.policy.cast_forward_inputs and self.policy.param_dtype:
            return cast((args, kwargs), self.policy.param_dtype)
        return args, kwargs

    def end(self, _, __, result):
        for owner, name, p in self.before.pop():
            owner._parameters[name] = p
        return cast(result, self.policy.output_dtype) if self.policy.output_dtype else result


def cast(x, dtype):
    """x with its floating-point tensors in a dtype."""
    return pytree.tree_map(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, x)


def check_replicas(module):
    """Raises NotSupported for a module whose gradients DistributedDataParallel would reduce, or whose parameters FSDP1 has
    made flat parts of."""
    flat = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    if isinstance(module, flat):
        raise NotSupported("FullyShardedDataParallel (FSDP1) keeps parameters as parts of flat ones, which have no names of their own; "
                           "capture the module before it is wrapped, or use fully_shard (FSDP2), whose parameters are planned as "
                           "they lie")
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel and isinstance(module, parallel.DistributedDataParallel) and module.process_group.size() > 1:
        raise NotSupported("DistributedDataParallel reduces gradients in hooks that a Step does not run; capture .module without "
                           "an optimizer, and all_reduce p.grad after the Step")


def find(holder):
    """The Ranks of a holder's modules; None where all of their tensors are plain."""
    for module in holder.modules():
        check_replicas(module)
    tensors = [*holder.parameters(), *holder.buffers()]
    if any(map(is_dtensor, tensors)) or any(groups_of(m) for m in holder.modules() if m is not holder):
        return Ranks(holder)
    return None
