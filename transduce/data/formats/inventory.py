"""The files of a corpus: counted and compared before anything is done, cut into line ranges, read from any line on.

`index_file` counts the lines of a file in one quick pass, notes where every 10,000th begins, and hashes the content
(SHA-256). By this a reader enters a plain file anywhere, shards agree on who reads what, and a file that was changed
between two runs is noticed. Compressed files are entered by unpacking and skipping, Parquet files by row groups.

`place_of_gap` and `place_of_parting` say where two files stop being translations of each other, judged by the lengths
of their lines alone. The lengths of a sentence and of its translation go together, so the log ratio of the two varies
little. Where one side lacks lines, the ratios behind them vary as little once that side is moved by as many lines as it
lacks: the place is the one that makes the ratios most likely. Where no such place is clear (lines may be missing on
both sides), it is the split of the series into two parts, each with its own spread, that does, if the second is wider.

A line range is examined and tokenized on its own, and what it gave is kept (data/prepare/work_folder.py). Where the
cuts are changes nothing in the result; a shard has a run of ranges with about as many lines as the other shards.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.core.errors import ConfigError, DataError
from transduce.core.progress import Progress
from transduce.data.corpus import file_digest
from transduce.data.formats.lines import COMPRESSIONS, DAMAGES, check_file, damaged, open_unpacked, read_lines
from transduce.data.formats.parallel import Chunk, ParallelText, file_format
from transduce.data.formats.parquet import ParquetRows, count_rows

STEP = 10_000
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileIndex:
    """One file as it was when it was counted."""

    path: str
    bytes: int
    modified: int  # when, in nanoseconds
    sha256: str
    lines: int  # of Parquet: rows
    starts: tuple[int, ...] = ()  # the byte at which lines 0, STEP, 2 * STEP ... begin; none where one cannot seek

    def is_unchanged(self) -> bool:
        """Whether the file is the same: by size and time, and where the time is another by its content."""
        try:
            facts = os.stat(self.path)
        except OSError:
            return False
        if facts.st_size != self.bytes:
            return False
        return facts.st_mtime_ns == self.modified or file_digest(Path(self.path)) == self.sha256


def index_file(path: str, columns: tuple[str, str] | None = None) -> FileIndex:
    """Read a file once, to count and to hash it; `columns` if it holds both sides."""
    check_file(path)
    facts = os.stat(path)
    if columns and file_format(path) == "parquet":
        return FileIndex(path, facts.st_size, facts.st_mtime_ns, file_digest(Path(path)), count_rows(path, columns))
    count = _Count(path)
    lines = count.all()
    if Path(path).suffix.lower() in COMPRESSIONS:
        return FileIndex(path, facts.st_size, facts.st_mtime_ns, file_digest(Path(path)), lines)
    return FileIndex(path, facts.st_size, facts.st_mtime_ns, count.hash.hexdigest(), lines, (0, *count.starts))


class _Count:
    """Counts the lines of a file; of a plain one also finds their starts and hashes the content."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.ends = 0  # newlines so far
        self.starts: list[int] = []
        self.hash = hashlib.sha256()

    def all(self) -> int:
        place, last = 0, b"\n"
        for block in self._blocks():
            self.hash.update(block)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
            wanted = np.arange(-(self.ends + 1) % STEP, len(ends), STEP)  # those whose number is a multiple of STEP
            self.starts += (ends[wanted] + place + 1).tolist()
            self.ends += len(ends)
            place += len(block)
            last = block[-1:]
        return self.ends + (last != b"\n")

    def _blocks(self) -> Iterator[bytes]:
        try:
            with open_unpacked(self.path) as file:
                while block := file.read(_BLOCK):
                    yield block
        except DAMAGES as error:
            raise damaged(self.path, self.ends + 1, error) from None
        except OSError as error:
            raise DataError(f"{self.path}:{self.ends + 1}: cannot be read: {error.strerror or error}") from None


class LineReader:
    """A place in a file that moves forward: by seeking where the index knows how, else by reading on."""

    def __init__(self, index: FileIndex) -> None:
        self._index, self._at = index, 0
        self._lines = read_lines(index.path)

    def take(self, first: int, most: int, most_bytes: int = 0) -> list[bytes]:
        """Lines from number `first` (from 0) on; fewer than `most` once they have `most_bytes`."""
        self._move(first)
        taken, size = [], 0
        for line in islice(self._lines, most):
            taken.append(line)
            size += len(line)
            if most_bytes and size >= most_bytes:
                break
        self._at += len(taken)
        if not taken or (len(taken) < most and not most_bytes):
            raise changed_meanwhile(self._index.path)
        return taken

    def _move(self, line: int) -> None:
        mark = line // STEP
        if mark < len(self._index.starts) and mark * STEP > self._at:
            self._at = mark * STEP
            self._lines = read_lines(self._index.path, self._at, self._index.starts[mark])
        self._at += sum(1 for _ in islice(self._lines, line - self._at))


class Rows:
    """The same for the two columns of a Parquet file."""

    def __init__(self, index: FileIndex, columns: tuple[str, str]) -> None:
        self._index, self._columns, self._at = index, columns, -1
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def take(self, first: int, most: int) -> list[tuple[bytes, bytes]]:
        """So many rows from number `first` (from 0) on."""
        if self._at != first:
            self._rows, self._at = iter(ParquetRows(self._index.path, self._columns, first)), first
        taken = list(islice(self._rows, most))
        self._at += len(taken)
        if len(taken) < most:
            raise changed_meanwhile(self._index.path)
        return taken


def changed_meanwhile(path: str) -> DataError:
    """The error for a file that ends before the lines that were counted in it."""
    return DataError(f"{path}: has fewer lines than when they were counted; it was changed meanwhile: begin again")


LINES_JUDGED = 1_000_000  # keeps the memory of the estimate near 100 MB
FEWEST_LINES = 20  # on each side of the place; fewer ratios show no spread
CLEARLY_LIKELIER = 12.0  # nats by which two spreads must beat one
CLEARLY_WIDER = 1.5  # times as much variance after the place as before it
CLEARLY_RELATED = 0.3  # correlation of the log lengths of lines that match


def describe_mismatch(source_file: str, target_file: str) -> str:
    """The message for two files of different line counts, with the place where they part if that can be told."""
    lengths = array("i"), array("i")
    counts = [0, 0]
    for lines in islice(zip_longest(read_lines(source_file), read_lines(target_file)), LINES_JUDGED):
        for side, line in enumerate(lines):
            if line is not None:
                counts[side] += 1
                lengths[side].append(len(line))
    if max(counts) == LINES_JUDGED:  # count on, without keeping lengths
        counts = [sum(1 for _ in read_lines(path)) for path in (source_file, target_file)]
    both = min(len(lengths[0]), len(lengths[1]))
    sides = np.array(lengths[0][:both], np.float64), np.array(lengths[1][:both], np.float64)
    gap = None if max(counts) > LINES_JUDGED else place_of_gap(*(np.array(side, np.float64) for side in lengths))
    place = place_of_parting(*sides) if gap is None else gap
    shorter = source_file if counts[0] < counts[1] else target_file
    if place is None and both == LINES_JUDGED and _related(*sides):
        where = f"Judged by line lengths, the first {both:,} lines do match; no more were looked at"
    elif gap == both + 1:
        where = f"Judged by line lengths, all the lines both have do match: the end of {shorter} seems to be missing"
    elif place is not None:
        where = (
            f"Judged by line lengths, the sides stop matching at about line {place}: look for a missing or extra line"
        )
    else:
        where = "Where they stop matching cannot be told from the line lengths"
    return (
        f"{source_file} has {counts[0]:,} lines but {target_file} has {counts[1]:,}: line-aligned files need as many "
        f"on each side. {where}."
    )


def place_of_gap(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> int | None:
    """The number (from 1) of the first line that no longer matches if one side lacks one stretch of lines.

    One more than the shorter side has lines if what is missing is the end; None if it cannot be told.
    """
    longer, shorter = (source, target) if len(source) > len(target) else (target, source)
    count, missing = len(shorter), len(longer) - len(shorter)
    if count < 2 * FEWEST_LINES:
        return None
    unmoved, moved = (np.log1p(longer[first : first + count]) - np.log1p(shorter) for first in (0, missing))
    usual = unmoved.mean()
    before = np.concatenate(([0.0], np.cumsum((unmoved - usual) ** 2)))  # of the first 0, 1, 2 ... lines
    after = np.concatenate((np.cumsum((moved - usual)[::-1] ** 2)[::-1], [0.0]))  # of all but these
    cost = before + after
    best = int(np.argmin(cost))
    nats = (cost - cost[best]) / (2 * cost[best] / count + 1e-4)  # by which it is likelier than others
    clear = nats[np.abs(np.arange(count + 1) - best) > FEWEST_LINES].min() > CLEARLY_LIKELIER
    best = count if nats[count] < CLEARLY_LIKELIER else best  # an end is cut off sooner than a few lines before it
    matched = np.concatenate((longer[:best], longer[best + missing :]))
    return best + 1 if clear and _related(matched, shorter) else None


def place_of_parting(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> int | None:
    """The number (from 1) of the first line that no longer matches, or None if that cannot be told."""
    count = len(source)
    if count < 2 * FEWEST_LINES:
        return None
    ratios = np.log1p(source) - np.log1p(target)
    before = np.arange(1, count)  # how many lines the first part has
    total, squares = np.cumsum(ratios), np.cumsum(ratios**2)
    tiny = 1e-4  # a spread of exactly zero (copied text) has no logarithm
    first = squares[:-1] / before - (total[:-1] / before) ** 2 + tiny
    after = count - before
    second = (squares[-1] - squares[:-1]) / after - ((total[-1] - total[:-1]) / after) ** 2 + tiny
    gain = 0.5 * (count * np.log(ratios.var() + tiny) - before * np.log(first) - after * np.log(second))
    gain[: FEWEST_LINES - 1] = gain[count - FEWEST_LINES :] = -np.inf
    best = int(np.argmax(gain))
    if gain[best] < CLEARLY_LIKELIER or second[best] < CLEARLY_WIDER * first[best]:
        return None
    return best + 2 if _related(source[: best + 1], target[: best + 1]) else None


def _related(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> bool:
    if len(source) < FEWEST_LINES:
        return False
    left, right = np.log1p(source), np.log1p(target)
    if left.std() < 1e-9 or right.std() < 1e-9:
        return False
    return bool(np.corrcoef(left, right)[0, 1] > CLEARLY_RELATED)


CHUNK_LINES = 2000
CHUNK_BYTES = 4 << 20  # a chunk ends early when its lines are long


@dataclass(frozen=True)
class PairedFiles:
    """Files that hold the same pairs line by line: both sides, and the links if there are any."""

    source: FileIndex
    target: FileIndex | None = None  # None: the source file holds both sides
    links: FileIndex | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The files that errors speak of."""
        return self.source.path, (self.target or self.source).path

    @property
    def all(self) -> list[FileIndex]:
        return [index for index in (self.source, self.target, self.links) if index is not None]


def index_text(text: ParallelText) -> list[PairedFiles]:
    """Count the lines of all files of a corpus; refused where they do not go together."""
    found = []
    links = text.alignment_files()
    for number, (source_file, target_file) in enumerate(text.files()):
        source = index_file(source_file, text.sides if text.path else None)
        target = index_file(target_file) if not text.path else None
        if target is not None and source.lines != target.lines:
            raise DataError(describe_mismatch(source_file, target_file))
        linked = index_file(links[number]) if links else None
        if linked is not None:
            _check_links(linked, source)
        found.append(PairedFiles(source, target, linked))
    return found


def _check_links(links: FileIndex, text: FileIndex) -> None:
    if links.lines < text.lines:
        raise DataError(
            f"{links.path}: has only {links.lines:,} lines, {text.path} has more: links need a line for each "
            "pair, an empty one where there are none"
        )
    if links.lines > text.lines:
        raise DataError(
            f"{links.path}: has more than the {text.lines:,} lines of the text it belongs to: links need a line for "
            "each pair, so a pair was left out of the text, or this is another text's alignment"
        )


def read_ranges(text: ParallelText, files: PairedFiles, ranges: Iterable[tuple[int, int]]) -> Iterator[Chunk]:
    """The lines of each range (first line from 0, count) in rising order, in chunks that no range shares."""
    take = _taker(text, files)
    links = LineReader(files.links) if files.links else None
    links_file = files.links.path if files.links else ""
    for first, count in ranges:
        at, end = first, first + count
        while at < end:
            source, target = take(at, min(CHUNK_LINES, end - at))
            linked = links.take(at, len(source)) if links else []
            form = file_format(files.source.path) if text.path else "lines"
            columns = text.sides if text.path else ("", "")
            yield Chunk(files.names, at + 1, form, source, target, columns, links_file, linked)
            at += len(source)


class _Take:
    """Raw lines of both sides from a place on: of TSV and JSONL the whole lines, as source."""

    def __init__(self, files: PairedFiles) -> None:
        self.source = LineReader(files.source)
        self.target = LineReader(files.target) if files.target else None

    def __call__(self, first: int, most: int) -> tuple[list[bytes], list[bytes]]:
        source = self.source.take(first, most, CHUNK_BYTES)
        return source, self.target.take(first, len(source)) if self.target else []


class _TakeRows:
    """The same of a Parquet file."""

    def __init__(self, files: PairedFiles, columns: tuple[str, str]) -> None:
        self.rows = Rows(files.source, columns)

    def __call__(self, first: int, most: int) -> tuple[list[bytes], list[bytes]]:
        pairs = self.rows.take(first, most)
        return [left for left, _ in pairs], [right for _, right in pairs]


def _taker(text: ParallelText, files: PairedFiles) -> _Take | _TakeRows:
    if text.path and file_format(files.source.path) == "parquet":
        return _TakeRows(files, text.sides)
    return _Take(files)


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
