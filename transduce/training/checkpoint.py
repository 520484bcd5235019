"""The checkpoints of a run: complete or absent, verified before use, the newest good one found by itself.

    RUN/checkpoints/step-00001000/   model.safetensors  optimizer.safetensors  ...  state.json  manifest.json
    RUN/checkpoints/latest           the name of the newest one, for people and scripts

A checkpoint is written into a temporary folder, synced, listed in a manifest, synced and renamed. Only after that does
`latest` move or anything old go. Every function takes the run folder; hold its `RunLock` around those that write.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.durable import (
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
from transduce.errors import RunError
from transduce.training.manifest import (
    MANIFEST,
    Manifest,
    describe,
    find_fault,
    manifest_bytes,
    read_listed,
    read_manifest,
)
from transduce.training.weights import deserialize, serialize
from transduce.untrusted import open_regular, parse_json

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
    """A verified checkpoint, and in `notes` what was passed over to reach it, and why."""

    path: Path
    step: int
    notes: tuple[str, ...]


def save_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot durably, then move `latest` to it.

    The same step already there and undamaged is left as it is: a resumed run passes through the same states again.
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
    """The snapshot in one checkpoint folder; every byte is verified before anything is returned."""
    state = read_state(path)
    manifest = read_manifest(path)
    stems = [name.removesuffix(_TENSORS) for name in manifest.files if name.endswith(_TENSORS)]
    return Snapshot(manifest.step, {stem: read_tensors(path, stem) for stem in stems}, state)


def read_state(path: Path) -> dict[str, Any]:
    """The state in one checkpoint folder, verified, without its tensors."""
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
    """The tensors of one file ("model", say) of a checkpoint folder, verified."""
    name = f"{stem}{_TENSORS}"
    try:
        data = read_listed(path, read_manifest(path), name)
    except RunError as error:
        raise _unusable(path, error) from error
    return deserialize(data, path / name)[0]


def newest_good(folder: Path) -> Found | None:
    """The newest checkpoint that verifies, or None if the run has none yet.

    Having some, of which none is good, is an error: training silently from the start would hide the loss.
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
        for place in (folder, folder / "checkpoints"):
            for path in list(place.iterdir()) if place.is_dir() else []:
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
    """JSON that gives back the same state; Python writes floats so that they return to the bit."""
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
    """The checkpoint folders there are, by step; they may be damaged."""
    checkpoints = folder / "checkpoints"
    with disk_errors(folder, "listing the checkpoints", needed=0, advice=RESUME):
        paths = list(checkpoints.iterdir()) if checkpoints.is_dir() else []
    return {int(match[1]): path for path in paths if (match := _STEP.fullmatch(path.name))}


def _latest(folder: Path) -> str | None:
    """What `latest` says, never trusted: it may be missing, stale or garbage."""
    try:
        with open_regular(folder / "checkpoints" / "latest") as file:
            return file.read(80).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _unusable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path}: {error}. This checkpoint cannot be used; take another one.")
