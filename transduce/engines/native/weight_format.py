"""Format of the native engine's weight file (weights.h): header, table, and the hash that verifies it.

A SHA-256 in the header covers every byte of the file, with its own bytes zero. Only this module knows the offsets:
weight_file.py packs tensors and reads them back. Needs no numpy: translating checks the hash here, and the core reads
the rest.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from transduce.core.errors import RunError

PANEL = 64  # outputs in a panel; both sides of a matrix are padded to multiples
ALIGN = 64  # offsets of tensors are multiples of it
FLOATS, INTEGERS, BYTE_PANELS, FLOAT_PANELS = range(4)  # kinds of tensors
_MAGIC, _VERSION = b"TRDNATIV", 1
_HEADER, _ENTRY = struct.Struct("<8s2IQ32s8x"), struct.Struct("<40s4IQ")
_DIGEST = slice(24, 56)  # of the header
_LONGEST_NAME = 40
_MOST_TENSORS, _MOST_ROWS = 1 << 16, 1 << 24
_CHUNK = 64 << 20  # bytes mapped at a time


def padded(size: int) -> int:
    """Round up to whole panels."""
    return -(-size // PANEL) * PANEL


class Header(NamedTuple):
    """The file's header: the number of `tensors` and the file's `size` in bytes."""

    magic: bytes
    version: int
    tensors: int
    size: int
    digest: bytes


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the table: its kind, its shape without padding, and its offset in the file."""

    name: str
    kind: int
    rows: int
    columns: int
    offset: int

    @property
    def end(self) -> int:
        rows, columns = self.rows, self.columns
        if self.kind in (BYTE_PANELS, FLOAT_PANELS):
            rows, columns = padded(rows), padded(columns)
        return self.offset + rows * columns * (1 if self.kind == BYTE_PANELS else 4)

    @property
    def is_sound(self) -> bool:
        """Whether the tensor is valid, and readable by the core."""
        possible = 1 <= self.rows <= _MOST_ROWS and 1 <= self.columns <= _MOST_ROWS
        return self.kind <= FLOAT_PANELS and possible and self.offset % ALIGN == 0


def bytes_before_tensors(count: int) -> int:
    """Size of the header and the table of so many tensors."""
    return _HEADER.size + count * _ENTRY.size


def header_and_table(tensors: Sequence[StoredTensor], body: bytes | bytearray) -> tuple[bytes, bytes]:
    """Build the bytes before the tensors."""
    table = bytearray()
    for tensor in tensors:
        encoded = tensor.name.encode("ascii")
        if len(encoded) > _LONGEST_NAME:
            raise ValueError(f"{tensor.name}: a tensor's name has at most {_LONGEST_NAME} characters")
        table += _ENTRY.pack(encoded, tensor.kind, tensor.rows, tensor.columns, 0, tensor.offset)
    size = bytes_before_tensors(len(tensors)) + len(body)
    header = Header(_MAGIC, _VERSION, len(tensors), size, bytes(_DIGEST.stop - _DIGEST.start))
    digest = hashlib.sha256(_HEADER.pack(*header))
    digest.update(table)
    digest.update(body)
    return _HEADER.pack(*header._replace(digest=digest.digest())), bytes(table)


def verify(path: Path) -> None:
    """Refuse a file whose hash does not match."""
    with _mapped(path) as data:
        _check_hash(path, data)


def read_table(path: Path) -> tuple[mmap.mmap, dict[str, StoredTensor]]:
    """Map a file with a verified hash, and read its table; all tensors are valid and within the file."""
    data = _mapped(path)
    _check_hash(path, data)
    header = _header_of(data)
    if header.magic != _MAGIC:
        raise failure(path, "is no weight file of the native engine")
    if header.version != _VERSION:
        raise failure(path, f"has format {header.version}, and this program reads {_VERSION}")
    tensors: dict[str, StoredTensor] = {}
    for tensor in _entries(header, data):
        if not tensor.is_sound:  # it ends within the file, or the hash could not match
            raise failure(path, f"is damaged: tensor '{tensor.name}' has impossible sizes, or leaves the file")
        if tensor.name in tensors:
            raise failure(path, f"is damaged: tensor '{tensor.name}' occurs twice")
        tensors[tensor.name] = tensor
    return data, tensors


def failure(path: Path, what: str) -> RunError:
    """The error for a file with a matching hash that cannot be used."""
    return RunError(f"{path}: {what}. Convert the model again")


def _mapped(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; `transduce convert` writes it") from None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise RunError(f"{path}: the weight file cannot be read: {error}") from error


def _check_hash(path: Path, data: mmap.mmap) -> None:
    damage = RunError(
        f"{path}: damaged, cut short, or no weight file: its content does not match its SHA-256. Convert the model"
        " again, or copy the file again from where it came"
    )
    if len(data) < _HEADER.size:
        raise damage
    header, start = _header_of(data), data[: _HEADER.size]
    if header.magic == _MAGIC and _end(header, data) != len(data):
        raise damage  # before reading all of a file of any size
    digest = hashlib.sha256(start[: _DIGEST.start] + bytes(len(header.digest)) + start[_DIGEST.stop :])
    with memoryview(data) as view:
        for begin in range(0, len(data), _CHUNK):
            with view[max(begin, _HEADER.size) : begin + _CHUNK] as part:
                digest.update(part)
            if len(data) > _CHUNK and hasattr(mmap, "MADV_DONTNEED"):  # else all of it would stay in memory
                data.madvise(mmap.MADV_DONTNEED, begin, min(_CHUNK, len(data) - begin))
    if digest.digest() != header.digest:
        raise damage


def _header_of(data: mmap.mmap) -> Header:
    return Header._make(_HEADER.unpack_from(data))


def _entries(header: Header, data: mmap.mmap) -> Iterator[StoredTensor]:
    """Iterate over the table, which must lie within the file."""
    for offset in range(_HEADER.size, bytes_before_tensors(header.tensors), _ENTRY.size):
        name, kind, rows, columns, _, start = _ENTRY.unpack_from(data, offset)
        yield StoredTensor(name.partition(b"\0")[0].decode("ascii", "replace"), kind, rows, columns, start)


def _end(header: Header, data: mmap.mmap) -> int:
    """The end of the file if header and table agree on it; else 0."""
    end = bytes_before_tensors(header.tensors)
    if header.tensors > _MOST_TENSORS or end > len(data):
        return 0
    end = max([end, *(tensor.end for tensor in _entries(header, data))])
    return header.size if end == header.size else 0
