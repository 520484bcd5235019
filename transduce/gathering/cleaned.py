"""All corpora cleaned stretch by stretch: each becomes a part (data/parts.py), which a kill cannot take away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from transduce.data.inventory import LineReader, index_file
from transduce.data.parts import FinishedPart, PartWriter, WorkFolder, gather
from transduce.data.resuming import PreparationPlan
from transduce.data.stretches import Contents, LineRange, read_stretches
from transduce.data.workers import ordered_map
from transduce.errors import DataError
from transduce.gathering.cleaning import ChunkToClean, Cleaned, clean_chunk
from transduce.gathering.settings import Gather, RawText
from transduce.progress import Progress

HASH = "<u8"
PIVOT, OTHER = "pivot", "other"  # names of the two sides


def clean_all(plan: PreparationPlan, config: Gather) -> None:
    """Clean the stretches that have no part yet."""
    left = plan.unfinished(plan.work.examined, plan.stretches)
    tasks = _tasks(plan.corpora, left, config)
    with Progress("Cleaning", sum(stretch.count for stretch in left), "pairs") as progress:
        results = ordered_map(partial(clean_chunk, config=config), tasks, config.workers)
        gather(results, lambda number: _CleanedPart(number, plan.work, progress))


def _tasks(corpora: Sequence[Contents], stretches: Sequence[LineRange], config: Gather) -> Iterator[ChunkToClean]:
    ordered, labels = config.ordered(), dict[int, LineReader]()
    for stretch, chunk in read_stretches(corpora, stretches):
        corpus = ordered[stretch.section]
        if corpus.labels and stretch.section not in labels:
            labels[stretch.section] = _open_labels(corpus, corpora[stretch.section])
        known = labels.get(stretch.section)
        of_chunk = known.take(chunk.first_line - 1, len(chunk.source)) if known else []
        yield ChunkToClean(stretch.number, corpus, chunk, of_chunk)


def _open_labels(corpus: RawText, contents: Contents) -> LineReader:
    index = index_file(corpus.labels)
    if len(contents.files) > 1 or index.lines != contents.lines:
        raise DataError(
            f"{corpus.labels}: has {index.lines:,} lines, and {corpus.name} has {contents.lines:,} pairs in"
            f" {len(contents.files)} file(s); labels need a line for each pair, of one file"
        )
    return LineReader(index)


class _CleanedPart:
    """The part of one stretch while it is written."""

    def __init__(self, number: int, work: WorkFolder, progress: Progress) -> None:
        self.number, self.progress = number, progress
        self.writer = PartWriter(work.examined(number))
        self.read = self.stayed = 0
        self.dropped: Counter[str] = Counter()

    def add(self, cleaned: Cleaned) -> None:
        for side, texts, hashes in zip((PIVOT, OTHER), cleaned.texts, cleaned.hashes, strict=True):
            self.writer.add(f"{side}.txt", "".join(f"{text}\n" for text in texts).encode())
            self.writer.add(f"{side}.hashes", hashes.astype(HASH).tobytes())
        self.writer.add("pairs.hashes", cleaned.pairs.astype(HASH).tobytes())
        self.writer.add("flags", cleaned.flags.tobytes())
        self.read += cleaned.read
        self.stayed += len(cleaned.flags)
        self.dropped += cleaned.dropped
        self.progress.advance(cleaned.read)

    def finish(self) -> None:
        self.writer.finish({"read": self.read, "stayed": self.stayed, "dropped": dict(sorted(self.dropped.items()))})


@dataclass(frozen=True)
class CleanStretch:
    """A stretch as it was left by cleaning: the corpus it is of, and where its pairs begin among all of one use."""

    corpus: RawText
    part: FinishedPart
    start: int

    @property
    def count(self) -> int:
        return int(self.part.facts["stayed"])

    def hashes(self, what: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Of the sentences of one side, or of the pairs."""
        return self.part.array(f"{what}.hashes", HASH)

    def flags(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Which sentences are common."""
        return self.part.array("flags", "u1")

    def marks(
        self, all_marks: np.ndarray[tuple[int], np.dtype[np.uint8]]
    ) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Those of its pairs, of the marks of all of its use."""
        return all_marks[self.start : self.start + self.count]

    def lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Both texts of each pair, with their line ends."""
        names: tuple[Path, Path] = (self.part.path / f"{PIVOT}.txt", self.part.path / f"{OTHER}.txt")
        with open(names[0], "rb") as pivot, open(names[1], "rb") as other:
            yield from zip(pivot, other, strict=True)


def open_cleaned(plan: PreparationPlan, config: Gather) -> dict[str, list[CleanStretch]]:
    """The stretches of each use, in order."""
    ordered, starts = config.ordered(), {"train": 0, "test": 0}
    found: dict[str, list[CleanStretch]] = {"train": [], "test": []}
    for stretch in plan.stretches:
        corpus = ordered[stretch.section]
        one = CleanStretch(corpus, FinishedPart(plan.work.examined(stretch.number)), starts[corpus.use])
        found[corpus.use].append(one)
        starts[corpus.use] += one.count
    return found
