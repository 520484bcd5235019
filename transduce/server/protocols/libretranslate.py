"""LibreTranslate's API, as its clients use it: JSON, forms and query strings, its schemas and its error texts.

The Swagger 2 document of this API, which some of its clients and tools read, is at /spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce import __version__
from transduce.server.answering import asker_of, state_of, unless_gone
from transduce.server.answers import Json, Refused, rendered
from transduce.server.protocols.glossaries import requested
from transduce.server.protocols.reading import Fields, read_fields
from transduce.server.settings import Settings
from transduce.server.state import ServerState
from transduce.server.translating import TranslationRequest, translate
from transduce.text.languages import Detected, name_of

_ERRORS = {
    "400": "Invalid request", "403": "Not allowed", "429": "Slow down", "500": "Translation error", "503": "Busy",
}  # fmt: skip


def document(languages: Sequence[str]) -> dict[str, Any]:
    """The Swagger document: all endpoints with their parameters."""
    text = {"type": "string"}
    detected = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": text}}
    language = {"type": "object", "properties": {"code": text, "name": text, "targets": _list(text)}}
    key = _field("api_key", "API key", required=False)
    translating = [
        _field("q", "Text to translate"),
        _field("source", "Source language code, or auto", ["auto", *languages]),
        _field("target", "Target language code", [*languages]),
        _field("format", "Format of the text", ["text", "html"], required=False),
        _field("glossary", "Ids of glossaries, separated by commas (not of LibreTranslate)", required=False),
        {**_field("alternatives", "Further translations wanted", required=False), "type": "integer", "default": 0},
        key,
    ]
    translation = {"type": "object", "properties": {"translatedText": text}}
    return {
        "swagger": "2.0",
        "info": {"title": "transduce (LibreTranslate API)", "version": __version__},
        "basePath": "/",
        "paths": {
            "/translate": {"post": _operation("Translate text", translating, translation)},
            "/detect": {"post": _operation("Detect a language", [_field("q", "Text"), key], _list(detected))},
            "/languages": {"get": _operation("Languages served", [], _list(language))},
            "/frontend/settings": {"get": _operation("Settings for a web page", [], {"type": "object"})},
            "/health": {"get": _operation("Whether requests are taken", [], {"type": "object"})},
        },
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _field(name: str, text: str, words: Sequence[str] = (), required: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "in": "formData",
        "type": "string",
        "required": required,
        "description": text,
    }
    return {**found, "enum": [*words]} if words else found


def _operation(summary: str, parameters: list[dict[str, Any]], schema: dict[str, Any]) -> dict[str, Any]:
    error = {"type": "object", "properties": {"error": {"type": "string"}}}
    answers = {"200": {"description": summary, "schema": schema}}
    answers |= {code: {"description": text, "schema": error} for code, text in _ERRORS.items()}
    return {"summary": summary, "parameters": parameters, "responses": answers}


def routes() -> list[BaseRoute]:
    """The routes of every endpoint."""
    return [
        Route("/translate", _translate, methods=["POST"]),
        Route("/detect", _detect, methods=["POST"]),
        Route("/suggest", _suggest, methods=["POST"]),
        Route("/languages", _languages, methods=["GET"]),
        Route("/frontend/settings", _settings, methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
        Route("/spec", _spec, methods=["GET"]),
    ]


async def _translate(request: Request) -> Response:
    state = state_of(request)
    fields = await read_fields(request, state.settings)
    asker = await asker_of(request, fields)
    texts, batch = _texts(fields, state.settings)
    source, target = (_word(fields, name) for name in ("source", "target"))
    form = _word(fields, "format", "text")
    if form not in ("text", "html"):
        raise Refused(400, f"{form} format is not supported", "format")
    wanted = _alternatives(fields, state.settings)
    job = TranslationRequest(
        texts,
        source,
        target,
        cast("Literal['text', 'html']", form),
        n_best=wanted + 1,
        glossaries=requested(state, asker, _glossary(fields), 400),
        asker=asker,
    )
    answers = await unless_gone(request, translate(state, job))
    found: dict[str, Any] = {"translatedText": _one_or_all([answer.text for answer in answers], batch)}
    if source == "auto":
        detected = [_as_json(answer.detected) for answer in answers if answer.detected]
        found["detectedLanguage"] = _one_or_all(detected, batch)
    if wanted:
        others = [[text for text, _, _ in answer.alternatives] for answer in answers]
        found["alternatives"] = _one_or_all(others, batch)
    return await rendered(lambda: found, sum(map(len, texts)) * (wanted + 1))


async def _detect(request: Request) -> Response:
    state = state_of(request)
    fields = await read_fields(request, state.settings)
    await asker_of(request, fields)
    texts, _ = _texts(fields, state.settings)
    found = (await state.detecting()).detect(" ".join(texts))
    return Json([_as_json(language) for language in found if language.confidence or len(texts)])


async def _suggest(request: Request) -> Response:
    raise Refused(403, "Suggestions are disabled on this server.", "suggest")


async def _languages(request: Request) -> Response:
    models = state_of(request).models
    found = []
    for code in models.languages:  # those that are only written too: clients look for both sides here
        targets = sorted({*models.targets(code), code})  # itself too, as there: such a text is given back
        found.append({"code": code, "name": name_of(code), "targets": targets})
    return Json(found)


async def _settings(request: Request) -> Response:
    state = state_of(request)
    return Json(frontend_settings(state))


def frontend_settings(state: ServerState) -> dict[str, Any]:
    """Settings for a web page."""
    source = "en" if "en" in state.models.sources else state.models.sources[0]
    target = state.models.targets(source)[0]
    return {
        "charLimit": state.settings.characters,
        "frontendTimeout": 500,
        "apiKeys": state.keys.required,
        "keyRequired": state.keys.required,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
    }


async def _health(request: Request) -> Response:
    closed = state_of(request).gate.closed
    return Json({"status": "draining" if closed else "ok"}, 503 if closed else 200)


async def _spec(request: Request) -> Response:
    return Json(document(state_of(request).models.languages))


def _texts(fields: Fields, settings: Settings) -> tuple[tuple[str, ...], bool]:
    """`q` as texts, and whether it was a list."""
    given = fields.get("q", [None])
    q = given[0] if len(given) == 1 else given
    if q is None or q == "" or q == []:
        raise Refused(400, "Invalid request: missing q parameter", "missing")
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise Refused(400, "Invalid request: q parameter is not a text or a list of texts", "type")
    _check_texts(texts, settings)
    return tuple(texts), isinstance(q, list)


def _check_texts(texts: list[str], settings: Settings) -> None:
    """Raise Refused for more or longer texts than are allowed."""
    sizes = [(len(texts), settings.texts), *((len(text), settings.characters) for text in texts)]
    for size, limit in sizes:
        if size > limit:
            raise Refused(400, f"Invalid request: request ({size}) exceeds text limit ({limit})", "limit")


def _word(fields: Fields, name: str, default: str = "") -> str:
    word = fields.get(name, [default])[-1]
    if word is None or word == "":  # null too, as programs write what they do not set
        word = default
    if not isinstance(word, str):
        raise Refused(400, f"Invalid request: {name} parameter is not a text", "type")
    if not word:
        raise Refused(400, f"Invalid request: missing {name} parameter", "missing")
    return word


def _alternatives(fields: Fields, settings: Settings) -> int:
    given = fields.get("alternatives", [0])[-1]
    try:
        if isinstance(given, bool) or not isinstance(given, (int, str, type(None))):
            raise ValueError
        wanted = int(given or 0)
    except ValueError:
        raise Refused(400, "Invalid request: alternatives parameter is not a number", "type") from None
    if wanted > settings.alternatives:
        text = f"Invalid request: alternatives parameter must be <= {settings.alternatives}"
        raise Refused(400, text, "limit")
    if wanted < 0:
        raise Refused(400, f"Invalid request: alternatives parameter must be >= 0, got {wanted}", "limit")
    return wanted


def _glossary(fields: Fields) -> str | list[str] | dict[str, str]:
    """Our own field `glossary`: ids, as a list or with commas; in JSON also {term: translation}."""
    given = fields.get("glossary", [""])[-1] or ""
    listed = [*given.items()] if isinstance(given, dict) else given if isinstance(given, list) else [given]
    if not all(isinstance(item, (str, tuple)) for item in listed):
        raise Refused(400, "Invalid request: glossary parameter is not an id, a list of ids, or terms", "type")
    found: str | list[str] | dict[str, str] = given
    return found


def _one_or_all(values: list[Any], batch: bool) -> Any:
    return values if batch else values[0]


def _as_json(detected: Detected) -> dict[str, Any]:
    return {"confidence": detected.confidence, "language": detected.language}
