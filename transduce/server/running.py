"""Run an application with uvicorn: limits on headers and connections, graceful shutdown, reloading of API keys.

SIGTERM and SIGINT close the gate at once: readiness reports it, and new work is rejected with an error, for the server
keeps listening; what was admitted is answered, and then the process ends with code 0. A second signal does not wait.
SIGHUP reloads the API keys. Where file descriptors run out, accepting pauses and the log says so once a minute.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from transduce.core.errors import RunError, UserError, counted
from transduce.core.progress import say
from transduce.server.settings import check_keys
from transduce.server.state import ServerState

MOST_HEADER_BYTES = 32 << 10
LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
REFUSED_SECONDS = 1.0  # for a rejected connection to send a request, and get the error
BACKLOG = 2048  # connections that the system queues for us
ACCEPTED = 64  # of these that are accepted at once, before other events
SPARE_FILES = 16  # descriptors left for files of pages, and for rejected connections
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SILENCE = 60.0  # seconds between two log lines about one problem
log = logging.getLogger("transduce.server")

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b'content-length: 34\r\n\r\n{"error":"too many connections"}\r\n'
)


class Overlong(Exception):
    """Too many header bytes; the parser answers 400."""


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit to the size of headers and to the time they may take."""

    header_seconds, most_connections = 10.0, 1024  # set by `serve`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused = len(self.connections) > self.most_connections
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self._refused:  # read what was sent first: closing a connection before that loses the answer
            self._refuse()
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_headers()  # the next request of a kept-alive connection
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
    """Drain on the first signal and end on the second."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, with our own log line where no connection can be accepted."""
        asyncio.get_running_loop().set_exception_handler(AcceptErrorHandler())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # uvicorn set it to ACCEPTED

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._state.drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Keep listening, and rejecting, until all admitted requests are answered; only then close the sockets."""
        clock, seconds = asyncio.get_running_loop().time, self.config.timeout_graceful_shutdown or 0
        begun = clock()
        while self._state.gate.requests and not self.force_exit and clock() - begun < seconds:
            await asyncio.sleep(0.05)
        # Answers that are still being written have what is left of the time.
        self.config.timeout_graceful_shutdown = max(1, seconds - int(clock() - begun))
        await super().shutdown(sockets)


class AcceptErrorHandler:
    """The event loop's exception handler: one line a minute while connections cannot be accepted.

    asyncio itself stops accepting for a second then, but reports each of many attempts with a traceback.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._silent_until = clock, 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_FILES:
            loop.default_exception_handler(context)
        elif self._clock() >= self._silent_until:
            self._silent_until = self._clock() + SILENCE
            log.error("no connection can be accepted (%s); allow more open files, or set connections lower", error)


def serve(
    app: Starlette,
    host: str,
    port: int,
    read_keys: Callable[[], Sequence[str]] | None = None,
    early: Sequence[int] = (),
) -> None:
    """Serve until a signal arrives; print the address, and at the end the number of requests, on standard error.

    `read_keys` reads the API keys anew on SIGHUP; `early` holds the signals that arrived before.
    """
    state: ServerState = app.state.transduce
    listener = _listen(host, port)
    connections = _allowed_connections(state.settings.connections)
    limits = {"header_seconds": state.settings.header_seconds, "most_connections": connections}
    config = uvicorn.Config(
        app,
        http=type("LimitedProtocol", (Protocol,), limits),
        ws="none",
        lifespan="on",
        log_level="error",  # invalid requests are not worth a line
        access_log=False,
        backlog=ACCEPTED,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(state.settings.seconds) + 5,
    )
    for model in state.models.served:
        say(f"{model.name}: {', '.join(map('-'.join, model.pairs))}")
    for hop in state.models.shadowed:
        (first,) = state.models.route(hop.source, hop.target)
        note = f"{hop.source}-{hop.target} goes to {first.served.name}, named first; to this model by its name alone"
        say(f"{hop.served.name}: {note}")
    logging.getLogger("transduce.server").addHandler(logging.StreamHandler())
    sys.setswitchinterval(0.0005)  # the event loop waits for the model's threads no longer than this
    gc.collect()
    gc.freeze()  # nor for the collection of permanent objects
    with _rereading(state, read_keys, early):
        name = f"[{host}]" if ":" in host else host
        say(f"listening on http://{name}:{listener.getsockname()[1]}")
        Server(config, state).run([listener])
    gate = state.gate
    say(f"stopped: {gate.admitted} requests admitted, {gate.requests} left unanswered")


@contextmanager
def _rereading(
    state: ServerState, read_keys: Callable[[], Sequence[str]] | None, early: Sequence[int]
) -> Iterator[None]:
    """Reload the API keys on SIGHUP meanwhile: requests in flight continue, and a bad file changes nothing."""

    def reread(number: int, frame: FrameType | None) -> None:
        if read_keys is None:
            log.warning("SIGHUP: there is no file of API keys to read again; start with --api-keys to have one")
            return
        try:
            keys = read_keys()
            check_keys(keys)
        except UserError as error:
            log.error("SIGHUP: the API keys stay as they were: %s", error)
            return
        state.keys.replace(keys)
        log.warning("SIGHUP: %s read", counted(len(keys), "API key was", "API keys were"))

    before = signal.signal(signal.SIGHUP, reread)
    try:
        if early:
            reread(early[-1], None)
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _allowed_connections(wanted: int) -> int:
    """The number of connections for which the process may have open files; raise the limit, or say if fewer."""
    count = wanted + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = count if soft == resource.RLIM_INFINITY else soft - len(os.listdir("/dev/fd"))
    allowed = max(2, min(wanted, free - SPARE_FILES))
    if allowed < wanted:
        say(f"connections: {wanted} lowered to {allowed}, since this process may have {soft} files open (ulimit -n)")
    return allowed


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # from now on connections are queued, not refused
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"{host}:{port}: cannot listen there ({why}); give another --host or --port") from None
    return listener
