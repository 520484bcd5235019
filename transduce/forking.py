"""A lock that is free in a forked child, whoever held it in the parent: threads are not copied by a fork, locks are.

Python renews its own locks in a child and no others. The C++ core does the same for its locks (native/pool.h).
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkLock:
    """As `threading.Lock` in a `with` statement, and free in every forked child.

    A thread of the parent may have been inside at the fork, with its work half done. `process` tells a user of the lock
    that it is in another process than before, where that half is to be thrown away.
    """

    def __init__(self) -> None:
        self.renew()
        _ALL.add(self)

    def renew(self) -> None:
        """Begin anew, in a process in which no other thread runs yet."""
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
