"""How long a translation may be, and which tokens it may never hold: the settings; rules.py obeys them.

Imports no torch: an engine without it has the same limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transduce.errors import ConfigError, DataError
from transduce.search.constraints import DecodingConstraints

LARGEST_RATIO = 100  # tokens of a translation for each of its source
MOST_ADDED = 4096  # tokens whatever the source, by longest_extra or shortest
MOST_LONGEST = 100_000
_LONGEST_PREFIX = 4  # times the longest source, as a server allows too


def require(holds: bool, field: str, value: object, expected: str) -> None:
    """Refuse a setting that does not hold; the config loader puts the section before `field`."""
    if not holds:
        raise ConfigError(f"{field}: expected {expected}, got {value!r}")


def check_tokens(name: str, highest: int, vocabulary: int) -> None:
    """Refuse constraints in tokens that no text could have become."""
    if highest >= vocabulary:
        raise ValueError(f"{name}: expected tokens below the vocabulary's size ({vocabulary}), got {highest}")


@dataclass(frozen=True)
class Limits:
    """Bounds on what a search writes. Lengths count from the end of a forced prefix.

    A translation with its end symbol has at most `longest_ratio` times its source's length plus `longest_extra`
    tokens, and never more than `longest`: its own source decides, not the batch. Before the end come at least
    `shortest` tokens, even where the source is too short for that. `no_repeat` is the size of n-grams that may occur
    only once, 0 for no such rule. `forbid` lists tokens never to write besides those of `Symbols.never`.
    """

    longest_ratio: float = 2.0
    longest_extra: int = 20
    longest: int = 512
    shortest: int = 0
    no_repeat: int = 0
    forbid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ratio = self.longest_ratio
        require(0 <= ratio <= LARGEST_RATIO, "longest_ratio", ratio, f"a number from 0 to {LARGEST_RATIO}")
        added, expected = self.longest_extra, f"a whole number from 0 to {MOST_ADDED:,}"
        require(0 <= added <= MOST_ADDED, "longest_extra", added, expected)
        expected = f"a whole number from 1 to {MOST_LONGEST:,}"
        require(1 <= self.longest <= MOST_LONGEST, "longest", self.longest, expected)
        require(self.shortest <= MOST_ADDED, "shortest", self.shortest, f"a whole number from 0 to {MOST_ADDED:,}")
        require(
            0 <= self.shortest < self.longest,
            "shortest",
            self.shortest,
            f"a whole number from 0 up to, not including, longest ({self.longest})",
        )
        require(self.no_repeat >= 0, "no_repeat", self.no_repeat, "an n-gram size, or 0 for no such rule")
        require(min(self.forbid, default=0) >= 0, "forbid", self.forbid, "token numbers of at least 0")

    def lengths(self, sources: Sequence[int], constraints: Sequence[DecodingConstraints]) -> list[int]:
        """The most steps each sentence may take, end symbol included. `sources` are their lengths, end included."""
        wanted = {source: int(self.longest_ratio * source) + self.longest_extra for source in set(sources)}
        written = {source: min(max(length, self.shortest + 1), self.longest) for source, length in wanted.items()}
        return [
            written[source] + len(constraint.prefix) for source, constraint in zip(sources, constraints, strict=True)
        ]


def checked_prefix(tokens: Sequence[int], longest_source: int) -> tuple[int, ...]:
    """The beginning of a translation; one that is longer than what a text of the model becomes is refused."""
    most = max(_LONGEST_PREFIX * longest_source, Limits.longest)
    if len(tokens) > most:
        raise DataError(
            f"prefixes: expected at most {most:,} tokens, got {len(tokens):,}; give how the translation begins, not all"
            " of a long text"
        )
    return tuple(tokens)
