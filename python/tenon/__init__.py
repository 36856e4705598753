"""Tenon for PyTorch: the memory plan of a training step, and the step run in exactly that memory.

    captured = tenon.capture(step, ids, labels, optimizer=optimizer)   # forward, loss, backward, update: one graph
    print(tenon.plan(captured, memory="3GiB"))                         # every byte has an address; nothing runs
    Step = tenon.compile(captured, memory="3GiB")
    for ids, labels in batches:
        loss = Step(ids, labels)

docs/python.md of Tenon has the rest."""
import sys
from importlib.metadata import EntryPoint

from ._capture import Captured, capture
from ._errors import CaptureError, DoesNotFit, Error, NotSupported
from ._options import VERSION as __version__
from ._plan import Plan, plan
from ._step import Step, compile
from ._train import Trained, train

__all__ = ["capture", "plan", "compile", "train", "Captured", "Plan", "Step", "Trained", "Error", "CaptureError", "NotSupported",
           "DoesNotFit"]

# An entry point tells PyTorch of the backend when it first looks for backends, which may have been before this.
if "torch._dynamo" in sys.modules:
    sys.modules["torch._dynamo.backends.registry"]._BACKENDS.setdefault(
        "tenon", EntryPoint("tenon", "tenon._backend:backend", "torch_dynamo_backends"))
