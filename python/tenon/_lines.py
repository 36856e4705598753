"""Lines of the user's code, and what an error of PyTorch's that recorded a step says with them."""
import os
import traceback

import torch

from ._places import is_python

TORCH = os.path.dirname(torch.__file__) + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def by_torch(frame):
    """Whether PyTorch, or this package, makes the call in a frame, through Python's library or not."""
    while frame and is_python(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.startswith((TORCH, HERE))


def user_line(frame):
    """"file:line, in function" of the innermost frame that is neither PyTorch's nor Python's nor ours."""
    while frame:
        path = frame.f_code.co_filename
        if not path.startswith((TORCH, HERE, "<")) and not is_python(path):
            return f"{path}:{frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def first_line(error):
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


ADVICE = {
    "_local_scalar_dense": "it asks for a tensor's number, as item(), tolist(), float(), int() and an `if` of a tensor "
                           "do; in a graph a number stays a tensor without axes, and torch.where takes the place of "
                           "the `if`; a number for people is returned beside the loss",
    "nonzero": "its result has a shape that depends on data, as x[mask] has; torch.where(mask, x, 0), and sums divided "
               "by mask.sum(), have one that does not; torch.nonzero_static(mask, size=N) is bounded by N",
    "masked_select": "its result has a shape that depends on data; torch.where(mask, x, 0), and sums divided by mask.sum(), "
                     "have one that does not",
    "bincount": "its result has a shape that depends on data; torch.zeros(N).scatter_add(0, x, ones) has N elements",
    "repeat_interleave": "its result has a shape that depends on data; output_size=N, the sum of the repeats, gives it",
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
                    "its result has a shape that depends on data; x.sort().values, compared with its neighbours, has one that "
                    "does not"),
}
NUMBERS = ("__format__", ".numpy() is not supported")  # in errors of what asks for a tensor's numbers by other words


def refusal(error):
    """The text of CaptureError for an error that PyTorch raised while it recorded a step: the line, and what to write in
    the place of an op that asks for data."""
    text, line = str(error), error_line(error)
    if "mutating a non-functional tensor" in text:
        return (f"the step writes to a tensor that is neither argument nor buffer{line}; register_buffer makes it one, "
                "which a Step writes")
    asked = next((f": {said}" for name, said in ADVICE.items() if f"aten.{name}." in text), "")
    if any(word in text for word in NUMBERS):
        return (f"the step asks for a tensor's numbers{line}, which it has not while it is recorded; return the tensor beside "
                "the loss, and print or convert it after loss, x = Step(...)")
    return f"PyTorch cannot record the step: {first_line(error)}{line}{asked}"


def error_line(error):
    """The innermost line of the user's code in an error's traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if not f.filename.startswith((TORCH, HERE, "<")) and not is_python(f.filename)]
    return f" (in {frames[-1].filename}:{frames[-1].lineno}, {frames[-1].line})" if frames else ""
