"""From a request to its answers: languages, sentences, the gate, the model, and the text put together again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from transduce.alignment import Alignment, Unit
from transduce.detection import LIKELY, SURE, Detected
from transduce.server.failures import Refused
from transduce.server.layout import Layout
from transduce.server.markup import Passage, passages, placed
from transduce.server.models import Hop, Models
from transduce.server.state import State
from transduce.server.work import Sentence, Translate
from transduce.translation import Translation

T = TypeVar("T")
LONG = 2000  # characters
Counts = dict[tuple[str, str], int]  # tokens, by model and sentence


@dataclass(frozen=True)
class Asked:
    """What a request wants of its texts. `source` "auto" is found out; `whole` keeps sentences together."""

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


@dataclass(frozen=True)
class Answer:
    """What became of a text; `alternatives` are (text, score, log-probability), `sentences` (source, text, space).

    But for HTML, `before` and the text and space of all sentences are the whole.
    """

    text: str
    source: str
    score: float = 0.0
    log_prob: float = 0.0
    finished: bool = True
    detected: Detected | None = None
    alternatives: tuple[tuple[str, float, float], ...] = ()
    alignment: Alignment | None = None
    before: str = ""
    sentences: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """A text, the way it goes, and its parts: sentences, or HTML."""

    text: str
    hops: tuple[Hop, ...]
    source: str
    detected: Detected | None
    layout: Layout
    pieces: tuple[Any, ...] = ()  # of HTML

    @property
    def sentences(self) -> list[str]:
        """All that will be translated."""
        return [one.text for one in self.pieces if isinstance(one, Passage)] if self.pieces else self.layout.texts


class Window:
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


@dataclass
class Flow:
    """One admitted request on its way; `counts` are the tokens of its sentences, as far as they are known."""

    state: State
    asked: Asked
    window: Window
    counts: Counts

    async def answer(self, plan: Plan) -> Answer:
        """One text translated."""
        if not plan.hops:
            before, *spaces = plan.layout.spaces(self.asked.target)
            same = tuple((text, text, space) for text, space in zip(plan.layout.texts, spaces, strict=True))
            return Answer(plan.text, plan.source, detected=plan.detected, before=before, sentences=same)
        if plan.pieces:
            return await self._markup(plan)
        texts = plan.layout.texts
        found = await together(
            [self.sentence(text, plan.hops, self.asked.align, not i) for i, text in enumerate(texts)]
        )
        return self._joined(plan, texts, found)

    async def sentence(
        self, text: str, hops: Sequence[Hop], align: Unit | None = None, first: bool = True
    ) -> Translation:
        """One sentence through all models of its way; what is asked for goes to the last."""
        for hop in hops[:-1]:
            text = (await self._hop(hop, Sentence(text, hop.to), Translate(hop.served.translator.search))).text
        hop, asked = hops[-1], self.asked
        item = Sentence(text, hop.to, asked.prefix if first else "", asked.include, asked.exclude)
        search = hop.served.translator.choose_search(asked.beam, asked.n_best)
        return await self._hop(hop, item, Translate(search, align if len(hops) == 1 else None))

    async def _hop(self, hop: Hop, item: Sentence, work: Translate) -> Translation:
        if not item.text.strip():
            return Translation("")
        tokens = self.counts.get((hop.served.name, item.text)) or count(hop, item.text)
        taken = await self.window.take(tokens)
        try:
            found: Translation = await self.state.batchers[hop.served.name].run(work, item, tokens)
            return found
        finally:
            self.window.give(taken)

    def _joined(self, plan: Plan, texts: Sequence[str], found: Sequence[Translation]) -> Answer:
        target = plan.hops[-1].target
        before, *spaces = plan.layout.spaces(target)
        aligned = [one.alignment for one in found if one.alignment is not None]
        return Answer(
            plan.layout.joined([one.text for one in found], target),
            plan.source,
            sum(one.score for one in found),
            sum(one.log_prob for one in found),
            all(one.finished for one in found),
            plan.detected,
            tuple(self._alternatives(plan, found)),
            _side_by_side(aligned) if aligned and len(aligned) == len(found) else None,
            before,
            tuple((text, one.text, space) for text, one, space in zip(texts, found, spaces, strict=True)),
        )

    def _alternatives(self, plan: Plan, found: Sequence[Translation]) -> list[tuple[str, float, float]]:
        """The second best of all sentences together, then the third; a sentence that has none keeps its best."""
        texts = {plan.layout.joined([one.text for one in found], plan.hops[-1].target)}
        others = []
        for rank in range(self.asked.n_best - 1):
            chosen = [one.alternatives[rank] if rank < len(one.alternatives) else one for one in found]
            text = plan.layout.joined([one.text for one in chosen], plan.hops[-1].target)
            if text not in texts:
                texts.add(text)
                others.append((text, sum(one.score for one in chosen), sum(one.log_prob for one in chosen)))
        return others

    async def _markup(self, plan: Plan) -> Answer:
        one = _in_a_row(await together([self._passage(piece, plan.hops) for piece in plan.pieces]))
        return Answer(one.text, plan.source, one.score, one.log_prob, one.finished, plan.detected)

    async def _passage(self, piece: str | Passage, hops: Sequence[Hop]) -> Translation:
        if isinstance(piece, str):
            return Translation(piece)
        (before, *texts) = Layout.of(piece.text, whole=True).spaces(hops[-1].target)
        bare = replace(
            piece,
            text=piece.text.strip(),
            tags=tuple(
                replace(tag, at=max(0, min(tag.at - len(before), len(piece.text.strip())))) for tag in piece.tags
            ),
        )
        found = await self.sentence(" ".join(bare.text.split()), hops, "pieces" if bare.tags else None)
        text = placed(bare, found.text, found.alignment)
        if text is None:  # tags and words went different ways
            flat = replace(self.asked, n_best=1)
            parts = await together(
                [Flow(self.state, flat, self.window, {})._passage(one, hops) for one in bare.stretches()]
            )
            found = _in_a_row(parts)
            text = found.text
        return replace(found, text=before + text + "".join(texts))


def _in_a_row(parts: Sequence[Translation]) -> Translation:
    """What stands one after the other, as one."""
    return Translation(
        "".join(one.text for one in parts),
        sum(one.score for one in parts),
        sum(one.log_prob for one in parts),
        finished=all(one.finished for one in parts),
    )


async def prepared(state: State, asked: Asked) -> tuple[list[Plan], Counts]:
    """The plans of all texts and their tokens; what is long is taken apart in a thread, for the loop must not wait."""

    def work() -> tuple[list[Plan], Counts]:
        plans = planned(state, asked)
        return plans, counted(plans)

    if asked.source == "auto":
        await state.detecting()
    return await asyncio.to_thread(work) if sum(map(len, asked.texts)) > LONG else work()


def planned(state: State, asked: Asked) -> list[Plan]:
    """The way and the parts of every text."""
    models = Models((state.models.named(asked.model),)) if asked.model else state.models
    plans = []
    for text in asked.texts:
        source, detected = asked.source, None
        if source == "auto":
            detected = _recognised(state, models, text, asked.target)
            source = detected.language
        hops = models.route(source, asked.target)
        html = asked.format == "html"
        pieces = [one for piece in passages(text) for one in _apart(piece)] if html else ()
        whole = not hops or asked.whole or bool(asked.include or asked.prefix)
        layout = Layout(()) if html else Layout.of(text, whole)
        plans.append(Plan(text, hops, source, detected, layout, tuple(pieces)))
    return plans


def _apart(piece: str | Passage) -> Sequence[str | Passage]:
    return piece.sentences() if isinstance(piece, Passage) else [piece]


def _recognised(state: State, models: Models, text: str, target: str) -> Detected:
    """The likeliest language that can be translated to the target; or what the text surely is, whatever follows."""
    found = state.detector.detect(text)
    for one in found:
        try:
            hops = models.route(one.language, target)
        except Refused:
            if one.confidence >= SURE:
                return one
            continue
        if hops or one.confidence >= LIKELY:
            return one
    return found[0]


def counted(plans: Sequence[Plan]) -> Counts:
    """The tokens of all sentences for all models on their way."""
    return {(hop.served.name, text): count(hop, text) for plan in plans for hop in plan.hops for text in plan.sentences}


def cost(counts: Counts, plans: Sequence[Plan], n_best: int) -> int:
    """What a request asks of the gate; more hypotheses than a usual beam has cost more."""
    every = ((hop.served.name, text) for plan in plans for hop in plan.hops for text in plan.sentences)
    return max(1, sum(counts[one] for one in every) * max(1, n_best // 2))


def count(hop: Hop, text: str) -> int:
    """Source tokens with the end symbol; of languages on the way the text that is known stands for what will come."""
    return len(hop.served.translator.tokenizers.source.encode([text])[0]) + 1


async def translate(state: State, asked: Asked) -> list[Answer]:
    """Everything a request asks for, in order."""
    plans, counts = await prepared(state, asked)
    with state.gate.admit(cost(counts, plans, asked.n_best)) as share:
        flow = Flow(state, asked, Window(share), counts)
        answers = await together([flow.answer(plan) for plan in plans])
    state.characters += sum(map(len, asked.texts))
    return answers


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. Where one fails, the others are cancelled first."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _side_by_side(alignments: Sequence[Alignment]) -> Alignment:
    """One alignment of sentences that stand one after the other: nothing links different ones."""
    source = tuple(unit for one in alignments for unit in one.source)
    target = tuple(unit for one in alignments for unit in one.target)
    weights: list[tuple[float, ...]] = []
    links: list[tuple[int, int]] = []
    left = 0
    for one in alignments:
        after = len(source) - left - len(one.source)
        links += [(left + s, len(weights) + t) for s, t in one.links]
        weights += [(0.0,) * left + row + (0.0,) * after for row in one.weights]
        left += len(one.source)
    return Alignment(source, target, tuple(weights), tuple(links))
