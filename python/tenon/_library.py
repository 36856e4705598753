"""libtenon by ctypes: finds it, declares the calls that this package makes, and turns codes into errors.

The library is TENON_LIBRARY where that is set, else the one in this package (of a wheel), else build/libtenon.so of the
source tree that this package stands in, else the system's."""
import ctypes
import os
import re
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p

from ._errors import DoesNotFit, Error
from ._options import MEMBERS, VERSION

FAIL, USAGE, FIT = 1, 2, 3
MOST_PARTS = 4


class Rule(ctypes.Structure):
    """tn_rule: a policy, and the nodes that it is for, "SCOPE::OP" as patterns."""
    _fields_ = [("policy", c_char_p), ("pattern", c_char_p)]


WARN = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class Options(ctypes.Structure):
    """tn_options: its members in order, from the table of options, then the function that is told warnings."""
    _fields_ = [(name, POINTER(Rule) if kind == "rules" else
                 {"int": c_int, "int64": c_int64, "uint64": c_uint64, "double": c_double, "text": c_char_p,
                  "texts": POINTER(c_char_p)}[kind]) for name, kind in MEMBERS] + [
                      ("warn", WARN), ("warn_arg", c_void_p)]


class Misfit(ctypes.Structure):
    """tn_misfit"""
    _fields_ = [("limit", c_int64), ("mapped", c_int), ("peak", c_int64), ("reserve", c_int64), ("least", c_int64),
                ("holds", c_char_p)]


class FxOptions(ctypes.Structure):
    """tn_fx_options"""
    _fields_ = [("inputs", c_char_p), ("shapes", c_char_p), ("loss", c_char_p), ("params", c_char_p),
                ("backward_from", c_char_p), ("alias", c_char_p), ("unknown", c_char_p), ("mesh", c_char_p),
                ("rank", c_int64), ("groups", POINTER(c_char_p)), ("ngroups", c_int)]


class Part(ctypes.Structure):
    """tn_part, of kind 0: a graph"""
    _fields_ = [("kind", c_int), ("model", c_void_p), ("seq", c_int64), ("graph", c_void_p), ("passes", c_char_p)]


class Task(ctypes.Structure):
    """tn_task"""
    _fields_ = [("part", Part * MOST_PARTS), ("nparts", c_int), ("batch", c_int64), ("keep_order", c_int),
                ("vary", c_int), ("tell", c_void_p), ("tell_arg", c_void_p), ("apart", c_int)]


class Setting(ctypes.Structure):
    """tn_setting"""
    _fields_ = [("recompute", c_char_p), ("accumulate", c_int64), ("batch", c_int64), ("peak", c_int64),
                ("nbytes", c_int64), ("sec", c_double)]


class Compiled(ctypes.Structure):
    """tn_compiled"""
    _fields_ = [("setting", Setting), ("graph", c_void_p * MOST_PARTS), ("plan", c_void_p * MOST_PARTS),
                ("generator", c_void_p * MOST_PARTS), ("handles", c_int64), ("found", Setting), ("fewer", c_int),
                ("least", Setting), ("tried", c_int)]


class Port(ctypes.Structure):
    """tn_port"""
    _fields_ = [("value", c_char_p), ("role", c_char_p), ("dtype", c_char_p), ("rank", c_int), ("shape", c_int64 * 8),
                ("nbytes", c_int64), ("output", c_int), ("host", c_int)]


TEXT = POINTER(c_char_p)
OBJECT = POINTER(c_void_p)
CALLS = {
    "tn_version_number": (c_char_p, []),
    "tn_threads": (None, [c_int]),
    "tn_context_new": (c_void_p, []),
    "tn_context_free": (None, [c_void_p]),
    "tn_error": (c_char_p, [c_void_p]),
    "tn_error_misfit": (c_int, [c_void_p, POINTER(Misfit)]),
    "tn_options_default": (Options, []),
    "tn_memory_free": (c_int, [c_void_p, POINTER(Options), POINTER(c_int64), POINTER(c_int64)]),
    "tn_graph_parse": (c_int, [c_void_p, c_char_p, c_char_p, OBJECT]),
    "tn_graph_print": (c_int, [c_void_p, TEXT]),
    "tn_graph_import_fx": (c_int, [c_void_p, c_char_p, POINTER(FxOptions), OBJECT, TEXT]),
    "tn_graph_export_fx": (c_int, [c_void_p, TEXT]),
    "tn_graph_free": (None, [c_void_p]),
    "tn_compile": (c_int, [c_void_p, POINTER(Task), POINTER(Options), POINTER(Compiled)]),
    "tn_compiled_free": (None, [POINTER(Compiled)]),
    "tn_plan_text": (c_int, [c_void_p, c_int, TEXT]),
    "tn_plan_explain": (c_int, [c_void_p, TEXT]),
    "tn_plan_json": (c_int, [c_void_p, c_int, TEXT]),
    "tn_plan_page": (c_int, [OBJECT, POINTER(c_char_p), c_int, c_char_p, c_char_p, TEXT]),
    "tn_plan_compare": (c_int, [OBJECT, POINTER(c_char_p), c_int, TEXT]),
    "tn_program_new": (c_int, [c_void_p, POINTER(Options), OBJECT]),
    "tn_program_port": (c_int, [c_void_p, c_char_p, POINTER(Port)]),
    "tn_program_data": (c_int, [c_void_p, c_char_p, OBJECT, POINTER(c_int64)]),
    "tn_program_bind": (c_int, [c_void_p, c_char_p, c_void_p]),
    "tn_program_write": (c_int, [c_void_p, c_char_p, c_void_p, c_int64]),
    "tn_program_read": (c_int, [c_void_p, c_char_p, c_void_p, c_int64]),
    "tn_program_run": (c_int, [c_void_p]),
    "tn_program_error": (c_char_p, [c_void_p]),
    "tn_program_fill": (None, [c_void_p, c_int]),
    "tn_program_high": (c_int64, [c_void_p, c_int]),
    "tn_program_free": (None, [c_void_p]),
}


def _paths():
    here = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get("TENON_LIBRARY"):
        return [os.environ["TENON_LIBRARY"]]
    inside = [os.path.join(here, "lib", "libtenon.so"), os.path.join(here, "..", "..", "build", "libtenon.so")]
    return [path for path in inside if os.path.exists(path)] or ["libtenon.so.0"]


def _load(path):
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Error(f"cannot load libtenon: {error}; build it (make), or name it in TENON_LIBRARY") from error
    for name, (result, arguments) in CALLS.items():
        function = getattr(library, name, None)
        if function is None:
            raise Error(f"{path} has no {name}: it is older than this package")
        function.restype, function.argtypes = result, arguments
    found = library.tn_version_number().decode()
    if found != VERSION:
        raise Error(f"{path} is libtenon {found}, this package is of {VERSION}")
    return library


path = _paths()[0]
lib = _load(path)


def in_python(message):
    """A message with the words that this package has for what the command line calls otherwise."""
    message = re.sub(r"^(rules|save|recompute-rule|offload): ", "policies: ", message)
    return re.sub(r"--(memory|recompute|chunk|machine|mesh|shard)\b", r"\1", message)


class Context:
    """A tn_context, freed with the last object that refers to it. One thread at a time uses it."""

    def __init__(self):
        self.pointer = lib.tn_context_new()
        if not self.pointer:
            raise Error("no memory for a context")

    def __del__(self):
        if getattr(self, "pointer", None):
            lib.tn_context_free(self.pointer)
            self.pointer = None

    def check(self, code, kind=Error):
        """Raises the context's message as `kind` where code says that a call failed, DoesNotFit where it says so."""
        if not code:
            return
        message = in_python(lib.tn_error(self.pointer).decode(errors="replace"))
        misfit = Misfit()
        if code == FIT and lib.tn_error_misfit(self.pointer, byref(misfit)):
            message, _, table = message.partition("\n")
            raise DoesNotFit(message, table, misfit.limit, misfit.peak, misfit.reserve, misfit.least)
        raise kind(message)


def text_of(context, call, *arguments):
    """The text that a call gives by its last argument."""
    text = c_char_p()
    context.check(call(*arguments, byref(text)))
    return text.value.decode(errors="replace") if text.value else ""
