"""Batches prefetched in a thread: all items in order, errors raised where they are read, and a clean end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from transduce.core.errors import DataError
from transduce.data.stream import prefetched


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("ahead", [1, 4, 100])
def test_the_same_items_in_the_same_order(ahead: int) -> None:
    with prefetched(iter(range(50)), ahead) as items:
        assert list(items) == list(range(50))
        assert list(items) == []
    assert workers() == []


def test_none_is_an_item_like_others() -> None:
    with prefetched(iter([None, 0, None])) as items:
        assert list(items) == [None, 0, None]


def test_an_error_comes_in_its_place_after_the_items_before() -> None:
    def broken() -> Iterator[int]:
        yield from range(3)
        raise DataError("train.tsv:4: no tab")

    with prefetched(broken(), ahead=10) as items:
        assert list(itertools.islice(items, 3)) == [0, 1, 2]
        with pytest.raises(DataError, match=r"train\.tsv:4: no tab"):
            next(items)
    assert workers() == []


def test_an_endless_source_is_left_when_the_caller_leaves() -> None:
    """No more than `ahead` items wait in the queue, and one in the worker's hand; each one taken makes room for one."""
    drawn: list[int] = []
    progress = threading.Semaphore(0)

    def endless() -> Iterator[int]:
        for number in itertools.count():
            drawn.append(number)
            progress.release()
            yield number

    with prefetched(endless(), ahead=3) as items:
        for _ in range(3 + 1):
            assert progress.acquire(timeout=60)
        for taken in range(1, 6):
            assert next(items) == taken - 1
            assert progress.acquire(timeout=60)
            assert len(drawn) == taken + 3 + 1
    assert workers() == []  # nobody is left to draw more
    assert len(drawn) == 5 + 3 + 1


def test_a_caller_that_fails_stops_the_thread_and_keeps_its_own_error() -> None:
    def fail() -> None:
        with prefetched(itertools.count(), ahead=2) as items:
            raise KeyError(next(items))

    with pytest.raises(KeyError, match="0"):
        fail()
    assert workers() == []


def test_work_goes_on_while_the_caller_works() -> None:
    """The third item is made before the first is asked for."""
    third = threading.Event()

    def source() -> Iterator[int]:
        for number in range(10):
            if number == 2:
                third.set()
            yield number

    with prefetched(source(), ahead=4) as items:
        assert third.wait(timeout=60)
        assert next(items) == 0
