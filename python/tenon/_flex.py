"""flex_attention while a step is captured: as PyTorch computes it without a kernel of its own, by mask_mod alone.

Without a score_mod it is scaled_dot_product_attention, causal where the mask is that, else with the mask that mask_mod
gives for each query and key: a sliding window, documents. With one the scores are a matrix, which score_mod changes."""
import contextlib
import math
import sys

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

NAME = "torch.nn.attention.flex_attention"
LN2 = math.log(2)
MOST = 2**24  # elements of a mask that are looked at together


class Taken:
    """What stands in the place of flex_attention's op. Each mask is computed once in a step."""

    def __init__(self, flex):
        self.flex = flex
        self.masks = {}  # by the function and sizes: whether it is causal, the mask, the function

    def mask(self, mask_mod, size):
        """(whether it is causal, else the mask [B, H, T, S], None where all is seen)."""
        if mask_mod is None or mask_mod is self.flex.noop_mask:
            return False, None
        key = (id(mask_mod), size)
        if key not in self.masks:
            causal = self.is_causal(mask_mod, size)
            mask = None if causal else self.flex.create_mask(mask_mod, *size, device="cpu")
            self.masks[key] = causal, mask, mask_mod
        return self.masks[key][:2]

    def is_causal(self, mask_mod, size):
        """Whether each query sees the keys up to its own place: asked of all of them, some queries at a time. False for
        a mask that reads what the step computes."""
        batch, heads, queries, keys = size
        if queries != keys:
            return False
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        some = max(1, MOST // (batch * heads * keys))
        try:
            with _disable_current_modes(), torch.no_grad(), TransformGetItemToIndex():
                key, sees = torch.arange(keys), self.flex._vmap_for_bhqkv(mask_mod, prefix=())
                return all(bool((sees(torch.arange(batch), torch.arange(heads), query, key) ==
                                 (query.unsqueeze(-1) >= key)).all())
                           for query in torch.arange(queries).split(some))
        except Exception:  # of a tensor without data, of whatever kind
            return False

    def __call__(self, query, key, value, score_mod, block_mask, scale, kernel_options, *_):
        count = next(x for x in block_mask if isinstance(x, torch.Tensor))  # of blocks, [B, H, ...]
        size = (count.shape[0], count.shape[1], query.shape[-2], key.shape[-2])
        causal, mask = self.mask(block_mask[-1], size)
        grouped = query.shape[1] != key.shape[1]
        wanted = [kernel_options.get(k) for k in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")]
        if score_mod is self.flex._identity and not any(wanted):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale,
                                                  enable_gqa=grouped), None, None
        return self.by_matrix(query, key, value, score_mod, mask, causal, scale)

    def by_matrix(self, query, key, value, score_mod, mask, causal, scale):
        """The result, the log-sum-exp and the maximum of each query's scores, both to base 2."""
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        group = query.shape[1] // key.shape[1]
        if group > 1:
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        kind = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = (query @ key.transpose(-2, -1)).to(kind) * scale
        if score_mod is not self.flex._identity:
            with TransformGetItemToIndex():
                scores = self.flex._vmap_for_bhqkv(score_mod, prefix=(0,))(
                    scores, *(torch.arange(n, device=query.device) for n in scores.shape)).to(kind)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if mask is not None:
            scores = torch.where(mask, scores, -float("inf"))
        top = scores.amax(-1)
        lse = scores.logsumexp(-1)
        seen = (top > -float("inf")).unsqueeze(-1)  # a query that sees nothing gives zeros
        weights = torch.where(seen, (scores - torch.where(seen, lse.unsqueeze(-1), 0.0)).exp(), 0.0)
        return (weights.to(value.dtype) @ value), lse / LN2, top / LN2


@contextlib.contextmanager
def taken():
    """While it is on, flex_attention goes through Taken."""
    flex = sys.modules.get(NAME)
    if flex is None:
        yield
        return
    mine = {"flex_attention_hop": Taken(flex), "_validate_device": lambda *_: None,
            "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True}
    before = {name: getattr(flex, name) for name in mine if hasattr(flex, name)}
    vars(flex).update({name: mine[name] for name in before})
    try:
        yield
    finally:
        vars(flex).update(before)
