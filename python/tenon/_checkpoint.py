"""Activation checkpointing as policies of the graph's nodes.

While a step is captured, torch.utils.checkpoint computes nothing again: the calls of its region carry the policy that
was asked for, and Tenon's plan decides where they run a second time. A selective checkpoint's own dispatch mode asks
its policy function; a plain one is MUST_RECOMPUTE."""
import inspect

import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as checkpoint

NAMES = ("MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE")
# The function of torch.utils.checkpoint that makes the context of a region, by version.
GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


class Tagging:
    """The regions of a step that is being captured; while it is on, PyTorch's two ways to begin one come here."""

    def __init__(self):
        self.count = 0

    def region(self, *args, **kwargs):
        """In the place of PyTorch's generator: the region runs between its two yields."""
        bound = inspect.signature(self.original).bind(*args, **kwargs).arguments
        return self.run(bound.get("context_fn", checkpoint.noop_context_fn))

    def apply(self, function, _, *args):
        """In the place of CheckpointFunction.apply, of checkpoint(use_reentrant=True)."""
        region = self.run(checkpoint.noop_context_fn)
        next(region)
        out = function(*args)
        next(region, None)
        return out

    def run(self, context_fn):
        self.count += 1
        meta = fx_traceback.get_current_meta()
        before = {key: meta[key] for key in ("recompute", "ac_graph_id") if key in meta}
        try:
            if context_fn is checkpoint.noop_context_fn:
                meta["recompute"], meta["ac_graph_id"] = checkpoint.CheckpointPolicy.MUST_RECOMPUTE, self.count
                yield
            else:
                mode, _ = context_fn()
                mode.ac_graph_id = self.count
                with mode:
                    yield
        finally:
            meta = fx_traceback.get_current_meta()
            for key in ("recompute", "ac_graph_id"):
                meta.pop(key, None)
            meta.update(before)

    def __enter__(self):
        self.name = next(name for name in GENERATORS if hasattr(checkpoint, name))
        self.original = getattr(checkpoint, self.name)
        setattr(checkpoint, self.name, self.region)
        self.reentrant, checkpoint.CheckpointFunction = checkpoint.CheckpointFunction, self
        return self

    def __exit__(self, *_):
        setattr(checkpoint, self.name, self.original)
        checkpoint.CheckpointFunction = self.reentrant


def keep_results(nodes):
    """What a region gives to the forward outside of it is not of the region any more: it has no policy that computes it
    again, or each region would compute all those before it."""
    for node in nodes:
        if policy_name(node.meta) not in ("MUST_RECOMPUTE", "PREFER_RECOMPUTE"):
            continue
        region = node.meta.get("ac_graph_id")
        for user in node.users:
            if not user.meta.get("tenon_backward") and user.meta.get("ac_graph_id") != region and user.op != "output":
                node.meta["recompute"] = None


def policy_name(meta):
    """"MUST_SAVE" ... of a node's meta, or None. Policies that offload save too."""
    name = getattr(meta.get("recompute"), "name", None)
    if name in ("MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"):
        return name.replace("CPU_OFFLOAD", "SAVE")
    return name if name in NAMES else None
