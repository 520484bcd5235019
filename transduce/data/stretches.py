"""All corpora cut into stretches of consecutive lines: what a shard is made of, and what a kill cannot take away.

A stretch is examined and tokenized on its own, and what it gave is kept (parts.py). Where the cuts are changes nothing
in the result; a shard has a run of stretches with about as many lines as the other shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transduce.data.inventory import FileIndex
from transduce.data.reading import PairedFiles, index_text, read_ranges
from transduce.data.text import Chunk, ParallelText
from transduce.errors import ConfigError, DataError
from transduce.progress import Progress

LONGEST = 100_000  # lines of a stretch
EACH = 4  # stretches of a shard at least, where there are lines enough


@dataclass(frozen=True)
class Shard:
    """One share of the work: number `number` (from 1) of `count`."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ConfigError(f"shard {self.number}/{self.count}: expected i/n with i from 1 to n, such as 2/8")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """'2/8': the second of eight."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal()):
            raise ConfigError(f"shard {text!r}: expected i/n with i from 1 to n, such as 2/8")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class LineRange:
    """Consecutive lines of one file of one corpus."""

    number: int
    section: int  # the corpus, counted over all splits
    file: int  # of that corpus
    first: int  # line, from 0
    count: int
    shard: int


@dataclass(frozen=True)
class Contents:
    """One corpus of one split, with all its files counted."""

    split: str
    text: ParallelText
    files: tuple[PairedFiles, ...]

    @property
    def lines(self) -> int:
        return sum(files.source.lines for files in self.files)

    def as_list(self) -> list[list[dict[str, Any] | None]]:
        """Its files, for JSON."""
        return [
            [vars(index) if index else None for index in (files.source, files.target, files.links)]
            for files in self.files
        ]

    @classmethod
    def from_list(cls, split: str, text: ParallelText, found: list[list[dict[str, Any] | None]]) -> Contents:
        """What `as_list` gave."""
        indexes = [[FileIndex(**{**i, "starts": tuple(i["starts"])}) if i else None for i in files] for files in found]
        return cls(split, text, tuple(PairedFiles(*files) for files in indexes))  # type: ignore[arg-type]


def index_splits(splits: dict[str, tuple[ParallelText, ...]]) -> list[Contents]:
    """Count everything; what is missing or does not fit together is told before hours of work."""
    for split, texts in splits.items():
        for number, text in enumerate(texts):
            text.check_files(f"{split}[{number}]" if len(texts) > 1 else split)
    found = []
    with Progress("Counting", None, "lines") as progress:
        for split, text in ((split, text) for split, texts in splits.items() for text in texts):
            found.append(Contents(split, text, tuple(index_text(text))))
            progress.advance(found[-1].lines)
    for contents in found:
        if contents.split != "train" and contents.lines == 0:
            raise DataError(f"{contents.split}, {contents.text.label}: no lines; leave this corpus out")
    return found


def cut(corpora: Sequence[Contents], shards: int) -> list[LineRange]:
    """The stretches of all corpora in order, dealt out to the shards by their lines."""
    total = sum(contents.lines for contents in corpora)
    longest = LONGEST if shards == 1 else max(1, min(LONGEST, -(-total // (EACH * shards))))
    found: list[LineRange] = []
    done = 0
    for section, contents in enumerate(corpora):
        for number, files in enumerate(contents.files):
            for first in range(0, files.source.lines, longest):
                count = min(longest, files.source.lines - first)
                found.append(LineRange(len(found), section, number, first, count, done * shards // total + 1))
                done += count
    return found


def read_stretches(corpora: Sequence[Contents], stretches: Sequence[LineRange]) -> Iterator[tuple[LineRange, Chunk]]:
    """The chunks of some stretches, in order; each file is opened once and never read back."""
    for (section, file), group in groupby(stretches, lambda stretch: (stretch.section, stretch.file)):
        wanted = list(group)
        contents = corpora[section]
        ends = iter(wanted)
        stretch = next(ends)
        for chunk in read_ranges(contents.text, contents.files[file], [(s.first, s.count) for s in wanted]):
            while chunk.first_line > stretch.first + stretch.count:
                stretch = next(ends)
            yield stretch, chunk
