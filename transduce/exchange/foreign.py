"""Files that others wrote: JSON, text, safetensors, numpy's archives, and PyTorch's pickles, of which only tensors.

This is the only place of the package that opens a pickle, and only with `weights_only`: what is in it cannot run.
Archives are opened with `allow_pickle=False`.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from transduce.errors import RunError
from transduce.untrusted import read_json as read_object

LARGEST_JSON_BYTES = 64 << 20
SAFE, PICKLED, ARCHIVE = "model.safetensors", "pytorch_model.bin", "model.npz"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".npz")
_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_MOST_PACKED = 20  # times its size that an archive may have unpacked: weights hardly shrink


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
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise RunError(f"{path}: larger than {LARGEST_JSON_BYTES:,} bytes; expected settings or a vocabulary")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be opened: {error.strerror}; expected the model's folder, whole") from None
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: not UTF-8 ({error}); copy the model again") from None


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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The weights in a safetensors file or a pickle, in single precision."""
    read = _read_safetensors if path.suffix == ".safetensors" else _read_pickle
    return {key: tensor.float() for key, tensor in read(path).items()}


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file."""
    try:
        with zipfile.ZipFile(path) as packed:
            unpacked = sum(entry.file_size for entry in packed.infolist())
            if unpacked > _MOST_PACKED * path.stat().st_size:
                raise RunError(f"{path}: would unpack to {unpacked:,} bytes, more than weights can; it is no model")
            return {entry.filename.removesuffix(".npy"): _read_array(packed, entry) for entry in packed.infolist()}
    except _UNREADABLE as error:
        raise RunError(
            f"{path}: cannot be read as arrays alone ({type(error).__name__}: {error}); pickled objects are never"
            " opened. Copy the model again, or ask whoever made it for plain arrays"
        ) from None


def _read_array(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with packed.open(entry) as stream:
        found: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return found


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: not a safetensors file ({error}); copy the model again") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle fails in any way it likes
        raise RunError(
            f"{path}: cannot be read as tensors alone ({type(error).__name__}): it is damaged, or holds objects that"
            " would run code when they are read. It is not opened in another way; ask whoever made it for a"
            " model.safetensors"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise RunError(f"{path}: expected tensors by name, as `torch.save(model.state_dict())` writes them")
    return found
