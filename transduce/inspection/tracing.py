"""One sentence and its translation read by a model of ours with a trace: attention of every head, every step, the lens.

Everything comes from the model contract and the names of the trace (docs/architecture.md), so that any family is seen:
what a model does not trace is not there. Shapes: T places of the decoder, S source tokens, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from transduce.data.batch import collate
from transduce.data.symbols import Symbols
from transduce.data.tokenizer import Tokenizer
from transduce.inspection.record import PARTS, Candidate, DecodingStep, Glimpse, Map, Part
from transduce.model.contract import Memory, evaluating
from transduce.translation import Source

_ATTENTION = re.compile(r"(?:member\.(\d+)\.)?(encoder|decoder)\.(\d+)\.(self|cross)")
LENS_CANDIDATES = 3
ROWS = 16  # places of the decoder whose distributions over the vocabulary are looked at together


@runtime_checkable
class Opened(Protocol):
    """An engine whose model can be looked into: the torch engine. `source` and `target` are symbols."""

    model: Any
    source: Symbols
    target: Symbols
    device: torch.device


@dataclass(frozen=True)
class Traced:
    """What one pass left: maps in order, steps, what each layer would say, and the memory of the source."""

    maps: tuple[Map, ...]
    steps: tuple[DecodingStep, ...]
    lens: tuple[Glimpse, ...]
    memory: Memory


def trace(
    engine: Opened, stepwise: bool, source: Source, written: Sequence[int], tokenizer: Tokenizer, top: int
) -> Traced:
    """Read a source (tokens, or frames) and the tokens written for it, without end symbols; `top` candidates a step."""
    batch = collate([source], [written], engine.source, engine.target).to(engine.device)
    found: dict[str, Tensor] = {}
    with evaluating(engine.model), torch.inference_mode():
        memory = engine.model.encode(batch.source, batch.source_mask, found)
        gold = batch.target[0, 1:].cpu()
        if stepwise:
            logits, _ = engine.model.advance(batch.target[:, :-1], engine.model.start(memory), found, batch.target_mask)
            own = _tops(lambda rows: logits[0, rows], gold, tokenizer, top)
            del logits
            said = own.log_probs
        else:
            said = engine.model.token_log_probs(memory, batch.target, batch.target_mask, found)[0].tolist()
            own = None
        maps = maps_of(found, int(memory.mask.sum()), len(said))
        layers = _layer_logits(engine.model, found, len(said))
        if own is None and layers:  # all places undecided: what the last layer says is what the model says
            own = _tops(layers[max(layers)], gold, tokenizer, top)
        lens = tuple(
            Glimpse(layer, tuple(tops.candidates), tuple(tops.ranks))
            for layer, logits_of in sorted(layers.items())
            for tops in [_tops(logits_of, gold, tokenizer, LENS_CANDIDATES)]
        )
    read = [engine.target.bos, *written] if stepwise else gold.tolist()
    return Traced(maps, steps_of(own, gold, said, read, tokenizer), lens, memory)


def maps_of(found: dict[str, Tensor], source: int, places: int) -> tuple[Map, ...]:
    """Attention in a trace of one sentence, ordered by part, member and layer.

    A canvas with more frames than the translation has tokens attends between frames, which have no names: left out.
    """
    made = []
    for name, weights in found.items():
        if match := _ATTENTION.fullmatch(name):
            part: Part = "cross" if match[4] == "cross" else "encoder" if match[2] == "encoder" else "decoder"
            own = weights[0].float().cpu()
            if part == "cross":
                own = own[:, :places]
            elif part == "decoder" and own.shape[2] > places:
                own = own[:, :places, :places] if own.shape[2] < 2 * places else own[:, :0]
            if own.shape[1] == (source if part == "encoder" else places):
                made.append(Map(name, part, int(match[3]), own.numpy().copy(), int(match[1] or 0)))
    return tuple(sorted(made, key=lambda one: (PARTS.index(one.part), one.member, one.layer)))


@dataclass
class Tops:
    """Of each place the log-probability of the token that stands there, its rank, the entropy in bits, and the best."""

    log_probs: list[float]
    ranks: list[int]
    entropies: list[float]
    candidates: list[tuple[Candidate, ...]]


Logits = Callable[[slice], Tensor]  # of some places (rows, V)


def _tops(logits_of: Logits, gold: Tensor, tokenizer: Tokenizer, top: int) -> Tops:
    """Some places at a time: all of them at once take hundreds of megabytes for a long sentence."""
    found = Tops([], [], [], [])
    for begin in range(0, len(gold), ROWS):
        rows = slice(begin, min(begin + ROWS, len(gold)))
        log_probs = logits_of(rows).float().log_softmax(-1).cpu()
        own = log_probs.gather(1, gold[rows, None])
        found.log_probs += own[:, 0].tolist()
        found.ranks += (log_probs > own).sum(1).tolist()
        bits = (-(log_probs.exp() * log_probs).nan_to_num()).sum(1) / torch.log(torch.tensor(2.0))
        found.entropies += bits.tolist()
        found.candidates += candidates(log_probs, tokenizer, top)
    return found


def steps_of(
    tops: Tops | None, gold: Tensor, said: Sequence[float], read: Sequence[int], tokenizer: Tokenizer
) -> tuple[DecodingStep, ...]:
    """A step for each token of gold (T,); `tops` is None where the model does not tell its distributions."""
    pieces, before = tokenizer.pieces(gold.tolist()), tokenizer.pieces(read)
    if tops is None:
        given = zip(before, gold.tolist(), pieces, said, strict=True)
        return tuple(DecodingStep(one, token, piece, log_prob) for one, token, piece, log_prob in given)
    columns = (before, gold.tolist(), pieces, said, tops.ranks, tops.entropies, tops.candidates)
    return tuple(DecodingStep(*row) for row in zip(*columns, strict=True))


def candidates(log_probs: Tensor, tokenizer: Tokenizer, top: int) -> list[tuple[Candidate, ...]]:
    """The most probable tokens of each row (T, V), best first."""
    best = log_probs.topk(min(top, log_probs.shape[1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        tuple(Candidate(*one) for one in zip(tokens, tokenizer.pieces(tokens), values, strict=True))
        for tokens, values in rows
    ]


def _layer_logits(model: Any, found: dict[str, Tensor], places: int) -> dict[int, Logits]:
    """What each decoder layer would say: "logit lens" (nostalgebraist 2020). None for ensembles."""
    layers: dict[int, Logits] = {}
    for name, states in found.items():
        match = re.fullmatch(r"decoder\.(\d+)\.out", name)
        if match and places <= states.shape[1] < 2 * places:  # more are frames of CTC
            layers[int(match[1])] = lambda rows, states=states: model.layer_logits(states[:, rows])[0]  # type: ignore[misc]
    return layers
