"""Output projection and smoothed cross-entropy in one, a few rows at a time: logits are never kept.

A batch of 25,000 tokens has 800 million logits for 32,000 words, 3 GB in single precision; log-softmax keeps as many
again. Here a stretch of rows is projected, its loss summed and its gradient taken at once, for a sum of losses has
the same gradient whatever else is added to it. Shapes: N tokens, D d_model, V vocabulary, C rows of a stretch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STRETCH = 1 << 27  # logits at a time on a GPU: half a gigabyte in single precision
CACHED = 1 << 20  # on a CPU, where they stay in its cache: a third to a half less time than all at once


def projected_losses(states: Tensor, weight: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> Tensor:
    """(smoothed sum, plain sum) over the tokens where mask is True; only the first has a gradient.

    states (N, D), weight (V, D), gold and mask (N). The gold token weighs 1 - e + e / V, every other e / V.
    """
    if torch.is_autocast_enabled(states.device.type):
        states = states.to(torch.get_autocast_dtype(states.device.type))
    sums: Tensor = _ProjectedLosses.apply(states, weight, gold, mask, smoothing)  # type: ignore[no-untyped-call]
    return sums


class _ProjectedLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> Tensor:
        learning = any(ctx.needs_input_grad[:2])
        matrix = weight.to(states.dtype)
        rows = max(1, (CACHED if states.device.type == "cpu" else STRETCH) // weight.size(0))
        to_states = torch.empty_like(states) if learning else None
        to_weight = torch.zeros_like(weight) if learning else None
        sums = states.new_zeros(2, dtype=torch.float32 if states.dtype != torch.float64 else torch.float64)
        for begin in range(0, states.size(0), rows):
            part = slice(begin, begin + rows)
            logits = states[part] @ matrix.T  # (C, V)
            found, slope = _losses(logits, gold[part], mask[part], smoothing, learning)
            sums += found
            if to_states is not None and to_weight is not None:
                slope = slope.to(states.dtype)
                torch.mm(slope, matrix, out=to_states[part])
                to_weight += slope.T @ states[part]
        ctx.save_for_backward(*([to_states, to_weight] if learning else []))
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0][0]  # of the smoothed sum; the plain one is for reports
        to_states, to_weight = ctx.saved_tensors
        return to_states * scale.to(to_states.dtype), to_weight * scale.to(to_weight.dtype), None, None, None


def _losses(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float, learning: bool) -> tuple[Tensor, Tensor]:
    """The two sums (2,) of a stretch, and what each logit (C, V) adds to the first."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normaliser = logits.logsumexp(-1)  # (C,)
    plain = normaliser - logits.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    smoothed = (1 - smoothing) * plain + smoothing * (normaliser - logits.mean(-1))
    nothing = plain.new_zeros(())
    sums = torch.stack((smoothed.where(mask, nothing).sum(), plain.where(mask, nothing).sum()))
    if not learning:
        return sums, logits
    slope = (logits - normaliser.unsqueeze(-1)).exp_().sub_(smoothing / logits.size(-1))
    slope.scatter_add_(-1, gold.unsqueeze(-1), slope.new_full((), smoothing - 1).expand(len(gold), 1))
    return sums, slope.mul_(mask.unsqueeze(-1))
