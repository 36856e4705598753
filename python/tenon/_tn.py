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
    _optimizer) its nodes at the end, in the place of the gradients. And what its inputs and outputs are called there,
    a Ports: names of the user's may clash with one another, with nodes, and with what a program calls its outputs."""
    head, body, outputs = parts(builder.graph_text)
    ports = Ports(builder)
    names = value_names(builder, ports, {name for name, _, _ in head} | {m[1:] for x in body for m in VALUE.findall(x)})
    rename = lambda text: VALUE.sub(lambda m: "%" + names.get(m[0][1:], m[0][1:]), text)
    inputs = [f"    %{names.get(name, name)}: {kind}{role_text(builder, ports, name, role)}"
              for name, kind, role in head]
    results = [(role, name, rename(value)) for (role, name), value in zip(builder.outputs, outputs)]
    lines = [rename(line).replace('  @"-"', " ") for line in body]
    for name, _, role in head:
        key = builder.ports.get(name, (role.strip(), ""))
        ports.add(*key, names.get(name, name))
    if update is not None:
        taken = {m[1:] for line in lines for m in VALUE.findall(line)} | set(ports.inputs.values()) | ports.results
        types = {name: kind for name, kind, _ in head}
        more, nodes, results = update.append(names, types, builder, results, taken, ports)
        inputs += more
        lines += nodes
    else:
        results = [(role, ports.role(name), value) for role, name, value in results]
    shown = [f"{role} {quoted(name)} {value}" if name else f"{role} {value}" for role, name, value in results]
    text = ("tenon 1\ngraph step(\n" + ",\n".join(inputs) + ") {\n" + "\n".join(lines) +
            "\n  return " + ", ".join(shown) + "\n}\n")
    return text, ports


class Ports:
    """What a graph calls its inputs and outputs.

    inputs   {(role, name): name of the value}, of every input; the name is the user's, "" where the role says it all
    roles    {name: name in the graph}, where that is another
    results  names by which a program finds outputs, which no input has"""

    def __init__(self, builder):
        named = [name for role, name in builder.ports.values() if role != "batch"]
        self.inputs, self.roles = {}, {name: name for name in named}
        while True:
            self.results = {"loss"} | {f"{role}.{self.role(name)}" for role, name in builder.outputs if name}
            self.results |= {f"new.{self.role(name)}{more}" for name in named for more in ("", ".m", ".v")}
            has = {self.role(name) + more for name in named for more in (".m", ".v")}
            odd = [name for i, name in enumerate(named) if self.role(name) in self.results | has or
                   self.role(name) in [self.role(other) for other in named[:i]]]
            if not odd:
                break
            for name in odd:
                self.roles[name] += "_"
        self.used = set(self.roles.values())

    def role(self, name):
        return self.roles.get(name, name)

    def add(self, role, name, value):
        if (role, name) in self.inputs or value in self.inputs.values():
            raise AssertionError(f"two inputs of the graph are {role} {name}, %{value}")
        self.inputs[role, name] = value

    def fresh_role(self, name):
        """A name for an input that is none of the model's, which no other has."""
        while name in self.used or name in self.results:
            name += "_"
        self.used.add(name)
        return name

    def tensor(self, name):
        """The value of a parameter, buffer or constant; None where the graph has it not."""
        return next((self.inputs[role, name] for role in ("param", "const", "state") if (role, name) in self.inputs),
                    None)


def parts(text):
    """Of a printed graph its inputs (name, type, role), lines of nodes, and the values that it returns."""
    begin = re.search(r'graph (?:\w+|"[^"]*")\(', text).end()
    end = text.index(") {\n", begin)
    inputs = INPUT.findall(text[begin:end])
    body, _, returned = text[end + 4:].rpartition("\n  return")
    return inputs, body.split("\n"), VALUE.findall(returned)


def value_names(builder, ports, taken):
    """Names of values for the inputs of the code: their own, where nothing else has it."""
    taken = taken | ports.results
    names = {}
    for code_name, (_, role_name) in builder.ports.items():
        name = re.sub(r"[^\w.]", "_", ports.role(role_name), flags=re.ASCII)
        while name in taken:
            name += "_"
        taken.add(name)
        names[code_name] = name
    return names


def role_text(builder, ports, code_name, role):
    """The role of an input; of one that the importer made (seed) its own."""
    if code_name not in builder.ports:
        return role
    kind, name = builder.ports[code_name]
    return f" {kind}" if kind == "batch" else f" {kind} {quoted(ports.role(name))}"
