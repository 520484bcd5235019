"""Sentences of different askers in one batch: everybody gets their own answer, and nobody pays for another's fault."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from transduce.core.errors import DataError
from transduce.search.constraints import CancelToken
from transduce.server.batcher import POLITENESS, Batcher, Sentence
from transduce.server.settings import Settings


@dataclass(frozen=True)
class Fake:
    """Work that turns texts round, and lets a test hold it up."""

    name: str = ""

    def run(self, translator: Any, items: Sequence[Sentence], stops: Sequence[CancelToken]) -> list[str]:
        translator.batches.append([item.text for item in items])
        translator.stops = list(stops)
        if "wait" in translator.batches[-1]:
            translator.begun.set()
            assert translator.going.wait(5)
        for item in items:
            if item.text == "bad":
                raise DataError("bad: it is")
            if item.text == "worse":
                raise KeyError("worse")
        return [item.text[::-1] for item in items]


class Recorder:
    """In place of a translator."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.stops: list[CancelToken] = []
        self.begun, self.going = threading.Event(), threading.Event()


def made(**settings: Any) -> tuple[Recorder, Batcher, list[tuple[int, int]]]:
    recorder, told = Recorder(), []
    settings = {"workers": 1, "batch_seconds": 0.0, **settings}
    batcher = Batcher(recorder, Settings(**settings), lambda count, tokens, seconds: told.append((count, tokens)))  # type: ignore[arg-type]
    return recorder, batcher, told


async def held_up(recorder: Recorder, batcher: Batcher) -> asyncio.Task[Any]:
    """The one thread busy, so that what comes now waits."""
    task = asyncio.ensure_future(batcher.run(Fake(), Sentence("wait"), 1))  # type: ignore[arg-type]
    await asyncio.to_thread(recorder.begun.wait, 5)
    return task


def test_to_close_is_to_wait_for_what_is_begun() -> None:
    recorder, batcher, _ = made()

    async def run() -> None:
        first = await held_up(recorder, batcher)
        closing = threading.Thread(target=batcher.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()
        recorder.going.set()
        assert await first == "tiaw"
        closing.join(5)
        assert not closing.is_alive()

    asyncio.run(run())


def test_what_waits_goes_together_by_tokens_and_kind() -> None:
    recorder, batcher, told = made(batch_tokens=10)

    async def run() -> list[Any]:
        first = await held_up(recorder, batcher)
        jobs = [("ab", 4, ""), ("cd", 4, ""), ("ef", 4, "other"), ("gh", 4, ""), ("ij", 2, "")]
        tasks = [
            asyncio.ensure_future(batcher.run(Fake(name), Sentence(text), tokens))  # type: ignore[arg-type]
            for text, tokens, name in jobs
        ]
        await asyncio.sleep(0)
        recorder.going.set()
        assert await first == "tiaw"
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == ["ba", "dc", "fe", "hg", "ji"]
    batcher.close()
    assert recorder.batches == [["wait"], ["ab", "cd", "ij"], ["ef"], ["gh"]]
    assert told == [(1, 1), (3, 10), (1, 4), (1, 4)]
    assert (batcher.waiting, batcher.running) == (0, 0)


def test_one_that_fails_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    recorder, batcher, _ = made()

    async def run() -> list[Any]:
        first = await held_up(recorder, batcher)
        texts = ["ab", "bad", "cd", "worse"]
        tasks = [asyncio.ensure_future(batcher.run(Fake(), Sentence(text), 1)) for text in texts]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        recorder.going.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())
    batcher.close()
    assert (found[0], found[2]) == ("ba", "dc")
    assert isinstance(found[1], DataError)
    assert isinstance(found[3], KeyError)
    assert [record.message for record in caplog.records] == ["a sentence could not be translated"]


def test_a_caller_that_disconnects_is_not_begun_or_is_cancelled() -> None:
    recorder, batcher, _ = made()

    async def run() -> None:
        running = await held_up(recorder, batcher)
        queued = asyncio.ensure_future(batcher.run(Fake(), Sentence("gone"), 1))  # type: ignore[arg-type]
        stays = asyncio.ensure_future(batcher.run(Fake(), Sentence("ab"), 1))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for task in (running, queued):
            task.cancel()
        await asyncio.wait([running, queued])
        assert recorder.stops[0].cancelled
        recorder.going.set()
        assert await stays == "ba"

    asyncio.run(run())
    batcher.close()
    assert recorder.batches == [["wait"], ["ab"]]


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="threads have no priorities of their own here")
def test_the_model_stands_back_behind_the_loop() -> None:
    _, batcher, _ = made()
    asyncio.run(batcher.run(Fake(), Sentence("ab"), 1))  # type: ignore[arg-type]
    (thread,) = batcher._threads
    assert thread.native_id is not None
    own, loop = os.getpriority(os.PRIO_PROCESS, thread.native_id), os.getpriority(os.PRIO_PROCESS, 0)
    assert own == min(19, loop + POLITENESS)
    batcher.close()


def test_a_thread_waits_for_company_only_where_there_was_some() -> None:
    """A minute would be waited, if nobody came: what is answered at once did not wait."""
    settings = SimpleNamespace(workers=1, batch_seconds=60.0, batch_tokens=10)
    recorder = Recorder()
    batcher = Batcher(recorder, settings, lambda *_: None)  # type: ignore[arg-type]

    def asked(text: str, tokens: int = 1) -> asyncio.Future[Any]:
        return asyncio.ensure_future(batcher.run(Fake(), Sentence(text), tokens))  # type: ignore[arg-type]

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.001)

    async def run() -> None:
        for text in ("ab", "cd"):  # one after the other, each alone
            assert await asyncio.wait_for(asked(text), 30) == text[::-1]
        first = await held_up(recorder, batcher)
        several = [asked("ef"), asked("gh")]
        await until(lambda: batcher.waiting == 2)
        recorder.going.set()
        await asyncio.gather(first, *several)
        waits = asked("ij")
        await until(lambda: batcher.gathering == 1 or len(recorder.batches) > 4)
        assert not waits.done()
        assert await asyncio.gather(waits, asked("kl", 9)) == ["ji", "lk"]  # now there is enough for a batch
        lonely = asked("mn")
        await until(lambda: batcher.gathering == 1 or len(recorder.batches) > 5)
        await asyncio.to_thread(batcher.close)  # for which nobody waits either
        assert await lonely == "nm"

    asyncio.run(run())
    assert recorder.batches == [["ab"], ["cd"], ["wait"], ["ef", "gh"], ["ij", "kl"], ["mn"]]
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(batcher.run(Fake(), Sentence("ab"), 1))  # type: ignore[arg-type]
