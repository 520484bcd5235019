"""Smoothed cross-entropy of logits and what each logit adds to it, in one kernel on a GPU: a program for every token.

Logits are the largest numbers of a training step. A compiler reads them from memory twice and more; here a row is
read once, its sums found, and read again while the cache has it, for its slopes.
Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STEP, WARPS = 4096, 16  # logits of a row at a time: of eight pairs tried on an H200 the fastest


def losses_and_slopes(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The smoothed and the plain sum (2,) where mask (N,) is True, and what each logit (N, V) adds to the first."""
    smoothed, plain, slopes = _losses(logits, gold, mask, smoothing)
    return torch.stack((smoothed.sum(), plain.sum())), slopes


@triton.jit
def _row(
    logits, gold, mask, slopes, smoothed, plain, smoothing, words, logits_row, slopes_row, STEP: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    slopes += row * slopes_row
    columns = tl.arange(0, STEP)
    if tl.load(mask + row) == 0:
        nothing = tl.zeros((STEP,), slopes.dtype.element_ty)
        for begin in range(0, words, STEP):
            tl.store(slopes + begin + columns, nothing, mask=begin + columns < words)
        tl.store(smoothed + row, 0.0)
        tl.store(plain + row, 0.0)
    else:
        tops = tl.full((STEP,), float("-inf"), tl.float32)
        sums = tl.zeros((STEP,), tl.float32)
        all_logits = tl.zeros((STEP,), tl.float32)
        for begin in range(0, words, STEP):
            inside = begin + columns < words
            x = tl.load(logits + begin + columns, mask=inside, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(tops, x)
            # A lane that has seen nothing yet, the first time: -inf less -inf is no number.
            sums = tl.where(higher == float("-inf"), 0.0, sums * tl.exp(tops - higher) + tl.exp(x - higher))
            tops = higher
            all_logits += tl.where(inside, x, 0.0)
        top = tl.max(tops, 0)
        total = top + tl.log(tl.sum(sums * tl.exp(tops - top), 0))
        right_word = tl.load(gold + row)
        right = tl.load(logits + right_word).to(tl.float32)
        mean = tl.sum(all_logits, 0) / words
        tl.store(plain + row, total - right)
        tl.store(smoothed + row, total - (1 - smoothing) * right - smoothing * mean)
        for begin in range(0, words, STEP):
            inside = begin + columns < words
            x = tl.load(logits + begin + columns, mask=inside, other=float("-inf")).to(tl.float32)
            slope = tl.exp(x - total) - smoothing / words
            slope = tl.where(begin + columns == right_word, slope - (1 - smoothing), slope)
            tl.store(slopes + begin + columns, slope.to(slopes.dtype.element_ty), mask=inside)


@torch.library.custom_op("transduce::losses_and_slopes", mutates_args=())
def _losses(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _like_losses(logits, gold, mask, smoothing)
    smoothed, plain, slopes = found
    _row[(len(logits),)](
        logits, gold, mask, slopes, smoothed, plain, smoothing, logits.size(1), logits.stride(0), slopes.stride(0),
        STEP=min(STEP, triton.next_power_of_2(logits.size(1))), num_warps=WARPS,
    )  # fmt: skip
    return found


@_losses.register_fake
def _like_losses(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of every token the smoothed and the plain loss, and the slopes of its logits."""
    row = logits.new_empty(len(logits), dtype=torch.float32)
    return row, torch.empty_like(row), torch.empty_like(logits)
