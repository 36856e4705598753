"""plan: a captured step with an address for every byte."""
import ctypes
import json
import os
import re
from ctypes import byref, c_char_p, c_int64, c_void_p

from . import _capture, _compare
from ._errors import Error, NotSupported
from ._library import USAGE, Compiled, Context, Options, Rule, Task, lib, text_of

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
         "TIB": 2**40}


def bytes_of(memory):
    """A limit as bytes: an int, or text such as "3GiB", or "auto", what is free here; 0 of None."""
    if memory == "auto":
        context, free = Context(), c_int64()
        context.check(lib.tn_memory_free(context.pointer, byref(lib.tn_options_default()), byref(free), None))
        return free.value
    if memory is None:
        return 0
    if isinstance(memory, bool) or not isinstance(memory, (int, str)):
        raise TypeError(f"memory: expected bytes, text such as \"3GiB\", or \"auto\", found {type(memory).__name__}")
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
    if not found or found[2].upper() not in UNITS:
        raise ValueError(f'memory: expected bytes, text such as "3GiB", or "auto", found {memory!r}')
    nbytes = int(float(found[1]) * UNITS[found[2].upper()])
    if not 0 < nbytes <= 2**62:
        raise ValueError(f"memory: expected 1 to {2**62} bytes, found {memory!r}")
    return nbytes


def mesh_text(mesh):
    """"dp=2,tp=4" of that text, of a dict of sizes by axis, or of a DeviceMesh with names; None: one rank."""
    if mesh is None or isinstance(mesh, str):
        return mesh
    names = getattr(mesh, "mesh_dim_names", None)
    if names:
        mesh = dict(zip(names, mesh.mesh.shape))
    if not isinstance(mesh, dict) or not mesh or not all(isinstance(name, str) and not isinstance(size, bool)
                                                        and isinstance(size, int) for name, size in mesh.items()):
        raise TypeError('mesh: expected text such as "fsdp=2,tp=4", a dict {"fsdp": 2}, or a DeviceMesh with '
                        f"mesh_dim_names, found {mesh!r}")
    return ",".join(f"{name}={size}" for name, size in mesh.items())


class Settings:
    """tn_options with the texts that it borrows."""

    def __init__(self, memory, recompute, chunk, machine, rules, mesh=None, shard=None):
        self.keep = []
        self.options = lib.tn_options_default()
        self.options.memory = bytes_of(memory)
        self.options.optimizer = b"none"
        self.options.explain = 1
        self.options.machine = self.text(machine, "machine")
        if recompute is not None:
            self.options.recompute = self.text(recompute, "recompute")
        chunk = [] if chunk is None else [chunk] if isinstance(chunk, (str, int)) else chunk
        if not isinstance(chunk, (list, tuple)) or not all(isinstance(word, (str, int)) for word in chunk):
            raise TypeError(f'chunk: expected a number, text such as "auto", or a list of these, found {chunk!r}')
        if chunk:
            self.options.chunk = self.texts([str(word) for word in chunk])
            self.options.nchunk = len(chunk)
        rules = {} if rules is None else rules
        if not isinstance(rules, dict) or not all(isinstance(x, str) for rule in rules.items() for x in rule):
            raise TypeError(f'policies: expected a dict such as {{"h.0::addmm": "must_save"}}, found {rules!r}')
        if rules:
            self.options.rules = (Rule * len(rules))(*(Rule(self.text(policy), self.text(pattern))
                                                       for pattern, policy in rules.items()))
            self.options.nrules = len(rules)

        self.mesh = mesh_text(mesh)
        self.options.mesh = self.text(self.mesh, "mesh")
        shard = [] if shard is None else shard
        shard = [shard] if isinstance(shard, str) else shard
        if not isinstance(shard, (list, tuple)) or not all(isinstance(word, str) for word in shard):
            raise TypeError(f'shard: expected "auto", "PATTERN=AXIS:MESH_AXES", or a list of these, found {shard!r}')
        if self.mesh and shard:
            self.options.shardings = self.texts(shard)
            self.options.nshardings = len(shard)

    def text(self, text, what="options"):
        if text is None:
            return None
        if not isinstance(text, (str, os.PathLike)):
            raise TypeError(f"{what}: expected text, found {type(text).__name__}")
        self.keep.append(os.fspath(text).encode())
        return self.keep[-1]

    def texts(self, words):
        return (c_char_p * len(words))(*(self.text(word) for word in words))


class Made:
    """A plan in libtenon, with its context, its graph and its settings, and nothing of PyTorch's: programs keep it, and
    tensors in their arenas keep programs, so that a parameter here would keep itself alive."""

    def __init__(self, captured, settings, context):
        self.context, self.settings = context, settings
        self.compiled = None
        self.source = c_void_p()
        self.programs = []  # pointers of the programs of it that are not freed
        context.check(lib.tn_graph_parse(context.pointer, captured.text.encode(), b"captured step", byref(self.source)))
        compiled = Compiled()
        task = Task()
        task.nparts = 1
        task.part[0].graph = self.source
        task.part[0].passes = captured.passes
        code = lib.tn_compile(context.pointer, byref(task), byref(settings.options), byref(compiled))
        context.check(code, ValueError if code == USAGE else Error)
        self.compiled = compiled

    def __del__(self):
        # The collector of cycles calls these in any order: a plan frees programs of it that are left, and what belongs
        # to a context is gone with that.
        if self.compiled is None or not self.context.pointer:
            return
        for pointer in self.programs:
            lib.tn_program_free(pointer)
            pointer.value = None
        lib.tn_compiled_free(byref(self.compiled))
        self.compiled = None


class Plan:
    """A step that has been planned. It does not change; compile makes programs of it.

    peak        bytes of the arena: parameters, optimizer state, gradients and all that lives between
    reserve     bytes that libraries take beside it
    persistent  bytes of parameters, state, buffers and constants, within the peak
    seconds     that a step is estimated to take
    categories  {"parameters": bytes, ...} at the peak
    scopes      a list of dicts: scope, count, bytes_at_peak, bytes_saved, bytes_recomputed
    decisions   a list of dicts: what is saved and computed again, and why
    graph       the graph's text, as the passes have left it

    str(plan) is the table that `tenon plan` prints; a notebook shows the page of html()."""

    def __init__(self, captured, settings, context=None):
        self.captured = captured
        self.context = context or Context()
        self.settings = settings
        self.made = Made(captured, settings, self.context)
        self._pointer, self._graph = self.made.compiled.plan[0], self.made.compiled.graph[0] or self.made.source
        self.data = json.loads(text_of(self.context, lib.tn_plan_json, self._pointer, 1))

    def __reduce__(self):
        raise NotSupported("a Plan cannot be copied or pickled: plan the captured step again")

    @property
    def peak(self):
        return self.data["planned_peak_bytes"]

    @property
    def reserve(self):
        return self.data["library_reserve_bytes"]

    @property
    def persistent(self):
        return self.data["persistent_bytes"]

    @property
    def seconds(self):
        return self.data["est_step_sec"]

    @property
    def categories(self):
        return self.data["by_category"]

    @property
    def scopes(self):
        return self.data["by_scope"]

    @property
    def decisions(self):
        return self.data["decisions"]

    @property
    def graph(self):
        return text_of(self.context, lib.tn_graph_print, self._graph)

    def __str__(self):
        return text_of(self.context, lib.tn_plan_text, self._pointer, 0)

    def __repr__(self):
        return f"<tenon.Plan: peak {self.peak} bytes, reserve {self.reserve}>"

    def explain(self):
        """What was decided of each value that has a policy, a line each; "" where nothing was to be decided."""
        return text_of(self.context, lib.tn_plan_explain, self._pointer)

    def html(self):
        """A page that needs no network: bytes alive over the step, the map of the arena, tables of the peak."""
        plans = (c_void_p * 1)(self._pointer)
        return text_of(self.context, lib.tn_plan_page, ctypes.cast(plans, ctypes.POINTER(c_void_p)), None, 1,
                       b"captured step", b"tenon.plan(captured)")

    def export(self):
        """The planned graph as the code of a Python module that PyTorch runs without Tenon: recomputed and sliced as
        planned. forward takes the tensors of its INPUTS in order, run takes and returns them by name."""
        text = c_char_p()
        self.context.check(lib.tn_graph_export_fx(self._graph, byref(text)), NotSupported)
        return text.value.decode()

    def compare(self, other=None, *, budgets=None):
        """This Plan beside another, or beside what PyTorch needs for the step: a Comparison, whose str() is a table and
        whose rows are data.

        other    another Plan: the table is followed by what is saved and computed again, and operations; None: none
        budgets  numbers from 0 to 1: PyTorch's eager step, and its activation_memory_budget at each of them; None: four
                 of them where there is no other Plan

        PyTorch's own tracker counts the bytes of its tensors on tensors without data. Raises NotSupported where this
        PyTorch has no such tracker."""
        if other is not None and not isinstance(other, Plan):
            raise TypeError(f"compare: expected a Plan, found {type(other).__name__}")
        rows, text = [_compare.row_of(self, "this plan")], ""
        if other is not None:
            rows.append(_compare.row_of(other, "other plan"))
            text = self._differences(other)
        if budgets is None:
            budgets = _compare.BUDGETS if other is None else None
        if budgets is not None:
            rows += _compare.beside_pytorch(self.captured, budgets)
        return _compare.Comparison(rows, text)

    def _differences(self, other):
        twin = Plan(other.captured, other.settings, self.context)  # plans that are compared are of one context
        plans, sides = (c_void_p * 2)(self._pointer, twin._pointer), (c_char_p * 2)(b"this", b"other")
        return text_of(self.context, lib.tn_plan_compare, ctypes.cast(plans, ctypes.POINTER(c_void_p)),
                       ctypes.cast(sides, ctypes.POINTER(c_char_p)), 0)

    def _repr_html_(self):
        page = self.html().replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 640px; border: 0"></iframe>'


def plan(captured, *, memory=None, recompute=None, chunk=None, policies=None, machine=None, mesh=None, shard=None):
    """Plans a captured step: runs nothing.

    memory     the limit of plan and reserve together, bytes or text such as "3GiB"; what makes the step fit is computed
               again, at the least time; "auto": what is free here, less a margin; None: no limit
    recompute  "auto" (with memory), "none", "full", "selective", "every=K": as of `tenon plan`
    chunk      "auto", a number of slices, "PATTERN=N", or a list of these: as `tenon plan --chunk`
    policies   {"SCOPE::OP" pattern: policy}: "must_save", "prefer_save", "prefer_recompute", "must_recompute", "offload",
               "none"
    machine    by which kernels are chosen, as `tenon plan --machine`; None: this one as it was tuned
    mesh       the ranks that run the step: "fsdp=2,tp=4", a dict of sizes by axis, or a DeviceMesh with names; the plan is
               of one of them, of the whole batch; None: those on which the module's DTensors lie, else one rank
    shard      how ranks cut the parameters: "auto", "PATTERN=AXIS:MESH_AXES" rules, or a list of these; None: as the
               module's DTensors are placed, where mesh is None too, else as the axes' names say, `tenon plan --mesh`

    Returns a Plan. Raises DoesNotFit with the least limit that would do; ValueError for words that are none of these."""
    if not isinstance(captured, _capture.Captured):
        raise TypeError(f"plan: expected what capture returned, found {type(captured).__name__}")
    if mesh is None and captured.mesh:
        mesh = captured.mesh
        shard = captured.ranks.rules(captured) if shard is None else shard
    if shard is not None and mesh is None:
        raise ValueError("shard: expected a mesh beside it")
    return Plan(captured, Settings(memory, recompute, chunk, machine, policies, mesh, shard))
