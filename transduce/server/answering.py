"""How a handler ends: with its answer, or because time ran out or the client went away; refusals in every protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from transduce.errors import UserError
from transduce.server.failures import Gone, Refused
from transduce.server.state import State

T = TypeVar("T")
GONE = 499  # for the meter: nobody reads it


class Json(Response):
    """A tree as JSON in UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def state_of(request: Request) -> State:
    """What the application shares."""
    state: State = request.app.state.transduce
    return state


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. It is cancelled when the client goes away, or after the seconds that a request has."""
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
        for one in (task, watch):
            if not one.done():
                one.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await one


def _result(task: asyncio.Future[T]) -> T:
    """What a user can put right is a refusal."""
    try:
        return task.result()
    except UserError as error:
        raise Refused(400, str(error), "request") from None


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def refused(request: Request, error: Exception) -> Response:
    """A refusal, in the words of the protocol that was spoken."""
    if isinstance(error, Gone):
        state_of(request).meter.gone()
        return Response(status_code=GONE)
    if isinstance(error, HTTPException):
        error = Refused(error.status_code, _words(request, error), "http")
    assert isinstance(error, Refused)
    answer = failed(request.url.path, error)
    if isinstance(allow := getattr(request.state, "allow", None), str):
        answer.headers["Allow"] = allow
    return answer


def failed(path: str, error: Refused) -> Response:
    """The answer to a request that is refused."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.close:
        headers["Connection"] = "close"
    return Json(_told(path, error), error.status, headers)


def _told(path: str, error: Refused) -> dict[str, str]:
    first = path[1:].partition("/")[0]
    if first in ("v2", "v3"):  # DeepL
        return {"message": error.message}
    code = {"code": error.code} if first == "v1" else {}  # LibreTranslate has none
    return {"error": error.message, **code}


def _words(request: Request, error: HTTPException) -> str:
    if error.headers and "Allow" in error.headers:
        request.state.allow = error.headers["Allow"]
    return {404: f"{request.url.path}: there is nothing here", 405: "Method not allowed"}.get(
        error.status_code, str(error.detail)
    )
