"""Inspections and alternatives over HTTP: cancelled ones stop, and hold their capacity until they do."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette", reason="pip install transduce[serve]")
from starlette.testclient import TestClient

from transduce.core.errors import RunError
from transduce.inspection.alternatives import alternatives
from transduce.inspection.inspect import inspect
from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.server import Served, Settings, application
from transduce.server.state import ServerState
from transduce.server.translating import TranslationRequest, prepared
from transduce.text import languages

if TYPE_CHECKING:
    from toy_model import Toy

PAIRS = (("en", "de"),)


def test_capacity_is_free_when_the_thread_is(toy: Toy) -> None:
    state = ServerState([Served("toy", toy.translator, PAIRS)], Settings())
    begun, heard, may_end = threading.Event(), threading.Event(), threading.Event()

    def stubborn(stop: CancelToken) -> None:
        begun.set()
        while not stop.cancelled:
            time.sleep(0.001)
        heard.set()
        may_end.wait(10)

    async def held(count: int) -> None:
        async with asyncio.timeout(10):
            while state.gate.requests != count:
                await asyncio.sleep(0.001)

    async def both() -> None:
        first = asyncio.ensure_future(state.run(stubborn))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.ensure_future(state.run(lambda stop: None))  # waits for the thread
        await held(2)
        for one in (first, second):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        await held(1)  # what had not begun is forgotten at once
        assert await asyncio.to_thread(heard.wait, 10)
        assert state.gate.requests == 1
        may_end.set()
        await held(0)
        assert await state.run(lambda stop: stop.cancelled) is False

    asyncio.run(both())
    state.close()


def test_an_error_of_work_that_nobody_waits_for_is_no_missed_one(toy: Toy) -> None:
    state = ServerState([Served("toy", toy.translator, PAIRS)], Settings())
    begun, missed = threading.Event(), list[object]()

    def failing(stop: CancelToken) -> None:
        begun.set()
        while not stop.cancelled:
            time.sleep(0.001)
        raise RunError("nobody waits")

    async def abandoned() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: missed.append(context))
        work = asyncio.ensure_future(state.run(failing))
        await asyncio.to_thread(begun.wait, 10)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        del work
        async with asyncio.timeout(10):
            while state.gate.requests:
                await asyncio.sleep(0.001)
        gc.collect()

    asyncio.run(abandoned())
    state.close()
    assert missed == []


def test_a_cancelled_inspection_stops_in_the_library(toy: Toy) -> None:
    stop = CancelToken()
    stop.cancel()
    assert alternatives(toy.translator, "sixty-two", "", to="de", stop=stop) == []
    with pytest.raises(RunError, match="inspect: cancelled before the translation was found; try again"):
        inspect(toy.translator, "sixty-two", to="de", stop=stop)


class Endless:
    """An engine that decodes until it is cancelled."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.stopped = engine, 0

    def search(
        self, sources: Sequence[Any], search: Any, constraints: Sequence[DecodingConstraints], keys: Sequence[int]
    ) -> list[list[Any]]:
        until = time.monotonic() + 10
        while not all(
            constraint.cancel_token is not None and constraint.cancel_token.cancelled for constraint in constraints
        ):
            assert time.monotonic() < until, "nobody asked to stop"
            time.sleep(0.005)
        self.stopped += 1
        return [[] for _ in sources]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def test_the_deadline_stops_what_the_pages_ask(toy: Toy) -> None:
    engine = Endless(toy.translator.engine)
    endless = copy.copy(toy.translator)
    endless.engine = engine
    with TestClient(application([Served("toy", endless, PAIRS)], Settings(seconds=0.1)), "http://localhost") as client:
        state: ServerState = client.app.state.transduce  # type: ignore[attr-defined]
        asked = {"text": "sixty-two", "source": "en", "target": "de"}
        look = {"text": "sixty-two", "model": "toy", "to": "de"}
        for count, (path, body) in enumerate([("alternatives", asked), ("inspect", look), ("learn", look)], 1):
            answer = client.post(f"/page/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]) == (504, "the answer took longer than 0.1 s"), path
            until = time.monotonic() + 10
            while state.gate.requests:
                assert time.monotonic() < until
                time.sleep(0.005)
            assert engine.stopped == count


def test_others_are_answered_while_the_tables_of_languages_are_read(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ServerState([Served("toy", toy.translator, PAIRS)], Settings())
    begun, may_end, read = threading.Event(), threading.Event(), languages._identifier

    def slow() -> Any:
        begun.set()
        assert may_end.wait(10)
        return read()

    monkeypatch.setattr(languages, "_identifier", slow)

    async def both() -> None:
        first, second = (
            asyncio.ensure_future(prepared(state, TranslationRequest((text,), "auto", "de")))
            for text in ("five", "ten")
        )
        assert await asyncio.to_thread(begun.wait, 10)
        assert not first.done()  # or the loop had waited for it
        assert not second.done()
        monkeypatch.setattr(languages, "_identifier", read)
        may_end.set()
        for ready in await asyncio.gather(first, second):
            assert ready.plans[0].source == "en"

    asyncio.run(both())
    state.close()
