"""Our own endpoints for glossaries, which translations name by id; and terms that a request brings along.

`/v1/glossaries` lists and makes them, `/v1/glossaries/{number}` shows, replaces and deletes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.core.errors import DataError
from transduce.server.answering import asker_of, state_of
from transduce.server.answers import Json, Refused, rendered
from transduce.server.glossaries import StoredGlossary, renamed, with_dictionaries
from transduce.server.protocols.reading import read_json
from transduce.server.protocols.schemas import GlossaryRequest
from transduce.server.state import ServerState
from transduce.text.languages import base_of
from transduce.text.terms import Direction, Glossary, Term

MOST_TERMS_BROUGHT = 100  # of a request that brings its terms along


def routes() -> list[BaseRoute]:
    """The routes of every endpoint."""
    return [
        Route("/v1/glossaries", _list, methods=["GET"]),
        Route("/v1/glossaries", _create, methods=["POST"]),
        Route("/v1/glossaries/{number}", _show, methods=["GET"]),
        Route("/v1/glossaries/{number}", _replace, methods=["PUT"]),
        Route("/v1/glossaries/{number}", _delete, methods=["DELETE"]),
    ]


def requested(
    state: ServerState, asker: bytes, given: str | Sequence[str] | Mapping[str, str], status: int
) -> tuple[Glossary, ...]:
    """The glossaries of a translation: ids (also separated by commas), the first preferred; or {term: translation}.

    Refused with `status` for terms that are none.
    """
    if isinstance(given, Mapping):
        if len(given) > MOST_TERMS_BROUGHT:
            text = f"glossary: expected at most {MOST_TERMS_BROUGHT} terms, got {len(given)}; keep them as a glossary"
            raise Refused(status, text, "limit")
        try:
            return (Glossary.of(given),) if given else ()
        except DataError as error:
            raise Refused(status, str(error), "glossary") from None
    numbers = given.split(",") if isinstance(given, str) else given
    return state.glossaries.named(asker, [number.strip() for number in numbers if number.strip()])


async def _list(request: Request) -> Response:
    asker = await asker_of(request)
    return Json({"glossaries": [_as_json(one) for one in state_of(request).glossaries.all(asker)]})


async def _create(request: Request) -> Response:
    asker, state, given = await _read(request)
    work = asyncio.to_thread(lambda: state.glossaries.create(asker, given.name, _dictionaries(given)))
    return Json(_as_json(await work), 201)


async def _show(request: Request) -> Response:
    asker = await asker_of(request)
    one = state_of(request).glossaries.get(asker, request.path_params["number"])
    size = sum(len(term.source) + len(term.target) for terms in one.dictionaries.values() for term in terms)
    return await rendered(lambda: _as_json(one, whole=True), size)


async def _replace(request: Request) -> Response:
    asker, state, given = await _read(request)

    def work() -> StoredGlossary:
        made = _dictionaries(given)
        number = request.path_params["number"]
        return state.glossaries.change(asker, number, lambda one: with_dictionaries(renamed(one, given.name), made))

    return Json(_as_json(await asyncio.to_thread(work)))


async def _delete(request: Request) -> Response:
    asker = await asker_of(request)
    await asyncio.to_thread(state_of(request).glossaries.delete, asker, request.path_params["number"])
    return Response(status_code=204)


async def _read(request: Request) -> tuple[bytes, ServerState, GlossaryRequest]:
    asker, state = await asker_of(request), state_of(request)
    most = max(state.settings.body, 2 * state.settings.glossary_bytes)  # JSON has more bytes than the entries
    return asker, state, await read_json(request, state.settings.with_body(most), GlossaryRequest)


def _dictionaries(given: GlossaryRequest) -> dict[Direction, tuple[Term, ...]]:
    found: dict[Direction, tuple[Term, ...]] = {}
    for dictionary in given.dictionaries:
        pair = base_of(dictionary.source), base_of(dictionary.target)
        if pair in found or pair[0] == pair[1]:
            problem = "two different languages" if pair[0] == pair[1] else "each pair of languages once"
            raise Refused(422, f"dictionaries: expected {problem}, got {pair[0]} to {pair[1]}", "invalid")
        try:
            found[pair] = Glossary.of(dictionary.entries, *pair, name="entries").dictionaries[pair]
        except DataError as error:
            raise Refused(422, str(error), "invalid") from None
    return found


def _as_json(one: StoredGlossary, whole: bool = False) -> dict[str, Any]:
    """A glossary, with its entries where the `whole` is requested."""
    dictionaries = []
    for (source, target), terms in one.dictionaries.items():
        entries = {"entries": {term.source: term.entry for term in terms}} if whole else {}
        dictionaries.append({"source": source, "target": target, "count": len(terms), **entries})
    return {"id": one.id, "name": one.name, "created": one.created, "dictionaries": dictionaries}
