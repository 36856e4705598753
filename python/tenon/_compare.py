"""compare: a Plan beside what PyTorch itself needs for the same step, counted by PyTorch's own tracker
(torch.distributed._tools.MemTracker) on tensors without data: nothing is computed.

The eager step is run as it stands, forward, backward and the optimizer's update in its plain loop. For an
activation_memory_budget AOTAutograd's joint graph goes through PyTorch's min-cut partitioner, and forward and backward
are run call by call. The tracker counts bytes of tensors, not what kernels and allocators take beside them."""
import contextlib
import inspect

import torch
import torch._functorch.config as functorch_config
from torch._subclasses.fake_tensor import FakeTensorMode

from ._errors import NotSupported

BUDGETS = (1.0, 0.5, 0.2, 0.0)


class Comparison:
    """Peaks side by side; str() is the table.

    rows  a list of dicts: name, peak (bytes), categories (bytes at the peak by name, in the words of who counted);
          of a Plan reserve too, what libraries take beside it
    text  what `tenon plan --compare` prints of two plans; "" without another Plan"""

    def __init__(self, rows, text=""):
        self.rows, self.text = rows, text

    def table(self):
        """Name, peak and what it is of the first one's, by row."""
        first = self.rows[0]["peak"]
        return [(r["name"], f"{r['peak']:,}", f"{r['peak'] / first:.2f}") for r in self.rows]

    def __str__(self):
        rows = [("", "peak bytes", "of the first"), *self.table()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{name:<{widths[0]}}  {peak:>{widths[1]}}  {part:>{widths[2]}}".rstrip() for name, peak, part in rows]
        return "\n".join([*lines, *([self.text] if self.text else [])])

    def __repr__(self):
        return str(self)

    def _repr_html_(self):
        rows = "".join(f"<tr><td style='text-align: left'>{name}</td><td>{peak}</td><td>{part}</td></tr>"
                       for name, peak, part in self.table())
        return f"<table><tr><th></th><th>peak bytes</th><th>of the first</th></tr>{rows}</table>"


def row_of(plan, name):
    return {"name": name, "peak": plan.peak, "reserve": plan.reserve, "categories": plan.categories}


class NoHook:
    """A handle of no hook."""

    def remove(self):
        pass


def without_hooks(p):
    """p, whose gradient nobody asks for, as the tracker takes it: it gives each parameter hooks, and PyTorch refuses them."""
    p.register_hook = p.register_post_accumulate_grad_hook = lambda hook: NoHook()
    return p


class Twin:
    """The tensors of a captured step without data: parameters, buffers, arguments, and the optimizer with its state."""

    def __init__(self, captured):
        self.captured, self.holder = captured, captured.holder
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        fake = self.mode.from_tensor
        self.parameters = {name: torch.nn.Parameter(fake(p.detach()), p.requires_grad)
                           for name, p in self.holder.named_parameters()}
        for p in self.parameters.values():
            if not p.requires_grad:
                without_hooks(p)
        self.buffers = {name: fake(b.detach()) for name, b in self.holder.named_buffers()}
        self.inputs = [fake(captured.leaves[i].detach()) for i in captured.places]
        self.bag = torch.nn.Module()  # for the tracker, which asks modules what is a parameter
        for i, p in enumerate(self.parameters.values()):
            self.bag.register_parameter(f"p{i}", p)
        for i, b in enumerate(self.buffers.values()):
            self.bag.register_buffer(f"b{i}", b)
        self.optimizer = self.twin_of(captured.optimizer) if captured.optimizer is not None else None

    def twin_of(self, optimizer):
        """Another optimizer of the same kind, over these parameters, with state as after a step."""
        own = {id(p): self.parameters[name] for name, p in self.holder.named_parameters()}
        groups = [{**{k: v for k, v in group.items() if k not in ("foreach", "fused")}, "foreach": False,
                   "params": [own[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
        twin = type(optimizer)(groups)
        with self.mode:
            for path, key in self.captured.update.states.values():
                p = own[id(self.captured.update.parameter[path])]
                twin.state[p][key] = torch.zeros_like(p)
                if key != "momentum_buffer":
                    twin.state[p]["step"] = torch.tensor(1.0)
        return twin

    def peak(self, forward):
        """Bytes of tensors alive at the peak of a step whose forward is given, by the tracker's kinds; total first."""
        from torch.distributed._tools.mem_tracker import MemTracker

        from ._capture import compiling
        tracker = MemTracker()
        tracker.track_external(self.bag, *self.inputs, *([self.optimizer] if self.optimizer else []))
        with self.mode, tracker, torch.enable_grad():
            with compiling():
                out = forward()
                out[0].backward()
            if self.optimizer:
                self.optimizer.step()
        for p in self.parameters.values():
            p.grad = None
        total, kinds = 0, {}
        for device in tracker.get_tracker_snapshot("peak").values():
            for kind, nbytes in device.items():
                if kind == "Total":
                    total += int(nbytes)
                else:
                    kinds[kind.value] = kinds.get(kind.value, 0) + int(nbytes)
        return total, kinds

    def eager(self):
        with self.holder.plain():
            return self.peak(lambda: torch.func.functional_call(self.holder, {**self.parameters, **self.buffers},
                                                                tuple(self.inputs)))

    def budget(self, budget):
        from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        from ._capture import joint
        from ._outside import Outside
        captured = self.captured
        self.holder.outside = Outside(*self.holder.refers)
        with (contextlib.ExitStack() as stack, self.holder.outside.followed(),
              functorch_config.patch(activation_memory_budget=budget)):
            traced = joint(stack, self.holder, [captured.leaves[i] for i in captured.places])
            with_cut = {"partition_fn": min_cut_rematerialization_partition}
            if "partition_fn" not in inspect.signature(aot_compile_joint_with_descriptors).parameters:  # PyTorch 2.9
                traced._aot_state.aot_config.partition_fn = with_cut.pop("partition_fn")
            call = aot_compile_joint_with_descriptors(traced, **with_cut)
        own = {id(t): fake for names, twins in ((self.holder.named_parameters, self.parameters),
                                                (self.holder.named_buffers, self.buffers))
               for (_, t), fake in zip(names(), twins.values())}  # a tied parameter is an argument under each name
        state = dict([*self.holder.named_parameters(remove_duplicate=False),
                      *self.holder.named_buffers(remove_duplicate=False)])
        arguments = [own[id(state[name])] for name in [*traced.params_spec, *traced.buffers_spec]]
        return self.peak(lambda: call(*arguments, *self.inputs))


def beside_pytorch(captured, budgets):
    """Rows of the eager step and of each activation_memory_budget."""
    for budget in budgets:
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= 1:
            raise ValueError(f"budgets: expected numbers from 0 to 1, found {budget!r}")
    if captured.ranks:
        captured.ranks.refuse("compare with PyTorch")
    rows = []
    for name, count in [("PyTorch, eager", Twin.eager),
                        *((f"PyTorch, activation_memory_budget {b:g}", lambda t, b=b: t.budget(b)) for b in budgets)]:
        try:
            total, kinds = count(Twin(captured))
        except ImportError as error:
            raise NotSupported(f"compare: PyTorch {torch.__version__} cannot count this step: {error}") from None
        rows.append({"name": name, "peak": total, "categories": kinds})
    return rows
