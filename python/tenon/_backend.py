"""torch.compile(model, backend="tenon"): the forward and the backward of each graph that Dynamo finds, as a Tenon
program each. Parameters stay PyTorch's: programs find them, and what the forward saves for the backward, at the
addresses that PyTorch gave them. A graph that Tenon has not is run by PyTorch, and the reason is said once."""
import ctypes
import re
import threading
import warnings

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from . import _capture, _tn
from ._errors import DoesNotFit, Error, NotSupported
from ._fx import DTYPES, Code, type_of
from ._lines import HERE, TORCH
from ._library import Port, lib
from ._plan import Plan, Settings
from ._step import Program

ALIGN = 64
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def memory_order(tensor):
    """The dimensions of a tensor in the order of its memory, the outermost first; None where that memory has gaps or
    overlaps."""
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    expected = 1
    for d in reversed(order):
        if tensor.shape[d] != 1 and tensor.stride(d) != expected:
            return None
        expected *= tensor.shape[d]
    return order


class Form:
    """How a tensor lies in PyTorch's memory and in a program's: there it is row-major, its dimensions in the order of
    PyTorch's memory where that is dense, so that neither copies it."""

    def __init__(self, fake):
        plain = list(range(fake.dim()))
        order = memory_order(fake)
        self.order = order or plain
        self.turned = self.order != plain
        self.inverse = [self.order.index(d) for d in plain]
        self.sizes = [fake.shape[d] for d in self.order]
        self.dtype, self.nbytes = fake.dtype, fake.numel() * fake.element_size()
        self.type, self.full_type = f"{DTYPES[fake.dtype]}{self.sizes}", type_of(fake)
        # PyTorch's own strides of a result that a program gives dense
        self.strided = None if order is not None or 0 in fake.stride() else (tuple(fake.shape), tuple(fake.stride()))

    def turn(self, tensor):
        return tensor.permute(self.order) if self.turned else tensor

    def back(self, memory):
        out = memory.permute(self.inverse) if self.turned else memory
        return out if self.strided is None else torch.empty_strided(*self.strided, dtype=self.dtype, device="cpu").copy_(out)


class NoCalls(Exception):
    """A graph that computes nothing."""


class Graph(_capture.Builder):
    """The text of a graph of AOTAutograd, whose inputs are constants of the step and whose results are its metrics.

    forms    of its inputs, None of one that nothing reads
    outs     forms of its results that are computed
    results  ("port", index of outs), ("input", index), or ("value", what it is)"""

    passes = b"forward"

    def __init__(self, gm, backward):
        self.gm, self.backward = gm, backward
        self.node_names, self.ports, self.outputs, self.constants, self.constant_lines = {}, {}, [], {}, []
        self.code = Code(self.node_names)
        self.by_line = self.code.nodes
        self.parameters, self.buffers, self.captured = {}, {}, self  # what Builder.constant looks at
        self.input_names, self.tensors = [], []  # none is a part of another
        self.forms, self.outs, self.results = [], [], []
        nodes = list(gm.graph.nodes)
        self.arguments([n for n in nodes if n.op == "placeholder"])
        for node in nodes:
            if node.op == "call_function":
                self.call(node)
            elif node.op == "get_attr":
                self.constant(node)
        self.give(nodes[-1].args[0], [n for n in nodes if n.op == "placeholder"])
        self.graph_text = self.imported()
        self.text, self.names = _tn.compose(self, None)

    def arguments(self, placeholders):
        words = []
        for i, node in enumerate(placeholders):
            self.forms.append(None)
            if not node.users:
                continue
            fake = node.meta.get("val")
            if not isinstance(fake, torch.Tensor) or any(not isinstance(n, int) for n in fake.shape):
                found = f"a tensor of {list(fake.shape)}" if isinstance(fake, torch.Tensor) else f"the size {fake}"
                raise NotSupported(f"{found} is symbolic; torch.compile(..., dynamic=False) makes a program for each "
                                   "size")
            form = self.forms[i] = Form(fake)
            name = self.node_names[node] = f"tn_i{i}"
            self.ports[name] = ("const", f"i{i}")
            words.append(f'{name}: "{form.type}"')
        self.code.add(f"def forward(self, {', '.join(words)}):")
        for node, form in zip(placeholders, self.forms):
            if form is not None and form.turned:
                name = self.node_names[node]
                self.code.add("    # scope: -")
                self.code.add(f'    {name}_t: "{form.full_type}" = '
                              f"torch.ops.aten.permute.default({name}, {form.inverse})")
                self.node_names[node] = f"{name}_t"

    def call(self, node):
        node.meta["tenon_scope"], node.meta["tenon_line"] = scope_of(node)
        node.meta["tenon_backward"], node.meta["tenon_policy"] = self.backward, None
        self.node_names[node] = f"{node.name}_" if node.name.startswith("tn_") else node.name
        self.code.call(node)

    def give(self, results, placeholders):
        names, at = [], {}
        for x in results:
            if not isinstance(x, Node):
                self.results.append(("value", x))
            elif x.op == "placeholder":
                self.results.append(("input", placeholders.index(x)))
            elif x in at:
                self.results.append(("port", at[x]))
            elif not isinstance(x.meta.get("val"), torch.Tensor):
                raise NotSupported(f"a result that is no tensor, {x.meta.get('val')}")
            else:
                at[x] = len(self.outs)
                self.results.append(("port", at[x]))
                names.append(self.result(x))
        if not names:
            raise NoCalls
        self.code.add(f"    return ({', '.join(names)},)")

    def result(self, node):
        form, i = Form(node.meta["val"]), len(self.outs)
        self.outs.append(form)
        self.outputs.append(("metric", f"o{i}"))
        if not form.turned:
            return self.node_names[node]
        self.code.add("    # scope: -")
        self.code.add(f"    tn_o{i} = torch.ops.aten.permute.default({self.node_names[node]}, {form.order})")
        return f"tn_o{i}"


class Compiled:
    """A graph that runs: called with PyTorch's tensors, gives its results. Calls wait for one another."""

    def __init__(self, graph, settings):
        self.graph = graph
        self.program = Program(Plan(graph, Settings(**settings)).made)
        self.lock = threading.Lock()
        self._boxed_call = True  # arguments come as a list, which the call may empty
        self.outs = [self.output(i, form) for i, form in enumerate(graph.outs)]
        self.inputs = []  # (index of the argument, form, the graph's input)
        for i, form in enumerate(graph.forms):
            if form is not None and ("const", f"i{i}") in graph.names.inputs:
                name = graph.names.inputs["const", f"i{i}"].encode()
                if lib.tn_program_port(self.program.pointer, name, ctypes.byref(Port())) == 0:
                    self.inputs.append((i, form, name))
        self.bound = {}  # by an input's name its address
        for name, tensor in graph.constants.items():
            self.program.write(graph.names.tensor(name), tensor)
        self.seed = graph.names.inputs.get(("seed", ""))

    def output(self, i, form):
        """(its name, its form, whether it can lie in PyTorch's memory)"""
        name = f"metric.{self.graph.names.role(f'o{i}')}"
        alone = form.nbytes and not lib.tn_program_bind(self.program.pointer, name.encode(), ALIGN)
        return name.encode(), form, alone

    def put(self, tensor, form, name):
        tensor = form.turn(tensor.detach())
        if not form.nbytes:
            return
        lazy = tensor.is_conj() or tensor.is_neg()  # its memory has other values
        address = 0 if lazy else tensor.data_ptr()
        if lazy or address % ALIGN or not tensor.is_contiguous():
            if self.bound.pop(name, None):
                self.program.check(lib.tn_program_bind(self.program.pointer, name, None))
            self.program.write(name.decode(), tensor)
        elif self.bound.get(name) != address:
            self.program.check(lib.tn_program_bind(self.program.pointer, name, address))
            self.bound[name] = address

    def __call__(self, arguments):
        with self.lock:
            held = list(arguments)
            if isinstance(arguments, list):
                arguments.clear()  # boxed: what nobody else has is freed after the run
            for i, form, name in self.inputs:
                self.put(held[i], form, name)
            if self.seed is not None:
                seed = ctypes.c_int64(int(torch.randint(2**62, (), device="cpu")))
                self.program.check(lib.tn_program_write(self.program.pointer, self.seed.encode(), ctypes.byref(seed), 8))
            memory = [torch.empty(form.sizes, dtype=form.dtype, device="cpu") for _, form, _ in self.outs]
            for (name, _, alone), x in zip(self.outs, memory):
                if alone:
                    self.program.check(lib.tn_program_bind(self.program.pointer, name, x.data_ptr()))
            self.program.check(lib.tn_program_run(self.program.pointer))
            for (name, form, alone), x in zip(self.outs, memory):
                if not alone and form.nbytes:
                    self.program.check(lib.tn_program_read(self.program.pointer, name, x.data_ptr(), form.nbytes))
        outs = [form.back(x) for (_, form, _), x in zip(self.outs, memory)]
        return [outs[x] if kind == "port" else held[x] if kind == "input" else x for kind, x in self.graph.results]


def scope_of(node):
    """The module of a call, and the user's line that made it."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    path = re.sub(r"^L\['\w+'\]", "", path)
    path = re.sub(r"_(?:modules|parameters)\['([^']*)'\]|\['?([^\]']*)'?\]", lambda m: f".{m[1] or m[2]}", path)
    path = re.sub(r"\.+", ".", path).strip(".")
    frames = [f for f in FRAME.findall(node.meta.get("stack_trace") or "")
              if not f[0].startswith((TORCH, HERE, "<"))]
    return path, f"{frames[-1][0]}:{frames[-1][1]}, in {frames[-1][2]}" if frames else ""


said = set()


def say(reason):
    if reason not in said:
        said.add(reason)
        warnings.warn(f"tenon: PyTorch runs a graph itself: {reason}", RuntimeWarning, stacklevel=2)


def plain(gm):
    """PyTorch's own run of a graph, called as a compiled one."""
    def run(arguments):
        held = list(arguments)
        if isinstance(arguments, list):
            arguments.clear()
        return gm(*held)
    run._boxed_call = True
    return run


def backend(gm, inputs, *, options=None, mode=None):
    """The backend of torch.compile. options: memory, chunk and machine of tenon.plan, for each program of its own."""
    settings = {"memory": None, "recompute": None, "chunk": None, "machine": None, "rules": None}
    known = ("memory", "chunk", "machine")
    for key in options or {}:
        if key not in known:
            raise ValueError(f"torch.compile, backend tenon: expected options among {', '.join(known)}, found {key}")
    if mode is not None:
        raise ValueError(f"torch.compile, backend tenon: mode={mode!r}; it has none")
    settings.update(options or {})

    def compiler(backward):
        def compile_graph(gm, _):
            try:
                with unset_fake_temporarily():  # Dynamo's mode, in which a graph's own constants cannot be read
                    return Compiled(Graph(gm, backward), settings)
            except NoCalls:
                return plain(gm)
            except DoesNotFit:
                raise
            except Error as error:
                say(str(error))
                return plain(gm)
        return compile_graph

    return aot_autograd(fw_compiler=compiler(False), bw_compiler=compiler(True),
                        partition_fn=min_cut_rematerialization_partition)(gm, inputs)
