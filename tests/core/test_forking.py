"""Locks of ours are free in a forked child, whichever thread of the parent held them."""

from __future__ import annotations

import gc
import os
import threading

from transduce.core.errors import EngineRefusal
from transduce.core.processes import ForkLock
from transduce.engines import Fallback


def in_child(work: object) -> int:
    """The exit code of a child in which `work` was called; a child that hangs is ended by an alarm, as -14."""
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(20)
        os._exit(0 if work() else 1)  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_lock_held_by_a_thread_of_the_parent_is_free_in_the_child() -> None:
    lock, held, over = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def take() -> bool:
        with lock:
            return lock.process == os.getpid()

    assert in_child(take) == 0
    over.set()
    holder.join()
    with lock:  # in the parent it was released by its holder
        assert lock.process == os.getpid()


def test_a_lock_does_not_outlive_its_owner() -> None:
    from transduce.core import processes

    before = len(processes._ALL)
    locks = [ForkLock() for _ in range(10)]
    assert len(processes._ALL) == before + 10
    del locks
    gc.collect()
    assert len(processes._ALL) == before


class Refuses:
    def score(self, sources: object, targets: object) -> list[list[float]]:
        raise EngineRefusal("no scores here")


class Scores:
    def score(self, sources: object, targets: object) -> list[list[float]]:
        return [[1.0]]


def test_a_child_forked_while_the_second_engine_is_being_opened_opens_its_own() -> None:
    opening, over, process = threading.Event(), threading.Event(), os.getpid()

    def open_second(refusal: EngineRefusal) -> Scores:
        if os.getpid() == process:
            opening.set()
            over.wait()
        return Scores()

    engine = Fallback(Refuses(), open_second)  # type: ignore[arg-type]
    caller = threading.Thread(target=lambda: engine.score([[1]], [[1]]))
    caller.start()
    opening.wait()
    assert in_child(lambda: engine.score([[1]], [[1]]) == [[1.0]]) == 0
    over.set()
    caller.join()
