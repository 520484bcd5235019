"""Trace one sentence and its translation through a model: attention of every head, every step, the lens, the tree.

Everything comes from the model contract and the names of the trace (docs/architecture.md), so that any family works:
what a model does not trace is left out.

The search tree includes what the search dropped. The search runs unchanged. What is watched is the model: its state
carries the tokens of every path, so that whatever the search reorders and drops is seen at the next step. Exact for
greedy search, sampling and beams; where words must be included or a beam is divided into groups, ends that are shown as
finished may have been dropped.

Shapes: T positions of the decoder, S source tokens, N paths, t tokens so far, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from transduce.data.batch import collate
from transduce.engines import Source
from transduce.inspection.record import PARTS, AttentionMap, Candidate, DecodingStep, Fate, LensLayer, Node, Part, Tree
from transduce.model.contract import Autoregressive, DecoderState, Memory, evaluating
from transduce.search import UNNORMALIZED, LengthPenalty, SearchConfig
from transduce.search.constraints import DecodingConstraints
from transduce.search.rules import Rule, next_log_probs, rules_of
from transduce.search.settings import Limits
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Symbols

_ATTENTION = re.compile(r"(?:member\.(\d+)\.)?(encoder|decoder)\.(\d+)\.(self|cross)")
LENS_CANDIDATES = 3
ROWS = 16  # positions of the decoder whose distributions are computed together


@runtime_checkable
class Opened(Protocol):
    """An engine whose model can be looked into: the torch engine. `source` and `target` are symbols."""

    model: Any
    source: Symbols
    target: Symbols
    device: torch.device


@dataclass(frozen=True)
class Traced:
    """The results of one pass: maps in order, steps, the logit lens, and the memory of the source."""

    maps: tuple[AttentionMap, ...]
    steps: tuple[DecodingStep, ...]
    lens: tuple[LensLayer, ...]
    memory: Memory


def trace(
    engine: Opened, stepwise: bool, source: Source, written: Sequence[int], tokenizer: Tokenizer, top: int
) -> Traced:
    """Read a source (tokens, or frames) and its translation, without end symbols; `top` candidates a step."""
    batch = collate([source], [written], engine.source, engine.target).to(engine.device)
    found: dict[str, Tensor] = {}
    with evaluating(engine.model), torch.inference_mode():
        memory = engine.model.encode(batch.source, batch.source_mask, found)
        gold = batch.target[0, 1:].cpu()
        if stepwise:
            logits, _ = engine.model.advance(batch.target[:, :-1], engine.model.start(memory), found, batch.target_mask)
            tops = _tops(lambda rows: logits[0, rows], gold, tokenizer, top)
            del logits
            log_probs = tops.log_probs
        else:
            log_probs = engine.model.token_log_probs(memory, batch.target, batch.target_mask, found)[0].tolist()
            tops = None
        maps = maps_of(found, int(memory.mask.sum()), len(log_probs))
        layers = _layer_logits(engine.model, found, len(log_probs))
        if tops is None and layers:  # all positions undecided: the last layer's logits are the model's
            tops = _tops(layers[max(layers)], gold, tokenizer, top)
        glimpses = tuple(
            LensLayer(layer, tuple(lens.candidates), tuple(lens.ranks))
            for layer, logits_of in sorted(layers.items())
            for lens in [_tops(logits_of, gold, tokenizer, LENS_CANDIDATES)]
        )
    read = [engine.target.bos, *written] if stepwise else gold.tolist()
    return Traced(maps, steps_of(tops, gold, log_probs, read, tokenizer), glimpses, memory)


def maps_of(found: dict[str, Tensor], source: int, places: int) -> tuple[AttentionMap, ...]:
    """The attention maps in a trace of one sentence, ordered by part, member and layer.

    A canvas with more frames than the translation has tokens attends between frames, which have no names: left out.
    """
    maps = [_map_of(match, weights, places) for name, weights in found.items() if (match := _ATTENTION.fullmatch(name))]
    named = [layer for layer in maps if layer.weights.shape[1] == (source if layer.part == "encoder" else places)]
    return tuple(sorted(named, key=lambda layer: (PARTS.index(layer.part), layer.member, layer.layer)))


def _map_of(match: re.Match[str], weights: Tensor, places: int) -> AttentionMap:
    """Build one attention map of a trace, cut to the tokens of the translation."""
    part: Part = "cross" if match[4] == "cross" else "encoder" if match[2] == "encoder" else "decoder"
    heads = weights[0].float().cpu()
    if part == "cross":
        heads = heads[:, :places]
    elif part == "decoder" and heads.shape[2] > places:
        heads = heads[:, :places, :places] if heads.shape[2] < 2 * places else heads[:, :0]
    return AttentionMap(match[0], part, int(match[3]), heads.numpy().copy(), int(match[1] or 0))


@dataclass
class TopCandidates:
    """Of each position the written token's log-probability and rank, the entropy in bits, and the best candidates."""

    log_probs: list[float]
    ranks: list[int]
    entropies: list[float]
    candidates: list[tuple[Candidate, ...]]


Logits = Callable[[slice], Tensor]  # of some positions (rows, V)


def _tops(logits_of: Logits, gold: Tensor, tokenizer: Tokenizer, top: int) -> TopCandidates:
    """Compute `TopCandidates` a few positions at a time: all at once take hundreds of megabytes for a long sentence."""
    found = TopCandidates([], [], [], [])
    for begin in range(0, len(gold), ROWS):
        rows = slice(begin, min(begin + ROWS, len(gold)))
        log_probs = logits_of(rows).float().log_softmax(-1).cpu()
        written = log_probs.gather(1, gold[rows, None])
        found.log_probs += written[:, 0].tolist()
        found.ranks += (log_probs > written).sum(1).tolist()
        bits = (-(log_probs.exp() * log_probs).nan_to_num()).sum(1) / torch.log(torch.tensor(2.0))
        found.entropies += bits.tolist()
        found.candidates += candidates(log_probs, tokenizer, top)
    return found


def steps_of(
    tops: TopCandidates | None, gold: Tensor, log_probs: Sequence[float], read: Sequence[int], tokenizer: Tokenizer
) -> tuple[DecodingStep, ...]:
    """A step for each token of gold (T,); `tops` is None where the model has no distributions."""
    pieces, before = tokenizer.pieces(gold.tolist()), tokenizer.pieces(read)
    if tops is None:
        given = zip(before, gold.tolist(), pieces, log_probs, strict=True)
        return tuple(DecodingStep(last, token, piece, log_prob) for last, token, piece, log_prob in given)
    columns = (before, gold.tolist(), pieces, log_probs, tops.ranks, tops.entropies, tops.candidates)
    return tuple(DecodingStep(*row) for row in zip(*columns, strict=True))


def candidates(log_probs: Tensor, tokenizer: Tokenizer, top: int) -> list[tuple[Candidate, ...]]:
    """The most probable tokens of each row (T, V), best first."""
    best = log_probs.topk(min(top, log_probs.shape[1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        tuple(Candidate(*row) for row in zip(tokens, tokenizer.pieces(tokens), values, strict=True))
        for tokens, values in rows
    ]


def _layer_logits(model: Any, found: dict[str, Tensor], places: int) -> dict[int, Logits]:
    """The logits of each decoder layer: "logit lens" (nostalgebraist 2020). Empty for ensembles."""
    layers: dict[int, Logits] = {}
    for name, states in found.items():
        match = re.fullmatch(r"decoder\.(\d+)\.out", name)
        if match and places <= states.shape[1] < 2 * places:  # more are frames of CTC
            layers[int(match[1])] = lambda rows, states=states: model.layer_logits(states[:, rows])[0]  # type: ignore[misc]
    return layers


FEWEST = 4  # continuations shown of a step, where a search looks at fewer
Path = tuple[int, ...]


@dataclass(frozen=True)
class SearchStep:
    """One step: the tokens of each path without the start symbol, and next-token log-probabilities (N, V)."""

    paths: list[Path]
    log_probs: Tensor


@dataclass(frozen=True)
class ObservedState:
    """The cache of a watched state: the model's own cache, and the tokens (N, t) read so far."""

    cache: Any
    tokens: Tensor


class ObservedModel:
    """A stepwise model that reports every step to `on_step`."""

    def __init__(
        self, model: Autoregressive, rules: Sequence[Rule], eos: int, on_step: Callable[[SearchStep], None]
    ) -> None:
        self.model, self.rules, self.eos, self.on_step = model, rules, eos, on_step

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory:
        return self.model.encode(source, mask, trace)

    def start(self, memory: Memory) -> DecoderState:
        state = self.model.start(memory)
        nothing = memory.mask.new_empty(len(memory.mask), 0, dtype=torch.int64)
        return dataclasses.replace(state, cache=ObservedState(state.cache, nothing))

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        followed: ObservedState = state.cache
        logits, after = self.model.advance(tokens, dataclasses.replace(state, cache=followed.cache), trace, mask)
        every = torch.cat((followed.tokens, tokens), dim=1)
        written, sentence = every[:, 1:], every.new_zeros(len(every))
        allowed = next_log_probs(logits[:, -1], written, sentence, self.rules, self.eos)
        self.on_step(SearchStep([tuple(path) for path in written.tolist()], allowed.cpu()))
        return logits, dataclasses.replace(after, cache=ObservedState(after.cache, every))


def grow(
    model: Autoregressive,
    memory: Memory,
    search: SearchConfig,
    constraints: DecodingConstraints,
    key: int,
    tokenizer: Tokenizer,
    chosen: Path,
) -> Tree:
    """Build the tree of one sentence's search (a search config); `chosen` is the path taken, with its end symbol.

    Of a joint search it is the tree of its beam, which may lack what the CTC head found.
    """
    search = getattr(search, "beam", search)
    symbols = tokenizer.symbols
    rules = rules_of(getattr(search, "limits", Limits()), symbols, [constraints], memory.mask.device)
    penalty: LengthPenalty = getattr(search, "penalty", UNNORMALIZED)
    builder = _TreeBuilder(tokenizer, symbols, penalty, bool(getattr(search, "shrinking", False)))
    watched = ObservedModel(model, rules, symbols.eos, builder.add_step)
    with evaluating(cast("nn.Module", model)), torch.inference_mode():
        search.build()(watched, memory, symbols, [constraints], [key])
    return builder.tree(chosen)


class _TreeBuilder:
    """A tree under construction: `number` and `total` of each path, `lost` positions of a shrinking beam.

    Which paths of a step were kept is known at the next; only the last step's distributions are stored.
    """

    def __init__(self, tokenizer: Tokenizer, symbols: Symbols, penalty: LengthPenalty, shrinking: bool) -> None:
        self.tokenizer, self.eos, self.penalty = tokenizer, symbols.eos, penalty
        self.shrinking, self.lost = shrinking, 0
        self.nodes: list[Node] = []
        self.number: dict[Path, int] = {(): -1}
        self.total: dict[Path, float] = {(): 0.0}
        self.steps = 0
        self.last: SearchStep | None = None

    def add_step(self, seen: SearchStep) -> None:
        """Add one step."""
        self._grow(set(seen.paths))
        self.last = seen

    def tree(self, chosen: Path) -> Tree:
        """The tree of all steps."""
        self._grow(None)
        best = [self.number[chosen[:end]] for end in range(1, len(chosen) + 1) if chosen[:end] in self.number]
        return Tree(tuple(self.nodes), tuple(best))

    def _grow(self, following: set[Path] | None) -> None:
        if self.last is not None:
            self._step(self.steps, self.last, following)
            self.steps += 1

    def _step(self, step: int, here: SearchStep, following: set[Path] | None) -> None:
        """Add all tokens considered at one step; `following` are the continued paths, None at the last step."""
        live = {path: row for row, path in enumerate(here.paths) if path in self.total}  # equal rows count once
        width = len(here.paths) - self.lost
        ranked = self._ranked(live, here.log_probs, max(2 * len(here.paths), FEWEST))
        if self.shrinking:  # paths that have lost their positions are still read, but never continued
            self.lost += sum(path[-1] == self.eos for path, log_prob in ranked[:width] if log_prob > -torch.inf)
        left = len(here.paths) - self.lost
        known = {path for path, _ in ranked}
        drawn = {path for path in following or () if path[:-1] in live and path not in known}  # a draw may be far down
        ranked += [(path, float(here.log_probs[live[path[:-1]], path[-1]])) for path in sorted(drawn)]
        going = 0
        for rank, (path, log_prob) in enumerate(ranked):
            total = self.total[path[:-1]] + log_prob
            if total == -torch.inf:
                continue
            ended = path[-1] == self.eos
            fate = self._fate_of_end(rank, width) if ended else self._fate(path, following, going < left)
            going += not ended
            self._add(path, step, log_prob, total, fate)

    def _fate_of_end(self, rank: int, width: int) -> Fate:
        return "finished" if rank < width else "pruned"

    def _fate(self, path: Path, following: set[Path] | None, has_slot: bool) -> Fate:
        """The fate of an unfinished path; `has_slot` says whether the beam has a slot left for it."""
        if following is None:
            return "open" if has_slot else "pruned"
        return "kept" if path in following and (has_slot or not self.shrinking) else "pruned"

    def _ranked(self, live: dict[Path, int], log_probs: Tensor, count: int) -> list[tuple[Path, float]]:
        """The best continuations of all live paths, by their totals."""
        found: list[tuple[float, Path, float]] = []
        for path, row in live.items():
            best = log_probs[row].topk(min(count, log_probs.shape[1]))
            for log_prob, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                found.append((self.total[path] + log_prob, (*path, token), log_prob))
        found.sort(key=lambda row: -row[0])
        return [(path, log_prob) for _, path, log_prob in found[:count]]

    def _add(self, path: Path, step: int, log_prob: float, total: float, fate: Fate) -> None:
        score = total / self.penalty(step + 1) if fate == "finished" else None
        (piece,) = self.tokenizer.pieces(path[-1:])
        self.nodes.append(Node(self.number[path[:-1]], step, path[-1], piece, log_prob, total, fate, score))
        self.number[path] = len(self.nodes) - 1
        if fate == "kept":
            self.total[path] = total
