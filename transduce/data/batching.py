"""Which pairs make up each batch of an epoch: by token budget and length bucket.

The plan of an epoch is a pure function of the lengths, the seed and the epoch, so resuming at any position replays
nothing. Lengths are rounded up to a few bucket edges, so that few distinct shapes occur; or batches have one of a given
number of shapes to the row (shapes.py), for compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.batch import Batch, collate
from transduce.data.corpus import Span, Split
from transduce.data.links import piece_weights
from transduce.data.sampling import Tokens
from transduce.data.shapes import GRID, Shapes, choose_shapes, cut
from transduce.data.tokenizer import Tokenizers
from transduce.errors import DataError

Integers = NDArray[np.int64]
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
