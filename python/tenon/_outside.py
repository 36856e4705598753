"""Variables, members and entries outside of a step that it reads and changes.

While a step is recorded its code, and that of the packages which it calls but PyTorch, is followed instruction by
instruction (sys.settrace). Where a chain begins (_chains), `self.config.beta`, its objects are known: those that are
outside are the step's modules, arguments and variables, what these have, and so on. Objects that the step makes are not.

Changes that a recorded step makes outside are undone and told, as a Step does not make them. Numbers and texts that it
reads there are fixed in the graph, and tensors are constants. Where one is another since, the step is recorded again: a
Step refuses to run if its graph would be another one too."""
import builtins
import collections
import contextlib
import functools
import inspect
import sys
import time
import types
import warnings

import torch

from ._chains import chains_in
from ._contents import Array, Contents, memory, tensor_of
from ._effects import DRAWN, state_of
from ._errors import CaptureError, NotSupported
from ._places import (BUFFERS, CHANGING, LARGE, MAPPINGS, MISSING, PLAIN, WHOLES, Cell, Code, Members, Methods, Place,
                      box_of, copied, entries, functions_of, holds, is_array, is_installed, is_of_user, is_plain, kind_of,
                      place_of, same, undecorated, unwrapped)
from ._watch import HOOKS, SETTINGS, Called, Calls, Everywhere, Setting

MANY = 10_000     # entries of a list that is read as a whole
OBJECTS = 20_000  # functions, objects and containers that are looked at
ALWAYS = 1_000    # values of the user's lines that each call of a Step looks at
LOOKED = 400      # of the others, or fifty times as many entries of a list, that one call of a Step looks at
FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType)
TRIES = 3         # changes of a value, soon after others, that made no difference, after which it is not looked at
SOON = 50         # calls of a Step
WHOLE = ("GET_ITER", "CONTAINS_OP", "UNPACK_SEQUENCE", "LIST_EXTEND", "SET_UPDATE", "DICT_MERGE", "DICT_UPDATE",
         "CALL_FUNCTION_EX")  # what reads all of a container
CLOCKS = {getattr(time, name + ns) for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
          for ns in ("", "_ns")}
READERS = ("items", "keys", "values", "copy", "index", "count")
ALL_HOOKS = (*HOOKS, "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
OF_ALL = set(vars(torch.nn.Module())) | {"training"}  # members of every module


class Reader:
    """Follows a step's code.

    reads       {place: Place} of what is read
    variables   {place: Place} of variables that are read or written
    objects     (path, an object, its members as they were)
    generators  (path, an object that draws random numbers, its state, the line that reads it)
    clocks      lines that ask for the time
    arrays      {place: Array} of NumPy's arrays that are read
    containers  (path, a list, dict or set, its copy)
    inner       of each of the step's modules those inside of it, by name, as they were
    hooks       and its hooks, a dict for each of ALL_HOOKS
    lines       {place: the user's line}, "" where only a package's code has it
    own         places that the step has written first
    functions   whether there is a torch.autograd.Function among it, whose backward runs later"""

    def __init__(self):
        self.functions = False
        self.reads, self.variables, self.arrays, self.objects, self.containers = {}, {}, {}, [], []
        self.generators, self.clocks = [], []
        self.known, self.keep, self.cells, self.lines, self.ran, self.own = {}, [], collections.defaultdict(list), {}, set(), set()

    def add(self, x, path, line=""):
        """Takes an object as one that is outside, which a line reads."""
        if isinstance(x, (*PLAIN, bytes, torch.Tensor)) or id(x) in self.known or len(self.known) >= OBJECTS:
            return
        if x is vars(builtins) or x is sys.modules:  # of which a dict of a file's variables has one, and which no step owns
            return
        if isinstance(x, types.ModuleType) and is_installed(getattr(x, "__file__", None) or "<frozen>"):
            return
        self.known[id(x)] = path
        self.keep.append(x)
        state = state_of(x)
        if state is not None:
            self.generators.append((path, x, state, line))
        if isinstance(x, types.FunctionType):
            self.add_function(x)
            self.add_defaults(x, path if line else x.__name__, line)
        elif isinstance(x, types.MethodType):
            self.add(x.__self__, type(x.__self__).__name__)
            self.add(x.__func__, "")
        elif isinstance(x, functools.partial):
            self.mention(x.keywords, f"{path}.keywords", line, True)
            for y in (x.func, *x.args, *x.keywords.values()):
                self.add(y, "")
        else:
            self.add_object(x, path)

    def add_function(self, x):
        for y in (getattr(x, "__wrapped__", None), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()):
            self.add(y, "")
        level = [(x.__code__, dict(zip(x.__code__.co_freevars, x.__closure__ or ())))]
        for code, cells in level:  # and the functions in it
            self.cells[code].append(cells)
            inner = [y for y in code.co_consts if isinstance(y, types.CodeType)]
            level += [(y, {name: cells[name] for name in y.co_freevars if name in cells}) for y in inner]

    def add_defaults(self, x, path, line):
        """Notes the defaults of a function of the user's, which can be set."""
        if kind_of(x.__code__.co_filename) == "user":
            for key in ("__defaults__", "__kwdefaults__"):
                if getattr(x, key):
                    self.mention(getattr(x, key), f"{path}.{key}", line, True)
                    self.reads.setdefault((id(x), key), Place(Members(x), key, f"{path}.{key}", line))

    def add_object(self, x, path):
        if isinstance(x, CHANGING):
            self.containers.append((path, x, copied(x)))
        if isinstance(x, (*CHANGING, tuple)) and len(x) <= MANY:
            for key, y in list(x.items() if isinstance(x, dict) else enumerate(x)):
                self.add(y, f"{path}[{key!r}]")
        kind = x if isinstance(x, type) else type(x)
        module = isinstance(x, torch.nn.Module)
        if str(kind.__module__).split(".")[0] == "torch" and not module:
            return
        for function in functions_of(kind):
            self.add_function(function)
        if isinstance(getattr(x, "__dict__", None), dict) or (isinstance(x, type) and is_of_user(x)):
            self.objects.append((path, x, dict(vars(x))))
        for kind in HOOKS if module else ():
            for hook in getattr(x, kind).values():
                self.add(hook, "")

    # ---- code ----

    def called(self, frame, *_):
        kind = kind_of(frame.f_code.co_filename)
        if kind == "python":
            return None
        chains, mine = chains_in(frame.f_code), kind == "user"
        first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_varnames else None
        self.functions |= isinstance(first, torch.autograd.function.FunctionCtx)
        self.runs(frame, first if isinstance(first, type) else type(first), mine)

        def at(frame, event, _):
            if event == "opcode":
                for chain in chains.get(frame.f_lasti, ()):
                    self.look(frame, chain, mine)
            return at
        frame.f_trace_lines, frame.f_trace = False, at
        frame.f_trace_opcodes = True
        return at

    def runs(self, frame, kind, mine):
        """Notes where the function of a frame is found: in its file, or in a class, that of its first argument."""
        code, name = frame.f_code, frame.f_code.co_name
        if (code, kind) in self.ran:
            return
        self.ran.add((code, kind))
        line = f"{code.co_filename}:{code.co_firstlineno}" if mine else ""
        if code_of(frame.f_globals.get(name)) is code:
            self.code(frame.f_globals, name, f"{frame.f_globals.get('__name__')}.{name}", line)
        if code_of(next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)) is code:
            self.code(Methods(kind), name, f"{kind.__name__}.{name}", line)

    def code(self, box, key, path, line):
        self.keep.append(box)
        self.reads.setdefault(place_of(box, key), Code(box, key, path, line))

    def installed(self, module, key, line):
        """A member of a module that is not the user's, which is noted if it is code."""
        x = vars(module).get(key, MISSING)
        if isinstance(x, FUNCTIONS):
            self.code(vars(module), key, f"{module.__name__}.{key}", line)
        elif isinstance(x, MAPPINGS):
            self.add(x, f"{module.__name__}.{key}")
        return x

    def look(self, frame, chain, mine):
        line = f"{frame.f_code.co_filename}:{chain.line}" if mine else ""
        variables = frame.f_locals
        box = self.variable(frame, chain, variables) if mine else None
        if box is not None:
            x = self.read(box, chain.name, chain.name, line, chain.stores and not chain.steps)
            self.variables.setdefault(place_of(box, chain.name), Place(box, chain.name, chain.name, line))
        elif chain.root != "global":
            x = variables.get(chain.name, MISSING)
        else:
            x = frame.f_globals.get(chain.name, MISSING)
            if isinstance(x, types.FunctionType) and not mine:
                self.code(frame.f_globals, chain.name, f"{frame.f_globals.get('__name__')}.{chain.name}", "")
            x = x if isinstance(x, types.ModuleType) else MISSING
        for i, (kind, key) in enumerate(chain.steps):
            x = self.inside(x) if kind != "member" or key in READERS else x
            path = self.known.get(id(x))
            if path is None and kind == "member" and isinstance(x, types.ModuleType):
                x = self.installed(x, key, line)
                continue
            if path is None:
                return
            if kind in ("at", "named"):
                named, key = kind == "named", variables.get(key, frame.f_globals.get(key, MISSING))
                kind = "member" if named else "entry"
                if key is MISSING or (named and type(key) is not str):  # getattr(x, names[0]): the list, of which an entry is meant
                    return
            box = box_of(x, key) if kind == "member" else x if holds(x, key) else None
            if box is None or (key in OF_ALL and isinstance(x, torch.nn.Module)):
                if isinstance(x, (*CHANGING, *MAPPINGS, *BUFFERS)):
                    self.mention(x, path, line, key in READERS or isinstance(x, BUFFERS))
                self.array(x, path, line)
                return
            name = f"{path}.{key}" if kind == "member" and path else key if kind == "member" else f"{path}[{key!r}]"
            if box is x:
                self.mention(x, path, line, False)
            x = self.read(box, key, name, line, chain.stores and i == len(chain.steps) - 1)
        if mine and isinstance(x, types.BuiltinFunctionType) and x in CLOCKS and line not in self.clocks:
            self.clocks.append(line)
        x = self.inside(x)
        if id(x) in self.known:
            self.array(x, self.known[id(x)], line)
        if isinstance(x, (*CHANGING, *MAPPINGS, *BUFFERS, tuple, frozenset)) and id(x) in self.known:
            every = isinstance(x, BUFFERS) or (type(x) in WHOLES and len(x) <= MANY and all(map(is_plain, x)))
            self.mention(x, self.known[id(x)], line, every or chain.end in WHOLE)

    def inside(self, x):
        """What an object that is a container by another inside of it has there, as its own."""
        inner, path = unwrapped(x), self.known.get(id(x))
        if inner is not x and path is not None:
            self.add(inner, path)
        return inner

    def variable(self, frame, chain, variables):
        """The box of a chain's variable, if it is one of the file or of a closure outside."""
        if chain.root == "global":
            return frame.f_globals if chain.name in frame.f_globals or chain.stores else None
        if chain.root == "cell" and chain.name != "__class__":
            for cells in map(Cell, (x[chain.name] for x in self.cells[frame.f_code] if chain.name in x)):
                if Place(cells, "", "", "").then is variables.get(chain.name, MISSING):
                    return cells
        return None

    def read(self, box, key, path, line, stores):
        """Notes that a place is read, and gives its value. One that the step writes before it reads it has the step's own."""
        where = place_of(box, key)
        self.lines[where] = self.lines.get(where) or line
        self.keep.append(box)
        place = Place(box, key, path, line)
        if stores:
            self.own.add(where)
        elif where not in self.own:
            self.reads.setdefault(where, place)
        self.add(place.then, path, line)
        return place.then

    def array(self, x, path, line):
        """Notes that an array is used, if it is one of NumPy's."""
        if is_array(x) and x.nbytes <= LARGE and tensor_of(x) is not None:
            where = place_of(x, MISSING)
            self.lines[where] = self.lines.get(where) or line
            self.arrays.setdefault(where, Array(x, path, line))

    def mention(self, x, path, line, whole):
        """Notes that a container is used, and, of one that is read as a whole, each entry."""
        where = place_of(x, MISSING)
        self.lines[where] = self.lines.get(where) or line
        if not whole or len(x) > MANY or where in self.reads:
            return
        if isinstance(x, (*CHANGING, *MAPPINGS, *BUFFERS)):
            self.reads[where] = Place(x, MISSING, path, line)
            self.keep.append(x)
        if isinstance(x, (set, frozenset, *BUFFERS)):
            return
        for key, y in list(x.items() if isinstance(x, (dict, *MAPPINGS)) else enumerate(x)):
            if isinstance(y, torch.Tensor):
                self.reads.setdefault(place_of(x, key), Place(x, key, f"{path}[{key!r}]", line))


def code_of(x):
    """The code of a function, or of what one decorates, or of a method or property; None of other objects."""
    if isinstance(x, (property, classmethod, staticmethod)):
        x = x.fget if isinstance(x, property) else x.__func__
    return getattr(undecorated(x), "__code__", None) if isinstance(x, types.FunctionType) else None


# ---- what a step changes, and reads ----

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
        parameters = [dict(m._parameters) for _, m in self.modules]
        frame.f_trace_opcodes = True  # before settrace: Python 3.12 asks for it
        try:
            with uncompiled(), self.buffers():
                yield
        finally:
            sys.settrace(before)
            frame.f_trace_opcodes = False
            self.end()
            for (_, m), old in zip(self.modules, parameters):  # PyTorch 2.9 leaves others in a module that has two names
                if any(m._parameters.get(key) is not x for key, x in old.items()):
                    m._parameters.update(old)

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
               and not (isinstance(p, Code) and p.now() is not p.then)]  # which was another only while the step was recorded
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


class Fixed:
    """What a graph has as it was when it was captured: values, objects, functions and modules that variables have, the
    code of modules, settings of PyTorch, contents of arrays, and tensors that are constants in it."""

    def __init__(self, places, constants, lines, modules, arrays):
        self.modules, self.code = modules, Calls(modules)
        self.constants, self.versions = constants, {name: (version(x), line) for (name, x), line in zip(constants.items(), lines)}
        known = collections.defaultdict(list)
        for name, x in constants.items():
            known[memory(x)].append(name)
        self.tensors = [[p, version(p.then), p.then.data_ptr(), known[memory(p.then)]] for p in places
                        if isinstance(p.then, torch.Tensor) and memory(p.then) and memory(p.then) in known]
        by_memory = {memory(p.then): p for p, *_ in self.tensors}
        self.contents, self.arrays = Contents(), Contents()
        for (name, x), line in zip(constants.items(), lines):
            self.contents.add(by_memory.get(memory(x)) or (x, line), x)
        for x in arrays:
            self.arrays.add(x, tensor_of(x.box))
        self.settings = [Setting(name).entry() for name in SETTINGS]
        self.turn, self.tries, self.keep = 0, collections.Counter(), []
        self.calls, self.last = 0, -SOON
        self.take([p for p in places if not isinstance(p.then, torch.Tensor)])

    def take(self, places):
        """Takes places: `slow`, which are looked into by a call; some of the user's lines; turns of all others."""
        self.slow = [p for p in places if p.makes()]
        self.always, self.turns, rooms = [], [[]], [ALWAYS, LOOKED]
        for p in places:
            if p.makes():
                continue
            cost = 1 + (len(p.then) // 50 if p.key is MISSING else 0)
            if (p.line or p.often) and cost == 1 and rooms[0] > 0:
                rooms[0] -= 1
                self.always.append(p.entry())
                continue
            rooms[1] -= cost
            if rooms[1] < 0:
                self.turns.append([])
                rooms[1] = LOOKED
            self.turns[-1].append(p.entry())

    def places(self):
        return [*self.slow, *(p for turn in [self.always, *self.turns] for p, *_ in turn)]

    def check(self, again, every=False):
        """Raises NotSupported where one is another, and the graph would be. Looks at what the user's lines have, and at some
        of the others and at PyTorch's settings, or at all others. again(): the step recorded again: "" if it is the same graph
        now, else True or a text of why not, and its Fixed."""
        self.check_tensors(every)
        self.calls += 1
        self.turn = (self.turn + 1) % len(self.turns)
        found = [p for p in self.slow if p.now() is not p.then]
        for turn in [self.always, *(self.turns if every else [self.turns[self.turn], self.settings])]:
            try:
                found += [p for p, box, key, then in turn if box[key] is not then]
            except (KeyError, IndexError):  # one is gone
                found += [p for p, *_ in turn]
        found = [p for p in found + self.arrays.others(every) if not p.is_same()] + self.code.others()
        if found:
            self.other(found, again)

    def check_tensors(self, every):
        for entry in self.tensors:
            p, count, address, names = entry
            now, then = p.now(), p.then
            if version(then) != count:
                raise written(p)
            if now is then and then.data_ptr() == address:
                continue
            if not equal(now, self.constants[names[0]]):
                raise written(p) if now is then else NotSupported(
                    f"{p.path} is another tensor than when the step was captured, in which it is a constant{where(p)}; give it "
                    "as an argument, or capture again")
            self.moved(entry, now)
        for name, (count, line) in self.versions.items():
            if version(self.constants[name]) != count:
                raise written((self.constants[name], line))
        for owner in self.contents.others(every):
            raise written(owner)

    def moved(self, entry, now):
        """Takes an equal tensor in the place of a constant, or the same one whose memory is another."""
        p, _, _, names = entry
        p.then, entry[1:3] = now, (version(now), now.data_ptr())
        self.contents.keep(lambda owner: owner is not p)
        self.contents.add(p, now)
        for name in names:
            self.constants[name], self.versions[name] = now.detach(), (version(now), self.versions[name][1])

    def other(self, found, again):
        """Records the step again, as values are others now."""
        why, fixed = again()
        if why:
            p = found[0]
            raise NotSupported(f"{p.difference()} when the step was captured, in which it is fixed{where(p)}; {p.advice()}capture "
                               f"again{why if why is not True else ''}")
        soon, self.last = self.calls - self.last < SOON, self.calls
        for p in found:
            self.tries[place_of(p.box, p.key)] += soon
            if soon and self.tries[place_of(p.box, p.key)] == TRIES:
                warnings.warn(f"tenon: the step reads {p.path}{where(p)}, which changes between steps. It has made no difference "
                              f"{TRIES} times, and is not looked at any more; if something depends on it, give that as a tensor",
                              RuntimeWarning, stacklevel=5)
        self.take([p for p in fixed.places() if self.tries[place_of(p.box, p.key)] < TRIES])
        wanted = lambda p: self.tries[place_of(p.box, p.key)] < TRIES
        self.code = Calls([(path, m) for path, m in self.modules if wanted(Called(path, m))], wanted(Everywhere()))
        self.tensors, self.versions, self.contents, self.arrays = fixed.tensors, fixed.versions, fixed.contents, fixed.arrays
        self.settings = [x for x in fixed.settings if wanted(x[0])]
        self.arrays.keep(wanted)
        self.keep += found  # whose boxes have those addresses


def version(x):
    """A tensor's count of writes into it; 0 of one that has none, made under torch.inference_mode."""
    return 0 if x.is_inference() else x._version


def equal(x, y):
    return isinstance(x, torch.Tensor) and x.dtype == y.dtype and torch.equal(x, y)


def written(owner):
    """The error for a constant that was written to: a place's, or (a tensor, its line)."""
    if isinstance(owner, Place):
        return NotSupported(f"{owner.path} was written to since the step was captured, in which it is a constant{where(owner)}; "
                            "give it as an argument, make it a buffer (register_buffer), or capture again")
    return NotSupported(f"a tensor of {list(owner[0].shape)} was written to since the step was captured, in which it is a "
                        f"constant{owner[1]}; give its module in model=, or it as an argument, or capture again")


def where(place):
    return f" ({place.line})" if place.line else ""
