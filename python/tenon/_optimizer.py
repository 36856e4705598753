"""PyTorch's optimizers as nodes of a graph.

An optimizer is read, never traced: a trace of its step would have the first step's bias correction in it. Learning
rates are inputs of the graph, all else of a group's settings is fixed when the step is captured, and refused where it
has changed since."""
import math
import operator
import re

import torch

from ._errors import NotSupported

READ = {torch.optim.AdamW: ("exp_avg", "exp_avg_sq"), torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
        torch.optim.SGD: ("momentum_buffer",)}
NOT_HERE = ("amsgrad", "differentiable", "nesterov")  # settings that must be off


def rate(group):
    """A group's learning rate now."""
    lr = group["lr"]
    if isinstance(lr, bool) or not (isinstance(lr, (int, float)) or
                                    (isinstance(lr, torch.Tensor) and lr.numel() == 1)):
        found = f"a tensor of {list(lr.shape)}" if isinstance(lr, torch.Tensor) else repr(lr)
        raise ValueError(f"lr: expected a number, found {found}")
    return finite("lr", float(lr))


def finite(key, x):
    """x. Raises ValueError where it is no number that a parameter can be updated by."""
    if not math.isfinite(x):
        raise ValueError(f"{key}: expected a finite number, found {x}")
    return x


def settings(optimizer, group):
    """What of a group is fixed in the graph. Raises NotSupported for what Tenon does not have."""
    name = type(optimizer).__name__
    for key in NOT_HERE:
        if group.get(key):
            raise NotSupported(f"{name}: {key}=True; Tenon has it not")
    if group.get("dampening"):
        raise NotSupported(f"{name}: dampening={group['dampening']}; Tenon has only 0")
    out = {"weight_decay": finite("weight_decay", float(group["weight_decay"])),
           "maximize": bool(group.get("maximize"))}
    if isinstance(optimizer, torch.optim.SGD):
        return {**out, "momentum": finite("momentum", float(group["momentum"]))}
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    beta1, beta2 = (finite("betas", float(b)) for b in group["betas"])
    return {**out, "beta1": beta1, "beta2": beta2, "eps": finite("eps", float(group["eps"])),
            "decoupled": bool(decoupled)}


def read(optimizer, holder):
    """The Update of an optimizer whose parameters are those of a holder's modules."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        several = isinstance(optimizer, (list, tuple, dict))
        raise TypeError(f"optimizer: expected one of torch.optim's, found "
                        f"{f'the class {optimizer.__name__}' if isinstance(optimizer, type) else type(optimizer).__name__}"
                        f"{'; with several, capture without one, and call the step() of each after Step(...)' * several}")
    if type(optimizer) not in READ:
        known = ", ".join(t.__name__ for t in READ)
        raise NotSupported(f"optimizer {type(optimizer).__module__}.{type(optimizer).__name__}: Tenon has {known}; "
                           "capture without one gives gradients to any optimizer")
    names = {id(p): holder.path(name) for name, p in holder.named_parameters()}
    for i, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if id(p) not in names:
                raise NotSupported(f"{type(optimizer).__name__}: a parameter of {list(p.shape)} in group {i} is none "
                                   "of the step's modules; give model=")
    for group in optimizer.param_groups:
        rate(group)
    return Update(optimizer, names)


class Update:
    """The update of a step: for each group its settings and names of parameters, and which inputs of the graph it adds.

    rates   names of the scalars that are learning rates, by group
    double  those of them that are f64, as a parameter of the group is
    steps   {name of a scalar: count of steps that are done}, one for parameters with equal counts
    states  {name of the state: (parameter's name, key in optimizer.state)}"""

    def __init__(self, optimizer, names):
        self.optimizer = optimizer
        self.settings = [settings(optimizer, group) for group in optimizer.param_groups]
        self.members = [list(group["params"]) for group in optimizer.param_groups]
        self.group = {names[id(p)]: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self.parameter = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
        self.keys = READ[type(optimizer)]
        self.rates = ["lr" if not i else f"lr.{i}" for i in range(len(self.settings))]
        self.steps, self.step_of, self.states, self.double = {}, {}, {}, set()
        self.roles = []  # of the states in the graph, in their order

    def done(self, path):
        """Steps that a parameter has had."""
        return int(self.optimizer.state.get(self.parameter[path], {}).get("step", 0))

    def check(self):
        """Raises NotSupported where a group's settings are no longer those of the graph."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self.settings):
            raise NotSupported(f"the optimizer has {len(groups)} groups, the captured step {len(self.settings)}; "
                               "capture again")
        for i, (group, before) in enumerate(zip(groups, self.settings)):
            if len(group["params"]) != len(self.members[i]) or not all(map(operator.is_, group["params"], self.members[i])):
                raise NotSupported(f"group {i} has other parameters than in the captured step; capture again")
            now = settings(self.optimizer, group)
            for key, value in before.items():
                cycled = "; a schedule needs cycle_momentum=False" if key in ("momentum", "beta1") else ""
                if now[key] != value:
                    raise NotSupported(f"group {i}: {key} is {now[key]}, and {value} in the captured step, in which it "
                                       f"is fixed; capture again{cycled}")

    def append(self, names, types, builder, results, taken, ports):
        """Lines for the graph's text: inputs, nodes, and its results (role, name, value) with the new values in the
        place of gradients."""
        code = {role_name: name for name, (role, role_name) in builder.ports.items() if role == "param"}
        writer = Writer(taken, ports)
        kept, gradients = [], {}
        for role, name, value in results:
            if role == "grad":
                gradients[name] = value
            else:
                kept.append((role, ports.role(name), value))
        used = {path: self.group[path] for path in gradients if path in self.group}
        self.double = {self.rates[i] for path, i in used.items() if types[code[path]].startswith("f64")}
        rates = {i: writer.input(self.rates[i], "f64[]" if self.rates[i] in self.double else "f32[]", "scalar")
                 for i in sorted(set(used.values()))}
        for path, gradient in gradients.items():
            if path in self.group:
                kind = types[code[path]]
                kept += self.one(writer, path, f"%{names[code[path]]}", kind, gradient, rates[self.group[path]])
        return writer.inputs, writer.nodes, kept

    def one(self, writer, path, p, kind, gradient, rate_value):
        """Adds the update of one parameter."""
        have = self.settings[self.group[path]]
        dtype, role = kind[:kind.index("[")], writer.ports.role(path)
        decay = have["weight_decay"]
        if have["maximize"]:
            gradient = writer.node(kind, f"neg({gradient})")
        one, true = writer.constant("f32", 1.0), writer.constant("bool", 1.0)
        if "momentum" in have:
            states = [writer.input(f"{path}.m", kind, "state", role + ".m")] if have["momentum"] else []
            self.states.update({f"{path}.m": (path, "momentum_buffer")} if states else {})
            call = (f"sgd({', '.join([p, gradient, rate_value, one, true, *states])}, weight_decay={number(decay)}, "
                    f"momentum={number(have['momentum'])})")
        else:
            if decay and not have["decoupled"]:
                pull = writer.node(kind, f"mul({p}, {writer.constant(dtype, decay)})")
                gradient, decay = writer.node(kind, f"add({gradient}, {pull})"), 0.0
            states = [writer.input(f"{path}.{k}", kind, "state", f"{role}.{k}") for k in "mv"]
            self.states.update({f"{path}.{k}": (path, key) for k, key in zip("mv", self.keys)})
            call = (f"adamw({', '.join([p, gradient, *states, rate_value, self.count(writer, path), one, true])}, "
                    f"beta1={number(have['beta1'])}, beta2={number(have['beta2'])}, eps={number(have['eps'])}, "
                    f"weight_decay={number(decay)})")
        outs = [writer.fresh(f"{v[1:]}.new") for v in [p, *states]]
        writer.nodes.append(f"  {', '.join(f'{v}: {kind}' for v in outs)} = {call}  optimizer")
        role_names = [role, *(f"{role}.{k}" for k in "mv"[:len(states)])]
        self.roles += role_names[1:]
        return [("new", name, value) for name, value in zip(role_names, outs)]

    def count(self, writer, path):
        """The input that is the number of a parameter's step, from 1."""
        done = self.done(path)
        for name, at in self.steps.items():
            if at == done:
                self.step_of[path] = name
                return writer.values[name]
        name = "step" if not self.steps else f"step.{len(self.steps)}"
        self.steps[name] = done
        self.step_of[path] = name
        if name == "step" and ("step", "") in writer.ports.inputs:  # random numbers read it already
            writer.values[name] = "%" + writer.ports.inputs["step", ""]
            return writer.values[name]
        return writer.input(name, "i64[]", "step" if name == "step" else "scalar")


class Writer:
    """Lines of a graph's text, with names that nothing else has."""

    def __init__(self, taken, ports):
        self.taken, self.ports, self.inputs, self.nodes = taken, ports, [], []
        self.values, self.constants = {}, {}  # of inputs by name; by dtype and number

    def fresh(self, name):
        name = re.sub(r"[^\w.]", "_", name, flags=re.ASCII)
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return "%" + name

    def input(self, name, kind, role, role_name=""):
        value, role_name = self.fresh(name), role_name or self.ports.fresh_role(name)
        quoted = role_name.replace("\\", "\\\\").replace('"', '\\"')
        self.inputs.append(f"    {value}: {kind} step" if role == "step" else f'    {value}: {kind} {role} "{quoted}"')
        self.values[name] = value
        self.ports.add(role, "" if role == "step" else name, value[1:])
        return value

    def node(self, kind, call):
        value = self.fresh("update")
        self.nodes.append(f"  {value}: {kind} = {call}  optimizer")
        return value

    def constant(self, dtype, x):
        if (dtype, x) not in self.constants:
            self.constants[dtype, x] = self.node(f"{dtype}[]", f"full(size=[], fill_value={number(x)}, dtype={dtype})")
        return self.constants[dtype, x]


def number(x):
    """A float as a graph's text has it."""
    return repr(float(x))
