"""Chains of a function's code: `self.config.beta`, `words["alpha"]`, a variable and the members and entries that are taken
of it one after the other."""
import collections
import dis
import functools
import types

# root: "local", "cell" or "global"; name: of the variable; steps: (kind, key), of kind "member", "entry", "at" and "named", an
# entry and a member whose key is a variable's value; stores: whether the last of these, or the variable, is written; end: the
# op behind it
Chain = collections.namedtuple("Chain", "root name steps stores end line")
Instruction = collections.namedtuple("Instruction", "op value offset line")

NOTHING = ("NOP", "CACHE", "PUSH_NULL", "PRECALL", "COPY", "DUP_TOP", "DUP_TOP_TWO", "EXTENDED_ARG", "RESUME", "TO_BOOL")
ROOTS = {"LOAD_FAST": "local", "LOAD_FAST_CHECK": "local", "LOAD_FAST_BORROW": "local", "LOAD_DEREF": "cell",
         "STORE_DEREF": "cell", "DELETE_DEREF": "cell", "LOAD_GLOBAL": "global", "LOAD_NAME": "global",
         "STORE_GLOBAL": "global", "DELETE_GLOBAL": "global"}
MEMBER = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
ENTRY = ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR")


def instructions_of(code):
    """The instructions of code, those that do two things as two."""
    out, line = [], code.co_firstlineno
    for x in dis.get_instructions(code):
        at = getattr(x, "line_number", x.starts_line)
        line = line if at is None else at
        op = "BINARY_SUBSCR" if x.opname == "BINARY_OP" and x.argrepr == "[]" else x.opname
        two = op.replace("_LOAD_", " LOAD_").replace("_STORE_", " STORE_").split()
        if isinstance(x.argval, tuple) and len(two) == 2:
            out += [Instruction(half, value, x.offset, line) for half, value in zip(two, x.argval)]
        else:
            out.append(Instruction(op, x.argval, x.offset, line))
    return out


def key_of(x):
    """The step that an instruction's value makes as a key, or None."""
    if x.op in ("LOAD_CONST", "LOAD_SMALL_INT"):
        return "entry", x.value
    return ("at", x.value) if x.op in ROOTS and x.op.startswith("LOAD") else None


def members_of(steps):
    """Steps in which an entry of `__dict__` is a member."""
    out = []
    for kind, key in steps:
        if out and out[-1] == ("member", "__dict__") and kind in ("entry", "at") and isinstance(key, str):
            out[-1] = ("member" if kind == "entry" else "named", key)
        else:
            out.append((kind, key))
    return tuple(out)


def is_call(code, at):
    return at < len(code) and code[at].op.startswith("CALL")


def chain_at(code, i):
    """The chain that begins at an instruction."""
    x, steps, at, name = code[i], [], i + 1, code[i].value
    stores = not x.op.startswith("LOAD")
    around = code[i - 1].value if i and code[i - 1].op in ("LOAD_GLOBAL", "LOAD_NAME") else None
    by_name = around in ("getattr", "hasattr")
    if around == "vars" and not stores and is_call(code, at):
        steps, at = [("member", "__dict__")], at + 1
    if x.op == "LOAD_GLOBAL" and name == "globals" and is_call(code, at) and at + 2 < len(code) and code[at + 2].op in ENTRY:
        key = key_of(code[at + 1])
        if key and key[0] == "entry" and isinstance(key[1], str):
            name, at, stores = key[1], at + 3, not code[at + 2].op.startswith("BINARY")
    while not stores and at + 1 < len(code):
        key = key_of(code[at])
        if code[at].op in MEMBER:
            steps.append(("member", code[at].value))
        elif key and code[at + 1].op in ENTRY:
            steps.append(key)
            at += 1
        elif key and steps and steps[-1] == ("member", "get"):
            steps[-1] = key
        elif key and steps and steps[-1] == ("member", "getenv"):
            steps[-1:] = [("member", "environ"), key]
        elif by_name and key and isinstance(key[1], str):
            steps.append(("member" if key[0] == "entry" else "named", key[1]))
            by_name = False
        else:
            break
        stores = not code[at].op.startswith(("LOAD", "BINARY"))
        at += 1
    return Chain(ROOTS[x.op], name, members_of(steps), stores, code[at].op if at < len(code) else "", x.line)


@functools.lru_cache(4096)
def chains_in(code):
    """{offset: chains}: those whose variable has its value when the instruction at that offset is about to run."""
    every, out = instructions_of(code), {}
    some = [x for x in every if x.op not in NOTHING]
    after = {x.offset: y.offset for x, y in zip(every, every[1:]) if x.offset != y.offset}
    for i, x in enumerate(some[:-1]):
        if x.op in ROOTS:
            chain = chain_at(some, i)
            offset = x.offset if chain.stores and not chain.steps else after[x.offset]
            out.setdefault(offset, []).append(chain)
    return out


def codes_in(code):
    """A function's code and that of the functions in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes_in(inner)


def variables_in(code):
    """Names of the variables of its file in a function's code, in their order."""
    return list({chain.name: None for inner in codes_in(code) for chains in chains_in(inner).values() for chain in chains
                 if chain.root == "global"})
