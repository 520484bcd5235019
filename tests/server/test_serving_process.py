"""A server as a process of its own, without torch: real sockets that close, signals, and requests that mean no good."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.engines.native.library import built

pytestmark = [pytest.mark.skipif(built() is None, reason="the core is not built: make native"), pytest.mark.slow]
START = "import sys; sys.modules['torch'] = None; from transduce.__main__ import main; main()"


class Server:
    """A running `transduce serve` where torch cannot be imported."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "serve", f"en-de,en-zh={folder}", "--port", "0", *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            if match := re.search(r"listening on http://127.0.0.1:(\d+)", line):
                self.port = int(match[1])
                return
        raise AssertionError("".join(self.said))

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def gauge(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.ask("/metrics")[1], re.MULTILINE)
        assert found
        return float(found[1])

    def send(self, data: bytes, wait: float = 5.0) -> bytes:
        """What comes back over a bare socket until it is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            answer = b""
            try:
                connection.sendall(data)
                while chunk := connection.recv(65536):
                    answer += chunk
                    if b"\r\n\r\n" in answer and b"connection: close" not in answer:
                        break
            except ConnectionError:
                pass
            return answer

    def stop(self) -> str:
        """What it says at the end."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> str:
        """The server process after a signal."""
        assert self.process.stderr is not None
        rest = self.process.stderr.read()
        assert self.process.wait(40) == 0, rest
        return rest


@pytest.fixture(scope="module")
def server(native_toy: Path) -> Iterator[Server]:
    server = Server(native_toy, "header_seconds=1.0", "body_seconds=1.0", "seconds=20.0", "workers=1")
    yield server
    if server.process.poll() is None:
        server.stop()


def until(holds: Callable[[], bool], seconds: float) -> float:
    """How long it took until something held."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds
        time.sleep(0.01)
    return time.monotonic() - begun


def test_it_translates_without_torch(server: Server, served_translator: transduce.Translator) -> None:
    status, text = server.ask("/translate", {"q": "five", "source": "en", "target": "de"})
    assert (status, json.loads(text)) == (200, {"translatedText": served_translator("five", to="de")})
    assert server.ask("/livez")[0] == server.ask("/readyz")[0] == 200


def test_models_are_inspected_in_another_process_which_has_torch(server: Server) -> None:
    """The server cannot import torch, so whatever needs it was not done there."""
    for path in ("/page/inspect", "/page/learn"):
        status, text = server.ask(path, {"text": "five", "model": "", "to": "de"})
        assert status == 200, text
    assert json.loads(text)["blocks"]


def test_many_at_once_get_their_own(server: Server, served_translator: transduce.Translator) -> None:
    texts = [f"{word}, {other}" for word in ("five", "sixty", "eleven") for other in ("two", "nine", "forty", "one")]
    expected = dict(zip(texts, served_translator(texts, to="zh"), strict=True))
    wrong = []

    def ask(texts: list[str]) -> None:
        for text in texts:
            status, found = server.ask("/translate", {"q": text, "source": "en", "target": "zh"})
            if (status, json.loads(found).get("translatedText")) != (200, expected[text]):
                wrong.append((text, status, found))

    threads = [threading.Thread(target=ask, args=(texts[i:] + texts[:i],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_who_hangs_up_frees_the_model(server: Server) -> None:
    asked = {"text": ["seven, eleven, " * 150] * 30, "source": "en", "target": "de", "beam": 16}
    head = b"POST /v1/translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for stream in (False, True, True):
        body = json.dumps({**asked, "stream": stream}).encode()
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        until(lambda: server.gauge("transduce_running_sentences") > 0, 30)
        connection.close()
        # A second on a machine of one's own (benchmarks/serving.py measures it); all of the work would take a minute.
        until(lambda: server.gauge("transduce_gate_requests") == 0, 10)
        until(lambda: server.gauge("transduce_running_sentences") == 0, 10)
    assert server.gauge("transduce_disconnects_total") >= 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET /health HTTP/1.1\r\nhost: loc", b""),  # headers that never end
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 20000, b"HTTP/1.1 400"),
        (b"GET /" + b"x" * 70000, b"HTTP/1.1 400"),
        (b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\nq=fi", b"HTTP/1.1 408"),
        (b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n", b"HTTP/1.1 413"),
        (
            b"POST /translate HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n" + b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n" + b"ffff\r\nxxxx",
            b"HTTP/1.1 413",
        ),
        (
            b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n"
            b"transfer-encoding: chunked\r\n\r\n0\r\n",
            b"HTTP/1.1 400",
        ),
        (b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nq=abcd",
         b"HTTP/1.1 400"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"HTTP/1.1 400"),
        (b"GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n", b"HTTP/1.1 421"),
    ],
    ids="slow-headers many-headers long-url slow-body announced chunked both-lengths two-lengths tls host".split(),
)  # fmt: skip
def test_requests_that_mean_no_good(server: Server, data: bytes, expected: bytes) -> None:
    begun = time.monotonic()
    assert server.send(data)[:12] == expected
    assert time.monotonic() - begun < 4
    assert server.ask("/health")[0] == 200


def test_a_connection_too_many_is_refused_in_words(native_toy: Path) -> None:
    server = Server(native_toy, "connections=2")
    kept = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    for one in kept:
        one.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
    begun = time.monotonic()
    for _ in range(5):
        answer = server.send(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"retry-after: 1" in answer
        assert b"too many connections" in answer
    assert time.monotonic() - begun < 4
    assert server.send(b"") == b""  # who says nothing is let go
    for one in kept:
        one.close()
    until(lambda: server.send(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200"), 5)
    server.stop()


def test_a_signal_drains(native_toy: Path, served_translator: transduce.Translator) -> None:
    server = Server(native_toy)
    long = {"text": ["seven, eleven, " * 40] * 10, "source": "en", "target": "de", "beam": 8}
    found: list[tuple[int, str]] = []
    asking = threading.Thread(target=lambda: found.append(server.ask("/v1/translate", long)))
    asking.start()
    kept = HTTPConnection("127.0.0.1", server.port, timeout=20)
    kept.request("GET", "/readyz")
    assert kept.getresponse().read()
    until(lambda: server.gauge("transduce_gate_requests") > 0, 10)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.ask("/readyz")[0] == 503, 5)  # each over a connection of its own
    assert server.ask("/health") == (503, '{"status":"draining"}')
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/translate", "q=five&source=en&target=de")
    refused = connection.getresponse()
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert "shutting down" in refused.read().decode()
    assert not found  # what was admitted is still being done
    rest = server.ended()
    asking.join()
    assert found[0][0] == 200, found
    assert len(json.loads(found[0][1])["translations"]) == 10
    assert rest == "stopped: 1 requests admitted, 0 left unanswered\n"
