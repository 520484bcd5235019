"""A folder that appears whole or not at all: filled under a hidden name beside its place, synced, then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.durable import sync_folder
from transduce.errors import DataError, RunError


@contextmanager
def whole_folder(output: Path, mark: str, overwrite: bool | None = None) -> Iterator[Path]:
    """Yield a fresh work folder that becomes `output` if the block ends well, and vanishes if it does not.

    A folder that holds the file `mark` is a complete one, and only such a folder is ever overwritten. Two processes
    that want the same place are kept apart by a lock; what a killed one left is removed. `overwrite` is as in
    `check_free`.
    """
    output = output.absolute()
    work, old = output.with_name(f".{output.name}.preparing"), _replaced(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(work)
    except OSError as error:
        raise RunError(f"{output}: cannot be written: {error.strerror}") from None
    try:
        mend_replaced(output)
        shutil.rmtree(old, ignore_errors=True)
        check_free(output, mark, overwrite)
        _empty(work)
        yield work
        sync_tree(work)
        if output.exists() and any(output.iterdir()):
            os.replace(output, old)
        os.replace(work, output)
        sync_folder(output.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise RunError(f"{output}: no space left on the disk; the unfinished work is removed") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def lock_folder(work: Path, shared: bool = False) -> int:
    """Make the folder, if need be, and hold it for this process until the descriptor given is closed.

    `shared`: together with others that hold it so, such as the shards of one preparation.
    """
    work.mkdir(exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise RunError(f"{work}: another process is at work on this folder; wait for it to end") from None
    return lock


def mend_replaced(output: Path) -> None:
    """Put back what a process had moved aside that was killed between the two renames at the end of `whole_folder`."""
    old = _replaced(output)
    if old.exists() and not output.exists():
        os.replace(old, output)


def _replaced(output: Path) -> Path:
    return output.with_name(f".{output.name}.replaced")


def check_free(output: Path, mark: str, overwrite: bool | None = None) -> None:
    """Refuse a place where something else lies, or a complete folder that is not to be overwritten.

    `overwrite` is the setting of that name; None where the command has none.
    """
    if output.is_dir() and (output / mark).is_file():
        if not overwrite:
            remedy = "remove it first" if overwrite is None else "set overwrite = true"
            raise DataError(f"{output}: already there and complete; choose another output, or {remedy}")
    elif output.is_dir() and any(output.iterdir()):
        raise DataError(f"{output}: a folder with other files in it; choose another output")
    elif output.exists() and not output.is_dir():
        raise DataError(f"{output}: a file; expected the name of a folder to write")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync_tree(folder: Path) -> None:
    """Wait until the disk has everything in a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)
