"""Two columns of a tab-separated file, by their numbers from 0."""

from __future__ import annotations

from transduce.core.errors import DataError
from transduce.data.formats import FileFormat


def pair_of_line(line: bytes, columns: tuple[str, str], location: str) -> tuple[bytes, bytes]:
    """Parse both sides of a line; `location` is its file and number."""
    fields = line.split(b"\t")
    left, right = int(columns[0]), int(columns[1])
    if max(left, right) >= len(fields):
        raise DataError(
            f"{location}: {len(fields)} tab-separated column(s); expected at least {max(left, right) + 1}, "
            f"for columns = {list(columns)} counts from 0"
        )
    return fields[left], fields[right]


FORMAT = FileFormat((".tsv",), ("0", "1"), pair=pair_of_line, numbered=True)
