"""compile: a planned step that runs, with the model's parameters in its arena.

A program's arena holds parameters, buffers and the optimizer's state. PyTorch sees each as a tensor of its own storage
over that memory; the storage keeps the program, so that a tensor may outlive the Step."""
import contextlib
import copy
import ctypes
import signal
import threading
import weakref
from ctypes import byref, c_int64, c_void_p

import torch
from torch.utils import _pytree as pytree

from . import _optimizer, _watch
from ._capture import Captured
from ._errors import Error, NotSupported
from ._library import USAGE, lib
from ._places import same, short
from ._plan import Plan, plan as make_plan

CONTIGUOUS = "; give its .contiguous()"
OTHER_SIZES = "; a plan is of fixed sizes: tenon.compile(captured.again(...)), with these arguments, makes a Step of theirs"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Said:
    """An argument as a message names it."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def call(leaves, spec):
    """Step(a, b=c) of the leaves of arguments."""
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return f"Step({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"


class Done(torch.autograd.Function):
    """A Step's loss, which requires a gradient as any loss does, so that its backward says what to leave out."""

    @staticmethod
    def forward(ctx, loss, anchor, updates):
        ctx.updates = updates
        return loss.clone()

    @staticmethod
    def backward(ctx, _):
        if ctx.updates:
            raise Error("the Step has computed the backward and updated the parameters: leave loss.backward(), "
                        "optimizer.step() and optimizer.zero_grad() out")
        raise Error("the Step has computed the backward and added the gradients to .grad: leave loss.backward() out, and "
                    "call optimizer.step() after the Step; what divides the loss, or scales it, goes into the step that is "
                    "captured")


def check_inference(what):
    if torch.is_inference_mode_enabled():
        raise Error(f"{what} under torch.inference_mode, whose tensors no step can train: call it outside of it")


class HeldInterrupt:
    """Ctrl-C waits for the end of the block, so that a step that has updated the parameters is counted too. In other
    threads than the main one, which get no signals, it does nothing."""

    def __enter__(self):
        self.signals = []
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.getsignal(signal.SIGINT)
            if self.before is not None:
                signal.signal(signal.SIGINT, lambda number, frame: self.signals.append((number, frame)))

    def __exit__(self, *_):
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            if self.signals and callable(self.before):
                self.before(*self.signals[-1])


adopting = threading.Lock()
holders = weakref.WeakValueDictionary()  # the Program in whose arena a tensor of a model is, by its address


def holder_of(tensor):
    """The Program in whose arena a Step has put a tensor of a model, None where none has."""
    program = holders.get(tensor.data_ptr())
    return program if program is not None and program.owners[tensor.data_ptr()]() is tensor else None


@contextlib.contextmanager
def taken_from(tensors):
    """While tensors are taken out of the arenas of other Steps none of these runs: one that runs in another thread is
    waited for."""
    def programs():
        return {id(x): x for x in map(holder_of, tensors) if x is not None}

    with adopting:
        while True:
            with contextlib.ExitStack() as stack:
                found = programs()
                for program in found.values():
                    stack.enter_context(program.lock)
                if programs().keys() == found.keys():  # no Step has taken one back meanwhile
                    yield
                    return


class Program:
    """A tn_program and what it is made of (a Made), freed with the last tensor in its arena."""

    def __init__(self, made):
        self.made = made
        self.lock = threading.Lock()  # of a run
        self.owners = {}              # the model's tensors in the arena, by their address
        self.pointer = c_void_p()
        made.context.check(lib.tn_program_new(made.compiled.plan[0], byref(made.settings.options), byref(self.pointer)))
        made.programs.append(self.pointer)

    def __del__(self):
        pointer = getattr(self, "pointer", None)
        if pointer and self.made.context.pointer:
            lib.tn_program_free(pointer)
            self.made.programs.remove(pointer)
            pointer.value = None

    def check(self, code):
        if code:
            message = lib.tn_program_error(self.pointer).decode(errors="replace")
            raise (ValueError if code == USAGE else Error)(message)

    def memory(self, name):
        """The address and bytes of an input or output."""
        data, nbytes = c_void_p(), c_int64()
        self.check(lib.tn_program_data(self.pointer, name.encode(), byref(data), byref(nbytes)))
        return data.value, nbytes.value

    def tensor(self, name, like):
        """An input or output as a tensor of the shape and dtype of another, row-major, over its memory in the arena."""
        address, nbytes = self.memory(name)
        if nbytes != like.numel() * like.element_size():
            raise Error(f"{name}: expected {like.numel() * like.element_size()} bytes, found {nbytes}")
        if not nbytes:
            return torch.empty(like.shape, dtype=like.dtype, device="cpu")
        memory = (ctypes.c_ubyte * nbytes).from_address(address)
        memory.program = self  # the storage refers to `memory`
        return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)

    def write(self, name, tensor):
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self.check(lib.tn_program_write(self.pointer, name.encode(), tensor.data_ptr(),
                                        tensor.numel() * tensor.element_size()))

    def has(self, name):
        from ._library import Port
        return lib.tn_program_port(self.pointer, name.encode(), byref(Port())) == 0


def is_dense(shape, strides):
    """Whether strides are those of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride() == strides


class Step:
    """One training step. Step(*args) takes what the captured step took, with the same shapes and dtypes, and returns
    what that returned: the loss, or the tuple or mapping with the loss. Its backward is done: loss.backward() is an error
    that says what to leave out. Other tensors are detached.

    With an optimizer it trains: parameters, buffers and the optimizer's state are updated in place, and .grad stays as
    it is. The learning rate is read from the optimizer's param_groups at every call. Without, it adds the gradients to
    .grad, and changes no parameter.

    The parameters and buffers of the model are in the step's arena from now on, each a tensor of its own storage:
    state_dict, load_state_dict and writes in place work. A parameter whose .data is replaced is refused by name. What
    another Step, of the same modules, has in its arena since then is taken back, with its values, when this one is called.
    Dropout draws its seed from PyTorch's generator at every call.

    plan  the Plan. Raises ValueError for other arguments than were captured, Error where the step fails."""

    def __init__(self, plan):
        check_inference("tenon.compile")
        self.plan = plan
        self.captured = c = plan.captured
        c.check()
        self.program = Program(plan.made)
        self._update = c.update
        self._owners, self._states = [], []  # (name, the model's tensor, its memory here, its address); (path, key, memory)
        self._resident = set()  # inputs that have their value from now on
        with taken_from([*c.parameters.values(), *c.buffers.values()]):
            self._adopt()
        self._read = {key: value for key, value in c.ports.inputs.items() if value not in self._resident}
        self._check_inputs()

    # ---- memory ----

    def _adopt(self):
        c, x = self.captured, self.program
        if self._update is not None:
            self._update.check()
        trained = lambda name: name in c.parameters and c.parameters[name].requires_grad
        _watch.check_memory({**c.parameters, **c.buffers}, lambda name: trained(name) or self._is_written(name))
        taken = []
        with torch.no_grad():
            for name, tensor in [*c.parameters.items(), *c.buffers.items()]:
                if c.ports.tensor(name) is not None:
                    taken.append((name, tensor, self._place(c.ports.tensor(name), tensor)))
            for name, constant in c.constants.items():
                self._place(c.ports.tensor(name), constant)
        for name, owner, view in taken:
            owner.data = view
            self._owners.append((name, owner, view, view.data_ptr()))
            self.program.owners[view.data_ptr()] = weakref.ref(owner)
            holders[view.data_ptr()] = self.program
        self._written = [owner for name, owner, *_ in self._owners if self._is_written(name)]
        if self._update is not None:
            self._adopt_state()

    def _is_written(self, name):
        """Whether a run changes it: a parameter that the optimizer has, a buffer that the step writes."""
        if name in self.captured.parameters:
            return self._update is not None and name in self._update.group and name not in self.captured.frozen
        return self.program.has(f"new.{self.captured.ports.role(name)}")

    def _place(self, value, tensor):
        """The memory of an input of the graph as a tensor, with another's values."""
        view = self._view(value, tensor)
        view.copy_(tensor)
        return view

    def _view(self, value, like):
        if value in self._resident:
            raise Error(f"the graph's input %{value} would be written twice")
        self._resident.add(value)
        return self.program.tensor(value, like)

    def _check_inputs(self):
        """Each input of the graph has its value from now on, or gets it at each call."""
        known = {("seed", ""), ("step", "")} | {("batch", name) for name in self.captured.inputs}
        if self._update is not None:
            known |= {("scalar", name) for name in [*self._update.rates, *self._update.steps]}
        for key, value in self._read.items():
            if key not in known:
                raise Error(f"the graph's input %{value} ({' '.join(key).strip()}) is written by nothing")
            if not self.program.has(value):
                raise Error(f"the planned graph has lost its input %{value}")

    def _adopt_state(self):
        """The optimizer's state in the arena, and its tensors there."""
        update = self._update
        for name, (path, key) in update.states.items():
            p = update.parameter[path]
            state = update.optimizer.state[p]
            view = self._view(self.captured.ports.inputs["state", name], p)
            before = state.get(key)
            with torch.no_grad():
                view.zero_() if before is None else view.copy_(before)
            state[key] = view
            if key != "momentum_buffer":
                state.setdefault("step", torch.tensor(0.0, dtype=torch.float32, device="cpu"))
            self._states.append((path, key, view))

    def _check_state(self):
        """Takes back state that load_state_dict has replaced."""
        update = self._update
        for path, key, view in self._states:
            state = update.optimizer.state[update.parameter[path]]
            now = state.get(key)
            if now is view:
                continue
            if now is None and not update.done(path):  # as of a new optimizer
                now = torch.zeros_like(view)
                if key != "momentum_buffer":
                    state.setdefault("step", torch.tensor(0.0, dtype=torch.float32, device="cpu"))
            if now is None:
                raise NotSupported(f"{path}: the optimizer's state has lost {key}")
            if now.shape != view.shape or now.dtype != view.dtype:
                raise ValueError(f"{path}: {key}: expected {view.dtype} {list(view.shape)}, found {now.dtype} "
                                 f"{list(now.shape)}")
            with torch.no_grad():
                view.copy_(now)
            state[key] = view

    def _check_owners(self):
        for name, owner, view, address in self._owners:
            if (owner.data_ptr() != address or not owner.is_contiguous()) and owner.numel():
                self._take_back(name, owner, view)

    @staticmethod
    def _take_back(name, owner, view):
        """Puts a tensor of the model that another Step has taken back into this one's arena."""
        other = holder_of(owner)
        if other is None or owner.shape != view.shape or not owner.is_contiguous() or owner.dtype != view.dtype:
            raise Error(f"{name}: its .data is another than the step's since compile; write into it in place "
                        "(load_state_dict, copy_), or compile again")
        if not other.lock.acquire(blocking=False):
            raise Error(f"{name} is in the arena of another Step, which is running in another thread; Steps that share "
                        "modules run one after the other")
        try:
            with torch.no_grad():
                view.copy_(owner)
            owner.data = view
        finally:
            other.lock.release()

    # ---- running ----

    def __call__(self, *args, **kwargs):
        if not self.program.lock.acquire(blocking=False):
            raise Error("the Step is running in another thread; each Step runs in one thread at a time")
        try:
            return self._run(args, kwargs)
        finally:
            self.program.lock.release()

    def _run(self, args, kwargs):
        if not torch.is_grad_enabled():
            check_inference("Step(...)")
            raise Error("a Step trains, and torch.no_grad() is on: evaluate with the model itself")
        self.captured.watch.check()
        self._check_owners()
        _watch.check_hooks(self.captured.parameters, self.captured.optimizer)
        _watch.check_trainable(self.captured)
        _watch.check_modes(self.captured)
        tensors = self._tensors(args, kwargs)
        self.captured.fixed.check(self.captured.recorded_again)
        if self._update is not None:
            self._update.check()
            self._check_state()
            self._set_scalars()
        if ("seed", "") in self._read:
            self._scalar(("seed", ""), c_int64(int(torch.randint(2**62, (), device="cpu"))))
        for name, tensor in zip(self.captured.inputs, tensors):
            if ("batch", name) in self._read:
                self.program.write(self._read["batch", name], tensor)
        with HeldInterrupt():
            self.program.check(lib.tn_program_run(self.program.pointer))
            torch.autograd.graph.increment_version(self._written + [view for _, _, view in self._states])
            if self._update is not None:
                self._count()
            else:
                self._add_gradients()
        return self._result()

    def _tensors(self, args, kwargs):
        """The tensors among the arguments, which must be as they were captured."""
        c = self.captured
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != c.spec:
            named = iter(c.inputs)
            then = [Said(next(named) if i in c.places else short(repr(x))) for i, x in enumerate(c.leaves)]
            now = [Said("tensor" if isinstance(x, torch.Tensor) else short(repr(x))) for x in leaves]
            raise ValueError(f"expected the arguments that were captured, {call(then, c.spec)}, found {call(now, spec)}")
        tensors = []
        for i, (now, then) in enumerate(zip(leaves, c.leaves)):
            if i not in c.places:
                if not same(now, then):
                    raise ValueError(f"argument {i}: {short(repr(then))} is fixed in the captured step, found {short(repr(now))}")
                continue
            shape, dtype = c.types[len(tensors)]
            given = isinstance(now, torch.Tensor)
            if not given or now.shape != shape or now.dtype != dtype or now.device.type != "cpu":
                found = f"{now.dtype} {list(now.shape)} on {now.device}" if given else type(now).__name__
                raise ValueError(f"{c.inputs[len(tensors)]}: expected {dtype} {list(shape)} on cpu, found {found}"
                                 f"{OTHER_SIZES if given and now.shape != shape else ''}")
            if now.layout is not torch.strided:
                raise ValueError(f"{c.inputs[len(tensors)]}: expected a dense tensor, found {now.layout}")
            strides = c.strides and c.strides.get(c.inputs[len(tensors)])
            if strides and any(n > 1 and a != b for n, a, b in zip(shape, now.stride(), strides)):
                raise ValueError(f"{c.inputs[len(tensors)]}: expected strides {strides}, by which the step's as_strided reads it, "
                                 f"found {now.stride()}{CONTIGUOUS if is_dense(shape, strides) else ''}")
            if now.requires_grad:
                raise NotSupported(f"{c.inputs[len(tensors)]} requires a gradient: a Step gives gradients of parameters only; "
                                   "detach() it")
            tensors.append(now)
        return tensors

    def _scalar(self, key, value):
        self.program.check(lib.tn_program_write(self.program.pointer, self._read[key].encode(), byref(value),
                                                ctypes.sizeof(value)))

    def _set_scalars(self):
        update = self._update
        for name, group in zip(update.rates, update.optimizer.param_groups):
            if ("scalar", name) in self._read:
                number = ctypes.c_double if name in update.double else ctypes.c_float
                self._scalar(("scalar", name), number(_optimizer.rate(group)))
        counts = {}
        for path, name in update.step_of.items():
            done = update.done(path)
            if counts.setdefault(name, done) != done:
                raise NotSupported(f"{path} has had {done} steps, parameters captured with it {counts[name]}; "
                                   "capture again")
        for name, done in counts.items():
            self._scalar(("step", "") if name == "step" else ("scalar", name), c_int64(done + 1))

    def _count(self):
        """The optimizer's own counts of steps, and what schedulers ask for."""
        update = self._update
        states = [update.optimizer.state[update.parameter[path]] for path in update.step_of]
        tensors = [state["step"] for state in states if isinstance(state["step"], torch.Tensor)]
        if tensors:
            torch._foreach_add_(tensors, 1)
        for state in states:
            if not isinstance(state["step"], torch.Tensor):
                state["step"] += 1
        update.optimizer._opt_called = True

    def _add_gradients(self):
        with torch.no_grad():
            for name, p in self.captured.parameters.items():
                if name in self.captured.frozen or not p.requires_grad:
                    continue
                gradient = self.program.tensor(f"grad.{self.captured.ports.role(name)}", p)
                if p.grad is None:
                    p.grad = gradient.clone()
                else:
                    p.grad.add_(gradient)

    def _output(self, name):
        from ._library import Port
        port = Port()
        self.program.check(lib.tn_program_port(self.program.pointer, name.encode(), byref(port)))
        dtype = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
                 "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}[port.dtype.decode()]
        out = torch.empty(list(port.shape[:port.rank]), dtype=dtype, device="cpu")
        if out.numel():
            self.program.check(lib.tn_program_read(self.program.pointer, name.encode(), out.data_ptr(),
                                                   out.numel() * out.element_size()))
        return torch.view_as_complex(out) if name in self.captured.pairs else out

    def _result(self):
        c = self.captured
        leaves, metrics = list(c.out_leaves), iter(c.metrics)
        for i, tensor in enumerate(c.out_is_tensor):
            if tensor:
                leaves[i] = self._output("loss" if i == c.loss_at else f"metric.{next(metrics)}")
        leaves[c.loss_at] = Done.apply(leaves[c.loss_at], torch.empty(0, requires_grad=True, device="cpu"),
                                           self._update is not None)
        return pytree.tree_unflatten(leaves, c.out_spec)

    # ---- copies ----

    def __reduce__(self):
        raise NotSupported("a Step cannot be copied or pickled; its model and optimizer can: model.state_dict(), "
                           "optimizer.state_dict()")

    def state_dict(self):
        """{"model": parameters and buffers by name, "optimizer": the optimizer's state_dict, where it has one}; copies,
        so that torch.save writes them alone."""
        c = self.captured
        out = {"model": {name: t.detach().clone() for name, t in [*c.parameters.items(), *c.buffers.items()]}}
        if c.optimizer is not None:
            out["optimizer"] = copy.deepcopy(c.optimizer.state_dict())
        return out

    def load_state_dict(self, state):
        """Copies a state_dict's values into the model, and into the optimizer where it has one."""
        c = self.captured
        own = {**c.parameters, **c.buffers}
        if set(own) != set(state["model"]):
            odd = sorted(set(own) ^ set(state["model"]))
            raise ValueError(f"load_state_dict: {odd[0]} and {len(odd) - 1} more are in one of step and state only")
        with torch.no_grad():
            for name, t in own.items():
                if t.shape != state["model"][name].shape:
                    raise ValueError(f"load_state_dict: {name}: expected {list(t.shape)}, found "
                                     f"{list(state['model'][name].shape)}")
            for name, t in own.items():
                t.copy_(state["model"][name])
        if c.optimizer is not None:
            c.optimizer.load_state_dict(state["optimizer"])
            for own in c.optimizer.state.values():  # PyTorch takes the state's own tensor, which steps would count up
                if isinstance(own.get("step"), torch.Tensor):
                    own["step"] = own["step"].clone()


def compile(captured, **settings):
    """Makes a captured step ready to run: a Step.

    captured  what capture returned, or a Plan
    settings  of plan, where it is not a Plan: memory, recompute, chunk, policies, machine

    The model's parameters and buffers move into the step's arena: their .data is replaced, values and identity stay.
    Raises as plan; Error where the memory cannot be mapped."""
    if isinstance(captured, Plan) and settings:
        raise TypeError(f"compile: {', '.join(settings)}: a Plan has its settings already")
    if not isinstance(captured, (Captured, Plan)):
        raise TypeError(f"compile: expected what capture or plan returned, found {type(captured).__name__}")
    mesh = captured.settings.mesh if isinstance(captured, Plan) else settings.get("mesh")
    source = captured.captured if isinstance(captured, Plan) else captured
    if source.ranks:
        source.ranks.refuse("compile")
    if mesh:
        raise NotSupported(f"compile: the plan is of one of the ranks of mesh {mesh}; a Step runs on one rank")
    return Step(captured if isinstance(captured, Plan) else make_plan(captured, **settings))
