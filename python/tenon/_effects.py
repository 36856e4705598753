"""Finds calls of a step that is recorded which would not be what they are: those that run once, while it is recorded, and
not in a Step (print, a tensor as text), and those whose result would be that of the capture at every call (a batch that
is fetched, random numbers that are not PyTorch's, a seed that is set)."""
import builtins
import contextlib
import functools
import gc
import itertools
import pickle
import random
import sys
import threading
import warnings

import torch
import torch.utils.data.dataloader as dataloader
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from ._errors import CaptureError
from ._places import brief, is_installed, kind_of

FETCH = ("the step takes a batch from {} ({}), which it would have at every call; give what it takes as arguments: "
         "Step(*next(batches))")
TAKEN = ("the step takes {} from an iterator that was there before (next, {}), which it would have at every call; give what it "
         "takes as an argument that is a tensor")
DRAWN = ("the step draws random numbers of {}{}, which would be those of the capture at every call; draw them with torch, or "
         "give them as an argument that is a tensor")
SEED = ("the step calls {} ({}), which would set it once, when the step is captured; write it before loss = Step(...), which "
        "draws its own seed from PyTorch's generator")


def states():
    """The states of generators that are not PyTorch's."""
    out = {"Python's random": random.getstate()}
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        out["numpy.random"] = (state[1].tobytes(), *state[2:])
    return out


def found_before():
    """The iterators that there are, {id: iterator}, so that no other gets an id of theirs, and caches of functools, but
    Python's and PyTorch's own, with their counts of misses."""
    every = gc.get_objects()
    kinds = {kind for kind in set(map(type, every)) if hasattr(kind, "__next__")}
    caches = [x for x in every if type(x) is functools._lru_cache_wrapper and hasattr(x.__wrapped__, "__code__")]
    return ({id(x): x for x in every if type(x) in kinds},
            [(x, x.cache_info().misses) for x in caches if kind_of(x.__wrapped__.__code__.co_filename) != "python"])


def has_data(x):
    return type(x) is torch.Tensor and x.device.type != "meta"


def state_of(x):
    """The state of an object that draws random numbers, Python's or NumPy's; None of any other."""
    of_numpy = str(type(x).__module__).startswith("numpy.random")
    try:
        return pickle.dumps(x) if isinstance(x, random.Random) or of_numpy else None
    except Exception:  # of a class that has none, as SystemRandom
        return None


class Effects:
    """Calls that a recorded step makes once, and a Step does not. line_of: gives the user's line, of a frame; by_torch:
    whether PyTorch made the call in it.

    prints  lines of what prints, or makes text of a tensor
    counts  {line: the number that it takes of an itertools.count}, of which a step may make names"""

    def __init__(self, line_of, by_torch):
        self.line_of, self.by_torch = line_of, by_torch
        self.prints, self.counts, self.before = [], {}, {}
        self.iterators, self.caches = found_before()

    @contextlib.contextmanager
    def noted(self):
        """While it is on, calls are noted, or raise CaptureError."""
        self.thread, self.before = threading.get_ident(), states()
        with contextlib.ExitStack() as stack:
            stack.callback(self.empty)
            for owner, name, make in ((builtins, "print", self.print), (builtins, "next", self.next),
                                      (dataloader.DataLoader, "__iter__", self.loader),
                                      (dataloader._BaseDataLoaderIter, "__next__", self.loader),
                                      (FunctionalTensor, "__repr__", self.text),
                                      (torch, "manual_seed", self.seed), (torch, "seed", self.seed)):
                original = vars(owner)[name]
                setattr(owner, name, self.mine(make(original), original))
                stack.callback(setattr, owner, name, original)
            yield
        self.check_draws("")

    def empty(self):
        """Empties caches that the step has filled, with tensors that have no data."""
        for cache, misses in self.caches:
            if cache.cache_info().misses != misses:
                cache.cache_clear()

    def mine(self, call, original):
        """call in the thread that records, original in others."""
        return lambda *args, **kwargs: (call if threading.get_ident() == self.thread else original)(*args, **kwargs)

    def check_draws(self, line):
        """Raises CaptureError where a generator's state is another than before. line: of the call before which it is."""
        now = states()
        for name, state in now.items():
            if state != self.before.setdefault(name, state):
                raise CaptureError(DRAWN.format(name, line and f" (before {line})"))

    def note(self, frame):
        line = self.line_of(frame)
        if line and line not in self.prints:
            self.prints.append(line)

    def print(self, original):
        def call(*args, **kwargs):
            self.note(sys._getframe(2))
            if not any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(args)):
                original(*args, **kwargs)
        return call

    def text(self, original):
        def call(x):
            if not self.by_torch(sys._getframe(2)):
                self.note(sys._getframe(2))
            return original(x)
        return call

    def next(self, original):
        def call(*args):
            x, frame = original(*args), sys._getframe(2)
            if args and id(args[0]) in self.iterators and not is_installed(frame.f_code.co_filename):
                line = self.line_of(frame)
                if type(args[0]) is itertools.count:
                    self.counts.setdefault(line, x)
                    return x
                batch = any(map(has_data, pytree.tree_leaves(x)))
                raise CaptureError(FETCH.format("next", line) if batch else TAKEN.format(brief(x), line))
            return x
        return call

    def loader(self, _):
        def call(x):
            raise CaptureError(FETCH.format("a DataLoader", self.line_of(sys._getframe(2))))
        return call

    def seed(self, original):
        def call(*args):
            raise CaptureError(SEED.format(f"torch.{original.__name__}", self.line_of(sys._getframe(2))))
        return call

    def warn(self):
        """Says where the step prints, or counts."""
        for line, number in list(self.counts.items())[:1]:
            warnings.warn(f"tenon: the step takes {brief(number)} from an itertools.count (next, {line}), which a Step has at every "
                          "call; if something is computed with it, give it as an argument that is a tensor", RuntimeWarning,
                          stacklevel=3)
        if self.prints:
            more = f" and {len(self.prints) - 1} more" if len(self.prints) > 1 else ""
            warnings.warn(f"tenon: the step prints, or makes text of a tensor ({self.prints[0]}{more}), which a Step does not: "
                          "return the tensor beside the loss, and print it after loss, x = Step(...)", RuntimeWarning,
                          stacklevel=3)
