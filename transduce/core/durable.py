"""Files and folders that are either wholly there or not there, whenever the process is killed or the power fails.

Everything is written under a temporary name beside its place, synced to the disk, and only then renamed into place.
A name that ends in `.tmp-<process id>` is therefore never anything but the leftover of a write that did not finish.
Errors of the operating system become a `RunError` that says which folder, why, and what to do.

A folder that appears whole or not at all: filled under a hidden name beside its place, synced, then renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transduce.core.errors import DataError, RunError

_TEMPORARY = re.compile(r".+\.tmp-\d+")
ROOM = "What was there before is untouched. Make room there, then run the same command again."
RESUME = "Earlier checkpoints are untouched. Make room there, then run the same command again to resume."
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_IN_WORDS = {**_FULL, errno.EBADF: "it is closed"}


def reason_of(error: OSError) -> str:
    """Why the operating system refused, in words: a full disk and a closed stream are called so."""
    return _IN_WORDS.get(error.errno or 0) or error.strerror or str(error)


def unwritable(path: Path, error: OSError) -> str:
    """Why a file cannot be written, and what to do: of an output that somebody named."""
    reason, folder = reason_of(error), path.parent
    if error.errno in _FULL:
        return reason
    if not folder.exists():
        return f"{reason}; the folder {folder} is not there: make it first, or choose another place"
    return f"{reason}; choose another place" if folder.is_dir() else f"{reason}; {folder} is a file, not a folder"


def temporary_sibling(path: Path) -> Path:
    """The name under which `path` is written before it is renamed, on the same file system."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def is_temporary(path: Path) -> bool:
    """Whether the name says that this was left by a write that did not finish."""
    return _TEMPORARY.fullmatch(path.name) is not None


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable; syncing a file alone does not save its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write the parts one after the other and wait until the disk has them. Not atomic: for temporary names."""
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, *parts: bytes | memoryview) -> None:
    """Put the parts into `path`: a reader, now or after a crash, sees the old content or the new, whole."""
    temporary = temporary_sibling(path)
    with disk_errors(path.parent, f"writing {path.name}", sum(len(part) for part in parts)):
        try:
            write_synced(temporary, *parts)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Put UTF-8 text into `path` atomically; line ends are written as they are given."""
    write_bytes(path, text.encode("utf-8"))


def remove(path: Path) -> None:
    """Delete a file or folder; a folder first loses its name, so a kill never leaves half of it looking whole."""
    if path.is_dir() and not path.is_symlink():
        doomed = path
        if not is_temporary(path):
            doomed = temporary_sibling(path)
            if doomed.is_dir():
                shutil.rmtree(doomed)  # an earlier process with our id was killed here
            os.rename(path, doomed)
            sync_folder(path.parent)
        shutil.rmtree(doomed)
    else:
        os.unlink(path)


def require_space(folder: Path, needed: int) -> None:
    """Raise the error of a full disk before anything is written, if `needed` bytes cannot fit."""
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def disk_errors(folder: Path, doing: str, needed: int, advice: str = ROOM) -> Iterator[None]:
    """Turn an `OSError` into a `RunError`: `folder` is what the user knows, `doing` what failed, `needed` in bytes.

    `advice` ends the text where the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise RunError(
                f"{folder}: {_FULL[error.errno]} ({doing}): {needed:,} bytes needed, {_free_bytes(folder):,} free. "
                f"{advice}"
            ) from error
        place = f": {error.filename}" if error.filename else ""
        raise RunError(
            f"{folder}: {doing} failed: {error.strerror or error}{place}. {_remedy(doing, error)}"
        ) from error


def _remedy(doing: str, error: OSError) -> str:
    """What to do where a folder could not be made, or something not be written into one that was there."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "A file stands where a folder is to be: choose another folder, or give that file another name."
    if doing.startswith("making"):
        return "No folder can be made there: choose another place, one that you may write to."
    return "Check that the folder still exists and can be written to, then run the same command again."


def _free_bytes(folder: Path) -> int:
    """Free bytes on the disk that holds `folder`, even if the folder itself is gone."""
    for place in (folder, *folder.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


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
    if not lock_open(lock, shared=shared):
        raise RunError(f"{work}: another process is at work on this folder; wait for it to end")
    return lock


def lock_file(path: Path, wait: bool = False) -> int | None:
    """Make the file, if need be, and hold it alone until the descriptor given is closed; None where another has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    return lock if lock_open(lock, wait=wait) else None


def lock_open(descriptor: int, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file or folder until its descriptor is closed or its process ends.

    False where another process holds it, unless we `wait` for that one; the descriptor is closed then.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return False
    except BaseException:
        os.close(descriptor)
        raise
    return True


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
