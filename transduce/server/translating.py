"""From a request to its answers: languages, sentences, the gate, the model, and the translated text.

The sentences of one request run side by side, within limits on how many are begun and how many tokens are under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, TypeVar

from transduce.engines import Translation
from transduce.server.admission import (
    PASSES_ALIGNED,
    PASSES_TAGGED,
    PASSES_TERMS,
    check_included,
    check_work,
    width_of,
)
from transduce.server.answers import Refused
from transduce.server.batcher import Sentence, Translate
from transduce.server.markup import Layout, Passage, passages, placed, with_tags
from transduce.server.models import Models, RouteHop
from transduce.server.settings import Settings
from transduce.server.state import ServerState
from transduce.text.alignment import Alignment, Unit
from transduce.text.languages import Detected, name_of
from transduce.text.markup import MOST_TAGS
from transduce.text.terms import Glossary, TermMatch, TermMatcher
from transduce.translate.directions import likely_source

T = TypeVar("T")
MOST_TASKS = 256  # sentences of a request that are begun at a time


class TokenSemaphore:
    """A semaphore over tokens under way, first come, first served."""

    def __init__(self, tokens: int) -> None:
        self._free, self._all = tokens, tokens
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, tokens: int) -> int:
        """Wait for capacity; return how much was taken. More than there ever is takes all of it."""
        tokens = min(tokens, self._all)
        if self._waiting or self._free < tokens:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((tokens, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give(tokens)  # the turn had come
                raise
        else:
            self._free -= tokens
        return tokens

    def give(self, tokens: int) -> None:
        """Release tokens; the longest waiting task comes next."""
        self._free += tokens
        while self._waiting and (self._waiting[0][0] <= self._free or self._waiting[0][1].cancelled()):
            wanted, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= wanted
                turn.set_result(None)


class LoopTurns:
    """Let one task at a time run in each turn of the event loop: milliseconds of work must not add up to a second."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def come(self) -> None:
        """Wait for a turn of the loop in which no other of these tasks runs."""
        async with self._lock:
            await asyncio.sleep(0)


async def together(work: Iterable[Coroutine[Any, Any, T]], most: int = MOST_TASKS) -> list[T]:
    """Gather all results in order, with at most `most` begun at a time; where one fails, the others are cancelled.

    Coroutines of an iterator are made when their turn comes: of a request that ends early the rest is never made.
    """
    waiting = iter(work)
    ahead = deque(islice(waiting, 2))
    if len(ahead) < 2:
        return [await coroutine for coroutine in ahead]
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    running: set[asyncio.Future[T]] = set()
    slots = asyncio.Semaphore(most)

    def ended(index: int, task: asyncio.Future[T]) -> None:
        running.discard(task)
        slots.release()
        if task.cancelled():
            errors.append(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            errors.append(error)
        else:
            found[index] = task.result()

    count = 0
    try:
        while await slots.acquire() and not errors:
            coroutine = ahead.popleft() if ahead else next(waiting, None)
            if coroutine is None:
                break
            task = asyncio.ensure_future(coroutine)
            running.add(task)
            task.add_done_callback(partial(ended, count))
            count += 1
        while running and not errors:
            await asyncio.wait(set(running), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _cancelled(running)
        for left in chain(ahead, waiting if isinstance(work, Sequence) else ()):
            left.close()  # nobody will await it
    if errors:
        raise errors[0]
    return [found[index] for index in range(count)]


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel running tasks and wait for them."""
    rest = list(tasks)
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.gather(*rest, return_exceptions=True)


LONG = 2000  # characters,
MANY = 8  # or texts: from so many on they are split in a thread
FEW_TASKS = 8  # segments between the tags of a sentence that are begun at a time
MANY_SENTENCES = 200  # of a text: from so many on they are joined in a thread
Tokenized = dict[tuple[str, str], tuple[int, ...]]  # tokens, by model and sentence; "" is the prefix


@dataclass(frozen=True)
class TranslationRequest:
    """Texts to translate with their options; `source` "auto" is detected, `whole` keeps sentences together.

    `asker` is the caller whose characters are counted.
    """

    texts: tuple[str, ...]
    source: str
    target: str
    format: Literal["text", "html"] = "text"
    n_best: int = 1
    beam: int = 0
    align: Unit | None = None
    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    protect: bool = True
    whole: bool = False
    model: str = ""
    glossaries: tuple[Glossary, ...] = ()
    asker: bytes = b""


@dataclass(frozen=True)
class Answer:
    """The translation of a text; `alternatives` are (text, score, log-probability), `sentences` (source, text, space).

    But for HTML, `before` and the text and space of all sentences are the whole. `alignments` are one a sentence.
    """

    text: str
    source: str
    score: float = 0.0
    log_prob: float = 0.0
    finished: bool = True
    detected: Detected | None = None
    alternatives: tuple[tuple[str, float, float], ...] = ()
    alignments: tuple[Alignment, ...] = ()
    before: str = ""
    sentences: tuple[tuple[str, str, str], ...] = ()
    missing_terms: tuple[str, ...] = ()
    confidence: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextPlan:
    """A text, its route, and its parts: sentences, or HTML."""

    text: str
    hops: tuple[RouteHop, ...]
    source: str
    target: str
    detected: Detected | None
    layout: Layout
    pieces: tuple[Any, ...] = ()  # of HTML
    others: Mapping[str, tuple[RouteHop, ...]] = field(default_factory=dict)  # routes of sentences in other languages

    @property
    def sentences(self) -> list[str]:
        """All sentences that will be translated."""
        return [piece.text for piece in self.pieces if isinstance(piece, Passage)] if self.pieces else self.layout.texts

    def hops_of(self, sentence: str) -> tuple[RouteHop, ...]:
        """The route of a sentence; () for one that stays as it is."""
        return self.others.get(sentence, self.hops)

    def passes(self, aligned: bool) -> Iterator[tuple[str, int]]:
        """Yield each sentence with the number of passes of the model over it."""
        for piece in self.pieces:
            if isinstance(piece, Passage):
                yield piece.text, PASSES_TAGGED if piece.tags else 1
        for text in () if self.pieces else self.layout.texts:
            yield text, PASSES_ALIGNED if aligned else 1


@dataclass(frozen=True)
class AdmittedRequest:
    """A request ready for the gate: plans of all texts, tokens of their sentences, and its cost.

    `width` is the work of its search as a multiple of the usual, `work` all of its work in tokens.
    """

    plans: Sequence[TextPlan]
    tokens: Tokenized
    width: int
    work: int


@dataclass
class RequestRunner:
    """Runs one admitted request; `tokens` are those of its sentences, as far as they are known."""

    state: ServerState
    request: TranslationRequest
    window: TokenSemaphore
    tokens: Tokenized
    width: int = 1
    most: int = MOST_TASKS  # sentences of a text that are begun at a time
    turn: LoopTurns = field(default_factory=LoopTurns)  # of work on tags, which takes milliseconds a passage

    async def answer(self, plan: TextPlan) -> Answer:
        """Translate one text."""
        if not plan.hops and not plan.others:
            before, *spaces = plan.layout.spaces(self.request.target)
            same = tuple((text, text, space) for text, space in zip(plan.layout.texts, spaces, strict=True))
            return Answer(plan.text, plan.source, detected=plan.detected, before=before, sentences=same)
        if plan.pieces:
            return await self._markup(plan)
        texts = plan.layout.texts
        work = (self.sentence(text, plan.hops_of(text), self.request.align, not i) for i, text in enumerate(texts))
        found = await together(work, self.most)
        if len(found) > MANY_SENTENCES:
            return await asyncio.to_thread(self._joined, plan, texts, found)
        return self._joined(plan, texts, found)

    async def sentence(
        self, text: str, hops: Sequence[RouteHop], align: Unit | None = None, first: bool = True
    ) -> Translation:
        """Translate one sentence through all models of its route; options apply to the last. Without one it stays."""
        if not hops:
            return Translation(text)
        terms = terms_in(text, hops, self.request)
        sure: float | None = 1.0
        for hop in hops[:-1]:
            work = Translate(hop.served.translator.search, protect=self.request.protect)
            found = await self._hop(hop, Sentence(text, hop.to, source=hop.source), work)
            text, sure = found.text, _both(sure, found.confidence)
        hop, request = hops[-1], self.request
        prefix = request.prefix if first else ""
        item = Sentence(text, hop.to, prefix, request.include, request.exclude, source=hop.source, terms=terms)
        search = hop.served.translator.choose_search(request.beam, request.n_best)
        found = await self._hop(hop, item, Translate(search, align if len(hops) == 1 else None, request.protect))
        return found if len(hops) == 1 else replace(found, confidence=_both(sure, found.confidence))

    async def _hop(self, hop: RouteHop, item: Sentence, work: Translate) -> Translation:
        if not item.text.strip():
            return Translation("")
        own = self.tokens.get((hop.served.name, item.text)) or tokenized(hop, item.text)
        tokens = len(own) + 1
        if item.prefix:
            tokens += len(self.tokens.get((hop.served.name, ""), ()))
        tokens *= self.width * width_of_terms(item.terms, hop)
        taken = await self.window.take(tokens)
        try:
            item = replace(item, tokens=own)
            found: Translation = await self.state.batchers[hop.served.name].run(work, item, tokens)
            return found
        finally:
            self.window.give(taken)

    def _joined(self, plan: TextPlan, texts: Sequence[str], found: Sequence[Translation]) -> Answer:
        before, *spaces = plan.layout.spaces(plan.target)
        aligned = [sentence.alignment for sentence in found if sentence.alignment is not None]
        whole = _side_by_side(plan, found)
        return Answer(
            whole.text,
            plan.source,
            whole.score,
            whole.log_prob,
            whole.finished,
            plan.detected,
            tuple(self._alternatives(plan, whole, found)),
            tuple(aligned) if len(aligned) == len(found) else (),
            before,
            tuple((text, made.text, space) for text, made, space in zip(texts, found, spaces, strict=True)),
            whole.missing_terms,
            whole.confidence,
            whole.warnings,
        )

    def _alternatives(
        self, plan: TextPlan, best: Translation, found: Sequence[Translation]
    ) -> list[tuple[str, float, float]]:
        """The second best of all sentences together, then the third; a sentence without one keeps its best."""
        texts = {best.text}
        others = []
        for rank in range(self.request.n_best - 1):
            chosen = [one.alternatives[rank] if rank < len(one.alternatives) else one for one in found]
            whole = _side_by_side(plan, chosen)
            if whole.text not in texts:
                texts.add(whole.text)
                others.append((whole.text, whole.score, whole.log_prob))
        return others

    async def _markup(self, plan: TextPlan) -> Answer:
        work = (self._passage(piece, plan.hops_of(getattr(piece, "text", ""))) for piece in plan.pieces)
        made = _in_a_row(await together(work, self.most))
        return Answer(
            made.text,
            plan.source,
            made.score,
            made.log_prob,
            made.finished,
            plan.detected,
            missing_terms=made.missing_terms,
            confidence=made.confidence,
            warnings=made.warnings,
        )

    async def _passage(self, piece: str | Passage, hops: Sequence[RouteHop]) -> Translation:
        if isinstance(piece, str):
            return Translation(piece)
        if not hops:
            return Translation(with_tags(piece.text, [(tag.at, tag.text) for tag in piece.tags]))
        (before, *texts) = Layout.of(piece.text, whole=True).spaces(hops[-1].target)
        if piece.tags:
            await self.turn.come()
        bare = piece.stripped(len(before))
        found, text = Translation(""), None
        if len(bare.tags) <= MOST_TAGS:
            found = await self.sentence(" ".join(bare.text.split()), hops, "pieces" if bare.tags else None)
            if bare.tags:
                await self.turn.come()
            text = placed(bare, found.text, found.alignment)
        if text is None:  # tags and words went different ways
            flow = RequestRunner(
                self.state, replace(self.request, n_best=1), self.window, {}, self.width, turn=self.turn
            )
            await self.turn.come()
            parts = await together((flow._passage(segment, hops) for segment in bare.split_at_tags()), FEW_TASKS)
            found = _in_a_row(parts)
            text = found.text
        return replace(found, text=before + text + "".join(texts))


def _both(one: float | None, other: float | None) -> float | None:
    """The probability that a translation and the one it was made of are acceptable, if both are known."""
    return None if one is None or other is None else one * other


def _side_by_side(plan: TextPlan, found: Sequence[Translation]) -> Translation:
    """Join the sentences of a text, with the spaces between them."""
    return Translation.joined(found, plan.layout.joined([sentence.text for sentence in found], plan.target))


def _in_a_row(parts: Sequence[Translation]) -> Translation:
    """Concatenate translations."""
    return Translation.joined(parts, "".join(part.text for part in parts))


async def prepared(state: ServerState, request: TranslationRequest) -> AdmittedRequest:
    """Split a request and check its cost; a long one in a thread, for the loop must not wait."""

    def work() -> AdmittedRequest:
        plans = planned(state, request)
        tokens = tokenize(plans)
        width = width_of(request.n_best, request.beam, _included(plans, request, tokens, state.settings))
        return AdmittedRequest(plans, tokens, width, check_work(cost(tokens, plans, request) * width, state.settings))

    if request.source == "auto":
        await state.detecting()
    long = sum(map(len, request.texts)) + len(request.prefix) > LONG or len(request.texts) > MANY
    long = long or bool(request.glossaries)  # whose first use indexes them
    return await asyncio.to_thread(work) if long else work()


def planned(state: ServerState, request: TranslationRequest) -> list[TextPlan]:
    """The route and the parts of every text; Refused if all are in languages that are not served."""
    models = Models((state.models.named(request.model),)) if request.model else state.models
    plans = [_planned(state, request, models, text) for text in request.texts]
    strange = [plan for plan in plans if plan.detected is not None and plan.detected.unsupported]
    if strange and len(strange) == len(plans) and not any(map(any, (plan.others.values() for plan in plans))):
        source = strange[0].source
        raise Refused(
            400,
            f"This looks like {name_of(source)} ({source}), which is not supported as source; expected one of"
            f" {', '.join(models.sources)}; if it is one of these, say which instead of auto",
            "source",
            language=source,
        )
    return plans


def _planned(state: ServerState, request: TranslationRequest, models: Models, text: str) -> TextPlan:
    """The route and the parts of a text; one in a language that is not served has no route."""
    detected = None
    if request.source == "auto":
        detected = likely_source(state.detector.detect(text), partial(_models_between, models, request.target))
    source = detected.language if detected else request.source
    hops = () if detected and detected.unsupported else models.route(source, request.target)
    if request.align and len(hops) > 1:
        raise _unaligned(hops)
    target = hops[-1].target if hops else request.target
    if request.format == "html":
        pieces = tuple(part for piece in passages(text) for part in _apart(piece, source))
        plan = TextPlan(text, hops, source, target, detected, Layout(()), pieces)
    else:
        layout = Layout.of(text, request.whole or bool(request.include or request.prefix), source)
        plan = TextPlan(text, hops, source, target, detected, layout)
    if detected is not None and len(plan.sentences) > 1:
        plan = replace(plan, others=_other_routes(state, plan, models, request.target))
    if hops or plan.others or plan.pieces:
        return plan
    return replace(plan, layout=Layout.of(text, whole=True))


def _other_routes(state: ServerState, plan: TextPlan, models: Models, target: str) -> dict[str, tuple[RouteHop, ...]]:
    """The routes of sentences that are plainly in another language than the text; () for those that stay."""
    found = {sentence: state.detector.plain(sentence) for sentence in plan.sentences}
    others = {sentence: language for sentence, language in found.items() if language not in ("", plan.source)}
    return {sentence: _any_route(models, language, target) for sentence, language in others.items()}


def _any_route(models: Models, source: str, target: str) -> tuple[RouteHop, ...]:
    """The route between two languages, () if there is none."""
    try:
        return models.route(source, target)
    except Refused:
        return ()


def _unaligned(hops: Sequence[RouteHop]) -> Refused:
    """The error for an alignment through several models."""
    source, pivot, target = hops[0].source, hops[0].target, hops[-1].target
    return Refused(
        422,
        f"alignment: expected none from {source} to {target}, which goes through {pivot}: no model sees both sides;"
        f" translate from {source} to {pivot} and from {pivot} to {target}, and ask each time for the alignment",
        "invalid",
    )


def _apart(piece: str | Passage, language: str) -> Sequence[str | Passage]:
    return piece.sentences(language) if isinstance(piece, Passage) else [piece]


def _models_between(models: Models, target: str, source: str) -> int | None:
    try:
        return len(models.route(source, target))
    except Refused:
        return None


def tokenize(plans: Sequence[TextPlan]) -> Tokenized:
    """The tokens of all sentences for all models on their route."""
    return {
        (hop.served.name, text): tokenized(hop, text)
        for plan in plans
        for text in plan.sentences
        for hop in plan.hops_of(text)
    }


def cost(tokens: Tokenized, plans: Sequence[TextPlan], request: TranslationRequest) -> int:
    """The cost of a request before the width of its search: tokens, by how often the model reads them."""
    total = 0
    for plan in plans:
        for text, times in plan.passes(request.align is not None):
            hops = plan.hops_of(text)
            wide = width_of_terms(terms_in(text, hops, request), hops[-1]) if hops else 1
            total += sum((len(tokens[hop.served.name, text]) + 1) * times for hop in hops) * wide
        if plan.hops and request.prefix:
            last = plan.hops[-1]
            tokens[last.served.name, ""] = _prefix_tokens(last, request.prefix)
            total += len(tokens[last.served.name, ""])
    return max(1, total)


def _included(plans: Sequence[TextPlan], request: TranslationRequest, tokens: Tokenized, settings: Settings) -> int:
    """The number of tokens of forced words, if the last model's search can handle so many."""
    most = 0
    lasts = {plan.hops[-1].served.name: plan.hops[-1] for plan in plans if plan.hops and request.include}
    for last in lasts.values():
        tokenizer = last.served.translator.tokenizers.target
        forced = sum(len(tokenizer.spelling(word)) for word in request.include)
        longest = max((len(own) + 1 for (name, _), own in tokens.items() if name == last.served.name), default=0)
        most = max(most, check_included(forced, longest, settings))
    return most


def terms_in(text: str, hops: Sequence[RouteHop], request: TranslationRequest) -> tuple[TermMatch, ...]:
    """The terms of a sentence; through a pivot, where no model sees both sides, without their places."""
    if not request.glossaries:
        return ()
    found = TermMatcher.of(request.glossaries, hops[0].source, hops[-1].target).find(text)
    return found if len(hops) == 1 else tuple(replace(match, start=0, stop=0) for match in found)


def width_of_terms(terms: Sequence[TermMatch], hop: RouteHop) -> int:
    """The work of placing terms as a multiple of the usual: passes, times the beam of a search that is held to them."""
    if not terms:
        return 1
    tokenizer = hop.served.translator.tokenizers.target
    included = sum(len(tokenizer.spelling(target)) for target in {match.term.target for match in terms})
    return PASSES_TERMS * width_of(1, 0, included)


def _prefix_tokens(hop: RouteHop, prefix: str) -> tuple[int, ...]:
    """The tokens of the prefix, if the model can write so many."""
    translator = hop.served.translator
    found, most = translator.tokenizers.target.encode([prefix])[0], 4 * translator.longest
    if len(found) > most:
        raise Refused(422, f"prefix: expected at most {most} tokens, got {len(found)}", "limit")
    return tuple(found)


def tokenized(hop: RouteHop, text: str) -> tuple[int, ...]:
    """Source tokens; for later models of a route, those of the original text, as an estimate."""
    return tuple(hop.served.translator.tokenizers.source.encode([text])[0])


async def translate(state: ServerState, request: TranslationRequest) -> list[Answer]:
    """Translate all texts of a request, in order."""
    ready = await prepared(state, request)
    with state.gate.admit(ready.work) as share:
        most = max(FEW_TASKS, MOST_TASKS // len(ready.plans))
        flow = RequestRunner(state, request, TokenSemaphore(share), ready.tokens, ready.width, most)
        answers = await together(flow.answer(plan) for plan in ready.plans)
    state.characters[request.asker] += sum(map(len, request.texts))
    return answers
