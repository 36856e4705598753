"""capture: a step of PyTorch as a graph of Tenon.

PyTorch's AOTAutograd runs the step on fake tensors and records forward, loss and backward in ATen calls, with what each
input and output stands for. Hooks note the module and the user's line of each forward call; a backward call is of the
forward call whose autograd node runs it. The code goes through `tenon import fx`."""
import contextlib
import os
import re
import sys
import tempfile
import weakref

import torch
import torch.fx.traceback as fx_traceback
from torch._functorch._aot_autograd import descriptors as aot
from torch.nn.modules import module as nn_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from . import _arguments, _calls, _checkpoint, _effects, _flex, _loop, _modules, _optimizer, _outside, _ranks, _save, _tn, _watch
from ._errors import CaptureError, Error, NotSupported
from ._fx import Code, type_of, where
from ._lines import by_torch, refusal, user_line
from ._places import same

# ---- modules ----

def modules_of(step, model, args):
    """The modules of a step by name: those given, else those that the step is, is bound to, refers to or takes."""
    if model is not None:
        if isinstance(model, torch.nn.Module):
            return {"": model}
        if isinstance(model, dict) and all(isinstance(m, torch.nn.Module) for m in model.values()) and model:
            return dict(model)
        raise CaptureError(f"model: expected a module, or a dict of modules by name, found {type(model).__name__}")
    if not callable(step):
        raise TypeError(f"capture: expected a function or a module, found {type(step).__name__}")
    if isinstance(step, torch.nn.Module):
        return {"": step}
    found = _modules.find(step, args)
    if not found:
        raise CaptureError("no module was found in what the step refers to; give model=: a parameter that is in none goes into "
                           "one, as nn.ParameterList([weight])")
    return {"": next(iter(found.values()))} if len(found) == 1 else found


class Holder(torch.nn.Module):
    """A module whose parameters are those of the step's modules, and whose forward is the step: tensors in, the loss
    and what else the step gave, detached, out."""

    def __init__(self, step, modules, spec, leaves, places):
        super().__init__()
        self._modules.update({f"m{i}": m for i, m in enumerate(modules.values())})
        self.prefix = {f"m{i}.": f"{name}." if name else "" for i, name in enumerate(modules)}
        self.call = lambda args, kwargs: step(*args, **kwargs)  # a module that is a member would be one of ours
        paths = [(self.path(name + ".").rstrip("."), m) for name, m in self.named_modules() if m is not self]
        self.refers = step, leaves, paths  # what an Outside is made of
        self.spec, self.leaves, self.places = spec, leaves, places
        self.out_spec = self.loss_at = None
        self.out_leaves = self.out_is_tensor = ()
        self.records = True
        self.autocast = _watch.around()

    @contextlib.contextmanager
    def plain(self):
        """While it is on, forward is the step alone: nothing is noted, and checkpoints are PyTorch's own."""
        self.records = False
        try:
            yield
        finally:
            self.records = True

    def path(self, target):
        """The name of a parameter or buffer among the step's modules."""
        for key, prefix in self.prefix.items():
            if target.startswith(key):
                return prefix + target[len(key):]
        raise AssertionError(target)

    def forward(self, *tensors):
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors):
            leaves[at] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        with torch.autocast(**self.autocast), contextlib.ExitStack() as stack:
            if self.records:
                stack.enter_context(Scopes(self))
                stack.enter_context(_loop.refused(user_line))
                stack.enter_context(self.effects.noted())
                stack.enter_context(_checkpoint.Tagging())
                stack.enter_context(_flex.taken())
                stack.enter_context(self.outside.buffers())
                self.outside.begin()
            out = self.call(args, kwargs)
            if self.records:
                self.outside.forward_ends()
        flat, self.out_spec = pytree.tree_flatten(out)
        self.loss_at = loss_place(out, flat)
        self.out_is_tensor = [isinstance(x, torch.Tensor) for x in flat]
        self.out_leaves = [None if isinstance(x, torch.Tensor) else x for x in flat]
        loss = flat[self.loss_at]
        if loss.dim() or not loss.dtype.is_floating_point:
            raise CaptureError("the loss, the first tensor that the step returns, or `loss` of a mapping, must be a "
                               f"floating-point scalar, found {loss.dtype} {list(loss.shape)}")
        if not loss.requires_grad:
            raise CaptureError("the loss does not depend on a parameter that requires a gradient")
        return [loss, *(x.detach() for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and i != self.loss_at)]


def loss_place(out, flat):
    """Which leaf of a step's result is the loss: its member `loss`, or its first tensor."""
    loss = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    for i, x in enumerate(flat):
        if isinstance(x, torch.Tensor) and (loss is None or x is loss):
            return i
    raise CaptureError(f"the step must return the loss, or a tuple or mapping that begins with it, found "
                       f"{type(out).__name__}")


class Scopes(TorchFunctionMode):
    """While it is on, each call that is recorded has the module that runs and the user's line in its meta."""

    def __init__(self, holder):
        super().__init__()
        self.path, self.effects, self.outside = {}, holder.effects, holder.outside
        for name, m in holder.named_modules():
            if m is not holder:
                self.path.setdefault(id(m), holder.path(name + ".").rstrip("."))
        self.stack, self.hooks, self.line = [""], [], ""

    def note(self):
        meta = fx_traceback.get_current_meta()
        meta["custom"] = {**meta.get("custom", {}), "tenon": (self.stack[-1], self.line)}

    def begin(self, module, _):
        _ranks.check_replicas(module)
        if id(module) not in self.path and any(x is not None for x in module._parameters.values()):
            line = user_line(sys._getframe(1)).partition(", in ")[0]
            raise CaptureError(f"a {type(module).__name__} that the step calls is in none of the step's modules ({line}); give "
                               "model={'': model, 'teacher': teacher}")
        self.stack.append(self.path.get(id(module), self.stack[-1]))
        self.note()

    def end(self, module, *_):
        self.stack.pop()
        self.note()

    def __enter__(self):
        self.hooks = [nn_module.register_module_forward_pre_hook(self.begin),
                      nn_module.register_module_forward_hook(self.end, always_call=True)]
        self.note()
        return super().__enter__()

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()
        meta = fx_traceback.get_current_meta()
        if "custom" in meta:
            meta["custom"] = {k: v for k, v in meta["custom"].items() if k != "tenon"}
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        _loop.check_call(function, sys._getframe(1), user_line)
        line = user_line(sys._getframe(1))
        self.effects.check_draws(line)
        if function is torch.Tensor.__format__:
            self.effects.note(sys._getframe(1))
        if line != self.line:
            self.line = line
            self.note()
        kwargs = kwargs or {}
        with self.outside.paused(function):
            return _calls.call(function, args, kwargs)


# ---- the joint graph ----

def joint(stack, holder, tensors, mode=None):
    """The joint graph of a holder's forward and its backward, as AOTAutograd makes it, in contexts that last as long as
    the stack. mode: that of parameters which have no data; None: all have."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors  # it takes a second of its own

    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    # The backward runs where loss.backward() would, outside of any autocast that is around the step.
    for context in (_calls.alignments(), torch.enable_grad(), torch.autocast("cpu", enabled=False),
                    fx_traceback.preserve_node_meta(),
                    torch._guards.tracing(torch._guards.TracingContext(mode)), compiling()):
        stack.enter_context(context)
    return aot_export_joint_with_descriptors(stack, holder, tuple(tensors))


@contextlib.contextmanager
def compiling():
    """Libraries ask torch.compiler.is_compiling() before they look into tensors, as they must not here."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def annotate(gm):
    """Gives each node of a joint graph tenon_scope, tenon_line, tenon_backward and tenon_policy."""
    first = {}
    for node in gm.graph.nodes:
        meta = node.meta
        backward = meta.get("partitioner_tag") == "is_backward" or bool(meta.get("autograd_backward"))
        said = meta.get("custom", {}).get("tenon")
        seq = meta.get("seq_nr")
        if backward and (not said or seq in first):
            said = first.get(seq, said)
        elif said and seq is not None:
            first.setdefault(seq, said)
        meta["tenon_backward"] = backward
        meta["tenon_scope"], meta["tenon_line"] = said or ("", "")
    _checkpoint.keep_results(gm.graph.nodes)
    for node in gm.graph.nodes:
        node.meta["tenon_policy"] = _checkpoint.policy_name(node.meta)


class Captured:
    """A step as a graph: forward, loss and backward, with the names of its parameters, buffers and arguments, and the
    optimizer's update where one was given.

    text        the graph, a .tn file's text
    parameters  {name: Parameter}, of those that the step reads, tied ones once
    buffers     {name: tensor}
    inputs      names of the step's tensors, in their order, flat
    ports       what the graph calls its inputs and outputs
    optimizer   the optimizer, or None
    mesh        "fsdp=4,tp=2", the ranks of a module whose parameters are DTensors; None: one rank

    It refers to the modules and the optimizer, and copies nothing of them."""

    passes = b"default"  # the pipeline by which it is planned

    def __init__(self):
        self.text = ""
        self.parameters, self.frozen, self.buffers, self.constants = {}, {}, {}, {}
        self.inputs, self.types = [], []
        self.constant_lines = []
        self.strides = {}    # of inputs that as_strided looks into
        self.tied = {}       # other names of parameters
        self.metrics = []    # names of outputs beside the loss, in the order of the step's result
        self.pairs = set()   # of a program's outputs those that are complex tensors, of which it has pairs
        self.training = []   # (module, whether it was in training mode)
        self.trainable = {}  # by a parameter's name whether it required a gradient
        self.optimizer = self.update = self.ranks = None
        self.summary = ""

    @property
    def mesh(self):
        return self.ranks and self.ranks.mesh

    def __reduce__(self):
        raise NotSupported("a Captured cannot be copied or pickled: capture the step again, or keep its .text")

    def again(self, *args, **kwargs):
        """Captures the same step with other arguments, of other sizes say: the same modules and the same optimizer, with
        the state that it has now, under the autocast that was around the capture. A Step that is compiled of it takes the
        parameters over."""
        step, model = self.source
        with torch.autocast(**self.autocast):
            return capture(step, *args, model=model, optimizer=self.optimizer, **kwargs)

    def check(self):
        """Raises NotSupported where the model is another than this graph's: its members, hooks, or what is fixed."""
        self.watch.check()
        self.fixed.check(lambda: self.recorded_again(self.autocast), every=True)
        _watch.check_hooks(self.parameters, self.optimizer)
        _watch.check_trainable(self)

    def recorded_again(self, autocast=None):
        """The step recorded again: "" if it is this same graph now, whose constants it then has, and its Fixed; else the
        reason, or True, and None. autocast: that which is around it; None: that which is on now."""
        other = Captured()
        try:
            builder = record(other, self.holder, self.names, self.ranks, autocast)
        except Error as error:
            return f". It would not be captured now: {error}", None
        constants = zip(self.constants.values(), other.constants.values())
        equal = (without_scopes(builder.graph_text) == self.recorded and all(torch.equal(a, b) for a, b in constants)
                 and outputs_equal(self, self.holder))
        if not equal:
            return True, None
        self.constants.update(zip(self.constants, other.constants.values()))
        return "", self.holder.outside.fixed(self.constants, other.constant_lines)

    def save(self, folder):
        """Writes step.tn, the graph, and weights.safetensors, its parameters, buffers and constants as they are now,
        for `tenon plan FOLDER/step.tn` and `tenon train FOLDER/step.tn --inputs FOLDER/weights.safetensors`. The
        optimizer's state is not among them. Makes the folder where there is none, and replaces the two files. Raises
        NotSupported where parameters are DTensors."""
        _save.save(self, folder)

    def __repr__(self):
        what = f", {type(self.optimizer).__name__}" if self.optimizer else ""
        return (f"Captured({len(self.parameters)} parameters, {len(self.buffers)} buffers, inputs "
                f"{', '.join(self.inputs)}{what})")


def capture(step, *args, model=None, optimizer=None, **kwargs):
    """Records one training step of PyTorch: forward and loss by the step, the backward by autograd, and the update by
    Tenon's own form of the optimizer. Nothing is computed, and the model is as before.

    step       a function, or a module, that returns the loss: a floating-point scalar; or a tuple, or a mapping with
               the key or member `loss`, whose other tensors a Step returns too
    args       what the step takes: tensors on the CPU give shapes and dtypes, all else is fixed at its value
    model      the module, or a dict of modules by name; None: those that the step's closure refers to, or its
               arguments are
    optimizer  torch.optim.AdamW, Adam or SGD over parameters of the model, or None

    Returns a Captured. Raises CaptureError where PyTorch cannot record the step or Tenon has no such op, with the op
    and the line; NotSupported for an optimizer, a setting or a dtype that Tenon does not have."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    modules = modules_of(step, model, leaves)
    _modules.check(modules)
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    names = _arguments.names_of(step, args, kwargs)
    for i, x in enumerate(leaves):
        _arguments.check(names[i] if i in places else f"argument {i}", x)
    if torch.is_inference_mode_enabled():
        raise CaptureError("capture under torch.inference_mode, in which autograd records nothing: capture outside of it")
    holder = Holder(step, modules, spec, leaves, places)
    ranks = _ranks.find(holder)
    update = _optimizer.read(optimizer, holder) if optimizer is not None else None
    _watch.check_hooks({holder.path(name): p for name, p in holder.named_parameters()}, optimizer)
    captured = Captured()
    builder = record(captured, holder, names, ranks)
    captured.text, captured.ports = _tn.compose(builder, update)
    if ranks:
        ranks.give_back(captured)
        captured.ranks = ranks
    holder.outside.warn()
    holder.effects.warn()
    captured.fixed = holder.outside.fixed(captured.constants, captured.constant_lines)
    captured.names, captured.recorded = names, without_scopes(builder.graph_text)
    captured.source, captured.autocast = (step, model), holder.autocast
    captured.holder, captured.optimizer, captured.update = holder, optimizer, update
    captured.leaves, captured.spec, captured.places = leaves, spec, places
    captured.out_spec, captured.out_leaves, captured.loss_at = holder.out_spec, holder.out_leaves, holder.loss_at
    captured.out_is_tensor = holder.out_is_tensor
    captured.watch = _watch.Watch(holder, [*captured.parameters.values(), *builder.read.values()])
    captured.trainable = {name: p.requires_grad for name, p in captured.parameters.items()}
    captured.training = [(weakref.ref(m), m.training) for m in holder.modules() if m is not holder]
    return captured


def record(captured, holder, names, ranks=None, autocast=None):
    """Records a holder's step; gives the Builder of its graph."""
    holder.autocast = autocast or _watch.around()
    holder.outside = _outside.Outside(*holder.refers)
    holder.effects = _effects.Effects(user_line, by_torch)
    with ranks.whole() if ranks else contextlib.nullcontext():
        for name, x in [*holder.named_parameters(), *holder.named_buffers()]:
            _arguments.check_plain(holder.path(name), x)
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(holder.effects.iterators.clear)
                stack.enter_context(holder.outside.followed())
                gm = joint(stack, holder, [holder.leaves[i] for i in holder.places], ranks and ranks.mode).graph_module
        except Error:
            raise
        except Exception as error:
            raise CaptureError(refusal(error)) from error
        annotate(gm)
        builder = Builder(captured, holder, gm, [names[i] for i in holder.places], [holder.leaves[i] for i in holder.places])
        builder.build()
    return builder


def outputs_equal(x, y):
    """Whether what two recordings return beside tensors is equal."""
    return x.out_spec == y.out_spec and all(map(same, x.out_leaves, y.out_leaves))


def without_scopes(text):
    """A graph's text but for names of modules, which an equal one in a module's place may have other."""
    return re.sub(r'  @"[^"]*"', "", text)


def base_of(node):
    """What the first argument of a call is a view of, through other calls."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def strided(nodes):
    """The inputs whose memory as_strided looks into, through views or not."""
    return [base_of(node) for node in nodes if node.op == "call_function" and
            node.target in (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)]


def effect(node):
    """Why an input is refused that orders calls with effects, by the first of these; "" of any other."""
    call = next((user for user in node.users if user.target is torch.ops.higher_order.with_effects), None)
    return f"{call.args[1]} has an effect beside its results, which no graph has{where(call)}" if call else ""


class Builder:
    """Writes the code of a joint graph, has it imported, and keeps what its inputs and outputs stand for."""

    def __init__(self, captured, holder, gm, inputs, tensors):
        self.captured, self.holder, self.gm = captured, holder, gm
        self.input_names, self.tensors = inputs, tensors
        self.node_names = {}
        self.code = Code(self.node_names)
        self.ports = {}     # name in the code -> (role, name of the role)
        self.read = {}      # parameters and buffers that a node reads or the step writes, by name
        self.outputs = []   # (role, name of the role), in the order of the code's results
        self.graph_text = ""

    def tensor(self, target):
        module, _, name = target.rpartition(".")
        owner = self.holder.get_submodule(module)
        return getattr(owner, name)

    def name_inputs(self, nodes):
        """Names inputs in the code, each tensor once: a tied parameter is one input. Returns the def line's words."""
        words, by_tensor = [], {}
        c = self.captured
        for node in nodes:
            desc = node.meta["desc"]
            if isinstance(desc, (aot.ParamAOTInput, aot.BufferAOTInput)):
                tensor, path = self.tensor(desc.target), self.holder.path(desc.target)
                if id(tensor) in by_tensor:
                    self.node_names[node] = by_tensor[id(tensor)][0]
                    c.tied[path] = by_tensor[id(tensor)][1]
                    continue
                param = isinstance(desc, aot.ParamAOTInput)
                kind = c.parameters if param else c.buffers
                if path in c.parameters or path in c.buffers:
                    raise CaptureError(f"two of the model's tensors are called {path}; give model= with other names")
                name = f"tn_{'p' if param else 'b'}{len(kind)}"
                by_tensor[id(tensor)] = (name, path)
                kind[path] = tensor
                self.read.update({path: tensor} if node.users else {})
                self.ports[name] = ("param" if param else "const", path)
            elif isinstance(desc, aot.PlainAOTInput):
                tensor = self.tensors[desc.idx]
                name = f"tn_x{desc.idx}"
                self.ports[name] = ("batch", self.input_names[desc.idx])
            elif isinstance(desc, aot.TangentAOTInput):
                self.tangent = node
                self.node_names[node] = "tn_tangent"
                continue
            else:
                raise CaptureError(effect(node) or f"an input that is {desc}: Tenon has no such inputs")
            self.node_names[node] = name
            words.append(f'{name}: "{type_of(tensor)}"')
        c.inputs = list(self.input_names)
        c.types = [(tuple(t.shape), t.dtype) for t in self.tensors]
        return words

    def build(self):
        nodes = list(self.gm.graph.nodes)
        self.tangent = None
        self.by_line = self.code.nodes
        words = self.name_inputs([n for n in nodes if n.op == "placeholder"])
        inputs = [node.meta["desc"] for node in strided(nodes) if node.op == "placeholder"]
        at = [desc.idx for desc in inputs if isinstance(desc, aot.PlainAOTInput)]
        self.captured.strides = {self.input_names[i]: self.tensors[i].stride() for i in at}
        self.code.add(f"def forward(self, {', '.join(words)}):")
        output = nodes[-1]
        loss = self.find_loss(output)
        for node in nodes:
            if node.op == "call_function":
                self.node_names[node] = f"{node.name}" if not node.name.startswith("tn_") else node.name + "_"
                self.code.call(node)
            elif node.op == "get_attr":
                self.constant(node)
            if node is loss:
                self.seed(node)
        if loss.op != "call_function":
            raise CaptureError("the loss is an input of the step")
        self.results(output)
        self.graph_text = self.imported()

    def seed(self, loss):
        """The tangent, which autograd takes for 1, right after the loss."""
        if self.tangent is not None:
            self.code.add(f"    # scope: {loss.meta['tenon_scope'] or '-'}, is_backward", loss)
            self.code.add(f'    tn_tangent: "{type_of(loss.meta["val"])}" = '
                          f"torch.ops.aten.ones_like.default({self.node_names[loss]})", loss)

    def constant(self, node):
        tensor = self.gm
        for name in node.target.split("."):
            tensor = getattr(tensor, name)
        if not isinstance(tensor, torch.Tensor):
            raise CaptureError(f"{node.target} is a {type(tensor).__name__}, which no graph can have")
        if tensor.requires_grad:
            raise CaptureError(f"a tensor of {list(tensor.shape)} that requires a gradient is in none of the step's "
                               f"modules{where(next(iter(node.users), node))}; give model=, or detach it before")
        name = f"tn_c{len(self.captured.constants)}"
        while name in self.captured.parameters or name in self.captured.buffers:
            name += "_"
        self.captured.constants[name] = tensor.detach()
        self.captured.constant_lines.append(where(next(iter(node.users), node)))
        self.ports[name] = ("const", name)
        self.node_names[node] = node.name
        node.meta["val"] = tensor.detach()
        self.code.constant(node, name)

    def find_loss(self, output):
        for node, desc in zip(output.args[0], output.meta["desc"]):
            if isinstance(desc, aot.PlainAOTOutput) and desc.idx == 0:
                return node
        raise CaptureError("the graph has no loss")

    def results(self, output):
        """The return line: the loss, the gradients of parameters (of a tied one the sum), what else the step gives,
        and new values of buffers."""
        values, gradients = [], {}
        c = self.captured
        for node, desc in zip(output.args[0], output.meta["desc"]):
            if node is None:  # the gradient of what has none
                continue
            name = self.node_names[node]
            if isinstance(desc, aot.PlainAOTOutput):
                role = ("loss", "") if desc.idx == 0 else ("metric", f"out{desc.idx}")
                if desc.idx:
                    c.metrics.append(role[1])
                    if node.meta["val"].is_complex():
                        c.pairs.add(f"metric.{role[1]}")
                values.append((name, role))
            elif isinstance(desc, aot.GradAOTOutput):
                path = self.holder.path(desc.grad_of.target)
                gradients.setdefault(c.tied.get(path, path), []).append(node)
            elif isinstance(desc, aot.InputMutationAOTOutput):
                values.append((name, self.mutation(desc.mutated_input)))
            else:
                raise CaptureError(f"a result that is {desc}: Tenon has no such results")
        for path in c.parameters:
            if path in gradients:
                values.append((self.summed(gradients[path]), ("grad", path)))
        self.code.add(f"    return ({', '.join(name for name, _ in values)},)")
        self.outputs = [role for _, role in values]
        c.frozen = {path: p for path, p in c.parameters.items() if path not in gradients}

    def mutation(self, desc):
        if isinstance(desc, aot.BufferAOTInput):
            path = self.holder.path(desc.target)
            for name, (_, role_name) in self.ports.items():
                if role_name == self.captured.tied.get(path, path):
                    self.ports[name] = ("state", role_name)
                    self.read[role_name] = self.captured.buffers[role_name]
                    return ("new", role_name)
        what = self.holder.path(desc.target) if hasattr(desc, "target") else f"argument {desc.idx}"
        raise NotSupported(f"the step writes to {what} in place: only buffers may be written; write to it after "
                           "the Step, or make it a buffer")

    def summed(self, nodes):
        name = self.node_names[nodes[0]]
        for node in nodes[1:]:
            self.code.add("    # scope: -, is_backward", node)
            total = f"tn_sum{len(self.code.lines)}"
            self.code.add(f"    {total} = torch.ops.aten.add.Tensor({name}, {self.node_names[node]})", node)
            name = total
        return name

    def imported(self):
        """The text of the graph that the code becomes; errors name the op and the user's line."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.txt")
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.code.text())
            try:
                text, self.captured.summary = _tn.import_fx(path)
            except Error as error:
                raise CaptureError(self.named(str(error), path)) from None
        return text

    def part(self, message, node):
        """A message about a call, which says that strides are not known where they are those of an argument that is a part of
        a larger tensor."""
        desc = base_of(node).meta.get("desc")
        if not isinstance(desc, aot.PlainAOTInput) or _watch.span(self.tensors[desc.idx]) == self.tensors[desc.idx].numel():
            return message
        said = f"it reads the memory of {self.input_names[desc.idx]}, a part of a larger tensor, of which a Step has the part " \
               "alone; give its .contiguous()"
        return re.sub("the strides of what self is a view of .* tells them", said, message)

    def named(self, message, path):
        """An importer's message with the user's line in the place of the code's."""
        found = re.match(re.escape(path) + r":(\d+):\d+: (.*)", message, re.S)
        if not found:
            return message.replace(path, "the step")
        line, said = int(found[1]) - 1, found[2].strip()
        node = self.by_line[line] if line < len(self.by_line) else None
        return said if node is None else self.part(said, node) + where(node)
