"""LayerNorm(x + dropout(y)), which ends every sublayer (sections 3.1 and 5.4), in one kernel on a GPU, and one back.

All of it waits for memory: each number is read once and written once, there and back. What is dropped is a hash of
its place and two seeds, worked out again on the way back, and the sums over all tokens that are the gradients of
weight and bias are made while the numbers are at hand. What goes from layer to layer is as precise as y is: in
bfloat16 training that halves what is moved. Sums, means and variances are of single precision.
Shapes: N tokens, D d_model, P programs that share the tokens.

Smoothed cross-entropy of logits and what each logit adds to it, in one kernel on a GPU: a program for every token.

Logits are the largest numbers of a training step. A compiler reads them from memory twice and more; here a row is
read once, its sums found, and read again while the cache has it, for its slopes.
Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 8192  # numbers of a token that a program can hold
# Numbers at a time, of one token or of several, and the programs on the way back, eight for each unit of an H200: of a
# dozen pairs tried on one at D = 512 the fastest (back 40 us, others up to 69; there 28 us with any).
TILE, PROGRAMS = 512, 1056


def normed_sum(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, dropped: float, epsilon: float) -> Tensor:
    """X and y (..., D), weight and bias (D,); numbers of y are `dropped` with that probability, the rest scaled up."""
    seeds = (torch.rand(2, device=x.device) * 2.0**31).to(torch.int32)
    given = x.reshape(-1, x.size(-1)), y.reshape(-1, y.size(-1))
    found: Tensor = _normed(*given, weight, bias, seeds, dropped, epsilon)[0]
    return found.view(y.shape)


@triton.jit
def _kept(places, seeds, below):
    """Whether each place is kept: 24 bits of a hash (Wellons 2018, "lowbias32", a second seed in its middle)."""
    hashed = places.to(tl.uint32) + tl.load(seeds).to(tl.uint32)
    hashed ^= hashed >> 16
    hashed = (hashed * 0x7FEB352D) ^ tl.load(seeds + 1).to(tl.uint32)
    hashed ^= hashed >> 15
    hashed *= 0x846CA68B
    hashed ^= hashed >> 16
    return (hashed >> 8) >= below


@triton.jit
def _sum(
    x, y, weight, bias, seeds, out, summed, means, scales, rows, width, below, grown, epsilon,
    DROPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    places = row[:, None].to(tl.int64) * width + column[None, :]
    total = tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        total = tl.where(_kept(places, seeds, below), total * grown, 0.0)
    total += tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(summed + places, total.to(summed.dtype.element_ty), mask=inside)
    mean = tl.sum(total, 1) / width
    centred = tl.where(inside, total - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(scales + row, scale, mask=row < rows)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    normed = centred * scale[:, None] * w[None, :] + b[None, :]
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_back(
    gradient, summed, means, scales, weight, seeds, to_x, to_y, parts, rows, width, below, grown,
    DROPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    to_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    to_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        places = row[:, None].to(tl.int64) * width + column[None, :]
        g = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(summed + places, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(means + row, mask=row < rows, other=0.0)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        normed = tl.where(inside, (z - mean[:, None]) * scale[:, None], 0.0)
        to_weight += g * normed
        to_bias += g
        weighed = g * w[None, :]
        level = tl.sum(weighed, 1) / width
        along = tl.sum(weighed * normed, 1) / width
        slope = (weighed - level[:, None] - normed * along[:, None]) * scale[:, None]
        slope = tl.where(inside, slope, 0.0)
        tl.store(to_x + places, slope.to(to_x.dtype.element_ty), mask=inside)
        if DROPS:
            slope = tl.where(_kept(places, seeds, below), slope * grown, 0.0)
        tl.store(to_y + places, slope.to(to_y.dtype.element_ty), mask=inside)
    parts += tl.program_id(0) * 2 * width + column
    tl.store(parts, tl.sum(to_weight, 0), mask=column < width)
    tl.store(parts + width, tl.sum(to_bias, 0), mask=column < width)


def _settings(width: int, dropped: float) -> dict[str, int | bool]:
    across = triton.next_power_of_2(width)
    rows = max(1, TILE // across)
    warps = max(1, min(8, rows * across // 256))
    return {"DROPS": dropped > 0, "ROWS": rows, "WIDTH": across, "num_warps": warps}


def _drawing(dropped: float) -> tuple[int, float]:
    """Of 24 bits those below which a number is dropped, and by what the others grow."""
    return round(dropped * 2**24), 1 / (1 - dropped)


@torch.library.custom_op("transduce::normed_sum", mutates_args=())
def _normed(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, dropped: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = x.contiguous(), y.contiguous()
    found: tuple[Tensor, Tensor, Tensor, Tensor] = _like_sum(x, y, weight, bias, seeds, dropped, epsilon)
    rows, width = y.shape
    settings = _settings(width, dropped)
    _sum[(triton.cdiv(rows, settings["ROWS"]),)](
        x, y, weight, bias, seeds, *found, rows, width, *_drawing(dropped), epsilon, **settings
    )  # fmt: skip
    return found


@_normed.register_fake
def _like_sum(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, dropped: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The norm, the sum it is of (both as y is), and of every token the sum's mean and what it was scaled by."""
    mean = y.new_empty(len(y), dtype=torch.float32)
    return y.new_empty(y.shape), y.new_empty(y.shape), mean, torch.empty_like(mean)


@torch.library.custom_op("transduce::normed_sum_back", mutates_args=())
def _normed_back(
    gradient: Tensor, summed: Tensor, means: Tensor, scales: Tensor, weight: Tensor, seeds: Tensor,
    dropped: float, like_x: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    gradient = gradient.contiguous()
    found: tuple[Tensor, Tensor, Tensor] = _like_parts(gradient, summed, means, scales, weight, seeds, dropped, like_x)
    rows, width = summed.shape
    _sum_back[(len(found[2]),)](
        gradient, summed, means, scales, weight, seeds, *found, rows, width, *_drawing(dropped),
        **_settings(width, dropped),
    )  # fmt: skip
    return found


@_normed_back.register_fake
def _like_parts(
    gradient: Tensor, summed: Tensor, means: Tensor, scales: Tensor, weight: Tensor, seeds: Tensor,
    dropped: float, like_x: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and y, and of weight and bias what each program found, (P, 2, D)."""
    parts = summed.new_empty(PROGRAMS, 2, summed.size(1), dtype=torch.float32)
    return summed.new_empty(summed.shape, dtype=like_x), summed.new_empty(summed.shape), parts


def _keep(ctx, inputs, output) -> None:
    x, _, weight, _, seeds, ctx.dropped, _ = inputs
    ctx.like_x = x.dtype
    _, summed, means, scales = output
    ctx.save_for_backward(summed, means, scales, weight, seeds)
    ctx.mark_non_differentiable(summed, means, scales)


def _back(ctx, gradient, *others):
    to_x, to_y, parts = _normed_back(gradient, *ctx.saved_tensors, ctx.dropped, ctx.like_x)
    to_weight, to_bias = parts.sum(0).to(ctx.saved_tensors[3].dtype).unbind(0)
    return to_x, to_y, to_weight, to_bias, None, None, None


_normed.register_autograd(_back, setup_context=_keep)


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
