"""Sentences of like length side by side, as many as a budget of padded tokens allows. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def group_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Numbers of sentences in groups, the longest first; a sentence longer than the budget stands alone."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
