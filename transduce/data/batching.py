"""Which pairs make up each batch of an epoch: by token budget and length bucket.

The plan of an epoch is a pure function of the lengths, the seed and the epoch, so resuming at any position replays
nothing. Lengths are rounded up to a few bucket edges, so that few distinct shapes occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.batch import Batch, collate
from transduce.data.corpus import Span, Split
from transduce.data.links import piece_weights
from transduce.data.sampling import Tokens
from transduce.data.tokenizer import Tokenizers
from transduce.errors import DataError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """The batches of one epoch: `pairs[starts[i]:starts[i + 1]]` padded to `shapes[i]` = (S, T)."""

    pairs: Integers
    starts: Integers
    shapes: Integers

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
) -> Plan:
    """Cut an epoch into batches of at most `tokens` padded tokens a side, in an order shuffled by (seed, epoch)."""
    generator = np.random.default_rng([seed, epoch])
    pairs = generator.permutation(draw(spans, generator))
    lengths = np.stack((source_lengths[pairs], target_lengths[pairs]), axis=1).astype(np.int64) + 1  # with eos
    edges = bucket_edges(int(lengths.max(initial=1)), step)
    buckets = np.searchsorted(edges, lengths)  # (N, 2): which edge each side is padded to
    cells = buckets[:, 0] * len(edges) + buckets[:, 1]
    order = np.argsort(cells, kind="stable")  # grouped by shape, shuffled within

    batches: list[tuple[Integers, Integers]] = []
    left: list[Integers] = []
    for group in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        if len(group) == 0:
            continue
        shape = edges[buckets[group[0]]]
        rows = max(1, tokens // int(shape.max()))
        full = len(group) // rows * rows
        batches += [(part, shape) for part in group[:full].reshape(-1, rows)]
        left.append(group[full:])
    batches += _join_leftovers(np.concatenate(left) if left else order, buckets, edges, tokens)
    shuffled = [batches[i] for i in generator.permutation(len(batches))]
    sizes = [len(members) for members, _ in shuffled]
    return Plan(
        pairs=pairs[np.concatenate([members for members, _ in shuffled])] if shuffled else pairs,
        starts=np.cumsum([0, *sizes], dtype=np.int64),
        shapes=np.array([shape for _, shape in shuffled], dtype=np.int64).reshape(-1, 2),
    )


def _join_leftovers(left: Integers, buckets: Integers, edges: Integers, tokens: int) -> list[tuple[Integers, Integers]]:
    """Pairs that filled no batch of their own shape, joined with their nearest in length."""
    left = left[np.lexsort((buckets[left, 0], buckets[left, 1]))]
    batches: list[tuple[Integers, Integers]] = []
    begin, bucket = 0, np.zeros(2, dtype=np.int64)
    for end, pair in enumerate(left):
        wider = np.maximum(bucket, buckets[pair])
        if end > begin and (end - begin + 1) * edges[wider].max() > tokens:
            batches.append((left[begin:end], edges[bucket]))
            begin, wider = end, buckets[pair]
        bucket = wider
    if begin < len(left):
        batches.append((left[begin:], edges[bucket]))
    return batches


@dataclass(frozen=True)
class Batches:
    """The endless stream of training batches, entered at any (epoch, position).

    `sampling` > 0 cuts words into pieces anew each time (subword sampling; BPE-dropout for BPE), by a seed made of
    (seed, epoch, position). A batch then may hold somewhat more tokens than the budget, since rarer cuts are longer.
    """

    split: Split
    tokenizers: Tokenizers
    tokens: int
    step: int
    seed: int
    sampling: float = 0.0

    def plan(self, epoch: int) -> Plan:
        split = self.split
        return plan_epoch(
            split.source_lengths, split.target_lengths, split.spans, self.tokens, self.step, self.seed, epoch
        )

    def stream(self, epoch: int, position: int) -> Iterator[tuple[int, int, Batch]]:
        """(epoch, position, batch) from the given place on, for ever."""
        while True:
            plan = self.plan(epoch)
            if len(plan) == 0:
                weights = ", ".join(
                    f"{span.name} {span.stop - span.start} * {span.weight}" for span in self.split.spans
                )
                raise DataError(
                    f"{self.split.name}: an epoch would have no pairs (pairs * weight: {weights or 'no corpora'});"
                    " give it more text, or a larger weight"
                )
            for number in range(position, len(plan)):
                yield epoch, number, self.make(plan, epoch, number)
            epoch, position = epoch + 1, 0

    def make(self, plan: Plan, epoch: int, number: int) -> Batch:
        members = plan.batch(number)
        pairs = [self.split.pair(int(i)) for i in members]
        sources: list[Tokens] = [source for source, _ in pairs]
        targets: list[Tokens] = [target for _, target in pairs]
        source_length, target_length = (int(n) for n in plan.shapes[number])
        if self.sampling > 0:
            seed = int(np.random.SeedSequence([self.seed, epoch, number]).generate_state(1)[0])
            sources = [*self.tokenizers.source.sample(sources, self.sampling, seed)]
            targets = [*self.tokenizers.target.sample(targets, self.sampling, seed + 1)]
            source_length = self._rounded(sources)
            target_length = self._rounded(targets)
        source_symbols, target_symbols = self.tokenizers.source.symbols, self.tokenizers.target.symbols
        batch = collate(sources, targets, source_symbols, target_symbols, source_length, target_length)
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
        return torch.from_numpy(weights)

    def _rounded(self, sentences: Sequence[Tokens]) -> int:
        longest = max(len(tokens) for tokens in sentences) + 1
        edges = bucket_edges(longest, self.step)
        return int(edges[np.searchsorted(edges, longest)])
