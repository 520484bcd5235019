"""The list of a checkpoint's files with their sizes and SHA-256, and the verdict on whether they are still so.

`manifest.json` is written last. It holds a digest of itself and must equal, byte for byte, the one way in which we
write it: so a change of any bit of it is found too, even in white space.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from transduce import __version__
from transduce.errors import RunError
from transduce.untrusted import open_regular, parse_json, read_small

MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """What one file must be."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint folder must hold: `files` by name, beside the manifest itself."""

    step: int
    files: dict[str, FileEntry]


def describe(*parts: bytes | memoryview) -> FileEntry:
    """The entry of a file that consists of these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return FileEntry(sum(len(part) for part in parts), digest.hexdigest())


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of `manifest.json`."""
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
    """The verified manifest of a checkpoint folder; the `RunError` begins with the file's name, not its path."""
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
    """Whether it is a file of the folder itself, never a path out of it, with a size and a digest."""
    plain = name != "" and Path(name).name == name and name.isprintable()
    return plain and type(entry.size) is int and entry.size >= 0 and isinstance(entry.sha256, str)


def read_listed(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The content of one listed file, after it was found to be what the manifest says."""
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
