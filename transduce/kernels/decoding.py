"""What a step of decoding does besides matrix products, on a GPU: attention to memory set aside, sum and norm.

Kernels for long texts take tiles of queries where a path has a single one, and look at all paths of a sentence through
a mask. Here each path reads the keys and values of its own ancestors and nothing else, and leaves its newest in their
place on the way. Sizes follow from shapes and nothing waits for the device, so that a graph can record all of it.
Shapes: B sentences, K paths, L places, S source places, H heads, G heads of keys and values, W the width of a head's
queries and keys, V of its values, N tokens, D d_model.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # keys that a program looks at together
FEW = 4  # rows for which a product is made here; libraries are made for many, and take longer to begin
WIDEST = 4096  # numbers of a row that a program holds
LOWEST = tl.constexpr(-1e30)  # below any score, and still a number


def attend_held(
    query: Tensor,
    newest: tuple[Tensor, Tensor],
    memory: tuple[Tensor, Tensor],
    place: Tensor,
    ancestors: Tensor,
    scale: float,
) -> Tensor:
    """Equation 1 for query (B, H, K, W) over each path's own past and its `newest` key and value: (B, K, H * V).

    These, (B, G, K, W) and (B, G, K, V), are written to `memory` (B, L, K, G, W) and (B, L, K, G, V) at place (B,);
    ancestors (B, K, L) says whose keys a path goes on from at the places before it.
    """
    (key, value), (sentences, length, paths, groups, width) = newest, memory[0].shape
    heads, deep = query.size(1), value.size(3)
    out = value.new_empty(sentences, paths, heads * deep)
    _attend_held[(paths, heads, sentences)](
        query, key, value, *memory, out, place, ancestors, scale, length, *query.stride()[:3], *key.stride()[:3],
        *value.stride()[:3], PATHS=paths, REPEATS=heads // groups, PLACES=min(TILE, triton.next_power_of_2(length)),
        W=width, V=deep, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _attend_held(
    query, key, value, keys, values, out, place, ancestors, scale, length,
    query_sentence, query_head, query_path, key_sentence, key_head, key_path, value_sentence, value_head, value_path,
    PATHS: tl.constexpr, REPEATS: tl.constexpr, PLACES: tl.constexpr, W: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    path, head, sentence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    group, groups = head // REPEATS, tl.num_programs(1) // REPEATS
    wide, deep = tl.arange(0, W), tl.arange(0, V)
    here = tl.load(place + sentence)
    q = tl.load(query + sentence * query_sentence + head * query_head + path * query_path + wide).to(tl.float32) * scale
    newest_key = tl.load(key + sentence * key_sentence + group * key_head + path * key_path + wide)
    newest_value = tl.load(value + sentence * value_sentence + group * value_head + path * value_path + deep)
    # Of the heads that share a key one writes it; none reads it from there at this step.
    if head % REPEATS == 0:
        own = ((sentence * length + here) * PATHS + path) * groups + group
        tl.store(keys + own * W + wide, newest_key)
        tl.store(values + own * V + deep, newest_value)
    highest = tl.sum(q * newest_key.to(tl.float32), 0)
    total = 1.0
    found = newest_value.to(tl.float32)
    for first in range(0, here, PLACES):
        places = first + tl.arange(0, PLACES)
        seen = places < here
        rows = (sentence * length + places) * PATHS
        if PATHS > 1:
            rows += tl.load(ancestors + (sentence * PATHS + path) * length + places, mask=seen, other=0)
        rows = (rows * groups + group)[:, None]
        k = tl.load(keys + rows * W + wide[None, :], mask=seen[:, None], other=0.0)
        v = tl.load(values + rows * V + deep[None, :], mask=seen[:, None], other=0.0)
        scores = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], 1), float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights, before = tl.exp(scores - higher), tl.exp(highest - higher)
        total = total * before + tl.sum(weights, 0)
        found = found * before + tl.sum(weights[:, None] * v.to(tl.float32), 0)
        highest = higher
    row = (sentence * PATHS + path) * tl.num_programs(1) + head
    tl.store(out + row * V + deep, (found / total).to(out.dtype.element_ty))


def attend_source(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """Equation 1 for query (B, H, K, W) over key (B, G, S, W), value (B, G, S, V): (B, K, H * V).

    hidden (B, 1, 1, S) is 0 where there is something to see; where there is nothing at all, 0 is found.
    """
    sentences, heads, paths, width = query.shape
    groups, length, deep = value.shape[1:]
    out = value.new_empty(sentences, paths, heads * deep)
    _attend_source[(heads, sentences)](
        query, key, value, hidden, out, scale, length, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        hidden.stride(0), PATHS=paths, ROWS=1 if paths == 1 else max(16, triton.next_power_of_2(paths)),
        REPEATS=heads // groups, PLACES=min(TILE, max(16, triton.next_power_of_2(length))), W=width, V=deep,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


@triton.jit
def _attend_source(
    query, key, value, hidden, out, scale, length,
    query_sentence, query_head, query_path, key_sentence, key_head, key_place,
    value_sentence, value_head, value_place, hidden_sentence,
    PATHS: tl.constexpr, ROWS: tl.constexpr, REPEATS: tl.constexpr, PLACES: tl.constexpr,
    W: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    head, sentence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group = head // REPEATS
    paths, wide, deep = tl.arange(0, ROWS), tl.arange(0, W), tl.arange(0, V)
    real = (paths < PATHS)[:, None]
    where = sentence * query_sentence + head * query_head + paths[:, None] * query_path + wide[None, :]
    q = tl.load(query + where, mask=real, other=0.0)
    highest, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, V), tl.float32)
    for first in range(0, length, PLACES):
        places = first + tl.arange(0, PLACES)
        # Read before anything else: what is hidden is not fetched.
        seen = tl.load(hidden + sentence * hidden_sentence + places, mask=places < length, other=1.0) == 0
        rows = (sentence * key_sentence + group * key_head + places * key_place)[:, None]
        k = tl.load(key + rows + wide[None, :], mask=seen[:, None], other=0.0)
        rows = (sentence * value_sentence + group * value_head + places * value_place)[:, None]
        v = tl.load(value + rows + deep[None, :], mask=seen[:, None], other=0.0)
        scores = tl.where(seen[None, :], _products(q, k, ROWS == 1) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, before = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        total = total * before + tl.sum(weights, 1)
        found = found * before[:, None] + _mixed(weights, v, ROWS == 1)
        highest = higher
    found = tl.where(total[:, None] > 0, found / total[:, None], 0.0)
    where = (sentence * PATHS + paths[:, None]) * tl.num_programs(0) * V + head * V + deep[None, :]
    tl.store(out + where, found.to(out.dtype.element_ty), mask=real)


@triton.jit
def _products(q, k, ALONE: tl.constexpr):
    """q k^T; for a single row not by the units for matrices, which want 16."""
    if ALONE:
        return tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)[None, :]
    else:
        return tl.dot(q, tl.trans(k), input_precision="ieee")


@triton.jit
def _mixed(weights, v, ALONE: tl.constexpr):
    """weights v, likewise."""
    if ALONE:
        return tl.sum(tl.trans(weights) * v.to(tl.float32), 0)[None, :]
    else:
        return tl.dot(weights.to(v.dtype), v, input_precision="ieee")


def normed_sum(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """x + y (..., D) with mean 0 and variance 1 over D, then times weight (D,) plus bias (D,).

    Without a bias it is the mean square that becomes 1, and the mean stays where it is.
    """
    width = x.size(-1)
    rows, others = x.reshape(-1, width), y.reshape(-1, width)
    out = rows.new_empty(rows.shape)
    columns = triton.next_power_of_2(width)
    _normed_sum[(len(rows),)](
        rows, others, weight, weight if bias is None else bias, out, rows.stride(0), others.stride(0), epsilon,
        CENTRED=bias is not None, WIDTH=width, COLUMNS=columns, num_warps=max(1, min(8, columns // 256)),
    )  # fmt: skip
    return out.view(x.shape)


@triton.jit
def _normed_sum(
    x, y, weight, bias, out, x_row, y_row, epsilon, CENTRED: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    total = tl.load(x + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(y + row * y_row + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        total = tl.where(inside, total - tl.sum(total, 0) / WIDTH, 0.0)
    found = total * (1 / tl.sqrt(tl.sum(total * total, 0) / WIDTH + epsilon)) * factor
    if CENTRED:
        found += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, found.to(out.dtype.element_ty), mask=inside)


def looked_up(table: Tensor, index: Tensor, factor: float, onto: Tensor | None = None) -> Tensor:
    """Rows index (...) of table (V, D), times a factor: (..., D); added `onto` (B, K, D) where index is (B,)."""
    width = table.size(1)
    out = table.new_empty(*index.shape, width) if onto is None else onto.new_empty(onto.shape)
    rows, columns = out.numel() // width, triton.next_power_of_2(width)
    _looked_up[(rows,)](
        table, index.contiguous(), out if onto is None else onto.contiguous(), out, factor,
        SHARED=rows // max(1, index.numel()), ADDED=onto is not None, WIDTH=width, COLUMNS=columns,
        num_warps=max(1, min(8, columns // 256)),
    )  # fmt: skip
    return out


@triton.jit
def _looked_up(
    table, index, onto, out, factor,
    SHARED: tl.constexpr, ADDED: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    found = tl.load(table + tl.load(index + row // SHARED) * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    found *= factor
    if ADDED:
        found += tl.load(onto + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, found.to(out.dtype.element_ty), mask=inside)


def few_times(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """x (..., I), no more than FEW rows of at most WIDEST, times weight (O, I), turned, plus bias (O,): (..., O)."""
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs)
    out = rows.new_empty(len(rows), outputs)
    columns = 4
    _few_times[(triton.cdiv(outputs, columns),)](
        rows, weight, bias, out, rows.stride(0), outputs, ROWS=len(rows), RELU=relu, INPUTS=inputs,
        NUMBERS=triton.next_power_of_2(inputs), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return out.view(*x.shape[:-1], outputs)


@triton.jit
def _few_times(
    x, weight, bias, out, row, outputs,
    ROWS: tl.constexpr, RELU: tl.constexpr, INPUTS: tl.constexpr, NUMBERS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, numbers = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, NUMBERS)
    there, inside = columns < outputs, numbers < INPUTS
    where = columns[:, None].to(tl.int64) * INPUTS + numbers[None, :]
    w = tl.load(weight + where, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)
    for number in tl.static_range(ROWS):
        one = tl.load(x + number * row + numbers, mask=inside, other=0.0).to(tl.float32)
        found = tl.sum(w * one[None, :], 1) + b
        if RELU:
            found = tl.maximum(found, 0.0)
        tl.store(out + number * outputs + columns, found.to(out.dtype.element_ty), mask=there)
