"""Process groups, stop signals, and an ordered map over worker processes.

`Launch` is the rank that torchrun passes through the environment. torch is imported only after a failure in a group,
to find out which process reports it.

`StopRequest`: SIGTERM and Ctrl-C request a stop at the next step; a second signal aborts at once. Not so in a group of
processes: a cluster sends its signals to them and to their launcher, which sends them on.

`ordered_map` applies a function to a stream of items in several processes, with only a few items in flight.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from types import FrameType, TracebackType
from typing import Any, TypeVar

from transduce.core.errors import RunError
from transduce.core.resources import usable_cores

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
