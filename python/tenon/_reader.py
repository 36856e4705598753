"""Follows a step's code while it is recorded, and that of the packages which it calls but PyTorch, instruction by instruction
(sys.settrace). Where a chain begins (_chains), `self.config.beta`, its objects are known: those that are outside of the
step are its modules, arguments and variables, what these have, and so on. Objects that the step makes are not."""
import builtins
import collections
import functools
import sys
import time
import types

import torch

from ._chains import chains_in
from ._contents import Array, tensor_of
from ._effects import state_of
from ._places import (BUFFERS, CHANGING, LARGE, MAPPINGS, MISSING, PLAIN, WHOLES, Cache, Cell, Code, Members, Methods, Place,
                      box_of, code_of, copied, functions_of, holds, is_array, is_cache, is_installed, is_of_user, is_plain,
                      kind_of, place_of, unwrapped)
from ._watch import HOOKS

MANY = 10_000     # entries of a list that is read as a whole
OBJECTS = 20_000  # functions, objects and containers that are looked at
FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType)
WHOLE = ("GET_ITER", "CONTAINS_OP", "UNPACK_SEQUENCE", "LIST_EXTEND", "SET_UPDATE", "DICT_MERGE", "DICT_UPDATE",
         "CALL_FUNCTION_EX")  # what reads all of a container
CLOCKS = {getattr(time, name + ns) for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
          for ns in ("", "_ns")}
READERS = ("items", "keys", "values", "copy", "index", "count")
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
    kinds       classes whose functions are known
    functions   whether there is a torch.autograd.Function among it, whose backward runs later"""

    def __init__(self):
        self.functions = False
        self.reads, self.variables, self.arrays, self.objects, self.containers = {}, {}, {}, [], []
        self.generators, self.clocks, self.kinds = [], [], set()
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
        elif is_cache(x):
            self.add(x.__wrapped__, path, line)
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
        if kind not in self.kinds:
            self.kinds.add(kind)
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
                self.cache(getattr(type(x), str(key), None), f"{path}.{key}" if path else str(key), line)
                return
            name = f"{path}.{key}" if kind == "member" and path else key if kind == "member" else f"{path}[{key!r}]"
            if box is x:
                self.mention(x, path, line, False)
            x = self.read(box, key, name, line, chain.stores and i == len(chain.steps) - 1)
        if mine and isinstance(x, types.BuiltinFunctionType) and x in CLOCKS and line not in self.clocks:
            self.clocks.append(line)
        x = self.inside(x)
        self.cache(x, self.known.get(id(x), ""), line)
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

    def cache(self, x, path, line):
        """Notes that results are taken of a cache, if x is one."""
        if is_cache(x):
            self.reads.setdefault((id(x), ""), Cache(x, path, line))

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
