"""Triton training kernels: LayerNorm(x + dropout(y)), and label-smoothed cross-entropy, with gradients.

Both are bound by memory. LayerNorm(x + dropout(y)) ends every sublayer (sections 3.1 and 5.4): each number is read and
written once, forward and backward. The dropout mask is a hash of position and two seeds, recomputed in the backward
pass, and the sums over tokens for the gradients of weight and bias are computed in the same pass. Outputs have the
precision of y: in bfloat16 training that halves the traffic. Sums, means and variances are in single precision.
Shapes: N tokens, D d_model, P programs that share the tokens.

For the cross-entropy each token has a program. Logits are the largest tensor of a training step. A compiler reads them
from memory twice or more; here a row is read once for its sums, and again from the cache for its gradient.
Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 8192  # largest width of a token that a program holds
# Numbers per iteration, of one token or of several, and programs of the backward pass, eight per SM of an H200: the
# fastest of a dozen pairs at D = 512 (backward 40 us, others up to 69; forward 28 us with any).
TILE, PROGRAMS = 512, 1056


def normed_sum(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, dropped: float, epsilon: float) -> Tensor:
    """LayerNorm of x + dropout(y), both (..., D), weight and bias (D,); `dropped` is the dropout probability."""
    seeds = (torch.rand(2, device=x.device) * 2.0**31).to(torch.int32)
    rows = x.reshape(-1, x.size(-1)), y.reshape(-1, y.size(-1))
    normed: Tensor = _normed(*rows, weight, bias, seeds, dropped, epsilon)[0]
    return normed.view(y.shape)


@triton.jit
def _kept(places, seeds, below):
    """Dropout mask: 24 bits of a hash of each index (Wellons 2018, "lowbias32", with a second seed inside)."""
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
    indices = row[:, None].to(tl.int64) * width + column[None, :]
    total = tl.load(y + indices, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        total = tl.where(_kept(indices, seeds, below), total * grown, 0.0)
    total += tl.load(x + indices, mask=inside, other=0.0).to(tl.float32)
    tl.store(summed + indices, total.to(summed.dtype.element_ty), mask=inside)
    mean = tl.sum(total, 1) / width
    centred = tl.where(inside, total - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(scales + row, scale, mask=row < rows)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    normed = centred * scale[:, None] * w[None, :] + b[None, :]
    tl.store(out + indices, normed.to(out.dtype.element_ty), mask=inside)


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
        indices = row[:, None].to(tl.int64) * width + column[None, :]
        g = tl.load(gradient + indices, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(summed + indices, mask=inside, other=0.0).to(tl.float32)
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
        tl.store(to_x + indices, slope.to(to_x.dtype.element_ty), mask=inside)
        if DROPS:
            slope = tl.where(_kept(indices, seeds, below), slope * grown, 0.0)
        tl.store(to_y + indices, slope.to(to_y.dtype.element_ty), mask=inside)
    parts += tl.program_id(0) * 2 * width + column
    tl.store(parts, tl.sum(to_weight, 0), mask=column < width)
    tl.store(parts + width, tl.sum(to_bias, 0), mask=column < width)


def _settings(width: int, dropped: float) -> dict[str, int | bool]:
    across = triton.next_power_of_2(width)
    rows = max(1, TILE // across)
    warps = max(1, min(8, rows * across // 256))
    return {"DROPS": dropped > 0, "ROWS": rows, "WIDTH": across, "num_warps": warps}


def _drawing(dropped: float) -> tuple[int, float]:
    """The threshold of 24 bits below which a number is dropped, and the scale of the others."""
    return round(dropped * 2**24), 1 / (1 - dropped)


@torch.library.custom_op("transduce::normed_sum", mutates_args=())
def _normed(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, dropped: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = x.contiguous(), y.contiguous()
    outputs: tuple[Tensor, Tensor, Tensor, Tensor] = _like_sum(x, y, weight, bias, seeds, dropped, epsilon)
    rows, width = y.shape
    settings = _settings(width, dropped)
    _sum[(triton.cdiv(rows, settings["ROWS"]),)](
        x, y, weight, bias, seeds, *outputs, rows, width, *_drawing(dropped), epsilon, **settings
    )  # fmt: skip
    return outputs


@_normed.register_fake
def _like_sum(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, dropped: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty outputs: the norm, its input sum (both like y), and each token's mean and scale."""
    mean = y.new_empty(len(y), dtype=torch.float32)
    return y.new_empty(y.shape), y.new_empty(y.shape), mean, torch.empty_like(mean)


@torch.library.custom_op("transduce::normed_sum_back", mutates_args=())
def _normed_back(
    gradient: Tensor, summed: Tensor, means: Tensor, scales: Tensor, weight: Tensor, seeds: Tensor,
    dropped: float, like_x: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    gradient = gradient.contiguous()
    outputs: tuple[Tensor, Tensor, Tensor] = _like_parts(
        gradient, summed, means, scales, weight, seeds, dropped, like_x
    )
    rows, width = summed.shape
    _sum_back[(len(outputs[2]),)](
        gradient, summed, means, scales, weight, seeds, *outputs, rows, width, *_drawing(dropped),
        **_settings(width, dropped),
    )  # fmt: skip
    return outputs


@_normed_back.register_fake
def _like_parts(
    gradient: Tensor, summed: Tensor, means: Tensor, scales: Tensor, weight: Tensor, seeds: Tensor,
    dropped: float, like_x: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Empty outputs: gradients of x and y, and the partial gradients of weight and bias per program, (P, 2, D)."""
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


STEP, WARPS = 4096, 16  # logits of a row per iteration: the fastest of eight pairs on an H200


def losses_and_slopes(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The smoothed and the plain loss (2,), summed where mask (N,) is True, and the gradient (N, V) of the first."""
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
        zeros = tl.zeros((STEP,), slopes.dtype.element_ty)
        for begin in range(0, words, STEP):
            tl.store(slopes + begin + columns, zeros, mask=begin + columns < words)
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
            # A lane without a value yet: -inf - -inf is NaN.
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
    outputs: tuple[Tensor, Tensor, Tensor] = _like_losses(logits, gold, mask, smoothing)
    smoothed, plain, slopes = outputs
    _row[(len(logits),)](
        logits, gold, mask, slopes, smoothed, plain, smoothing, logits.size(1), logits.stride(0), slopes.stride(0),
        STEP=min(STEP, triton.next_power_of_2(logits.size(1))), num_warps=WARPS,
    )  # fmt: skip
    return outputs


@_losses.register_fake
def _like_losses(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Empty outputs: each token's smoothed and plain loss, and the gradient of the logits."""
    row = logits.new_empty(len(logits), dtype=torch.float32)
    return row, torch.empty_like(row), torch.empty_like(logits)
