"""Admission of requests: tokens counted at the gate, keys and their rates, capacity for long requests."""

from __future__ import annotations

import asyncio
import resource
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn

from transduce.core.bounds import bounds_of
from transduce.core.errors import ConfigError
from transduce.server.admission import CROWD, CROWD_TOKENS, FEW, MOST_ASKERS, SEVERAL, Gate, Keys
from transduce.server.answers import Refused
from transduce.server.running import BACKLOG, Server, _allowed_connections
from transduce.server.settings import Settings
from transduce.server.translating import TokenSemaphore, together


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_gate_counts_tokens() -> None:
    gate = Gate(1000, 1.0, Clock())
    with gate.admit(100) as share:
        assert (share, gate.held, gate.requests) == (100, 100, 1)
        with gate.admit(5000) as large:  # holds a quarter, not all
            assert large == 250
            with gate.admit(5000), gate.admit(5000), pytest.raises(Refused) as refused, gate.admit(200):
                pass
            assert (refused.value.status, refused.value.retry_after) == (503, 1)
            assert refused.value.message == "this server is busy; try again later"
    assert (gate.held, gate.requests, gate.admitted, gate.refused) == (0, 0, 4, 1)


def test_the_gate_knows_how_fast_the_model_is() -> None:
    clock = Clock()
    gate = Gate(100_000, 1.0, clock)
    assert (gate.rate, gate.capacity) == (0, 100_000)
    with gate.admit(1):
        for _ in range(100):
            clock.now += 0.1
            gate.done(400)
    assert gate.rate == pytest.approx(4000, rel=0.05)
    assert gate.capacity == pytest.approx(4000, rel=0.05)
    clock.now += 1000  # idle time is no work
    with ExitStack() as inside:
        for _ in range(4):
            inside.enter_context(gate.admit(5000))
        with pytest.raises(Refused) as refused:
            gate.check()  # before anything is read, by what a request usually has
        assert refused.value.retry_after in (1, 2)
    gate.check()
    with gate.admit(1):
        clock.now += 60
        gate.done(1)
    assert gate.capacity == CROWD_TOKENS  # slow, and long requests
    for _ in range(2000):
        with gate.admit(20):
            pass
    assert gate.capacity == pytest.approx(20 * CROWD, rel=0.05)


def test_who_is_let_in_and_does_nothing_says_nothing_of_the_model() -> None:
    clock = Clock()
    gate = Gate(1000, 1.0, clock)
    with gate.admit(100):
        clock.now += 10
    assert gate.rate == 0


def test_a_closed_gate_says_when_another_may_be_asked() -> None:
    gate = Gate(1000, 1.0, Clock())
    gate.closed = True
    with pytest.raises(Refused) as refused:
        gate.check(1)
    assert (refused.value.status, refused.value.retry_after, refused.value.close) == (503, 1, True)


def test_requests_come_back_one_by_one() -> None:
    clock = Clock()
    keys = Keys(["key"], 60, clock)
    for _ in range(60):
        keys.check("key", "")
    with pytest.raises(Refused):
        keys.check("key", "")
    clock.now += 0.99
    with pytest.raises(Refused):
        keys.check("key", "")
    clock.now += 0.02
    keys.check("key", "")


@pytest.mark.parametrize(
    ("soft", "hard", "asked"),
    [
        (100, resource.RLIM_INFINITY, (306, resource.RLIM_INFINITY)),
        (100, 200, (200, 200)),
        (100, 400, (306, 400)),
        (1000, 2000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_open_files_are_asked_for_as_far_as_needed_and_allowed(
    soft: int, hard: int, asked: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: said.append(limits))
    _allowed_connections(50)
    assert said == ([asked] if asked else [])


@pytest.mark.parametrize(("forced", "left"), [(False, 0), (True, 1)])
def test_it_listens_until_all_is_answered_unless_told_again(
    forced: bool, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    gate = SimpleNamespace(requests=1)

    async def closed(self: Server, sockets: object = None) -> None:
        seen.append(gate.requests)

    async def run() -> None:
        config = uvicorn.Config("none", timeout_graceful_shutdown=60)
        server = Server(config, SimpleNamespace(gate=gate))  # type: ignore[arg-type]
        server.force_exit = forced
        asyncio.get_running_loop().call_later(0.1, setattr, gate, "requests", 0)
        await server.shutdown()

    monkeypatch.setattr(uvicorn.Server, "shutdown", closed)
    asyncio.run(run())
    assert seen == [left]


def test_more_may_wait_to_be_accepted_than_are_accepted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []

    async def started(self: Server, sockets: object = None) -> None:
        waiting.append(-1)

    monkeypatch.setattr(uvicorn.Server, "startup", started)
    server = Server(uvicorn.Config("none"), SimpleNamespace())  # type: ignore[arg-type]
    asyncio.run(server.startup([SimpleNamespace(listen=waiting.append)]))  # type: ignore[list-item]
    assert waiting == [-1, BACKLOG]  # last, for uvicorn sets its own


def test_the_gate_forgets_how_fast_the_model_was() -> None:
    """Its estimate follows within some seconds of work, and not with a single slow batch."""
    clock = Clock()
    gate = Gate(100_000, 1.0, clock)

    def work(seconds: float, tokens_a_second: int) -> float:
        with gate.admit(1):
            for _ in range(round(10 * seconds)):
                clock.now += 0.1
                gate.done(tokens_a_second // 10)
        return gate.rate

    assert work(60, 4000) == pytest.approx(4000, rel=0.05)
    assert work(0.5, 400) > 3000
    assert work(25, 400) == pytest.approx(400, rel=0.1)
    assert gate.capacity == CROWD_TOKENS


def turned_away(gate: Gate, times: int) -> int:
    """How many of so many requests are refused."""
    before = gate.refused
    for _ in range(times):
        with suppress(Refused):
            gate.check()
    return gate.refused - before


def test_few_are_in_at_a_time_while_many_are_turned_away() -> None:
    clock = Clock()
    gate = Gate(64 * 60, 0.001, clock)
    inside = [ExitStack() for _ in range(60)]
    for one in inside:
        one.enter_context(gate.admit(64))
    assert turned_away(gate, SEVERAL - 1) == SEVERAL - 1  # a few are no storm:
    inside.pop().close()
    inside.append(ExitStack())
    inside[-1].enter_context(gate.admit(64))  # whoever leaves makes room
    assert turned_away(gate, 50) == 50
    while len(inside) > FEW:
        inside.pop().close()
        assert turned_away(gate, 1) == (len(inside) >= FEW)
    inside.pop().close()
    assert turned_away(gate, 1) == 0
    for _ in range(100):  # the storm is over
        clock.now += 0.1
        with gate.admit(64):
            pass
    for _ in range(60 - len(inside)):
        inside.append(ExitStack())
        inside[-1].enter_context(gate.admit(64))
    assert gate.requests == 60
    for one in inside:
        one.close()


def test_a_fast_model_lets_more_in_while_many_are_turned_away() -> None:
    clock = Clock()
    gate = Gate(64_000, 1.0, clock)
    with gate.admit(64):
        for _ in range(100):
            clock.now += 0.1
            gate.done(6400)
    with ExitStack() as inside:
        with suppress(Refused):
            while True:
                inside.enter_context(gate.admit(64))
        assert gate.requests == 1000
        turned_away(gate, 200)
        assert gate.places == pytest.approx(200, rel=0.05)  # a fifth of a second's


def test_a_closed_gate_says_why() -> None:
    gate = Gate(1000, 1.0)
    gate.closed = True
    with pytest.raises(Refused, match="this server is shutting down; ask another") as refused, gate.admit(1):
        pass
    assert refused.value.close
    assert refused.value.status == 503


def test_rates_are_each_askers_own() -> None:
    clock = Clock()
    keys = Keys((), 60, clock)
    for _ in range(60):
        keys.check("", "a")
    with pytest.raises(Refused, match="Slowdown: 60 requests a minute are allowed") as refused:
        keys.check("", "a")
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    keys.check("", "b")
    clock.now += 2
    keys.check("", "a")
    keys.check("", "a")
    with pytest.raises(Refused):
        keys.check("", "a")
    for number in range(MOST_ASKERS):
        keys.check("", f"other {number}")
    assert len(keys._buckets) == MOST_ASKERS


def test_a_window_lets_through_as_many_as_fit() -> None:
    most = under_way = 0

    async def run() -> None:
        window = TokenSemaphore(10)

        async def one(tokens: int) -> int:
            nonlocal most, under_way
            taken = await window.take(tokens)
            under_way += taken
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= taken
            window.give(taken)
            return tokens

        assert await together([one(tokens) for tokens in (4, 4, 4, 50, 1, 9)]) == [4, 4, 4, 50, 1, 9]
        assert await window.take(10) == 10
        waiting = [asyncio.ensure_future(one(tokens)) for tokens in (9, 8, 7)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # while it waits
        window.give(10)
        waiting[1].cancel()  # when its turn had come
        assert await waiting[2] == 7
        assert await window.take(10) == 10

    asyncio.run(run())
    assert most == 10


def test_together_cancels_the_others_where_one_fails() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        asyncio.run(together([wait(), fail(), wait()]))
    assert ended == [True, True]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"characters": 0}, "characters: expected an integer from 1 to 10,000,000 (docs/serving.md, Limits), got 0"),
        ({"body": 5}, "body: expected an integer from 1,024 to 1,073,741,824 (docs/serving.md, Limits), got 5"),
        (
            {"workers": 100_000_000},
            "workers: expected an integer from 1 to 256 (docs/serving.md, Limits), got 100000000",
        ),
        ({"seconds": 0.0}, "seconds: expected seconds above 0, a day at most, got 0.0"),
        ({"batch_seconds": 2.0}, "batch_seconds: expected seconds from 0 to 1, got 2.0"),
        ({"keys": ("a b",)}, "keys: expected visible ASCII characters without spaces"),
    ],
)
def test_settings(wrong: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Settings(**wrong)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


LIMITS = {name: int(bounds.most) for name, bounds in bounds_of(Settings) if not name.endswith("seconds")}


@pytest.mark.parametrize("name", LIMITS)
def test_largest_settings(name: str) -> None:
    most = LIMITS[name]
    assert getattr(Settings(**{name: most}), name) == most  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"^{name}: expected an integer from .* to {most:,} .*, got {most + 1}$"):
        Settings(**{name: most + 1})  # type: ignore[arg-type]
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert f"`{name}` " in page
    assert f" {most:,}" in page


def test_every_whole_number_is_bounded() -> None:
    assert {field.name for field in fields(Settings) if "int" in str(field.type)} == set(LIMITS)
