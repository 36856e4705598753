"""The tensors that a step takes, its arguments, parameters and buffers: their names, and which no graph can have."""
import inspect
import re

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from . import _ranks
from ._errors import NotSupported
from ._fx import type_of


def is_data(x):
    return isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter)


def check(name, x):
    """Raises NotSupported for an argument that no graph can have, TypeError for an optimizer."""
    if type(x).__module__ == "numpy" and getattr(x, "shape", ()):
        raise NotSupported(f"{name}: expected a tensor, found a numpy.{type(x).__name__}; torch.from_numpy makes one of it")
    if isinstance(x, torch.optim.Optimizer):
        raise TypeError(f"{name} is an optimizer: give it by its name, tenon.capture(step, ..., optimizer=optimizer)")
    if not isinstance(x, torch.Tensor):
        of_torch = str(type(x).__module__).split(".")[0] == "torch" or isinstance(x, torch.nn.Module)
        members = {} if of_torch else getattr(x, "__dict__", {})
        inside = next((k for k, y in members.items() if any(map(is_data, pytree.tree_leaves(y)))), None)
        if inside is not None:
            kind = type(x).__name__
            raise NotSupported(f"{name} is a {kind}, whose tensors ({inside}) PyTorch does not find, so that each call would have "
                               f"those of the capture: give them as arguments or in a dict, or let PyTorch know the class: "
                               f"torch.export.register_dataclass({kind}), or torch.utils._pytree.register_pytree_node")
        return
    if _ranks.is_dtensor(x):
        raise NotSupported(f"{name} is a DTensor: give the batch of all ranks as a plain tensor")
    try:
        type_of(x)
    except NotSupported as error:
        raise NotSupported(f"{name}: {error}") from None
    if x.requires_grad:
        raise NotSupported(f"{name} requires a gradient: a Step gives gradients of parameters only; detach() it")


def check_plain(path, x):
    """Raises NotSupported for a parameter or buffer that no graph can have."""
    if torch.nn.parameter.is_lazy(x):
        raise NotSupported(f"{path} has no shape yet: run the module once before the capture")
    try:
        type_of(x)
    except NotSupported as error:
        raise NotSupported(f"{path}: {error}") from None
    if type(x) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor):
        raise NotSupported(f"{path} is a {type(x).__name__}: parameters must be plain tensors or DTensors")


def names_of(step, args, kwargs):
    """A name for each leaf of a step's arguments, by the parameters of its signature; unique, of letters and digits."""
    function = step.forward if isinstance(step, torch.nn.Module) else step
    try:
        signature = inspect.signature(function)
        signature.bind(*args, **kwargs)
        positional = [p.name for p in signature.parameters.values()
                      if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        positional = []
    names = []
    for at, x in [*enumerate(args), *kwargs.items()]:
        said = at if isinstance(at, str) else positional[at] if at < len(positional) else ""
        for _ in pytree.tree_leaves(x):
            name = re.sub(r"\W", "_", said if said and isinstance(x, torch.Tensor) else f"arg{len(names)}",
                          flags=re.ASCII)
            while name in names:
                name += f"_{len(names)}"
            names.append(name)
    return names
