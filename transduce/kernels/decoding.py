"""Triton kernels of a decoding step on a GPU: attention to a static KV cache, residual and norm, beam expansion.

Kernels for long texts take tiles of queries where a path has a single one, and read the cache of all paths of a
sentence under a mask. Here each path reads only the keys and values of its own ancestors, and writes its newest on the
way. Sizes follow from shapes and nothing waits for the device, so that a CUDA graph can record all of it. Shapes: B
sentences, K paths, L positions, S source positions, H heads, G heads of keys and values, W the width of a head's
queries and keys, V of its values, N tokens, D d_model.

Greedy and beam search (search/static_search.py) take one or two kernels after the logits. Logits are read in the
precision they have, and log-probabilities are computed only for candidates. The state is written exactly as
static_search.py would write it, and ties go to the first here too. Shapes: B sentences, K paths of each, L the longest
path, n hypotheses kept, V vocabulary, C blocks of it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # keys per iteration of a program
FEW = 4  # rows up to which a product is computed here; libraries are tuned for many rows, and start slower
WIDEST = 4096  # largest row that a program holds
LOWEST = tl.constexpr(-1e30)  # below any score, but finite


def attend_cache(
    query: Tensor,
    newest: tuple[Tensor, Tensor],
    memory: tuple[Tensor, Tensor],
    position: Tensor,
    ancestors: Tensor,
    scale: float,
) -> Tensor:
    """Equation 1 for query (B, H, K, W) over each path's own past and its `newest` key and value: (B, K, H * V).

    The newest, (B, G, K, W) and (B, G, K, V), are written to `memory` (B, L, K, G, W) and (B, L, K, G, V) at position
    (B,); ancestors (B, K, L) is the path whose keys a path descends from at each earlier position.
    """
    (key, value), (sentences, length, paths, groups, width) = newest, memory[0].shape
    heads, deep = query.size(1), value.size(3)
    out = value.new_empty(sentences, paths, heads * deep)
    _attend_cache[(paths, heads, sentences)](
        query, key, value, *memory, out, position, ancestors, scale, length, *query.stride()[:3], *key.stride()[:3],
        *value.stride()[:3], PATHS=paths, REPEATS=heads // groups, PLACES=min(TILE, triton.next_power_of_2(length)),
        W=width, V=deep, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _attend_cache(
    query, key, value, keys, values, out, position, ancestors, scale, length,
    query_sentence, query_head, query_path, key_sentence, key_head, key_path, value_sentence, value_head, value_path,
    PATHS: tl.constexpr, REPEATS: tl.constexpr, PLACES: tl.constexpr, W: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    path, head, sentence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    group, groups = head // REPEATS, tl.num_programs(1) // REPEATS
    wide, deep = tl.arange(0, W), tl.arange(0, V)
    here = tl.load(position + sentence)
    q = tl.load(query + sentence * query_sentence + head * query_head + path * query_path + wide).to(tl.float32) * scale
    newest_key = tl.load(key + sentence * key_sentence + group * key_head + path * key_path + wide)
    newest_value = tl.load(value + sentence * value_sentence + group * value_head + path * value_path + deep)
    # Of the heads that share a key one writes it; none reads it from the cache at this step.
    if head % REPEATS == 0:
        entry = ((sentence * length + here) * PATHS + path) * groups + group
        tl.store(keys + entry * W + wide, newest_key)
        tl.store(values + entry * V + deep, newest_value)
    highest = tl.sum(q * newest_key.to(tl.float32), 0)
    total = 1.0
    output = newest_value.to(tl.float32)
    for first in range(0, here, PLACES):
        positions = first + tl.arange(0, PLACES)
        visible = positions < here
        rows = (sentence * length + positions) * PATHS
        if PATHS > 1:
            rows += tl.load(ancestors + (sentence * PATHS + path) * length + positions, mask=visible, other=0)
        rows = (rows * groups + group)[:, None]
        k = tl.load(keys + rows * W + wide[None, :], mask=visible[:, None], other=0.0)
        v = tl.load(values + rows * V + deep[None, :], mask=visible[:, None], other=0.0)
        scores = tl.where(visible, tl.sum(k.to(tl.float32) * q[None, :], 1), float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights, before = tl.exp(scores - higher), tl.exp(highest - higher)
        total = total * before + tl.sum(weights, 0)
        output = output * before + tl.sum(weights[:, None] * v.to(tl.float32), 0)
        highest = higher
    row = (sentence * PATHS + path) * tl.num_programs(1) + head
    tl.store(out + row * V + deep, (output / total).to(out.dtype.element_ty))


def attend_source(query: Tensor, key: Tensor, value: Tensor, additive: Tensor, scale: float) -> Tensor:
    """Equation 1 for query (B, H, K, W) over key (B, G, S, W), value (B, G, S, V): (B, K, H * V).

    The additive mask (B, 1, 1, S) is 0 at real tokens; a fully masked row gives 0.
    """
    sentences, heads, paths, width = query.shape
    groups, length, deep = value.shape[1:]
    out = value.new_empty(sentences, paths, heads * deep)
    _attend_source[(heads, sentences)](
        query, key, value, additive, out, scale, length, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        additive.stride(0), PATHS=paths, ROWS=1 if paths == 1 else max(16, triton.next_power_of_2(paths)),
        REPEATS=heads // groups, PLACES=min(TILE, max(16, triton.next_power_of_2(length))), W=width, V=deep,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


@triton.jit
def _attend_source(
    query, key, value, additive, out, scale, length,
    query_sentence, query_head, query_path, key_sentence, key_head, key_place,
    value_sentence, value_head, value_place, additive_sentence,
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
    output = tl.zeros((ROWS, V), tl.float32)
    for first in range(0, length, PLACES):
        positions = first + tl.arange(0, PLACES)
        # The mask is read first: masked keys are not fetched.
        visible = tl.load(additive + sentence * additive_sentence + positions, mask=positions < length, other=1.0) == 0
        rows = (sentence * key_sentence + group * key_head + positions * key_place)[:, None]
        k = tl.load(key + rows + wide[None, :], mask=visible[:, None], other=0.0)
        rows = (sentence * value_sentence + group * value_head + positions * value_place)[:, None]
        v = tl.load(value + rows + deep[None, :], mask=visible[:, None], other=0.0)
        scores = tl.where(visible[None, :], _products(q, k, ROWS == 1) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, before = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        total = total * before + tl.sum(weights, 1)
        output = output * before[:, None] + _mixed(weights, v, ROWS == 1)
        highest = higher
    output = tl.where(total[:, None] > 0, output / total[:, None], 0.0)
    where = (sentence * PATHS + paths[:, None]) * tl.num_programs(0) * V + head * V + deep[None, :]
    tl.store(out + where, output.to(out.dtype.element_ty), mask=real)


@triton.jit
def _products(q, k, ALONE: tl.constexpr):
    """Q k^T; a single row avoids tensor cores, which need 16 rows."""
    if ALONE:
        return tl.sum(q.to(tl.float32) * k.to(tl.float32), 1)[None, :]
    else:
        return tl.dot(q, tl.trans(k), input_precision="ieee")


@triton.jit
def _mixed(weights, v, ALONE: tl.constexpr):
    """Weighted sum of values, likewise."""
    if ALONE:
        return tl.sum(tl.trans(weights) * v.to(tl.float32), 0)[None, :]
    else:
        return tl.dot(weights.to(v.dtype), v, input_precision="ieee")


def normed_sum(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Norm of x + y (..., D) over D, times weight (D,) plus bias (D,): LayerNorm, or RMSNorm without a bias.

    Without a bias the mean square becomes 1, and the mean is not subtracted.
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


def lookup(table: Tensor, index: Tensor, factor: float, onto: Tensor | None = None) -> Tensor:
    """Rows index (...) of table (V, D) times a factor: (..., D); added to `onto` (B, K, D) where index is (B,)."""
    width = table.size(1)
    out = table.new_empty(*index.shape, width) if onto is None else onto.new_empty(onto.shape)
    rows, columns = out.numel() // width, triton.next_power_of_2(width)
    _lookup[(rows,)](
        table, index.contiguous(), out if onto is None else onto.contiguous(), out, factor,
        SHARED=rows // max(1, index.numel()), ADDED=onto is not None, WIDTH=width, COLUMNS=columns,
        num_warps=max(1, min(8, columns // 256)),
    )  # fmt: skip
    return out


@triton.jit
def _lookup(
    table, index, onto, out, factor,
    SHARED: tl.constexpr, ADDED: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    row_values = tl.load(table + tl.load(index + row // SHARED) * WIDTH + columns, mask=inside, other=0.0).to(
        tl.float32
    )
    row_values *= factor
    if ADDED:
        row_values += tl.load(onto + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, row_values.to(out.dtype.element_ty), mask=inside)


def linear_few_rows(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Linear map of x (..., I), at most FEW rows, by weight (O, I) and bias (O,): (..., O)."""
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs)
    out = rows.new_empty(len(rows), outputs)
    columns = 4
    _linear_few_rows[(triton.cdiv(outputs, columns),)](
        rows, weight, bias, out, rows.stride(0), outputs, ROWS=len(rows), RELU=relu, INPUTS=inputs,
        NUMBERS=triton.next_power_of_2(inputs), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return out.view(*x.shape[:-1], outputs)


@triton.jit
def _linear_few_rows(
    x, weight, bias, out, row, outputs,
    ROWS: tl.constexpr, RELU: tl.constexpr, INPUTS: tl.constexpr, NUMBERS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, numbers = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, NUMBERS)
    real, inside = columns < outputs, numbers < INPUTS
    where = columns[:, None].to(tl.int64) * INPUTS + numbers[None, :]
    w = tl.load(weight + where, mask=real[:, None] & inside[None, :], other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)
    for number in tl.static_range(ROWS):
        values = tl.load(x + number * row + numbers, mask=inside, other=0.0).to(tl.float32)
        output = tl.sum(w * values[None, :], 1) + b
        if RELU:
            output = tl.maximum(output, 0.0)
        tl.store(out + number * outputs + columns, output.to(out.dtype.element_ty), mask=real)


BLOCK = tl.constexpr(64)  # tokens whose maximum is found first, so that few blocks need sorting
FEW_ROWS = 64  # rows up to which each is read in large tiles, and not in parts that leave resources for other rows
MOST = 32768  # blocks, over all paths of a sentence, that one program can sort
LAST = tl.constexpr((1 << 63) - 1)  # greater than any key


def greedy_step(logits: Tensor, state: Any, never: Tensor, eos: int) -> None:
    """Greedy search: append the most probable token of logits (B, 1, V), except those that `never` (V,) marks by 1.

    `state` is a `StaticSearchState`.
    """
    sentences, _, vocabulary = logits.shape
    tokens = _tile(sentences, vocabulary)
    _greedy_step[(sentences,)](
        logits, never, state.newest, state.position, state.done.view(torch.uint8), state.longest, state.shortest,
        state.chosen, state.token_log_probs, vocabulary, logits.stride(0), state.chosen.size(1),
        EOS=eos, TOKENS=tokens, num_warps=_warps(tokens),
    )  # fmt: skip


@triton.jit
def _greedy_step(
    logits, never, newest, position, done, longest, shortest, chosen, log_probs, vocabulary, row, lines,
    EOS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0).to(tl.int64)
    here, ended = tl.load(position + sentence), tl.load(done + sentence) != 0
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
    entry = sentence * lines + tl.where(ended, 0, here + 1)
    ended = ended | (token == EOS) | (most <= here + 1)
    tl.debug_barrier()  # all threads have read what is written below
    tl.store(chosen + entry, token)
    tl.store(log_probs + entry, best - highest - tl.log(total))
    tl.store(newest + sentence, token)
    tl.store(done + sentence, ended.to(tl.uint8))
    tl.store(position + sentence, here + tl.where(ended, 0, 1))


@triton.jit
def _read(logits, never, columns, real, too_short, EOS: tl.constexpr):
    """Read logits of a path, -inf beyond the vocabulary, and which of them the rules allow."""
    x = tl.load(logits + columns, mask=real, other=float("-inf")).to(tl.float32)
    allowed = tl.load(never + columns, mask=real, other=1) == 0
    return x, allowed & ((columns != EOS) | (too_short == 0))


def expand(logits: Tensor, state: Any, never: Tensor, rules: Any) -> None:
    """Beam search: expand the state by logits (B, K, V) as `StaticSearchStep._expand` does, in two kernels.

    `state` is a `StaticSearchState`, `rules` are `BeamRules`.
    """
    sentences, paths, vocabulary = logits.shape
    blocks = -(-vocabulary // BLOCK.value)
    rows = sentences * paths
    tops, normalizers = (torch.empty(rows, size, device=logits.device) for size in (blocks, 2))
    tile = _tile(rows, vocabulary) // BLOCK.value
    _scan[(rows,)](
        logits, never, state.position, state.shortest, tops, normalizers, vocabulary, logits.stride(1), blocks,
        PATHS=paths, EOS=rules.eos, BLOCKS=tile, num_warps=_warps(tile * BLOCK.value),
    )  # fmt: skip
    candidates = triton.next_power_of_2(paths * blocks)
    _expand[(sentences,)](
        logits, never, tops, normalizers, state.newest, state.position, state.done.view(torch.uint8), state.longest,
        state.shortest, state.chosen, state.token_log_probs, state.cost, state.ancestors, state.finished,
        rules.penalties, vocabulary, logits.stride(1), blocks, state.ancestors.size(2),
        PATHS=paths, KEPT=state.finished.size(1), EOS=rules.eos, BY_LONGEST=rules.grow, CANDIDATES=candidates,
        COUNT=triton.next_power_of_2(2 * paths), SIZE=triton.next_power_of_2(paths),
        KEEP=triton.next_power_of_2(state.finished.size(1)), num_warps=max(4, min(16, candidates // 512)),
    )  # fmt: skip


def serves(paths: int, vocabulary: int) -> bool:
    """Whether one program can sort the candidates of so many paths."""
    return bool(paths * -(-vocabulary // BLOCK.value) <= MOST)


def _tile(rows: int, vocabulary: int) -> int:
    """Tokens that a program reads at a time."""
    return int(min(32768 if rows <= FEW_ROWS else 8192, max(BLOCK.value, triton.next_power_of_2(vocabulary))))


def _warps(numbers: int) -> int:
    return max(1, min(32, numbers // 1024))


@triton.jit
def _scan(
    logits, never, position, shortest, tops, normalizers, vocabulary, row, blocks,
    PATHS: tl.constexpr, EOS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """For each path the greatest allowed logit of each block, and the maximum and log-sum of all logits."""
    number = tl.program_id(0).to(tl.int64)
    too_short = tl.load(position + number // PATHS) < tl.load(shortest + number // PATHS)
    highest, total = LOWEST, 0.0
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)
        columns = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        x, allowed = _read(logits + number * row, never, columns, columns < vocabulary, too_short, EOS)
        higher = tl.maximum(highest, tl.max(tl.max(x, 1), 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.sum(tl.exp(x - higher), 1), 0)
        highest = higher
        top = tl.max(tl.where(allowed, x, float("-inf")), 1)
        tl.store(tops + number * blocks + block, top, mask=block < blocks)
    tl.store(normalizers + number * 2, highest)
    tl.store(normalizers + number * 2 + 1, tl.log(total))


@triton.jit
def _costs(x, paths, real, cost, normalizers):
    """Costs of extending paths by logits x, and the log-probability of each extension; `paths` are global indices."""
    highest = tl.load(normalizers + paths * 2, mask=real, other=0.0)
    log_probs = x - highest - tl.load(normalizers + paths * 2 + 1, mask=real, other=0.0)
    log_probs = tl.minimum(log_probs, 0.0)  # costs are ordered by their bits, without a sign
    return tl.load(cost + paths, mask=real, other=0.0) - log_probs, log_probs


@triton.jit
def _keys(costs, names, real):
    """Integer keys that sort like the costs, ties by name; missing entries come last."""
    bits = costs.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(real, (bits << 32) | names.to(tl.int64), LAST)


@triton.jit
def _first(keys, count, COUNT: tl.constexpr):
    """The names of the `count` lowest keys in order, -1 where there are fewer: (COUNT,)."""
    slots, names = tl.arange(0, COUNT), tl.full((COUNT,), -1, tl.int64)
    for slot in range(count):
        key = tl.min(keys, 0)
        names = tl.where((slots == slot) & (key != LAST), key & 0xFFFFFFFF, names)
        keys = tl.where(keys == key, LAST, keys)
    return names


@triton.jit
def _best(
    logits, never, tops, normalizers, cost, sentence, too_short, vocabulary, row, blocks,
    PATHS: tl.constexpr, EOS: tl.constexpr, CANDIDATES: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Indices in K * C * BLOCK of the 2K best continuations, their costs and their last token's log-probability.

    They lie in the 2K blocks with the best maxima: only those are sorted.
    """
    radix = blocks * BLOCK
    candidates = tl.arange(0, CANDIDATES)
    real = candidates < PATHS * blocks
    top = tl.load(tops + sentence * PATHS * blocks + candidates, mask=real, other=float("-inf"))
    costs, _ = _costs(top, sentence * PATHS + candidates // blocks, real, cost, normalizers)
    starts = _first(_keys(costs, candidates * BLOCK, real), 2 * PATHS, COUNT)[:, None]
    continuations = tl.where(starts >= 0, starts + tl.arange(0, BLOCK)[None, :], -1)
    continuations = tl.reshape(continuations, (COUNT * BLOCK,))
    costs, _ = _continue(
        logits, never, normalizers, cost, sentence, continuations, too_short, vocabulary, row, radix, PATHS, EOS
    )
    continuations = _first(_keys(costs, continuations, continuations >= 0), 2 * PATHS, COUNT)
    costs, log_probs = _continue(
        logits, never, normalizers, cost, sentence, continuations, too_short, vocabulary, row, radix, PATHS, EOS
    )
    return continuations, costs, log_probs


@triton.jit
def _continue(
    logits, never, normalizers, cost, sentence, continuations, too_short, vocabulary, row, radix,
    PATHS: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """Cost of each continuation, and the log-probability of its last token."""
    real = continuations >= 0
    path = sentence * PATHS + tl.where(real, continuations // radix, 0)
    token = tl.where(real, continuations % radix, 0)
    in_vocabulary = real & (token < vocabulary)
    x = tl.load(logits + path * row + token, mask=in_vocabulary, other=float("-inf")).to(tl.float32)
    allowed = (tl.load(never + token, mask=in_vocabulary, other=1) == 0) & ((token != EOS) | (too_short == 0))
    return _costs(tl.where(allowed, x, float("-inf")), path, real, cost, normalizers)


@triton.jit
def _finish(finished, scores, ends, log_probs, sentence, KEPT: tl.constexpr, KEEP: tl.constexpr, COUNT: tl.constexpr):
    """Merge finished hypotheses (n, 3) with those that end now, ties to the older: three columns of the best n."""
    old, new = tl.arange(0, KEEP), tl.arange(0, COUNT)
    where = finished + (sentence * KEPT + old) * 3
    old_scores = tl.load(where, mask=old < KEPT, other=float("-inf"))
    old_ends = tl.load(where + 1, mask=old < KEPT, other=0.0)
    old_log_probs = tl.load(where + 2, mask=old < KEPT, other=0.0)
    kept, kept_ends, kept_log_probs = old_scores, old_ends, old_log_probs
    for slot in tl.static_range(KEPT):
        a, b = tl.max(old_scores, 0), tl.max(scores, 0)
        older = a >= b
        from_old = old == tl.where(older, tl.min(tl.where(old_scores == a, old, KEEP), 0), -1)
        from_new = new == tl.where(older, -1, tl.min(tl.where(scores == b, new, COUNT), 0))
        end = tl.sum(tl.where(from_old, old_ends, 0.0), 0) + tl.sum(tl.where(from_new, ends, 0.0), 0)
        log_prob = tl.sum(tl.where(from_old, old_log_probs, 0.0), 0) + tl.sum(tl.where(from_new, log_probs, 0.0), 0)
        kept = tl.where(old == slot, tl.maximum(a, b), kept)
        kept_ends = tl.where(old == slot, end, kept_ends)
        kept_log_probs = tl.where(old == slot, log_prob, kept_log_probs)
        old_scores = tl.where(from_old, float("-inf"), old_scores)
        scores = tl.where(from_new, float("-inf"), scores)
    return kept, kept_ends, kept_log_probs


@triton.jit
def _expand(
    logits, never, tops, normalizers, newest, position, done, longest, shortest, chosen, log_probs, cost, ancestors,
    finished, penalties, vocabulary, row, blocks, length,
    PATHS: tl.constexpr, KEPT: tl.constexpr, EOS: tl.constexpr, BY_LONGEST: tl.constexpr, CANDIDATES: tl.constexpr,
    COUNT: tl.constexpr, SIZE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Expand the beam of a sentence by one token, and write its new state."""
    sentence, radix = tl.program_id(0).to(tl.int64), blocks * BLOCK
    here, over = tl.load(position + sentence), tl.load(done + sentence) != 0
    most, fewest = tl.load(longest + sentence), tl.load(shortest + sentence)
    continuations, costs, extension_log_probs = _best(
        logits, never, tops, normalizers, cost, sentence, here < fewest, vocabulary, row, blocks,
        PATHS, EOS, CANDIDATES, COUNT,
    )  # fmt: skip
    number, ended = tl.arange(0, COUNT), continuations % radix == EOS
    scores = tl.div_rn(-costs, tl.load(penalties + here + 1))
    scores = tl.where(ended & (number < PATHS) & (over == 0), scores, float("-inf")).to(tl.float64)
    ends = (here * PATHS + continuations // radix).to(tl.float64)
    kept, kept_ends, kept_log_probs = _finish(
        finished, scores, ends, extension_log_probs.to(tl.float64), sentence, KEPT, KEEP, COUNT
    )

    # The first K that have not ended stay live, each in the slot of its rank among them.
    live = (ended == 0) & (number < 2 * PATHS)
    slots = tl.arange(0, SIZE)
    taken = live[:, None] & (tl.cumsum(live.to(tl.int32), 0)[:, None] == slots[None, :] + 1)
    continuation_of = tl.sum(tl.where(taken, continuations[:, None], 0), 0)
    log_prob_of = tl.sum(tl.where(taken, extension_log_probs[:, None], 0.0), 0)
    cost_of = tl.sum(tl.where(taken, costs[:, None], 0.0), 0)
    real = slots < PATHS
    cost_of = tl.where(over, tl.load(cost + sentence * PATHS + slots, mask=real, other=0.0), cost_of)
    cheapest = tl.min(tl.where(real, cost_of, float("inf")), 0)
    if BY_LONGEST:
        best_penalty = tl.load(penalties + most)
    else:
        best_penalty = tl.load(penalties + here + 2)
    worst = tl.min(tl.where(tl.arange(0, KEEP) < KEPT, kept, float("inf")), 0)
    decided = over | (worst >= tl.div_rn(-cheapest, best_penalty).to(tl.float64)) | (most <= here + 1)
    entry = (sentence * (length + 1) + tl.where(over, 0, here + 1)) * PATHS

    tl.debug_barrier()  # all threads have read what is written below
    where = finished + (sentence * KEPT + tl.arange(0, KEEP)) * 3
    tl.store(where, kept, mask=tl.arange(0, KEEP) < KEPT)
    tl.store(where + 1, kept_ends, mask=tl.arange(0, KEEP) < KEPT)
    tl.store(where + 2, kept_log_probs, mask=tl.arange(0, KEEP) < KEPT)
    tl.store(chosen + entry + slots, continuation_of, mask=real)
    tl.store(log_probs + entry + slots, log_prob_of, mask=real)
    tl.store(newest + sentence * PATHS + slots, continuation_of % radix, mask=real)
    tl.store(cost + sentence * PATHS + slots, cost_of, mask=real)
    tl.store(done + sentence, decided.to(tl.uint8))
    tl.store(position + sentence, here + tl.where(decided, 0, 1))
    _descend(ancestors + sentence * PATHS * length, continuation_of // radix, here, length, PATHS, SIZE)


@triton.jit
def _descend(ancestors, parent, here, length, PATHS: tl.constexpr, SIZE: tl.constexpr):
    """Copy each path's ancestors from its parent up to this position; after it a path is its own ancestor."""
    slots = tl.arange(0, SIZE)[:, None]
    for first in range(0, length, 32):
        positions = first + tl.arange(0, 32)[None, :]
        real = (slots < PATHS) & (positions < length)
        followed = tl.load(ancestors + parent[:, None] * length + positions, mask=real & (positions <= here), other=0)
        tl.debug_barrier()  # a row may be another path's parent
        tl.store(ancestors + slots * length + positions, tl.where(positions <= here, followed, slots), mask=real)
