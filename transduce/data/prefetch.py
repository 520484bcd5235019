"""Make the next batches in a background thread while the model works on this one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def prefetched(source: Iterator[T], ahead: int = 4) -> Iterator[Iterator[T]]:
    """The same items in the same order; an error in the source is raised where the item is asked for."""
    waiting: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=ahead)
    stop = threading.Event()

    def put(item: tuple[T | None, BaseException | None]) -> None:
        while not stop.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in source:
                put((item, None))
                if stop.is_set():
                    return
            put((None, StopIteration()))
        except BaseException as error:
            put((None, error))

    def items() -> Iterator[T]:
        while True:
            item, error = waiting.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        yield items()
    finally:
        stop.set()
        thread.join()
