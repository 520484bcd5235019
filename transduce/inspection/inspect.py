"""Inspect one sentence in one model, with all that can be seen of it: `inspect(translator, text)`.

With the torch engine everything is seen, and so it is of a converted model where torch is installed; an engine that
only searches, scores and attends (the native one) shows the mean cross-attention, and of each token the probability and
its alternatives. Imports no torch by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError, DataError, EngineRefusal, RunError
from transduce.engines import Fallback, Source
from transduce.inspection.record import (
    AttentionMap,
    Branch,
    Candidate,
    DecodingStep,
    Head,
    Inspection,
    LensLayer,
    SourcePicture,
    Tree,
)
from transduce.search import Hypothesis, SearchConfig
from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.search.settings import STEPWISE, Beam, Greedy, Limits
from transduce.text.alignment import Alignment, Grouped, Unit, group_text, group_tokens, merge
from transduce.translate.translator import Translator, draw_key

LEAST = 0.01  # least probability of a token for a what-if continuation
MOST_LINES = 16_000_000  # weights of all heads that are kept: 6 layers of 8 heads and 330 tokens


@dataclass(frozen=True)
class InspectOptions:
    """How much to inspect: `top` candidates a step, at most `branches` what-if continuations in all, a tree or none."""

    top: int = 8
    branches: int = 48
    tree: bool = True

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ConfigError(f"top: expected at least 1 candidate a step, got {self.top}")
        if self.branches < 0:
            raise ConfigError(f"branches: expected a number of questions, or 0 for none, got {self.branches}")


DEFAULT = InspectOptions()


def inspect(
    translator: Translator,
    text: str,
    *,
    to: str = "",
    target: str | None = None,
    prefix: str | Sequence[int] = "",
    beam: int = 0,
    search: SearchConfig | None = None,
    looking: InspectOptions = DEFAULT,
    model: str = "",
    stop: CancelToken | None = None,
) -> Inspection:
    """Inspect one sentence being translated, or a given `target` being read.

    `to`, `beam` and `search` are those of `Translator.translate`; `prefix` is how the translation must begin, as text
    or as tokens: "what if it had said this instead". `model` is a name to show. A text is read whole: one longer than
    the model reads at once is refused. Of a model that reads recordings or pictures `text` is the path of a file.
    Another thread may cancel its searches through `stop`.
    """
    case = _Case.of(translator, text, to, prefix, translator.choose_search(beam, 1, search))
    if target is None:
        hypotheses = translator.find(
            [case.source], case.search, [DecodingConstraints(prefix=case.prefix, cancel_token=stop)]
        )[0]
        if stop is not None and stop.cancelled:
            raise RunError("inspect: cancelled before the translation was found; try again")
    else:
        hypotheses = [_given(translator, case, target)]
    best = hypotheses[0]
    seen = _look(case, best, looking, target is None and looking.tree, stop)
    written = (*best.tokens, translator.tokenizers.target.symbols.eos)
    return Inspection(
        model=model,
        text=text,
        to=to,
        translation=case.text_of(best.tokens),
        score=best.score,
        log_prob=best.log_prob,
        finished=best.finished,
        search="given" if target is not None else kind_of(type(case.search)),
        source=case.pieces,
        read=tuple(step.read for step in seen.steps),
        written=tuple(translator.tokenizers.target.pieces(written)),
        tokens=written,
        source_tokens=case.source_tokens,
        forced=len(case.prefix),
        maps=seen.maps,
        heads=tuple(head for found in seen.maps for head in heads_of(found)) if seen.inside else (),
        alignment=_alignment(case, best, seen.maps),
        steps=seen.steps,
        branches=_branches(case, best, seen.steps, looking.branches) if case.stepwise else (),
        tree=seen.tree,
        lens=seen.lens,
        alternatives=tuple(case.text_of(other.tokens) for other in hypotheses[1:]),
        notes=seen.notes,
        sight=case.sight,
    )


def tags_for(translators: Sequence[Translator], to: str) -> list[str]:
    """The language tag for each of several models: "" for one that lacks it beside one that has it."""
    known = [model.reading is None and model.tokenizers.source.has_tag(to) for model in translators]
    return [to if has_tag or not any(known) else "" for has_tag in known]


@dataclass(frozen=True)
class _Case:
    """A text as a translator reads it, or the frames of a file, and how its translation must begin.

    `pieces` name what the encoder reads, the tag first and the end symbol last; of files the position in it.
    """

    translator: Translator
    text: str
    tag: tuple[int, ...]
    source: Source
    pieces: tuple[str, ...]
    prefix: tuple[int, ...]
    search: SearchConfig

    @classmethod
    def of(cls, translator: Translator, text: str, to: str, prefix: str | Sequence[int], search: SearchConfig) -> _Case:
        target = translator.tokenizers.target
        if not text.strip():
            raise DataError("inspect: the text is blank; give a sentence to look at")
        begin = target.encode([prefix])[0] if isinstance(prefix, str) else list(prefix)
        if any(not 0 <= token < target.size for token in begin):
            raise DataError(f"prefix: expected tokens from 0 to {target.size - 1}, got {list(begin)}")
        if translator.reading is not None:
            return cls._of_file(translator, text, to, tuple(begin), search)
        source = translator.tokenizers.source
        tag, rest = source.cut_tag(text)
        tag = ((source.tag(to),) if to else ()) + tag
        tokens = (*tag, *source.encode([rest])[0])
        if len(tokens) >= translator.longest:
            raise DataError(
                f"inspect: the text has {len(tokens)} tokens, and the model reads fewer than {translator.longest} at"
                " once; give it a sentence at a time"
            )
        pieces = tuple(source.pieces((*tokens, source.symbols.eos)))
        return cls(translator, rest, tag, tokens, pieces, tuple(begin), search)

    @classmethod
    def _of_file(
        cls, translator: Translator, text: str, to: str, prefix: tuple[int, ...], search: SearchConfig
    ) -> _Case:
        assert translator.reading is not None
        if to:
            raise DataError(f"to: {to!r} was given, and a model that reads files takes no language; leave it out")
        parts = translator.reading.parts(text, translator.longest)
        if len(parts) != 1:
            raise DataError(f"inspect: {text} is read in {len(parts)} parts; give a file that is read as one")
        return cls(translator, text, (), parts[0], translator.reading.units(parts[0]), prefix, search)

    @property
    def source_tokens(self) -> tuple[int, ...]:
        """The source tokens with the end symbol; empty for a file."""
        if self.translator.reading is not None:
            return ()
        return (*self.source, self.translator.tokenizers.source.symbols.eos)

    @property
    def sight(self) -> SourcePicture | None:
        """A picture of a source file; None for text."""
        if self.translator.reading is None:
            return None
        reader, places = self.translator.reading.reader, self.translator.reading.places(len(self.source))
        return SourcePicture(reader.sight(self.source), tuple(reader.box(*place) for place in places))

    def grouped(self) -> Grouped:
        """The units that the encoder reads, in words or pieces; of a file the positions of the memory."""
        if self.translator.reading is not None:
            return Grouped((), self.pieces, tuple(range(len(self.pieces))))
        return group_text(self.translator.tokenizers.source, self.text, _unit(self.text))

    @property
    def stepwise(self) -> bool:
        return bool(getattr(self.translator.decoder, "offers", STEPWISE) == STEPWISE)

    def text_of(self, tokens: Sequence[int]) -> str:
        return self.translator.tokenizers.target.decode(tokens)


def _given(translator: Translator, case: _Case, target: str) -> Hypothesis:
    """Score a given translation, as a hypothesis."""
    (tokens,) = translator.tokenizers.target.encode([target])
    (log_probs,) = translator.engine.score([case.source], [tokens])
    return Hypothesis(tuple(tokens), sum(log_probs), sum(log_probs), True, tuple(log_probs))


@dataclass(frozen=True)
class _Looked:
    """The observations of the model at work; `inside` is False where only an engine was available."""

    maps: tuple[AttentionMap, ...]
    steps: tuple[DecodingStep, ...]
    lens: tuple[LensLayer, ...] = ()
    tree: Tree | None = None
    notes: tuple[str, ...] = ()
    inside: bool = True


def _look(case: _Case, best: Hypothesis, looking: InspectOptions, grow: bool, stop: CancelToken | None) -> _Looked:
    """Run one pass with a trace, and repeat the search with the model watched if its tree is to be shown."""
    engine = opened(case.translator.engine)
    if engine is None:
        return _from_outside(case, best, looking.top, stop)
    from transduce.inspection import tracing

    target = case.translator.tokenizers.target
    traced = tracing.trace(engine, case.stepwise, case.source, best.tokens, target, looking.top)
    if sum(found.weights.size for found in traced.maps) > MOST_LINES:
        raise DataError(
            f"inspect: {len(case.source)} source and {len(best.tokens)} target tokens make more than {MOST_LINES:,}"
            " attention weights; give it a shorter sentence"
        )
    notes = [*notes_of(case.translator.engine)]
    if not any(found.part == "cross" for found in traced.maps):
        notes.append("This decoder does not look at the source by attention: no cross-attention, no alignment.")
    if not traced.lens:
        notes.append("No logit lens: an ensemble or a canvas of frames has no layers that write tokens.")
    tree: Tree | None = None
    if grow and case.stepwise:
        from transduce.inspection.tracing import grow as grow_tree

        path = (*best.tokens, target.symbols.eos) if best.finished else best.tokens
        key, constraints = draw_key(case.source), DecodingConstraints(prefix=case.prefix, cancel_token=stop)
        tree = grow_tree(engine.model, traced.memory, case.search, constraints, key, target, path)
    return _Looked(traced.maps, traced.steps, traced.lens, tree, tuple(notes))


def opened(engine: Any) -> Any:
    """The engine, or its fallback, if its model can be looked into; else None."""
    try:
        from transduce.inspection.tracing import Opened
    except ModuleNotFoundError:  # without torch there is none
        return None
    if isinstance(engine, Fallback):
        try:
            engine = engine.behind(EngineRefusal("native engine: it does not tell where each head looks"))
        except (EngineRefusal, ConfigError):  # no torch; a config that needs classes of somebody's own
            return None
    return engine if isinstance(engine, Opened) else None


def notes_of(engine: Any) -> tuple[str, ...]:
    """Notes on the weights that are looked into, where they are not those that were trained."""
    return (engine.note,) if isinstance(engine, Fallback) and engine.note else ()


def _from_outside(case: _Case, best: Hypothesis, top: int, stop: CancelToken | None) -> _Looked:
    """Inspect with what any engine offers: token probabilities with candidates, and mean cross-attention."""
    target = case.translator.tokenizers.target
    eos, bos = target.symbols.eos, target.symbols.bos
    (log_probs,) = case.translator.engine.score([case.source], [best.tokens])
    read = target.pieces([bos, *best.tokens])
    tokens = (*best.tokens, eos)
    others = _candidates(case, best, top, stop)
    ranks = [
        sum(other.log_prob > log_prob for other in candidates if other.token != token)
        for token, log_prob, candidates in zip(tokens, log_probs, others, strict=True)
    ]
    unknown = [math.nan] * len(tokens)
    rows = zip(read, tokens, target.pieces(tokens), log_probs, ranks, unknown, others, strict=True)
    (weights,) = case.translator.engine.attend([case.source], [best.tokens], None)
    padded = np.zeros((1, len(tokens), len(case.pieces)), dtype=np.float32)
    padded[0, : weights.shape[0], : weights.shape[1]] = weights  # the weights of end symbols are unknown
    mean = AttentionMap("decoder.mean.cross", "cross", 0, padded)
    note = (
        "Seen from outside: the native engine tells the mean cross-attention only. Install torch (transduce[train]), or"
        " give the run folder, to see all."
    )
    return _Looked((mean,), tuple(DecodingStep(*row) for row in rows), notes=(note,), inside=False)


def _candidates(case: _Case, best: Hypothesis, top: int, stop: CancelToken | None) -> list[tuple[Candidate, ...]]:
    """The likeliest tokens of each step, by a beam search that may write one token only, which any engine can run."""
    eos = case.translator.tokenizers.target.symbols.eos
    if not case.stepwise:
        return [()] * (len(best.tokens) + 1)
    one_more = Beam(size=top, n_best=top, length_penalty=0.0, limits=Limits(longest=1))
    beginnings = [best.tokens[:position] for position in range(len(best.tokens) + 1)]
    constraints = [DecodingConstraints(prefix=tokens, cancel_token=stop) for tokens in beginnings]
    made = []
    continued = case.translator.find([case.source] * len(constraints), one_more, constraints)
    for position, hypotheses in enumerate(continued):
        found = {(*path.tokens, eos)[position]: path.token_log_probs[position] for path in hypotheses}
        ordered = sorted(found, key=lambda token: -found[token])
        pieces = case.translator.tokenizers.target.pieces(ordered)
        rows = zip(ordered, pieces, (found[token] for token in ordered), strict=True)
        made.append(tuple(Candidate(*row) for row in rows))
    return made


def _branches(case: _Case, best: Hypothesis, steps: Sequence[DecodingStep], most: int) -> tuple[Branch, ...]:
    """For the likeliest tokens that were not written: the translation that would have followed, by greedy search."""
    target = case.translator.tokenizers.target
    never = {*target.symbols.never}
    tried = [
        (other.log_prob, position, other)
        for position, step in enumerate(steps)
        for other in step.candidates
        if other.token != step.token and other.token not in never and other.log_prob >= np.log(LEAST)
    ]
    tried = sorted(sorted(tried, key=lambda row: -row[0])[:most], key=lambda row: (row[1], -row[0]))
    open_ended = [(position, other) for _, position, other in tried if other.token != target.symbols.eos]
    constraints = [DecodingConstraints(prefix=(*best.tokens[:at], other.token)) for at, other in open_ended]
    search = Greedy(getattr(case.search, "limits", Limits()))
    continued = case.translator.find([case.source] * len(open_ended), search, constraints)
    found = dict(zip(open_ended, continued, strict=True))
    made = []
    for _, position, other in tried:
        before = sum(step.log_prob for step in steps[:position])
        tokens, total = best.tokens[:position], before + other.log_prob  # of an end symbol, that is all
        if (position, other) in found:
            (first, *_) = found[position, other]
            tokens, total = first.tokens, first.log_prob
        made.append(Branch(position, other.token, other.piece, other.log_prob, case.text_of(tokens), total))
    return tuple(made)


def _alignment(case: _Case, best: Hypothesis, maps: Sequence[AttentionMap]) -> Alignment | None:
    """Align words of the source and of the translation by the mean of all cross-attention.

    A side that is one word between spaces (a German number, any Chinese sentence) is taken in pieces.
    """
    crossing = [found.weights.mean(0) for found in maps if found.part == "cross"]  # (T, S)
    if not crossing:
        return None
    tokenizers = case.translator.tokenizers
    written = case.text_of(best.tokens)
    source = case.grouped()
    target = group_tokens(tokenizers.target, best.tokens, written, _unit(written))
    tags = len(case.tag)
    mean = np.mean(crossing, axis=0)[: len(best.tokens), tags : tags + len(source.unit)]
    return Alignment.read(source.units, target.units, merge(mean, source, target))


def _unit(text: str) -> Unit:
    return "words" if len(text.split()) > 1 else "pieces"


CLEAR = 0.5  # a head that gives at least half of its weight to one kind of position is named after it
ROLES = {
    "diagonal": ("itself", "the place opposite"),
    "previous": ("the token before", "the place before"),
    "following": ("the token after", "the place after"),
    "ends": ("start or end", "start or end"),
}


def heads_of(layer_map: AttentionMap) -> list[Head]:
    """The statistics of each head of a map."""
    count, rows, columns = layer_map.weights.shape
    weights = layer_map.weights.astype(np.float64)
    opposite = np.zeros(rows) if rows == 1 else np.arange(rows) * (columns - 1) / (rows - 1)
    away = np.arange(columns)[None, :] - opposite[:, None]  # (T, S)
    facts = {
        "entropy": entropy(weights).mean(-1),
        "confidence": weights.max(-1).mean(-1),
        "distance": (weights * np.abs(away)).sum(-1).mean(-1),
        "diagonal": _mass(weights, np.abs(away) <= 0.5),
        "previous": _mass(weights, (away >= -1.5) & (away < -0.5)),
        "following": _mass(weights, (away > 0.5) & (away <= 1.5)),
        "ends": _mass(weights, _ends(layer_map, columns)),
    }
    return [
        Head(
            part=layer_map.part,
            layer=layer_map.layer,
            head=head,
            role=_role(layer_map, facts, head),
            member=layer_map.member,
            **{name: float(values[head]) for name, values in facts.items()},
        )
        for head in range(count)
    ]


def entropy(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The entropy of each row in bits: 0 where a head looks at one position, log2 S where at all alike."""
    safe = np.where(weights > 0, weights, 1.0)
    found: NDArray[np.float64] = -(weights * np.log2(safe)).sum(-1)
    return np.abs(found)  # not -0.0


def _mass(weights: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share of the weight at the positions where a mask is True: (H,)."""
    found: NDArray[np.float64] = (weights * where).sum(-1).mean(-1)
    return found


def _ends(layer_map: AttentionMap, columns: int) -> NDArray[np.bool_]:
    """The end symbol of a source or the start symbol of a target, where heads rest that have nothing to look for."""
    end = 0 if layer_map.part == "decoder" else columns - 1
    found: NDArray[np.bool_] = np.arange(columns) == end
    return found


def _role(layer_map: AttentionMap, facts: dict[str, NDArray[np.float64]], head: int) -> str:
    kind = max(ROLES, key=lambda name: float(facts[name][head]))
    if facts[kind][head] >= CLEAR:
        return ROLES[kind][layer_map.part == "cross"]
    rows = layer_map.weights.shape[1]
    most = (
        np.log2(np.arange(1, rows + 1)).mean() if layer_map.part == "decoder" else np.log2(layer_map.weights.shape[2])
    )
    if facts["entropy"][head] >= 0.8 * most:
        return "everything alike"
    return "one place, which varies" if facts["confidence"][head] >= CLEAR else "several places"
