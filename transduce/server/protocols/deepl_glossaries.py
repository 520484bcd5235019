"""DeepL's glossaries: v2, one dictionary each, and v3, several dictionaries each that can be edited.

Both see the same glossaries; v2 shows the first dictionary of one that has several. Fields come as JSON or as a form,
where `dictionaries[0].entries` stands for a list of objects.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.core.errors import DataError
from transduce.server.answering import asker_of, state_of
from transduce.server.answers import Json, Refused, rendered
from transduce.server.glossaries import GlossaryStore, StoredGlossary, merged, renamed, with_dictionaries
from transduce.server.protocols.reading import Fields, read_fields
from transduce.server.state import ServerState
from transduce.text.languages import base_of, is_language
from transduce.text.term_files import format_entries, parse_entries
from transduce.text.terms import Direction, Glossary, Term

MOST_GLOSSARIES = 5  # of a request
TSV = "text/tab-separated-values"
_LISTED = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")
Dictionaries = Mapping[Direction, Sequence[Term]]


def routes() -> list[BaseRoute]:
    """The routes of every endpoint."""
    one = "/v3/glossaries/{number}"
    return [
        Route("/v2/glossary-language-pairs", _pairs, methods=["GET"]),
        Route("/v2/glossaries", _listed(_as_v2), methods=["GET"]),
        Route("/v2/glossaries", _create_v2, methods=["POST"]),
        Route("/v2/glossaries/{number}", _shown(_as_v2), methods=["GET"]),
        Route("/v2/glossaries/{number}", _delete, methods=["DELETE"]),
        Route("/v2/glossaries/{number}/entries", _entries_v2, methods=["GET"]),
        Route("/v3/glossaries", _listed(_as_v3), methods=["GET"]),
        Route("/v3/glossaries", _create_v3, methods=["POST"]),
        Route(one, _shown(_as_v3), methods=["GET"]),
        Route(one, _edit, methods=["PATCH"]),
        Route(one, _delete, methods=["DELETE"]),
        Route(f"{one}/entries", _entries_v3, methods=["GET"]),
        Route(f"{one}/dictionaries", _replace_dictionary, methods=["PUT"]),
        Route(f"{one}/dictionaries", _delete_dictionary, methods=["DELETE"]),
    ]


async def deepl_asker(request: Request, fields: Fields) -> bytes:
    """Identify the caller; a wrong key in DeepL's words."""
    try:
        return await asker_of(request, {"api_key": fields.get("auth_key", [""])})
    except Refused as error:
        if error.code == "key" and error.status in (400, 403):
            raise Refused(403, "Authorization failure, check auth_key", "key") from None
        raise


def requested(state: ServerState, asker: bytes, fields: Fields, source: str, target: str) -> tuple[Glossary, ...]:
    """The glossaries of a translation, by `glossary_id` or `glossary_ids`; Refused where they do not serve it."""
    one, several = fields.get("glossary_id", [None])[-1], fields.get("glossary_ids", [None])[-1]
    if one and several:
        raise Refused(400, "Parameters 'glossary_id' and 'glossary_ids' cannot be combined.", "glossary")
    given = several.split(",") if isinstance(several, str) else (several or ([one] if one else []))
    if not isinstance(given, list) or not all(isinstance(number, str) for number in given):
        raise Refused(400, "Value for 'glossary_ids' not supported.", "type")
    if len(given) > MOST_GLOSSARIES:
        text = f"Value for 'glossary_ids' not supported: at most {MOST_GLOSSARIES} are allowed, got {len(given)}."
        raise Refused(400, text, "limit")
    if given and source == "auto":
        raise Refused(400, "Parameter 'source_lang' is required if using a glossary.", "missing")
    found = state.glossaries.named(asker, [number.strip() for number in given])
    pair = base_of(source), base_of(target)
    for glossary in found:
        if pair not in glossary.dictionaries and several is None:
            text = f"No dictionary found for language pair {source} to {target}."
            raise Refused(400, text, "glossary")
    return found


# -- requests ---------------------------------------------------------------------------------------------------------


async def _fields(request: Request) -> tuple[GlossaryStore, Fields, bytes]:
    """The fields of a request, of which entries may be larger than texts, and the caller."""
    state = state_of(request)
    most = max(state.settings.body, 2 * state.settings.glossary_bytes)  # a form quotes many of its bytes
    fields = await read_fields(request, state.settings.with_body(most))
    return state.glossaries, fields, await deepl_asker(request, fields)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    value = value[-1] if isinstance(value, list) and value else value
    if not isinstance(value, str) or not value:
        raise Refused(400, f"Parameter '{name}' not specified.", "missing")
    return value


def _language(fields: Mapping[str, Any], name: str) -> str:
    code = _text(fields, name)
    if not re.fullmatch("[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})?", code) or not is_language(code):
        raise Refused(400, f"Value for '{name}' not supported.", "language")
    return base_of(code.replace("_", "-"))


def _direction(fields: Mapping[str, Any]) -> Direction:
    source, target = _language(fields, "source_lang"), _language(fields, "target_lang")
    if source == target:
        raise Refused(400, "Value for 'target_lang' not supported: it is that of 'source_lang'.", "language")
    return source, target


def _dictionary(fields: Mapping[str, Any]) -> tuple[Direction, tuple[Term, ...]]:
    """The dictionary that fields describe."""
    direction, kind = _direction(fields), _text(fields, "entries_format").lower()
    if kind not in ("tsv", "csv"):
        raise Refused(400, "Value for 'entries_format' not supported: expected tsv or csv.", "format")
    try:
        return direction, parse_entries(_text(fields, "entries"), kind)
    except DataError as error:
        raise Refused(400, f"Invalid glossary entries provided: {error}", "entries") from None


def _dictionaries(fields: Fields) -> Dictionaries:
    """The dictionaries of a v3 request, from JSON or from a form."""
    listed: Any = fields.get("dictionaries", [[]])[-1]
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise Refused(400, "Value for 'dictionaries' not supported.", "type")
    by_number: dict[int, dict[str, Any]] = dict(enumerate(listed))
    for name, values in fields.items():
        if match := _LISTED.fullmatch(name):
            by_number.setdefault(int(match[1]), {})[match[2]] = values[-1]
    found: dict[Direction, tuple[Term, ...]] = {}
    for _, item in sorted(by_number.items()):
        direction, terms = _dictionary(item)
        if direction in found:
            raise Refused(400, "Value for 'dictionaries' not supported: a language pair is given twice.", "entries")
        found[direction] = terms
    return found


# -- answers ----------------------------------------------------------------------------------------------------------


def _as_v2(one: StoredGlossary) -> dict[str, Any]:
    (source, target), terms = next(iter(one.dictionaries.items()))
    return {
        "glossary_id": one.id,
        "name": one.name,
        "ready": True,
        "source_lang": source,
        "target_lang": target,
        "creation_time": one.created,
        "entry_count": len(terms),
    }


def _as_v3(one: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": one.id,
        "name": one.name,
        "dictionaries": [_counted(pair, terms) for pair, terms in one.dictionaries.items()],
        "creation_time": one.created,
    }


def _counted(pair: Direction, terms: Sequence[Term]) -> dict[str, Any]:
    return {"source_lang": pair[0], "target_lang": pair[1], "entry_count": len(terms)}


def _listed(shape: Callable[[StoredGlossary], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def listed(request: Request) -> Response:
        store, _, asker = await _fields(request)
        return Json({"glossaries": [shape(one) for one in store.all(asker)]})

    return listed


def _shown(shape: Callable[[StoredGlossary], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def shown(request: Request) -> Response:
        store, _, asker = await _fields(request)
        return Json(shape(store.get(asker, request.path_params["number"])))

    return shown


async def _pairs(request: Request) -> Response:
    await _fields(request)
    models = state_of(request).models
    pairs = dict.fromkeys(
        (base_of(source), base_of(target)) for source in models.sources for target in models.targets(source)
    )
    found = [{"source_lang": source, "target_lang": target} for source, target in pairs if source != target]
    return Json({"supported_languages": found})


async def _create_v2(request: Request) -> Response:
    store, fields, asker = await _fields(request)
    name = _text(fields, "name")

    def work() -> StoredGlossary:
        return store.create(asker, name, dict([_dictionary(fields)]))

    return Json(_as_v2(await asyncio.to_thread(work)), 201)


async def _create_v3(request: Request) -> Response:
    store, fields, asker = await _fields(request)
    name = _text(fields, "name")

    def work() -> StoredGlossary:
        dictionaries = _dictionaries(fields)
        if not dictionaries:
            raise Refused(400, "Parameter 'dictionaries' not specified.", "missing")
        return store.create(asker, name, dictionaries)

    return Json(_as_v3(await asyncio.to_thread(work)), 201)


async def _edit(request: Request) -> Response:
    """Rename a glossary, or add entries to its dictionaries."""
    store, fields, asker = await _fields(request)
    name = _text(fields, "name") if "name" in fields else ""

    def work() -> StoredGlossary:
        dictionaries = _dictionaries(fields)

        def changed(one: StoredGlossary) -> StoredGlossary:
            one = renamed(one, name) if name else one
            return merged(one, dictionaries) if dictionaries else one

        return store.change(asker, request.path_params["number"], changed)

    return Json(_as_v3(await asyncio.to_thread(work)))


async def _delete(request: Request) -> Response:
    store, _, asker = await _fields(request)
    await asyncio.to_thread(store.delete, asker, request.path_params["number"])
    return Response(status_code=204)


async def _entries_v2(request: Request) -> Response:
    store, _, asker = await _fields(request)
    one = store.get(asker, request.path_params["number"])
    terms = next(iter(one.dictionaries.values()))
    return Response(await asyncio.to_thread(format_entries, terms), media_type=TSV)


async def _entries_v3(request: Request) -> Response:
    store, fields, asker = await _fields(request)
    one = store.get(asker, request.path_params["number"])
    pair, terms = _of_pair(one, _direction(fields))
    size = sum(len(term.source) + len(term.target) for term in terms)

    def made() -> dict[str, Any]:
        dictionary = {"source_lang": pair[0], "target_lang": pair[1], "entries": format_entries(terms)}
        return {"dictionaries": [{**dictionary, "entries_format": "tsv"}]}

    return await rendered(made, size)


def _of_pair(one: StoredGlossary, pair: Direction) -> tuple[Direction, tuple[Term, ...]]:
    if pair not in one.dictionaries:
        raise Refused(404, f"No dictionary found for language pair {pair[0]} to {pair[1]}", "glossary")
    return pair, one.dictionaries[pair]


async def _replace_dictionary(request: Request) -> Response:
    """Put a dictionary in the place of that of its languages, or add it."""
    store, fields, asker = await _fields(request)

    def work() -> Dictionaries:
        made = dict([_dictionary(fields)])
        store.change(
            asker,
            request.path_params["number"],
            lambda one: with_dictionaries(one, {**one.dictionaries, **made}),
        )
        return made

    ((pair, terms),) = (await asyncio.to_thread(work)).items()
    return Json(_counted(pair, terms))


async def _delete_dictionary(request: Request) -> Response:
    store, fields, asker = await _fields(request)
    pair = _direction(fields)

    def changed(one: StoredGlossary) -> StoredGlossary:
        _of_pair(one, pair)
        left = {other: terms for other, terms in one.dictionaries.items() if other != pair}
        if not left:
            raise Refused(400, "This is the glossary's only dictionary; delete the glossary.", "entries")
        return with_dictionaries(one, left)

    await asyncio.to_thread(store.change, asker, request.path_params["number"], changed)
    return Response(status_code=204)
