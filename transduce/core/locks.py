"""Locks: one that is free in a forked child, and one on a run folder that ends with its holder.

A fork copies locks but no threads, and Python resets only its own locks in the child. The C++ core resets its own
likewise (engines/native/src/pool.h).
"""

from __future__ import annotations

import os
import platform
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType

from transduce.core.durable import RESUME, disk_errors, lock_file
from transduce.core.errors import RunError


class ForkLock:
    """A `threading.Lock` for `with` statements that is free in every forked child.

    A thread of the parent may have held it at the fork, with its work half done. `process` tells a user of the lock
    that it now runs in another process, where half-done work must be discarded.
    """

    def __init__(self) -> None:
        self.renew()
        _ALL.add(self)

    def renew(self) -> None:
        """Reset the lock, in a process where no other thread runs yet."""
        self._lock = threading.Lock()
        self.process = os.getpid()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


_ALL: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_ALL):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class RunLock:
    """`with RunLock(folder): ...` locks the existing run folder for this process; a second holder is an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
        with disk_errors(self.folder, "locking the run folder", needed=4096, advice=RESUME):
            path = self.folder / ".lock"
            descriptor = lock_file(path)
            if descriptor is None:
                holder = path.read_text(encoding="utf-8", errors="replace")[:1000].strip()
                raise RunError(
                    f"{self.folder} is being trained by {holder or 'another process'}; "
                    "wait for it, or choose another folder"
                )
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _introduction().encode("utf-8"))
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        # A forked child shares the lock: a data worker that outlives a killed trainer would keep the folder locked.
        os.register_at_fork(after_in_child=self._close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()  # the file stays: deleting it would let two processes lock two files of the same name

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _introduction() -> str:
    return f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')} on {platform.node()}\n"
