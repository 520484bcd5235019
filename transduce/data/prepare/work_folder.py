"""The folder in which a preparation keeps what is finished: held, begun or gone on with, by one process or by shards.

`plan.json` says what was asked for, which files there were and where they are cut. When the same is asked for again, of
the same files, work goes on; when something was changed, it is told what, and never mixed.

Finished work as folders that are whole or absent: files, and `facts.json` with their sizes and hashes beside facts.

Written under a temporary name, synced, renamed. A part that a broken disk or copy damaged is found by its hashes.
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
from transduce.data.formats.inventory import Contents, LineRange, Shard, cut, index_splits
from transduce.data.formats.parallel import ParallelText

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


PLAN, DONE = "plan.json", "assembled"
Splits = dict[str, tuple[ParallelText, ...]]


@dataclass(frozen=True)
class PreparationPlan:
    """What is to be done, in which folder: the corpora, and the stretches they are cut into."""

    work: WorkFolder
    corpora: list[Contents]
    stretches: list[LineRange]
    shards: int

    def share(self, shard: Shard) -> list[LineRange]:
        """The stretches of one shard."""
        return [stretch for stretch in self.stretches if stretch.shard == shard.number]

    def unfinished(self, place: Callable[[int], Path], stretches: Sequence[LineRange]) -> list[LineRange]:
        """Those of some stretches that have no part yet, or a damaged one; what is there is read and compared."""
        damaged: list[Path] = []
        missing = {*missing_parts((place(stretch.number) for stretch in stretches), damaged)}
        for path in damaged:
            say(f"{path}: damaged; it is done again")
        left = [stretch for stretch in stretches if place(stretch.number) in missing]
        if stretches and len(left) < len(stretches):
            what = place(0).parent.name
            say(f"{self.work.folder}: going on: {len(stretches) - len(left)} of {len(stretches)} parts are {what}")
        return left

    def lacks(self, path: Path) -> bool:
        """Whether a part that there is once is not there; a damaged one is removed."""
        damaged: list[Path] = []
        missing = [*missing_parts([path], damaged)]
        for part in damaged:
            say(f"{part}: damaged; it is done again")
        return bool(missing)

    def behind(self, place: Callable[[int], Path]) -> list[int]:
        """Numbers of the shards that have not all their parts yet."""
        return sorted({stretch.shard for stretch in self.stretches if not place(stretch.number).exists()})

    def check_inputs(self) -> None:
        """Refuse to go on with files that were changed after they were counted."""
        changed = _changed_file(self.corpora)
        if changed:
            raise RunError(f"{self.work.folder}: {changed} while it was being prepared; give the command again")


# -- holding -----------------------------------------------------------------------------------------------------------


@contextmanager
def hold_work(output: Path, shard: Shard | None) -> Iterator[WorkFolder]:
    """The work folder beside `output`, made if need be: of this process alone, or of one shard among others."""
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
                f"{output}: no space left on the disk; make room, then give the same command again: what is finished "
                f"is kept in {folder}"
            ) from None


def _lock_shard(path: Path) -> int:
    lock = lock_file(path)
    if lock is None:
        raise RunError(f"{path}: another process is at work on this shard; wait for it to end")
    return lock


@contextmanager
def one_at_a_time(work: WorkFolder) -> Iterator[None]:
    """For what one shard does for all: the others wait until it is done, or until its process is gone."""
    lock = lock_file(work.folder / "step.lock", wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


# -- beginning or going on ---------------------------------------------------------------------------------------------


def begin(work: WorkFolder, splits: Splits, settings: dict[str, Any], shards: int) -> PreparationPlan:
    """The plan in the folder if it is for the same work, else a new one."""
    wanted = {**settings, "shards": shards}
    path = work.folder / PLAN
    with one_at_a_time(work):
        if path.exists():
            found = json.loads(path.read_bytes())
            corpora = _contents(splits, found["files"]) if found["settings"] == wanted else []
            why = _setting_that_differs(found["settings"], wanted) or _other_files(splits, corpora)
            why = why or _changed_file(corpora)
            if not why:
                return PreparationPlan(work, corpora, cut(corpora, shards), shards)
            if shards > 1 or found["settings"]["shards"] > 1:
                raise RunError(
                    f"{work.folder}: {why}; give the settings and files that the shards were begun with, or delete "
                    "that folder to begin anew"
                )
            say(f"{work.folder}: {why}: beginning anew")
        _clear(work.folder)  # without a plan nothing counts
        corpora = index_splits(splits)
        files = [contents.as_list() for contents in corpora]
        write_text(path, json.dumps({"settings": wanted, "files": files}, ensure_ascii=False) + "\n")
    return PreparationPlan(work, corpora, cut(corpora, shards), shards)


def _contents(splits: Splits, files: list[Any]) -> list[Contents]:
    texts = [(split, text) for split, texts in splits.items() for text in texts]
    return [Contents.from_list(split, text, found) for (split, text), found in zip(texts, files, strict=True)]


def _setting_that_differs(before: dict[str, Any], now: dict[str, Any]) -> str:
    old, new = dict(_flat(before)), dict(_flat(now))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            return f"was begun with {key} = {old.get(key)!r}, and now it is {new.get(key)!r}"
    return ""


def _flat(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        yield name, tree
    else:
        for key, value in items:
            yield from _flat(value, f"{name}.{key}" if name else str(key))


def _other_files(splits: Splits, corpora: Sequence[Contents]) -> str:
    for contents in corpora:
        names = [files.names for files in contents.files]
        links = [files.links.path for files in contents.files if files.links]
        if names != contents.text.files() or links != contents.text.alignment_files():
            return f"{contents.split}, {contents.text.label}: its pattern matches other files than before"
    return ""


def _changed_file(corpora: Sequence[Contents]) -> str:
    indexes = (index for contents in corpora for files in contents.files for index in files.all)
    return next((f"{index.path} was changed" for index in indexes if not index.is_unchanged()), "")


def _clear(folder: Path) -> None:
    """Remove the plan and then all else but the locks, which are held, and the word that all is done."""
    (folder / PLAN).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".lock" and path.name != DONE:
            path.unlink()


def mark_done(work: WorkFolder, manifest: Path) -> None:
    """Say that the corpus with this manifest is all there is to make; it may still have to be moved to its place."""
    write_text(work.folder / DONE, file_digest(manifest) + "\n")


def is_done(work: WorkFolder, manifest: Path) -> bool:
    """Whether the corpus with this manifest is what was made here."""
    try:
        return (work.folder / DONE).read_text(encoding="utf-8") == file_digest(manifest) + "\n"
    except FileNotFoundError:
        return False


def discard(work: WorkFolder) -> None:
    """Remove the folder, the word that all is done last."""
    if (work.folder / DONE).exists():
        _clear(work.folder)
    shutil.rmtree(work.folder, ignore_errors=True)
