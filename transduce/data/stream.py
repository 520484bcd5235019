"""Which part of each batch a process trains on: the plan of batches is the same however many share the work.

A step has `accumulate` micro-batches. Where their number divides evenly, each process takes whole ones; else the rows
r, r + N, r + 2 N ... of each, padded as in the whole.

Make the next batches in a background thread while the model works on this one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from transduce.data.batch import Batch
from transduce.data.batching import Batches

T = TypeVar("T")


@contextmanager
def prefetched(source: Iterator[T], ahead: int = 4) -> Iterator[Iterator[T]]:
    """The same items in the same order; an error in the source is raised where the item is asked for."""
    waiting: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=ahead)
    stop = threading.Event()
    put = partial(_put, waiting, stop)

    def work() -> None:
        try:
            for item in source:
                put((item, None))
                if stop.is_set():
                    return
            put((None, StopIteration()))
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        yield _items(waiting)
    finally:
        stop.set()
        thread.join()


def _put(
    waiting: queue.Queue[tuple[T | None, BaseException | None]],
    stop: threading.Event,
    item: tuple[T | None, BaseException | None],
) -> None:
    """Wait for room, until nobody takes any more."""
    while not stop.is_set():
        try:
            waiting.put(item, timeout=0.1)
            return
        except queue.Full:
            continue


def _items(waiting: queue.Queue[tuple[T | None, BaseException | None]]) -> Iterator[T]:
    while True:
        item, error = waiting.get()
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        yield item  # type: ignore[misc]


@dataclass(frozen=True)
class Portion:
    """What one process has of micro-batch `number` of a step, which is batch `position` of `epoch`.

    `batch` is None where others have all of it. `piece` tells apart the draws of those that share it, 0 for the first
    or only one. Not `counted`: the batch has fewer rows than there are processes, and this row is another's. The
    process takes part, for gradients are summed over all, but with nothing.
    """

    epoch: int
    position: int
    number: int
    piece: int
    batch: Batch | None
    counted: bool = True

    def pinned(self) -> Portion:
        """The same in memory that a GPU copies from while it works."""
        return self if self.batch is None else replace(self, batch=self.batch.pinned())


@dataclass(frozen=True)
class Share:
    """The portions of process `rank` of `size`. `entire` micro-batches only where `accumulate` lets all have as many.

    A model that keeps statistics of its batches (BatchNorm) needs rows of each: `entire=False`.
    """

    rank: int = 0
    size: int = 1
    accumulate: int = 1
    entire: bool = True

    def portions(self, batches: Batches, epoch: int, position: int) -> Iterator[Portion]:
        """From the given place on, where a step begins, for ever."""
        entire = self.entire and self.accumulate % self.size == 0
        for count, (plan, at, place) in enumerate(batches.places(epoch, position)):
            number = count % self.accumulate
            if entire:
                own = number % self.size == self.rank
                yield Portion(at, place, number, 0, batches.make(plan, at, place) if own else None)
            else:
                counted = self.rank < len(plan.batch(place))
                rows = slice(self.rank, None, self.size) if counted else slice(0, 1)
                yield Portion(at, place, number, self.rank, batches.make(plan, at, place, rows), counted)
