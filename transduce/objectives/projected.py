"""Output projection and smoothed cross-entropy in one, a few rows at a time: logits are never kept.

A batch of 25,000 tokens has 800 million logits for 32,000 words, 3 GB in single precision; log-softmax keeps as many
again. Here a stretch of rows is projected, its loss summed and its gradient taken at once, for a sum of losses has
the same gradient whatever else is added to it. Shapes: N tokens, D d_model, V vocabulary, C rows of a stretch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

STRETCH = 1 << 27  # logits at a time on a GPU: half a gigabyte in single precision
# On a CPU a stretch is shorter, and its losses are summed some rows at a time, which stay in the cache; matrices are
# multiplied by whole stretches, for each adds a gradient of all weights to the last.
STRETCH_ON_CPU, CACHED = 1 << 24, 1 << 19


def projected_losses(
    states: Tensor, weight: Tensor, gold: Tensor, mask: Tensor, smoothing: float, bias: Tensor | None = None
) -> Tensor:
    """(smoothed sum, plain sum) over the tokens where mask is True; only the first has a gradient.

    states (N, D), weight (V, D), bias (V,) of the logits, gold and mask (N). The gold token weighs 1 - e + e / V, every
    other e / V.
    """
    if torch.is_autocast_enabled(states.device.type):
        states = states.to(torch.get_autocast_dtype(states.device.type))
    sums: Tensor = _ProjectedLosses.apply(states, weight, bias, gold, mask, smoothing)  # type: ignore[no-untyped-call]
    return sums


class _ProjectedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, mask: Tensor, smoothing: float
    ) -> Tensor:
        learning = any(ctx.needs_input_grad[:3])
        matrix = weight.to(states.dtype)
        sizes = (STRETCH_ON_CPU, CACHED) if states.device.type == "cpu" else (STRETCH, STRETCH)
        rows, together = (max(1, size // weight.size(0)) for size in sizes)
        to_states = torch.empty_like(states) if learning else None
        to_weight = torch.zeros_like(weight) if learning else None
        to_bias = torch.zeros_like(bias) if learning and bias is not None else None
        sums = states.new_zeros(2, dtype=torch.float32 if states.dtype != torch.float64 else torch.float64)
        # Compiled, all rows are one stretch: it is written twice, in the precision of the product, and not kept.
        whole = torch.compiler.is_compiling()
        for begin in (0,) if whole else range(0, states.size(0), rows):
            part = slice(None) if whole else slice(begin, begin + rows)
            logits = F.linear(states[part], matrix, None if bias is None else bias.to(states.dtype))  # (C, V)
            found, slope = _losses_in_parts(logits, gold[part], mask[part], smoothing, learning, together)
            sums += found
            if to_states is not None and to_weight is not None:
                torch.mm(slope, matrix, out=to_states[part])
                to_weight += slope.T @ states[part]
            if to_bias is not None:
                to_bias += slope.sum(0, dtype=to_bias.dtype)
        ctx.save_for_backward(*([to_states, to_weight, to_bias] if learning else []))
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0][0]  # of the smoothed sum; the plain one is for reports
        found = (None if to is None else to * scale.to(to.dtype) for to in ctx.saved_tensors)
        return (*found, None, None, None)


def _losses_in_parts(
    logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float, learning: bool, rows: int
) -> tuple[Tensor, Tensor]:
    """`_losses` of so many rows at a time; slopes are written over the logits, in their type."""
    if torch.compiler.is_compiling():
        return _losses_compiled(logits, gold, mask, smoothing)
    if rows >= len(logits):
        sums, slope = _losses(logits, gold, mask, smoothing, learning)
        return sums, slope.to(logits.dtype)
    found = []
    for begin in range(0, len(logits), rows):
        part = slice(begin, begin + rows)
        sums, slope = _losses(logits[part], gold[part], mask[part], smoothing, learning)
        found.append(sums)
        if learning:
            logits[part] = slope
    return torch.stack(found).sum(0), logits


def _losses(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float, learning: bool) -> tuple[Tensor, Tensor]:
    """The two sums (2,) of a stretch, and what each logit (C, V) adds to the first."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    plain = -log_probs.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    smoothed = (1 - smoothing) * plain - smoothing * log_probs.mean(-1)
    nothing = plain.new_zeros(())
    sums = torch.stack((smoothed.where(mask, nothing).sum(), plain.where(mask, nothing).sum()))
    if not learning:
        return sums, logits
    slope = log_probs.exp_().sub_(smoothing / logits.size(-1))
    slope.scatter_add_(-1, gold.unsqueeze(-1), slope.new_full((), smoothing - 1).expand(len(gold), 1))
    return sums, slope.mul_(mask.unsqueeze(-1))


def _losses_compiled(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The same as a compiler does it in two passes: sums over each row, then the slopes, in the logits' type."""
    high = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = high.logsumexp(-1)
    right = logits.gather(-1, gold.unsqueeze(-1)).squeeze(-1).to(high.dtype)
    smoothed = total - (1 - smoothing) * right - smoothing * high.mean(-1)
    nothing = total.new_zeros(())
    sums = torch.stack((smoothed.where(mask, nothing).sum(), (total - right).where(mask, nothing).sum()))
    words = torch.arange(logits.size(-1), device=logits.device)
    slope = (high - total.unsqueeze(-1)).exp() - smoothing / logits.size(-1)
    slope = slope - (1 - smoothing) * (words == gold.unsqueeze(-1))
    return sums, (slope * mask.unsqueeze(-1)).to(logits.dtype)
