"""The sentences of one request side by side: how many are begun at a time, and how many tokens are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

T = TypeVar("T")
MOST_TASKS = 256  # sentences of a request that are begun at a time


class TokenSemaphore:
    """Room for so many tokens under way; who does not fit waits for those before."""

    def __init__(self, tokens: int) -> None:
        self._free, self._all = tokens, tokens
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, tokens: int) -> int:
        """Wait for room; gives how much was taken, for more than there ever is takes all of it."""
        tokens = min(tokens, self._all)
        if self._waiting or self._free < tokens:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((tokens, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give(tokens)  # the turn had come
                raise
        else:
            self._free -= tokens
        return tokens

    def give(self, tokens: int) -> None:
        """Leave; who waited longest comes next."""
        self._free += tokens
        while self._waiting and (self._waiting[0][0] <= self._free or self._waiting[0][1].cancelled()):
            wanted, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= wanted
                turn.set_result(None)


class LoopTurns:
    """One task at a time goes on in each turn of the event loop: milliseconds of work must not add up to a second."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def come(self) -> None:
        """Wait for a turn of the loop in which nobody else of these goes on."""
        async with self._lock:
            await asyncio.sleep(0)


async def together(work: Iterable[Coroutine[Any, Any, T]], most: int = MOST_TASKS) -> list[T]:
    """All results in order, of at most so many that are begun at a time. Where one fails, the others are cancelled.

    Work that an iterator makes is made when its turn comes: of a request that ends early the rest is never made.
    """
    waiting = iter(work)
    ahead = deque(islice(waiting, 2))
    if len(ahead) < 2:
        return [await one for one in ahead]
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    running: set[asyncio.Future[T]] = set()
    room = asyncio.Semaphore(most)

    def ended(place: int, task: asyncio.Future[T]) -> None:
        running.discard(task)
        room.release()
        if task.cancelled():
            errors.append(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            errors.append(error)
        else:
            found[place] = task.result()

    count = 0
    try:
        while await room.acquire() and not errors:
            one = ahead.popleft() if ahead else next(waiting, None)
            if one is None:
                break
            task = asyncio.ensure_future(one)
            running.add(task)
            task.add_done_callback(partial(ended, count))
            count += 1
        while running and not errors:
            await asyncio.wait(set(running), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _cancelled(running)
        for left in chain(ahead, waiting if isinstance(work, Sequence) else ()):
            left.close()  # nobody will await it
    if errors:
        raise errors[0]
    return [found[place] for place in range(count)]


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Those that run end now."""
    rest = list(tasks)
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.gather(*rest, return_exceptions=True)
