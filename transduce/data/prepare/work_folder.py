"""The work folder of a preparation: finished parts, a plan, and locks for one process or several shards.

`plan.json` has the settings, the input files and their line ranges. The same settings and files resume the work; if
anything changed, an error says what, and results are never mixed.

Parts are folders that are complete or absent: files, and `facts.json` with their sizes and hashes beside other facts.
They are written under a temporary name, synced, and renamed. A part damaged by a disk or a copy is found by its hashes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from transduce.core.durable import lock_file, lock_folder, remove, sync_folder, sync_tree, temporary_sibling, write_text
from transduce.core.errors import RunError
from transduce.core.progress import say
from transduce.data.corpus import file_digest, file_facts
from transduce.data.formats.inventory import IndexedCorpus, LineRange, Shard, cut, index_splits
from transduce.data.formats.parallel import ParallelText

FACTS = "facts.json"
Result = TypeVar("Result", contravariant=True)


class PartWriter:
    """Writes a part: `add` to its files, or put any into `folder`; without `finish` it is discarded."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, temporary_sibling(path)
        shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier process with the same id
        self.folder.mkdir(parents=True)
        self._files: dict[str, IO[bytes]] = {}

    def add(self, name: str, content: bytes) -> None:
        """Append to a file, which exists from the first call on, even if the content is empty."""
        if name not in self._files:
            self._files[name] = open(self.folder / name, "wb")  # noqa: SIM115
        self._files[name].write(content)

    def finish(self, facts: dict[str, Any]) -> None:
        """Complete the part: write its facts, sync and rename it."""
        for file in self._files.values():
            file.close()
        text = json.dumps({"facts": facts, "files": file_facts(self.folder)}, ensure_ascii=False) + "\n"
        (self.folder / FACTS).write_text(text, encoding="utf-8", newline="\n")
        sync_tree(self.folder)
        os.rename(self.folder, self.path)
        sync_folder(self.path.parent)


class FinishedPart:
    """Reads a finished part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = json.loads((path / FACTS).read_bytes())
        self.facts: dict[str, Any] = content["facts"]
        self.files: dict[str, dict[str, Any]] = content["files"]

    def array(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """Load a file into memory."""
        return np.fromfile(self.path / name, dtype)

    def is_sound(self) -> bool:
        """Whether every file has its recorded hash."""
        return all(
            (self.path / name).is_file() and file_digest(self.path / name) == facts["sha256"]
            for name, facts in self.files.items()
        )


def missing_parts(paths: Iterable[Path], damaged: list[Path]) -> Iterator[Path]:
    """Yield the parts that are missing; damaged ones are removed, and listed in `damaged`."""
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
    """The paths of all parts of one preparation."""

    folder: Path

    def examined(self, line_range: int) -> Path:
        return self.folder / "examined" / f"{line_range:06d}"

    def tokenized(self, line_range: int) -> Path:
        return self.folder / "tokenized" / f"{line_range:06d}"

    @property
    def joined(self) -> Path:
        """The comparisons across all line ranges: which pairs are dropped, and all findings so far."""
        return self.folder / "joined"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer"


class Gathering(Protocol[Result]):
    """A part that collects results."""

    number: int

    def add(self, result: Result) -> None: ...

    def finish(self) -> None: ...


def gather(results: Iterable[tuple[int, Result]], begin: Callable[[int], Gathering[Result]]) -> None:
    """Make a part of each run of results with the same number."""
    current: Gathering[Result] | None = None
    for number, result in results:
        if current is not None and current.number != number:
            current.finish()
            current = None
        current = current or begin(number)
        current.add(result)
    if current is not None:
        current.finish()


PLAN, DONE = "plan.json", "assembled"
Splits = dict[str, tuple[ParallelText, ...]]


@dataclass(frozen=True)
class PreparationPlan:
    """The plan of a preparation: its work folder, the corpora, and their line ranges."""

    work: WorkFolder
    corpora: list[IndexedCorpus]
    line_ranges: list[LineRange]
    shards: int

    def share(self, shard: Shard) -> list[LineRange]:
        """The line ranges of one shard."""
        return [line_range for line_range in self.line_ranges if line_range.shard == shard.number]

    def unfinished(self, part_path: Callable[[int], Path], line_ranges: Sequence[LineRange]) -> list[LineRange]:
        """The line ranges whose part is missing or damaged; existing parts are read and verified."""
        damaged: list[Path] = []
        missing = {*missing_parts((part_path(line_range.number) for line_range in line_ranges), damaged)}
        for path in damaged:
            say(f"{path}: damaged; redoing it")
        unfinished = [line_range for line_range in line_ranges if part_path(line_range.number) in missing]
        if line_ranges and len(unfinished) < len(line_ranges):
            what = part_path(0).parent.name
            done, total = len(line_ranges) - len(unfinished), len(line_ranges)
            say(f"{self.work.folder}: resuming: {done} of {total} parts are {what}")
        return unfinished

    def lacks(self, path: Path) -> bool:
        """Whether a single part is missing; a damaged one is removed."""
        damaged: list[Path] = []
        missing = [*missing_parts([path], damaged)]
        for part in damaged:
            say(f"{part}: damaged; redoing it")
        return bool(missing)

    def behind(self, part_path: Callable[[int], Path]) -> list[int]:
        """Numbers of the shards with missing parts."""
        return sorted(
            {line_range.shard for line_range in self.line_ranges if not part_path(line_range.number).exists()}
        )

    def check_inputs(self) -> None:
        """Refuse input files that changed since they were counted."""
        changed = _changed_file(self.corpora)
        if changed:
            raise RunError(f"{self.work.folder}: {changed} while it was being prepared; give the command again")


# -- holding -----------------------------------------------------------------------------------------------------------


@contextmanager
def hold_work(output: Path, shard: Shard | None) -> Iterator[WorkFolder]:
    """Create and lock the work folder beside `output`: for this process alone, or for one shard among others."""
    folder = output.with_name(f".{output.name}.parts")
    with ExitStack() as locks:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            locks.callback(os.close, lock_folder(folder, shared=shard is not None))
            if shard is not None:
                locks.callback(os.close, _lock_shard(folder / f"shard-{shard.number}.lock"))
        except OSError as error:
            raise RunError(f"{output}: cannot be written: {error.strerror}") from None
        try:
            yield WorkFolder(folder)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise RunError(
                f"{output}: no space left on the disk; free some space, then run the same command again: finished work "
                f"is kept in {folder}"
            ) from None


def _lock_shard(path: Path) -> int:
    lock = lock_file(path)
    if lock is None:
        raise RunError(f"{path}: another process is using this shard; wait for it to end")
    return lock


@contextmanager
def one_at_a_time(work: WorkFolder) -> Iterator[None]:
    """Lock for steps that one shard does for all: others wait until it is done, or its process is gone."""
    lock = lock_file(work.folder / "step.lock", wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


# -- starting or resuming ----------------------------------------------------------------------------------------------


def begin(work: WorkFolder, splits: Splits, settings: dict[str, Any], shards: int) -> PreparationPlan:
    """Open the plan in the folder if it matches, else make a new one."""
    requested = {**settings, "shards": shards}
    path = work.folder / PLAN
    with one_at_a_time(work):
        if path.exists():
            stored = json.loads(path.read_bytes())
            corpora = _contents(splits, stored["files"]) if stored["settings"] == requested else []
            difference = _setting_that_differs(stored["settings"], requested) or _other_files(splits, corpora)
            difference = difference or _changed_file(corpora)
            if not difference:
                return PreparationPlan(work, corpora, cut(corpora, shards), shards)
            if shards > 1 or stored["settings"]["shards"] > 1:
                raise RunError(
                    f"{work.folder}: {difference}; give the settings and files that the shards were started with, or"
                    " delete that folder to start over"
                )
            say(f"{work.folder}: {difference}: starting over")
        _clear(work.folder)  # without a plan nothing is valid
        corpora = index_splits(splits)
        files = [contents.as_list() for contents in corpora]
        write_text(path, json.dumps({"settings": requested, "files": files}, ensure_ascii=False) + "\n")
    return PreparationPlan(work, corpora, cut(corpora, shards), shards)


def _contents(splits: Splits, files: list[Any]) -> list[IndexedCorpus]:
    texts = [(split, text) for split, texts in splits.items() for text in texts]
    return [IndexedCorpus.from_list(split, text, found) for (split, text), found in zip(texts, files, strict=True)]


def _setting_that_differs(before: dict[str, Any], now: dict[str, Any]) -> str:
    old, new = dict(_flat(before)), dict(_flat(now))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            return f"was started with {key} = {old.get(key)!r}, and now it is {new.get(key)!r}"
    return ""


def _flat(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        yield name, tree
    else:
        for key, value in items:
            yield from _flat(value, f"{name}.{key}" if name else str(key))


def _other_files(splits: Splits, corpora: Sequence[IndexedCorpus]) -> str:
    for contents in corpora:
        names = [files.names for files in contents.files]
        links = [files.links.path for files in contents.files if files.links]
        if names != contents.text.files() or links != contents.text.alignment_files():
            return f"{contents.split}, {contents.text.label}: its pattern matches other files than before"
    return ""


def _changed_file(corpora: Sequence[IndexedCorpus]) -> str:
    indexes = (index for contents in corpora for files in contents.files for index in files.all)
    return next((f"{index.path} was changed" for index in indexes if not index.is_unchanged()), "")


def _clear(folder: Path) -> None:
    """Remove the plan, then everything except the locks, which are held, and the completion mark."""
    (folder / PLAN).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".lock" and path.name != DONE:
            path.unlink()


def mark_done(work: WorkFolder, manifest: Path) -> None:
    """Mark the corpus with this manifest as complete; it may still have to be moved to its destination."""
    write_text(work.folder / DONE, file_digest(manifest) + "\n")


def is_done(work: WorkFolder, manifest: Path) -> bool:
    """Whether the corpus with this manifest was completed here."""
    try:
        return (work.folder / DONE).read_text(encoding="utf-8") == file_digest(manifest) + "\n"
    except FileNotFoundError:
        return False


def discard(work: WorkFolder) -> None:
    """Remove the folder, the completion mark last."""
    if (work.folder / DONE).exists():
        _clear(work.folder)
    shutil.rmtree(work.folder, ignore_errors=True)
