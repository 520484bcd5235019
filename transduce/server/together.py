"""The sentences of one request side by side: how many are begun at a time, and how many tokens are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

T = TypeVar("T")
MOST_TASKS = 256  # sentences of a request that are begun at a time


class Window:
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


async def together(work: Iterable[Coroutine[Any, Any, T]], most: int = MOST_TASKS) -> list[T]:
    """All results in order, of at most so many that are begun at a time. Where one fails, the others are cancelled."""
    waiting = iter(work)
    ahead = list(islice(waiting, 2))
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

    count, waiting = 0, chain(ahead, waiting)
    try:
        while await room.acquire() and not errors and (one := next(waiting, None)) is not None:
            task = asyncio.ensure_future(one)
            running.add(task)
            task.add_done_callback(partial(ended, count))
            count += 1
        while running and not errors:
            await asyncio.wait(set(running), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _cancelled(running)
        for left in waiting:
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
