"""Tensors packed for the native engine's kernels: written to its weight file and read back.

weight_format.py has the format and the checks of header, table and hash. Reading makes the checks of weights.cpp, since
files are untrusted; the file is mapped, so a tensor takes memory only when it is read.
Shapes: N outputs, K inputs of a matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.core.durable import write_bytes
from transduce.core.errors import RunError
from transduce.engines.native.layout import Entry
from transduce.engines.native.weight_format import (
    ALIGN,
    BYTE_PANELS,
    FLOAT_PANELS,
    FLOATS,
    INTEGERS,
    PANEL,
    StoredTensor,
    bytes_before_tensors,
    failure,
    header_and_table,
    padded,
    read_table,
)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as stored: its kind, its shape without padding, its bytes."""

    kind: int
    rows: int
    columns: int
    data: bytes


def floats(values: NDArray[np.floating]) -> PackedTensor:
    """Pack a float matrix, or a row."""
    values = np.atleast_2d(np.asarray(values, dtype="<f4"))
    return PackedTensor(FLOATS, values.shape[0], values.shape[1], values.tobytes())


def integers(values: list[int]) -> PackedTensor:
    """Pack a row of integers."""
    return PackedTensor(INTEGERS, 1, len(values), np.asarray(values, dtype="<i4").tobytes())


def matrix(
    name: str, weight: Floats, bias: Floats | None, quantize: bool, filling: float = 0.0
) -> dict[str, PackedTensor]:
    """Pack weight (N, K) and bias (N,) under `name`; `filling` is the bias of padding outputs."""
    outputs, inputs = weight.shape
    padded_weight = np.zeros((padded(outputs), padded(inputs)), dtype=np.float32)
    padded_weight[:outputs, :inputs] = weight
    shift = np.full(len(padded_weight), filling, dtype=np.float32)
    shift[:outputs] = 0 if bias is None else bias
    tensors = {f"{name}.bias": floats(shift)}
    if quantize:
        values, scales = quantized(padded_weight)
        tensors[name] = PackedTensor(BYTE_PANELS, outputs, inputs, byte_panels(values).tobytes())
        tensors[f"{name}.scales"] = floats(scales)
    else:
        panels = padded_weight.reshape(-1, PANEL, padded_weight.shape[1]).transpose(0, 2, 1)
        tensors[name] = PackedTensor(FLOAT_PANELS, outputs, inputs, panels.astype("<f4").tobytes())
    return tensors


def quantized(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Quantize to integers from -127 to 127, with a scale per output (N,)."""
    scales = np.maximum(np.abs(weight).max(1), np.float32(1e-12)) / np.float32(127)
    values = np.clip(np.rint(weight / scales[:, None]), -127, 127).astype(np.int8)
    return values, scales.astype(np.float32)


def byte_panels(values: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Arrange (N, K) as [panel][K / 4][64][4], each plus 128, for instructions with four products per lane."""
    shifted = (values.astype(np.int16) + 128).astype(np.uint8)
    return np.ascontiguousarray(shifted.reshape(-1, PANEL, values.shape[1] // 4, 4).transpose(0, 2, 1, 3))


def write(path: Path, tensors: Mapping[str, PackedTensor]) -> None:
    """Write all tensors to one file; tensors with equal bytes share them."""
    start, body = bytes_before_tensors(len(tensors)), bytearray()
    offsets: dict[bytes, int] = {}
    table = []
    for name, tensor in tensors.items():
        digest = hashlib.sha256(tensor.data).digest()
        if digest not in offsets:
            body += bytes(-(start + len(body)) % ALIGN)
            offsets[digest] = start + len(body)
            body += tensor.data
        table.append(StoredTensor(name, tensor.kind, tensor.rows, tensor.columns, offsets[digest]))
    write_bytes(path, *header_and_table(table, body), memoryview(body))


class WeightReader:
    """A weight file with a verified hash, and a table within its bounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, self._tensors = read_table(path)
        self.size = len(self._data)

    def __len__(self) -> int:
        return len(self._tensors)

    def integers(self, name: str, columns: int) -> list[int]:
        """Read a row of integers."""
        tensor = self._tensor(name, INTEGERS, 1, columns)
        values: list[int] = np.frombuffer(self._data, "<i4", columns, tensor.offset).tolist()
        return values

    def floats(self, name: str, rows: int, columns: int) -> Floats:
        """Read finite numbers; a read-only view of the file."""
        return self._finite(name, self._floats(name, rows, columns))

    def matrix(self, name: str, outputs: int, inputs: int, filling: float = 0.0) -> tuple[Floats, Floats]:
        """Read weight (N, K) and bias (N,), dequantized; `filling` is the expected bias of padding."""
        tensor = self._matrix(name, outputs, inputs)
        rows, columns = padded(outputs), padded(inputs)
        bias = self._floats(f"{name}.bias", 1, rows)[0]
        self._finite(f"{name}.bias", bias[:outputs])
        if not (bias[outputs:] == np.float32(filling)).all():
            raise self._failure(f"has a tensor '{name}.bias' whose padding is not {'-infinity' if filling else '0'}")
        if tensor.kind == BYTE_PANELS:
            stored = np.frombuffer(self._data, np.uint8, rows * columns, tensor.offset)
            panels = stored.reshape(-1, columns // 4, PANEL, 4).transpose(0, 2, 1, 3)
            weight = panels.reshape(rows, columns)[:outputs, :inputs].astype(np.float32)
            weight -= np.float32(128)
            scales = self.floats(f"{name}.scales", 1, rows)
            with np.errstate(over="ignore"):
                self._finite(f"{name}.scales", scales * np.float32(128))
            weight *= scales[0, :outputs, None]
            return weight, bias[:outputs]
        numbers = np.frombuffer(self._data, "<f4", rows * columns, tensor.offset)
        self._finite(name, numbers)
        transposed = numbers.reshape(-1, columns, PANEL).transpose(0, 2, 1)
        return transposed.reshape(rows, columns)[:outputs, :inputs], bias[:outputs]

    def rounded(self, name: str) -> bool:
        """Whether a matrix is stored as integers."""
        return name in self._tensors and self._tensors[name].kind == BYTE_PANELS

    def require(self, entries: Iterable[Entry]) -> None:
        """Refuse a file that lacks a tensor, or has it in another shape; no numbers are read."""
        for entry in entries:
            if not entry.is_matrix:
                self._tensor(entry.name, FLOATS, entry.rows, entry.columns)
                continue
            tensor = self._matrix(entry.name, entry.rows, entry.columns)
            parts = ("bias", "scales") if tensor.kind == BYTE_PANELS else ("bias",)
            for part in parts:
                self._tensor(f"{entry.name}.{part}", FLOATS, 1, padded(entry.rows))

    def _tensor(self, name: str, kind: int, rows: int, columns: int) -> StoredTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._failure(f"lacks the tensor '{name}'")
        if (tensor.kind, tensor.rows, tensor.columns) != (kind, rows, columns):
            raise self._failure(
                f"has a tensor '{name}' of {tensor.rows} x {tensor.columns} of kind {tensor.kind}, and its model needs"
                f" {rows} x {columns} of kind {kind}"
            )
        return tensor

    def _matrix(self, name: str, outputs: int, inputs: int) -> StoredTensor:
        return self._tensor(name, BYTE_PANELS if self.rounded(name) else FLOAT_PANELS, outputs, inputs)

    def _floats(self, name: str, rows: int, columns: int) -> Floats:
        tensor = self._tensor(name, FLOATS, rows, columns)
        return np.frombuffer(self._data, "<f4", rows * columns, tensor.offset).reshape(rows, columns)

    def _finite(self, name: str, values: Floats) -> Floats:
        if not np.isfinite(values).all():
            raise self._failure(f"has a tensor '{name}' with values that are no numbers (NaN or infinite)")
        return values

    def _failure(self, what: str) -> RunError:
        return failure(self.path, what)
