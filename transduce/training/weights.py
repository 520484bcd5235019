"""Weights in one safetensors file that proves itself: its header carries a SHA-256 of the whole file.

The digest is taken with its own 64 places filled with zeros, so it covers every byte: names, types, shapes, metadata,
numbers and padding. The file can be copied anywhere, and a change of a single bit is found when it is loaded.
Pickle is never read. Tied tensors are stored once; tying them again is the model's business.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from transduce.durable import write_bytes
from transduce.errors import RunError
from transduce.model_folder import SEAL

_UNSEALED = "0" * 64
_PICKLE_SUFFIXES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_PICKLE_STARTS = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))
_REPLACE = "Copy it again from where it came, or take another checkpoint."
_SHOWN = 5  # names of each kind in a message


def save_weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors of any device and layout, each storage once, into one self-verifying file, atomically."""
    write_bytes(path, *serialize(tensors, metadata, path))


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file of `save_weights`: (tensors on the CPU, metadata), after every byte has been verified."""
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise RunError(_pickle_text(path))
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; expected weights written by transduce (model.safetensors)") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    return deserialize(data, path)


def serialize(tensors: dict[str, Tensor], metadata: dict[str, str], where: Path) -> tuple[bytes, memoryview]:
    """The file as (header, body); equal tensors and metadata always give equal bytes."""
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
    """(tensors, metadata) of a whole file in memory; `where` is the path that error messages name."""
    header_end = 8 + int.from_bytes(data[:8], "little")
    if data[8:9] != b"{":
        if data.startswith(_PICKLE_STARTS):
            raise RunError(_pickle_text(where))
        if len(data) > 8:
            raise RunError(
                f"{where}: damaged, or not a safetensors file: its header does not begin with '{{'. {_REPLACE}"
            )
    if len(data) < max(header_end, 10):
        raise RunError(f"{where}: cut short within its header, at {len(data):,} bytes (or damaged there). {_REPLACE}")
    header = data[:header_end]
    seals = list(SEAL.finditer(header))
    if len(seals) != 1:
        raise RunError(
            f"{where}: damaged, or not written by transduce: expected one sha256 in its header, found {len(seals)}. "
            f"{_REPLACE}"
        )
    start, end = seals[0].span(1)
    unsealed = header[:start] + _UNSEALED.encode() + header[end:]
    if _digest(unsealed, memoryview(data)[header_end:]) != seals[0].group(1).decode():
        raise RunError(_damage_text(header, len(data), where))
    try:
        metadata: dict[str, str] = json.loads(header[8:])["__metadata__"]
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{where}: not a valid safetensors file: {error}. {_REPLACE}") from error
    del metadata["sha256"]
    return tensors, metadata


def check_shapes(tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]], where: Path | str) -> None:
    """Refuse tensors whose names or shapes are not those of the model they are meant for."""
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


def _digest(header: bytes, body: memoryview) -> str:
    digest = hashlib.sha256(header)
    digest.update(body)
    return digest.hexdigest()


def _refuse_non_finite(tensors: dict[str, Tensor], where: Path) -> None:
    for name, tensor in tensors.items():
        bad = int(torch.isfinite(tensor).logical_not().sum()) if tensor.is_floating_point() else 0
        if bad:
            raise RunError(
                f"{where}: {name}: {bad:,} of {tensor.numel():,} values are NaN or infinite; not saved. Earlier "
                "checkpoints are untouched: resume from the newest one with a lower learning rate or gradient clipping."
            )


def _damage_text(header: bytes, size: int, where: Path) -> str:
    """Say 'cut short' where the header, if it can still be read, promises more than there is."""
    try:
        described = json.loads(header[8:])
        ends = [entry["data_offsets"][1] for name, entry in described.items() if name != "__metadata__"]
        promised = len(header) + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        promised = 0
    if size < promised:
        return f"{where}: cut short: {size:,} bytes, its header promises {promised:,}. {_REPLACE}"
    return f"{where}: damaged: its content does not match the SHA-256 in its header. {_REPLACE}"


def _pickle_text(where: Path) -> str:
    return (
        f"{where}: looks like a pickle (PyTorch .pt, .bin), which can run code when it is opened, and is refused. "
        "Expected a model.safetensors written by transduce."
    )
