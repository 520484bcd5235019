"""The native engine's weight file: tensors packed as its kernels read them, in one file that proves itself.

weights.h describes the format; seal.py says how it proves itself.
Letters: N outputs, K inputs of a matrix.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.durable import write_bytes
from transduce.errors import RunError
from transduce.native.seal import SEAL

Floats = NDArray[np.float32]
PANEL = 64  # outputs in a panel; both sides of a matrix are padded to whole ones
_MAGIC, _VERSION, _ALIGN = b"TRDNATIV", 1, 64
_FLOATS, _INTEGERS, _BYTE_PANELS, _FLOAT_PANELS = range(4)


@dataclass(frozen=True)
class Packed:
    """A tensor as it is stored: its kind, its shape without padding, its bytes."""

    kind: int
    rows: int
    columns: int
    data: bytes


def padded(size: int) -> int:
    """Up to whole panels."""
    return -(-size // PANEL) * PANEL


def floats(values: NDArray[np.floating]) -> Packed:
    """A matrix of numbers, or a row."""
    values = np.atleast_2d(np.asarray(values, dtype="<f4"))
    return Packed(_FLOATS, values.shape[0], values.shape[1], values.tobytes())


def integers(values: list[int]) -> Packed:
    return Packed(_INTEGERS, 1, len(values), np.asarray(values, dtype="<i4").tobytes())


def matrix(name: str, weight: Floats, bias: Floats | None, quantize: bool, filling: float = 0.0) -> dict[str, Packed]:
    """weight (N, K) and bias (N,) under `name`; `filling` is the bias of outputs that only pad."""
    outputs, inputs = weight.shape
    whole = np.zeros((padded(outputs), padded(inputs)), dtype=np.float32)
    whole[:outputs, :inputs] = weight
    shift = np.full(len(whole), filling, dtype=np.float32)
    shift[:outputs] = 0 if bias is None else bias
    found = {f"{name}.bias": floats(shift)}
    if quantize:
        values, scales = quantized(whole)
        found[name] = Packed(_BYTE_PANELS, outputs, inputs, byte_panels(values).tobytes())
        found[f"{name}.scales"] = floats(scales)
    else:
        panels = whole.reshape(-1, PANEL, whole.shape[1]).transpose(0, 2, 1)
        found[name] = Packed(_FLOAT_PANELS, outputs, inputs, panels.astype("<f4").tobytes())
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


def read(path: Path) -> dict[str, Packed]:
    """What `write` wrote. Who has not opened the file before has its seal verified first (seal.py)."""
    content = memoryview(path.read_bytes())
    magic, version, count, size = struct.unpack_from("<8s2IQ", content)
    if (magic, version, size) != (_MAGIC, _VERSION, len(content)):
        raise RunError(f"{path}: is no weight file of this format; convert the model again")
    found = {}
    for place in range(64, 64 + 64 * count, 64):
        name, kind, rows, columns, _, offset = struct.unpack_from("<40s4IQ", content, place)
        width = 1 if kind == _BYTE_PANELS else 4
        sizes = (padded(rows), padded(columns)) if kind in (_BYTE_PANELS, _FLOAT_PANELS) else (rows, columns)
        data = bytes(content[offset : offset + width * sizes[0] * sizes[1]])
        found[name.rstrip(b"\0").decode("ascii")] = Packed(kind, rows, columns, data)
    return found


def numbers(tensor: Packed) -> Floats:
    """What `floats` packed."""
    return np.frombuffer(tensor.data, dtype="<f4").reshape(tensor.rows, tensor.columns).astype(np.float32)


def unpacked(tensors: Mapping[str, Packed], name: str) -> tuple[Floats, Floats]:
    """The weight (N, K) and the bias (N,) that `matrix` packed, as far as they were not rounded."""
    tensor = tensors[name]
    rows, columns = padded(tensor.rows), padded(tensor.columns)
    if tensor.kind == _BYTE_PANELS:
        panels = np.frombuffer(tensor.data, dtype=np.uint8).reshape(-1, columns // 4, PANEL, 4)
        whole = panels.transpose(0, 2, 1, 3).reshape(rows, columns).astype(np.float32) - np.float32(128)
        whole *= numbers(tensors[f"{name}.scales"])[0, :, None]
    else:
        columns_of = np.frombuffer(tensor.data, dtype="<f4").reshape(-1, columns, PANEL)
        whole = columns_of.transpose(0, 2, 1).reshape(rows, columns).astype(np.float32)
    return whole[: tensor.rows, : tensor.columns], numbers(tensors[f"{name}.bias"])[0, : tensor.rows]


def write(path: Path, tensors: Mapping[str, Packed]) -> None:
    """All tensors in one file; those with the same bytes share them."""
    start = 64 + 64 * len(tensors)
    offsets: dict[bytes, int] = {}
    table, body = bytearray(), bytearray()
    for name, tensor in tensors.items():
        own = hashlib.sha256(tensor.data).digest()
        if own not in offsets:
            body += bytes(-(start + len(body)) % _ALIGN)
            offsets[own] = start + len(body)
            body += tensor.data
        encoded = name.encode("ascii")
        if len(encoded) > 40:
            raise ValueError(f"{name}: a tensor's name has at most 40 characters")
        shape = (tensor.kind, tensor.rows, tensor.columns, 0, offsets[own])
        table += struct.pack("<40s4IQ", encoded, *shape)
    size = start + len(body)
    header = struct.pack("<8s2IQ40x", _MAGIC, _VERSION, len(tensors), size)
    digest = hashlib.sha256(header)
    digest.update(table)
    digest.update(body)
    sealed = header[: SEAL.start] + digest.digest() + header[SEAL.stop :]
    write_bytes(path, sealed, bytes(table), memoryview(body))
