"""Variables, members and entries outside of a step that its code names: variables of its closure and its file, members of
its objects and modules, entries of lists and dicts among these.

Changes that a recorded step makes there are undone and told, as a Step does not make them. Numbers and texts there are
fixed in the graph, and tensors are constants. A Step refuses to run where a variable, a member of an installed package's
module, or a constant is another than at the capture. Other members and entries are told once: code that has such a name
may mean another object by it (`self.loss = Step(x)`, where the step has `out.loss`).

Names are those in the code of the step, of functions that it refers to, and of methods that these name. The code of
installed packages names members, and has no variables here."""
import collections
import contextlib
import dis
import functools
import inspect
import os
import sys
import sysconfig
import types
import warnings

import torch
from torch.utils import _pytree as pytree

from ._errors import NotSupported

DEEP = 8          # references from the step to what is looked at
MANY = 1_000      # entries of a container that are looked at
OBJECTS = 20_000  # functions, objects and containers that are looked at
PLAIN = (bool, int, float, complex, str, type(None), torch.dtype)
CHANGING = (list, dict, set, collections.deque)
OF_ALL = set(vars(torch.nn.Module())) | {"training"}  # members of every module
PACKAGES = tuple({os.path.join(os.path.realpath(sysconfig.get_path(kind)), "")
                  for kind in ("stdlib", "platstdlib", "purelib", "platlib")} |
                 {os.path.dirname(os.path.realpath(path)) + os.sep for path in (torch.__file__, __file__)})
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module
MISSING = object()


@functools.lru_cache(4096)
def is_installed(path):
    """Whether a file is Python's, of an installed package, or of this one."""
    return path.startswith("<frozen") or os.path.realpath(path).startswith(PACKAGES)


def is_plain(x):
    return isinstance(x, PLAIN) or (type(x) is tuple and all(map(is_plain, x)))


def same(a, b):
    """Whether two values that are no tensors are one; a NaN is one of itself."""
    try:
        return a is b or bool(a == b) or bool(a != a and b != b)
    except (TypeError, ValueError, RuntimeError):
        return False


def brief(x):
    text = repr(x) if is_plain(x) else "gone" if x is MISSING else f"a {type(x).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


class Cell:
    """A variable of a closure, as a container of one entry."""

    def __init__(self, cell):
        self.cell = cell

    def __getitem__(self, _):
        try:
            return self.cell.cell_contents
        except ValueError:  # empty
            raise KeyError from None

    def __setitem__(self, _, value):
        self.cell.cell_contents = value

    def __delitem__(self, _):
        del self.cell.cell_contents


class Place:
    """A variable, member or entry. path: its name for people; line: where the user's code names it; sure: that code can
    mean nothing else; then: its value when it was found."""

    def __init__(self, box, key, path, line, sure=True):
        self.box, self.key, self.path, self.line, self.sure = box, key, path, line, sure
        self.then = self.now()

    def now(self):
        try:
            return self.box[self.key]
        except (KeyError, IndexError):
            return MISSING

    def put(self, value):
        if value is not MISSING:
            self.box[self.key] = value
        elif self.now() is not MISSING:
            del self.box[self.key]


# ---- what a step's code names ----

Names = collections.namedtuple("Names", "variables cells members")  # dicts of the line where each stands first


@functools.lru_cache(4096)
def names_in(code):
    """The names in the code of a function and of those in it: variables of its file, variables of closures, and members;
    a text may be a member's name too."""
    names, line = Names({}, {}, {}), code.co_firstlineno
    for x in dis.get_instructions(code):
        at = getattr(x, "line_number", x.starts_line)
        line = line if at is None else at
        if x.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")):
            names.variables.setdefault(x.argval, line)
        elif "DEREF" in x.opname:
            names.cells.setdefault(x.argval, line)
        elif "ATTR" in x.opname or x.opname == "LOAD_METHOD" or (x.opname == "LOAD_CONST" and isinstance(x.argval, str)):
            names.members.setdefault(x.argval, line)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for mine, more in zip(names, names_in(inner)):
                for name, at in more.items():
                    mine.setdefault(name, at)
    return names


def functions_of(kind):
    """{name: function} of a class, without those that every module has."""
    out = {}
    for base in reversed(kind.__mro__):
        if base not in (object, torch.nn.Module):
            found = {name: getattr(x, "__func__", None) or getattr(x, "fget", None) or x for name, x in vars(base).items()}
            out.update((name, x) for name, x in found.items() if inspect.isfunction(x))
    return out


def is_of_user(kind):
    """Whether a class is in a file of the user's."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (path is not None and not is_installed(path))


class Finder:
    """Looks through what a step refers to.

    places      of variables, and of members and entries whose names stand in code
    objects     (path, the dict of members) of modules and of the user's objects
    containers  Places of the user's lists, dicts and sets"""

    def __init__(self, step, args, modules):
        self.places, self.objects, self.containers = [], [], []
        self.seen, self.keep = set(), []
        self.named = {"forward": "", "__call__": ""}  # names of members in code that was looked at, and the user's line
        self.methods, self.members = [], []           # (name, function), arguments of member(): not looked at yet
        for path, module in modules:
            self.object(module, path, 0)
            for hook in [y for kind in HOOKS for y in getattr(module, kind).values()]:
                self.value(hook, "", "", 1)
        self.value(step, "", "", 0)
        for x in args:
            self.value(x, "", "", 0)
        while self.follow():
            pass

    def follow(self):
        """Looks at methods and members whose names stand in code that was looked at by now. Gives whether there were any."""
        methods, members = self.methods, self.members
        self.methods, self.members = [], []
        for name, x in methods:
            self.function(x, 1) if name in self.named else self.methods.append((name, x))
        for box, key, *more in members:
            self.member(box, key, *more) if key in self.named else self.members.append((box, key, *more))
        return len(methods) + len(members) != len(self.methods) + len(self.members)

    def is_new(self, x):
        if id(x) in self.seen or len(self.seen) >= OBJECTS:
            return False
        self.seen.add(id(x))
        self.keep.append(x)
        return True

    def value(self, x, path, line, depth):
        """Looks at what a variable, a member or an entry has."""
        if depth > DEEP or isinstance(x, (*PLAIN, bytes, torch.Tensor, torch.nn.Module)):  # the step's modules are looked at
            return
        if isinstance(x, (types.FunctionType, types.MethodType, functools.partial)):
            self.function(x, depth)
        elif isinstance(x, (*CHANGING, tuple)):
            self.container(x, path, line, depth)
        else:
            self.object(x, path, depth)

    def function(self, x, depth):
        if isinstance(x, functools.partial):
            parts = [x.func, *x.args, *x.keywords.values()]
        elif isinstance(x, types.MethodType):
            parts = [x.__func__]
            self.value(x.__self__, type(x.__self__).__name__, "", depth + 1)
        else:
            parts = [getattr(x, "__wrapped__", None), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
            if self.is_new(x):
                self.code(x, depth)
        for y in parts:
            self.value(y, "", "", depth + 1)

    def code(self, x, depth):
        file, names = x.__code__.co_filename, names_in(x.__code__)
        installed = is_installed(file)
        for name, line in names.members.items():
            self.named[name] = self.named.get(name) or ("" if installed else f"{file}:{line}")
        if installed:
            return
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or ()):
            self.place(Cell(cell), name, name, f"{file}:{names.cells.get(name, x.__code__.co_firstlineno)}", depth)
        for name, line in names.variables.items():
            if name in x.__globals__:
                self.place(x.__globals__, name, name, f"{file}:{line}", depth)

    def place(self, box, key, path, line, depth, sure=True):
        where = (id(box.cell if isinstance(box, Cell) else box), key)
        if where in self.seen:
            return
        self.seen.add(where)
        self.keep.append(box)
        place = Place(box, key, path, line, sure)
        self.places.append(place)
        if isinstance(place.then, CHANGING):
            self.containers.append(place)
        self.value(place.then, path, line, depth + 1)

    def container(self, x, path, line, depth):
        if len(x) > MANY or isinstance(x, set) or not self.is_new(x):
            return
        keys = x if isinstance(x, dict) else range(len(x))
        for key in list(keys):
            name = f"{path}[{key!r}]" if path else ""
            if isinstance(key, str):
                self.members.append((x, key, name, line, depth))
            else:
                self.place(x, key, name, line, depth, False)

    def object(self, x, path, depth):
        """An object whose members code may name."""
        kind, members = x if isinstance(x, type) else type(x), getattr(x, "__dict__", None)
        module = isinstance(x, torch.nn.Module)
        if isinstance(x, types.ModuleType):
            mine = getattr(x, "__file__", None) and not is_installed(x.__file__)
            if not mine:
                return
        else:
            mine = is_of_user(kind)
        if not isinstance(members, (dict, types.MappingProxyType)) or not self.is_new(x):
            return
        if not module and kind.__module__.split(".")[0] == "torch":
            return
        if (mine or module) and not isinstance(x, types.ModuleType):
            self.methods += functions_of(kind).items()
            if isinstance(members, dict):
                self.objects.append((f"{path}." if path else "", members))
        for key in members:
            if not (module and key in OF_ALL):
                self.members.append((members, key, f"{path}.{key}" if path else key, "", depth, mine, module and not mine))

    def member(self, box, key, path, line, depth, mine=True, sure=False):
        if mine or not isinstance(box[key], (*CHANGING, tuple, types.FunctionType, types.MethodType)):
            self.place(box, key, path, self.named[key] or line, depth, sure)


# ---- what a step changes, and reads ----

class Outside:
    """Places outside of a step that it changes and reads while it is recorded.

    changed  by its name where the user's code names it, of what was changed but buffers that were replaced"""

    def __init__(self, step, args, modules):
        self.modules = modules  # (path, module)
        found = Finder(step, args, modules)
        self.places, self.containers, self.objects = found.places, found.containers, found.objects
        self.changed = {}

    @contextlib.contextmanager
    def undone(self):
        """At the end of the block buffers that were replaced are there again, with the values that replaced them, and all
        else is as it was."""
        buffers = [dict(m._buffers) for _, m in self.modules]
        members = [dict(x) for _, x in self.objects]
        values = [p.now() for p in self.places]
        copies = [(p, x, x.copy()) for p, x in ((p, p.now()) for p in self.containers) if isinstance(x, CHANGING)]
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
            for place, x, old in copies:
                self.refill(place, x, old)
            for (path, x), old in zip(self.objects, members):
                for key in [k for k in x if k != "training"]:
                    self.restore(Place(x, key, path + key, ""), old.get(key, MISSING))
            for place, then in zip(self.places, values):
                self.restore(place, then)

    def restore(self, place, then):
        now = place.now()
        if now is then or now is MISSING:
            return
        tensors = any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(now))
        if tensors or (is_plain(now) and not same(now, then)):
            self.changed.setdefault(place.path, place.line)
            place.put(then)

    def refill(self, place, x, old):
        if len(x) == len(old) and all(a is b or (is_plain(a) and same(a, b)) for a, b in zip(entries(x), entries(old))):
            return
        self.changed.setdefault(place.path, place.line)
        x.clear()
        x.update(old) if isinstance(x, (dict, set)) else x.extend(old)

    def warn(self):
        """Says what the step has changed: a Step does not."""
        if self.changed:
            some, more = list(self.changed)[:3], len(self.changed) - 3
            line = next(filter(None, self.changed.values()), "")
            warnings.warn(f"tenon: the step changes {', '.join(some)}{f' and {more} more' if more > 0 else ''}, which a Step "
                          f"does not{line and f' ({line})'}: values that one step leaves to the next must be buffers "
                          "(register_buffer), others are returned beside the loss, and kept after loss, x = Step(...)",
                          RuntimeWarning, stacklevel=3)

    def fixed(self, constants):
        """A Fixed of the values that must stay as they are for a graph that has these tensors as constants."""
        changed = [id(p.then) for p in self.containers if p.path in self.changed]
        own = [p for p in self.places if p.path not in self.changed and id(p.box) not in changed]
        out = Fixed([p for p in own if is_plain(p.then)], [p for p in own if isinstance(p.then, torch.Tensor)], constants)
        kept = {id(p) for p in [*out.plain, *(p for p, _ in out.tensors)]}
        for p in self.places:
            p.then = p.then if id(p) in kept else None
        return out


def entries(x):
    return [y for pair in x.items() for y in pair] if isinstance(x, dict) else x


def write(path, buffer, now):
    """Writes what has replaced a buffer into it."""
    if now.shape != buffer.shape or now.dtype != buffer.dtype:
        raise NotSupported(f"the step replaces the buffer {path}, {buffer.dtype} {list(buffer.shape)}, by one of "
                           f"{now.dtype} {list(now.shape)}: a step's buffers keep their sizes")
    with torch.no_grad():
        buffer.copy_(now)


def memory(x):
    """A tensor's memory and form; None of one without data."""
    try:
        return x.data_ptr(), x.dtype, x.shape, x.stride()
    except (RuntimeError, NotImplementedError):
        return None


class Fixed:
    """Variables, members and entries that a graph has as they were when it was captured: plain values, and tensors that
    are constants in it."""

    def __init__(self, plain, tensors, constants):
        known = {memory(x) for x in constants} - {None}
        self.plain = plain
        self.tensors = [[p, p.then._version] for p in tensors if memory(p.then) in known]

    def check(self):
        """Raises NotSupported where one is another that the step surely means; tells once of others."""
        for p in [p for p in self.plain if p.now() is not p.then and not same(p.now(), p.then)]:
            what = f"{p.path} is {brief(p.now())}, and was {brief(p.then)} when the step was captured"
            how = f"{where(p)}; give it as an argument that is a tensor, or capture again"
            if p.sure:
                raise NotSupported(f"{what}, in which it is fixed{how}")
            self.plain.remove(p)
            warnings.warn(f"tenon: {what}; if the step reads it, it goes on with that{how}", RuntimeWarning, stacklevel=3)
        for entry in self.tensors:
            p, version = entry
            now, then = p.now(), p.then
            if then._version != version:
                raise NotSupported(f"{p.path} was written to since the step was captured, in which it is a constant"
                                   f"{where(p)}; give it as an argument, make it a buffer (register_buffer), or capture again")
            if now is then:
                continue
            if not isinstance(now, torch.Tensor) or now.dtype != then.dtype or not torch.equal(now, then):
                raise NotSupported(f"{p.path} is another tensor than when the step was captured, in which it is a constant"
                                   f"{where(p)}; give it as an argument, or capture again")
            p.then, entry[1] = now, now._version


def where(place):
    return f" ({place.line})" if place.line else ""
