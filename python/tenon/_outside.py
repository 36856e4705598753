"""Variables, members and entries outside of a step that it reads and changes, as a Reader finds them while the step is recorded.

Changes that a recorded step makes outside are undone and told, as a Step does not make them. Numbers and texts that it
reads there are fixed in the graph, and tensors are constants (_fixed)."""
import contextlib
import functools
import inspect
import sys
import warnings

import torch

from ._effects import DRAWN, state_of
from ._errors import CaptureError, NotSupported
from ._fixed import Fixed
from ._places import MISSING, Cache, Code, Members, Place, entries, is_plain, kind_of, place_of, same
from ._reader import OF_ALL, Reader
from ._watch import HOOKS

ALL_HOOKS = (*HOOKS, "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


def uncompiled():
    """A block in which functions of torch.compile run as they are written: their operations are recorded."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


class Outside:
    """Places outside of a step that it changes and reads while it is recorded.

    reads    {place: Place} of what it reads
    changed  {path: the user's line} of what it changes, but buffers that it replaces"""

    def __init__(self, step, args, modules):
        self.modules = modules  # (path, module)
        self.step, self.args, self.reader, self.keep = step, args, None, []
        self.reads, self.arrays, self.changed, self.written, self.clocks = {}, {}, {}, set(), []

    @contextlib.contextmanager
    def buffers(self):
        """At the end of the block buffers that were replaced are there again, with the values that replaced them."""
        buffers = [dict(m._buffers) for _, m in self.modules]
        try:
            yield
            for (path, m), old in zip(self.modules, buffers):
                for key, x in old.items():
                    now = m._buffers.get(key)
                    if x is not None and now is not None and now is not x:
                        write(f"{path}.{key}" if path else key, x, now)
        finally:
            for (_, m), old in zip(self.modules, buffers):
                m._buffers.clear()
                m._buffers.update(old)

    @contextlib.contextmanager
    def followed(self):
        """While it is on code is followed, from begin() on. At its end what the step has changed outside is as it was."""
        before, frame = sys.gettrace(), sys._getframe()
        tensors = [(kept, dict(kept)) for _, m in self.modules for kept in (m._parameters, m._buffers)]
        frame.f_trace_opcodes = True  # before settrace: Python 3.12 asks for it
        try:
            with uncompiled():
                yield
        finally:
            sys.settrace(before)
            frame.f_trace_opcodes = False
            self.end()
            for held, old in tensors:  # PyTorch leaves tensors without data in a module that has two names
                if any(held.get(key) is not x for key, x in old.items()):
                    held.update(old)

    def begin(self):
        """The step begins, once more."""
        self.end()
        self.reader = reader = Reader()
        self.in_backward = any(m._backward_hooks or m._backward_pre_hooks for _, m in self.modules)
        reader.inner = [dict(m._modules) for _, m in self.modules]
        reader.hooks = [[dict(getattr(m, kind)) for kind in ALL_HOOKS] for _, m in self.modules]
        for path, module in self.modules:
            reader.add(module, path)
        reader.add(self.step, type(self.step).__name__)
        for x in self.args:
            reader.add(x, type(x).__name__)
        sys.settrace(reader.called)

    @contextlib.contextmanager
    def paused(self, function):
        """The block is a call of PyTorch's own, which is not followed."""
        self.in_backward |= function is torch.Tensor.register_hook
        trace = sys.gettrace()
        if function is not torch.autograd.grad:  # which may call the step's own functions
            sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(trace)

    def forward_ends(self):
        """The backward is followed only where code of the step's may run in it: following takes time. Raises CaptureError
        where the forward has drawn of a generator outside of it."""
        for path, x, state, line in self.reader.generators:
            if state_of(x) != state:
                raise CaptureError(DRAWN.format(f"{path}, a {type(x).__name__}", line and f" ({line})"))
        self.clocks = self.reader.clocks
        if not (self.in_backward or self.reader.functions):
            sys.settrace(None)

    def end(self):
        """What a step has changed is as it was."""
        if self.reader:
            self.restore(self.reader)
            self.reads, self.arrays = {**self.reader.reads, **self.reads}, {**self.reader.arrays, **self.arrays}
            self.keep += self.reader.keep
            self.reader = None

    def restore(self, reader):
        for path, x, old in reader.containers:
            if len(x) != len(old) or not all(a is b or (is_plain(a) and same(a, b)) for a, b in zip(entries(x), entries(old))):
                self.note(path, [place_of(x, MISSING)], reader)
                x.clear()
                x.update(old) if isinstance(x, (dict, set)) else x.extend(old)
        for where, p in reader.arrays.items():
            if not p.is_same():
                self.note(p.path, [where], reader)
                p.put(p.then)
        for path, x, old in reader.objects:
            box = Members(x) if isinstance(x, type) else x.__dict__
            for key in [k for k in {**vars(x), **old} if not (isinstance(x, torch.nn.Module) and k in OF_ALL)]:
                self.put(Place(box, key, f"{path}.{key}" if path else key, ""), old.get(key, MISSING), reader, x)
        for place in reader.variables.values():
            self.put(place, place.then, reader)
        for (path, m), old in zip(self.modules, reader.inner):  # one that the step has added stays: models keep caches so
            for key, x in old.items():
                self.put(Place(m._modules, key, f"{path}.{key}" if path else key, ""), x, reader)
        for (path, m), old in zip(self.modules, reader.hooks):
            for kind, was in zip(ALL_HOOKS, old):
                self.put_hooks(f"{path}.{kind}" if path else kind, getattr(m, kind), was, reader)

    def put_hooks(self, path, hooks, was, reader):
        """Puts back a module's hooks. Models install some when they run first, and note that they have."""
        if hooks.keys() != was.keys():
            more = [x for key, x in hooks.items() if key not in was and inspect.isfunction(x)]
            hooks.clear()
            hooks.update(was)
            self.note(path if any(kind_of(x.__code__.co_filename) == "user" for x in more) else "", [], reader)

    def put(self, place, then, reader, owner=None):
        """Puts back what a place had."""
        now = place.now()
        if now is then or (is_plain(now) and same(now, then)):
            return
        cached = isinstance(inspect.getattr_static(type(owner), str(place.key), None), functools.cached_property)
        self.note("" if cached else place.path, [place_of(place.box, place.key), (id(owner), place.key)], reader)
        place.put(then)

    def note(self, path, places, reader):
        """Notes that a place was changed; what only a package's code has there is its own matter."""
        self.written.update(places)
        line = next((reader.lines[x] for x in places if x in reader.lines), None)
        if path and line != "":
            self.changed.setdefault(path, line or "")

    def warn(self):
        """Says what the step has changed, and that it asks for the time: a Step does not."""
        if self.clocks:
            warnings.warn(f"tenon: the step asks for the time ({self.clocks[0]}), which a Step does not: it has that of the capture; "
                          "measure around the Step, or give the time as an argument that is a tensor", RuntimeWarning, stacklevel=3)
        if self.changed:
            some, more = list(self.changed)[:3], len(self.changed) - 3
            line = next(filter(None, self.changed.values()), "")
            warnings.warn(f"tenon: the step changes {', '.join(some)}{f' and {more} more' if more > 0 else ''}, which a Step "
                          f"does not{line and f' ({line})'}: values that one step leaves to the next must be buffers "
                          "(register_buffer), others are returned beside the loss, and kept after loss, x = Step(...)",
                          RuntimeWarning, stacklevel=3)

    def fixed(self, constants, lines):
        """A Fixed of the values that must stay as they are for a graph that has these tensors as constants, {name: tensor},
        each with its line."""
        own = [p for where, p in self.reads.items() if where not in self.written and (id(p.box), MISSING) not in self.written
               and not (isinstance(p, (Cache, Code)) and p.now() is not p.then)]  # which was another only while the step was recorded
        arrays = [x for where, x in self.arrays.items() if where not in self.written]
        self.keep = self.reads = self.arrays = None
        return Fixed(own, constants, lines, self.modules, arrays)


def write(path, buffer, now):
    """Writes what has replaced a buffer into it."""
    if now.shape != buffer.shape or now.dtype != buffer.dtype:
        raise NotSupported(f"the step replaces the buffer {path}, {buffer.dtype} {list(buffer.shape)}, by one of "
                           f"{now.dtype} {list(now.shape)}: a step's buffers keep their sizes")
    with torch.no_grad():
        buffer.copy_(now)
