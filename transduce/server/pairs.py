"""Given translations under a model: /v1/score, /v1/align and /v1/attention.

Pairs are read whole. What an answer holds is bounded before work begins: links grow with a text, matrices with its
square, so these are given for one pair (`/v1/align`) or within `cells` (`/v1/attention`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.alignment import Alignment
from transduce.errors import UserError
from transduce.server.answering import asker_of, state_of, unless_gone
from transduce.server.bounds import CELLS_A_TOKEN, check_cells, check_lengths, check_work
from transduce.server.failures import Refused
from transduce.server.models import Models, RouteHop
from transduce.server.reading import read_json
from transduce.server.rendering import Json, rendered
from transduce.server.shapes import AlignRequest, PairsRequest
from transduce.server.state import ServerState
from transduce.server.together import TokenSemaphore, together
from transduce.server.translating import LONG
from transduce.server.work import Align, Score, Sentence, Work

MOST_LAYERS = 64


def routes() -> list[BaseRoute]:
    """Every endpoint."""
    return [
        Route("/v1/score", _score, methods=["POST"]),
        Route("/v1/align", _align, methods=["POST"]),
        Route("/v1/attention", _attention, methods=["POST"]),
    ]


@dataclass(frozen=True)
class Pair:
    """A text with its translation, and how many tokens each has with its end symbol."""

    item: Sentence
    source: int
    target: int

    @property
    def tokens(self) -> int:
        return max(self.source, self.target)

    @property
    def cells(self) -> int:
        return self.source * self.target


async def _score(request: Request) -> Response:
    await asker_of(request)
    state, given = state_of(request), await read_json(request, state_of(request).settings, PairsRequest)
    hop, pairs = await _checked(state, given)
    scored = await unless_gone(request, _all(state, hop, pairs, [Score()]))
    found = [{"log_prob": one.log_prob, "tokens": one.tokens, "per_token": one.per_token} for (one,) in scored]
    return Json({"scores": found})


async def _align(request: Request) -> Response:
    await asker_of(request)
    state, given = state_of(request), await read_json(request, state_of(request).settings, AlignRequest)
    if given.matrix and len(given.texts) > 1:
        raise Refused(422, f"matrix: expected one pair with it, got {len(given.texts)}; ask for each alone", "invalid")
    hop, pairs = await _checked(state, given)
    work = Align(given.unit, given.layer, given.matrix)
    aligned = await unless_gone(request, _all(state, hop, pairs, [work], sum(pair.cells for pair in pairs)))

    def made() -> dict[str, Any]:
        matrix = {"weights": aligned[0][0].weights} if given.matrix else {}
        return {"alignments": [{**alignment_as_json(one), **matrix} for (one,) in aligned]}

    size = sum(pair.cells if given.matrix else 4 * pair.tokens for pair in pairs)
    return await rendered(made, 8 * size)


async def _attention(request: Request) -> Response:
    await asker_of(request)
    state, given = state_of(request), await read_json(request, state_of(request).settings, PairsRequest)
    hop, pairs = await _checked(state, given)
    layers = await unless_gone(request, _layers(state, hop))
    cells = check_cells(layers * sum(pair.cells for pair in pairs), state.settings)
    work = [Align("pieces", layer, matrix=True) for layer in range(layers)]
    found = await unless_gone(request, _all(state, hop, pairs, work, cells))

    def made() -> dict[str, Any]:
        told = [
            {"source": own[0].source, "target": own[0].target, "layers": [one.weights for one in own]} for own in found
        ]
        return {"pairs": told}

    return await rendered(made, 8 * cells)


def alignment_as_json(one: Alignment) -> dict[str, Any]:
    """Units and links with their weights, rounded: their number grows with the text, not with its square."""
    links = [(s, t, round(weight, 6)) for (s, t), weight in zip(one.links, one.strengths, strict=True)]
    return {"source": one.source, "target": one.target, "links": links}


async def _layers(state: ServerState, hop: RouteHop) -> int:
    """How many decoder layers a model has: those it does not refuse."""
    known = state.layers.get(hop.served.name)
    if known is None:
        one = Sentence("a", hop.to, "a")
        for known in range(MOST_LAYERS):
            try:
                await state.batchers[hop.served.name].run(Align("pieces", known), one, 2)
            except UserError:
                if not known:
                    raise
                break
        state.layers[hop.served.name] = known or 0
    return known or 0


async def _checked(state: ServerState, given: PairsRequest) -> tuple[RouteHop, list[Pair]]:
    """The model and the pairs, counted; a request of too many or too long ones is refused. Long ones in a thread."""
    check_lengths("texts", given.texts, state.settings)
    check_lengths("translations", given.translations, state.settings)
    if len(given.texts) != len(given.translations):
        counts = f"{len(given.texts)} texts and {len(given.translations)} translations"
        raise Refused(422, f"translations: expected one a text, got {counts}", "invalid")
    models = Models((state.models.named(given.model),)) if given.model else state.models
    hops = models.route(given.source, given.target)
    if len(hops) != 1:
        raise Refused(400, f"no model translates directly from {given.source} to {given.target}", "language")

    def work() -> list[Pair]:
        return [_counted(hops[0], *pair) for pair in zip(given.texts, given.translations, strict=True)]

    long = sum(map(len, given.texts)) + sum(map(len, given.translations)) > LONG
    pairs = await asyncio.to_thread(work) if long else work()
    _check_lengths(hops[0], pairs, state)
    return hops[0], pairs


def _counted(hop: RouteHop, text: str, translation: str) -> Pair:
    tokenizers = hop.served.translator.tokenizers
    source, target = tokenizers.source.encode([text])[0], tokenizers.target.encode([translation])[0]
    return Pair(Sentence(text, hop.to, translation), len(source) + 1, len(target) + 1)


def _check_lengths(hop: RouteHop, pairs: Sequence[Pair], state: ServerState) -> None:
    """Pairs are read whole, so that they must not be longer than the model ever reads."""
    most = 4 * hop.served.translator.longest
    for pair in pairs:
        if pair.tokens > most:
            raise Refused(422, f"texts: a pair of {pair.tokens} tokens is longer than {most}; cut it", "limit")
        check_cells(pair.cells, state.settings, f"a pair of {pair.source} and {pair.target} tokens")


async def _all(
    state: ServerState, hop: RouteHop, pairs: Sequence[Pair], work: Sequence[Work], cells: int = 0
) -> list[list[Any]]:
    """Of each pair what each kind of work gives; `cells` attention weights count at the gate too."""
    tokens = check_work(sum(pair.tokens for pair in pairs) * len(work), state.settings)
    with state.gate.admit(tokens + cells // CELLS_A_TOKEN) as share:
        window = TokenSemaphore(share)

        async def one(pair: Pair, kind: Work) -> Any:
            taken = await window.take(pair.tokens)
            try:
                return await state.batchers[hop.served.name].run(kind, pair.item, pair.tokens)
            finally:
                window.give(taken)

        def every(pair: Pair) -> Coroutine[Any, Any, list[Any]]:
            return together(one(pair, kind) for kind in work)

        return await together(map(every, pairs))
