"""A function over a stream of items in several processes: in order, with only a few items under way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

from transduce.errors import RunError

Item = TypeVar("Item")
Result = TypeVar("Result")
WORTH_PROCESSES = 8  # with fewer items than this, starting processes takes longer than the work
SAFE_PATH = "PYTHONSAFEPATH"
_starting = threading.Lock()


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, worth: int = WORTH_PROCESSES
) -> Generator[Result, None, None]:
    """Yield `function(item)` for each item, in order; `workers` processes, 0 for one on each core.

    Fewer than `worth` items are done in this process.
    """
    workers = workers or _cores()
    stream = iter(items)
    head = list(islice(stream, worth))
    if workers == 1 or len(head) < worth:
        yield from map(function, chain(head, stream))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of whoever calls
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


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))  # those this process may use
    except AttributeError:  # macOS
        return os.cpu_count() or 1


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes that start meanwhile import nothing from the current folder, whose modules may have any name.

    `multiprocessing` starts them by `python -c`, which would; what this process imports from they are told later.
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
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
