"""The code of a joint graph of AOTAutograd as `tenon import fx` reads it: a call a line, each below a comment with its
scope, phase and policy."""
import operator

import torch
from torch.fx import Node

from ._errors import CaptureError, NotSupported

DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
          torch.int32: "i32", torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64"}


NORMS = (torch.ops.aten.native_layer_norm, torch.ops.aten.native_batch_norm,
         torch.ops.aten._native_batch_norm_legit, torch.ops.aten._native_batch_norm_legit_functional)
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def where(node):
    """The line of the user's code that made a node, as text for a message; "" where it is not known."""
    line = node.meta.get("tenon_line")
    return f" (made by {line})" if line else ""


def type_of(tensor):
    """"f32[2, 3][3, 1]cpu" of a tensor."""
    sizes = list(tensor.shape)
    if any(not isinstance(n, int) for n in sizes):
        raise NotSupported(f"a tensor of {sizes}: sizes must be numbers")
    if tensor.layout is not torch.strided:
        raise NotSupported(f"a tensor of {tensor.layout}: expected a dense one")
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise NotSupported(f"a tensor of {tensor.dtype}: that dtype is not supported")
    if tensor.device.type != "cpu":
        raise NotSupported(f"a tensor on {tensor.device}: models and arguments must be on the CPU")
    return f"{dtype}{sizes}{list(tensor.stride())}"


def _call_name(node):
    target = node.target
    if target is operator.getitem:
        return None
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target._schema.name.replace('::', '.')}.{target._overloadname}"
    if getattr(target, "__module__", "") in ("_operator", "operator"):
        return f"operator.{target.__name__}"
    raise CaptureError(f"{target} is no op that a graph can have{where(node)}")


def is_statistic(node):
    """Whether a node is a mean or a deviation of a normalization, or attention's log-sum-exp. PyTorch's fake tensors have the
    first in the input's dtype, its CPU kernels in the weights' (f32 of bf16 input under autocast), as Tenon does; PyTorch 2.9's
    have the last in f32 where all else is f64."""
    if node.target is not operator.getitem:
        return False
    made_by = getattr(node.args[0].target, "_overloadpacket", None)
    return (node.args[1] in (1, 2) and made_by in NORMS) or (node.args[1] == 1 and made_by is FLASH)


def is_norm_gradient(node):
    """Whether a node is the gradient of a norm's weight or bias. PyTorch before 2.10 shows it in the dtype of what is
    normed; kernels give it in the weight's, as Tenon does."""
    of = node.args[0] if node.args else None
    return (node.target is operator.getitem and node.args[1] in (1, 2) and
            getattr(of, "target", None) is torch.ops.aten.native_layer_norm_backward.default)


class Code:
    """Text being written, and of each of its lines the node that it is of."""

    def __init__(self, names):
        self.names = names  # of nodes in the code
        self.lines, self.nodes = [], []

    def add(self, line, node=None):
        self.lines.append(line)
        self.nodes.append(node)

    def text(self):
        return "\n".join(self.lines) + "\n"

    def value(self, x, node):
        """An argument of a call as Python writes it."""
        if isinstance(x, Node):
            return self.names[x]
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(self.value(y, node) for y in x) + "]"
        if isinstance(x, float):
            return f'float("{x}")' if x != x or abs(x) == float("inf") else repr(x)
        if x is None or isinstance(x, (bool, int)):
            return repr(x)
        if isinstance(x, str):
            return repr(x)
        if isinstance(x, (torch.dtype, torch.memory_format, torch.layout)):
            return str(x)
        if isinstance(x, torch.device):
            return f"device(type='{x.type}')"
        if isinstance(x, complex):
            return f"complex({x.real!r}, {x.imag!r})"
        raise CaptureError(f"{node.target}: an argument of {type(x).__name__} cannot be in a graph{where(node)}")

    def annotation(self, node):
        value = node.meta.get("val")
        if is_statistic(node) or is_norm_gradient(node):
            return ""
        return f': "{type_of(value)}"' if isinstance(value, torch.Tensor) else ""

    def call(self, node):
        """The call of a node, below a comment that says where it stands."""
        remark = f"scope: {node.meta['tenon_scope'] or '-'}"
        if node.meta["tenon_backward"]:
            remark += ", is_backward"
        if node.meta.get("tenon_policy"):
            remark += f", ac_graph_id: 1 - {node.meta['tenon_policy']}"
        self.add(f"    # {remark}", node)
        name = _call_name(node)
        try:
            annotation = self.annotation(node)
        except NotSupported as error:
            raise CaptureError(f"{node.target}: {error}{where(node)}") from None
        if name is None:
            right = f"{self.names[node.args[0]]}[{self.value(node.args[1], node)}]"
        else:
            arguments = [self.value(x, node) for x in node.args]
            arguments += [f"{k}={self.value(x, node)}" for k, x in node.kwargs.items()]
            right = f"{name}({', '.join(arguments)})"
        self.add(f"    {self.names[node]}{annotation} = {right}", node)

    def constant(self, node, name):
        tensor = node.meta.get("val")
        self.add(f'    {self.names[node]}: "{type_of(tensor)}" = self.{name}', node)
