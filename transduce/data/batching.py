"""Batching of an epoch by token budget, with bucketed lengths or few static shapes.

The plan of an epoch is a pure function of the lengths, the seed and the epoch, so resuming at any position replays
nothing. Lengths are rounded up to a few bucket edges, so that few distinct shapes occur. Compiled code and CUDA graphs
are made per shape: for them every batch has one of a few shapes chosen for the whole corpus.

Such a batch has a capacity of so many tokens a side, which a model packs end to end (kernels/packing.py), so that
padding costs attention alone. Shapes differ in the width that attention pads rows to; a shape is (rows, width), with
the same capacity for all. Widths are chosen from the corpus's own lengths. Lengths count the end symbol here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.core.errors import DataError
from transduce.data.batch import Batch, collate
from transduce.data.corpus import Span, Split
from transduce.data.word_links import piece_weights
from transduce.text.subword_sampling import Tokens
from transduce.text.tokenizer import Tokenizers

Integers = NDArray[np.int64]
GRID = 8  # widths are multiples of it, for matrix units
# Rows of a shape relative to those that fill the capacity on average, so that the capacity is filled first; wider
# shapes also hold shorter pairs.
SPARE, SPARE_WIDER = 1.04, 1.14
MOST_UNEVEN = 0.1  # share of a shape's pairs that may move up to balance its sides
UNEVEN = 1.01  # capacity of the side with fewer tokens, relative to its share
# Padding a row to width W costs attention about W (W + 48): scores, W * W for each of 8 heads and read some six times,
# and queries, keys, values and outputs, W * 512 each, moved once.
MOVED = 48


@dataclass(frozen=True)
class Shapes:
    """Rows and width of each shape, narrow ones first; all have the same `capacity` of source and target tokens."""

    rows: Integers
    widths: Integers
    capacity: tuple[int, int]

    def __len__(self) -> int:
        return len(self.widths)


def choose_shapes(source: Integers, target: Integers, weights: NDArray[np.float64], tokens: int, count: int) -> Shapes:
    """Choose at most `count` shapes for pairs of these lengths, weighted by how often each is seen."""
    longer = np.maximum(source, target)
    edges = GRID * np.arange(1, -(-int(longer.max(initial=1)) // GRID) + 1)
    grid_index = (longer - 1) // GRID
    pairs, sources, targets = (
        np.bincount(grid_index, weights * value, minlength=len(edges)).astype(np.float64)
        for value in (np.ones(len(longer)), source, target)
    )
    chosen = np.array(_cheapest(pairs, edges, count), dtype=np.int64)
    begins = np.concatenate([[0], chosen[:-1] + 1])
    counts = np.add.reduceat(pairs, begins)
    longer_tokens = np.maximum(*(np.add.reduceat(lengths, begins) for lengths in (sources, targets)))
    words = np.array([sources.sum(), targets.sum()])
    capacities = np.minimum(tokens, UNEVEN * tokens * words / max(words.max(), 1.0)).astype(np.int64)
    capacities = np.maximum(-(-capacities // 8) * 8, edges[-1])
    # A shape without pairs so far (all weigh 0) has the mean length of its width.
    mean = np.where(counts > 0, longer_tokens / np.maximum(counts, 1e-9), edges[chosen])
    spare = np.where(np.arange(len(chosen)) > 0, SPARE_WIDER, SPARE)
    rows = np.ceil(spare * capacities.max() / mean / 8).astype(np.int64) * 8
    return Shapes(rows, edges[chosen], (int(capacities[0]), int(capacities[1])))


def _cheapest(pairs: NDArray[np.float64], edges: Integers, count: int) -> list[int]:
    """Find the cheapest edges, the last always included, by dynamic programming."""
    price = edges * (edges + MOVED)
    before = np.concatenate([[0.0], np.cumsum(pairs)])
    best = before[1:] * price  # one width for all up to an edge
    choices: list[list[int]] = [[edge] for edge in range(len(edges))]
    for _ in range(1, min(count, len(edges))):
        extended = [*choices]
        lower = best.copy()
        for edge in range(1, len(edges)):
            costs = best[:edge] + (before[edge + 1] - before[1 : edge + 1]) * price[edge]
            last = int(costs.argmin())
            if costs[last] < lower[edge]:
                lower[edge], extended[edge] = costs[last], [*choices[last], edge]
        best, choices = lower, extended
    return choices[-1]


def cut(source: Integers, target: Integers, shapes: Shapes) -> tuple[Integers, Integers, Integers]:
    """Cut pairs into batches, in the given order: (pairs, start of each batch, shape of each batch).

    A batch takes pairs of its shape until the capacity of one side or the rows are full. Pairs that fill no batch move
    up to the next shape, in order, so that only the last batch of the widest is partly empty.
    """
    taken: list[Integers] = []
    sizes: list[int] = []
    kinds: list[int] = []
    remaining = np.arange(len(source), dtype=np.int64)
    for shape in range(len(shapes)):
        widest = shape == len(shapes) - 1
        pool = remaining if widest else remaining[_pairs_of_shape(source[remaining], target[remaining], shapes, shape)]
        sums = [np.concatenate([[0], np.cumsum(lengths[pool])]) for lengths in (source, target)]
        begin = 0
        while begin < len(pool):
            ends = [
                int(np.searchsorted(total, total[begin] + capacity, side="right")) - 1
                for total, capacity in zip(sums, shapes.capacity, strict=True)
            ]
            end = min(*ends, begin + int(shapes.rows[shape]))
            if end >= len(pool) and not widest:  # it could hold more pairs
                break
            taken.append(pool[begin:end])
            sizes.append(end - begin)
            kinds.append(shape)
            begin = end
        waiting = np.ones(len(source), dtype=bool)
        waiting[pool[:begin]] = False
        remaining = remaining[waiting[remaining]]
    pairs = np.concatenate(taken) if taken else remaining
    return pairs, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.array(kinds, dtype=np.int64)


def _pairs_of_shape(source: Integers, target: Integers, shapes: Shapes, shape: int) -> Integers:
    """Choose the pairs, in order, of a shape's batches: full batches, with both sides in proportion.

    Long pairs are those whose more varied side is long: that side would fill first there, and the other one here. So
    pairs with most of the other side move up; and then, down to a whole number of batches, the longest, which need the
    fewest rows there.
    """
    width = int(shapes.widths[shape])
    short = np.flatnonzero(np.maximum(source, target) <= width)
    excess = source[short] - target[short] * (source.sum() / max(target.sum(), 1))
    excess *= np.sign(excess.sum())
    uneven = _sorted(np.rint(-excess).astype(np.int64))[: int(MOST_UNEVEN * len(short))]
    short = np.delete(short, uneven[: np.searchsorted(excess[uneven].cumsum(), excess.sum())])
    short = short[_sorted(np.maximum(source, target)[short])]
    filled = np.maximum(
        *(side[short].cumsum() / most for side, most in zip((source, target), shapes.capacity, strict=True))
    )
    return np.sort(short[: np.searchsorted(filled, np.floor(filled[-1:].sum()), side="right")])


def _sorted(numbers: Integers) -> Integers:
    """Stable argsort of small integers, in linear time by sorting 16 bits."""
    lowest = numbers.min(initial=0)
    return np.argsort((numbers - lowest).astype(np.min_scalar_type(numbers.max(initial=0) - lowest)), kind="stable")


# Pairs of an epoch: at most so many, or so many times those in the corpus. Beyond, the epoch's plan alone, some 80
# bytes a pair, would take too much memory.
MOST_SEEN, MOST_TIMES = 1 << 22, 16


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one epoch: `pairs[starts[i]:starts[i + 1]]` padded to `shapes[i]` = (S, T).

    Batch i has `rows[i]` rows, the last of them empty if it has fewer pairs.
    """

    pairs: Integers
    starts: Integers
    shapes: Integers
    rows: Integers

    def __len__(self) -> int:
        return len(self.shapes)

    def batch(self, number: int) -> Integers:
        return self.pairs[self.starts[number] : self.starts[number + 1]]


def bucket_edges(longest: int, step: int) -> Integers:
    """Lengths to pad to: steps of `step`, growing by a quarter once that is more, up to at least `longest`."""
    edges = [step]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + step, -(-int(edges[-1] * 1.25) // step) * step))
    return np.array(edges, dtype=np.int64)


def widest(split: Split, step: int, shapes: int = 0) -> tuple[int, int]:
    """Width of source and target in the widest batches, padding included; subword sampling may exceed it."""
    longest = [int(side.max(initial=0)) + 1 for side in (split.source_lengths, split.target_lengths)]
    if shapes:
        width = -(-max(longest) // GRID) * GRID
        return width, width
    edges = bucket_edges(max(longest), step)
    source, target = edges[np.searchsorted(edges, longest)].tolist()
    return source, target


def draw(spans: Sequence[Span], generator: np.random.Generator) -> Integers:
    """Draw the pairs of an epoch: each corpus as often as its weight, a fraction of it without repeats."""
    drawn: list[Integers] = []
    for span in spans:
        pairs = np.arange(span.start, span.stop, dtype=np.int64)
        full_copies, fraction = divmod(span.weight, 1.0)
        drawn += [pairs] * int(full_copies)
        if fraction > 0:
            drawn.append(generator.permutation(pairs)[: round(fraction * len(pairs))])
    return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.int64)


def plan_epoch(
    source_lengths: NDArray[np.int32],
    target_lengths: NDArray[np.int32],
    spans: Sequence[Span],
    tokens: int,
    step: int,
    seed: int,
    epoch: int,
) -> BatchPlan:
    """Plan an epoch in batches of at most `tokens` padded tokens a side, in an order shuffled by (seed, epoch)."""
    generator = np.random.default_rng([seed, epoch])
    pairs = generator.permutation(draw(spans, generator))
    edges = bucket_edges(max(int(lengths.max(initial=0)) for lengths in (source_lengths, target_lengths)) + 1, step)
    table = np.searchsorted(edges, np.arange(edges[-1]) + 1)  # by length without eos: the edge it is padded to
    cells = table[source_lengths] * len(edges) + table[target_lengths]
    # Grouped by shape, shuffled within; 16 bits are sorted in linear time.
    cells = cells.astype(np.min_scalar_type(len(edges) ** 2))[pairs]
    order = np.argsort(cells, kind="stable")
    pairs, cells = pairs[order], cells[order]

    shape_cells, firsts, counts = np.unique(cells, return_index=True, return_counts=True)
    buckets = np.stack(np.divmod(shape_cells.astype(np.int64), len(edges)), axis=1)  # (cells, 2)
    rows = np.maximum(1, tokens // edges[buckets].max(axis=1, initial=1))
    batches = counts // rows
    rest = counts - batches * rows
    fills = np.arange(len(pairs)) < np.repeat(firsts + batches * rows, counts)  # in a full batch of its own shape
    leftovers = _join_leftovers(pairs[~fills], np.repeat(buckets, rest, axis=0), edges, tokens)
    pairs = np.concatenate([pairs[fills], leftovers.pairs])
    sizes = np.concatenate([np.repeat(rows, batches), np.diff(leftovers.starts)])
    shapes = np.concatenate([np.repeat(edges[buckets], batches, axis=0), leftovers.shapes])

    return _mixed(BatchPlan(pairs, np.concatenate([[0], np.cumsum(sizes)]), shapes, sizes), generator)


def plan_static(
    source_lengths: NDArray[np.int32],
    target_lengths: NDArray[np.int32],
    spans: Sequence[Span],
    shapes: Shapes,
    seed: int,
    epoch: int,
) -> BatchPlan:
    """Plan an epoch in batches that all have one of the static shapes."""
    generator = np.random.default_rng([seed, epoch])
    pairs = generator.permutation(draw(spans, generator))
    source, target = (side[pairs].astype(np.int64) + 1 for side in (source_lengths, target_lengths))
    order, starts, kinds = cut(source, target, shapes)
    widths = shapes.widths[kinds]
    return _mixed(BatchPlan(pairs[order], starts, np.stack((widths, widths), axis=1), shapes.rows[kinds]), generator)


def _mixed(plan: BatchPlan, generator: np.random.Generator) -> BatchPlan:
    """Shuffle the batches of a plan."""
    sizes = np.diff(plan.starts)
    shuffled = generator.permutation(len(sizes))
    begins, starts = plan.starts[:-1], np.concatenate([[0], np.cumsum(sizes[shuffled])])
    indices = np.repeat(begins[shuffled] - starts[:-1], sizes[shuffled]) + np.arange(len(plan.pairs))
    return BatchPlan(plan.pairs[indices], starts, plan.shapes[shuffled], plan.rows[shuffled])


def _join_leftovers(left: Integers, buckets: Integers, edges: Integers, tokens: int) -> BatchPlan:
    """Join pairs that filled no batch of their own shape with their nearest in length."""
    order = np.lexsort((buckets[:, 0], buckets[:, 1]))
    left, buckets = left[order], buckets[order]
    starts, shapes = [0], []
    shape, lengths = (0, 0), edges.tolist()
    for end, bucket in enumerate(buckets.tolist()):
        joint_shape = max(shape[0], bucket[0]), max(shape[1], bucket[1])
        if end > starts[-1] and (end - starts[-1] + 1) * lengths[max(joint_shape)] > tokens:
            starts.append(end)
            shapes.append(shape)
            joint_shape = bucket
        shape = joint_shape
    if len(left):
        starts.append(len(left))
        shapes.append(shape)
    cuts = np.array(starts, np.int64)
    return BatchPlan(left, cuts, edges[np.array(shapes, np.int64).reshape(-1, 2)], np.diff(cuts))


@dataclass(frozen=True)
class Batches:
    """The endless stream of training batches, from any (epoch, position).

    `sampling` > 0 re-segments words each time (subword sampling; BPE-dropout for BPE), seeded by (seed, epoch,
    position). A batch may then hold somewhat more tokens than the budget, since rarer segmentations are longer.
    `shapes` > 0 makes batches of at most so many static shapes, of `tokens` real tokens a side; `packed` sets the
    capacity of complete batches: the same for all with static shapes.
    """

    split: Split
    tokenizers: Tokenizers
    tokens: int
    step: int
    seed: int
    sampling: float = 0.0
    shapes: int = 0
    packed: bool = False

    @cached_property
    def few(self) -> Shapes:
        """The static shapes."""
        split = self.split
        weights = np.concatenate([[span.weight] * (span.stop - span.start) for span in split.spans] or [[]])
        source, target = (side.astype(np.int64) + 1 for side in (split.source_lengths, split.target_lengths))
        return choose_shapes(source, target, weights, self.tokens, self.shapes)

    def plan(self, epoch: int) -> BatchPlan:
        split = self.split
        seen = sum((span.stop - span.start) * span.weight for span in split.spans)
        most = max(MOST_SEEN, MOST_TIMES * len(split))
        if seen > most:
            raise DataError(
                f"{split.name}: an epoch would have {seen:,.0f} pairs (pairs * weight: {self._weighted()}), and for so"
                f" few {most:,} are the most; prepare the corpus again with lower weights"
            )
        if self.shapes:
            return plan_static(split.source_lengths, split.target_lengths, split.spans, self.few, self.seed, epoch)
        return plan_epoch(
            split.source_lengths, split.target_lengths, split.spans, self.tokens, self.step, self.seed, epoch
        )

    def stream(self, epoch: int, position: int) -> Iterator[tuple[int, int, Batch]]:
        """Yield (epoch, position, batch) from the given position on, endlessly."""
        for plan, number, at in self.places(epoch, position):
            yield number, at, self.make(plan, number, at)

    def places(self, epoch: int, position: int) -> Iterator[tuple[BatchPlan, int, int]]:
        """Yield (plan, epoch, position) like `stream`, without making the batches."""
        while True:
            plan = self.plan(epoch)
            if len(plan) == 0:
                raise DataError(
                    f"{self.split.name}: an epoch would have no pairs (pairs * weight: {self._weighted()});"
                    " give it more text, or a larger weight"
                )
            for number in range(position, len(plan)):
                yield plan, epoch, number
            epoch, position = epoch + 1, 0

    def _weighted(self) -> str:
        """List pairs and weights of the first corpora, for errors."""
        spans = self.split.spans
        listed = [f"{span.name} {span.stop - span.start} * {span.weight}" for span in spans[:8]]
        return ", ".join([*listed, *["..."] * (len(spans) > 8)]) or "no corpora"

    def make(self, plan: BatchPlan, epoch: int, number: int, rows: slice = slice(None)) -> Batch:
        """Make batch `number` of an epoch, or some of its rows, identical to those of the full batch."""
        members, height = plan.batch(number), len(range(int(plan.rows[number]))[rows])
        if self.sampling == 0:
            members = members[rows]
        pairs = [self.split.pair(int(i)) for i in members]
        sources: list[Tokens] = [source for source, _ in pairs]
        targets: list[Tokens] = [target for _, target in pairs]
        source_length, target_length = (int(n) for n in plan.shapes[number])
        if self.sampling > 0:
            seed = int(np.random.SeedSequence([self.seed, epoch, number]).generate_state(1)[0])
            if not self.split.width:  # frames are not segmented
                sources = [*self.tokenizers.source.sample(sources, self.sampling, seed)]
            targets = [*self.tokenizers.target.sample(targets, self.sampling, seed + 1)]
            source_length = self._rounded(sources)
            target_length = self._rounded(targets)
            # All rows are segmented first, so that draws match.
            members, sources, targets = members[rows], sources[rows], targets[rows]
        source_symbols, target_symbols = self.tokenizers.source.symbols, self.tokenizers.target.symbols
        batch = collate(sources, targets, source_symbols, target_symbols, source_length, target_length, height)
        if self.packed and not self.shapes:
            batch = batch.packed(*(sum(len(tokens) + 1 for tokens in side) for side in (sources, targets)))
        elif self.packed and height == plan.rows[number]:
            batch = replace(batch, capacity=self.few.capacity)
        if not self.split.aligned:
            return batch
        return replace(batch, alignment=self._alignment(members, sources, targets, batch))

    def _alignment(
        self, members: Integers, sources: Sequence[Tokens], targets: Sequence[Tokens], batch: Batch
    ) -> torch.Tensor:
        spans = self.split.spans
        numbers = np.searchsorted([span.stop for span in spans], members, side="right")
        weights = piece_weights(
            [self.split.links(int(i)) for i in members],
            list(zip(sources, targets, strict=True)),
            [bool(spans[number].tag) for number in numbers],
            self.tokenizers,
            (batch.gold.size(1), batch.source.size(1)),
        )
        empty = np.zeros((len(batch.source) - len(weights), *weights.shape[1:]), weights.dtype)
        return torch.from_numpy(np.concatenate((weights, empty)))

    def _rounded(self, sentences: Sequence[Tokens]) -> int:
        longest = max(len(tokens) for tokens in sentences) + 1
        edges = bucket_edges(longest, self.step)
        return int(edges[np.searchsorted(edges, longest)])
