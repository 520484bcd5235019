"""Checkpoints of a run: complete or absent, verified before use, the newest good one found by itself.

    RUN/checkpoints/step-00001000/   model.safetensors  optimizer.safetensors  ...  state.json  manifest.json
    RUN/checkpoints/latest           the name of the newest one, for people and scripts

A checkpoint is written into a temporary folder, synced, listed in a manifest, synced and renamed. Only after that does
`latest` move or anything old go. Every function takes the run folder; hold its `RunLock` around those that write.

`manifest.json` lists the other files with their sizes and SHA-256 and is written last. It holds a digest of itself and
must equal, byte for byte, the one way in which we write it: so a change of any bit of it is found too, even in white
space.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from transduce import __version__
from transduce.core.durable import (
    RESUME,
    disk_errors,
    is_temporary,
    remove,
    require_space,
    sync_folder,
    temporary_sibling,
    write_synced,
    write_text,
)
from transduce.core.errors import RunError
from transduce.core.untrusted import open_regular, parse_json, read_small
from transduce.training.weights import deserialize, serialize

MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """Expected size and SHA-256 of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The expected content of a checkpoint folder: `files` by name, beside the manifest itself."""

    step: int
    files: dict[str, FileEntry]


def describe(*parts: bytes | memoryview) -> FileEntry:
    """The manifest entry of a file that consists of these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return FileEntry(sum(len(part) for part in parts), digest.hexdigest())


def manifest_bytes(manifest: Manifest) -> bytes:
    """Serialize `manifest.json`."""
    document = {
        "files": {name: {"sha256": entry.sha256, "size": entry.size} for name, entry in manifest.files.items()},
        "format": _FORMAT,
        "step": manifest.step,
        "versions": {
            "python": platform.python_version(),
            "safetensors": safetensors.__version__,
            "torch": torch.__version__,
            "transduce": __version__,
        },
    }
    return _canonical({**document, "sha256": _self_digest(document)})


def read_manifest(folder: Path) -> Manifest:
    """Read and verify the manifest of a checkpoint folder; a `RunError` begins with the file's name, not its path."""
    try:
        data = read_small(folder / MANIFEST)
    except ValueError as error:
        raise RunError(f"{MANIFEST}: {error}") from None
    except OSError as error:
        raise RunError(f"{MANIFEST}: {_reason(error)}") from error
    try:
        document = parse_json(data)
        stored = document.pop("sha256")
        genuine = _canonical({**document, "sha256": stored}) == data and _self_digest(document) == stored
        if genuine and document["format"] == _FORMAT:
            files = {name: FileEntry(entry["size"], entry["sha256"]) for name, entry in document["files"].items()}
            if type(document["step"]) is int and all(_is_sound(name, entry) for name, entry in files.items()):
                return Manifest(document["step"], files)
            genuine = False
    except (ValueError, LookupError, TypeError, AttributeError):
        genuine = False
    if genuine:
        raise RunError(f"{MANIFEST}: not of format {_FORMAT}; it was written by another version of transduce")
    raise RunError(f"{MANIFEST}: damaged")


def _is_sound(name: str, entry: FileEntry) -> bool:
    """Whether an entry names a file of the folder itself, never a path out of it, with a size and a digest."""
    plain = name != "" and Path(name).name == name and name.isprintable()
    return plain and type(entry.size) is int and entry.size >= 0 and isinstance(entry.sha256, str)


def read_listed(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Read one listed file and check it against the manifest."""
    if name not in manifest.files:
        raise RunError(f"{name}: not part of this checkpoint, which holds {', '.join(sorted(manifest.files))}")
    expected, data = manifest.files[name], b""
    try:
        with open_regular(folder / name) as file:
            problem = _other_size(os.fstat(file.fileno()).st_size, expected)
            if problem is None:
                data = file.read()
                problem = _difference(describe(data), expected)
    except OSError as error:
        raise RunError(f"{name}: {_reason(error)}") from error
    if problem is not None:
        raise RunError(f"{name}: {problem}")
    return data


def find_fault(folder: Path, step: int) -> str | None:
    """Why this is no good checkpoint of `step` ('model.safetensors: SHA-256 differs'), or None if it is one."""
    try:
        manifest = read_manifest(folder)
    except RunError as error:
        return str(error)
    if manifest.step != step:
        return f"{MANIFEST}: belongs to step {manifest.step}"
    for name, expected in manifest.files.items():
        try:
            with open_regular(folder / name) as file:
                problem = _other_size(os.fstat(file.fileno()).st_size, expected)
                if problem is None:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                    problem = _difference(FileEntry(file.tell(), sha256), expected)
        except OSError as error:
            problem = _reason(error)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _other_size(size: int, expected: FileEntry) -> str | None:
    return f"{size:,} bytes, expected {expected.size:,}" if size != expected.size else None


def _difference(found: FileEntry, expected: FileEntry) -> str | None:
    if found.size != expected.size:
        return _other_size(found.size, expected)
    return None if found.sha256 == expected.sha256 else "SHA-256 differs"


def _reason(error: OSError) -> str:
    return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"


def _canonical(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode("utf-8")


def _self_digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(document)).hexdigest()


_STATE = "state.json"
_TENSORS = ".safetensors"
_STEP = re.compile(r"step-(\d{8,})")
_SLACK = 1 << 20  # bytes for state, manifest and folder entries
_HEADER = 512  # bytes of header for a tensor, generously


@dataclass(frozen=True)
class Snapshot:
    """All of a training run at one step: `tensors` by file ("model", "optimizer", ...), `state` as plain JSON."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A verified checkpoint; `notes` say which newer ones were skipped, and why."""

    path: Path
    step: int
    notes: tuple[str, ...]


def save_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot durably, then move `latest` to it.

    An undamaged checkpoint of this step is left as it is: a resumed run passes through the same states again.
    """
    checkpoints = folder / "checkpoints"
    path = checkpoints / f"step-{snapshot.step:08d}"
    needed = _bytes_needed(snapshot)
    with disk_errors(folder, f"saving the checkpoint of step {snapshot.step}", needed, advice=RESUME):
        if not checkpoints.is_dir():
            os.mkdir(checkpoints)
            sync_folder(folder)
        if path.exists() and find_fault(path, snapshot.step) is not None:
            remove(path)
        if not path.exists():
            require_space(checkpoints, needed)
            _write_folder(path, snapshot)
            sync_folder(checkpoints)
        write_text(checkpoints / "latest", f"{path.name}\n")
    return path


def read_checkpoint(path: Path) -> Snapshot:
    """Read the snapshot in one checkpoint folder; every byte is verified before anything is returned."""
    state = read_state(path)
    manifest = read_manifest(path)
    stems = [name.removesuffix(_TENSORS) for name in manifest.files if name.endswith(_TENSORS)]
    return Snapshot(manifest.step, {stem: read_tensors(path, stem) for stem in stems}, state)


def read_state(path: Path) -> dict[str, Any]:
    """Read and verify the state of one checkpoint folder, without its tensors."""
    try:
        state: dict[str, Any] = parse_json(read_listed(path, read_manifest(path), _STATE))
    except RunError as error:
        raise _unusable(path, error) from error
    except ValueError as error:
        raise _unusable(path, RunError(f"{_STATE}: {error}")) from None
    if not isinstance(state, dict):
        raise _unusable(path, RunError(f"{_STATE}: expected names and values"))
    return state


def read_tensors(path: Path, stem: str) -> dict[str, Tensor]:
    """Read and verify the tensors of one file ("model", say) of a checkpoint folder."""
    name = f"{stem}{_TENSORS}"
    try:
        data = read_listed(path, read_manifest(path), name)
    except RunError as error:
        raise _unusable(path, error) from error
    return deserialize(data, path / name)[0]


def newest_good(folder: Path) -> Found | None:
    """The newest checkpoint that verifies, or None if the run has none yet.

    If there are some but none is good, that is an error: training silently from the start would hide the loss.
    """
    skipped: list[str] = []
    for step, path in sorted(step_folders(folder).items(), reverse=True):
        fault = find_fault(path, step)
        if fault is None:
            notes = [f"{reason}; falling back to {path.name}" for reason in skipped]
            if not skipped and _latest(folder) != path.name:
                found = "is missing" if _latest(folder) is None else f"names {_latest(folder)!r}"
                notes.append(f"latest {found}; the newest complete checkpoint is {path.name}")
            return Found(path, step, tuple(notes))
        skipped.append(f"{path.name}: {fault}")
    if skipped:
        raise RunError(
            f"{folder / 'checkpoints'}: none of the {len(skipped)} checkpoints can be used: {'; '.join(skipped)}. "
            "Restore one of them from a copy, or move the folder away to train from the start."
        )
    return None


def prune(folder: Path, keep: Collection[int]) -> None:
    """Delete the checkpoints of all other steps, except the one that `latest` names."""
    latest = _latest(folder)
    with disk_errors(folder, "deleting old checkpoints", needed=0, advice=RESUME):
        for step, path in step_folders(folder).items():
            if step not in keep and path.name != latest:
                remove(path)


def clean_leftovers(folder: Path) -> None:
    """Delete what killed processes left half written, in the run folder and among its checkpoints."""
    with disk_errors(folder, "deleting leftovers of a killed run", needed=0, advice=RESUME):
        for parent in (folder, folder / "checkpoints"):
            for path in list(parent.iterdir()) if parent.is_dir() else []:
                if is_temporary(path):
                    remove(path)


def _write_folder(path: Path, snapshot: Snapshot) -> None:
    """Fill a temporary folder, sync all of it and rename it to `path`; on any error nothing is left."""
    temporary = temporary_sibling(path)
    if temporary.is_dir():
        remove(temporary)  # an earlier process with our id was killed here
    try:
        os.mkdir(temporary)
        state = _state_bytes(snapshot.state, path / _STATE)
        entries = {_STATE: describe(state)}
        write_synced(temporary / _STATE, state)
        for stem, tensors in snapshot.tensors.items():
            name = f"{stem}{_TENSORS}"
            parts = serialize(tensors, {}, path / name)
            entries[name] = describe(*parts)
            write_synced(temporary / name, *parts)
        write_synced(temporary / MANIFEST, manifest_bytes(Manifest(snapshot.step, entries)))
        sync_folder(temporary)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            remove(temporary)
        raise


def _state_bytes(state: dict[str, Any], where: Path) -> bytes:
    """JSON that gives back the same state; Python's floats are bit-identical after a round trip."""
    try:
        text = json.dumps(state, sort_keys=True, indent=1, allow_nan=False)
    except ValueError as error:
        raise RunError(f"{where}: NaN or infinite number in the training state; not saved ({error})") from error
    if json.loads(text) != state:
        raise TypeError("checkpoint state must be plain JSON: lists (no tuples), dicts with string keys")
    return f"{text}\n".encode()


def _bytes_needed(snapshot: Snapshot) -> int:
    tensors = [tensor for group in snapshot.tensors.values() for tensor in group.values()]
    return _SLACK + sum(tensor.numel() * tensor.element_size() + _HEADER for tensor in tensors)


def step_folders(folder: Path) -> dict[int, Path]:
    """The checkpoint folders by step; they may be damaged."""
    checkpoints = folder / "checkpoints"
    with disk_errors(folder, "listing the checkpoints", needed=0, advice=RESUME):
        paths = list(checkpoints.iterdir()) if checkpoints.is_dir() else []
    return {int(match[1]): path for path in paths if (match := _STEP.fullmatch(path.name))}


def _latest(folder: Path) -> str | None:
    """The content of `latest`, never trusted: it may be missing, stale or garbage."""
    try:
        with open_regular(folder / "checkpoints" / "latest") as file:
            return file.read(80).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _unusable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path}: {error}. This checkpoint cannot be used; take another one.")
