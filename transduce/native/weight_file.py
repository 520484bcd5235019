"""The native engine's weight file: tensors packed as its kernels read them, in one file that proves itself.

weight_format.py has the format; weight_reader.py reads the tensors back.
Letters: N outputs, K inputs of a matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.durable import write_bytes
from transduce.native.weight_format import (
    ALIGN,
    BYTE_PANELS,
    FLOAT_PANELS,
    FLOATS,
    INTEGERS,
    PANEL,
    StoredTensor,
    bytes_before_tensors,
    header_and_table,
    padded,
)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as it is stored: its kind, its shape without padding, its bytes."""

    kind: int
    rows: int
    columns: int
    data: bytes


def floats(values: NDArray[np.floating]) -> PackedTensor:
    """A matrix of numbers, or a row."""
    values = np.atleast_2d(np.asarray(values, dtype="<f4"))
    return PackedTensor(FLOATS, values.shape[0], values.shape[1], values.tobytes())


def integers(values: list[int]) -> PackedTensor:
    return PackedTensor(INTEGERS, 1, len(values), np.asarray(values, dtype="<i4").tobytes())


def matrix(
    name: str, weight: Floats, bias: Floats | None, quantize: bool, filling: float = 0.0
) -> dict[str, PackedTensor]:
    """weight (N, K) and bias (N,) under `name`; `filling` is the bias of outputs that only pad."""
    outputs, inputs = weight.shape
    whole = np.zeros((padded(outputs), padded(inputs)), dtype=np.float32)
    whole[:outputs, :inputs] = weight
    shift = np.full(len(whole), filling, dtype=np.float32)
    shift[:outputs] = 0 if bias is None else bias
    found = {f"{name}.bias": floats(shift)}
    if quantize:
        values, scales = quantized(whole)
        found[name] = PackedTensor(BYTE_PANELS, outputs, inputs, byte_panels(values).tobytes())
        found[f"{name}.scales"] = floats(scales)
    else:
        panels = whole.reshape(-1, PANEL, whole.shape[1]).transpose(0, 2, 1)
        found[name] = PackedTensor(FLOAT_PANELS, outputs, inputs, panels.astype("<f4").tobytes())
    return found


def quantized(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Whole numbers from -127 to 127 and the scale of each output (N,), by which they are to be multiplied."""
    scales = np.maximum(np.abs(weight).max(1), np.float32(1e-12)) / np.float32(127)
    values = np.clip(np.rint(weight / scales[:, None]), -127, 127).astype(np.int8)
    return values, scales.astype(np.float32)


def byte_panels(values: NDArray[np.int8]) -> NDArray[np.uint8]:
    """(N, K) as [panel][K / 4][64][4], each plus 128: what four products a lane and instruction want."""
    shifted = (values.astype(np.int16) + 128).astype(np.uint8)
    return np.ascontiguousarray(shifted.reshape(-1, PANEL, values.shape[1] // 4, 4).transpose(0, 2, 1, 3))


def write(path: Path, tensors: Mapping[str, PackedTensor]) -> None:
    """All tensors in one file; those with the same bytes share them."""
    start, body = bytes_before_tensors(len(tensors)), bytearray()
    offsets: dict[bytes, int] = {}
    table = []
    for name, tensor in tensors.items():
        own = hashlib.sha256(tensor.data).digest()
        if own not in offsets:
            body += bytes(-(start + len(body)) % ALIGN)
            offsets[own] = start + len(body)
            body += tensor.data
        table.append(StoredTensor(name, tensor.kind, tensor.rows, tensor.columns, offsets[own]))
    write_bytes(path, *header_and_table(table, body), memoryview(body))
