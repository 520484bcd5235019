"""Files that others wrote: JSON, safetensors, and PyTorch's pickles, of which nothing but tensors is ever read.

This is the only place of the package that opens a pickle, and only with `weights_only`: what is in it cannot run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from transduce.errors import RunError

LARGEST_JSON_BYTES = 64 << 20
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise RunError(f"{path}: larger than {LARGEST_JSON_BYTES:,} bytes; expected a JSON file of settings")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; expected the folder of a model, whole") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not JSON ({error}); copy the model again") from None
    if not isinstance(found, dict):
        raise RunError(f"{path}: expected a JSON object, with names and values; copy the model again")
    return found


def read_tensors(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The weights in a model's folder and the file they lie in, in single precision."""
    for name, read in ((SAFE, _read_safetensors), (PICKLED, _read_pickle)):
        path = folder / name
        if path.is_file():
            return path, {key: tensor.float() for key, tensor in read(path).items()}
    raise RunError(f"{folder}: has no weights; expected {SAFE} or {PICKLED} (one file, not several shards)")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: not a safetensors file ({error}); copy the model again") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle fails in any way it likes
        first = str(error).partition("\n")[0]
        raise RunError(
            f"{path}: cannot be read as weights alone ({type(error).__name__}: {first}); what else a pickle holds is"
            " never run. Ask whoever made it for a model.safetensors"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise RunError(f"{path}: expected tensors by name, as `torch.save(model.state_dict())` writes them")
    return found
