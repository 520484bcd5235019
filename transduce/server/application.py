"""The ASGI application: every protocol over one set of models, and a guard around every request.

The guard is plain ASGI, so that nothing stands between a handler and a client that goes away. It admits only requests
for the server's own host names, adds security headers to every answer, counts requests, and logs and answers unexpected
errors.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.server import pages
from transduce.server.answering import GONE, check_insider, failed, refused, state_of
from transduce.server.answers import Gone, Json, Refused
from transduce.server.models import Served
from transduce.server.protocols import deepl, deepl_glossaries, glossaries, libretranslate, v1
from transduce.server.settings import Settings
from transduce.server.state import CONTENT_TYPE, ServerState

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
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/?#@\\]*)(?::[0-9]{0,5})?")  # RFC 9110, section 7.2: name and port
STRANGE_SITES = ("cross-site", "same-site")  # a browser's Sec-Fetch-Site for a page that is not our own


class Guard:
    """ASGI middleware around the application: hosts, admission, headers, metrics, unexpected errors."""

    def __init__(self, app: ASGIApp, state: ServerState, endpoints: Sequence[str]) -> None:
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
        """Reject work for which there is no capacity before any of it is read."""
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            if scope["method"] == "POST":
                _check_site(headers)
                if scope["path"] in self._endpoints:
                    self.state.gate.check()
        except Refused as error:
            return failed(scope["path"], error)
        return self.app

    def _check_host(self, headers: Headers) -> None:
        """Check the Host header: a page elsewhere can have its own name resolve to this address."""
        given = headers.getlist("host") or [""]
        match = _HOST.fullmatch(given[0])
        if len(given) > 1 or match is None:
            found = "several" if len(given) > 1 else repr(given[0][:100])
            raise Refused(400, f"host: expected one name with or without a port, got {found}", "host", close=True)
        hosts = self.state.settings.hosts
        if hosts and match[1].lower() not in hosts:
            text = "this server does not go by that name; start it with hosts=[...] to allow it"
            raise Refused(421, text, "host")


def _check_site(headers: Headers) -> None:
    """Reject requests from pages of other sites, which could not read the answer but use up the model."""
    if headers.get("sec-fetch-site", "").lower() in STRANGE_SITES:
        raise Refused(403, "pages of other sites may not send requests to this server", "site")


def application(models: Sequence[Served], settings: Settings | None = None) -> Starlette:
    """Build the ASGI app that translates with these models; `app.state.transduce` is its ServerState."""
    state = ServerState(models, settings or Settings())
    protocols = (libretranslate, deepl, deepl_glossaries, v1, glossaries)
    routes = [*_health(), *(route for protocol in protocols for route in protocol.routes()), *pages.routes(state)]
    endpoints = [route.path for route in routes if isinstance(route, Route)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        state.close()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, state=state, endpoints=endpoints)],
        exception_handlers={Refused: refused, Gone: refused, HTTPException: refused},
        lifespan=lifespan,
    )
    app.state.transduce = state
    return app


def _health() -> list[BaseRoute]:
    async def live(request: Request) -> Response:
        return Json({"status": "alive"})

    async def ready(request: Request) -> Response:
        closed = state_of(request).gate.closed
        return Json({"status": "draining" if closed else "ready"}, 503 if closed else 200)

    async def metrics(request: Request) -> Response:
        await check_insider(request)
        return Response(state_of(request).meter.text(), media_type=CONTENT_TYPE)

    return [Route("/livez", live), Route("/readyz", ready), Route("/metrics", metrics)]
