"""The application: every protocol over the same models, as an ASGI app that any server can run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.server import deepl, libretranslate, ours, pages
from transduce.server.answering import check_insider, refused, state_of
from transduce.server.failures import Gone, Refused
from transduce.server.meter import CONTENT_TYPE
from transduce.server.middleware import Guard
from transduce.server.models import Served
from transduce.server.rendering import Json
from transduce.server.settings import Settings
from transduce.server.state import ServerState


def application(models: Sequence[Served], settings: Settings | None = None) -> Starlette:
    """An ASGI app that translates with these models; `app.state.transduce` is what its handlers share."""
    state = ServerState(models, settings or Settings())
    routes = [*_health(), *libretranslate.routes(), *deepl.routes(), *ours.routes(), *pages.routes(state)]
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
