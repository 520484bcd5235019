"""Finished work as folders that are whole or absent: files, and `facts.json` with their sizes and hashes beside facts.

Written under a temporary name, synced, renamed. A part that a broken disk or copy damaged is found by its hashes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from transduce.data.corpus import file_digest, file_facts
from transduce.data.folders import sync_tree
from transduce.durable import remove, sync_folder, temporary_sibling

FACTS = "facts.json"
Result = TypeVar("Result", contravariant=True)


class PartWriter:
    """A part while it is being written: `add` to its files or put any into `folder`; without `finish` it never was."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, temporary_sibling(path)
        shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier process with our number
        self.folder.mkdir(parents=True)
        self._files: dict[str, IO[bytes]] = {}

    def add(self, name: str, content: bytes) -> None:
        """Append to a file, which is there from the first time on, even if the content is empty."""
        if name not in self._files:
            self._files[name] = open(self.folder / name, "wb")  # noqa: SIM115
        self._files[name].write(content)

    def finish(self, facts: dict[str, Any]) -> None:
        """Make the part appear."""
        for file in self._files.values():
            file.close()
        text = json.dumps({"facts": facts, "files": file_facts(self.folder)}, ensure_ascii=False) + "\n"
        (self.folder / FACTS).write_text(text, encoding="utf-8", newline="\n")
        sync_tree(self.folder)
        os.rename(self.folder, self.path)
        sync_folder(self.path.parent)


class FinishedPart:
    """A finished part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = json.loads((path / FACTS).read_bytes())
        self.facts: dict[str, Any] = found["facts"]
        self.files: dict[str, dict[str, Any]] = found["files"]

    def array(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """A whole file in memory."""
        return np.fromfile(self.path / name, dtype)

    def is_sound(self) -> bool:
        """Whether every file is as it was written."""
        return all(
            (self.path / name).is_file() and file_digest(self.path / name) == facts["sha256"]
            for name, facts in self.files.items()
        )


def missing_parts(paths: Iterable[Path], damaged: list[Path]) -> Iterator[Path]:
    """Those that are not there; what is damaged is removed, and named in `damaged`."""
    for path in paths:
        if path.exists():
            with suppress(ValueError, KeyError, TypeError, OSError):
                if FinishedPart(path).is_sound():
                    continue
            remove(path)
            damaged.append(path)
        yield path


@dataclass(frozen=True)
class WorkFolder:
    """Where the parts of one preparation are."""

    folder: Path

    def examined(self, stretch: int) -> Path:
        return self.folder / "examined" / f"{stretch:06d}"

    def tokenized(self, stretch: int) -> Path:
        return self.folder / "tokenized" / f"{stretch:06d}"

    @property
    def joined(self) -> Path:
        """What only all stretches together can tell: which pairs leave, and all findings so far."""
        return self.folder / "joined"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer"


class Gathering(Protocol[Result]):
    """One part while results are added to it."""

    number: int

    def add(self, result: Result) -> None: ...

    def finish(self) -> None: ...


def gather(results: Iterable[tuple[int, Result]], begin: Callable[[int], Gathering[Result]]) -> None:
    """A part of each run of results with the same number."""
    current: Gathering[Result] | None = None
    for number, result in results:
        if current is not None and current.number != number:
            current.finish()
            current = None
        current = current or begin(number)
        current.add(result)
    if current is not None:
        current.finish()
