"""From a request to its answers: languages, sentences, the gate, the model, and the text put together again.

The sentences of one request side by side: how many are begun at a time, and how many tokens are under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, TypeVar

from transduce.engines.base import Translation
from transduce.server.admission import PASSES_ALIGNED, PASSES_TAGGED, check_included, check_work, width_of
from transduce.server.answers import Refused
from transduce.server.batcher import Sentence, Translate
from transduce.server.markup import MOST_TAGS, Layout, Passage, passages, placed
from transduce.server.models import Models, RouteHop
from transduce.server.settings import Settings
from transduce.server.state import ServerState
from transduce.text.alignment import Alignment, Unit
from transduce.text.languages import Detected
from transduce.translate.directions import likely_source

T = TypeVar("T")
MOST_TASKS = 256  # sentences of a request that are begun at a time


class TokenSemaphore:
    """Room for so many tokens under way; who does not fit waits for those before."""

    def __init__(self, tokens: int) -> None:
        self._free, self._all = tokens, tokens
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, tokens: int) -> int:
        """Wait for room; gives how much was taken, for more than there ever is takes all of it."""
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
        """Leave; who waited longest comes next."""
        self._free += tokens
        while self._waiting and (self._waiting[0][0] <= self._free or self._waiting[0][1].cancelled()):
            wanted, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= wanted
                turn.set_result(None)


class LoopTurns:
    """One task at a time goes on in each turn of the event loop: milliseconds of work must not add up to a second."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def come(self) -> None:
        """Wait for a turn of the loop in which nobody else of these goes on."""
        async with self._lock:
            await asyncio.sleep(0)


async def together(work: Iterable[Coroutine[Any, Any, T]], most: int = MOST_TASKS) -> list[T]:
    """All results in order, of at most so many that are begun at a time. Where one fails, the others are cancelled.

    Work that an iterator makes is made when its turn comes: of a request that ends early the rest is never made.
    """
    waiting = iter(work)
    ahead = deque(islice(waiting, 2))
    if len(ahead) < 2:
        return [await one for one in ahead]
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    running: set[asyncio.Future[T]] = set()
    room = asyncio.Semaphore(most)

    def ended(place: int, task: asyncio.Future[T]) -> None:
        running.discard(task)
        room.release()
        if task.cancelled():
            errors.append(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            errors.append(error)
        else:
            found[place] = task.result()

    count = 0
    try:
        while await room.acquire() and not errors:
            one = ahead.popleft() if ahead else next(waiting, None)
            if one is None:
                break
            task = asyncio.ensure_future(one)
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
    return [found[place] for place in range(count)]


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Those that run end now."""
    rest = list(tasks)
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.gather(*rest, return_exceptions=True)


LONG = 2000  # characters,
MANY = 8  # or texts: from so many on they are taken apart in a thread
FEW_TASKS = 8  # the same of stretches between the tags of a sentence
MANY_SENTENCES = 200  # of a text: from so many on they are put together in a thread
Tokenized = dict[tuple[str, str], tuple[int, ...]]  # by model and sentence; "" stands for the prefix of translations


@dataclass(frozen=True)
class TranslationRequest:
    """What a request wants of its texts. `source` "auto" is found out; `whole` keeps sentences together.

    `asker` is whose characters are counted.
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
    whole: bool = False
    model: str = ""
    asker: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What became of a text; `alternatives` are (text, score, log-probability), `sentences` (source, text, space).

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


@dataclass(frozen=True)
class TextPlan:
    """A text, the way it goes, and its parts: sentences, or HTML."""

    text: str
    hops: tuple[RouteHop, ...]
    source: str
    detected: Detected | None
    layout: Layout
    pieces: tuple[Any, ...] = ()  # of HTML

    @property
    def sentences(self) -> list[str]:
        """All that will be translated."""
        return [one.text for one in self.pieces if isinstance(one, Passage)] if self.pieces else self.layout.texts

    def passes(self, aligned: bool) -> Iterator[tuple[str, int]]:
        """The same, each with how often the model reads it."""
        for one in self.pieces:
            if isinstance(one, Passage):
                yield one.text, PASSES_TAGGED if one.tags else 1
        for text in () if self.pieces else self.layout.texts:
            yield text, PASSES_ALIGNED if aligned else 1


@dataclass(frozen=True)
class AdmittedRequest:
    """A request that is ready for the gate: plans of all texts, tokens of their sentences, how many times the usual
    work its search does, and all of its work."""

    plans: Sequence[TextPlan]
    tokens: Tokenized
    width: int
    work: int


@dataclass
class RequestRunner:
    """One admitted request on its way; `tokens` are those of its sentences, as far as they are known."""

    state: ServerState
    asked: TranslationRequest
    window: TokenSemaphore
    tokens: Tokenized
    width: int = 1
    most: int = MOST_TASKS  # sentences of a text that are begun at a time
    turn: LoopTurns = field(default_factory=LoopTurns)  # of work on tags, which takes milliseconds a passage

    async def answer(self, plan: TextPlan) -> Answer:
        """One text translated."""
        if not plan.hops:
            before, *spaces = plan.layout.spaces(self.asked.target)
            same = tuple((text, text, space) for text, space in zip(plan.layout.texts, spaces, strict=True))
            return Answer(plan.text, plan.source, detected=plan.detected, before=before, sentences=same)
        if plan.pieces:
            return await self._markup(plan)
        texts = plan.layout.texts
        work = (self.sentence(text, plan.hops, self.asked.align, not i) for i, text in enumerate(texts))
        found = await together(work, self.most)
        if len(found) > MANY_SENTENCES:
            return await asyncio.to_thread(self._joined, plan, texts, found)
        return self._joined(plan, texts, found)

    async def sentence(
        self, text: str, hops: Sequence[RouteHop], align: Unit | None = None, first: bool = True
    ) -> Translation:
        """One sentence through all models of its way; what is asked for goes to the last."""
        for hop in hops[:-1]:
            text = (await self._hop(hop, Sentence(text, hop.to), Translate(hop.served.translator.search))).text
        hop, asked = hops[-1], self.asked
        item = Sentence(text, hop.to, asked.prefix if first else "", asked.include, asked.exclude)
        search = hop.served.translator.choose_search(asked.beam, asked.n_best)
        return await self._hop(hop, item, Translate(search, align if len(hops) == 1 else None))

    async def _hop(self, hop: RouteHop, item: Sentence, work: Translate) -> Translation:
        if not item.text.strip():
            return Translation("")
        own = self.tokens.get((hop.served.name, item.text)) or tokenized(hop, item.text)
        tokens = len(own) + 1
        if item.prefix:
            tokens += len(self.tokens.get((hop.served.name, ""), ()))
        tokens *= self.width
        taken = await self.window.take(tokens)
        try:
            item = replace(item, tokens=own)
            found: Translation = await self.state.batchers[hop.served.name].run(work, item, tokens)
            return found
        finally:
            self.window.give(taken)

    def _joined(self, plan: TextPlan, texts: Sequence[str], found: Sequence[Translation]) -> Answer:
        target = plan.hops[-1].target
        before, *spaces = plan.layout.spaces(target)
        aligned = [one.alignment for one in found if one.alignment is not None]
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
            tuple((text, one.text, space) for text, one, space in zip(texts, found, spaces, strict=True)),
        )

    def _alternatives(
        self, plan: TextPlan, best: Translation, found: Sequence[Translation]
    ) -> list[tuple[str, float, float]]:
        """The second best of all sentences together, then the third; a sentence that has none keeps its best."""
        texts = {best.text}
        others = []
        for rank in range(self.asked.n_best - 1):
            chosen = [one.alternatives[rank] if rank < len(one.alternatives) else one for one in found]
            whole = _side_by_side(plan, chosen)
            if whole.text not in texts:
                texts.add(whole.text)
                others.append((whole.text, whole.score, whole.log_prob))
        return others

    async def _markup(self, plan: TextPlan) -> Answer:
        one = _in_a_row(await together((self._passage(piece, plan.hops) for piece in plan.pieces), self.most))
        return Answer(one.text, plan.source, one.score, one.log_prob, one.finished, plan.detected)

    async def _passage(self, piece: str | Passage, hops: Sequence[RouteHop]) -> Translation:
        if isinstance(piece, str):
            return Translation(piece)
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
            flow = RequestRunner(self.state, replace(self.asked, n_best=1), self.window, {}, self.width, turn=self.turn)
            await self.turn.come()
            parts = await together((flow._passage(one, hops) for one in bare.stretches()), FEW_TASKS)
            found = _in_a_row(parts)
            text = found.text
        return replace(found, text=before + text + "".join(texts))


def _side_by_side(plan: TextPlan, found: Sequence[Translation]) -> Translation:
    """The sentences of a text as one, with what stood between them."""
    return Translation.joined(found, plan.layout.joined([one.text for one in found], plan.hops[-1].target))


def _in_a_row(parts: Sequence[Translation]) -> Translation:
    """What stands one after the other, as one."""
    return Translation.joined(parts, "".join(one.text for one in parts))


async def prepared(state: ServerState, asked: TranslationRequest) -> AdmittedRequest:
    """A request taken apart, if it is not too much work; what is long in a thread, for the loop must not wait."""

    def work() -> AdmittedRequest:
        plans = planned(state, asked)
        tokens = tokenize(plans)
        width = width_of(asked.n_best, asked.beam, _included(plans, asked, tokens, state.settings))
        return AdmittedRequest(plans, tokens, width, check_work(cost(tokens, plans, asked) * width, state.settings))

    if asked.source == "auto":
        await state.detecting()
    long = sum(map(len, asked.texts)) + len(asked.prefix) > LONG or len(asked.texts) > MANY
    return await asyncio.to_thread(work) if long else work()


def planned(state: ServerState, asked: TranslationRequest) -> list[TextPlan]:
    """The way and the parts of every text."""
    models = Models((state.models.named(asked.model),)) if asked.model else state.models
    plans = []
    for text in asked.texts:
        source, detected = asked.source, None
        if source == "auto":
            found = state.detector.detect(text)
            detected = likely_source(found, partial(_models_between, models, asked.target))
            source = detected.language
        hops = models.route(source, asked.target)
        if asked.align and len(hops) > 1:
            raise _unaligned(hops)
        html = asked.format == "html"
        pieces = [one for piece in passages(text) for one in _apart(piece)] if html else ()
        whole = not hops or asked.whole or bool(asked.include or asked.prefix)
        layout = Layout(()) if html else Layout.of(text, whole)
        plans.append(TextPlan(text, hops, source, detected, layout, tuple(pieces)))
    return plans


def _unaligned(hops: Sequence[RouteHop]) -> Refused:
    """Why a way of several models has no alignment."""
    source, pivot, target = hops[0].source, hops[0].target, hops[-1].target
    return Refused(
        422,
        f"alignment: expected none from {source} to {target}, which goes through {pivot}: no model sees both sides;"
        f" translate from {source} to {pivot} and from {pivot} to {target}, and ask each time for the alignment",
        "invalid",
    )


def _apart(piece: str | Passage) -> Sequence[str | Passage]:
    return piece.sentences() if isinstance(piece, Passage) else [piece]


def _models_between(models: Models, target: str, source: str) -> int | None:
    try:
        return len(models.route(source, target))
    except Refused:
        return None


def tokenize(plans: Sequence[TextPlan]) -> Tokenized:
    """The tokens of all sentences for all models on their way."""
    return {
        (hop.served.name, text): tokenized(hop, text) for plan in plans for hop in plan.hops for text in plan.sentences
    }


def cost(known: Tokenized, plans: Sequence[TextPlan], asked: TranslationRequest) -> int:
    """What a request asks of the gate before the width of its search: tokens, by how often the model reads them."""
    tokens = 0
    for plan in plans:
        for hop in plan.hops:
            read = plan.passes(asked.align is not None)
            tokens += sum((len(known[hop.served.name, text]) + 1) * times for text, times in read)
        if plan.hops and asked.prefix:
            last = plan.hops[-1]
            known[last.served.name, ""] = _prefix_tokens(last, asked.prefix)
            tokens += len(known[last.served.name, ""])
    return max(1, tokens)


def _included(plans: Sequence[TextPlan], asked: TranslationRequest, known: Tokenized, settings: Settings) -> int:
    """How many tokens the words have that must appear, where the last model's search can have so many."""
    most = 0
    lasts = {plan.hops[-1].served.name: plan.hops[-1] for plan in plans if plan.hops and asked.include}
    for last in lasts.values():
        tokenizer = last.served.translator.tokenizers.target
        tokens = sum(len(tokenizer.spelling(word)) for word in asked.include)
        longest = max((len(own) + 1 for (name, _), own in known.items() if name == last.served.name), default=0)
        most = max(most, check_included(tokens, longest, settings))
    return most


def _prefix_tokens(hop: RouteHop, prefix: str) -> tuple[int, ...]:
    """The tokens that a translation must begin with, if the model can write so many."""
    translator = hop.served.translator
    found, most = translator.tokenizers.target.encode([prefix])[0], 4 * translator.longest
    if len(found) > most:
        raise Refused(422, f"prefix: expected at most {most} tokens, got {len(found)}", "limit")
    return tuple(found)


def tokenized(hop: RouteHop, text: str) -> tuple[int, ...]:
    """Source tokens; of languages on the way the text that is known stands for what will come."""
    return tuple(hop.served.translator.tokenizers.source.encode([text])[0])


async def translate(state: ServerState, asked: TranslationRequest) -> list[Answer]:
    """Everything a request asks for, in order."""
    ready = await prepared(state, asked)
    with state.gate.admit(ready.work) as share:
        most = max(FEW_TASKS, MOST_TASKS // len(ready.plans))
        flow = RequestRunner(state, asked, TokenSemaphore(share), ready.tokens, ready.width, most)
        answers = await together(flow.answer(plan) for plan in ready.plans)
    state.characters[asked.asker] += sum(map(len, asked.texts))
    return answers
