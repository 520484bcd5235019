"""Which pairs make up each batch of an epoch: by token budget and length bucket.

The plan of an epoch is a pure function of the lengths, the seed and the epoch, so resuming at any position replays
nothing. Lengths are rounded up to a few bucket edges, so that few distinct shapes occur; or batches have one of a given
number of shapes to the row (`Shapes`), for compiled code.

Few shapes of batches for a whole corpus: compiled code and recorded launches are made for one shape each.

A batch has room for so many tokens a side, which a model packs end to end (kernels/packing.py), so that padding costs
attention alone. What differs is the width that attention pads rows to; a shape is (rows, width), with one room for all.
Widths are chosen from the corpus's own lengths. Lengths count the end symbol here.
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
GRID = 8  # widths are multiples of it, as matrix units like them
# Rows of a shape against those that fill the room on average, so that the room is filled first; wider ones hold shorter
# pairs besides.
SPARE, SPARE_WIDER = 1.04, 1.14
MOST_UNEVEN = 0.1  # of the pairs of a shape that may go up for the balance of its sides
UNEVEN = 1.01  # room of the side with fewer tokens, against its share
# Padding a row to width W costs attention about W (W + 48): scores, W * W for each of 8 heads and read some six times,
# and queries, keys, values and outputs, W * 512 each, moved once.
MOVED = 48


@dataclass(frozen=True)
class Shapes:
    """Rows and width of each shape, narrow ones first; `room` is what all of them hold of source and target tokens."""

    rows: Integers
    widths: Integers
    room: tuple[int, int]

    def __len__(self) -> int:
        return len(self.widths)


def choose_shapes(source: Integers, target: Integers, weights: NDArray[np.float64], tokens: int, count: int) -> Shapes:
    """At most `count` shapes for pairs of these lengths, each to be seen as often as its weight says."""
    longer = np.maximum(source, target)
    edges = GRID * np.arange(1, -(-int(longer.max(initial=1)) // GRID) + 1)
    places = (longer - 1) // GRID
    pairs, sources, targets = (
        np.bincount(places, weights * what, minlength=len(edges)).astype(np.float64)
        for what in (np.ones(len(longer)), source, target)
    )
    chosen = np.array(_cheapest(pairs, edges, count), dtype=np.int64)
    begins = np.concatenate([[0], chosen[:-1] + 1])
    held, fuller = np.add.reduceat(pairs, begins), np.maximum(*(np.add.reduceat(s, begins) for s in (sources, targets)))
    words = np.array([sources.sum(), targets.sum()])
    rooms = np.minimum(tokens, UNEVEN * tokens * words / max(words.max(), 1.0)).astype(np.int64)
    rooms = np.maximum(-(-rooms // 8) * 8, edges[-1])
    # A shape that no pair has yet (all weigh 0) is as wide as its width says.
    mean = np.where(held > 0, fuller / np.maximum(held, 1e-9), edges[chosen])
    spare = np.where(np.arange(len(chosen)) > 0, SPARE_WIDER, SPARE)
    rows = np.ceil(spare * rooms.max() / mean / 8).astype(np.int64) * 8
    return Shapes(rows, edges[chosen], (int(rooms[0]), int(rooms[1])))


def _cheapest(pairs: NDArray[np.float64], edges: Integers, count: int) -> list[int]:
    """Which edges, the last always among them, cost least: by dynamic programming over the edges."""
    price = edges * (edges + MOVED)
    before = np.concatenate([[0.0], np.cumsum(pairs)])
    best = before[1:] * price  # one width for all up to an edge
    choices: list[list[int]] = [[edge] for edge in range(len(edges))]
    for _ in range(1, min(count, len(edges))):
        further = [*choices]
        lower = best.copy()
        for edge in range(1, len(edges)):
            costs = best[:edge] + (before[edge + 1] - before[1 : edge + 1]) * price[edge]
            last = int(costs.argmin())
            if costs[last] < lower[edge]:
                lower[edge], further[edge] = costs[last], [*choices[last], edge]
        best, choices = lower, further
    return choices[-1]


def cut(source: Integers, target: Integers, shapes: Shapes) -> tuple[Integers, Integers, Integers]:
    """Batches of pairs in the order given: (which pairs, where each batch starts, its shape).

    A batch takes pairs of its shape until one side's room or the rows are full. Pairs that fill no batch go up to the
    next shape, among its own, so that only the last batch of the widest is part empty.
    """
    taken: list[Integers] = []
    sizes: list[int] = []
    kinds: list[int] = []
    left = np.arange(len(source), dtype=np.int64)
    for shape in range(len(shapes)):
        widest = shape == len(shapes) - 1
        pool = left if widest else left[_staying(source[left], target[left], shapes, shape)]
        sums = [np.concatenate([[0], np.cumsum(lengths[pool])]) for lengths in (source, target)]
        begin = 0
        while begin < len(pool):
            ends = [
                int(np.searchsorted(total, total[begin] + room, side="right")) - 1
                for total, room in zip(sums, shapes.room, strict=True)
            ]
            end = min(*ends, begin + int(shapes.rows[shape]))
            if end >= len(pool) and not widest:  # it could hold more
                break
            taken.append(pool[begin:end])
            sizes.append(end - begin)
            kinds.append(shape)
            begin = end
        waiting = np.ones(len(source), dtype=bool)
        waiting[pool[:begin]] = False
        left = left[waiting[left]]
    pairs = np.concatenate(taken) if taken else left
    return pairs, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.array(kinds, dtype=np.int64)


def _staying(source: Integers, target: Integers, shapes: Shapes, shape: int) -> Integers:
    """Which pairs, in their order, make up the batches of a shape: whole batches, of both sides in proportion.

    Long pairs are those whose more varied side is long: that side would fill first there, and the other one here. So
    pairs that have most of the other go up; and then, down to a whole number of batches, the longest, which need least
    rows there.
    """
    width = int(shapes.widths[shape])
    short = np.flatnonzero(np.maximum(source, target) <= width)
    excess = source[short] - target[short] * (source.sum() / max(target.sum(), 1))
    excess *= np.sign(excess.sum())
    uneven = _sorted(np.rint(-excess).astype(np.int64))[: int(MOST_UNEVEN * len(short))]
    short = np.delete(short, uneven[: np.searchsorted(excess[uneven].cumsum(), excess.sum())])
    short = short[_sorted(np.maximum(source, target)[short])]
    filled = np.maximum(
        *(side[short].cumsum() / room for side, room in zip((source, target), shapes.room, strict=True))
    )
    return np.sort(short[: np.searchsorted(filled, np.floor(filled[-1:].sum()), side="right")])


def _sorted(numbers: Integers) -> Integers:
    """The order of small numbers, those that are the same as they came; 16 bits are sorted in linear time."""
    lowest = numbers.min(initial=0)
    return np.argsort((numbers - lowest).astype(np.min_scalar_type(numbers.max(initial=0) - lowest)), kind="stable")


# Pairs of an epoch: at most so many, or so many times those that there are. Beyond, the plan of an epoch alone, some
# 80 bytes a pair, would take more memory than the corpus is worth.
MOST_SEEN, MOST_TIMES = 1 << 22, 16


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one epoch: `pairs[starts[i]:starts[i + 1]]` padded to `shapes[i]` = (S, T).

    Batch i has `rows[i]` rows, the last of them empty where it has fewer pairs.
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
    """Places of source and target in the widest batches, padding included; with subword sampling there may be more."""
    longest = [int(side.max(initial=0)) + 1 for side in (split.source_lengths, split.target_lengths)]
    if shapes:
        width = -(-max(longest) // GRID) * GRID
        return width, width
    edges = bucket_edges(max(longest), step)
    source, target = edges[np.searchsorted(edges, longest)].tolist()
    return source, target


def draw(spans: Sequence[Span], generator: np.random.Generator) -> Integers:
    """The pairs of an epoch: each corpus as often as its weight says, a fraction of it drawn without repeats."""
    drawn: list[Integers] = []
    for span in spans:
        pairs = np.arange(span.start, span.stop, dtype=np.int64)
        whole, part = divmod(span.weight, 1.0)
        drawn += [pairs] * int(whole)
        if part > 0:
            drawn.append(generator.permutation(pairs)[: round(part * len(pairs))])
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
    """Cut an epoch into batches of at most `tokens` padded tokens a side, in an order shuffled by (seed, epoch)."""
    generator = np.random.default_rng([seed, epoch])
    pairs = generator.permutation(draw(spans, generator))
    edges = bucket_edges(max(int(lengths.max(initial=0)) for lengths in (source_lengths, target_lengths)) + 1, step)
    table = np.searchsorted(edges, np.arange(edges[-1]) + 1)  # by length without eos: which edge it is padded to
    cells = table[source_lengths] * len(edges) + table[target_lengths]
    # Grouped by shape, shuffled within; 16 bits are sorted in linear time.
    cells = cells.astype(np.min_scalar_type(len(edges) ** 2))[pairs]
    order = np.argsort(cells, kind="stable")
    pairs, cells = pairs[order], cells[order]

    found, firsts, counts = np.unique(cells, return_index=True, return_counts=True)
    buckets = np.stack(np.divmod(found.astype(np.int64), len(edges)), axis=1)  # (cells, 2)
    rows = np.maximum(1, tokens // edges[buckets].max(axis=1, initial=1))
    batches = counts // rows
    rest = counts - batches * rows
    fills = np.arange(len(pairs)) < np.repeat(firsts + batches * rows, counts)  # a batch of its own shape
    left = _join_leftovers(pairs[~fills], np.repeat(buckets, rest, axis=0), edges, tokens)
    pairs = np.concatenate([pairs[fills], left.pairs])
    sizes = np.concatenate([np.repeat(rows, batches), np.diff(left.starts)])
    shapes = np.concatenate([np.repeat(edges[buckets], batches, axis=0), left.shapes])

    return _mixed(BatchPlan(pairs, np.concatenate([[0], np.cumsum(sizes)]), shapes, sizes), generator)


def plan_static(
    source_lengths: NDArray[np.int32],
    target_lengths: NDArray[np.int32],
    spans: Sequence[Span],
    shapes: Shapes,
    seed: int,
    epoch: int,
) -> BatchPlan:
    """The same in batches that all have one of the shapes."""
    generator = np.random.default_rng([seed, epoch])
    pairs = generator.permutation(draw(spans, generator))
    source, target = (side[pairs].astype(np.int64) + 1 for side in (source_lengths, target_lengths))
    order, starts, kinds = cut(source, target, shapes)
    widths = shapes.widths[kinds]
    return _mixed(BatchPlan(pairs[order], starts, np.stack((widths, widths), axis=1), shapes.rows[kinds]), generator)


def _mixed(plan: BatchPlan, generator: np.random.Generator) -> BatchPlan:
    """The same batches in another order."""
    sizes = np.diff(plan.starts)
    mixed = generator.permutation(len(sizes))
    begins, starts = plan.starts[:-1], np.concatenate([[0], np.cumsum(sizes[mixed])])
    places = np.repeat(begins[mixed] - starts[:-1], sizes[mixed]) + np.arange(len(plan.pairs))
    return BatchPlan(plan.pairs[places], starts, plan.shapes[mixed], plan.rows[mixed])


def _join_leftovers(left: Integers, buckets: Integers, edges: Integers, tokens: int) -> BatchPlan:
    """Pairs that filled no batch of their own shape, joined with their nearest in length."""
    order = np.lexsort((buckets[:, 0], buckets[:, 1]))
    left, buckets = left[order], buckets[order]
    starts, shapes = [0], []
    wide, lengths = (0, 0), edges.tolist()
    for end, bucket in enumerate(buckets.tolist()):
        wider = max(wide[0], bucket[0]), max(wide[1], bucket[1])
        if end > starts[-1] and (end - starts[-1] + 1) * lengths[max(wider)] > tokens:
            starts.append(end)
            shapes.append(wide)
            wider = bucket
        wide = wider
    if len(left):
        starts.append(len(left))
        shapes.append(wide)
    cuts = np.array(starts, np.int64)
    return BatchPlan(left, cuts, edges[np.array(shapes, np.int64).reshape(-1, 2)], np.diff(cuts))


@dataclass(frozen=True)
class Batches:
    """The endless stream of training batches, entered at any (epoch, position).

    `sampling` > 0 cuts words into pieces anew each time (subword sampling; BPE-dropout for BPE), by a seed made of
    (seed, epoch, position). A batch then may hold somewhat more tokens than the budget, since rarer cuts are longer.
    `shapes` > 0 makes batches of at most so many shapes, of `tokens` real tokens a side; `packed`, a batch that is made
    whole says how much room its tokens need end to end: one number for all where shapes are few.
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
        """The shapes, where they are few."""
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
        """(epoch, position, batch) from the given place on, for ever."""
        for plan, number, place in self.places(epoch, position):
            yield number, place, self.make(plan, number, place)

    def places(self, epoch: int, position: int) -> Iterator[tuple[BatchPlan, int, int]]:
        """The same without their batches, each with the plan that `make` finds it in."""
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
        """Pairs of each corpus and their weight, of the first ones, for errors."""
        spans = self.split.spans
        told = [f"{span.name} {span.stop - span.start} * {span.weight}" for span in spans[:8]]
        return ", ".join([*told, *["..."] * (len(spans) > 8)]) or "no corpora"

    def make(self, plan: BatchPlan, epoch: int, number: int, rows: slice = slice(None)) -> Batch:
        """Batch `number` of an epoch, or some rows of it, which are what they are in the whole."""
        members, height = plan.batch(number), len(range(int(plan.rows[number]))[rows])
        if self.sampling == 0:
            members = members[rows]
        pairs = [self.split.pair(int(i)) for i in members]
        sources: list[Tokens] = [source for source, _ in pairs]
        targets: list[Tokens] = [target for _, target in pairs]
        source_length, target_length = (int(n) for n in plan.shapes[number])
        if self.sampling > 0:
            seed = int(np.random.SeedSequence([self.seed, epoch, number]).generate_state(1)[0])
            if not self.split.width:  # frames are not cut into pieces
                sources = [*self.tokenizers.source.sample(sources, self.sampling, seed)]
            targets = [*self.tokenizers.target.sample(targets, self.sampling, seed + 1)]
            source_length = self._rounded(sources)
            target_length = self._rounded(targets)
            members, sources, targets = members[rows], sources[rows], targets[rows]  # all are cut alike before
        source_symbols, target_symbols = self.tokenizers.source.symbols, self.tokenizers.target.symbols
        batch = collate(sources, targets, source_symbols, target_symbols, source_length, target_length, height)
        if self.packed and not self.shapes:
            batch = batch.packed(*(sum(len(tokens) + 1 for tokens in side) for side in (sources, targets)))
        elif self.packed and height == plan.rows[number]:
            batch = replace(batch, room=self.few.room)
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
