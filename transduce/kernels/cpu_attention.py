"""Equation 1 with its own gradient, fast on CPUs.

The fused kernel's backward pass took a quarter of a training step, and torch's own chain of operations copies keys in a
slow order and goes over the scores eight times. Here keys are not copied, scale and mask are fused into the product,
and the gradient ignores the mask, where weights are 0 anyway. Shapes: B batch, H heads, T queries, S keys, K width of a
key, W of a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend_on_cpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention softmax(scale Q K^T) V where mask, broadcastable to (B, H, T, S), is True."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (heads.to(torch.get_autocast_dtype("cpu")) for heads in (query, key, value))
    heads: Tensor = _Attend.apply(query, key, value, mask, scale)  # type: ignore[no-untyped-call]
    return heads


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        batch, heads, queries, _ = query.shape
        query, key, value = (part.reshape(batch * heads, *part.shape[2:]) for part in (query, key, value))
        additive = _additive(query, batch, heads, mask)  # (B * H or 1, T or 1, S)
        scores = torch.baddbmm(additive, query, key.transpose(1, 2), alpha=scale)  # (B * H, T, S)
        weights = scores.softmax(-1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        return (weights @ value).view(batch, heads, queries, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        gradient = gradients[0]
        shape = gradient.shape[:2]
        gradient = gradient.reshape(-1, *gradient.shape[2:])  # (B * H, T, W)
        to_value = weights.transpose(1, 2) @ gradient
        to_weights = gradient @ value.transpose(1, 2)
        to_scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        to_inputs = to_scores @ key, to_scores.transpose(1, 2) @ query, to_value
        return *(part.view(*shape, *part.shape[1:]) for part in to_inputs), None, None


def _additive(query: Tensor, batch: int, heads: int, mask: Tensor | None) -> Tensor:
    """Additive mask of the scores: 0 where attention is allowed, else a number low enough to cancel them.

    Half of the lowest number: adding a score to the lowest might give -inf, and a row of those has no softmax.
    """
    if mask is None:
        return query.new_zeros(1, 1, 1)
    low = query.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(query.dtype).min / 2)
    low = low.expand(*(1,) * (4 - low.dim()), *low.shape) if low.dim() < 4 else low
    if low.size(0) == low.size(1) == 1:
        return low[0]
    return low.expand(batch, heads, -1, -1).reshape(batch * heads, *low.shape[2:])
