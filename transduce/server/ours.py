"""Our own API under /v1: all that a translator can tell: scores, alternatives, alignment, attention, streaming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from transduce.alignment import Alignment
from transduce.errors import UserError
from transduce.languages import name_of
from transduce.server.answering import Json, state_of, unless_gone
from transduce.server.failures import Refused
from transduce.server.libretranslate import check_texts
from transduce.server.models import Hop, Models
from transduce.server.openapi import document
from transduce.server.reading import address_of, key_of, read_json
from transduce.server.shapes import AlignRequest, DetectRequest, PairsRequest, Strict, TranslateRequest
from transduce.server.state import State
from transduce.server.translating import (
    Answer,
    Asked,
    Flow,
    Plan,
    Window,
    cost,
    count,
    prepared,
    together,
    translate,
)
from transduce.server.work import Align, Score, Sentence, Work
from transduce.translation import Translation

S = TypeVar("S", bound=Strict)
MOST_LAYERS = 64


def routes() -> list[BaseRoute]:
    """Every endpoint."""
    return [
        Route("/v1/translate", _translate, methods=["POST"]),
        Route("/v1/score", _score, methods=["POST"]),
        Route("/v1/align", _align, methods=["POST"]),
        Route("/v1/attention", _attention, methods=["POST"]),
        Route("/v1/detect", _detect, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/v1/languages", _languages, methods=["GET"]),
        Route("/v1/openapi.json", _openapi, methods=["GET"]),
    ]


async def _read(request: Request, model: type[S]) -> tuple[State, S]:
    state = state_of(request)
    state.keys.check(key_of(request), address_of(request))  # before any of the body is read
    return state, await read_json(request, state.settings, model)


async def _translate(request: Request) -> Response:
    state, given = await _read(request, TranslateRequest)
    texts = given.text if isinstance(given.text, list) else [given.text]
    check_texts(texts, state.settings)
    if given.n_best > state.settings.alternatives + 1:
        raise Refused(422, f"n_best: expected at most {state.settings.alternatives + 1}, got {given.n_best}", "limit")
    check_texts([given.prefix], state.settings)
    _check_combination(given)
    asked = Asked(
        tuple(texts),
        given.source,
        given.target,
        given.format,
        given.n_best,
        given.beam,
        given.alignment,
        given.prefix,
        tuple(given.include),
        tuple(given.exclude),
        model=given.model,
    )
    if given.stream:
        return await _stream(state, asked)
    answers = await unless_gone(request, translate(state, asked))
    return Json({"translations": [_as_json(answer) for answer in answers]})


def _check_combination(given: TranslateRequest) -> None:
    """Refuse what does not go together, rather than leave part of it out unsaid."""
    if given.stream and given.format == "html":
        raise Refused(422, "stream: expected format text, got html, whose sentences are no text alone", "invalid")
    for name, wanted in (("format=html", given.format == "html"), ("stream", given.stream)):
        if wanted and given.n_best > 1:
            raise Refused(422, f"n_best: expected 1 with {name}, got {given.n_best}", "invalid")
        if wanted and given.alignment is not None:
            text = f"alignment: expected none with {name}, got {given.alignment}"
            raise Refused(422, text, "invalid")


class Lines(StreamingResponse):
    """Lines of JSON; the gate is left when they are written, or nobody reads them any more: then they never `ended`."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncIterator[bytes], room: ExitStack, gone: Callable[[], None]) -> None:
        super().__init__(lines)
        self._room, self._gone, self.ended = room, gone, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._room:
            await super().__call__(scope, receive, send)
        if not self.ended:
            self._gone()


async def _stream(state: State, asked: Asked) -> Response:
    """Admitted before the first line, so that a refusal is an answer of its own."""
    plans, counts = await prepared(state, asked)
    room = ExitStack()
    share = room.enter_context(state.gate.admit(cost(counts, plans, asked.n_best)))

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with asyncio.timeout(state.settings.seconds):
                async for line in _sentences(Flow(state, asked, Window(share), counts), plans):
                    yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
                yield b'{"done": true}\n'
        except TimeoutError:
            yield b'{"error": "the answer took too long", "code": "deadline"}\n'
        except UserError as error:
            yield json.dumps({"error": str(error), "code": "request"}).encode() + b"\n"
        answer.ended = True

    answer = Lines(lines(), room, state.meter.gone)
    return answer


async def _sentences(flow: Flow, plans: Sequence[Plan]) -> AsyncIterator[dict[str, Any]]:
    """Of every text every sentence, in order, each as soon as it and those before it are done."""
    work = []
    for number, plan in enumerate(plans):
        before, *spaces = plan.layout.spaces(flow.asked.target)
        # Of a blank text too, for somebody puts the lines together.
        for place, text in enumerate(plan.layout.texts or [""]):
            task = asyncio.ensure_future(_one(flow, plan, text, not place))
            work.append((number, place, "" if place else before, text, spaces[place] if spaces else "", task))
    try:
        for number, place, start, text, space, task in work:
            found = await task
            told = {"source": text, "before": start, "text": found.text, "space": space, "score": found.score}
            yield {"number": number, "sentence": place, **told}
    finally:
        for *_, task in work:
            task.cancel()
        await asyncio.gather(*(task for *_, task in work), return_exceptions=True)


async def _one(flow: Flow, plan: Plan, text: str, first: bool) -> Translation:
    """A sentence translated, or as it is where it is in the language already."""
    return await flow.sentence(text, plan.hops, None, first) if plan.hops else Translation(text)


async def _score(request: Request) -> Response:
    state, given = await _read(request, PairsRequest)
    scored = await unless_gone(request, _all(state, given, [Score()]))
    found = [{"log_prob": one.log_prob, "tokens": one.tokens, "per_token": one.per_token} for (one,) in scored]
    return Json({"scores": found})


async def _align(request: Request) -> Response:
    state, given = await _read(request, AlignRequest)
    aligned = await unless_gone(request, _all(state, given, [Align(given.unit, given.layer)]))
    return Json({"alignments": [_alignment(one) for (one,) in aligned]})


async def _attention(request: Request) -> Response:
    state, given = await _read(request, PairsRequest)
    layers = await unless_gone(request, _layers(state, _direct(state, given)))
    found = await unless_gone(request, _all(state, given, [Align("pieces", layer) for layer in range(layers)]))
    pairs = [
        {"source": own[0].source, "target": own[0].target, "layers": [one.weights for one in own]} for own in found
    ]
    return Json({"pairs": pairs})


async def _layers(state: State, hop: Hop) -> int:
    """How many decoder layers a model has: those it does not refuse."""
    known = state.layers.get(hop.served.name)
    if known is None:
        tags = Sentence("a", hop.to, "a")
        for known in range(MOST_LAYERS):
            try:
                await _through(state, hop, Align("pieces", known), tags)
            except UserError:
                if not known:
                    raise
                break
        state.layers[hop.served.name] = known or 0
    return known or 0


def _direct(state: State, given: PairsRequest) -> Hop:
    models = Models((state.models.named(given.model),)) if given.model else state.models
    hops = models.route(given.source, given.target)
    if len(hops) != 1:
        raise Refused(400, f"no model translates directly from {given.source} to {given.target}", "language")
    return hops[0]


async def _all(state: State, given: PairsRequest, work: Sequence[Work]) -> list[list[Any]]:
    """Of each pair what each kind of work gives."""
    check_texts(given.texts, state.settings)
    check_texts(given.translations, state.settings)
    if len(given.texts) != len(given.translations):
        counts = f"{len(given.texts)} texts and {len(given.translations)} translations"
        raise Refused(422, f"translations: expected one a text, got {counts}", "invalid")
    hop = _direct(state, given)
    items = [Sentence(text, hop.to, own) for text, own in zip(given.texts, given.translations, strict=True)]
    _check_lengths(hop, items)
    tokens = sum(_tokens(hop, item) for item in items) * len(work)
    with state.gate.admit(tokens) as share:
        window = Window(share)

        async def one(item: Sentence, kind: Work) -> Any:
            taken = await window.take(_tokens(hop, item))
            try:
                return await _through(state, hop, kind, item)
            finally:
                window.give(taken)

        return await together([together([one(item, kind) for kind in work]) for item in items])


async def _through(state: State, hop: Hop, work: Work, item: Sentence) -> Any:
    return await state.batchers[hop.served.name].run(work, item, _tokens(hop, item))


def _check_lengths(hop: Hop, items: Sequence[Sentence]) -> None:
    """Pairs are read whole, so that they must not be longer than the model ever reads."""
    most = 4 * hop.served.translator.longest
    for item in items:
        if _tokens(hop, item) > most:
            raise Refused(422, f"texts: a pair of {_tokens(hop, item)} tokens is longer than {most}; cut it", "limit")


def _tokens(hop: Hop, item: Sentence) -> int:
    target = hop.served.translator.tokenizers.target.encode([item.prefix])[0]
    return max(count(hop, item.text), len(target) + 1)


async def _detect(request: Request) -> Response:
    state, given = await _read(request, DetectRequest)
    check_texts([given.text], state.settings)
    found = (await state.detecting()).detect(given.text)
    return Json([{"language": one.language, "confidence": one.confidence} for one in found])


async def _models(request: Request) -> Response:
    return Json([{"name": one.name, "pairs": one.pairs} for one in state_of(request).models.served])


async def _languages(request: Request) -> Response:
    models = state_of(request).models
    return Json([{"code": code, "name": name_of(code), "targets": models.targets(code)} for code in models.sources])


async def _openapi(request: Request) -> Response:
    return Json(document(state_of(request)))


def _as_json(answer: Answer) -> dict[str, Any]:
    detected = answer.detected
    return {
        "text": answer.text,
        "score": answer.score,
        "log_prob": answer.log_prob,
        "finished": answer.finished,
        "detected": {"language": detected.language, "confidence": detected.confidence} if detected else None,
        "alternatives": [{"text": text, "score": score, "log_prob": log} for text, score, log in answer.alternatives],
        "alignment": _alignment(answer.alignment) if answer.alignment is not None else None,
        "before": answer.before,
        "sentences": [{"source": source, "text": text, "space": space} for source, text, space in answer.sentences],
    }


def _alignment(one: Alignment) -> dict[str, Any]:
    return {"source": one.source, "target": one.target, "weights": one.weights, "links": one.links}
