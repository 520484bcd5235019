"""Atomic, durable writes of files and folders: complete or absent, even after a kill or a power failure.

Everything is written under a temporary name beside its destination, synced to disk, and only then renamed.
A name that ends in `.tmp-<process id>` is therefore always the leftover of an unfinished write.
Operating system errors become a `RunError` that says which folder, why, and what to do.

A folder is filled under a hidden name beside its destination, synced, then renamed.
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
FREE_SPACE = "What was there before is untouched. Free some space there, then run the same command again."
RESUME = "Earlier checkpoints are untouched. Free some space there, then run the same command again to resume."
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_IN_WORDS = {**_FULL, errno.EBADF: "it is closed"}


def reason_of(error: OSError) -> str:
    """Describe why the operating system failed; a full disk and a closed stream are named as such."""
    return _IN_WORDS.get(error.errno or 0) or error.strerror or str(error)


def unwritable(path: Path, error: OSError) -> str:
    """Describe why a named output file cannot be written, and what to do."""
    reason, folder = reason_of(error), path.parent
    if error.errno in _FULL:
        return reason
    if not folder.exists():
        return f"{reason}; the folder {folder} does not exist: create it first, or choose another path"
    return f"{reason}; choose another path" if folder.is_dir() else f"{reason}; {folder} is a file, not a folder"


def temporary_sibling(path: Path) -> Path:
    """Return the temporary name of `path`, on the same file system."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def is_temporary(path: Path) -> bool:
    """Whether the name is that of an unfinished write."""
    return _TEMPORARY.fullmatch(path.name) is not None


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable; syncing a file alone does not sync its directory entry."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write the parts in order and sync them to disk. Not atomic: for temporary names."""
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, *parts: bytes | memoryview) -> None:
    """Write the parts to `path` atomically: readers, even after a crash, see the old content or the new."""
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
    """Write UTF-8 text to `path` atomically; line endings are kept as given."""
    write_bytes(path, text.encode("utf-8"))


def remove(path: Path) -> None:
    """Delete a file or folder; a folder is renamed first, so a kill never leaves half of it looking complete."""
    if path.is_dir() and not path.is_symlink():
        doomed = path
        if not is_temporary(path):
            doomed = temporary_sibling(path)
            if doomed.is_dir():
                shutil.rmtree(doomed)  # left by a killed process with the same id
            os.rename(path, doomed)
            sync_folder(path.parent)
        shutil.rmtree(doomed)
    else:
        os.unlink(path)


def require_space(folder: Path, needed: int) -> None:
    """Raise the full-disk error before anything is written, if `needed` bytes do not fit."""
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def disk_errors(folder: Path, doing: str, needed: int, advice: str = FREE_SPACE) -> Iterator[None]:
    """Turn an `OSError` into a `RunError`: `folder` is named to the user, `doing` is what failed, `needed` in bytes.

    `advice` ends the message when the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise RunError(
                f"{folder}: {_FULL[error.errno]} ({doing}): {needed:,} bytes needed, {_free_bytes(folder):,} free. "
                f"{advice}"
            ) from error
        filename = f": {error.filename}" if error.filename else ""
        raise RunError(
            f"{folder}: {doing} failed: {error.strerror or error}{filename}. {_remedy(doing, error)}"
        ) from error


def _remedy(doing: str, error: OSError) -> str:
    """Say what to do when a folder cannot be made or an existing one cannot be written."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "A file has the name of the folder to write: choose another folder, or rename that file."
    if doing.startswith("making"):
        return "The folder cannot be created there: choose another path, one that you may write to."
    return "Check that the folder still exists and can be written to, then run the same command again."


def _free_bytes(folder: Path) -> int:
    """Free bytes on the disk of `folder`, even if the folder itself is gone."""
    for ancestor in (folder, *folder.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(ancestor).free
    return 0


@contextmanager
def whole_folder(output: Path, mark: str, overwrite: bool | None = None) -> Iterator[Path]:
    """Yield a fresh work folder that becomes `output` if the block succeeds, and is removed if it fails.

    A folder that contains the file `mark` is complete, and only such a folder is ever overwritten. A lock keeps two
    processes with the same output apart; leftovers of a killed process are removed. `overwrite` is as in `check_free`.
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
        raise RunError(f"{output}: no space left on the disk; the unfinished output was removed") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def lock_folder(work: Path, shared: bool = False) -> int:
    """Create the folder if needed, and lock it for this process until the returned descriptor is closed.

    `shared`: a lock that several processes may hold, such as the shards of one preparation.
    """
    work.mkdir(exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    if not lock_open(lock, shared=shared):
        raise RunError(f"{work}: another process is using this folder; wait for it to end")
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
    """Restore the old folder if a process was killed between the two renames at the end of `whole_folder`."""
    old = _replaced(output)
    if old.exists() and not output.exists():
        os.replace(old, output)


def _replaced(output: Path) -> Path:
    return output.with_name(f".{output.name}.replaced")


def check_free(output: Path, mark: str, overwrite: bool | None = None) -> None:
    """Refuse an output that is occupied: a complete folder without `overwrite`, other files, or a file.

    `overwrite` is the setting of that name; None for commands without one.
    """
    if output.is_dir() and (output / mark).is_file():
        if not overwrite:
            remedy = "remove it first" if overwrite is None else "set overwrite = true"
            raise DataError(f"{output}: already exists and is complete; choose another output, or {remedy}")
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
    """Sync every file and folder below `folder` to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)
