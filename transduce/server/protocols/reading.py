"""Read requests with limits: bytes counted as they arrive, a timeout, JSON, forms and query strings.

An invalid JSON body is reported in our words: the field, what was expected there, and what was found.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from transduce.core.errors import counted, nearest
from transduce.server.answers import Gone, Refused
from transduce.server.settings import Settings

SHOWN = 40  # characters of a value
TYPES = {
    "string_type": "a text",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
}
PATTERNS = {  # of schemas.py
    r"^[A-Za-z0-9_-]+$": "a code of letters, digits, _ and -, such as de",
    r"^[A-Za-z0-9._-]*$": "a name of letters, digits, dots, _ and -",
    r"\S": "a word that can be seen",
}


def validation_message(error: ValidationError) -> str:
    """Describe the first error of a validation."""
    every = error.errors(include_url=False)
    field = every[0]["loc"][:1]
    same = [found for found in every if found["loc"][:1] == field]
    first = next((found for found in same if found["type"] not in TYPES or isinstance(found["loc"][-1], int)), same[0])
    name, found = _place(first["loc"]), _in_words(first["input"])
    if first["type"] == "missing":
        return f"{name}: expected this field, which has no default, and found none"
    if first["type"] in TYPES and first is same[0]:  # each kind that a field may have was tried
        kinds = dict.fromkeys(TYPES[other["type"]] for other in same if other["type"] in TYPES)
        return f"{name}: expected {' or '.join(kinds)}, got {found}"
    return f"{name}: expected {_expected(first['type'], first.get('ctx', {}))}, got {found}"


def _place(parts: Sequence[int | str]) -> str:
    """A field's name, as `include[0]`; of a field of several kinds, without the name of the kind."""
    if not parts:
        return "the body"
    return str(parts[0]) + "".join(f"[{part}]" for part in parts[1:] if isinstance(part, int))


def _expected(kind: str, bounds: Mapping[str, Any]) -> str:
    match kind:
        case "model_type":
            return "a JSON object"
        case "literal_error":
            return str(bounds["expected"])
        case "greater_than_equal":
            return f"a number of at least {bounds['ge']}"
        case "less_than_equal":
            return f"a number of at most {bounds['le']}"
        case "string_too_short":
            return f"a text of at least {counted(bounds['min_length'], 'character')}"
        case "string_too_long":
            return f"a text of at most {counted(bounds['max_length'], 'character')}"
        case "too_short":
            return f"a list of at least {counted(bounds['min_length'], 'item')}"
        case "too_long":
            return f"a list of at most {counted(bounds['max_length'], 'item')}"
        case "string_pattern_mismatch":
            return PATTERNS.get(bounds["pattern"], "another text")
    return TYPES.get(kind, "another value")


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {counted(len(value), 'item')}"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


MOST_FIELDS = 1000
Fields = dict[str, list[Any]]  # every value that was given under a name
M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, settings: Settings) -> bytes:
    """Read the body; raise Refused if it is too long or too slow."""
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
    """Parse a JSON body into a pydantic model."""
    if _type_of(request) != "application/json":
        raise Refused(415, "content-type: expected application/json", "type")
    tree = parse_json(await read_body(request, settings))
    if isinstance(tree, dict):  # before all else: a missing field may be there under a wrong name
        _check_names(tree, model.model_fields)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise Refused(422, validation_message(error), "invalid") from None


def _check_names(given: Iterable[str], fields: Collection[str]) -> None:
    """Raise Refused for an unknown field, naming the nearest known one."""
    for name in given:
        if name not in fields:
            name = name[:100]
            text = f"{name}: no such field{nearest(name, fields)}; fields here: {', '.join(fields)}"
            raise Refused(422, text, "invalid")


async def read_fields(request: Request, settings: Settings) -> Fields:
    """Read the fields of a JSON object, a form or the query string; a body overrules the query."""
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
    """Parse JSON strictly: no NaN, no unlimited depth."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number")

    try:
        return clean(json.loads(body.decode("utf-8"), parse_constant=refuse))
    except (ValueError, RecursionError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refused(400, f"Invalid request: the body is no JSON ({text[:200]})", "json") from None


def clean(tree: Any) -> Any:
    """Replace lone surrogates in a tree, which are no text and cannot be sent, by U+FFFD."""
    if isinstance(tree, str):
        return tree if _sound(tree) else tree.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(tree, list):
        return [clean(item) for item in tree]
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
    """The fields of a form or a query string."""
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
