"""Our own API under /v1: translations with scores, alternatives and alignment, streaming, and given pairs.

/v1/score, /v1/align and /v1/attention score and align given translations. Pairs are read whole. The size of an answer
is bounded before work begins: links grow with a text, matrices with its square, so these are given for one pair
(`/v1/align`) or within `cells` (`/v1/attention`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from transduce.core.errors import UserError
from transduce.engines import Translation
from transduce.server.admission import CELLS_A_TOKEN, check_cells, check_excluded, check_lengths, check_work
from transduce.server.answering import asker_of, check_insider, state_of, unless_gone
from transduce.server.answers import Json, Refused, rendered
from transduce.server.batcher import Align, Score, Sentence, Work
from transduce.server.models import Models, RouteHop
from transduce.server.protocols.glossaries import requested
from transduce.server.protocols.openapi import document
from transduce.server.protocols.reading import read_json
from transduce.server.protocols.schemas import AlignRequest, DetectRequest, PairsRequest, TranslateRequest
from transduce.server.state import ServerState
from transduce.server.translating import (
    LONG,
    MOST_TASKS,
    Answer,
    RequestRunner,
    TextPlan,
    TokenSemaphore,
    TranslationRequest,
    prepared,
    together,
    translate,
)
from transduce.text.alignment import Alignment
from transduce.text.languages import name_of


def routes() -> list[BaseRoute]:
    """The routes of every endpoint."""
    return [
        Route("/v1/translate", _translate, methods=["POST"]),
        Route("/v1/detect", _detect, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/v1/languages", _languages, methods=["GET"]),
        Route("/v1/openapi.json", _openapi, methods=["GET"]),
        *pair_routes(),
    ]


async def _translate(request: Request) -> Response:
    state, asker = state_of(request), await asker_of(request)  # before the body is read
    given = await read_json(request, state.settings, TranslateRequest)
    texts = given.text if isinstance(given.text, list) else [given.text]
    check_lengths("text", texts, state.settings)
    if given.n_best > state.settings.alternatives + 1:
        raise Refused(422, f"n_best: expected at most {state.settings.alternatives + 1}, got {given.n_best}", "limit")
    check_lengths("prefix", [given.prefix], state.settings)
    check_excluded(given.exclude)
    _check_combination(given)
    job = TranslationRequest(
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
        protect=given.protect,
        model=given.model,
        glossaries=requested(state, asker, given.glossary, 422),
        asker=asker,
    )
    if given.stream:
        return await _stream(state, job)
    answers = await unless_gone(request, translate(state, job))
    size = sum(map(len, texts)) * (8 if given.alignment else given.n_best + 3)
    return await rendered(lambda: {"translations": [_as_json(answer) for answer in answers]}, size)


def _check_combination(given: TranslateRequest) -> None:
    """Raise Refused for options that do not go together, rather than ignore some of them."""
    if given.stream and given.format == "html":
        raise Refused(422, "stream: expected format text, got html, whose sentences are no text alone", "invalid")
    if given.beam and given.n_best > given.beam:
        text = f"n_best: expected at most the beam's size ({given.beam}), got {given.n_best}; give a larger beam"
        raise Refused(422, text, "invalid")
    for name, wanted in (("format=html", given.format == "html"), ("stream", given.stream)):
        if wanted and given.n_best > 1:
            raise Refused(422, f"n_best: expected 1 with {name}, got {given.n_best}", "invalid")
        if wanted and given.alignment is not None:
            text = f"alignment: expected none with {name}, got {given.alignment}"
            raise Refused(422, text, "invalid")


class StreamedLines(StreamingResponse):
    """Lines of JSON that hold their admission until they are written or the client is gone (`ended` stays False)."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncIterator[bytes], admission: ExitStack, gone: Callable[[], None]) -> None:
        super().__init__(lines)
        self._admission, self._gone, self.ended = admission, gone, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._admission:
            await super().__call__(scope, receive, send)
        if not self.ended:
            self._gone()


async def _stream(state: ServerState, job: TranslationRequest) -> Response:
    """Stream sentences; admitted before the first line, so that a rejection is an answer of its own."""
    ready = await prepared(state, job)
    admission = ExitStack()
    share = admission.enter_context(state.gate.admit(ready.work))
    state.characters[job.asker] += sum(map(len, job.texts))

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with asyncio.timeout(state.settings.seconds):
                flow = RequestRunner(state, job, TokenSemaphore(share), ready.tokens, ready.width)
                async for line in _sentences(flow, ready.plans):
                    yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
                yield b'{"done": true}\n'
        except TimeoutError:
            yield b'{"error": "the answer took too long", "code": "deadline"}\n'
        except UserError as error:
            yield json.dumps({"error": str(error), "code": "request"}).encode() + b"\n"
        answer.ended = True

    answer = StreamedLines(lines(), admission, state.meter.gone)
    return answer


async def _sentences(flow: RequestRunner, plans: Sequence[TextPlan]) -> AsyncIterator[dict[str, Any]]:
    """Yield the lines of every sentence of every text, in order, each as soon as it is done; few are begun ahead."""
    lines = _lines(flow, plans)
    begun: deque[tuple[dict[str, Any], asyncio.Future[Translation]]] = deque()
    try:
        while True:
            for line, work in islice(lines, MOST_TASKS - len(begun)):
                begun.append((line, asyncio.ensure_future(work)))
            if not begun:
                return
            line, task = begun[0]
            found = await task
            begun.popleft()
            figures = {"score": found.score, "confidence": found.confidence, "warnings": found.warnings}
            yield {**line, "text": found.text, **figures}
    finally:
        for _, task in begun:
            task.cancel()
        await asyncio.gather(*(task for _, task in begun), return_exceptions=True)


def _lines(
    flow: RequestRunner, plans: Sequence[TextPlan]
) -> Iterator[tuple[dict[str, Any], Coroutine[Any, Any, Translation]]]:
    """Yield the known fields of every sentence's line, and the coroutine that translates it."""
    for number, plan in enumerate(plans):
        before, *spaces = plan.layout.spaces(flow.request.target)
        # Of a blank text too, for clients join the lines.
        for index, text in enumerate(plan.layout.texts or [""]):
            known = {"source": text, "before": "" if index else before, "space": spaces[index] if spaces else ""}
            yield {"number": number, "sentence": index, **known}, _one(flow, plan, text, not index)


async def _one(flow: RequestRunner, plan: TextPlan, text: str, first: bool) -> Translation:
    """A sentence translated, or as it is where it is in the language already."""
    return await flow.sentence(text, plan.hops_of(text), None, first)


async def _detect(request: Request) -> Response:
    await asker_of(request)
    state = state_of(request)
    given = await read_json(request, state.settings, DetectRequest)
    check_lengths("text", [given.text], state.settings)
    found = (await state.detecting()).detect(given.text)
    return Json([{"language": language.language, "confidence": language.confidence} for language in found])


async def _models(request: Request) -> Response:
    return Json([{"name": model.name, "pairs": model.pairs} for model in state_of(request).models.served])


async def _languages(request: Request) -> Response:
    models = state_of(request).models
    return Json([{"code": code, "name": name_of(code), "targets": models.targets(code)} for code in models.sources])


async def _openapi(request: Request) -> Response:
    await check_insider(request)
    return Json(state_of(request).once("openapi", document))


def _as_json(answer: Answer) -> dict[str, Any]:
    detected = answer.detected
    return {
        "text": answer.text,
        "score": answer.score,
        "log_prob": answer.log_prob,
        "finished": answer.finished,
        "missing_terms": answer.missing_terms,
        "confidence": answer.confidence,
        "warnings": answer.warnings,
        "detected": {"language": detected.language, "confidence": detected.confidence} if detected else None,
        "alternatives": [{"text": text, "score": score, "log_prob": log} for text, score, log in answer.alternatives],
        "alignment": [alignment_as_json(alignment) for alignment in answer.alignments] if answer.alignments else None,
        "before": answer.before,
        "sentences": [{"source": source, "text": text, "space": space} for source, text, space in answer.sentences],
    }


def pair_routes() -> list[BaseRoute]:
    """The routes of the endpoints for given pairs."""
    return [
        Route("/v1/score", _score, methods=["POST"]),
        Route("/v1/align", _align, methods=["POST"]),
        Route("/v1/attention", _attention, methods=["POST"]),
    ]


@dataclass(frozen=True)
class Pair:
    """A text with its translation, and the number of tokens of each with its end symbol."""

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
    found = [{"log_prob": score.log_prob, "tokens": score.tokens, "per_token": score.per_token} for (score,) in scored]
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
        return {"alignments": [{**alignment_as_json(alignment), **matrix} for (alignment,) in aligned]}

    size = sum(pair.cells if given.matrix else 4 * pair.tokens for pair in pairs)
    return await rendered(made, 8 * size)


async def _attention(request: Request) -> Response:
    await asker_of(request)
    state, given = state_of(request), await read_json(request, state_of(request).settings, PairsRequest)
    hop, pairs = await _checked(state, given)
    engine = hop.served.translator.engine
    layers = await asyncio.to_thread(lambda: engine.decoder_layers) or 1  # without any, the engine says so itself
    cells = check_cells(layers * sum(pair.cells for pair in pairs), state.settings)
    work = [Align("pieces", layer, matrix=True) for layer in range(layers)]
    found = await unless_gone(request, _all(state, hop, pairs, work, cells))

    def made() -> dict[str, Any]:
        pairs = [
            {
                "source": by_layer[0].source,
                "target": by_layer[0].target,
                "layers": [layer.weights for layer in by_layer],
            }
            for by_layer in found
        ]
        return {"pairs": pairs}

    return await rendered(made, 8 * cells)


def alignment_as_json(alignment: Alignment) -> dict[str, Any]:
    """Units and links with rounded weights: their number grows with the text, not with its square."""
    links = [(s, t, round(weight, 6)) for (s, t), weight in zip(alignment.links, alignment.strengths, strict=True)]
    return {"source": alignment.source, "target": alignment.target, "links": links}


async def _checked(state: ServerState, given: PairsRequest) -> tuple[RouteHop, list[Pair]]:
    """The model and the counted pairs; raise Refused for too many or too long ones. Long ones in a thread."""
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
    """Raise Refused for pairs longer than the model ever reads: they are read whole."""
    most = 4 * hop.served.translator.longest
    for pair in pairs:
        if pair.tokens > most:
            raise Refused(422, f"texts: a pair of {pair.tokens} tokens is longer than {most}; cut it", "limit")
        check_cells(pair.cells, state.settings, f"a pair of {pair.source} and {pair.target} tokens")


async def _all(
    state: ServerState, hop: RouteHop, pairs: Sequence[Pair], work: Sequence[Work], cells: int = 0
) -> list[list[Any]]:
    """Run each kind of work on each pair; `cells` attention weights count at the gate too."""
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
