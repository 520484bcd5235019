"""End a request: with its answer, a timeout, or a client that went away; errors in the words of every protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transduce.core.errors import UserError
from transduce.server.answers import Gone, Json, Refused
from transduce.server.protocols.reading import key_of, query_of
from transduce.server.state import ServerState

T = TypeVar("T")
GONE = 499  # for the metrics alone: nobody reads it
TOO_LONG = 413


def state_of(request: Request) -> ServerState:
    """The shared state of the application."""
    state: ServerState = request.app.state.transduce
    return state


async def asker_of(request: Request, fields: Mapping[str, list[Any]] | None = None) -> bytes:
    """Identify the caller; raise Refused for a missing or wrong key, or too many requests."""
    state = state_of(request)
    return await state.keys.admit(key_of(request, fields), state.proxies.address(request))


async def check_insider(request: Request) -> None:
    """Restrict endpoints about the server itself, where keys are needed, to local programs and key holders."""
    state = state_of(request)
    if state.keys.required and not state.proxies.is_local(request):
        await asker_of(request, query_of(request))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await the work; cancel it when the client goes away, or after the seconds that a request has."""
    state = state_of(request)
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, timeout=state.settings.seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return _result(task)
        if watch.done():
            raise Gone
        raise Refused(504, f"the answer took longer than {state.settings.seconds:g} s", "deadline", 1)
    finally:
        for unfinished in (task, watch):
            if not unfinished.done():
                unfinished.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await unfinished


def _result(task: asyncio.Future[T]) -> T:
    """The result; turn a UserError into a 400."""
    try:
        return task.result()
    except UserError as error:
        raise Refused(400, str(error), "request") from None


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def refused(request: Request, error: Exception) -> Response:
    """The error response to an exception, in the words of the request's protocol."""
    if isinstance(error, Gone):
        state_of(request).meter.gone()
        return Response(status_code=GONE)
    if isinstance(error, HTTPException):
        error = Refused(error.status_code, _words(request, error), "http")
    assert isinstance(error, Refused)
    answer = failed(request.url.path, error, state_of(request).settings.body_seconds)
    if isinstance(allow := getattr(request.state, "allow", None), str):
        answer.headers["Allow"] = allow
    return answer


class DrainingResponse(Json):
    """A response to a request whose body continues: the rest is read and discarded for some `seconds`.

    A connection that is closed while the client still writes is reset, and the answer is lost with it.
    """

    seconds = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def failed(path: str, error: Refused, seconds: float = 0.0) -> Response:
    """The response to a rejected request; the rest of a body that is too long is read for some `seconds`."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.close:
        headers["Connection"] = "close"
    kind = DrainingResponse if error.status == TOO_LONG and error.close and seconds else Json
    answer = kind(_error_body(path, error), error.status, headers)
    if isinstance(answer, DrainingResponse):
        answer.seconds = seconds
    return answer


def _error_body(path: str, error: Refused) -> dict[str, str]:
    first = path[1:].partition("/")[0]
    if first in ("v2", "v3"):  # DeepL
        return {"message": error.message}
    code = {"code": error.code} if first == "v1" else {}  # LibreTranslate has none
    language = {"language": error.language} if first == "v1" and error.language else {}
    return {"error": error.message, **code, **language}


def _words(request: Request, error: HTTPException) -> str:
    if error.headers and "Allow" in error.headers:
        request.state.allow = error.headers["Allow"]
        allowed = " or ".join(sorted(error.headers["Allow"].split(", ")))
        return f"{request.url.path}: expected {allowed}, got {request.method}"
    return f"{request.url.path}: there is nothing here" if error.status_code == 404 else str(error.detail)
