"""Read files that others wrote: JSON, text, YAML, safetensors, and PyTorch's pickles, of which only tensors.

This is the only place of the package that opens a pickle, and only with `weights_only`: what is in it cannot run.
Weights stay in their file, mapped into memory, until names and shapes are known to be those of a model.
numpy's archives are read in marian_npz.py.

YAML is one flat mapping of words, read from the parser's events so that nothing can grow in it. Marian's configs map
names to scalars or to flat lists of scalars, its vocabularies map pieces to numbers. A loader would first build
whatever the text describes: thousands of nested lists end in a stack overflow, aliases of aliases in a tree of any
size. Here anything but that flat mapping is refused at the event that begins it.
"""

from __future__ import annotations

import io
import pickletools  # lists what a pickle would do, and does nothing of it
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from transduce.core.errors import RunError, needed_by
from transduce.core.untrusted import read_json as read_object
from transduce.core.untrusted import read_small

LARGEST_JSON_BYTES = 64 << 20
SAFE, PICKLED, ARCHIVE = "model.safetensors", "pytorch_model.bin", "model.npz"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".npz")
_LARGEST_INDEX = 1 << 20  # bytes for names, shapes and offsets of tensors: some thousands of them
_OLD_PICKLES = 5  # magic number, protocol, system, tensors, and the names of their storages
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HARMLESS = re.compile(
    r"collections OrderedDict|torch(\.storage)? \w+Storage|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file."""
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
    """Read a file of settings or words."""
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
    """A tensor in a file: its name, shape and size in bytes there, and a reader of its values in single precision."""

    name: str
    shape: tuple[int, ...]
    taken: int
    read: Callable[[], Tensor]


def read_tensors(path: Path) -> dict[str, ForeignTensor]:
    """List the tensors in a safetensors file or a pickle, without reading their values."""
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
    """A pickle holds something besides tensors that lie in the file as they are."""


def _refusal(path: Path, reason: str) -> RunError:
    return RunError(
        f"{path}: cannot be read as tensors alone ({reason}): it is damaged, or holds objects that"
        " would run code when they are read. It is not opened in another way; ask whoever made it for a"
        " model.safetensors"
    )


def _check_pickle(path: Path) -> bool:
    """Raise for a pickle that may grow while it is read; return whether it is an archive that can be mapped.

    Refused are compressed archives, pickles too long to be names and offsets of tensors, and calls of anything else:
    torch lets a pickle double a text as often as it likes. Files from before torch 1.6 are pickles one after another.
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


Value = str | list[str]
LARGEST = 64 << 20  # characters of a text
MOST_ENTRIES = 1 << 22  # of the mapping and its lists together: as many as the largest vocabulary
_SHOWN = 60  # characters of a value in a message
_AGAIN = "copy the model again"


def read_settings(text: str, where: Path) -> dict[str, Value]:
    """Parse the names and values of a YAML text, each a string or a list of strings; errors name `where`."""
    with needed_by(f"{where}: reading Marian's own files", "marian"):
        import yaml  # type: ignore[import-untyped]
    if len(text) > LARGEST:
        raise RunError(f"{where}: YAML of {len(text):,} characters, {LARGEST:,} at most are read; {_AGAIN}")
    try:
        return _mapping(yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)), where)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two: an escape that is no character
        first = str(error).partition("\n")[0]
        raise RunError(f"{where}: not YAML ({first[: 2 * _SHOWN]}); {_AGAIN}") from None


def shown(value: object) -> str:
    """A foreign value for an error message, truncated if it is long."""
    text = repr(value[: _SHOWN + 1] if isinstance(value, (str, list)) else value)
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}..."


def _mapping(events: Iterator[Any], where: Path) -> dict[str, Value]:
    found: dict[str, Value] = {}
    kinds = [_kind(next(events, None)) for _ in range(3)]  # stream, document, and what it holds
    if kinds[-1] != "MappingStart":
        raise RunError(f"{where}: expected YAML with names and values; {_AGAIN}")
    entries = 0
    for event in events:
        if _kind(event) == "MappingEnd":
            break
        name = _scalar(event, where, "a name")
        value = _value(next(events), events, where, name)
        if name in found:
            raise RunError(f"{where}: {shown(name)} stands there twice; {_AGAIN}")
        entries += 1 + (len(value) if isinstance(value, list) else 0)
        if entries > MOST_ENTRIES:
            raise RunError(f"{where}: more than {MOST_ENTRIES:,} entries; expected settings or a vocabulary")
        found[name] = value
    if [_kind(event) for event in (next(events), next(events))] != ["DocumentEnd", "StreamEnd"]:
        raise RunError(f"{where}: expected one YAML document, found several; {_AGAIN}")
    return found


def _value(event: Any, events: Iterator[Any], where: Path, name: str) -> Value:
    if _kind(event) != "SequenceStart":
        return _scalar(event, where, f"the value of {shown(name)}")
    _refuse_anchor(event, where)
    items: list[str] = []
    for item in events:
        if _kind(item) == "SequenceEnd":
            break
        items.append(_scalar(item, where, f"an item of {shown(name)}"))
        if len(items) > MOST_ENTRIES:
            raise RunError(f"{where}: {shown(name)} has more than {MOST_ENTRIES:,} items; expected a setting")
    return items


def _scalar(event: Any, where: Path, what: str) -> str:
    _refuse_anchor(event, where)
    if _kind(event) != "Scalar":
        raise RunError(
            f"{where}: {what} is a list or a mapping, in line {event.start_mark.line + 1}; expected names with a word,"
            f" a number or a flat list of them each; {_AGAIN}"
        )
    value: str = event.value
    value.encode()  # half of a surrogate pair, escaped, is no text
    return value


def _refuse_anchor(event: Any, where: Path) -> None:
    if getattr(event, "anchor", None) is not None:
        raise RunError(
            f"{where}: has an anchor or an alias (& or *), in line {event.start_mark.line + 1}; expected plain values,"
            f" as Marian writes them; {_AGAIN}"
        )


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")
