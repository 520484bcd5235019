"""Few shapes of batches for a whole corpus: compiled code and recorded launches are made for one shape each.

A batch has room for so many tokens a side, which a model packs end to end (kernels/packing.py), so that padding costs
attention alone. What differs is the width that attention pads rows to; a shape is (rows, width), with one room for all.
Widths are chosen from the corpus's own lengths. Lengths count the end symbol here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
