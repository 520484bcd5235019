"""Marian's binary model files (.bin), with float or int8 weights: the same arrays as in a model.npz.

    version (1), number of items, {name length, type, shape length, data length} of each, names, shapes, padding, data

All numbers are little-endian, 64 bits wide in the headers and 32 bits in the shapes. Matrices of type intgemm8 are
int8, transposed, followed by the factor that they were multiplied by before they were rounded (marian-dev:
src/common/binary.cpp, src/tensors/cpu/expression_graph_packable.h). `marian-conv -g intgemm8` writes this layout, which
no processor uses as it is; those that are arranged for one kind of processor are refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.errors import RunError

VERSION = struct.pack("<Q", 1)
INT8, FLOAT16, FLOAT32, INTGEMM8 = 0x101, 0x402, 0x404, 0x10001
_PLAIN = {INT8: "i1", FLOAT16: "<f2", FLOAT32: "<f4"}
_HEADER = struct.Struct("<QQQQ")
_MOST_DIMENSIONS = 8
_AGAIN = "copy the model again"


@dataclass(frozen=True)
class Item:
    """What the headers say of one tensor; `begin` is where its data starts."""

    name: str
    kind: int
    shape: tuple[int, ...]
    begin: int
    length: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def is_binary(path: Path) -> bool:
    """Whether a file begins as Marian's binary files do; pickles and archives do not."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(VERSION)) == VERSION
    except OSError:
        return False


def read_binary(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .bin file; int8 matrices come back as floats, each within half a step of what was rounded."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; expected a file of Marian's weights") from None
    try:
        return {item.name: _array(data, item, path) for item in _items(data, path)}
    except (struct.error, ValueError, OverflowError) as error:
        raise RunError(f"{path}: not a binary file of Marian's ({error}); {_AGAIN}") from None


def _items(data: bytes, path: Path) -> Iterator[Item]:
    """All tensors, with their lengths checked against the file before anything is made of them."""
    (count,) = struct.unpack_from("<Q", data, len(VERSION))
    position = len(VERSION) + 8
    if count > (len(data) - position) // _HEADER.size:
        raise RunError(f"{path}: tells of {count:,} tensors, more than fit into {len(data):,} bytes; {_AGAIN}")
    headers = [_HEADER.unpack_from(data, position + _HEADER.size * number) for number in range(count)]
    position += _HEADER.size * count
    names = []
    for length, *_ in headers:
        names.append(_cut(data, position, length, path).rstrip(b"\0").decode("utf-8"))
        position += length
    shapes = []
    for _, _, dimensions, _ in headers:
        if dimensions > _MOST_DIMENSIONS:
            raise RunError(f"{path}: has a tensor of {dimensions:,} dimensions; {_AGAIN}")
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, position))
        position += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", data, position)
    position += 8 + padding
    for (_, kind, _, length), name, shape in zip(headers, names, shapes, strict=True):
        if min(shape, default=0) < 0:
            raise RunError(f"{path}: {name[:60]} has the shape {shape}; {_AGAIN}")
        _cut(data, position, length, path)
        yield Item(name, kind, shape, position, length)
        position += length


def _cut(data: bytes, begin: int, length: int, path: Path) -> bytes:
    if begin + length > len(data):
        raise RunError(f"{path}: ends after {len(data):,} bytes, and {begin + length:,} were expected; {_AGAIN}")
    return data[begin : begin + length] if length < 1 << 16 else b""


def _array(data: bytes, item: Item, path: Path) -> NDArray[Any]:
    kind = _PLAIN.get(item.kind, "i1")
    needed = item.elements * np.dtype(kind).itemsize + (4 if item.kind == INTGEMM8 else 0)
    if item.kind not in _PLAIN and item.kind != INTGEMM8:
        raise RunError(
            f"{path}: {item.name[:60]} is of type {item.kind:#x}, expected float32, float16 or intgemm8; weights"
            " packed for one kind of processor cannot be read: convert model.npz with `marian-conv -g intgemm8`"
        )
    if needed > item.length:
        raise RunError(f"{path}: {item.name[:60]} has {item.length:,} bytes, expected {needed:,}; {_AGAIN}")
    values: NDArray[Any] = np.frombuffer(data, kind, item.elements, item.begin)
    if item.kind != INTGEMM8:
        return values.reshape(item.shape)
    if len(item.shape) != 2:
        raise RunError(f"{path}: {item.name[:60]} has the shape {item.shape}, expected a matrix; {_AGAIN}")
    (factor,) = struct.unpack_from("<f", data, item.begin + item.elements)
    if not 0 < factor < math.inf:
        raise RunError(f"{path}: {item.name[:60]} was multiplied by {factor}, expected a number above 0; {_AGAIN}")
    return (values.reshape(item.shape[::-1]).T / np.float32(factor)).astype(np.float32)
