"""Processes: their ranks, stop signals, locks across forks, cores and memory, and a map over workers.

`Launch` is the rank that torchrun passes through the environment. torch is imported only after a failure in a group,
to find out which process reports it.

`StopRequest`: SIGTERM and Ctrl-C request a stop at the next step; a second signal aborts at once. Not so in a group of
processes: a cluster sends its signals to them and to their launcher, which sends them on.

`ForkLock` is free in a forked child: a fork copies locks but no threads, and Python resets only its own locks in the
child. The C++ core resets its own likewise (engines/native/src/pool.h).

`ordered_map` applies a function to a stream of items in several processes, with only a few items in flight.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import re
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from transduce.core.durable import RESUME, disk_errors, lock_file
from transduce.core.errors import RunError

LIFE = "TRANSDUCE_LIFE"  # the group's name once it has met: a new one after every restart


@dataclass(frozen=True)
class Launch:
    """The rank of this process: `rank` of `size` in all, `local_rank` of `local_size` here; 0 of 1 without torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """Read torchrun's variables; one process where any is missing: clusters set some for other purposes."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(environment.get(name) for name in names):
            return cls()
        return cls(*(int(environment[name]) for name in names[:4]))


def open_closed_streams() -> None:
    """Replace standard streams that were closed, whose descriptors the next opened file would otherwise take.

    Errors written there are lost. Other reads and writes fail as if the stream were still closed.
    """
    modes = {"stdin": ("r", os.O_WRONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}
    for name, (mode, flags) in modes.items():
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


def leave(code: int) -> None:
    """End this process immediately if it is one of a group.

    Threads of the transport may still need Python, which would abort them at its normal exit.
    """
    if Launch.of(os.environ).size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def first_to_tell() -> bool:
    """Whether this process is the first of its group to report an error; errors of the others usually follow from it.

    They meet in torchrun's own store, which outlives them; without it every process reports.
    """
    if Launch.of(os.environ).size == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            timeout=timedelta(seconds=10),
            wait_for_workers=False,
        )
        life = os.environ.get(LIFE) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return bool(store.add(f"transduce/told/{life}", 1) == 1)
    except RuntimeError:
        return True


_ABORTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class StopRequest:
    """`with StopRequest() as stop: ... if stop.signal: save and leave`. Only the main thread can catch signals."""

    def __init__(self, promise: str = "saving after this step", speaks: bool = True, aborts: bool = True) -> None:
        self.promise = promise  # what the signal's sender is told on stderr
        self.speaks, self.aborts = speaks, aborts
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.aborts:  # the next signal acts as before; one that a background shell ignores aborts too
            for handled, before in self._before.items():
                signal.signal(handled, _ABORTS[handled] if before is signal.SIG_IGN else before)
        again, self.signal = self.signal is not None, signal.Signals(number)
        # Not print: where the signal interrupts a print to the same stream, Python raises instead of printing.
        if self.speaks and not again:
            os.write(2, f"\n{self.signal.name}: {self.promise}{'; once more aborts' * self.aborts}\n".encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


Item = TypeVar("Item")
Result = TypeVar("Result")
WORTH_PROCESSES = 8  # with fewer items, starting processes takes longer than the work
SAFE_PATH = "PYTHONSAFEPATH"
_starting = threading.Lock()


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, worth: int = WORTH_PROCESSES
) -> Generator[Result, None, None]:
    """Yield `function(item)` for each item, in order; `workers` processes, 0 for one per core.

    Fewer than `worth` items are done in this process.
    """
    workers = workers or usable_cores()
    stream = iter(items)
    head = list(islice(stream, worth))
    if workers == 1 or len(head) < worth:
        yield from map(function, chain(head, stream))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by the caller's threads
    with _safe_path():
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    pending: deque[Future[Result]] = deque()
    try:
        for item in chain(head, stream):
            with _safe_path():
                pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            "a worker process died: it was killed, perhaps for lack of memory (set workers lower), or the program that "
            'called transduce does so outside `if __name__ == "__main__":` (workers = 1 needs no such line)'
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep processes started in the block from importing from the current folder, whose modules may have any name.

    `multiprocessing` starts them with `python -c`, which would; they receive this process's import path afterwards.
    """
    with _starting:
        before = os.environ.get(SAFE_PATH)
        os.environ[SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[SAFE_PATH]
            else:
                os.environ[SAFE_PATH] = before


def _start_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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


def usable_cores(group_folder: Path = Path("/sys/fs/cgroup"), own_group: Path = Path("/proc/self/cgroup")) -> int:
    """Count the cores available to this process, at most the CPU quota of its container (cgroup), rounded up."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return min([cores, *(max(1, math.ceil(quota)) for quota in _cpu_quotas(group_folder, own_group))])


def _cpu_quotas(group_folder: Path, own_group: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of this process's cgroup and all its parents, of version 2, then of version 1."""
    group = Path("/")
    with suppress(OSError):
        lines = own_group.read_text(encoding="utf-8").split("\n")
        group = next((Path(line.removeprefix("0::")) for line in lines if line.startswith("0::")), group)
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max 100000" where there is no quota
            quota, period = (group_folder / str(folder).lstrip("/") / "cpu.max").read_text(encoding="utf-8").split()
            yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        first = group_folder / "cpu"
        quota = first.joinpath("cpu.cfs_quota_us").read_text(encoding="utf-8")
        if int(quota) > 0:  # -1: none
            yield int(quota) / int(first.joinpath("cpu.cfs_period_us").read_text(encoding="utf-8"))


def available_memory() -> int:
    """Free memory in bytes, within the limits of a container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable:\s+(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)", 1),
    ):
        try:
            match = re.search(pattern, Path(path).read_text())
        except OSError:
            continue
        if match:
            found.append(unit * int(match[1]))
    return min(found)
