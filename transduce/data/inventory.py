"""What an input file holds: its lines, counted in one quick pass, where every 10,000th begins, and its SHA-256.

By this a reader enters a plain file anywhere, shards agree on who reads what, and a file that was changed between two
runs is noticed. Compressed files are entered by unpacking and skipping, Parquet files by row groups.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from transduce.data.corpus import file_digest
from transduce.data.lines import COMPRESSIONS, DAMAGES, check_file, damaged, open_unpacked, read_lines
from transduce.data.parquet import ParquetRows, count_rows
from transduce.data.text import file_format
from transduce.errors import DataError

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
