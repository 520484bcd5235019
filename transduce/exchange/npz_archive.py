"""The arrays of an .npz archive: headers first, by a parser that knows no Python, and values when they are asked for.

    zip archive of NAME.npy: b"\\x93NUMPY", version, length of the header, {'descr', 'fortran_order', 'shape'}, values

numpy's own reader gives a header to Python's parser, which ends in errors of many kinds, and makes room for whatever
shape is told. Here a header is matched by one expression, and its shape must fit the bytes that follow it.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from transduce.errors import RunError

_MOST_PACKED = 2  # times its size that an archive may have unpacked: weights hardly shrink
_LONGEST_HEADER = 10_000
_HEADER = re.compile(
    rb"\{'descr': ?'([<>|=]?[a-zA-Z]\d{0,3})', ?'fortran_order': ?(True|False),"
    rb" ?'shape': ?\(((?:\d{1,18}, ?){0,8}(?:\d{1,18})?)\),? ?\}\s*"
)
_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: what its header says, the bytes that it takes there, and a way to its values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    taken: int
    read: Callable[[], NDArray[Any]]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    length: int  # bytes before the values


def read_archive(path: Path) -> dict[str, StoredArray]:
    """The arrays of an .npz file by name; of each only the header was read."""
    with _refusing(path):
        packed = zipfile.ZipFile(path)
        entries = packed.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > _MOST_PACKED * path.stat().st_size:
            raise RunError(f"{path}: would unpack to {unpacked:,} bytes, more than weights can; it is no model")
        found = {entry.filename.removesuffix(".npy"): _stored(path, packed, entry) for entry in entries}
        if len(found) < len(entries):
            raise ValueError("two arrays have one name")
        return found


def _stored(path: Path, packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> StoredArray:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename!r:.60} is compressed in a way that numpy never does")
    with packed.open(entry) as stream:
        header = _read_header(stream)
    expected = header.length + math.prod(header.shape) * header.dtype.itemsize
    if entry.file_size != expected:
        raise ValueError(f"{entry.filename!r:.60} has {entry.file_size:,} bytes, expected {expected:,} for its shape")
    return StoredArray(header.dtype, header.shape, entry.compress_size, partial(_values, path, packed, entry, header))


def _read_header(stream: IO[bytes]) -> _Header:
    start = stream.read(8)
    if start not in (b"\x93NUMPY\x01\0", b"\x93NUMPY\x02\0", b"\x93NUMPY\x03\0"):
        raise ValueError(f"expected an array of numpy's, found {start!r}")
    width = struct.Struct("<H" if start[6] == 1 else "<I")
    (length,) = width.unpack(stream.read(width.size))
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    text = stream.read(length)
    matched = _HEADER.fullmatch(text)
    if not matched or len(text) < length:
        raise ValueError(f"the header {text[:60]!r} does not tell type, order and shape of numbers")
    kind, order, shape = (part.decode() for part in matched.groups())
    try:
        dtype = np.dtype(kind)
    except TypeError:
        raise ValueError(f"values of a type that is unknown, {kind!r}") from None
    if dtype.hasobject:
        raise ValueError("Python's objects in place of numbers")
    sizes = tuple(int(size) for size in shape.split(",") if size.strip())
    return _Header(dtype, sizes, "F" if order == "True" else "C", 8 + width.size + length)


def _values(path: Path, packed: zipfile.ZipFile, entry: zipfile.ZipInfo, header: _Header) -> NDArray[Any]:
    with _refusing(path):
        data = packed.read(entry)
        flat: NDArray[Any] = np.frombuffer(data, header.dtype, math.prod(header.shape), header.length)
        return np.reshape(flat, header.shape, order=header.order)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever a stranger's archive does to its readers ends in one message."""
    try:
        yield
    except _UNREADABLE as error:
        raise RunError(
            f"{path}: cannot be read as arrays alone ({type(error).__name__}: {error}); pickled objects are never"
            " opened. Copy the model again, or ask whoever made it for plain arrays"
        ) from None
