"""File formats that hold both sides of each pair: one module per format, found by the extension of a file's name.

To add one, write a module of this package with a `FORMAT`. Where each line is a pair, it is a function that parses a
line: reading, decompression, counting and seeking are shared, and lines are parsed in several processes. Otherwise it
is a `Reader`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from transduce.data import formats
from transduce.data.formats.lines import COMPRESSIONS

Columns = tuple[str, str]
Pair = tuple[bytes, bytes]  # both sides, in UTF-8


class Reader(Protocol):
    """The pairs of one file. Errors are DataErrors that name the file and the place in it."""

    def count(self) -> int:
        """Count the pairs; an error where the file, or a column, does not exist."""
        ...

    def read(self, first: int, most: int) -> list[Pair]:
        """Read pairs from number `first` (from 0) on, fewer than `most` only at the end; mostly called in order."""
        ...


@dataclass(frozen=True)
class FileFormat:
    """A format: either `pair(line, columns, location)`, for files with a pair per line, or `reader(path, columns)`.

    `columns` are the default columns of both sides; `numbered` columns are numbers from 0, others names.
    """

    suffixes: tuple[str, ...]
    columns: Columns
    pair: Callable[[bytes, Columns, str], Pair] | None = None
    reader: Callable[[str, Columns], Reader] | None = None
    numbered: bool = False

    @property
    def name(self) -> str:
        """The name in chunks and messages: the first suffix without the dot."""
        return self.suffixes[0][1:]


@cache
def formats_by_suffix() -> dict[str, FileFormat]:
    """Map the suffixes of all formats in this package to them."""
    names = sorted(module.name for module in pkgutil.iter_modules(formats.__path__))
    modules = [importlib.import_module(f"{formats.__name__}.{name}") for name in names]
    known = [vars(module)["FORMAT"] for module in modules if "FORMAT" in vars(module)]
    return {suffix: known_format for known_format in known for suffix in known_format.suffixes}


def format_of(path: str) -> FileFormat | None:
    """The format by a file's extension, ahead of that of a compression; None by default."""
    name = Path(path.lower())
    extension = Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix
    return formats_by_suffix().get(extension) if extension else None
