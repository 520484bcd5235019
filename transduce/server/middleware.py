"""What happens to every request, as plain ASGI: nothing here stands between a handler and a client that goes away.

Only names that this server answers to are let in, every answer has headers that keep a browser from anything but this
server, every request is counted, and what goes wrong unforeseen is logged and answered too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.server.answering import GONE, Json, failed
from transduce.server.failures import Refused
from transduce.server.state import State

log = logging.getLogger("transduce.server")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FAULT = "something went wrong here; the server's log says what"
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
CLOSE = (b"connection", b"close")


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, state: State, endpoints: Sequence[str]) -> None:
        self.app, self.state, self._endpoints = app, state, frozenset(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), GONE
        endpoint = scope["path"] if scope["path"] in self._endpoints else "other"

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
                if self.state.gate.closed and CLOSE not in message["headers"]:
                    message["headers"].append(CLOSE)
            await send(message)

        try:
            await self._chosen(scope)(scope, receive, sending)
        except Exception:
            if status != GONE:  # an answer that has begun can only break off
                raise
            log.exception("a request to %s failed", endpoint)
            await failed(scope["path"], Refused(500, FAULT, "fault"))(scope, receive, sending)
        finally:
            self.state.meter.answered(endpoint, status, time.perf_counter() - begun)

    def _chosen(self, scope: Scope) -> ASGIApp:
        """Work for which there is no room is refused before any of it is read."""
        if not self._known(scope):
            return _misdirected
        if scope["method"] == "POST" and scope["path"] in self._endpoints:
            try:
                self.state.gate.check()
            except Refused as error:
                return failed(scope["path"], error)
        return self.app

    def _known(self, scope: Scope) -> bool:
        """Whether the request is meant for us: a page elsewhere can have its own name lead to this address."""
        hosts = self.state.settings.hosts
        host = Headers(scope=scope).get("host", "")
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return not hosts or name.lower() in hosts


async def _misdirected(scope: Scope, receive: Receive, send: Send) -> None:
    text = "this server does not go by that name; start it with hosts=[...] to allow it"
    await Json({"error": text}, 421)(scope, receive, send)
