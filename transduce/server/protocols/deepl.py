"""The translating part of DeepL's API v2: its clients work with this server's address."""

from __future__ import annotations

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.server.answering import state_of, unless_gone
from transduce.server.answers import Json, Refused, rendered
from transduce.server.protocols.deepl_glossaries import deepl_asker, requested
from transduce.server.protocols.reading import Fields, read_fields
from transduce.server.settings import Settings
from transduce.server.state import ServerState
from transduce.server.translating import TranslationRequest, translate
from transduce.text.languages import base_of, find, name_of

UNLIMITED = 1_000_000_000_000  # characters, as DeepL writes it
# Targets whose variants its clients insist on, though one model writes them all.
VARIANTS = {"en": {"EN-GB": "English (British)", "EN-US": "English (American)"}}
VARIANTS["pt"] = {"PT-BR": "Portuguese (Brazilian)", "PT-PT": "Portuguese (European)"}


def routes() -> list[BaseRoute]:
    """The routes of every endpoint."""
    return [
        Route("/v2/translate", _translate, methods=["POST"]),
        Route("/v2/languages", _languages, methods=["GET", "POST"]),
        Route("/v2/usage", _usage, methods=["GET", "POST"]),
    ]


async def _fields(request: Request) -> tuple[ServerState, Fields, bytes]:
    """Read the fields of a request and identify the caller."""
    state = state_of(request)
    fields = await read_fields(request, state.settings)
    return state, fields, await deepl_asker(request, fields)


async def _translate(request: Request) -> Response:
    state, fields, asker = await _fields(request)
    texts = _texts(fields, state.settings)
    source, target = _source(state, fields), _target(state, fields)
    job = TranslationRequest(
        texts,
        source,
        target,
        _format(fields),
        whole=_word(fields, "split_sentences") == "0",
        glossaries=requested(state, asker, fields, source, target),
        asker=asker,
    )
    answers = await unless_gone(request, translate(state, job))
    translations = [
        {
            "detected_source_language": base_of(answer.source).upper(),
            "text": answer.text,
            "billed_characters": len(text),
        }
        for text, answer in zip(texts, answers, strict=True)
    ]
    return await rendered(lambda: {"translations": translations}, sum(map(len, texts)))


def _format(fields: Fields) -> Literal["text", "html"]:
    handling = _word(fields, "tag_handling").lower()
    if handling not in ("", "html", "xml"):
        raise Refused(400, "Value for 'tag_handling' not supported.", "format")
    return "html" if handling else "text"


def _texts(fields: Fields, settings: Settings) -> tuple[str, ...]:
    given = fields.get("text", [])
    texts = given[0] if len(given) == 1 and isinstance(given[0], list) else given
    if not texts:
        raise Refused(400, "Parameter 'text' not specified.", "missing")
    if not all(isinstance(text, str) for text in texts):
        raise Refused(400, "Value for 'text' not supported.", "type")
    if len(texts) > settings.texts:
        raise Refused(400, f"Too many texts: {len(texts)}, and {settings.texts} are allowed.", "limit")
    for text in texts:
        if len(text) > settings.characters:
            raise Refused(
                400, f"Text too long: {len(text)} characters, and {settings.characters} are allowed.", "limit"
            )
    return tuple(texts)


def _source(state: ServerState, fields: Fields) -> str:
    code = _word(fields, "source_lang")
    found = find(code, state.models.sources) if code else "auto"
    if found is None:
        raise Refused(400, "Value for 'source_lang' not supported.", "language")
    return found


def _target(state: ServerState, fields: Fields) -> str:
    code = _word(fields, "target_lang")
    if not code:
        raise Refused(400, "Parameter 'target_lang' not specified.", "missing")
    found = find(code, state.models.languages)
    if found is None:
        raise Refused(400, "Value for 'target_lang' not supported.", "language")
    return found


def _word(fields: Fields, name: str) -> str:
    """A text field, "" if absent; numbers and booleans are allowed, as in forms."""
    value = fields.get(name, [""])[-1]
    if value is None:
        return ""
    if not isinstance(value, (str, int)):
        raise Refused(400, f"Value for '{name}' not supported.", "type")
    return str(int(value)) if isinstance(value, bool) else str(value)


async def _languages(request: Request) -> Response:
    state, fields, _ = await _fields(request)
    kind = _word(fields, "type") if "type" in fields else "source"
    if kind not in ("source", "target"):
        raise Refused(400, "Value for 'type' not supported.", "type")
    found: list[dict[str, Any]] = []
    if kind == "source":
        found = [{"language": code.upper(), "name": name_of(code)} for code in state.models.sources]
    else:
        targets = sorted({target for source in state.models.sources for target in state.models.targets(source)})
        for code in targets:
            variants = VARIANTS.get(code, {code.upper(): name_of(code)})
            found += [{"language": tag, "name": name, "supports_formality": False} for tag, name in variants.items()]
    return Json(found)


async def _usage(request: Request) -> Response:
    state, _, asker = await _fields(request)
    return Json({"character_count": state.characters[asker], "character_limit": UNLIMITED})
