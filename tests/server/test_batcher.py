"""Sentences of different askers in one batch: everybody gets their own answer, and nobody pays for another's fault."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from transduce.errors import DataError
from transduce.search.wishes import Stop
from transduce.server.batcher import POLITENESS, Batcher
from transduce.server.settings import Settings
from transduce.server.work import Sentence


@dataclass(frozen=True)
class Fake:
    """Work that turns texts round, and lets a test hold it up."""

    name: str = ""

    def run(self, translator: Any, items: Sequence[Sentence], stops: Sequence[Stop]) -> list[str]:
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
        self.stops: list[Stop] = []
        self.begun, self.going = threading.Event(), threading.Event()


def made(**settings: Any) -> tuple[Recorder, Batcher, list[tuple[int, int]]]:
    recorder, told = Recorder(), []
    settings = {"workers": 1, "gather": 0.0, **settings}
    batcher = Batcher(recorder, Settings(**settings), lambda count, tokens, seconds: told.append((count, tokens)))  # type: ignore[arg-type]
    return recorder, batcher, told


async def held_up(recorder: Recorder, batcher: Batcher) -> asyncio.Task[Any]:
    """The one thread busy, so that what comes now waits."""
    task = asyncio.ensure_future(batcher.run(Fake(), Sentence("wait"), 1))  # type: ignore[arg-type]
    await asyncio.to_thread(recorder.begun.wait, 5)
    return task


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


def test_who_goes_away_is_not_begun_or_asked_to_stop() -> None:
    recorder, batcher, _ = made()

    async def run() -> None:
        running = await held_up(recorder, batcher)
        queued = asyncio.ensure_future(batcher.run(Fake(), Sentence("gone"), 1))  # type: ignore[arg-type]
        stays = asyncio.ensure_future(batcher.run(Fake(), Sentence("ab"), 1))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for task in (running, queued):
            task.cancel()
        await asyncio.wait([running, queued])
        assert recorder.stops[0].asked
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
    recorder, batcher, _ = made(gather=1.0)

    async def alone() -> Any:
        return await asyncio.wait_for(batcher.run(Fake(), Sentence("ab"), 1), 0.5)  # type: ignore[arg-type]

    assert asyncio.run(alone()) == "ba"
    batcher._company = True

    async def both() -> None:
        first = asyncio.ensure_future(batcher.run(Fake(), Sentence("cd"), 1))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        await asyncio.gather(first, batcher.run(Fake(), Sentence("ef"), 10**6))  # type: ignore[arg-type]

    asyncio.run(both())
    batcher.close()
    assert recorder.batches[0] == ["ab"]
    assert sorted(text for batch in recorder.batches[1:] for text in batch) == ["cd", "ef"]
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(alone())
