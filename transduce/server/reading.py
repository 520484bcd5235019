"""Requests read with limits: bytes counted as they come, a time for them to come in, JSON, forms and query strings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from transduce.server.failures import Gone, Refused
from transduce.server.settings import Settings
from transduce.server.validation import validation_message
from transduce.wording import nearest

MOST_FIELDS = 1000
Fields = dict[str, list[Any]]  # every value that was given under a name
M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body, if it is not too long and does not take too long."""
    too_long = Refused(413, f"the body is longer than {settings.body} bytes", "body", close=True)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "content-encoding: expected none, since compressed bodies are not read", "encoding")
    announced = request.headers.get("content-length", "0")
    if not announced.isdigit() or len(announced) > 12 or int(announced) > settings.body:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > settings.body:
                    raise too_long
    except TimeoutError:
        message = f"the body did not arrive within {settings.body_seconds:g} s"
        raise Refused(408, message, "slow", close=True) from None
    except ClientDisconnect:
        raise Gone from None
    return bytes(body)


async def read_json(request: Request, settings: Settings, model: type[M]) -> M:
    """A body of JSON as a pydantic model."""
    if _type_of(request) != "application/json":
        raise Refused(415, "content-type: expected application/json", "type")
    tree = parse_json(await read_body(request, settings))
    if isinstance(tree, dict):  # before all else: a field that lacks may be there under a wrong name
        _check_names(tree, model.model_fields)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise Refused(422, validation_message(error), "invalid") from None


def _check_names(given: Iterable[str], fields: Collection[str]) -> None:
    """Refuse a name that no field has, with the nearest that one has."""
    for name in given:
        if name not in fields:
            name = name[:100]
            text = f"{name}: no such field{nearest(name, fields)}; fields here: {', '.join(fields)}"
            raise Refused(422, text, "invalid")


async def read_fields(request: Request, settings: Settings) -> Fields:
    """What a JSON object, a form or the query string says; a body overrules the query."""
    found = query_of(request)
    body, kind = await read_body(request, settings), _type_of(request)
    if kind == "application/json" or kind.endswith("+json"):
        tree = parse_json(body) if body else {}
        if not isinstance(tree, dict):
            raise Refused(400, "Invalid request: expected a JSON object", "json")
        return {**found, **{name: [value] for name, value in tree.items()}}
    if kind == "multipart/form-data":
        return {**found, **await _multipart(request, body)}
    return {**found, **_pairs(body)}


def parse_json(body: bytes) -> Any:
    """JSON as its standard has it: no NaN, no endless depth."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number")

    try:
        return clean(json.loads(body.decode("utf-8"), parse_constant=refuse))
    except (ValueError, RecursionError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refused(400, f"Invalid request: the body is no JSON ({text[:200]})", "json") from None


def clean(tree: Any) -> Any:
    """The same tree with lone surrogates, which are no text and cannot be sent, replaced by U+FFFD."""
    if isinstance(tree, str):
        return tree if _sound(tree) else tree.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(tree, list):
        return [clean(one) for one in tree]
    if isinstance(tree, dict):
        return {clean(name): clean(value) for name, value in tree.items()}
    return tree


def _sound(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_of(request: Request, fields: Mapping[str, list[Any]] | None = None) -> str:
    """The API key, wherever a client puts it."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key") and key:
        return key.strip()
    given = (fields or {}).get("api_key", [""])[0]
    return given if isinstance(given, str) else ""


def query_of(request: Request) -> Fields:
    """The fields of the query string."""
    return _pairs(request.scope["query_string"])


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _pairs(text: bytes) -> Fields:
    """Of a form or a query string."""
    try:
        given = parse_qsl(
            text.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS, encoding="utf-8", errors="replace"
        )
    except ValueError:
        message = f"Invalid request: expected a form of at most {MOST_FIELDS} fields in UTF-8"
        raise Refused(400, message, "form", close=True) from None
    found: Fields = {}
    for name, value in given:
        found.setdefault(name, []).append(value)
    return found


async def _multipart(request: Request, body: bytes) -> Fields:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    found: Fields = {}
    try:
        form = await Request(request.scope, receive).form(max_files=0, max_fields=MOST_FIELDS, max_part_size=len(body))
    except (HTTPException, ValueError, KeyError) as error:
        text = error.detail if isinstance(error, HTTPException) else "its parts cannot be told apart"
        raise Refused(400, f"Invalid request: {text}", "form") from None
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            found.setdefault(name, []).append(clean(value))
    return found
