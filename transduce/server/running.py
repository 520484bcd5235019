"""An application run by uvicorn: headers that come slowly or without end are cut off, signals drain before they end.

SIGTERM and SIGINT close the gate at once: readiness says so, and new work is refused with words, for the server goes on
listening; what was admitted is answered, and then the process ends with code 0. A second signal does not wait.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import sys
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from transduce.errors import RunError
from transduce.server.state import State

MOST_HEADER_BYTES = 32 << 10
LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
REFUSED_SECONDS = 1.0  # for a connection too many to say something, and be told so

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b'content-length: 34\r\n\r\n{"error":"too many connections"}\r\n'
)


class Overlong(Exception):
    """More header bytes than anybody needs; the parser answers 400."""


class Protocol(HttpToolsProtocol):
    """uvicorn's own, with a limit to the size of headers and to the time they may take."""

    header_seconds, most_connections = 10.0, 1024  # set by `serve`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused = len(self.connections) > self.most_connections
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self._refused:  # what was sent is read first: a connection closed before that takes the answer with it
            self._refuse()
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_headers()  # the next request of a connection that was kept
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MOST_HEADER_BYTES:
            raise Overlong

    def _refuse(self) -> None:
        self.transport.write(FULL)
        self.transport.close()

    def _wait_for_headers(self) -> None:
        seconds = REFUSED_SECONDS if self._refused else self.header_seconds
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Drains on the first signal and ends on the second."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._state.drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and refuse, until all that was admitted is answered; only then close what we listen on."""
        clock, seconds = asyncio.get_running_loop().time, self.config.timeout_graceful_shutdown or 0
        begun = clock()
        while self._state.gate.requests and not self.force_exit and clock() - begun < seconds:
            await asyncio.sleep(0.05)
        # Answers that are still being written have what is left of the time.
        self.config.timeout_graceful_shutdown = max(1, seconds - int(clock() - begun))
        await super().shutdown(sockets)


def serve(app: Starlette, host: str, port: int) -> None:
    """Run until a signal comes; says on standard error where it listens, and at the end what became of all requests."""
    state: State = app.state.transduce
    listener = _listen(host, port)
    limits = {"header_seconds": state.settings.header_seconds, "most_connections": state.settings.connections}
    _allow_files(state.settings.connections + 256)
    config = uvicorn.Config(
        app,
        http=type("LimitedProtocol", (Protocol,), limits),
        ws="none",
        lifespan="on",
        log_level="error",  # what strangers send is no news
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(state.settings.seconds) + 5,
    )
    for one in state.models.served:
        print(f"{one.name}: {', '.join(map('-'.join, one.pairs))}", file=sys.stderr)
    name = f"[{host}]" if ":" in host else host
    print(f"listening on http://{name}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    logging.getLogger("transduce.server").addHandler(logging.StreamHandler())
    sys.setswitchinterval(0.0005)  # the loop waits for the threads of the models no longer than this
    gc.collect()
    gc.freeze()  # nor for a search of all that stays anyway
    Server(config, state).run([listener])
    gate = state.gate
    print(f"stopped: {gate.admitted} requests admitted, {gate.requests} left unanswered", file=sys.stderr, flush=True)


def _allow_files(count: int) -> None:
    """As many open files as connections need, where the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard)
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)  # from now on who connects is kept waiting, and not refused
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"{host}:{port}: cannot listen there ({why}); give another --host or --port") from None
    return listener
