"""Processes that meet in a store full of those who met there before."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from transduce.errors import RunError
from transduce.training.meeting import meet

SOON = timedelta(seconds=20)


def lives(store: HashStore, size: int, pause: float = 0.0) -> set[str]:
    """All ranks meet, one after the other by `pause` seconds; the names they give their life."""

    def come(rank: int) -> str:
        time.sleep(pause * rank)
        return meet(store, rank, size, SOON)

    with ThreadPoolExecutor(size) as threads:
        return set(threads.map(come, range(size)))


def test_all_who_meet_agree_and_each_life_has_its_own_name() -> None:
    store, names = HashStore(), set[str]()
    for life in range(5):  # the store keeps what the lives before have left
        found = lives(store, 4, pause=0.05 * (life % 2))
        assert len(found) == 1
        names |= found
    assert len(names) == 5


def test_nobody_goes_on_with_the_dead() -> None:
    """Rank 1 comes late: rank 0 must not take what its dead forerunner left for it."""
    store = HashStore()
    (old,) = lives(store, 2)
    met: list[str] = []
    first = threading.Thread(target=lambda: met.append(meet(store, 0, 2, SOON)))
    first.start()
    time.sleep(0.3)
    assert not met
    late = meet(store, 1, 2, SOON)
    first.join()
    assert met == [late]
    assert late != old


def test_a_rank_that_never_comes() -> None:
    with pytest.raises(RunError) as caught:
        meet(HashStore(), 0, 3, timedelta(seconds=0.1))
    assert str(caught.value) == (
        "waited 0:00:00.100000 for the 3 processes of the group to meet; missing: ranks [1, 2]. Start torchrun on every"
        " machine with the same --nnodes and --rdzv-endpoint, or look there for why they ended"
    )
