"""Contents of tensors that are constants of a graph, and of NumPy arrays that a step reads. NumPy, and PyTorch's own .data, write
into them without a count (_version), so their bytes are compared: small ones before every step, of larger ones some parts."""
import sys
from ctypes import string_at

import torch

from ._places import Place
from ._watch import span

PART = 4 << 10    # bytes that are compared at once
LARGE = 4 << 20   # of a tensor or an array that is looked at
SMALL = 64        # tensors of one part that are looked at before every step
PARTS = 8         # of all others


def is_array(x):
    return isinstance(x, getattr(sys.modules.get("numpy"), "ndarray", ()))


def tensor_of(array):
    """A tensor over an array's memory; None of what PyTorch has no dtype or strides for."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


def memory(x):
    """A tensor's memory and form; None of one without data."""
    try:
        return x.data_ptr(), x.dtype, x.shape, x.stride()
    except (RuntimeError, NotImplementedError):
        return None


class Array(Place):
    """The contents of an array. then: a copy of it."""

    def __init__(self, array, path, line):
        self.box, self.key, self.path, self.line, self.then = array, "", path, line, array.copy()

    def now(self):
        return self.box

    def is_same(self):
        return self.box.shape == self.then.shape and self.box.tobytes() == self.then.tobytes()

    def difference(self):
        return f"{self.path} has other contents than"

    def put(self, value):
        if self.box.shape == value.shape:
            self.box[...] = value


class Contents:
    """Of tensors, each of an owner, the bytes that they have now."""

    def __init__(self):
        self.small, self.parts, self.at = [], [], 0

    def add(self, owner, tensor):
        if memory(tensor) is None or tensor.device.type != "cpu":
            return
        storage, size = tensor.untyped_storage(), span(tensor) * tensor.element_size()
        first = tensor.storage_offset() * tensor.element_size()
        if size > LARGE or storage.nbytes() < first + size:
            return
        parts = [(owner, storage.nbytes, storage.data_ptr, at, min(PART, first + size - at))
                 for at in range(first, first + size, PART)]
        parts = [(*part, string_at(part[2]() + part[3], part[4])) for part in parts]
        (self.small if len(parts) == 1 and len(self.small) < SMALL else self.parts).extend(parts)

    def keep(self, wanted):
        """Leaves those whose owner is wanted."""
        self.small, self.parts = [x for x in self.small if wanted(x[0])], [x for x in self.parts if wanted(x[0])]

    def others(self, every):
        """The owners of what has other bytes now, of all or of what this call looks at."""
        found, some = self.small, self.parts
        if len(some) > PARTS and not every:
            some, self.at = some[self.at:self.at + PARTS], self.at + PARTS if self.at + PARTS < len(some) else 0
        if some:
            found = found + some
        return [owner for owner, nbytes, address, at, size, then in found
                if nbytes() < at + size or string_at(address() + at, size) != then]
