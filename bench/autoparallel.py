#!/usr/bin/env python3
"""Tenon's sharding beside AutoParallel's, by AutoParallel's own prices.

For Llama-3 8B or 1B on 8 x 8 ranks of H100, Tenon's forms of the parameters, of the seven products of
each layer and of the residual stream are pinned in AutoParallel's integer program as node constraints,
and it is solved again: how far above its own optimum that is, which nodes differ, and the seconds of
both. AutoParallel's checkout (a54c252) is an argument; its Llama-3 and the constraints of its example
(batch over dp, logits over both axes) are used as they are. Ranks are PyTorch's fake process group, the
GPU is a name, as in its tests; tensors are fake ones of the CPU, as PyTorch's autograd asks a GPU's
driver otherwise, and attention is cuDNN's op, which its model takes on H100.

Three questions, each put to both:
  gradients  no update, parameters stored as is cheapest
  adamw      with AdamW, which AutoParallel does not know: its parameters take as many bytes as Tenon's
  hidden     with AdamW, gathers of parameters and reductions of gradients counted by the share that
             Tenon's plan takes; AutoParallel's default limit of parameters, a 64th of each

AutoParallel prices a change over both mesh axes as one over each, in a row. With --flat it may be one
over a flat group of all ranks too, at what AutoParallel's own table says of such a group.

usage: bench/autoparallel.py AUTOPARALLEL [--tenon PATH] [--model 8b|1b] [--layers N] [--cases LIST] [--least US]
                             [--flat]
Needs torch, pulp and what AutoParallel imports."""

import argparse
import contextlib
import json
import math
import operator
import os
import re
import resource
import subprocess
import sys
import tempfile
import types
import warnings
from collections import defaultdict
from unittest import mock

MODELS = {  # dim, layers, heads, key heads, hidden, its ffn_dim_multiplier and multiple_of
    "8b": (4096, 32, 32, 8, 14336, 1.3, 1024),
    "1b": (2048, 16, 32, 8, 8192, 1.5, 256),
}
VOCABULARY, TOKENS, ROWS = 128256, 8192, 16
CASES = {  # options of Tenon
    "gradients": ["--optimizer", "none", "--reshard", "never"],
    "adamw": ["--reshard", "never"],
    "hidden": [],
}
NAMES = {  # Tenon's of AutoParallel's
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
}
PRODUCTS = [n for n in NAMES if ".w" in n]


def cpu_sec():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


# ---- Tenon ----


def tenon_forms(tenon, model, layers, case, folder):
    """Forms by (node, scope, how many before it in that scope), and what the plan says of the choice."""
    dim, _, heads, kv, hidden, _, _ = MODELS[model]
    config = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": dim, "intermediate_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "max_position_embeddings": TOKENS, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    }
    path = os.path.join(folder, "config.json")
    with open(path, "w") as f:
        json.dump(config, f)
    command = [tenon, "plan", path, "--batch-size", str(ROWS), "--seq-len", str(TOKENS), "--dtype", "bf16",
               "--mesh", "dp=8,tp=8", "--machine", "h100", "--shard", "auto", "--overlap", "off", "--bucket", "off",
               "--json", *CASES[case]]

    def sharding_of(*more):
        plan = subprocess.run([*command, *more], check=True, capture_output=True).stdout
        return json.loads(plan)["sharding"]

    # the logits as AutoParallel's example has them: the first product of that scope, the others are its gradients
    products = [f["node"] for f in sharding_of()["forms"] if f["scope"] == "lm_head" and f["node"][:3] == "mm "]
    before = cpu_sec()
    pin = ["--pin", products[0].split("%")[1] + "=0:dp;1:tp"] if products else []
    sharding = sharding_of(*pin)
    sec = cpu_sec() - before
    taken = next(t for t in sharding["tried"] if t["taken"])
    if taken["exposed"] is None:
        sys.exit(f"{case}: the plan has the recipes' forms, which it does not list")
    seen, forms = defaultdict(int), {}
    for f in sharding["forms"]:
        op = "parameter" if f["port"] else f["node"].split()[0]
        at = (op, f["node"] if f["port"] else re.sub(r"layers\.\d+", "layers.N", f["scope"]))
        forms[(*at, seen[at])] = f["form"]
        seen[at] += 1
    return forms, taken, sec


# ---- AutoParallel ----


def pretend_h100():
    """Patches as those of its tests, and for what else looks for a device."""
    properties = types.SimpleNamespace(
        major=9, minor=0, name="H100", total_memory=80 << 30, multi_processor_count=132
    )
    stack = contextlib.ExitStack()
    for name, value in (
        ("torch.cuda.device_count", lambda: 8),
        ("torch.cuda.get_device_name", lambda *a, **k: "H100"),
        ("torch.cuda.get_device_capability", lambda *a, **k: (9, 0)),
        ("torch.cuda.get_device_properties", lambda *a, **k: properties),
        ("torch.cpu.get_device_name", lambda *a, **k: "H100"),
    ):
        stack.enter_context(mock.patch(name, value, create=True))
    return stack


def flat_collective(current, target):
    """The collective of a flat group that changes the placement of both mesh axes, and the tensor's axis that is
    cut before or after; None: there is none."""
    source, wanted = current.placements, target.placements
    if len(set(source)) != 1 or len(set(wanted)) != 1 or source == wanted:
        return None, None
    if source[0].is_shard() and wanted[0].is_replicate():
        return "allgather", source[0].dim
    if source[0].is_partial() and wanted[0].is_replicate():
        return "allreduce", 0
    if source[0].is_partial() and wanted[0].is_shard():
        return "reduce_scatter", wanted[0].dim
    return None, None


def flat_cost(prices, current, target):
    """Microseconds of a change by one collective of all ranks; infinite: it is none. Copies count as in sequences."""
    kind, axis = flat_collective(current, target)
    if not kind:
        return math.inf
    nbytes = prices.spec_to_bytes(current)
    cost = prices.collective_comm_cost(kind, nbytes, (current.mesh.size(),), 0)
    if axis != 0:
        cost += prices.compute_read_write_time(2 * nbytes)
    if not prices.check_contiguous_sizes_strides(current.shape, current.stride):
        cost += prices.compute_read_write_time(2 * nbytes / current.num_shards)
    return cost


def price_flat_groups():
    from autoparallel.cost_models import collective_runtime_estimation as prices

    plain = prices.redistribute_cost
    prices.redistribute_cost = lambda current, target, order: min(
        plain(current, target, order), flat_cost(prices, current, target)
    )


def op_of(node):
    if node.op != "call_function":
        return node.op
    words = str(node.target).split(".")
    return words[-2] if len(words) > 1 else node.target.__name__


class Problem:
    """AutoParallel's program of a model, and solutions of it."""

    def __init__(self, model, layers):
        import torch
        from autoparallel._testing.models import llama3
        from autoparallel.api import AutoParallel
        from torch.distributed.fsdp import MixedPrecisionPolicy
        from torch.distributed.tensor.placement_types import Replicate, Shard
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (8, 8), mesh_dim_names=("dp", "tp"))
        llama3.ScaledDotProductAttention.forward = lambda self, q, k, v: (
            torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0]
        )
        dim, _, heads, kv, hidden, factor, multiple = MODELS[model]
        args = llama3.TransformerModelArgs(
            dim=dim, n_layers=layers, n_heads=heads, n_kv_heads=kv, ffn_dim_multiplier=factor,
            multiple_of=multiple, rope_theta=500000, vocab_size=VOCABULARY, max_seq_len=TOKENS,
        )
        with torch.device("meta"):
            module = llama3.Transformer(args)
        assert module.layers["0"].feed_forward.w1.weight.shape == (hidden, dim)
        llama3.apply_ac(module, mode="selective", selective_ac_option="op")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        before = cpu_sec()
        self.auto = AutoParallel(
            module, lambda: torch.randint(0, VOCABULARY, (ROWS, TOKENS), device="cpu"), mesh, policy
        )
        self.auto.__enter__()
        self.auto.add_input_constraints([(Shard(0), Replicate())])
        self.auto.add_output_constraints([(Shard(0), Shard(2))])
        self.build_sec = cpu_sec() - before
        self.opt = self.auto.sharding_optimizer
        self.opt._set_objective()
        self._find_nodes()

    def _find_nodes(self):
        """Parameters by name, and the first product and the first sum that follow each."""
        from torch._functorch._aot_autograd.fx_utils import get_param_and_grad_nodes

        self.param, self.product, self.sum = {}, {}, {}
        for descriptor, (node, _) in get_param_and_grad_nodes(self.opt.graph).items():
            name = descriptor.target.replace("parametrizations.", "").replace(".original", "")
            name = re.sub(r"^L\['self'\]\.|_checkpoint_wrapped_module\.", "", name).removesuffix(".weight")
            self.param[name] = node
            self.product[name] = self._after(node, ("einsum", "mm"))
            if name.endswith((".wo", ".w2")):
                self.sum[name] = self._after(self.product[name], ("add",))

    @staticmethod
    def _after(node, ops):
        """The first node of these ops, in the order of the graph, behind one with nodes of one input between."""
        order = {n: i for i, n in enumerate(node.graph.nodes)}
        found, look = [], [node]
        for n in look:
            for user in n.users:
                if op_of(user) in ops:
                    found.append(user)
                elif len(user.all_input_nodes) == 1:
                    look.append(user)
        return min(found, key=order.get) if found else None

    def bytes_of(self, node, spec):
        from autoparallel.cost_models.compute_estimation import _get_sharded_shape_stride

        return math.prod(_get_sharded_shape_stride(spec)[0]) * spec.tensor_meta.dtype.itemsize

    def limit_bytes(self, most):
        """The memory constraint, in bytes of parameters."""
        import pulp

        terms = []
        for node in self.param.values():
            for i, s in enumerate(self.opt.strats[node].strategies):
                dv = self.opt._resolve_decision_var((self.opt.node_map[node], 0, i, 0))
                terms.append(dv.var * self.bytes_of(node, s.output_specs))
        self.opt.prob += (pulp.lpSum(terms) <= most, "bytes_of_parameters")

    def solve(self):
        """The keys of each node's variables that are 1, microseconds of all, and CPU seconds."""
        before = cpu_sec()
        self.opt._solve(verbose=False)
        sec = cpu_sec() - before
        if self.opt.prob.status != 1:
            sys.exit("autoparallel: no solution")
        nodes, price = defaultdict(list), 0.0
        for key in self.opt.selected_keys:
            nodes[self.opt.nodes[key[0]]].append(key)
            price += self.opt._resolve_decision_var(key).cost
        return nodes, price, sec

    def spec_of(self, node, solution):
        return self.opt._resolve_decision_var(solution[node][0]).output_spec

    def pin(self, node, placement, missing):
        """The names of the constraints, none where it lists no such placement."""
        try:
            return self.opt.add_node_constraint(node, placement)
        except RuntimeError:
            missing.append((node, placement))
            return []


def placement_of(form, dims):
    """AutoParallel's of a form as Tenon prints it; dims: its dimensions of each axis of Tenon's, major first."""
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

    made = {"dp": Replicate(), "tp": Replicate()}
    for word, text in re.findall(r"(shard|partial)\(([^)]*)\)", form):
        what, axes = text.split(": ")
        for i, axis in enumerate(axes.split(", ")):
            if word == "partial":
                made[axis] = Partial()
            else:
                own = dims[int(what)]
                made[axis] = Shard(own[min(i, len(own) - 1)])
    return made["dp"], made["tp"]


def wanted(problem, forms):
    """(node, placement) of every parameter, forward product and sum of the residual stream."""
    tokens = [(0, 1), (2,)]
    pins = []
    for name, node in problem.param.items():
        layer = re.match(r"layers\.\d+\.", name)
        short = NAMES[name[layer.end() :] if layer else name]
        port = f"model.layers.0.{short}" if layer else short
        pins.append((node, placement_of(forms["parameter", f"{port}.weight", 0], [(0,), (1,)])))
        if layer and name[layer.end() :] in PRODUCTS:
            pins.append((problem.product[name], placement_of(forms["mm", f"layers.N.{short}", 0], tokens)))
        if name in problem.sum:
            form = forms["add", "layers.N", 0 if name.endswith("wo") else 1]
            pins.append((problem.sum[name], placement_of(form, tokens)))
    return pins


def text_of(spec):
    from torch.distributed.tensor._op_schema import _pretty_print_spec

    if isinstance(spec, (tuple, list)):
        spec = next(s for s in spec if s is not None)
    return re.sub(r"Shard\(dim=(\d)\)", r"S(\1)", _pretty_print_spec(spec))


def where(node):
    """The module, equal ones of all layers as one, and whether the node is of the backward."""
    from autoparallel.export_json import _extract_module_path, _get_phase

    path = _extract_module_path(node) or ""
    path = re.sub(r"L\['self'\]|_export_root|__dict__|_modules|_checkpoint_wrapped_module", "", path)
    path = ".".join(re.findall(r"\w+", path)).removesuffix(".weight")
    return re.sub(r"layers\.\d+", "layers.N", path), "backward" if "back" in _get_phase(node) else "forward"


def items_of(problem, solution):
    """What a solution pays for, by module, phase and words: how often, and microseconds in all."""
    items = defaultdict(lambda: [0, 0.0])
    for node, keys in solution.items():
        op = op_of(node)
        inputs = problem.opt._all_input_nodes(node)
        for key in keys:
            dv = problem.opt._resolve_decision_var(key)
            to = text_of(dv.output_spec)
            entries = [(f"{op} {to}", dv.compute_cost, key[1] == 0)]
            if dv.comm_cost > 0:
                source = problem.opt.strats[inputs[key[1]]].strategies[key[3]].output_specs
                if node.target is operator.getitem:
                    source = source[node.args[1]]
                entries.append((f"{text_of(source)} to {text_of(dv.input_spec)}", dv.comm_cost, True))
            for words, sec, counts in entries:
                item = items[(*where(node), words)]
                item[0] += counts
                item[1] += sec
    return items


def print_differences(problem, optimum, pinned, least):
    """What one solution pays for and the other does not, module by module; what is less than `least` us in all is
    summed up."""
    items = [items_of(problem, s) for s in (optimum, pinned)]
    groups, rest = defaultdict(list), 0.0
    for key in sorted(items[0].keys() | items[1].keys()):
        count = items[1][key][0] - items[0][key][0]
        sec = items[1][key][1] - items[0][key][1]
        if count == 0 and abs(sec) < 1e-3:
            continue
        groups[key[:2]].append((sec, count, key[2]))
    order = sorted(groups.items(), key=lambda g: -abs(sum(row[0] for row in g[1])))
    print("  what the pinned one pays more than the optimum, in us of all layers:")
    for (module, phase), rows in order:
        shown = [r for r in sorted(rows, key=lambda r: -r[0]) if abs(r[0]) >= least]
        rest += sum(r[0] for r in rows if abs(r[0]) < least)
        if shown:
            print(f"    {sum(r[0] for r in rows):+10.1f}  {module or '-'} {phase}")
        for sec, count, words in shown:
            print(f"      {sec:+12.1f} {count:+5} x {words}")
    print(f"    {rest:+10.1f}  all else")


def compare(problem, case, forms, taken, sec, least_us):
    opt, pins, missing, names = problem.opt, wanted(problem, forms), [], []
    specs = {n: {s.output_specs.placements: s.output_specs for s in opt.strats[n].strategies}
             for n in problem.param.values()}
    size = sum(problem.bytes_of(n, specs[n][p]) for n, p in pins if n in specs and p in specs[n])
    if case == "adamw":
        problem.limit_bytes(size)
    elif case == "hidden":
        problem.auto.add_parameter_memory_constraint()
        opt.apply_prefetch_discount(taken["exposed"])
        opt._set_objective()
    optimum, least, optimum_sec = problem.solve()
    for node, placement in pins:
        names += problem.pin(node, placement, missing)
    pinned, price, pinned_sec = problem.solve()
    opt.remove_constraints(names)
    opt.prob.constraints.pop("bytes_of_parameters", None)
    own = sum(problem.bytes_of(n, problem.spec_of(n, optimum)) for n in problem.param.values())
    print(f"{case}: AutoParallel's optimum {least / 1e3:.3f} ms, with {len(pins) - len(missing)} of Tenon's forms "
          f"{price / 1e3:.3f} ms: {100 * (price / least - 1):+.2f} %")
    print(f"  parameters {own >> 20} MiB a rank, Tenon's {size >> 20}; Tenon's objective "
          f"{1e3 * taken['objective_sec']:.3f} ms, exposed {taken['exposed']}")
    print(f"  CPU seconds: AutoParallel solves in {optimum_sec:.1f}, pinned {pinned_sec:.1f}; "
          f"Tenon plans four steps in {sec:.2f}")
    for node, placement in missing:
        print(f"  not pinned, as AutoParallel lists no such form: {node} {placement}")
    print_differences(problem, optimum, pinned, least_us)
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("autoparallel")
    p.add_argument("--tenon", default="build/tenon")
    p.add_argument("--model", choices=MODELS, default="8b")
    p.add_argument("--layers", type=int)
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--least", type=float, default=100, help="us: smaller differences are summed up")
    p.add_argument("--flat", action="store_true", help="AutoParallel prices flat groups too")
    a = p.parse_args()
    layers = a.layers or MODELS[a.model][1]
    sys.path.insert(0, a.autoparallel)
    warnings.filterwarnings("ignore", message="Overwriting previously set objective")
    import torch

    with tempfile.TemporaryDirectory() as folder, pretend_h100():
        chosen = {c: tenon_forms(a.tenon, a.model, layers, c, folder) for c in a.cases.split(",")}
        if a.flat:
            price_flat_groups()
        problem = Problem(a.model, layers)
        print(f"Llama-3 {a.model}, {layers} layers, {ROWS} x {TOKENS} tokens, dp=8,tp=8, H100"
              f"{', flat groups' if a.flat else ''}; PyTorch {torch.__version__}")
        print(f"AutoParallel traces and builds in {problem.build_sec:.1f} CPU seconds: "
              f"{len(problem.opt.pulp_variables)} variables, "
              f"{len(problem.opt.prob.constraints)} constraints")
        for case, (forms, taken, sec) in chosen.items():
            compare(problem, case, forms, taken, sec, a.least)
        problem.auto.__exit__(None, None, None)


if __name__ == "__main__":
    main()
