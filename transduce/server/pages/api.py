"""Requests of the pages besides translations: alternative words at a position, and inspections of a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from transduce.inspection.alternatives import alternatives as find_alternatives
from transduce.search.constraints import CancelToken
from transduce.server.answering import asker_of, state_of, unless_gone
from transduce.server.answers import Json, Refused
from transduce.server.inspection_process import Inspect, Job, Learn
from transduce.server.models import RouteHop, Served
from transduce.server.protocols.reading import read_json
from transduce.server.protocols.schemas import Code, Name, Strict
from transduce.server.state import ServerState
from transduce.text.tokenizer import Tokenizer

S = TypeVar("S", bound=Strict)
MOST_BEAM = 8
MOST_TOKENS = 200  # of an inspected sentence,
MOST_WRITTEN = 512  # and of its translation as far as it is given
TOKENS_A_LOOK = 512  # cost of an inspection at the gate: it runs the model several times, alone


class AlternativesRequest(Strict):
    """A sentence, how its translation begins, and the translation as it stands."""

    text: str
    source: Code
    target: Code
    before: str = ""
    current: str = ""


class InspectRequest(Strict):
    """A sentence and the model to inspect; `prefix` are tokens that the translation must begin with."""

    text: str
    model: Name
    to: str = Field("", max_length=20)
    beam: int = Field(4, ge=0, le=MOST_BEAM)
    prefix: list[int] = Field([], max_length=MOST_WRITTEN)


class LearnRequest(Strict):
    """A sentence, a model, and the layer whose tensors are shown."""

    text: str
    model: Name
    to: str = Field("", max_length=20)
    layer: int = Field(0, ge=0, le=1000)


async def _read(request: Request, model: type[S]) -> tuple[ServerState, S]:
    state = state_of(request)
    await asker_of(request)
    return state, await read_json(request, state.settings, model)


async def alternatives(request: Request) -> Response:
    """Alternative words after a prefix with their continuations, the likeliest first."""
    state, given = await _read(request, AlternativesRequest)
    _check_length(state, given.text)
    _check_length(state, given.before)
    _check_length(state, given.current)
    hops = state.models.route(given.source, given.target)
    if not hops:
        return Json({"alternatives": []})
    first, last = hops[0].served.translator.tokenizers, hops[-1].served.translator.tokenizers
    _check_tokens(first.source, given.text, MOST_TOKENS, "sentence")
    _check_tokens(last.target, given.before, MOST_WRITTEN, "beginning")
    _check_tokens(last.target, given.current, MOST_WRITTEN, "translation")

    def work(stop: CancelToken) -> list[dict[str, Any]]:
        text, last = _through(hops, given.text, stop)
        count = max(1, state.settings.alternatives)
        found = find_alternatives(last.served.translator, text, given.before, last.to, count, stop, given.current)
        return [asdict(alternative) for alternative in found]

    found = await unless_gone(request, state.run(work, TOKENS_A_LOOK))
    return Json({"alternatives": found})


def _through(hops: tuple[RouteHop, ...], text: str, stop: CancelToken) -> tuple[str, RouteHop]:
    """Translate the text up to the last model of a route."""
    *before, last = hops
    for hop in before:
        text = hop.served.translator(text, to=hop.to, cancel_tokens=[stop])
    return text, last


async def inspect(request: Request) -> Response:
    """Inspect one sentence."""
    state, given = await _read(request, InspectRequest)
    served = _model(state, given.model, given.text, given.to)
    job = Inspect(given.text, given.to, given.beam, tuple(given.prefix), served.name)
    return await _inspected(request, state, served, job)


async def learn(request: Request) -> Response:
    """Code and tensors of every block of the paper's figure 1, for one sentence."""
    state, given = await _read(request, LearnRequest)
    served = _model(state, given.model, given.text, given.to)
    return await _inspected(request, state, served, Learn(given.text, given.to, given.layer))


async def _inspected(request: Request, state: ServerState, served: Served, job: Job) -> Response:
    """The response of an inspection: large JSON, written where the inspection runs."""

    def work(stop: CancelToken) -> bytes:
        return state.inspections.run(served, job, stop)

    try:
        return Json(await unless_gone(request, state.run(work, TOKENS_A_LOOK)))
    except ModuleNotFoundError as error:  # torch, which a server of converted models may lack
        raise Refused(501, f"this needs {error.name}: pip install 'transduce[train]'", "extra") from None


def _model(state: ServerState, name: str, text: str, to: str) -> Served:
    """The requested model; raise Refused for too long a sentence, or a language that is not its own."""
    _check_length(state, text)
    served = state.models.named(name) if name else state.models.served[0]
    if to and to not in served.tagged:
        raise Refused(400, f"to: {served.name} has no tag for {to!r}", "language")
    _check_tokens(served.translator.tokenizers.source, text, MOST_TOKENS, "sentence")
    return served


def _check_tokens(tokenizer: Tokenizer, text: str, most: int, what: str) -> None:
    tokens = len(tokenizer.encode([text])[0])
    if tokens > most:
        raise Refused(413, f"the {what} has {tokens} tokens; at most {most} are looked into here", "limit")


def _check_length(state: ServerState, text: str) -> None:
    if len(text) > state.settings.characters:
        raise Refused(400, f"the text is longer than {state.settings.characters} characters", "limit")
