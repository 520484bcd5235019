"""Generate requests: hostile ones within all limits, and mixed ones with known responses (see serving.py).

`hostile(draw)` makes a request that tries to use much time or memory: a random endpoint, many units, odd scripts,
alignment, attention, HTML and n-best lists, long lists, deep nesting. `mixed(draw)` makes one that a client might send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from http_load import Answers, Client, Server, closed_loop, serving

from transduce.text.number_words import english

MOST_CHARACTERS, MOST_TEXTS, MOST_BYTES = 5000, 50, 131_072
UNITS = (
    "𐐀𐐀\n", "a\n", "5\n", "a. ", ". ", "...", "a", "猫", "猫。", "क्षि ", "ש ", "👩‍👩‍👧 ", "e\u0301\u0323", "\u200b",
    "  ", "\t", "A B. ", "ABC ", "<b>a</b> ", "<b>", "</i>a", "<p>a", "<a href='", "<!--", "&amp;", "<br>", "'\"",
    "<b>a <i>b</b> c</i>. ", "- a\n", "five ", "the cat sat on the mat, ", "Dr. ", "1. ", "x" * 60 + " ", "\u2028a",
    "«a» ", "…a ", "\ud7ff", "\ufffd", "ab" * 20 + "。",
)  # fmt: skip
LANGUAGES = ("en", "de", "fr", "es", "zh", "auto")


@dataclass(frozen=True)
class Shape:
    """A request, and a short name for the results."""

    path: str
    body: bytes
    kind: bytes = b"application/json"

    @property
    def name(self) -> str:
        return f"{self.path} {len(self.body)} bytes {self.body[:160]!r}"


def hostile(draw: random.Random) -> Shape:
    """Make a hostile request within the default limits."""
    while True:
        path, make = draw.choice(_ENDPOINTS)
        tree = make(draw)
        body = json.dumps(tree, ensure_ascii=False).encode()
        if len(body) <= MOST_BYTES:
            return Shape(path, body)


def _size(draw: random.Random, most: int) -> int:
    """Draw small and large values, often the largest."""
    return most if draw.random() < 0.3 else int(most ** draw.random())


def _text(draw: random.Random, most: int = MOST_CHARACTERS) -> str:
    size = _size(draw, most)
    units = draw.sample(UNITS, draw.choice((1, 1, 2, 4)))
    if draw.random() < 0.7:
        return (units[0] * size)[:size]
    return "".join(draw.choice(units) for _ in range(size))[:size]


def _texts(draw: random.Random) -> str | list[str]:
    if draw.random() < 0.5:
        return _text(draw)
    count = _size(draw, MOST_TEXTS)
    return [_text(draw, min(MOST_CHARACTERS, MOST_BYTES // (5 * count))) for _ in range(count)]


def _languages(draw: random.Random) -> dict[str, str]:
    return {"source": draw.choice(LANGUAGES), "target": draw.choice(LANGUAGES[:-1])}


def _some(draw: random.Random, options: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    return {name: make() for name, make in options.items() if draw.random() < 0.3}


def _translate(draw: random.Random) -> Any:
    words = [lambda: _text(draw, 100)[:100] or "a"] * 2
    options: dict[str, Callable[[], Any]] = {
        "alignment": lambda: draw.choice(("words", "pieces")),
        "n_best": lambda: draw.randint(1, 6),
        "beam": lambda: draw.choice((1, 4, 16)),
        "format": lambda: draw.choice(("text", "html")),
        "stream": lambda: draw.random() < 0.3,
        "prefix": lambda: _text(draw, 1500),
        "include": lambda: [words[0]() for _ in range(_size(draw, 16))],
        "exclude": lambda: [words[1]() for _ in range(_size(draw, 64))],
    }
    chosen = _some(draw, options)
    if draw.random() < 0.9:  # more than the beam size is an error at once
        chosen["n_best"] = min(chosen.get("n_best", 1), chosen.get("beam", 6))
    return {"text": _texts(draw), **_languages(draw), **chosen}


def _pairs(draw: random.Random) -> Any:
    count = _size(draw, MOST_TEXTS)
    most = draw.choice((40, 200, 500))
    sides = {name: [_text(draw, most) for _ in range(count)] for name in ("texts", "translations")}
    return {"source": "en", "target": draw.choice(("de", "zh", "fr")), **sides}


def _aligned(draw: random.Random) -> Any:
    options: dict[str, Callable[[], Any]] = {
        "unit": lambda: draw.choice(("words", "pieces")),
        "layer": lambda: draw.choice((-1, 0, 1)),
        "matrix": lambda: draw.random() < 0.5,
    }
    return {**_pairs(draw), **_some(draw, options)}


def _libre(draw: random.Random) -> Any:
    options: dict[str, Callable[[], Any]] = {"format": lambda: "html", "alternatives": lambda: draw.randint(0, 5)}
    return {"q": _texts(draw), **_languages(draw), **_some(draw, options)}


def _deepl(draw: random.Random) -> Any:
    given = _texts(draw)
    options: dict[str, Callable[[], Any]] = {"tag_handling": lambda: "html", "split_sentences": lambda: "0"}
    return {
        "text": given if isinstance(given, list) else [given],
        "target_lang": draw.choice(LANGUAGES[:-1]),
        **_some(draw, options),
    }


def _look(draw: random.Random) -> Any:
    options: dict[str, Callable[[], Any]] = {
        "beam": lambda: draw.randint(0, 8),
        "prefix": lambda: [draw.randrange(4, 200) for _ in range(_size(draw, 512))],
        "to": lambda: draw.choice(LANGUAGES[:-1]),
    }
    return {"text": _text(draw, 800), "model": "", **_some(draw, options)}


def _learn(draw: random.Random) -> Any:
    return {"text": _text(draw, 800), "model": "", "layer": draw.randint(0, 7)}


def _alternatives(draw: random.Random) -> Any:
    return {"text": _text(draw), **_languages(draw), "source": "en", "before": _text(draw, 2000)}


def _nonsense(draw: random.Random) -> Any:
    """JSON that no endpoint expects: deep nesting, long lists, many fields."""
    size = _size(draw, 20_000)
    deep: Any = []
    for _ in range(min(size, 400)):
        deep = [deep] if draw.random() < 0.5 else {"a": deep}
    every: list[Any] = [
        deep,
        [[]] * size,
        {"text": [[]] * size, "target": "de"},
        {"text": list(range(size)), "target": "de"},
        {f"field{i}": i for i in range(min(size, 6000))},
        {"texts": [1] * size, "translations": [{}] * min(size, 9000), "source": "en", "target": "de"},
        {"q": ["a"] * size, "source": "en", "target": "de"},
        "x" * size,
    ]
    return draw.choice(every)


_ENDPOINTS: list[tuple[str, Callable[[random.Random], Any]]] = [
    *[("/v1/translate", _translate)] * 6,
    ("/v1/score", _pairs),
    *[("/v1/align", _aligned)] * 2,
    *[("/v1/attention", _pairs)] * 2,
    ("/v1/detect", lambda draw: {"text": _text(draw)}),
    *[("/translate", _libre)] * 2,
    ("/detect", lambda draw: {"q": _texts(draw)}),
    *[("/v2/translate", _deepl)] * 2,
    ("/page/alternatives", _alternatives),
    ("/page/inspect", _look),
    ("/page/learn", _learn),
    *[(path, _nonsense) for path in ("/v1/translate", "/v1/align", "/translate", "/v2/translate")],
]


def mixed(draw: random.Random, target: str) -> tuple[str, Any]:
    """The path and JSON of an honest request: all protocols, sizes and options."""
    numbers = [english(draw.randrange(10**6)) for _ in range(draw.choice((1, 1, 2, 4, 12)))]
    text = draw.choice((", ", "! ", ".\n")).join(numbers)
    ways = {"source": "en", "target": target}
    pair = {**ways, "texts": numbers, "translations": numbers[::-1]}
    every: list[tuple[str, Any]] = [
        ("/v1/translate", {"text": text, **ways}),
        ("/v1/translate", {"text": numbers, **ways, "n_best": 3}),
        ("/v1/translate", {"text": text, **ways, "alignment": draw.choice(("words", "pieces"))}),
        ("/v1/translate", {"text": text, **ways, "beam": 2, "exclude": ["zehn"]}),
        ("/v1/translate", {"text": f"<p>{numbers[0]} <b>{numbers[-1]}</b></p>", **ways, "format": "html"}),
        ("/v1/score", pair),
        ("/v1/align", {**pair, "unit": "pieces"}),
        ("/v1/attention", {**pair, "texts": numbers[:1], "translations": numbers[-1:]}),
        ("/v1/detect", {"text": text}),
        ("/translate", {"q": text, "source": "auto", "target": target, "alternatives": 1}),
        ("/translate", {"q": f"{numbers[0]} <i>{numbers[-1]}</i>", **ways, "format": "html"}),
        ("/v2/translate", {"text": numbers, "target_lang": target.upper(), "source_lang": "EN"}),
    ]
    return draw.choice(every)


@contextmanager
def polling(host: str, port: int) -> Iterator[Connection]:
    """Request /livez repeatedly from another process; return (time, seconds) of each request."""
    own, theirs = multiprocessing.Pipe(duplex=False)
    stop = multiprocessing.Event()
    process = multiprocessing.Process(target=_poll, args=(host, port, theirs, stop), daemon=True)
    process.start()
    try:
        yield own
    finally:
        stop.set()
        process.join()


def _poll(host: str, port: int, results: Connection, stop: Any) -> None:
    asked = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    connection: socket.socket | None = None
    while not stop.is_set():
        begun = time.monotonic()
        with suppress(OSError):
            connection = connection or socket.create_connection((host, port), timeout=60)
            connection.sendall(asked)
            if not connection.recv(65536):
                connection = None
                continue
        results.send((begun, time.monotonic() - begun))
        time.sleep(0.01)


def try_shapes(words: list[str], options: argparse.Namespace) -> None:
    """Send hostile requests within the limits, one at a time, while another client requests /livez."""
    draw = random.Random(options.seed)
    slow: list[tuple[float, str]] = []
    large: list[tuple[float, str]] = []
    child = 0.0  # MB of the process that inspects models, at most
    statuses: Counter[int] = Counter()
    longest = 0.0
    with serving(words) as server, polling(server.host, server.port) as polled:
        for path in ("/v1/translate", "/page/inspect", "/page/learn"):  # tables and weights are read at first
            tree = {"text": "five", "target": "de"} if path[1] == "v" else {"text": "five", "model": ""}
            for _ in range(20):
                status, _ = asyncio.run(one_shape(server, Shape(path, json.dumps(tree).encode()), 60))
                if status in (200, 501):
                    break
        asyncio.run(closed_loop(server, 16, _honest(options), lambda *_: True, Answers()))  # as much as goes together
        before = server.memory
        for number in range(options.requests):
            shape, idle = hostile(draw), server.memory
            while polled.poll():
                polled.recv()
            status, most = asyncio.run(one_shape(server, shape, options.seconds))
            child = max(child, server.memory_of_children)
            statuses[status] += 1
            taken = [polled.recv()[1] for _ in iter(polled.poll, False)]
            longest = max([longest, *taken])
            slow.append((max(taken, default=0.0), shape.name))
            large.append((most - idle, shape.name))
            if options.verbose or status in (0, 500):
                print(f"{number}: {status} /livez {1000 * slow[-1][0]:.0f} ms, {large[-1][0]:+.0f} MB: {shape.name}")
        after = server.memory
    print(f"{options.requests} shapes: {dict(statuses)}; longest /livez {1000 * longest:.0f} ms")
    print(
        f"memory {before:.0f} MB before, {after:.0f} MB after, at most {max(large)[0]:+.0f} MB during one request;"
        f" the process that inspects models had {child:.0f} MB at most"
    )
    for title, worst in (("slowest", [f"{1000 * t:.0f} ms {name}" for t, name in sorted(slow)[-5:]]),
                         ("largest", [f"{m:+.0f} MB {name}" for m, name in sorted(large)[-5:]])):  # fmt: skip
        print(f"{title}:", *worst, sep="\n  ")


def _honest(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Send documents that fill every batch, so that the engine allocates its working memory."""
    text = "The cat sat on the mat and looked at the dog, which did not like it at all. " * 20
    for _ in range(options.warm):
        yield "/v1/translate", {"text": [text] * 4, "source": "en", "target": options.target}


async def one_shape(server: Server, shape: Shape, seconds: float) -> tuple[int, float]:
    """The status, 0 on a timeout, and the server's peak memory meanwhile."""
    client, most = Client(server.host, server.port), 0.0
    asking = asyncio.ensure_future(
        client.ask(b"POST", shape.path, shape.body, b"content-type: %s\r\nconnection: close\r\n" % shape.kind)
    )
    begun = time.perf_counter()
    while not asking.done() and time.perf_counter() - begun < seconds:
        most = max(most, server.memory)
        await asyncio.wait([asking], timeout=0.005)
    most = max(most, server.memory)
    status = asking.result()[0] if asking.done() else 0
    client.close()
    return status, most


def answers_alone(models: list[str], options: argparse.Namespace) -> dict[str, tuple[str, Any]]:
    """Path and response of some hundred different requests, each computed by itself in this process."""
    from starlette.testclient import TestClient

    import transduce
    from transduce.server import Settings, application
    from transduce.server.models import open_models

    served = open_models(models, transduce.load)
    draw, found = random.Random(5), {}
    with TestClient(application(served, Settings(seconds=3600.0)), "http://localhost") as client:
        while len(found) < options.distinct:
            path, tree = mixed(draw, options.target)
            answer = client.post(path, json=tree)
            assert answer.status_code == 200, (path, tree, answer.text)
            found[json.dumps(tree)] = (path, answer.json())
    return found
