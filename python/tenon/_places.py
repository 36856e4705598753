"""Places where a step's values are: variables, members of objects, entries of containers; and whose code is whose."""
import array
import collections
import functools
import inspect
import math
import operator
import os
import site
import sys
import sysconfig
import types

import torch

PLAIN = (bool, int, float, complex, str, type(None), torch.dtype)
CALLED = (torch.nn.Module, types.FunctionType, types.BuiltinFunctionType)
CODE = (types.FunctionType, functools._lru_cache_wrapper)
NUMBERS = (bool, int, float, complex)
SEQUENCES = (list, tuple, collections.deque)
CHANGING = (list, dict, set, collections.deque)
WHOLES = (list, tuple, set, frozenset, collections.deque)  # a mention of one may be of every entry
MAPPINGS = (collections.ChainMap, types.MappingProxyType, type(os.environ))  # these are looked into by their own ways
BUFFERS = (bytearray, array.array)
PYTHON = tuple({os.path.join(os.path.realpath(sysconfig.get_path(kind)), "") for kind in ("stdlib", "platstdlib")})
PACKAGES = tuple({os.path.join(os.path.realpath(path), "") for path in (
    sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages())})
FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))  # of any environment that is on the path
OWN = tuple(os.path.dirname(os.path.realpath(path)) + os.sep for path in (torch.__file__, __file__))
MODULES = os.path.join(OWN[0], "nn", "modules", "")
LONG = 200  # entries
LARGE = 4 << 20  # the most bytes of a tensor or an array that is looked at
MISSING = object()


@functools.lru_cache(4096)
def is_python(path):
    """Whether a file is of Python's own library."""
    real = os.path.realpath(path)
    return real.startswith(PYTHON) and not in_packages(real)


def in_packages(real):
    """Whether a file lies where packages are installed, of this environment or of another (PYTHONPATH, a .pth file)."""
    return real.startswith(PACKAGES) or any(name in real for name in FOLDERS)


@functools.lru_cache(4096)
def kind_of(path):
    """Whose code a file has: "python", of PyTorch and Python and this package; "package", of an installed one, or of
    PyTorch's modules; "user"."""
    real = os.path.realpath(path)
    if real.startswith(MODULES) and not real.endswith("module.py"):
        return "package"
    if path.startswith("<frozen") or real.startswith(OWN) or is_python(path):
        return "python"
    return "package" if in_packages(real) else "user"


def is_installed(path):
    return kind_of(path) != "user"


def is_plain(x):
    return isinstance(x, PLAIN) or (type(x) is tuple and all(map(is_plain, x)))


def kind_in(x, kinds):
    return next((kind for kind in kinds if isinstance(x, kind)), None)


def is_array(x):
    return isinstance(x, getattr(sys.modules.get("numpy"), "ndarray", ()))


def same(a, b):
    """Whether two values that are no tensors are one: 1, True and 1.0 are three, but in what is too long to look at each
    entry at every step; a NaN is one of itself."""
    if a is b:
        return True
    try:
        if is_array(a) and is_array(b):
            alike = a.dtype == b.dtype and a.shape == b.shape and a.nbytes <= LARGE and not a.dtype.hasobject
            return alike and a.tobytes() == b.tobytes()
        inner = kind_in(a, (*SEQUENCES, dict))
        if inner and inner is kind_in(b, (*SEQUENCES, dict)):
            if len(a) != len(b) or len(a) > LONG or (inner is dict and a.keys() != b.keys()):
                return bool(a == b)
            if inner is dict:
                a, b = a.values(), [b[key] for key in a]
            return all(map(operator.is_, a, b)) or all(map(same, a, b))
        return kind_in(a, NUMBERS) is kind_in(b, NUMBERS) and (bool(a == b) or bool(a != a and b != b))
    except (TypeError, ValueError, RuntimeError):
        return False


def copied(x):
    """A copy of a list, dict, set or deque, of its base class, as others may be made in ways of their own; of a buffer, or of
    a mapping as a dict."""
    if isinstance(x, (*BUFFERS, *MAPPINGS)):
        return x[:] if isinstance(x, BUFFERS) else dict(x)
    return next(kind for kind in CHANGING if isinstance(x, kind))(x)


def entries(x):
    return [y for pair in x.items() for y in pair] if isinstance(x, dict) else x


def brief(x):
    plain = is_plain(x) or (isinstance(x, CHANGING) and all(map(is_plain, entries(x))))
    return short(repr(x)) if plain else "gone" if x is MISSING else f"a {type(x).__name__}"


def short(text):
    return text if len(text) <= 40 else text[:37] + "..."


# ---- places: a box and a key ----

class Cell:
    """A variable of a closure, as a container of one entry."""

    def __init__(self, cell):
        self.of = cell

    def __getitem__(self, _):
        try:
            return self.of.cell_contents
        except ValueError:  # empty
            raise KeyError from None

    def __setitem__(self, _, value):
        self.of.cell_contents = value

    def __delitem__(self, _):
        del self.of.cell_contents


class Members:
    """Members of a class, or of an object that has them of its class or in slots."""

    def __init__(self, x):
        self.of = x

    def __getitem__(self, key):
        try:
            return vars(self.of)[key] if isinstance(self.of, type) else getattr(self.of, key)
        except AttributeError:
            raise KeyError from None

    def __setitem__(self, key, value):
        setattr(self.of, key, value)

    def __delitem__(self, key):
        delattr(self.of, key)


class Methods(Members):
    """Functions of a class, its own and those of its bases."""

    def __getitem__(self, key):
        try:
            return getattr(self.of, key)
        except AttributeError:
            raise KeyError from None


class Place:
    """A variable, member or entry. path: its name for people; line: where the user's code has it, "" where only a
    package's has; then: its value when it was found. key: MISSING: the list `box` itself, of which `then` is a copy."""

    often = False  # whether it is looked at before every step though no line of the user's has it

    def __init__(self, box, key, path, line):
        self.box, self.key, self.path, self.line = box, key, path, line
        self.then = self.now() if key is not MISSING else copied(box)

    def now(self):
        if isinstance(self.box, dict):  # one that makes what it has not, it does not here
            return self.box if self.key is MISSING else dict.get(self.box, self.key, MISSING)
        try:
            return self.box if self.key is MISSING else self.box[self.key]
        except (KeyError, IndexError, TypeError):
            return MISSING

    def is_same(self):
        now = self.now()
        return same(now, self.then) or (now is MISSING and isinstance(self.then, torch.nn.Module))

    def difference(self):
        now = self.now()
        if type(now) is type(self.then) and (isinstance(now, CALLED) or is_array(now)):
            return f"{self.path} is another {type(now).__name__} than"
        return f"{self.path} is {brief(now)}, and was {brief(self.then)}"

    def advice(self):
        return "" if isinstance(self.then, CALLED) else "give it as an argument that is a tensor, or "

    def makes(self):
        """Whether looking into the box would make what it has not, or there was nothing."""
        return self.then is MISSING or (isinstance(self.box, dict) and hasattr(type(self.box), "__missing__"))

    def entry(self):
        """(self, a box, a key, the value), of which the box has the value under the key as long as it is the same."""
        return self, {MISSING: self.box} if self.key is MISSING else self.box, self.key, self.then

    def put(self, value):
        if value is not MISSING:
            self.box[self.key] = value
        elif self.now() is not MISSING:
            del self.box[self.key]


class Code(Place):
    """A function, method or class where the step's code finds it: in a class, or in a file that is not the user's."""

    often = True


class Cache(Place):
    """A functools.lru_cache whose results a step takes, which are what they are until it is emptied."""

    def __init__(self, cache, path, line):
        self.box, self.key, self.path, self.line, self.then = cache, "", path, line, cache
        self.calls = self.count()  # that there were when it was last looked at

    def count(self):
        info = self.box.cache_info()
        return info.hits + info.misses

    def now(self):
        before, self.calls = self.calls, self.count()
        if self.calls < before:  # it counts from 0 since it was emptied
            self.calls = math.inf
        return MISSING if self.calls == math.inf else self.then

    def difference(self):
        return f"{self.path} has other results in its cache, which was emptied, than"

    def advice(self):
        return ""

    def makes(self):
        return True


def is_cache(x):
    """Whether x is a functools.lru_cache around a function of the user's."""
    return type(x) is functools._lru_cache_wrapper and kind_of(getattr(code_of(x), "co_filename", "<frozen>")) == "user"


def place_of(box, key):
    return id(box.of if isinstance(box, (Cell, Members)) else box), key


def is_of_user(kind):
    """Whether a class is in a file of the user's."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (path is not None and not is_installed(path))


def functions_of(kind):
    """The functions of a class that refer to variables of a closure, as it has them now."""
    found = [getattr(x, "__func__", None) or getattr(x, "fget", None) or x for base in kind.__mro__ for x in vars(base).values()]
    found = [x.__wrapped__ if type(x) is functools._lru_cache_wrapper else x for x in found]
    return [x for x in found if inspect.isfunction(x) and x.__closure__]


def box_of(x, key):
    """Where an object has a member that is no method, property or tensor of a module: a box, or None."""
    members = getattr(x, "__dict__", None)
    if isinstance(x, type):
        return next((Members(base) for base in x.__mro__ if key in vars(base)), None)
    if isinstance(x, torch.nn.Module) and key not in members:
        if key in x._modules:
            return x._modules
        if key in x._parameters or key in x._buffers:
            return None
    if isinstance(members, dict) and key in members:
        return members
    found = next((vars(base)[key] for base in type(x).__mro__ if key in vars(base)), MISSING)
    if found is not MISSING:
        slot = isinstance(found, types.MemberDescriptorType)
        return Members(x) if slot or not hasattr(type(found), "__get__") else None
    return x if isinstance(x, dict) and key in x else members if isinstance(members, dict) else None


def holds(x, key):
    """Whether a container may have an entry under a key."""
    return isinstance(x, (*CHANGING, *MAPPINGS, tuple)) and isinstance(key, (int, str, tuple))


def undecorated(x):
    """The function that decorators are around; the object itself where they go around in a circle."""
    try:
        return inspect.unwrap(x)
    except ValueError:
        return x


def code_of(x):
    """The code of a function, or of what one decorates, or of a method or property; None of other objects."""
    if isinstance(x, (property, classmethod, staticmethod)):
        x = x.fget if isinstance(x, property) else x.__func__
    return getattr(undecorated(x), "__code__", None) if isinstance(x, CODE) else None


def unwrapped(x):
    """The container that one of collections is around."""
    inner = getattr(x, "data", None) if isinstance(x, (collections.UserDict, collections.UserList)) else None
    return inner if isinstance(inner, CHANGING) else x
