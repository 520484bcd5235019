"""Rendezvous of processes in a store that earlier runs have used."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from transduce.core.errors import RunError
from transduce.core.processes import LIFE, Launch
from transduce.training import distributed
from transduce.training.distributed import Group, meet, wait_until_connected

SOON = timedelta(seconds=60)


class Watched(HashStore):
    """A store that reports when a rank has signed in, and when one has checked whether all agree."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.signed_in = [threading.Event() for _ in range(size)]
        self.looked = threading.Semaphore(0)

    def set(self, key: str, value: str) -> None:
        super().set(key, value)
        if key.startswith("transduce/here/"):
            self.signed_in[int(key.rpartition("/")[2])].set()

    def check(self, keys: list[str]) -> bool:
        found: bool = super().check(keys)
        if keys[0].startswith("transduce/seen/"):
            self.looked.release()
        return found


def lives(store: Watched, size: int, in_turn: bool = False) -> set[str]:
    """All ranks meet, at once or each when the one before has signed in; the names they give their life."""
    for event in store.signed_in:
        event.clear()

    def come(rank: int) -> str:
        if in_turn and rank:
            assert store.signed_in[rank - 1].wait(timeout=60)
        return meet(store, rank, size, SOON)

    with ThreadPoolExecutor(size) as threads:
        return set(threads.map(come, range(size)))


def test_all_who_meet_agree_and_each_life_has_its_own_name() -> None:
    store, names = Watched(4), set[str]()
    for life in range(5):  # the store keeps what the lives before have left
        found = lives(store, 4, in_turn=life % 2 == 1)
        assert len(found) == 1
        names |= found
    assert len(names) == 5


def test_nobody_continues_with_dead_processes() -> None:
    """Rank 1 comes late: rank 0 must not take what its dead forerunner left for it."""
    store = Watched(2)
    (old,) = lives(store, 2)
    met: list[str] = []
    store.looked = threading.Semaphore(0)
    first = threading.Thread(target=lambda: met.append(meet(store, 0, 2, SOON)))
    first.start()
    for _ in range(3):  # it looks again and again, and finds that the dead have not seen it
        assert store.looked.acquire(timeout=60)
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


class Waited(HashStore):
    """A store that tells how often a rank has looked whether all are connected, and found that they are not."""

    def __init__(self) -> None:
        super().__init__()
        self.vain = threading.Semaphore(0)

    def check(self, keys: list[str]) -> bool:
        found: bool = super().check(keys)
        if keys[0].startswith("transduce/connected/") and not found:
            self.vain.release()
        return found


def test_nobody_begins_before_all_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo connects pair by pair: who begins, and ends by an error, would leave another waiting for it for hours."""
    store, begun = Waited(), threading.Event()
    monkeypatch.setenv(LIFE, "")
    monkeypatch.setattr(distributed.processes, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))

    def connect(*_: object, rank: int, **__: object) -> None:
        if rank == 1:
            for _ in range(3):  # rank 0 has its connections, looks again and again, and does not begin
                while not store.vain.acquire(timeout=0.1):
                    assert not begun.is_set()
            assert not begun.is_set()

    monkeypatch.setattr(distributed.processes, "init_process_group", connect)

    def begin(rank: int) -> None:
        group = Group("cpu")
        group.rank, group.size, group.launch = rank, 2, Launch(rank, 2, rank, 2)
        group.__enter__()
        if rank == 0:
            begun.set()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(begin, rank) for rank in range(2)]:
            done.result()  # pytest's own limit ends what hangs
    assert begun.is_set()


def test_a_rank_that_never_connects() -> None:
    with pytest.raises(RunError) as caught:
        wait_until_connected(HashStore(), "life", 0, 3, timedelta(seconds=0.1))
    assert str(caught.value) == (
        "waited 0:00:00.100000 for the 3 processes of the group to connect to each other; missing: ranks [1, 2]. Look"
        " there for why they ended, or name the network with GLOO_SOCKET_IFNAME"
    )
