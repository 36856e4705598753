"""The modules that a step refers to: by its closure, its defaults, the globals that it names, its object, and what
functions, containers and objects among these refer to."""
import contextlib
import functools
import inspect
import types

import torch

from ._chains import variables_in
from ._errors import NotSupported
from ._places import undecorated

DEEP = 4        # steps from the function to a module
MANY = 10_000   # members of a container that is looked through
LEAVES = (torch.Tensor, torch.optim.Optimizer, type, types.ModuleType, str, bytes, int, float)


def check(modules):
    """Raises NotSupported for a module that TorchScript runs, whose members and calls cannot be followed."""
    for name, x in modules.items():
        for path, m in x.named_modules(prefix=name):
            if isinstance(m, torch.jit.ScriptModule):
                raise NotSupported(f"{path or type(m).__name__} is made by torch.jit.script or torch.jit.trace, which runs it without "
                                   "PyTorch's modules; give the module that it was made of")


def members(x):
    """(name, object) of what x refers to."""
    if isinstance(x, functools.partial):
        return [("", x.func), *((f"partial{i}", y) for i, y in enumerate([*x.args, *x.keywords.values()]))]
    if isinstance(x, types.MethodType):
        return [("self", x.__self__), ("", x.__func__)]
    if inspect.isfunction(x):
        inner = undecorated(x)
        return of_function(inner) if inspect.isfunction(inner) else [("", inner)]
    if isinstance(x, dict):
        return [(str(k), y) for k, y in x.items()] if len(x) <= MANY else []
    if isinstance(x, (list, tuple, set, frozenset)):
        return [(f"module{i}", y) for i, y in enumerate(x)] if len(x) <= MANY else []
    if isinstance(x, LEAVES) or str(type(x).__module__).split(".")[0] in ("torch", "builtins"):
        return []
    call = getattr(type(x), "__call__", None)
    return [*getattr(x, "__dict__", {}).items(), *([("", call)] if inspect.isfunction(call) else [])]


def of_function(x):
    if x.__module__ and x.__module__.split(".")[0] == "torch":
        return []
    out = [(name, x.__globals__[name]) for name in variables_in(x.__code__) if name in x.__globals__]
    for name, cell in zip(x.__code__.co_freevars, x.__closure__ or ()):
        with contextlib.suppress(ValueError):  # empty yet
            out.append((name, cell.cell_contents))
    out += [(f"default{i}", y) for i, y in enumerate(x.__defaults__ or ())]
    return out + list((x.__kwdefaults__ or {}).items())


def find(step, args=()):
    """{name: module} of a step and its arguments, without those inside of others."""
    found, seen, level = {}, set(), [("", step), ("", tuple(args))]
    for _ in range(DEEP):
        level = [member for _, x in level for member in members(x)]
        level = [(name, x) for name, x in level if not (id(x) in seen or seen.add(id(x)))]
        for name, x in level:
            if isinstance(x, torch.nn.Module):
                name = (name or "module").replace(".", "_")
                while name in found:
                    name += "_"
                found[name] = x
        level = [(name, x) for name, x in level if not isinstance(x, torch.nn.Module)]
    inner = {id(m) for x in found.values() for m in x.modules() if m is not x}
    return {name: x for name, x in found.items() if id(x) not in inner}
