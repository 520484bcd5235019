"""Kernels of candidates.py; needs triton.

Shapes: N packed queries, M packed keys, H heads, K the width of a head, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from transduce.model import attention_on_gpu as rows
from transduce.model.attention_on_gpu import _warps

STEP = 4096  # logits of a row at a time


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
def _losses_and_slopes(
    logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    slopes = torch.empty_like(logits)
    smoothed, plain = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
    _row[(len(logits),)](
        logits, gold, mask, slopes, smoothed, plain, smoothing, logits.size(1), logits.stride(0), slopes.stride(0),
        STEP=min(STEP, triton.next_power_of_2(logits.size(1))), num_warps=8,
    )  # fmt: skip
    return smoothed, plain, slopes


@_losses_and_slopes.register_fake
def _like_logits(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    row = logits.new_empty(len(logits), dtype=torch.float32)
    return row, torch.empty_like(row), torch.empty_like(logits)


def losses_and_slopes(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """What `projected._losses_compiled` gives: the two sums (2,), and what each logit (N, V) adds to the first."""
    smoothed, plain, slopes = _losses_and_slopes(logits, gold, mask, smoothing)
    return torch.stack((smoothed.sum(), plain.sum())), slopes


def _forward(
    query: Tensor, key: Tensor, value: Tensor, starts: tuple[Tensor, Tensor], scale: float, causal: bool, places: int
) -> Tensor:
    out = query.new_empty(query.shape)
    rows._look[(len(starts[0]), query.size(1))](
        query, key, value, out, *starts, len(query), query.stride(0), key.stride(0), value.stride(0), out.stride(0),
        query.stride(1), key.stride(1), value.stride(1), scale,
        CAUSAL=causal, PLACES=places, K=query.size(2), V=query.size(2), num_warps=_warps(places),
    )  # fmt: skip
    return out


def _backward(
    gradient: Tensor, given: tuple[Tensor, Tensor, Tensor], to: tuple[Tensor, Tensor, Tensor],
    starts: tuple[Tensor, Tensor], scale: float, causal: bool, places: int,
) -> None:  # fmt: skip
    gradient, (query, key, value) = gradient.contiguous(), given
    rows._look_back[(len(starts[0]), query.size(1))](
        query, key, value, gradient, *to, *starts, len(query), len(key),
        query.stride(0), key.stride(0), value.stride(0), gradient.stride(0),
        *(part.stride(0) for part in to), query.stride(1), key.stride(1), value.stride(1), scale,
        CAUSAL=causal, PLACES=places, K=query.size(2), V=query.size(2), num_warps=_warps(places),
    )  # fmt: skip


@torch.library.custom_op("transduce::attended_joined", mutates_args=())
def _joined(joined: Tensor, starts: Tensor, scale: float, causal: bool, places: int) -> Tensor:
    key, value, query = joined.unbind(1)
    return _forward(query, key, value, (starts, starts), scale, causal, places)


@_joined.register_fake
def _like_part(joined: Tensor, starts: Tensor, scale: float, causal: bool, places: int) -> Tensor:
    return joined.new_empty(len(joined), *joined.shape[2:])


@torch.library.custom_op("transduce::attended_joined_back", mutates_args=())
def _joined_back(
    gradient: Tensor, joined: Tensor, starts: Tensor, scale: float, causal: bool, places: int
) -> Tensor:  # fmt: skip
    found = joined.new_empty(joined.shape)
    (key, value, query), (to_key, to_value, to_query) = joined.unbind(1), found.unbind(1)
    both = (query, key, value), (to_query, to_key, to_value)
    _backward(gradient, *both, (starts, starts), scale, causal, places)
    return found


@_joined_back.register_fake
def _like_joined(
    gradient: Tensor, joined: Tensor, starts: Tensor, scale: float, causal: bool, places: int
) -> Tensor:  # fmt: skip
    return joined.new_empty(joined.shape)


def _keep_joined(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.settings = inputs[2:]


def _back_joined(ctx, gradient):
    return _joined_back(gradient, *ctx.saved_tensors, *ctx.settings), None, None, None, None


_joined.register_autograd(_back_joined, setup_context=_keep_joined)


@torch.library.custom_op("transduce::attended_to_joined", mutates_args=())
def _to_joined(
    query: Tensor, joined: Tensor, starts: Tensor, key_starts: Tensor, scale: float, causal: bool, places: int
) -> Tensor:  # fmt: skip
    return _forward(query, *joined.unbind(1), (starts, key_starts), scale, causal, places)


@_to_joined.register_fake
def _like_given(
    query: Tensor, joined: Tensor, starts: Tensor, key_starts: Tensor, scale: float, causal: bool, places: int
) -> Tensor:  # fmt: skip
    return query.new_empty(query.shape)


@torch.library.custom_op("transduce::attended_to_joined_back", mutates_args=())
def _to_joined_back(
    gradient: Tensor, query: Tensor, joined: Tensor, starts: Tensor, key_starts: Tensor,
    scale: float, causal: bool, places: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    to_query, found = query.new_empty(query.shape), joined.new_empty(joined.shape)
    both = (query, *joined.unbind(1)), (to_query, *found.unbind(1))
    _backward(gradient, *both, (starts, key_starts), scale, causal, places)
    return to_query, found


@_to_joined_back.register_fake
def _like_both(
    gradient: Tensor, query: Tensor, joined: Tensor, starts: Tensor, key_starts: Tensor,
    scale: float, causal: bool, places: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return query.new_empty(query.shape), joined.new_empty(joined.shape)


def _keep_both(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _back_both(ctx, gradient):
    return *_to_joined_back(gradient, *ctx.saved_tensors, *ctx.settings), None, None, None, None, None


_to_joined.register_autograd(_back_both, setup_context=_keep_both)


def attend_joined(joined: Tensor, starts: Tensor, scale: float, causal: bool, longest: int) -> Tensor:
    """`attend_rows` of keys, values and queries (N, 3, H, K), in this order: (N, H, K)."""
    found: Tensor = _joined(joined, starts, scale, causal, max(16, triton.next_power_of_2(longest)))
    return found


def attend_to_joined(
    query: Tensor, joined: Tensor, starts: Tensor, key_starts: Tensor, scale: float, causal: bool, longest: int
) -> Tensor:
    """The same of queries (N, H, K) that look at keys and values (M, 2, H, K)."""
    places = max(16, triton.next_power_of_2(longest))
    found: Tensor = _to_joined(query, joined, starts, key_starts, scale, causal, places)
    return found
