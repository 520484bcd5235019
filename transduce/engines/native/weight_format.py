"""The format of the native engine's weight file (weights.h): its header, its table, and the hash that proves it whole.

A SHA-256 in the header covers every byte of the file, its own place zero. No other file knows where anything stands:
weight_file.py packs tensors into it and reads them back. Needs no numpy: translating checks the hash here, and the core
reads the rest.
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

PANEL = 64  # outputs in a panel; both sides of a matrix are padded to whole ones
ALIGN = 64  # tensors begin at multiples of it
FLOATS, INTEGERS, BYTE_PANELS, FLOAT_PANELS = range(4)  # kinds of tensors
_MAGIC, _VERSION = b"TRDNATIV", 1
_HEADER, _ENTRY = struct.Struct("<8s2IQ32s8x"), struct.Struct("<40s4IQ")
_DIGEST = slice(24, 56)  # of the header
_LONGEST_NAME = 40
_MOST_TENSORS, _MOST_PLACES = 1 << 16, 1 << 24
_CHUNK = 64 << 20  # bytes mapped at a time


def padded(size: int) -> int:
    """Up to whole panels."""
    return -(-size // PANEL) * PANEL


class Header(NamedTuple):
    """So many `tensors` in a file of `size` bytes."""

    magic: bytes
    version: int
    tensors: int
    size: int
    digest: bytes


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the table has it: its kind, its shape without padding, and where in the file its bytes begin."""

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
        """Whether there can be such a tensor, and the core would read it."""
        places = 1 <= self.rows <= _MOST_PLACES and 1 <= self.columns <= _MOST_PLACES
        return self.kind <= FLOAT_PANELS and places and self.offset % ALIGN == 0


def bytes_before_tensors(count: int) -> int:
    """What header and table of so many tensors take."""
    return _HEADER.size + count * _ENTRY.size


def header_and_table(tensors: Sequence[StoredTensor], body: bytes | bytearray) -> tuple[bytes, bytes]:
    """What stands before the bytes of the tensors."""
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
    """Refuse a file whose bytes are not those that were written."""
    with _mapped(path) as data:
        _check_hash(path, data)


def read_table(path: Path) -> tuple[mmap.mmap, dict[str, StoredTensor]]:
    """A file whose hash was found right, mapped, and its tensors by name, all of which are sound and within it."""
    data = _mapped(path)
    _check_hash(path, data)
    header = _header_of(data)
    if header.magic != _MAGIC:
        raise failure(path, "is no weight file of the native engine")
    if header.version != _VERSION:
        raise failure(path, f"has format {header.version}, and this program reads {_VERSION}")
    found: dict[str, StoredTensor] = {}
    for tensor in _entries(header, data):
        if not tensor.is_sound:  # it ends within the file, as the hash could not be right without
            raise failure(path, f"is damaged: tensor '{tensor.name}' has impossible sizes, or leaves the file")
        if tensor.name in found:
            raise failure(path, f"is damaged: tensor '{tensor.name}' occurs twice")
        found[tensor.name] = tensor
    return data, found


def failure(path: Path, what: str) -> RunError:
    """Why a file is refused whose hash is right."""
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
        raise damage  # before all of a file is read that may be of any size
    digest = hashlib.sha256(start[: _DIGEST.start] + bytes(len(header.digest)) + start[_DIGEST.stop :])
    with memoryview(data) as whole:
        for begin in range(0, len(data), _CHUNK):
            with whole[max(begin, _HEADER.size) : begin + _CHUNK] as part:
                digest.update(part)
            if len(data) > _CHUNK and hasattr(mmap, "MADV_DONTNEED"):  # or all of it would stay in memory
                data.madvise(mmap.MADV_DONTNEED, begin, min(_CHUNK, len(data) - begin))
    if digest.digest() != header.digest:
        raise damage


def _header_of(data: mmap.mmap) -> Header:
    return Header._make(_HEADER.unpack_from(data))


def _entries(header: Header, data: mmap.mmap) -> Iterator[StoredTensor]:
    """The table, which must lie within the file."""
    for place in range(_HEADER.size, bytes_before_tensors(header.tensors), _ENTRY.size):
        name, kind, rows, columns, _, offset = _ENTRY.unpack_from(data, place)
        yield StoredTensor(name.partition(b"\0")[0].decode("ascii", "replace"), kind, rows, columns, offset)


def _end(header: Header, data: mmap.mmap) -> int:
    """Where the file ends by its header and its table alike; 0 where these differ, or the table cannot be."""
    end = bytes_before_tensors(header.tensors)
    if header.tensors > _MOST_TENSORS or end > len(data):
        return 0
    end = max([end, *(tensor.end for tensor in _entries(header, data))])
    return header.size if end == header.size else 0
