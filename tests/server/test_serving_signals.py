"""A server as a process: SIGHUP reads keys again, few descriptors are no flood, a body too long has its answer."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cli_runner import Run

import transduce
from transduce.cli.arguments import Opening
from transduce.engines.native.library import built
from transduce.server.running import SILENCE, AcceptErrorHandler
from transduce.server.state import ServerState

pytestmark = [pytest.mark.skipif(built() is None, reason="the core is not built: make native"), pytest.mark.slow]
START = (
    "import resource, sys; sys.modules['torch'] = None; files = int(sys.argv.pop(1))\n"
    "if files: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))\n"
    "from transduce.__main__ import main; main()"
)


class Server:
    """A running `transduce serve`, perhaps with few `files`; `said` grows with what it says."""

    def __init__(self, folder: Path, *words: str, files: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(files), "serve", f"en-de={folder}", "--port", "0", *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.said: list[str] = []
        self._reading = threading.Thread(target=lambda: self.said.extend(self.process.stderr or ()), daemon=True)
        self._reading.start()
        until(lambda: self.port > 0 or self.process.poll() is not None)
        assert self.process.poll() is None, self.said

    @property
    def port(self) -> int:
        found = re.search(r"listening on http://127.0.0.1:(\d+)", "".join(self.said))
        return int(found[1]) if found else 0

    def ask(self, key: str = "", path: str = "/v1/detect") -> int:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection.request("POST", path, json.dumps({"text": "five"}), headers)
        return connection.getresponse().status

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        self._reading.join()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds
        time.sleep(0.01)


@pytest.fixture
def server(native_toy: Path) -> Iterator[Server]:
    server = Server(native_toy)
    yield server
    server.stop()


def test_sighup_reads_the_keys_again(native_toy: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    server = Server(native_toy, "--api-keys", str(keys))
    kept = HTTPConnection("127.0.0.1", server.port, timeout=30)
    kept.request("GET", "/livez")
    assert kept.getresponse().read()
    assert (server.ask("old"), server.ask("new")) == (200, 403)
    keys.write_text("# changed\nnew\n")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "SIGHUP: 1 API key was read\n" in server.said)
    assert (server.ask("old"), server.ask("new")) == (403, 200)
    keys.write_text("\n")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: any(line.startswith("SIGHUP: the API keys stay as they were: ") for line in server.said))
    assert server.ask("new") == 200
    keys.unlink()
    os.mkfifo(keys)  # nobody writes to it
    server.process.send_signal(signal.SIGHUP)
    until(lambda: any("keys: the file of API keys cannot be read: not a regular file" in line for line in server.said))
    assert server.ask("new") == 200
    keys.unlink()
    keys.write_text("a key\n")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: any("keys:1: keys: expected visible ASCII" in line for line in server.said))
    assert server.ask("new") == 200
    kept.request("GET", "/livez")  # over the connection that was there before
    assert kept.getresponse().status == 200
    server.stop()


def test_sighup_while_models_are_loaded_is_answered_later(
    native_toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    load = Opening.load

    def slowly(self: Opening, folder: Path) -> transduce.Translator:
        keys.write_text("new\nnewer\n")
        os.kill(os.getpid(), signal.SIGHUP)
        return load(self, folder)

    class Server:
        def __init__(self, config: object, state: ServerState) -> None:
            self.keys = state.keys

        def run(self, sockets: list[socket.socket]) -> None:
            assert self.keys.check("new", "")
            sockets[0].close()

    monkeypatch.setattr(Opening, "load", slowly)
    monkeypatch.setattr("transduce.server.running.Server", Server)
    before = signal.getsignal(signal.SIGHUP)
    copied = shutil.copytree(native_toy, tmp_path / "copied")
    ran = run("serve", f"en-de={native_toy}", f"en-de={copied}", "--api-keys", keys, "--port", "0")
    assert ran.code == 0, ran.err
    assert "copied: en-de goes to toy, named first; to this model by its name alone\n" in ran.err
    assert "SIGHUP: 2 API keys were read" in caplog.text
    assert signal.getsignal(signal.SIGHUP) == before


def test_sighup_without_keys_ends_nothing(server: Server) -> None:
    server.process.send_signal(signal.SIGHUP)
    until(lambda: any(line.startswith("SIGHUP: there is no file of API keys") for line in server.said))
    assert server.ask() == 200


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_too_long_is_answered_and_not_reset(server: Server, chunked: bool) -> None:
    """Whoever sends all of it before reading has the answer too."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    chunk = b"x" * 65536
    headers = {"content-type": "application/json"} | ({} if chunked else {"content-length": str(len(chunk) * 128)})
    connection.request("POST", "/v1/detect", (chunk for _ in range(128)), headers, encode_chunked=chunked)
    answer = connection.getresponse()
    assert answer.status == 413
    told = {"error": "the body is longer than 131072 bytes", "code": "body"}
    assert (json.loads(answer.read()), answer.headers["connection"]) == (told, "close")
    assert server.ask() == 200


def test_few_descriptors_are_no_flood(native_toy: Path) -> None:
    server = Server(native_toy, files=64)
    lowered = re.search(
        r"connections: 1024 lowered to (\d+), since this process may have 64 files open", server.said[0]
    )
    assert lowered
    assert 2 <= int(lowered[1]) < 60
    kept = []
    for _ in range(200):
        kept.append(socket.socket())
        kept[-1].setblocking(False)
        kept[-1].connect_ex(("127.0.0.1", server.port))
    until(lambda: any("no connection can be accepted" in line for line in server.said))
    for one in kept:
        one.close()
    until(lambda: _is_alive(server))
    server.stop()
    trouble = [line for line in server.said if "accept" in line]
    assert len(trouble) == 1, server.said[:20]
    assert len(server.said) < 10


def _is_alive(server: Server) -> bool:
    try:
        return server.ask() == 200
    except OSError:
        return False


def test_the_log_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    trouble = AcceptErrorHandler(lambda: now)
    others: list[object] = []

    class Loop:
        def default_exception_handler(self, context: object) -> None:
            others.append(context)

    context = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "Too many")}
    with caplog.at_level(logging.ERROR, "transduce.server"):
        for _ in range(1000):
            trouble(Loop(), context)  # type: ignore[arg-type]
        assert len(caplog.records) == 1
        now += SILENCE
        trouble(Loop(), context)  # type: ignore[arg-type]
        assert len(caplog.records) == 2
    assert "no connection can be accepted ([Errno 24] Too many); allow more open files" in caplog.text
    trouble(Loop(), {"message": "else", "exception": ValueError()})  # type: ignore[arg-type]
    assert len(others) == 1
