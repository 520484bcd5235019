"""Files that others wrote: JSON, text, safetensors, and PyTorch's pickles, of which only tensors.

This is the only place of the package that opens a pickle, and only with `weights_only`: what is in it cannot run.
Weights stay in their file, mapped into memory, until names and shapes are known to be those of a model.
numpy's archives are read in npz_archive.py.
"""

from __future__ import annotations

import io
import pickletools  # lists what a pickle would do, and does nothing of it
import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from transduce.errors import RunError
from transduce.untrusted import read_json as read_object
from transduce.untrusted import read_small

LARGEST_JSON_BYTES = 64 << 20
SAFE, PICKLED, ARCHIVE = "model.safetensors", "pytorch_model.bin", "model.npz"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".npz")
_LARGEST_INDEX = 1 << 20  # bytes that tell names, shapes and places of tensors: some thousands of them
_OLD_PICKLES = 5  # magic number, protocol, system, tensors, and the names of their storages
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HARMLESS = re.compile(
    r"collections OrderedDict|torch(\.storage)? \w+Storage|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        found = read_object(path, LARGEST_JSON_BYTES)
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; expected the folder of a model, whole") from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON ({error}); copy the model again") from None
    if not isinstance(found, dict):
        raise RunError(f"{path}: expected a JSON object, with names and values; copy the model again")
    return found


def read_text(path: Path) -> str:
    """A file of settings or words."""
    try:
        return read_small(path, LARGEST_JSON_BYTES).decode("utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be opened: {error.strerror}; expected the model's folder, whole") from None
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: not UTF-8 ({error}); copy the model again") from None
    except ValueError as error:
        raise RunError(f"{path}: {error}; expected settings or a vocabulary") from None


def find_weights(given: Path) -> Path:
    """The file of weights that is meant: itself, or the one in a folder."""
    if given.is_file():
        if given.suffix not in _SUFFIXES:
            raise RunError(
                f"{given}: is no file of weights; expected one of {', '.join(_SUFFIXES)}, or a model's folder"
            )
        return given
    if not given.is_dir():
        raise RunError(f"{given}: no such folder or file; expected the folder of a model, or its file of weights")
    for name in (SAFE, PICKLED, ARCHIVE):
        if (given / name).is_file():
            return given / name
    found = sorted(path for path in given.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if not found:
        raise RunError(
            f"{given}: has no weights; expected {SAFE} or {PICKLED} (one file, not several shards) or {ARCHIVE}"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise RunError(
            f"{given}: has {len(found)} files that may be weights ({names}); give the one that is meant instead of the"
            " folder. Shards of one model cannot be read: have it saved as one file"
        )
    return found[0]


@dataclass(frozen=True)
class ForeignTensor:
    """A tensor in a file: its name, shape and bytes there, and a way to its values, in single precision."""

    name: str
    shape: tuple[int, ...]
    taken: int
    read: Callable[[], Tensor]


def read_tensors(path: Path) -> dict[str, ForeignTensor]:
    """The weights in a safetensors file or a pickle; their values were not looked at."""
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    for name, tensor in found.items():
        if not _is_plain(tensor):
            raise RunError(
                f"{path}: {name[:60]!r} holds {str(tensor.dtype).removeprefix('torch.')} values, {tensor.layout},"
                f" on {tensor.device.type}; expected plain floats of 16, 32 or 64 bits: ask whoever made it for a"
                " model.safetensors that is not quantized"
            )
    return {
        name: ForeignTensor(name, tuple(tensor.shape), tensor.numel() * tensor.itemsize, tensor.float)
        for name, tensor in found.items()
    }


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype in _FLOATS and tensor.layout is torch.strided and tensor.device.type == "cpu"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > _LARGEST_INDEX:
            raise SafetensorError(f"a header of {length:,} bytes, {_LARGEST_INDEX:,} at most are read")
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise RunError(f"{path}: not a safetensors file ({error}); copy the model again") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        mapped = _check_pickle(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of kinds of tensors that are refused afterwards
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except _NotTensors as error:
        raise _refusal(path, str(error)) from None
    except Exception as error:  # a damaged or hostile pickle fails in any way it likes
        raise _refusal(path, type(error).__name__) from None
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    ):
        raise RunError(f"{path}: expected tensors by name, as `torch.save(model.state_dict())` writes them")
    return {name: tensor.detach() for name, tensor in found.items()}


class _NotTensors(Exception):
    """What a pickle holds besides tensors that lie in the file as they are."""


def _refusal(path: Path, reason: str) -> RunError:
    return RunError(
        f"{path}: cannot be read as tensors alone ({reason}): it is damaged, or holds objects that"
        " would run code when they are read. It is not opened in another way; ask whoever made it for a"
        " model.safetensors"
    )


def _check_pickle(path: Path) -> bool:
    """Refuse what may grow while it is read; whether it is an archive, whose tensors can be mapped, is told.

    That is compressed archives, pickles too long to be names and places of tensors, and calls of anything else: torch
    lets a pickle double a text as often as it likes. Files from before torch 1.6 are pickles one after another.
    """
    with path.open("rb") as file:
        start = file.read(_LARGEST_INDEX)
    if not start.startswith(b"PK\x03\x04"):
        stream = io.BytesIO(start)
        for _ in range(_OLD_PICKLES):
            _check_calls(stream)
        return False
    with zipfile.ZipFile(path) as packed:
        entries = packed.infolist()
        (index,) = (entry for entry in entries if entry.filename.endswith("/data.pkl"))
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _NotTensors("its archive is compressed, as torch never does")
        if index.file_size > _LARGEST_INDEX:
            raise _NotTensors(f"{index.file_size:,} bytes of names, {_LARGEST_INDEX:,} at most are read")
        _check_calls(io.BytesIO(packed.read(index)))
    return True


def _check_calls(stream: io.BytesIO) -> None:
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL") and not _HARMLESS.fullmatch(str(argument)):
            raise _NotTensors(f"it asks for {str(argument)[:60]!r}")
