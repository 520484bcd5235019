"""The input files of a corpus: counted, compared, cut into line ranges, and read as chunks from any line.

A `FileIndex` has a file's line count, the offset of every 10,000th line, and its SHA-256, from one quick pass. With it
a reader can start anywhere in a plain file, shards agree on who reads what, and a file changed between two runs is
detected. Compressed files are decompressed and skipped to a line, others entered by their `Reader`.

`describe_mismatch` estimates where two files stop being translations of each other, from line lengths alone. The
lengths of a sentence and of its translation correlate, so the log ratio of the two varies little. Where one side lacks
a run of lines, the ratios after it vary as little once that side is shifted by as many lines: the estimate is the
position that makes the ratios most likely. If no such position is clear (lines may be missing on both sides), it is the
split of the series into two parts, each with its own variance, that is most likely, if the second variance is larger.

`cut` divides all corpora into line ranges, the units of shards and of resuming. A range is examined and tokenized by
itself, and its result is kept (prepare/work_folder.py). Where the cuts are does not change the result; a shard has
consecutive ranges with about as many lines as the other shards.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.core.errors import ConfigError, DataError
from transduce.core.progress import Progress
from transduce.data.corpus import file_digest
from transduce.data.formats import FileFormat, Reader, format_of
from transduce.data.formats.lines import COMPRESSIONS, DAMAGES, check_file, damaged, open_unpacked, read_lines
from transduce.data.formats.parallel import LINES, Chunk, ParallelText

STEP = 10_000
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileIndex:
    """A file's facts at the time it was counted."""

    path: str
    bytes: int
    modified: int  # time, in nanoseconds
    sha256: str
    lines: int  # or pairs, where a pair is not a line
    starts: tuple[int, ...] = ()  # byte offsets of lines 0, STEP, 2 * STEP ...; empty where seeking is impossible

    def is_unchanged(self) -> bool:
        """Whether the file is unchanged: by size and time, and if the time differs by its content."""
        try:
            facts = os.stat(self.path)
        except OSError:
            return False
        if facts.st_size != self.bytes:
            return False
        return facts.st_mtime_ns == self.modified or file_digest(Path(self.path)) == self.sha256


def index_file(path: str, columns: tuple[str, str] | None = None) -> FileIndex:
    """Count and hash a file in one pass; `columns` if it holds both sides."""
    check_file(path)
    facts = os.stat(path)
    form = format_of(path) if columns else None
    if columns and form is not None and form.reader is not None:
        pairs = form.reader(path, columns).count()
        return FileIndex(path, facts.st_size, facts.st_mtime_ns, file_digest(Path(path)), pairs)
    count = _Count(path)
    lines = count.all()
    if Path(path).suffix.lower() in COMPRESSIONS:
        return FileIndex(path, facts.st_size, facts.st_mtime_ns, file_digest(Path(path)), lines)
    return FileIndex(path, facts.st_size, facts.st_mtime_ns, count.hash.hexdigest(), lines, (0, *count.starts))


class _Count:
    """Counts the lines of a file; for a plain one also finds line offsets and hashes the content."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.ends = 0  # newlines so far
        self.starts: list[int] = []
        self.hash = hashlib.sha256()

    def all(self) -> int:
        offset, last = 0, b"\n"
        for block in self._blocks():
            self.hash.update(block)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
            marked = np.arange(-(self.ends + 1) % STEP, len(ends), STEP)  # lines whose number is a multiple of STEP
            self.starts += (ends[marked] + offset + 1).tolist()
            self.ends += len(ends)
            offset += len(block)
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
    """Reads a file forward from any line: by seeking where the index allows, else by reading on."""

    def __init__(self, index: FileIndex) -> None:
        self._index, self._at = index, 0
        self._lines = read_lines(index.path)

    def take(self, first: int, most: int, most_bytes: int = 0) -> list[bytes]:
        """Read lines from number `first` (from 0) on; fewer than `most` once they have `most_bytes`."""
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


def changed_meanwhile(path: str) -> DataError:
    """The error for a file that ends before the lines counted in it."""
    return DataError(f"{path}: has fewer lines than when they were counted; it was changed meanwhile: start again")


LINES_JUDGED = 1_000_000  # keeps the memory of the estimate near 100 MB
FEWEST_LINES = 20  # on each side of the position; fewer ratios show no variance
CLEARLY_LIKELIER = 12.0  # nats by which two variances must beat one
CLEARLY_WIDER = 1.5  # times as much variance after the position as before it
CLEARLY_RELATED = 0.3  # correlation of the log lengths of matching lines


def describe_mismatch(source_file: str, target_file: str) -> str:
    """The error message for two files of different line counts, with the estimated position of the mismatch."""
    lengths = _line_lengths(source_file), _line_lengths(target_file)
    counts = [*map(len, lengths)]
    if max(counts) == LINES_JUDGED:  # count on, without keeping lengths
        counts = [sum(1 for _ in read_lines(path)) for path in (source_file, target_file)]
    both = min(len(lengths[0]), len(lengths[1]))
    sides = np.array(lengths[0][:both], np.float64), np.array(lengths[1][:both], np.float64)
    gap = None if max(counts) > LINES_JUDGED else place_of_gap(*(np.array(side, np.float64) for side in lengths))
    line_number = place_of_parting(*sides) if gap is None else gap
    shorter = source_file if counts[0] < counts[1] else target_file
    if line_number is None and both == LINES_JUDGED and _related(*sides):
        where = f"Judged by line lengths, the first {both:,} lines match; no more were compared"
    elif gap == both + 1:
        where = f"Judged by line lengths, all lines that both have match: the end of {shorter} seems to be missing"
    elif line_number is not None:
        where = (
            f"Judged by line lengths, the sides stop matching at about line {line_number}: look for a missing or"
            " extra line"
        )
    else:
        where = "Line lengths do not show where they stop matching"
    return (
        f"{source_file} has {counts[0]:,} lines but {target_file} has {counts[1]:,}: line-aligned files need as many "
        f"on each side. {where}."
    )


def _line_lengths(path: str) -> array[int]:
    """Measure the first lines, in bytes."""
    return array("i", map(len, islice(read_lines(path), LINES_JUDGED)))


def place_of_gap(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> int | None:
    """The number (from 1) of the first line that no longer matches, if one side lacks one run of lines.

    One more than the shorter side's lines if the end is missing; None if unclear.
    """
    longer, shorter = (source, target) if len(source) > len(target) else (target, source)
    count, missing = len(shorter), len(longer) - len(shorter)
    if count < 2 * FEWEST_LINES:
        return None
    unmoved, moved = (np.log1p(longer[first : first + count]) - np.log1p(shorter) for first in (0, missing))
    usual = unmoved.mean()
    before = np.concatenate(([0.0], np.cumsum((unmoved - usual) ** 2)))  # of the first 0, 1, 2 ... lines
    after = np.concatenate((np.cumsum((moved - usual)[::-1] ** 2)[::-1], [0.0]))  # of all others
    cost = before + after
    best = int(np.argmin(cost))
    nats = (cost - cost[best]) / (2 * cost[best] / count + 1e-4)  # the margin of likelihood over others
    clear = nats[np.abs(np.arange(count + 1) - best) > FEWEST_LINES].min() > CLEARLY_LIKELIER
    best = count if nats[count] < CLEARLY_LIKELIER else best  # a missing end is likelier than lines just before it
    matched = np.concatenate((longer[:best], longer[best + missing :]))
    return best + 1 if clear and _related(matched, shorter) else None


def place_of_parting(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> int | None:
    """The number (from 1) of the first line that no longer matches, or None if unclear."""
    count = len(source)
    if count < 2 * FEWEST_LINES:
        return None
    ratios = np.log1p(source) - np.log1p(target)
    before = np.arange(1, count)  # number of lines in the first part
    total, squares = np.cumsum(ratios), np.cumsum(ratios**2)
    tiny = 1e-4  # a variance of exactly zero (copied text) has no logarithm
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
    """Files with the same pairs line by line: both sides, and the links if any."""

    source: FileIndex
    target: FileIndex | None = None  # None if the source file holds both sides
    links: FileIndex | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The files that errors name."""
        return self.source.path, (self.target or self.source).path

    @property
    def all(self) -> list[FileIndex]:
        return [index for index in (self.source, self.target, self.links) if index is not None]


def index_text(text: ParallelText) -> list[PairedFiles]:
    """Index all files of a corpus; an error if line counts differ."""
    paired = []
    links = text.alignment_files()
    for number, (source_file, target_file) in enumerate(text.files()):
        source = index_file(source_file, text.sides if text.path else None)
        target = index_file(target_file) if not text.path else None
        if target is not None and source.lines != target.lines:
            raise DataError(describe_mismatch(source_file, target_file))
        linked = index_file(links[number]) if links else None
        if linked is not None:
            _check_links(linked, source)
        paired.append(PairedFiles(source, target, linked))
    return paired


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
    """Yield the lines of each range (first line from 0, count), in rising order, in chunks within one range."""
    form = format_of(files.source.path) if text.path else None
    take = _taker(text, files, form)
    links = LineReader(files.links) if files.links else None
    links_file = files.links.path if files.links else ""
    for first, count in ranges:
        at, end = first, first + count
        while at < end:
            source, target = take(at, min(CHUNK_LINES, end - at))
            linked = links.take(at, len(source)) if links else []
            columns = text.sides if text.path else ("", "")
            name = form.name if form is not None else LINES
            yield Chunk(files.names, at + 1, name, source, target, columns, links_file, linked)
            at += len(source)


class _Take:
    """Reads raw lines of both sides from any line; where a line holds both, the complete lines as source."""

    def __init__(self, files: PairedFiles) -> None:
        self.source = LineReader(files.source)
        self.target = LineReader(files.target) if files.target else None

    def __call__(self, first: int, most: int) -> tuple[list[bytes], list[bytes]]:
        source = self.source.take(first, most, CHUNK_BYTES)
        return source, self.target.take(first, len(source)) if self.target else []


class _TakeRows:
    """Reads pairs of a file that is not read line by line, like `_Take`."""

    def __init__(self, path: str, reader: Reader) -> None:
        self.path, self.reader = path, reader

    def __call__(self, first: int, most: int) -> tuple[list[bytes], list[bytes]]:
        pairs = self.reader.read(first, most)
        if len(pairs) < most:
            raise changed_meanwhile(self.path)
        return [left for left, _ in pairs], [right for _, right in pairs]


def _taker(text: ParallelText, files: PairedFiles, form: FileFormat | None) -> _Take | _TakeRows:
    if form is not None and form.reader is not None:
        return _TakeRows(files.source.path, form.reader(files.source.path, text.sides))
    return _Take(files)


LONGEST = 100_000  # lines of a range
EACH = 4  # minimum ranges per shard, if there are enough lines


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
        """Parse a shard such as '2/8', the second of eight."""
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
    file: int  # index in that corpus
    first: int  # line, from 0
    count: int
    shard: int


@dataclass(frozen=True)
class IndexedCorpus:
    """One corpus of one split, with all its files indexed."""

    split: str
    text: ParallelText
    files: tuple[PairedFiles, ...]

    @property
    def lines(self) -> int:
        return sum(files.source.lines for files in self.files)

    def as_list(self) -> list[list[dict[str, Any] | None]]:
        """Serialize its files for JSON."""
        return [
            [vars(index) if index else None for index in (files.source, files.target, files.links)]
            for files in self.files
        ]

    @classmethod
    def from_list(cls, split: str, text: ParallelText, found: list[list[dict[str, Any] | None]]) -> IndexedCorpus:
        """Rebuild the contents from the result of `as_list`."""
        indexes = [[FileIndex(**{**i, "starts": tuple(i["starts"])}) if i else None for i in files] for files in found]
        return cls(split, text, tuple(PairedFiles(*files) for files in indexes))  # type: ignore[arg-type]


def index_splits(splits: dict[str, tuple[ParallelText, ...]]) -> list[IndexedCorpus]:
    """Index all files, so that missing or mismatched ones are reported before hours of work."""
    for split, texts in splits.items():
        for number, text in enumerate(texts):
            text.check_files(f"{split}[{number}]" if len(texts) > 1 else split)
    all_contents = []
    with Progress("Counting", None, "lines") as progress:
        for split, text in ((split, text) for split, texts in splits.items() for text in texts):
            all_contents.append(IndexedCorpus(split, text, tuple(index_text(text))))
            progress.advance(all_contents[-1].lines)
    for contents in all_contents:
        if contents.split != "train" and contents.lines == 0:
            raise DataError(f"{contents.split}, {contents.text.label}: no lines; leave this corpus out")
    return all_contents


def cut(corpora: Sequence[IndexedCorpus], shards: int) -> list[LineRange]:
    """Cut all corpora into line ranges in order, assigned to shards by number of lines."""
    total = sum(contents.lines for contents in corpora)
    longest = LONGEST if shards == 1 else max(1, min(LONGEST, -(-total // (EACH * shards))))
    line_ranges: list[LineRange] = []
    done = 0
    for section, contents in enumerate(corpora):
        for number, files in enumerate(contents.files):
            for first in range(0, files.source.lines, longest):
                count = min(longest, files.source.lines - first)
                line_ranges.append(
                    LineRange(len(line_ranges), section, number, first, count, done * shards // total + 1)
                )
                done += count
    return line_ranges


def read_line_ranges(
    corpora: Sequence[IndexedCorpus], line_ranges: Sequence[LineRange]
) -> Iterator[tuple[LineRange, Chunk]]:
    """Yield the chunks of line ranges, in order; each file is opened once and never read backwards."""
    for (section, file), group in groupby(line_ranges, lambda line_range: (line_range.section, line_range.file)):
        group_ranges = list(group)
        contents = corpora[section]
        ends = iter(group_ranges)
        line_range = next(ends)
        for chunk in read_ranges(contents.text, contents.files[file], [(s.first, s.count) for s in group_ranges]):
            while chunk.first_line > line_range.first + line_range.count:
                line_range = next(ends)
            yield line_range, chunk
