"""What a graph has as it was when it was captured. Where it is another since, the step is recorded again: a Step refuses to
run if its graph would be another one too."""
import collections
import warnings

import torch

from ._contents import Contents, memory, tensor_of
from ._errors import NotSupported
from ._places import MISSING, Place, place_of
from ._watch import SETTINGS, Called, Calls, Everywhere, Setting

ALWAYS = 1_000    # values of the user's lines that each call of a Step looks at
LOOKED = 400      # of the others, or fifty times as many entries of a list, that one call of a Step looks at
TRIES = 3         # changes of a value, soon after others, that made no difference, after which it is not looked at
SOON = 50         # calls of a Step


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
