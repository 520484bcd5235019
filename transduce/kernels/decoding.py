"""What a step of decoding does besides matrix products, on a GPU: attention to memory set aside, sum and norm.

Kernels for long texts take tiles of queries where a path has a single one, and look at all paths of a sentence through
a mask. Here each path reads the keys and values of its own ancestors and nothing else, and leaves its newest in their
place on the way. Sizes follow from shapes and nothing waits for the device, so that a graph can record all of it.
Shapes: B sentences, K paths, L places, S source places, H heads, G heads of keys and values, W the width of a head's
queries and keys, V of its values, N tokens, D d_model.

What follows the logits in a step of greedy or beam search (static_search.py), on a GPU: one kernel, or two.

Logits are read in the precision they have, and log-probabilities are made only of those that matter. The numbers on the
board are those that static_search.py would write, and of equals the first wins here too. Nothing waits for the device.
Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, V vocabulary, C stretches of it.
"""

from __future__ import annotations

from typing import Any

import torch
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


STRETCH = tl.constexpr(64)  # tokens whose greatest is found first, so that few of them need be ordered
FEW_ROWS = 64  # rows up to which each is read at once, and not in parts that leave room for other rows
MOST = 32768  # stretches of all paths of a sentence that it orders
LAST = tl.constexpr((1 << 63) - 1)  # after every key


def follow(logits: Tensor, board: Any, never: Tensor, eos: int) -> None:
    """Greedy search: the most probable token of logits (B, 1, V), those left out that `never` (V,) marks by 1.

    `board` is a `StaticSearchState`.
    """
    sentences, _, vocabulary = logits.shape
    tokens = _tile(sentences, vocabulary)
    _follow[(sentences,)](
        logits, never, board.newest, board.position, board.done.view(torch.uint8), board.longest, board.shortest,
        board.chosen, board.token_log_probs, vocabulary, logits.stride(0), board.chosen.size(1),
        EOS=eos, TOKENS=tokens, num_warps=_warps(tokens),
    )  # fmt: skip


@triton.jit
def _follow(
    logits, never, newest, place, done, longest, shortest, chosen, log_probs, vocabulary, row, lines,
    EOS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0).to(tl.int64)
    here, ended = tl.load(place + sentence), tl.load(done + sentence) != 0
    most, fewest = tl.load(longest + sentence), tl.load(shortest + sentence)
    highest, total, best, token = LOWEST, 0.0, float("-inf"), 0
    for first in range(0, vocabulary, TOKENS):
        columns = first + tl.arange(0, TOKENS)
        x, allowed = _read(logits + sentence * row, never, columns, columns < vocabulary, here < fewest, EOS)
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), 0)
        highest = higher
        x = tl.where(allowed, x, float("-inf"))
        top = tl.max(x, 0)
        at = tl.min(tl.where(x == top, columns, 2147483647), 0)
        token = tl.where(top > best, at, token)
        best = tl.maximum(best, top)
    line = sentence * lines + tl.where(ended, 0, here + 1)
    ended = ended | (token == EOS) | (most <= here + 1)
    tl.debug_barrier()  # everybody has read what is now written
    tl.store(chosen + line, token)
    tl.store(log_probs + line, best - highest - tl.log(total))
    tl.store(newest + sentence, token)
    tl.store(done + sentence, ended.to(tl.uint8))
    tl.store(place + sentence, here + tl.where(ended, 0, 1))


@triton.jit
def _read(logits, never, columns, there, held_back, EOS: tl.constexpr):
    """Logits of a path, -inf where there is none, and which of them a rule allows."""
    x = tl.load(logits + columns, mask=there, other=float("-inf")).to(tl.float32)
    allowed = tl.load(never + columns, mask=there, other=1) == 0
    return x, allowed & ((columns != EOS) | (held_back == 0))


def expand(logits: Tensor, board: Any, never: Tensor, rules: Any) -> None:
    """Beam search: from logits (B, K, V) as `StaticSearchStep._expand` goes on, in one kernel.

    `board` is a `StaticSearchState`, `rules` are `BeamRules`.
    """
    sentences, paths, vocabulary = logits.shape
    stretches = -(-vocabulary // STRETCH.value)
    rows = sentences * paths
    tops, least = (torch.empty(rows, size, device=logits.device) for size in (stretches, 2))
    tile = _tile(rows, vocabulary) // STRETCH.value
    _scan[(rows,)](
        logits, never, board.position, board.shortest, tops, least, vocabulary, logits.stride(1), stretches,
        PATHS=paths, EOS=rules.eos, STRETCHES=tile, num_warps=_warps(tile * STRETCH.value),
    )  # fmt: skip
    every = triton.next_power_of_2(paths * stretches)
    _expand[(sentences,)](
        logits, never, tops, least, board.newest, board.position, board.done.view(torch.uint8), board.longest,
        board.shortest, board.chosen, board.token_log_probs, board.cost, board.ancestors, board.finished,
        rules.penalties, vocabulary, logits.stride(1), stretches, board.ancestors.size(2),
        PATHS=paths, KEPT=board.finished.size(1), EOS=rules.eos, BY_LONGEST=rules.grow, EVERY=every,
        COUNT=triton.next_power_of_2(2 * paths), SIZE=triton.next_power_of_2(paths),
        KEEP=triton.next_power_of_2(board.finished.size(1)), num_warps=max(4, min(16, every // 512)),
    )  # fmt: skip


def serves(paths: int, vocabulary: int) -> bool:
    """Whether a beam of so many paths can be ordered by one program."""
    return bool(paths * -(-vocabulary // STRETCH.value) <= MOST)


def _tile(rows: int, vocabulary: int) -> int:
    """Tokens that a program reads together."""
    return int(min(32768 if rows <= FEW_ROWS else 8192, max(STRETCH.value, triton.next_power_of_2(vocabulary))))


def _warps(numbers: int) -> int:
    return max(1, min(32, numbers // 1024))


@triton.jit
def _scan(
    logits, never, place, shortest, tops, least, vocabulary, row, stretches,
    PATHS: tl.constexpr, EOS: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    """Of each path the greatest allowed logit of each stretch, and the greatest and log-sum of all, allowed or not."""
    number = tl.program_id(0).to(tl.int64)
    held_back = tl.load(place + number // PATHS) < tl.load(shortest + number // PATHS)
    highest, total = LOWEST, 0.0
    for first in range(0, stretches, STRETCHES):
        stretch = first + tl.arange(0, STRETCHES)
        columns = stretch[:, None] * STRETCH + tl.arange(0, STRETCH)[None, :]
        x, allowed = _read(logits + number * row, never, columns, columns < vocabulary, held_back, EOS)
        higher = tl.maximum(highest, tl.max(tl.max(x, 1), 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.sum(tl.exp(x - higher), 1), 0)
        highest = higher
        top = tl.max(tl.where(allowed, x, float("-inf")), 1)
        tl.store(tops + number * stretches + stretch, top, mask=stretch < stretches)
    tl.store(least + number * 2, highest)
    tl.store(least + number * 2 + 1, tl.log(total))


@triton.jit
def _costs(x, paths, there, cost, least):
    """What paths cost that go on with logits x, and the log-probability of these; `paths` are their numbers in all."""
    own = x - tl.load(least + paths * 2, mask=there, other=0.0) - tl.load(least + paths * 2 + 1, mask=there, other=0.0)
    own = tl.minimum(own, 0.0)  # for costs are ordered by their bits, which have no sign
    return tl.load(cost + paths, mask=there, other=0.0) - own, own


@triton.jit
def _keys(costs, names, there):
    """Numbers that order as the costs do, and equals by their names; what is not there comes last."""
    bits = costs.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(there, (bits << 32) | names.to(tl.int64), LAST)


@triton.jit
def _first(keys, count, COUNT: tl.constexpr):
    """The names of the `count` lowest keys in order, -1 where there are no more: (COUNT,)."""
    slots, found = tl.arange(0, COUNT), tl.full((COUNT,), -1, tl.int64)
    for slot in range(count):
        key = tl.min(keys, 0)
        found = tl.where((slots == slot) & (key != LAST), key & 0xFFFFFFFF, found)
        keys = tl.where(keys == key, LAST, keys)
    return found


@triton.jit
def _best(
    logits, never, tops, least, cost, sentence, held_back, vocabulary, row, stretches,
    PATHS: tl.constexpr, EOS: tl.constexpr, EVERY: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Places in K * C * STRETCH of the 2K best continuations, what they cost and the last token's own log-probability.

    They lie in the 2K stretches whose own best are best: only those are ordered.
    """
    radix = stretches * STRETCH
    every = tl.arange(0, EVERY)
    there = every < PATHS * stretches
    top = tl.load(tops + sentence * PATHS * stretches + every, mask=there, other=float("-inf"))
    costs, _ = _costs(top, sentence * PATHS + every // stretches, there, cost, least)
    starts = _first(_keys(costs, every * STRETCH, there), 2 * PATHS, COUNT)[:, None]
    places = tl.where(starts >= 0, starts + tl.arange(0, STRETCH)[None, :], -1)
    places = tl.reshape(places, (COUNT * STRETCH,))
    costs, _ = _continue(logits, never, least, cost, sentence, places, held_back, vocabulary, row, radix, PATHS, EOS)
    places = _first(_keys(costs, places, places >= 0), 2 * PATHS, COUNT)
    costs, own = _continue(logits, never, least, cost, sentence, places, held_back, vocabulary, row, radix, PATHS, EOS)
    return places, costs, own


@triton.jit
def _continue(
    logits, never, least, cost, sentence, places, held_back, vocabulary, row, radix,
    PATHS: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """What each of some continuations costs, and its own log-probability."""
    there = places >= 0
    path = sentence * PATHS + tl.where(there, places // radix, 0)
    token = tl.where(there, places % radix, 0)
    real = there & (token < vocabulary)
    x = tl.load(logits + path * row + token, mask=real, other=float("-inf")).to(tl.float32)
    allowed = (tl.load(never + token, mask=real, other=1) == 0) & ((token != EOS) | (held_back == 0))
    return _costs(tl.where(allowed, x, float("-inf")), path, there, cost, least)


@triton.jit
def _finish(finished, scores, ends, own, sentence, KEPT: tl.constexpr, KEEP: tl.constexpr, COUNT: tl.constexpr):
    """The best of what is finished (n, 3) and of what ends now, of equals the older: its three columns."""
    old, new = tl.arange(0, KEEP), tl.arange(0, COUNT)
    where = finished + (sentence * KEPT + old) * 3
    old_scores = tl.load(where, mask=old < KEPT, other=float("-inf"))
    old_ends, old_own = tl.load(where + 1, mask=old < KEPT, other=0.0), tl.load(where + 2, mask=old < KEPT, other=0.0)
    kept, kept_ends, kept_own = old_scores, old_ends, old_own
    for slot in tl.static_range(KEPT):
        a, b = tl.max(old_scores, 0), tl.max(scores, 0)
        older = a >= b
        from_old = old == tl.where(older, tl.min(tl.where(old_scores == a, old, KEEP), 0), -1)
        from_new = new == tl.where(older, -1, tl.min(tl.where(scores == b, new, COUNT), 0))
        end = tl.sum(tl.where(from_old, old_ends, 0.0), 0) + tl.sum(tl.where(from_new, ends, 0.0), 0)
        one = tl.sum(tl.where(from_old, old_own, 0.0), 0) + tl.sum(tl.where(from_new, own, 0.0), 0)
        kept = tl.where(old == slot, tl.maximum(a, b), kept)
        kept_ends, kept_own = tl.where(old == slot, end, kept_ends), tl.where(old == slot, one, kept_own)
        old_scores = tl.where(from_old, float("-inf"), old_scores)
        scores = tl.where(from_new, float("-inf"), scores)
    return kept, kept_ends, kept_own


@triton.jit
def _expand(
    logits, never, tops, least, newest, place, done, longest, shortest, chosen, log_probs, cost, ancestors, finished,
    penalties, vocabulary, row, stretches, length,
    PATHS: tl.constexpr, KEPT: tl.constexpr, EOS: tl.constexpr, BY_LONGEST: tl.constexpr, EVERY: tl.constexpr,
    COUNT: tl.constexpr, SIZE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Orders continuations, and moves everything on the board of a sentence one token further."""
    sentence, radix = tl.program_id(0).to(tl.int64), stretches * STRETCH
    here, over = tl.load(place + sentence), tl.load(done + sentence) != 0
    most, fewest = tl.load(longest + sentence), tl.load(shortest + sentence)
    places, costs, own = _best(
        logits, never, tops, least, cost, sentence, here < fewest, vocabulary, row, stretches, PATHS, EOS, EVERY, COUNT
    )
    number, ended = tl.arange(0, COUNT), places % radix == EOS
    scores = tl.div_rn(-costs, tl.load(penalties + here + 1))
    scores = tl.where(ended & (number < PATHS) & (over == 0), scores, float("-inf")).to(tl.float64)
    ends = (here * PATHS + places // radix).to(tl.float64)
    kept, kept_ends, kept_own = _finish(finished, scores, ends, own.to(tl.float64), sentence, KEPT, KEEP, COUNT)

    # The first K that have not ended go on, each in the slot of its rank among them.
    going = (ended == 0) & (number < 2 * PATHS)
    slots = tl.arange(0, SIZE)
    taken = going[:, None] & (tl.cumsum(going.to(tl.int32), 0)[:, None] == slots[None, :] + 1)
    place_of = tl.sum(tl.where(taken, places[:, None], 0), 0)
    own_of = tl.sum(tl.where(taken, own[:, None], 0.0), 0)
    cost_of = tl.sum(tl.where(taken, costs[:, None], 0.0), 0)
    real = slots < PATHS
    cost_of = tl.where(over, tl.load(cost + sentence * PATHS + slots, mask=real, other=0.0), cost_of)
    cheapest = tl.min(tl.where(real, cost_of, float("inf")), 0)
    if BY_LONGEST:
        kindest = tl.load(penalties + most)
    else:
        kindest = tl.load(penalties + here + 2)
    worst = tl.min(tl.where(tl.arange(0, KEEP) < KEPT, kept, float("inf")), 0)
    decided = over | (worst >= tl.div_rn(-cheapest, kindest).to(tl.float64)) | (most <= here + 1)
    line = (sentence * (length + 1) + tl.where(over, 0, here + 1)) * PATHS

    tl.debug_barrier()  # everybody has read what is now written
    where = finished + (sentence * KEPT + tl.arange(0, KEEP)) * 3
    tl.store(where, kept, mask=tl.arange(0, KEEP) < KEPT)
    tl.store(where + 1, kept_ends, mask=tl.arange(0, KEEP) < KEPT)
    tl.store(where + 2, kept_own, mask=tl.arange(0, KEEP) < KEPT)
    tl.store(chosen + line + slots, place_of, mask=real)
    tl.store(log_probs + line + slots, own_of, mask=real)
    tl.store(newest + sentence * PATHS + slots, place_of % radix, mask=real)
    tl.store(cost + sentence * PATHS + slots, cost_of, mask=real)
    tl.store(done + sentence, decided.to(tl.uint8))
    tl.store(place + sentence, here + tl.where(decided, 0, 1))
    _descend(ancestors + sentence * PATHS * length, place_of // radix, here, length, PATHS, SIZE)


@triton.jit
def _descend(ancestors, parent, here, length, PATHS: tl.constexpr, SIZE: tl.constexpr):
    """Each path goes on from its parent's ancestors up to this place, and is its own after it."""
    slots = tl.arange(0, SIZE)[:, None]
    for first in range(0, length, 32):
        lines = first + tl.arange(0, 32)[None, :]
        there = (slots < PATHS) & (lines < length)
        followed = tl.load(ancestors + parent[:, None] * length + lines, mask=there & (lines <= here), other=0)
        tl.debug_barrier()  # a row may be another's parent
        tl.store(ancestors + slots * length + lines, tl.where(lines <= here, followed, slots), mask=there)
