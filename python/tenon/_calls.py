"""Calls that PyTorch cannot record as they are: by other words, or with shapes of ours."""
import contextlib

import torch


def is_circular(x, pad, mode="constant", value=None):
    """Whether F.pad goes around, by what an axis has."""
    axes = [(-1 - k // 2, pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return mode == "circular" and all(0 <= n <= x.shape[axis] for axis, *both in axes for n in both)


def pad_circular(x, pad, mode=None, value=None):
    """F.pad of that mode, which PyTorch writes into a tensor whose corners it reads before they are written."""
    for k in range(0, len(pad), 2):
        axis, size = -1 - k // 2, x.shape[-1 - k // 2]
        x = torch.cat([x.narrow(axis, size - pad[k], pad[k]), x, x.narrow(axis, 0, pad[k + 1])], axis)
    return x


def call(function, args, kwargs):
    """Runs a call of the step's."""
    if function is getattr(torch.nn.functional, "linear_cross_entropy", None):
        kwargs = {**kwargs, "options": None}  # how PyTorch would slice it, which a plan says
    if function is torch.nn.functional.pad and is_circular(*args, **kwargs):
        function = pad_circular
    if function in (torch.ctc_loss, torch.nn.functional.ctc_loss):  # it reads numbers of tensors that it makes of lists
        args = [torch.tensor(x) if isinstance(x, (list, tuple)) else x for x in args]
        kwargs = {key: torch.tensor(x) if isinstance(x, (list, tuple)) else x for key, x in kwargs.items()}
    if function is torch.lstm:  # oneDNN's is one call, which no graph has
        with torch.backends.mkldnn.flags(enabled=False):
            return function(*args, **kwargs)
    return function(*args, **kwargs)


@contextlib.contextmanager
def alignments():
    """Shapes of ctc_loss and its backward, which PyTorch takes for dependent on data: alpha has a place for each label and
    blank that there may be."""
    from torch._subclasses.fake_impls import op_implementations_dict as known

    def loss(mode, op, log_probs, targets, *args, **kwargs):
        frames, batch = log_probs.shape[:2]
        return log_probs.new_empty(batch), log_probs.new_empty(batch, frames, 2 * targets.shape[-1] + 1)

    ops = torch.ops.aten
    ours = {ops._ctc_loss.Tensor: loss, ops._ctc_loss.default: loss}
    for op in (ops._ctc_loss_backward.Tensor, ops._ctc_loss_backward.default):
        ours[op] = lambda mode, op, dy, log_probs, *args, **kwargs: torch.empty_like(log_probs)
    before = {op: known[op] for op in ours if op in known}
    known.update(ours)
    try:
        yield
    finally:
        for op in ours:
            del known[op]
        known.update(before)
