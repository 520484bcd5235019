"""Each process's share of every batch, and background prefetching of batches.

The plan of batches does not depend on the number of processes. A step has `accumulate` micro-batches. If their number
divides evenly, each process takes whole ones; else the rows r, r + N, r + 2 N ... of each, padded as in the full batch.

`prefetched` makes the next batches in a background thread while the model works on the current one.
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
    """Prefetch items in a thread, in order; an error in the source is raised where its item is requested."""
    items_ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=ahead)
    stop = threading.Event()
    put = partial(_put, items_ready, stop)

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
        yield _items(items_ready)
    finally:
        stop.set()
        thread.join()


def _put(
    items_ready: queue.Queue[tuple[T | None, BaseException | None]],
    stop: threading.Event,
    item: tuple[T | None, BaseException | None],
) -> None:
    """Add an item once there is room; give up when `stop` is set."""
    while not stop.is_set():
        try:
            items_ready.put(item, timeout=0.1)
            return
        except queue.Full:
            continue


def _items(items_ready: queue.Queue[tuple[T | None, BaseException | None]]) -> Iterator[T]:
    while True:
        item, error = items_ready.get()
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        yield item  # type: ignore[misc]


@dataclass(frozen=True)
class Portion:
    """One process's part of micro-batch `number` of a step, which is batch `position` of `epoch`.

    `batch` is None if other processes have all of it. `piece` distinguishes the random draws of processes that share
    it, 0 for the first or only one. Not `counted`: the batch has fewer rows than there are processes, and this row is
    another's copy. The process takes part, since gradients are summed over all, but adds nothing.
    """

    epoch: int
    position: int
    number: int
    piece: int
    batch: Batch | None
    counted: bool = True

    def pinned(self) -> Portion:
        """Copy the batch to pinned memory, from which a GPU copies asynchronously."""
        return self if self.batch is None else replace(self, batch=self.batch.pinned())


@dataclass(frozen=True)
class Share:
    """The portions of process `rank` of `size`; `entire` micro-batches only if `accumulate` divides evenly.

    A model with batch statistics (BatchNorm) needs rows of each: `entire=False`.
    """

    rank: int = 0
    size: int = 1
    accumulate: int = 1
    entire: bool = True

    def portions(self, batches: Batches, epoch: int, position: int) -> Iterator[Portion]:
        """Yield portions from the given position on, where a step begins, endlessly."""
        entire = self.entire and self.accumulate % self.size == 0
        for count, (plan, at, place) in enumerate(batches.places(epoch, position)):
            number = count % self.accumulate
            if entire:
                mine = number % self.size == self.rank
                yield Portion(at, place, number, 0, batches.make(plan, at, place) if mine else None)
            else:
                counted = self.rank < len(plan.batch(place))
                rows = slice(self.rank, None, self.size) if counted else slice(0, 1)
                yield Portion(at, place, number, self.rank, batches.make(plan, at, place, rows), counted)
