"""What of a model and its optimizer may not change between the capture of a step and each of its calls, and what a
captured step would leave out: hooks, and what a step sets in Python."""
import contextlib
import sys
import warnings
import weakref

import torch
from torch.utils import _pytree as pytree

from ._errors import NotSupported

optimizers = sys.modules[torch.optim.Optimizer.__module__]  # the module, which torch.optim deletes from its names


def nothing():
    return None


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


def check_trainable(captured):
    """Raises NotSupported where a parameter requires a gradient that the step has not, or, of one that an optimizer
    updates, none any more."""
    for name, p in captured.parameters.items():
        then = captured.trainable[name]
        if p.requires_grad and not then:
            raise NotSupported(f"{name} requires a gradient, and did not when the step was captured; capture again")
        if then and not p.requires_grad and captured.optimizer is not None:
            raise NotSupported(f"{name} does not require a gradient, and did when the step was captured; capture again")


class Sets:
    """Finds what a step that is recorded sets: buffers of its modules, and members of these and of its object.

    members  their names, of numbers, texts and tensors"""

    def __init__(self, holder, step):
        self.modules = [(holder.path(f"{name}."), m) for name, m in holder.named_modules() if m is not holder]
        self.objects = [(path, vars(m)) for path, m in self.modules]
        owner = getattr(step, "__self__", None)
        if hasattr(owner, "__dict__") and not isinstance(owner, torch.nn.Module):
            self.objects.append((f"{type(owner).__name__}.", vars(owner)))
        self.members = {}

    @contextlib.contextmanager
    def undone(self):
        """At the end of the block buffers that were replaced are there again, with the values that replaced them, and
        members are as they were."""
        buffers = [dict(m._buffers) for _, m in self.modules]
        before = [dict(members) for _, members in self.objects]
        try:
            yield
            for (path, m), old in zip(self.modules, buffers):
                for key, x in old.items():
                    now = m._buffers.get(key)
                    if x is not None and now is not None and now is not x:
                        write(path + key, x, now)
        finally:
            for (_, m), old in zip(self.modules, buffers):
                m._buffers.clear()
                m._buffers.update(old)
            for (path, members), old in zip(self.objects, before):
                self.restore(path, members, old)

    def restore(self, path, members, before):
        for key, now in list(members.items()):
            then = before.get(key)
            if now is then or key == "training":
                continue
            tensors = any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(now))
            if tensors or (isinstance(now, (int, float, str, type(None))) and now != then):
                self.members[path + key] = True
                if key in before:
                    members[key] = then
                else:
                    del members[key]

    def warn(self):
        """Says which members the step has set: a Step does not."""
        if self.members:
            first, more = list(self.members)[:3], len(self.members) - 3
            warnings.warn(f"tenon: the step sets {', '.join(first)}{f' and {more} more' if more > 0 else ''}, which a Step "
                          "does not: values that one step leaves to the next must be buffers (register_buffer), others are "
                          "returned beside the loss", RuntimeWarning, stacklevel=3)


def write(path, buffer, now):
    """Writes what has replaced a buffer into it."""
    if now.shape != buffer.shape or now.dtype != buffer.dtype:
        raise NotSupported(f"the step replaces the buffer {path}, {buffer.dtype} {list(buffer.shape)}, by one of "
                           f"{now.dtype} {list(now.shape)}: a step's buffers keep their sizes")
    with torch.no_grad():
        buffer.copy_(now)
