"""Graphs as text: what `tenon import fx` makes of code, with roles of inputs and outputs and the optimizer's nodes."""
import re
from ctypes import byref, c_char_p, c_void_p

from ._library import Context, FxOptions, lib, text_of

VALUE = re.compile(r"%[\w.]+")
INPUT = re.compile(r'%([\w.]+): (\w+\[[^\]]*\])((?: \w+(?: "(?:[^"\\]|\\.)*")?)?)')  # name, type, role


def import_fx(path):
    """The .tn text and the summary of a file of PyTorch code."""
    context, graph, summary = Context(), c_void_p(), c_char_p()
    context.check(lib.tn_graph_import_fx(context.pointer, path.encode(), byref(FxOptions()), byref(graph),
                                         byref(summary)))
    return text_of(context, lib.tn_graph_print, graph), (summary.value or b"").decode()


def quoted(name):
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def compose(builder, update):
    """The text of a builder's graph, its inputs and outputs with roles and names of their own; with an update (of
    _optimizer) its nodes at the end, in the place of the gradients."""
    head, body, outputs = parts(builder.graph_text)
    names = value_names(builder, body)
    rename = lambda text: VALUE.sub(lambda m: "%" + names.get(m[0][1:], m[0][1:]), text)
    inputs = [f"    %{names.get(name, name)}: {kind}{role_text(builder, name, role)}" for name, kind, role in head]
    results = [(role, name, rename(value)) for (role, name), value in zip(builder.outputs, outputs)]
    lines = [rename(line).replace('  @"-"', " ") for line in body]
    if update is not None:
        types = {name: kind for name, kind, _ in head}
        more, nodes, results = update.append(names, types, builder, results)
        inputs += more
        lines += nodes
    shown = [f"{role} {quoted(name)} {value}" if name else f"{role} {value}" for role, name, value in results]
    return ("tenon 1\ngraph step(\n" + ",\n".join(inputs) + ") {\n" + "\n".join(lines) +
            "\n  return " + ", ".join(shown) + "\n}\n")


def parts(text):
    """Of a printed graph its inputs (name, type, role), lines of nodes, and the values that it returns."""
    begin = re.search(r'graph (?:\w+|"[^"]*")\(', text).end()
    end = text.index(") {\n", begin)
    inputs = INPUT.findall(text[begin:end])
    body, _, returned = text[end + 4:].rpartition("\n  return")
    return inputs, body.split("\n"), VALUE.findall(returned)


def value_names(builder, body):
    """Names of values for the inputs of the code: their own, where no other value has it."""
    taken = {m[1:] for line in body for m in VALUE.findall(line)}
    names = {}
    for code_name, (_, role_name) in builder.ports.items():
        name = re.sub(r"[^\w.]", "_", role_name)
        while name in taken:
            name += "_"
        taken.add(name)
        names[code_name] = name
    return names


def role_text(builder, code_name, role):
    """The role of an input; of one that the importer made (seed) its own."""
    if code_name not in builder.ports:
        return role
    kind, name = builder.ports[code_name]
    return f" {kind}" if kind == "batch" else f" {kind} {quoted(name)}"
