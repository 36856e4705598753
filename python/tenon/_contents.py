"""Contents of tensors that are constants of a graph, and of NumPy arrays that a step reads. NumPy, and PyTorch's own .data, write
into them without a count (_version), so their bytes are compared: those of small ones before every step, some parts of larger
ones."""
import sys
import warnings
from ctypes import string_at

import torch

from ._places import LARGE, Place
from ._watch import span

PART = 4 << 10    # the bytes that are compared at once
SMALL = 64        # the most tensors of one part that are looked at before every step
PARTS = 8         # parts of all others that one step looks at


def tensor_of(array):
    """A tensor over an array's memory; None of what PyTorch has no dtype or strides for."""
    try:
        with warnings.catch_warnings():  # PyTorch tells of one that is only read, and nothing is written here
            warnings.filterwarnings("ignore", ".*not writable")
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


class Part:
    """Some bytes of a tensor's memory, from its byte `at` on, as they are now."""

    def __init__(self, owner, tensor, at):
        self.owner, self.form, self.itemsize = owner, (tensor.shape, tensor.stride()), tensor.element_size()
        storage, self.at, self.elements = tensor.untyped_storage(), at, span(tensor)
        self.nbytes, self.address = storage.nbytes, storage.data_ptr
        self.first = tensor.storage_offset() * self.itemsize + at
        self.size = min(PART, self.elements * self.itemsize - at)
        self.then = self.bytes()

    def bytes(self):
        """The bytes; None where the memory has become smaller."""
        return string_at(self.address() + self.first, self.size) if self.nbytes() >= self.first + self.size else None

    def is_other(self):
        now = self.bytes()
        if now == self.then:
            return False
        if now is None or self.differs(now):
            return True
        self.then = now
        return False

    def differs(self, now):
        """Whether elements of the tensor itself are others, not only such as lie between those of a view."""
        own = torch.zeros(self.elements, dtype=torch.bool, device="cpu")
        own.as_strided(*self.form).fill_(True)
        own = own.repeat_interleave(self.itemsize)[self.at:self.at + self.size]
        return any(mine and a != b for mine, a, b in zip(own.tolist(), now, self.then))


class Contents:
    """The bytes that tensors, each of an owner, have now."""

    def __init__(self):
        self.small, self.parts, self.at = [], [], 0

    def add(self, owner, tensor):
        """Takes an owner's tensor."""
        if memory(tensor) is None or tensor.device.type != "cpu":
            return
        storage, size = tensor.untyped_storage(), span(tensor) * tensor.element_size()
        first = tensor.storage_offset() * tensor.element_size()
        if size > LARGE or storage.nbytes() < first + size:
            return
        parts = [Part(owner, tensor, at) for at in range(0, size, PART)]
        (self.small if len(parts) == 1 and len(self.small) < SMALL else self.parts).extend(parts)

    def keep(self, wanted):
        """Leaves those whose owner is wanted."""
        self.small, self.parts = [x for x in self.small if wanted(x.owner)], [x for x in self.parts if wanted(x.owner)]

    def others(self, every):
        """The owners of what has other bytes now, of all or of what this call looks at."""
        found, some = self.small, self.parts
        if len(some) > PARTS and not every:
            some, self.at = some[self.at:self.at + PARTS], self.at + PARTS if self.at + PARTS < len(some) else 0
        if some:
            found = found + some
        return [part.owner for part in found if part.is_other()]
