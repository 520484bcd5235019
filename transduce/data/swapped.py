"""Are the sides of a corpus swapped, compared with the other corpora?

Each side of a corpus is described by how often its character trigrams occur, which tells languages and scripts apart.
A corpus looks swapped if its source is more like the others' targets and its target more like the others' sources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

CLEARLY = 0.1  # by which the crossed likeness must exceed the straight one
FEWEST_TEXTS = 20
SAMPLE = 1000  # texts of each corpus that are enough to judge
_SPREAD, _AT_ONCE = 20_000, 2_000  # from the first lines of each file, a twentieth of so many at a time
_LONGEST = 500  # characters of a text that are looked at


@dataclass
class Profile:
    """Trigram counts of both sides of one corpus."""

    source: Counter[str] = field(default_factory=Counter)
    target: Counter[str] = field(default_factory=Counter)
    texts: int = 0

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Count the trigrams of some pairs, as long as they are wanted."""
        for left, right in islice(pairs, SAMPLE - self.texts):
            _count(self.source, left)
            _count(self.target, right)
            self.texts += 1


def sample(source: Sequence[str], target: Sequence[str], lines: Sequence[int]) -> list[tuple[str, str]]:
    """The pairs that a profile looks at, by the numbers of their lines: from ten places of each file."""
    return [
        (left[:_LONGEST], right[:_LONGEST])
        for left, right, line in zip(source, target, lines, strict=True)
        if line <= _SPREAD and (line - 1) % _AT_ONCE < SAMPLE // 10
    ]


def crossed_likeness(profile: Profile, others: Sequence[Profile]) -> tuple[float, float] | None:
    """How alike the same sides and the crossed sides are, from 0 to 1; None if there is too little text to judge."""
    rest = Profile()
    for other in others:
        rest.source.update(other.source)
        rest.target.update(other.target)
        rest.texts += other.texts
    if min(profile.texts, rest.texts) < FEWEST_TEXTS:
        return None
    straight = _likeness(profile.source, rest.source) + _likeness(profile.target, rest.target)
    crossed = _likeness(profile.source, rest.target) + _likeness(profile.target, rest.source)
    return straight / 2, crossed / 2


def look_swapped(profile: Profile, others: Sequence[Profile]) -> bool:
    """Whether the crossed sides are clearly more alike."""
    likeness = crossed_likeness(profile, others)
    return likeness is not None and likeness[1] > likeness[0] + CLEARLY


def _count(counts: Counter[str], text: str) -> None:
    padded = f" {text.lower()} "
    counts.update(padded[start : start + 3] for start in range(len(padded) - 2))


def _likeness(left: Counter[str], right: Counter[str]) -> float:
    """Bhattacharyya coefficient of two distributions: 1 for the same, 0 for disjoint ones."""
    scale = math.sqrt(left.total() * right.total())
    return (
        sum(math.sqrt(count * right[gram]) for gram, count in left.items() if gram in right) / scale if scale else 0.0
    )
