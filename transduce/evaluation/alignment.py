"""Alignment error rate: how far word links are from links that people drew."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transduce.errors import DataError

Links = Collection[tuple[int, int]]  # (source word, target word)


def alignment_error_rate(found: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] = ()) -> float:
    """1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all sentences (Och and Ney, 2003); 0 is perfect, 1 the worst.

    `found` are a system's links, one collection a sentence; `sure` those it must find and `possible` those it may. A
    sure link is always possible. Without `possible` this is 1 minus the F-score of the links.
    """
    possible = possible or [()] * len(sure)
    if not len(found) == len(sure) == len(possible):
        counts = f"{len(found)}, {len(sure)} and {len(possible)}"
        raise DataError(f"links found, sure and possible are of {counts} sentences; give those of the same sentences")
    hits = total = 0
    for links, must, may in zip(map(set, found), map(set, sure), map(set, possible), strict=True):
        hits += len(links & must) + len(links & (must | may))
        total += len(links) + len(must)
    return 1 - hits / total if total else 0.0
