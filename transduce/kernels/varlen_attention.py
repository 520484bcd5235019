"""Triton attention over packed sentences: one tile per row and head, forward and backward.

Kernels for long texts use tiles of 128 positions, most of them empty for a sentence of 25 tokens, and plain products
need the packed tokens padded to rows first, which moves every number twice. Here queries, keys and values are read
where they are, and attention weights never leave the kernel: the backward pass recomputes them. Shapes: N packed
queries, M packed keys, B rows, H heads, K the width of a head's queries and keys, V of its values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


def attend_rows(
    parts: Sequence[Tensor], starts: tuple[Tensor, Tensor], scale: float, causal: bool, longest: int
) -> Tensor:
    """Equation 1 within each row: query (N, H, K), key (M, H, K), value (M, H, V) -> (N, H, V).

    Parts may be packed in one tensor, as one product leaves them, and so are their gradients: keys and values (M, 2, H,
    K), or all three (N, 3, H, K). `starts` (B + 1,) are the offset of every row among queries and keys, and the end of
    the last; outputs beyond it are 0. Rows have at most `longest` tokens, which fit a tile; a row with queries has
    keys.
    """
    tile = max(16, triton.next_power_of_2(longest))
    parts = [part.to(parts[-1].dtype) for part in parts]
    heads: Tensor = _attended(parts, *starts, scale, causal, tile)
    return heads


@triton.jit
def _read(rows, first, count, token, head, PLACES: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows first .. first + count of a head, (PLACES, WIDTH), 0 beyond; `token` is the stride between rows."""
    rows_in_tile, columns = tl.arange(0, PLACES), tl.arange(0, WIDTH)
    where = (first + rows_in_tile)[:, None].to(tl.int64) * token + head + columns[None, :]
    return tl.load(rows + where, mask=(rows_in_tile < count)[:, None], other=0.0)


@triton.jit
def _write(rows, tile, first, count, token, head, PLACES: tl.constexpr, WIDTH: tl.constexpr):
    rows_in_tile, columns = tl.arange(0, PLACES), tl.arange(0, WIDTH)
    where = (first + rows_in_tile)[:, None].to(tl.int64) * token + head + columns[None, :]
    tl.store(rows + where, tile.to(rows.dtype.element_ty), mask=(rows_in_tile < count)[:, None])


@triton.jit
def _clear(rows, first, end, token, head, PLACES: tl.constexpr, WIDTH: tl.constexpr):
    zeros = tl.zeros((PLACES, WIDTH), tl.float32)
    for start in range(first, end, PLACES):
        _write(rows, zeros, start, end - start, token, head, PLACES, WIDTH)


@triton.jit
def _weights(query, key, keys, scale, CAUSAL: tl.constexpr, PLACES: tl.constexpr):
    """softmax(Q K^T scale) over the first `keys` columns, (PLACES, PLACES)."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    rows, columns = tl.arange(0, PLACES)[:, None], tl.arange(0, PLACES)[None, :]
    visible = columns < keys
    if CAUSAL:
        visible = visible & (columns <= rows)
    scores = tl.where(visible, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _forward(
    query, key, value, out, query_starts, key_starts, end, query_token, key_token, value_token, out_token,
    query_head, key_head, value_head, scale,
    CAUSAL: tl.constexpr, PLACES: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(query_starts + row)
    if row == tl.num_programs(0) - 1:
        _clear(out, first, end, out_token, head * V, PLACES, V)
    else:
        count = tl.load(query_starts + row + 1) - first
        other = tl.load(key_starts + row)
        keys = tl.load(key_starts + row + 1) - other
        if count > 0:
            q = _read(query, first, count, query_token, head * query_head, PLACES, K)
            k = _read(key, other, keys, key_token, head * key_head, PLACES, K)
            v = _read(value, other, keys, value_token, head * value_head, PLACES, V)
            weights = _weights(q, k, keys, scale, CAUSAL, PLACES)
            output = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            _write(out, output, first, count, out_token, head * V, PLACES, V)


@triton.jit
def _backward(
    query, key, value, gradient, to_query, to_key, to_value, query_starts, key_starts, end, key_end,
    query_token, key_token, value_token, gradient_token, to_token, to_key_token, to_value_token,
    query_head, key_head, value_head, scale,
    CAUSAL: tl.constexpr, PLACES: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    first, other = tl.load(query_starts + row), tl.load(key_starts + row)
    if row == tl.num_programs(0) - 1:
        _clear(to_query, first, end, to_token, head * K, PLACES, K)
        _clear(to_key, other, key_end, to_key_token, head * K, PLACES, K)
        _clear(to_value, other, key_end, to_value_token, head * V, PLACES, V)
    else:
        count = tl.load(query_starts + row + 1) - first
        keys = tl.load(key_starts + row + 1) - other
        if keys > 0:
            q = _read(query, first, count, query_token, head * query_head, PLACES, K)
            k = _read(key, other, keys, key_token, head * key_head, PLACES, K)
            v = _read(value, other, keys, value_token, head * value_head, PLACES, V)
            g = _read(gradient, first, count, gradient_token, head * V, PLACES, V)
            weights = _weights(q, k, keys, scale, CAUSAL, PLACES)
            _write(
                to_value, tl.dot(tl.trans(weights.to(g.dtype)), g, input_precision="ieee"),
                other, keys, to_value_token, head * V, PLACES, V,
            )  # fmt: skip
            slope = tl.dot(g, tl.trans(v), input_precision="ieee")
            slope = (weights * (slope - tl.sum(weights * slope, 1)[:, None]) * scale).to(q.dtype)
            _write(to_query, tl.dot(slope, k, input_precision="ieee"), first, count, to_token, head * K, PLACES, K)
            _write(
                to_key, tl.dot(tl.trans(slope), q, input_precision="ieee"),
                other, keys, to_key_token, head * K, PLACES, K,
            )  # fmt: skip


def _apart(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return query, key and value, whether packed in one tensor or not."""
    return [tensor for part in parts for tensor in (part.unbind(1) if part.dim() == 4 else (part,))]


@torch.library.custom_op("transduce::attended", mutates_args=())
def _attended(
    parts: Sequence[Tensor], query_starts: Tensor, key_starts: Tensor, scale: float, causal: bool, tile: int
) -> Tensor:
    query, key, value = _apart(parts)
    out: Tensor = _like_query(parts, query_starts, key_starts, scale, causal, tile)
    _forward[(len(query_starts), query.size(1))](
        query, key, value, out, query_starts, key_starts, len(query), query.stride(0), key.stride(0), value.stride(0),
        out.stride(0), query.stride(1), key.stride(1), value.stride(1), scale,
        CAUSAL=causal, PLACES=tile, K=query.size(2), V=value.size(2), num_warps=_warps(tile),
    )  # fmt: skip
    return out


@_attended.register_fake
def _like_query(
    parts: Sequence[Tensor], query_starts: Tensor, key_starts: Tensor, scale: float, causal: bool, tile: int
) -> Tensor:
    query, _, value = _apart(parts)
    return query.new_empty(*query.shape[:2], value.size(2))


@torch.library.custom_op("transduce::attended_back", mutates_args=())
def _attended_back(
    gradient: Tensor, parts: Sequence[Tensor], query_starts: Tensor, key_starts: Tensor,
    scale: float, causal: bool, tile: int,
) -> list[Tensor]:  # fmt: skip
    gradient, (query, key, value) = gradient.contiguous(), _apart(parts)
    gradients: list[Tensor] = _like_parts(gradient, parts, query_starts, key_starts, scale, causal, tile)
    to = _apart(gradients)
    _backward[(len(query_starts), query.size(1))](
        query, key, value, gradient, *to, query_starts, key_starts, len(query), len(key),
        query.stride(0), key.stride(0), value.stride(0), gradient.stride(0), *(part.stride(0) for part in to),
        query.stride(1), key.stride(1), value.stride(1), scale,
        CAUSAL=causal, PLACES=tile, K=query.size(2), V=value.size(2), num_warps=_warps(tile),
    )  # fmt: skip
    return gradients


@_attended_back.register_fake
def _like_parts(
    gradient: Tensor, parts: Sequence[Tensor], query_starts: Tensor, key_starts: Tensor,
    scale: float, causal: bool, tile: int,
) -> list[Tensor]:  # fmt: skip
    return [part.new_empty(part.shape) for part in parts]


def _warps(tile: int) -> int:
    return max(1, min(8, tile // 16))


def _keep(ctx, inputs, output) -> None:
    parts, *starts = inputs[:3]
    ctx.save_for_backward(*starts, *parts)
    ctx.settings = inputs[3:]


def _back(ctx, gradient):
    query_starts, key_starts, *parts = ctx.saved_tensors
    return _attended_back(gradient, parts, query_starts, key_starts, *ctx.settings), None, None, None, None, None


_attended.register_autograd(_back, setup_context=_keep)
