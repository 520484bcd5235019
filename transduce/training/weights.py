"""Weights in one self-verifying safetensors file: its header carries a SHA-256 of the whole file.

The digest is taken with its own 64 characters filled with zeros, so it covers every byte: names, types, shapes,
metadata, numbers and padding. The file can be copied anywhere, and a change of a single bit is found when it is loaded.
Pickle is never read. Tied tensors are stored once; tying them again is the model's business.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from transduce.core.durable import write_bytes
from transduce.core.errors import RunError, explaining_shortage
from transduce.core.untrusted import parse_json
from transduce.translate.model_folder import LARGEST_HEADER, SEAL

_UNSEALED = "0" * 64
_PICKLE_SUFFIXES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_PICKLE_STARTS = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))
_REPLACE = "Copy it again from where it came, or take another checkpoint."
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}  # bytes
_WIDTHS |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
_SHOWN = 5  # names of each kind in a message


class Shaped(Protocol):
    """A tensor, or its description in a header."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class TensorHeader:
    """A header's description of a tensor."""

    shape: tuple[int, ...]


Fits = Callable[[Mapping[str, Shaped], Mapping[str, Any]], None]


def save_weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors of any device and layout, each storage once, into one self-verifying file, atomically."""
    write_bytes(path, *serialize(tensors, metadata, path))


def load_weights(path: Path, fits: Fits | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file of `save_weights`: (tensors on the CPU, metadata), after every byte has been verified.

    `fits` is given the header's tensors and metadata before the rest is read, and raises where they do not fit: a
    file from elsewhere may be of any size.
    """
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise RunError(_pickle_text(path))
    try:
        with path.open("rb") as file, explaining_shortage(lambda: f"while reading {path}: free memory, or use another"):
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            start += file.read(min(int.from_bytes(start, "little"), LARGEST_HEADER))
            header = _header_of(start, size, path)
            tensors, metadata = _described(header, size, path)
            if fits is not None:
                try:
                    fits(tensors, metadata)
                except RunError:
                    _verify(header, iter(lambda: file.read(1 << 20), b""), size, path)  # damage is the better reason
                    raise
            file.seek(0)
            data = file.read()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; expected weights written by transduce (model.safetensors)") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    return deserialize(data, path)


def serialize(tensors: dict[str, Tensor], metadata: dict[str, str], where: Path) -> tuple[bytes, memoryview]:
    """Serialize to (header, body); equal tensors and metadata always give equal bytes."""
    if "sha256" in metadata:
        raise ValueError("metadata: 'sha256' is the file's own key")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _refuse_non_finite(tensors, where)
    file = memoryview(safetensors.torch.save(tensors, metadata={**metadata, "sha256": _UNSEALED}))
    body_start = 8 + int.from_bytes(file[:8], "little")
    # The library writes metadata in random order; sorted, equal weights make equal files.
    described = json.loads(bytes(file[8:body_start]))
    described["__metadata__"] = dict(sorted(described["__metadata__"].items()))
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the format aligns the body to eight bytes
    header, body = len(text).to_bytes(8, "little") + text, file[body_start:]
    seal = f'"sha256":"{_digest(header, body)}"'.encode()
    return SEAL.sub(seal, header, count=1), body


def deserialize(data: bytes, where: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Parse (tensors, metadata) of a whole file in memory; `where` is the path that error messages name."""
    header = _header_of(data, len(data), where)
    _verify(header, [memoryview(data)[len(header) :]], len(data), where)
    metadata = _described(header, len(data), where)[1]
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{where}: not a valid safetensors file: {error}. {_REPLACE}") from error
    return tensors, {name: value for name, value in metadata.items() if name != "sha256"}


def _header_of(start: bytes, size: int, where: Path) -> bytes:
    """The header, with the eight bytes before it, of a file of `size` bytes that begins with `start`."""
    header_end = 8 + int.from_bytes(start[:8], "little")
    if start[8:9] != b"{":
        if start.startswith(_PICKLE_STARTS):
            raise RunError(_pickle_text(where))
        if size > 8:
            raise RunError(
                f"{where}: damaged, or not a safetensors file: its header does not begin with '{{'. {_REPLACE}"
            )
    if size < max(header_end, 10):
        raise RunError(f"{where}: cut short within its header, at {size:,} bytes (or damaged there). {_REPLACE}")
    if header_end > 8 + LARGEST_HEADER:
        raise RunError(
            f"{where}: its header would have {header_end - 8:,} bytes, {LARGEST_HEADER:,} at most are read. {_REPLACE}"
        )
    return start[:header_end]


def _described(header: bytes, size: int, where: Path) -> tuple[dict[str, TensorHeader], dict[str, Any]]:
    """Parse a header's tensors and metadata, and check that their bytes are all that follows in the file."""
    try:
        found = parse_json(header[8:])
        metadata = dict(found.pop("__metadata__", {}))
        tensors = {name: _described_one(name, **entry) for name, entry in found.items()}
        promised = len(header) + max((entry["data_offsets"][1] for entry in found.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{where}: not a valid safetensors file: {error!s:.120}. {_REPLACE}") from None
    if size < promised:
        raise RunError(f"{where}: cut short: {size:,} bytes, its header promises {promised:,}. {_REPLACE}")
    if size > promised:
        raise RunError(
            f"{where}: damaged: longer than its header promises, {size:,} bytes, not {promised:,}. {_REPLACE}"
        )
    return tensors, metadata


def _described_one(name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> TensorHeader:
    begin, end = data_offsets
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"'{name:.60}': sizes that are no numbers")
    if end - begin != math.prod(shape) * _WIDTHS.get(dtype, 0):
        raise ValueError(f"'{name:.60}': {end - begin:,} bytes for {shape!r:.60} of {dtype:.9}")
    return TensorHeader(tuple(shape))


def _verify(header: bytes, body: Iterable[bytes | memoryview], size: int, where: Path) -> None:
    """Raise RunError unless the file's bytes match the SHA-256 in its header."""
    seals = list(SEAL.finditer(header))
    if len(seals) != 1:
        raise RunError(
            f"{where}: damaged, or not written by transduce: expected one sha256 in its header, found {len(seals)}. "
            f"{_REPLACE}"
        )
    start, end = seals[0].span(1)
    unsealed = header[:start] + _UNSEALED.encode() + header[end:]
    if _digest(unsealed, *body) != seals[0].group(1).decode():
        _described(header, size, where)  # a header that can be read may say that the file was cut short
        raise RunError(f"{where}: damaged: its content does not match the SHA-256 in its header. {_REPLACE}")


def check_shapes(tensors: Mapping[str, Shaped], expected: dict[str, tuple[int, ...]], where: Path | str) -> None:
    """Raise RunError for tensors whose names or shapes are not those of the model they are meant for."""
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    wrong = [
        f"{name} {list(tensors[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != tuple(shape)
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", wrong))
    problems = [f"{len(names)} {kind}: {_first(names)}" for kind, names in kinds if names]
    if problems:
        raise RunError(
            f"{where}: the tensors do not fit the model: {'; '.join(problems)}. "
            "Use the configuration these weights were trained with."
        )


def _first(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _refuse_non_finite(tensors: dict[str, Tensor], where: Path) -> None:
    for name, tensor in tensors.items():
        bad = int(torch.isfinite(tensor).logical_not().sum()) if tensor.is_floating_point() else 0
        if bad:
            raise RunError(
                f"{where}: {name}: {bad:,} of {tensor.numel():,} values are NaN or infinite; not saved. Earlier "
                "checkpoints are untouched: resume from the newest one with a lower learning rate or gradient clipping."
            )


def _pickle_text(where: Path) -> str:
    return (
        f"{where}: looks like a pickle (PyTorch .pt, .bin), which can run code when it is opened, and is refused. "
        "Expected a model.safetensors written by transduce."
    )
