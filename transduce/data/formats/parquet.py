"""Two columns of text in a Parquet file, from any row; needs pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from transduce.core.errors import DataError
from transduce.data.formats import FileFormat
from transduce.data.formats.lines import LINE_BYTES, check_file

BATCH_ROWS = 2000


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install transduce[parquet]") from None
    check_file(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from None


class ParquetReader:
    """Reads two columns of a Parquet file forward from any row."""

    def __init__(self, path: str, columns: tuple[str, str]) -> None:
        self.path, self.columns = path, columns
        self._next = -1  # the row that `_rows` gives next
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def count(self) -> int:
        """Read the number of rows from the file's metadata; the columns must exist."""
        with _opened(self.path) as file:
            for column in self.columns:
                if column not in file.schema_arrow.names:
                    raise DataError(f"{self.path}: no column {column!r}; there are {sorted(file.schema_arrow.names)}")
            return int(file.metadata.num_rows)

    def read(self, first: int, most: int) -> list[tuple[bytes, bytes]]:
        """Read `most` rows from number `first` (from 0) on."""
        if self._next != first:
            self._rows, self._next = iter(_Rows(self.path, self.columns, first)), first
        rows = list(islice(self._rows, most))
        self._next += len(rows)
        return rows


@dataclass(frozen=True)
class _Rows:
    """Iterates over both texts of each row from number `first` (from 0) on; earlier row groups are not read."""

    path: str
    columns: tuple[str, str]
    first: int

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        with _opened(self.path) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            ends = np.cumsum(sizes)
            start = int(np.searchsorted(ends, self.first, side="right"))
            done = int(ends[start - 1]) if start else 0
            for batch in file.iter_batches(BATCH_ROWS, range(start, len(sizes)), columns=list(self.columns)):
                columns = [batch.column(column).to_pylist() for column in self.columns]
                for left, right in zip(*columns, strict=True):
                    done += 1
                    if done > self.first:
                        yield self._text(left, 0, done), self._text(right, 1, done)

    def _text(self, value: object, side: int, row: int) -> bytes:
        if not isinstance(value, str):
            raise DataError(
                f"{self.path}:{row}: column {self.columns[side]!r} holds {value!r:.40} ({type(value).__name__}); "
                "expected a string"
            )
        return value.encode("utf-8", "surrogatepass")[: LINE_BYTES + 1]


FORMAT = FileFormat((".parquet",), ("source", "target"), reader=ParquetReader)
