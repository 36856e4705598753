"""What of a model and its optimizer may not change between the capture of a step and each of its calls, and hooks, which
a captured step would leave out."""
import itertools
import operator
import sys
import weakref

import torch
from torch.nn.modules import module as nn_module

from ._errors import NotSupported
from ._places import Place

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module
OF_ALL = [getattr(nn_module, f"_global{kind}") for kind in HOOKS]
optimizers = sys.modules[torch.optim.Optimizer.__module__]  # the module, which torch.optim deletes from its names


def nothing():
    return None


def around():
    """The words of the torch.autocast that is on, or off, now."""
    return {"device_type": "cpu", "dtype": torch.get_autocast_dtype("cpu"), "enabled": torch.is_autocast_enabled("cpu")}


def autocast():
    """The dtype of autocast where it is on, "off" where not."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else "off"


SETTINGS = {"torch.autocast on the CPU": autocast, "torch.get_default_dtype()": torch.get_default_dtype}


class Settings:
    """Settings of PyTorch by which it computes what a step writes, as a box of these."""

    def __getitem__(self, key):
        return SETTINGS[key]()


class Setting(Place):
    """One of Settings, which are around a step and not in it."""

    def __init__(self, name):
        super().__init__(settings, name, name, "")

    def difference(self):
        return f"{self.path} is {self.now()}, and was {self.then}"

    def advice(self):
        return "call the Step with it as it was then, or "


settings = Settings()


class Called:
    """A module whose class, `forward` or hooks are others than they were, as a Place of those."""

    line, key = "", "forward"

    def __init__(self, path, module):
        self.path, self.box, self.then = path or type(module).__name__, module, module

    def difference(self):
        return f"{self.path} has another class, forward or hook than"

    def advice(self):
        return ""


class Everywhere(Called):
    """Hooks of all modules, which are others than they were."""

    def __init__(self):
        super().__init__("hooks of all modules", nn_module)

    def difference(self):
        return "torch.nn.modules.module has other hooks of all modules (register_module_forward_hook and the like) than"


class Calls:
    """By what code modules run, (path, module): their classes, what members they have in the place of `forward`, hooks, and
    those of all modules, which `everywhere` says whether to look at."""

    def __init__(self, modules, everywhere=True):
        self.modules = [(path, m, code_of(m)) for path, m in modules]
        self.objects, self.types = [m for _, m in modules], [type(m) for _, m in modules]
        self.no_hooks = [x for m in self.objects for x in hooks_of(m) if not x]
        self.no_forward = [vars(m) for m in self.objects if "forward" not in vars(m)]
        self.everywhere = hooks_of_all() if everywhere else None
        self.some = [(m, code) for _, m, code in self.modules if len(code) > 2 or code[1] is not None]

    def others(self):
        """A Called of each module that runs by other code now."""
        other = self.everywhere is not None and hooks_of_all() != self.everywhere
        return ([Everywhere()] if other else []) + self.of_modules()

    def of_modules(self):
        if (not any(self.no_hooks) and list(map(type, self.objects)) == self.types
                and not any(map(operator.contains, self.no_forward, itertools.repeat("forward")))
                and all(code_of(m) == code for m, code in self.some)):
            return []
        return [Called(path, m) for path, m, code in self.modules if code_of(m) != code]


def hooks_of(module):
    return [getattr(module, kind) for kind in HOOKS]


def hooks_of_all():
    return [hook for hooks in OF_ALL for hook in hooks.values()]


def code_of(module):
    return type(module), vars(module).get("forward"), *(hook for hooks in hooks_of(module) for hook in hooks.values())


class Watch:
    """The members of a holder's modules as they are now: parameters and buffers that a step reads, and modules."""

    def __init__(self, holder, read):
        kept = {id(t) for t in read}
        self.members = []  # (the module, one of its dicts, {key: (reference, path)})
        for name, module in holder.named_modules():
            if module is holder:
                continue
            path = lambda key: f"{holder.path(name + '.')}{key}"
            # A buffer that no step reads may be another: models keep caches so.
            buffers = {k: t for k, t in module._buffers.items() if id(t) in kept}
            for attribute, now in (("_parameters", module._parameters), ("_buffers", buffers),
                                   ("_modules", module._modules)):
                was = {k: (nothing if x is None else weakref.ref(x), path(k)) for k, x in now.items()}
                self.members.append((weakref.ref(module), attribute, was))

    def check(self):
        """Raises NotSupported where a member is another than it was, by its name."""
        for reference, attribute, was in self.members:
            module = reference()
            if module is None:
                continue
            now = getattr(module, attribute)
            for key, (before, path) in was.items():
                if now.get(key) is not before():
                    raise NotSupported(f"{path} is another {'module' if attribute == '_modules' else 'tensor'} than "
                                       "the captured step has; capture again, or write into the one that was there "
                                       "(copy_, load_state_dict without assign=True)")
            if attribute != "_buffers" and len(now) != len(was):
                more = next(path for path in now if path not in was)
                raise NotSupported(f"{more} was added to a {type(module).__name__} after the step was captured; "
                                   "capture again")


def check_hooks(parameters, optimizer):
    """Raises NotSupported for hooks on gradients, parameters or the optimizer's step: none of these run in a Step."""
    for name, p in parameters.items():
        for attribute, what in (("_backward_hooks", "register_hook"),
                                ("_post_accumulate_grad_hooks", "register_post_accumulate_grad_hook")):
            if getattr(p, attribute, None):
                raise NotSupported(f"{name} has a hook of {what}, which a Step would not run; remove it, or write what "
                                   "it does into the step")
    if optimizer is None:
        return
    hooks = (("register_step_pre_hook", optimizer._optimizer_step_pre_hooks),
             ("register_step_post_hook", optimizer._optimizer_step_post_hooks),
             ("register_optimizer_step_pre_hook", optimizers._global_optimizer_pre_hooks),
             ("register_optimizer_step_post_hook", optimizers._global_optimizer_post_hooks))
    for what, found in hooks:
        if found:
            raise NotSupported(f"{type(optimizer).__name__} has a hook of {what}, which a Step would not run; "
                               "remove it")


def span(x):
    """The elements from a tensor's first to its last in memory."""
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride())) if x.numel() else 0


def overlap(a, b):
    """Whether two tensors, of which b does not begin before a, have elements in the same memory."""
    offset = b.data_ptr() - a.data_ptr()
    if offset >= span(a) * a.element_size():
        return False
    if a.dtype != b.dtype or offset % a.element_size():
        return True
    offset //= a.element_size()
    elements = torch.zeros(max(span(a), offset + span(b)), dtype=torch.bool, device="cpu")
    elements.as_strided(a.shape, a.stride()).fill_(True)
    return bool(elements.as_strided(b.shape, b.stride(), offset).any())


def check_memory(tensors, written):
    """Raises NotSupported where a tensor, by its name, is in the memory of another and one of them is written: in an arena
    each has memory of its own."""
    before = []
    for name, x in sorted(((name, x) for name, x in tensors.items() if x.numel()), key=lambda item: item[1].data_ptr()):
        before = [(other, y) for other, y in before if x.data_ptr() < y.data_ptr() + span(y) * y.element_size()]
        for other, y in before:
            if (written(name) or written(other)) and overlap(y, x):
                raise NotSupported(f"{other} and {name} share memory: make them one Parameter, or give one a clone()")
        before.append((name, x))


def check_modes(captured):
    """Raises NotSupported where a module is in another mode, training or evaluation, than it was."""
    for module, training in captured.training:
        m = module()
        if m is not None and m.training != training:
            raise NotSupported(f"{type(m).__name__} is in {'training' if m.training else 'evaluation'} mode, the "
                               f"step was captured in {'training' if training else 'evaluation'} mode")


def check_trainable(captured):
    """Raises NotSupported where a parameter requires a gradient that the step has not, or, of one that an optimizer
    updates, none any more."""
    for name, p in captured.parameters.items():
        then = captured.trainable[name]
        if p.requires_grad and not then:
            raise NotSupported(f"{name} requires a gradient, and did not when the step was captured; capture again")
        if then and not p.requires_grad and captured.optimizer is not None:
            raise NotSupported(f"{name} does not require a gradient, and did when the step was captured; capture again")
