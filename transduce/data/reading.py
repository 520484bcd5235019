"""The files of a corpus, counted and compared before anything is done, then read as chunks from any line on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from transduce.data.alignment import describe_mismatch
from transduce.data.inventory import FileIndex, LineReader, Rows, index_file
from transduce.data.text import Chunk, ParallelText, file_format
from transduce.errors import DataError

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
