"""Our own API under /v1: translations with scores, alternatives and alignment, streaming, languages and models.

What it tells of given translations is in pairs.py.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from transduce.errors import UserError
from transduce.languages import name_of
from transduce.server import pairs
from transduce.server.answering import asker_of, check_insider, state_of, unless_gone
from transduce.server.bounds import check_excluded, check_lengths
from transduce.server.failures import Refused
from transduce.server.openapi import document
from transduce.server.pairs import alignment_as_json
from transduce.server.reading import read_json
from transduce.server.rendering import Json, rendered
from transduce.server.shapes import DetectRequest, TranslateRequest
from transduce.server.state import ServerState
from transduce.server.together import MOST_TASKS, TokenSemaphore
from transduce.server.translating import Answer, RequestRunner, TextPlan, TranslationRequest, prepared, translate
from transduce.translation import Translation


def routes() -> list[BaseRoute]:
    """Every endpoint."""
    return [
        Route("/v1/translate", _translate, methods=["POST"]),
        Route("/v1/detect", _detect, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/v1/languages", _languages, methods=["GET"]),
        Route("/v1/openapi.json", _openapi, methods=["GET"]),
        *pairs.routes(),
    ]


async def _translate(request: Request) -> Response:
    state, asker = state_of(request), await asker_of(request)  # before any of the body is read
    given = await read_json(request, state.settings, TranslateRequest)
    texts = given.text if isinstance(given.text, list) else [given.text]
    check_lengths("text", texts, state.settings)
    if given.n_best > state.settings.alternatives + 1:
        raise Refused(422, f"n_best: expected at most {state.settings.alternatives + 1}, got {given.n_best}", "limit")
    check_lengths("prefix", [given.prefix], state.settings)
    check_excluded(given.exclude)
    _check_combination(given)
    asked = TranslationRequest(
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
        asker=asker,
    )
    if given.stream:
        return await _stream(state, asked)
    answers = await unless_gone(request, translate(state, asked))
    size = sum(map(len, texts)) * (8 if given.alignment else given.n_best + 3)
    return await rendered(lambda: {"translations": [_as_json(answer) for answer in answers]}, size)


def _check_combination(given: TranslateRequest) -> None:
    """Refuse what does not go together, rather than leave part of it out unsaid."""
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


async def _stream(state: ServerState, asked: TranslationRequest) -> Response:
    """Admitted before the first line, so that a refusal is an answer of its own."""
    ready = await prepared(state, asked)
    room = ExitStack()
    share = room.enter_context(state.gate.admit(ready.work))
    state.characters[asked.asker] += sum(map(len, asked.texts))

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with asyncio.timeout(state.settings.seconds):
                flow = RequestRunner(state, asked, TokenSemaphore(share), ready.counts, ready.width)
                async for line in _sentences(flow, ready.plans):
                    yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
                yield b'{"done": true}\n'
        except TimeoutError:
            yield b'{"error": "the answer took too long", "code": "deadline"}\n'
        except UserError as error:
            yield json.dumps({"error": str(error), "code": "request"}).encode() + b"\n"
        answer.ended = True

    answer = StreamedLines(lines(), room, state.meter.gone)
    return answer


async def _sentences(flow: RequestRunner, plans: Sequence[TextPlan]) -> AsyncIterator[dict[str, Any]]:
    """Of every text every sentence, in order, each as soon as it and those before it are done; few are begun ahead."""
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
            yield {**line, "text": found.text, "score": found.score}
    finally:
        for _, task in begun:
            task.cancel()
        await asyncio.gather(*(task for _, task in begun), return_exceptions=True)


def _lines(
    flow: RequestRunner, plans: Sequence[TextPlan]
) -> Iterator[tuple[dict[str, Any], Coroutine[Any, Any, Translation]]]:
    """What is known of every sentence's line, and the work that is to be done for it."""
    for number, plan in enumerate(plans):
        before, *spaces = plan.layout.spaces(flow.asked.target)
        # Of a blank text too, for somebody puts the lines together.
        for place, text in enumerate(plan.layout.texts or [""]):
            told = {"source": text, "before": "" if place else before, "space": spaces[place] if spaces else ""}
            yield {"number": number, "sentence": place, **told}, _one(flow, plan, text, not place)


async def _one(flow: RequestRunner, plan: TextPlan, text: str, first: bool) -> Translation:
    """A sentence translated, or as it is where it is in the language already."""
    return await flow.sentence(text, plan.hops, None, first) if plan.hops else Translation(text)


async def _detect(request: Request) -> Response:
    await asker_of(request)
    state = state_of(request)
    given = await read_json(request, state.settings, DetectRequest)
    check_lengths("text", [given.text], state.settings)
    found = (await state.detecting()).detect(given.text)
    return Json([{"language": one.language, "confidence": one.confidence} for one in found])


async def _models(request: Request) -> Response:
    return Json([{"name": one.name, "pairs": one.pairs} for one in state_of(request).models.served])


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
        "detected": {"language": detected.language, "confidence": detected.confidence} if detected else None,
        "alternatives": [{"text": text, "score": score, "log_prob": log} for text, score, log in answer.alternatives],
        "alignment": [alignment_as_json(one) for one in answer.alignments] if answer.alignments else None,
        "before": answer.before,
        "sentences": [{"source": source, "text": text, "space": space} for source, text, space in answer.sentences],
    }
