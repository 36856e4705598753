"""Refuses inside of a step the calls that belong around one in a training loop: backward, the optimizer's calls, reading
and writing gradients, schedules, scaled losses. While a step is recorded these would act once, on tensors without data
or on gradients that are not there, and never again."""
import contextlib
import sys

import torch

from ._errors import CaptureError
from ._watch import optimizers

ONLY = "a step only returns its loss"
AFTER = "capture without optimizer=, and write it after the Step: loss = Step(...); {}; optimizer.step()"
ADVICE = {  # by the name of the function
    "backward": "the backward and the update are Tenon's",
    "zero_grad": "leave it out; around a Step without an optimizer, which adds to .grad, write optimizer.zero_grad() before "
                 "loss = Step(...)",
    "clip_grad_norm_": AFTER.format("torch.nn.utils.clip_grad_norm_(model.parameters(), ...)") +
                       "; or tenon.train(captured, ..., clip=...)",
    "clip_grad_value_": AFTER.format("torch.nn.utils.clip_grad_value_(model.parameters(), ...)"),
}
GRADIENTS = "gradients are there after it: capture without optimizer=, and write what reads them after loss = Step(...)"
UPDATE = "leave it out: where tenon.capture has optimizer=, Step(...) updates; where not, write optimizer.step() after it"
SCHEDULE = "write it after loss = Step(...), which reads the learning rates at each call"
SCALE = "return the loss as it is; Tenon's gradients need no scaler"


def refuse(call, line, advice):
    raise CaptureError(f"the step calls {call} ({line}): {ONLY}; {advice}")


def check_call(function, frame, user_line):
    """Raises CaptureError for a call of PyTorch's that belongs around a step. user_line: gives the user's line, of a
    frame."""
    if function in (torch.Tensor.backward, torch.autograd.backward):
        refuse("backward", user_line(frame), ADVICE["backward"])
    if getattr(function, "__self__", None) is torch.Tensor.data and function.__name__ == "__set__":
        raise CaptureError(f"the step sets the .data of a tensor ({user_line(frame)}), which a graph has not; write into a buffer "
                           "(copy_), and into a parameter after loss = Step(...)")
    if getattr(function, "__self__", None) is torch.Tensor.grad:
        line = user_line(frame)
        while frame.f_code.co_name not in ADVICE and frame.f_globals.get("__name__", "").startswith("torch."):
            frame = frame.f_back
        name = frame.f_code.co_name
        if name in ADVICE:
            refuse(name, line, ADVICE[name])
        raise CaptureError(f"the step reads or writes .grad ({line}): {ONLY}; {GRADIENTS}")


@contextlib.contextmanager
def refused(user_line):
    """While it is on, updates of optimizers, schedules and scaled losses raise CaptureError."""
    def stopped(owner, name, advice):
        original = vars(owner)[name]

        def call(self, *args, **kwargs):
            if getattr(self, "_enabled", True):
                refuse(f"{type(self).__name__}.{name}", user_line(sys._getframe(1)), advice)
            return original(self, *args, **kwargs)
        setattr(owner, name, call)
        stack.callback(setattr, owner, name, original)

    with contextlib.ExitStack() as stack:
        hook = optimizers.register_optimizer_step_pre_hook(
            lambda optimizer, *_: refuse(f"{type(optimizer).__name__}.step", user_line(sys._getframe(1)), UPDATE))
        stack.callback(hook.remove)
        schedules = torch.optim.lr_scheduler
        for owner in vars(schedules).values():
            if isinstance(owner, type) and issubclass(owner, schedules.LRScheduler) and "step" in vars(owner):
                stopped(owner, "step", SCHEDULE)
        stopped(torch.amp.GradScaler, "scale", SCALE)
        yield
