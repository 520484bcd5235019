"""Helpers of the serving benchmarks: a server process, a small HTTP client, and statistics of responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Server:
    """A server process; `ended` is its final output."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if match := re.search(r"listening on http://(\S+):(\d+)", line):
                self.host, self.port = match[1], int(match[2])
                self._said: list[str] = []
                self._reading = threading.Thread(
                    target=lambda: self._said.extend(self.process.stderr or ()), daemon=True
                )
                self._reading.start()  # so that it does not block on a full pipe
                return
        raise SystemExit(f"the server did not start: {''.join(said)}")

    @property
    def memory(self) -> float:
        """Resident MB, without its child processes."""
        return _resident(self.process.pid)

    @property
    def memory_of_children(self) -> float:
        """Resident MB of its child processes: of the inspection process, while there is one."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = {int(pid) for task in tasks for pid in _text_of(task / "children").split()}
        return sum(_resident(pid) for pid in children)

    @property
    def processor(self) -> float:
        """Processor seconds used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self) -> str:
        """Stop it and return its final output."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._reading.join()
        return "".join(self._said)


def _resident(pid: int) -> float:
    """Resident MB of a process; 0 if it has ended."""
    found = re.search(r"VmRSS:\s+(\d+) kB", _text_of(Path(f"/proc/{pid}/status")))
    return int(found[1]) / 1024 if found else 0.0


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process or the thread has just ended
        return ""


@contextlib.contextmanager
def serving(words: Sequence[str]) -> Iterator[Server]:
    """Run our server."""
    server = Server([sys.executable, "-m", "transduce", "serve", *words, "--port", "0"])
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Answers:
    """Results of many requests: counts and times by status."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list)  # how late an open loop sent each request
    begun: float = field(default_factory=time.perf_counter)
    again: int = 0  # retries after 503

    def add(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.seconds.setdefault(status, []).append(seconds)

    def add_lost(self, count: int) -> None:
        """Requests whose client stopped waiting."""
        self.statuses.update({0: count} if count else {})

    def quantile(self, part: float, statuses: Sequence[int] = (200,)) -> float:
        """In milliseconds."""
        return _quantile(part, (one for status in statuses for one in self.seconds.get(status, ())))

    def summary(self) -> str:
        passed = time.perf_counter() - self.begun
        good = self.statuses[200]
        middle, most = self.quantile(0.5), self.quantile(0.99)
        times = f"p50 {middle:.1f} ms, p99 {most:.1f} ms"
        late = [_quantile(part, self.late) for part in (0.5, 0.99, 1.0)]
        own = f"; sent late by p50 {late[0]:.1f} ms, p99 {late[1]:.1f} ms, max {late[2]:.1f} ms" if self.late else ""
        return f"{dict(self.statuses)} in {passed:.1f} s: {good / passed:.1f} answers/s, {times}{own}"


def _quantile(part: float, seconds: Iterable[float]) -> float:
    every = sorted(seconds)
    return 1000 * every[min(len(every) - 1, int(part * len(every)))] if every else math.nan


class Client(asyncio.Protocol):
    """A kept-alive connection; status 0 means no response. Minimal, so that it does not take the server's time."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._came, self._start, self._size = bytearray(), 0, 0

    async def post(self, path: str, tree: Any) -> tuple[int, bytes]:
        body = json.dumps(tree).encode()
        return await self.ask(b"POST", path, body, b"content-type: application/json\r\n")

    async def ask(self, method: bytes, path: str, body: bytes = b"", headers: bytes = b"") -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():  # the server may have closed it
            try:
                await loop.create_connection(lambda: self, self.host, self.port)
            except OSError:
                return 0, b""
        assert self._transport is not None
        self._answer, self._size = loop.create_future(), 0
        self._came.clear()
        head = b"%s %s HTTP/1.1\r\nhost: localhost\r\n%scontent-length: %d\r\n\r\n"
        self._transport.write(head % (method, path.encode(), headers, len(body)) + body)
        return await self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        if not self._size:
            self._start = self._came.find(b"\r\n\r\n") + 4
            if self._start < 4:
                return
            length = re.search(rb"content-length: (\d+)", self._came[: self._start], re.IGNORECASE)
            self._size = self._start + (int(length[1]) if length else 0)
        if len(self._came) >= self._size:
            if b"connection: close" in self._came[: self._start].lower():
                self.close()
            self._end(int(self._came[9:12]), bytes(self._came[self._start : self._size]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(0, b"")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _end(self, status: int, content: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, content))


async def closed_loop(
    server: Server,
    clients: int,
    work: Iterator[tuple[str, Any]],
    check: Callable[[Any, bytes], bool],
    answers: Answers,
    persistent: bool = False,
) -> Answers:
    """Let each client send its next request after a response, until all are done; `persistent` retries after 503."""

    async def one() -> None:
        client = Client(server.host, server.port)
        for path, tree in work:
            begun = time.perf_counter()
            status, content = await client.post(path, tree)
            while persistent and status == 503:
                answers.again += 1
                await asyncio.sleep(0.2)
                status, content = await client.post(path, tree)
            answers.add(status, time.perf_counter() - begun)
            if status == 200 and not check(tree, content):
                answers.wrong.append(f"{tree} {content[:200]!r}")
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return answers


async def open_loop(
    server: Server, rate: float, seconds: float, make: Callable[[int], tuple[str, Any]], delays: Callable[[], float]
) -> Answers:
    """Send requests at a rate, whether or not earlier ones are answered; connections are reused and opened as needed.

    Times start when a request was due, so they include the sender's own delay, which `answers.late` has.
    """
    answers = Answers()
    idle: list[Client] = []
    tasks: set[asyncio.Future[None]] = set()
    begun = time.perf_counter()
    due, number = begun, 0

    async def one(number: int, due: float) -> None:
        client = idle.pop() if idle else Client(server.host, server.port)
        path, tree = make(number)
        answers.late.append(time.perf_counter() - due)
        status, _ = await client.post(path, tree)
        answers.add(status, time.perf_counter() - due)
        idle.append(client)

    while due < begun + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.ensure_future(one(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due, number = due + delays() / rate, number + 1
    if tasks:
        await asyncio.wait(tasks, timeout=60)
    answers.add_lost(len(tasks))
    for client in idle:
        client.close()
    return answers


async def gauge(server: Server, name: str) -> float:
    """Read a value of /metrics."""
    client = Client(server.host, server.port)
    _, content = await client.ask(b"GET", "/metrics")
    client.close()
    found = re.search(rf"^{name} (\S+)$".encode(), content, re.MULTILINE)
    return float(found[1]) if found else math.nan


async def until(holds: Callable[[], Awaitable[bool]], seconds: float) -> float:
    """Seconds until a condition held; NaN if it did not."""
    begun = time.perf_counter()
    while not await holds():
        if time.perf_counter() - begun > seconds:
            return math.nan
        await asyncio.sleep(0.01)
    return time.perf_counter() - begun
