"""Policies of activation checkpointing as the graph's."""
import contextlib


@contextlib.contextmanager
def tagging():
    yield


def policy_name(meta):
    """"MUST_SAVE" ... of a node's meta, or None."""
    policy = meta.get("recompute")
    name = getattr(policy, "name", None)
    return name if name in ("MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE") else None
