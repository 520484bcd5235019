"""Search for models that write all tokens at once by CTC: each frame says a token or the blank (Graves et al. 2006).

Shapes: B sentences, C frames, V vocabulary, whose size is the blank's number, m tokens considered in each frame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.data.batch import pad_sources
from transduce.data.symbols import Symbols
from transduce.errors import ConfigError
from transduce.model.contract import UNDECIDED, Memory, NonAutoregressive, rows
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import Hypothesis
from transduce.search.rules import checked
from transduce.search.settings import CTCCollapse


@dataclass(frozen=True)
class CTCSearch:
    """One pass over all frames; what follows is bookkeeping."""

    settings: CTCCollapse

    @torch.no_grad()
    def __call__(
        self,
        model: NonAutoregressive,
        memory: Memory,
        symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        if any(
            constraint.prefix or constraint.include or constraint.exclude
            for constraint in checked(constraints, len(memory.mask))
        ):
            raise ConfigError(
                "prefixes, include, exclude: a decoder with CTC spreads its tokens over frames as it likes and cannot"
                " be told what to say; use a model that writes token by token"
            )
        frames = model.lengths(memory).argmax(1)  # (B,)
        mask = torch.arange(int(frames.max()), device=frames.device) < frames.unsqueeze(1)  # (B, C)
        canvas = torch.full_like(mask, UNDECIDED, dtype=torch.int64)
        log_probs = model.refine(canvas, mask, memory).float().log_softmax(-1)  # (B, C, V + 1)
        never = torch.tensor((*symbols.never, symbols.eos), dtype=torch.int64, device=mask.device)
        allowed = log_probs.index_fill(-1, never, -torch.inf)
        if self.settings.size == 1:
            return greedy(allowed, frames.tolist())
        found = [
            sentence[: self.settings.n_best] for sentence in prefix_beam(allowed, frames.tolist(), self.settings.size)
        ]
        return exact(model, memory, symbols, found)


def greedy(log_probs: Tensor, frames: list[int]) -> list[list[Hypothesis]]:
    """The best path of each sentence: log_probs (B, C, V + 1)."""
    best = log_probs.max(-1)
    blank = log_probs.size(-1) - 1
    columns = (best.indices.tolist(), best.values.tolist(), frames)
    return [[collapse(path[:count], values[:count], blank)] for path, values, count in zip(*columns, strict=True)]


def collapse(path: Sequence[int], log_probs: Sequence[float], blank: int) -> Hypothesis:
    """What a path says. Each token's part runs from after the one before to its first frame; the end has the rest."""
    tokens: list[int] = []
    parts: list[float] = []
    since, before = 0.0, blank
    for said, log_prob in zip(path, log_probs, strict=True):
        since += log_prob
        if said not in (before, blank):
            tokens.append(said)
            parts.append(since)
            since = 0.0
        before = said
    log_prob = math.fsum((*parts, since))
    return Hypothesis(tuple(tokens), log_prob, log_prob, True, (*parts, since))


def prefix_beam(log_probs: Tensor, frames: list[int], size: int) -> list[list[tuple[int, ...]]]:
    """The `size` most probable translations of each sentence, best first, over the likeliest tokens of each frame."""
    blank = log_probs.size(-1) - 1
    best = log_probs[..., :blank].topk(min(2 * size, blank))  # (B, C, m)
    columns = (best.indices.tolist(), best.values.tolist(), log_probs[..., blank].tolist(), frames)
    return [
        _beam_of_one(tokens[:count], values[:count], blanks[:count], size)
        for tokens, values, blanks, count in zip(*columns, strict=True)
    ]


Ways = tuple[float, float]  # log-probabilities of all paths so far that end in a blank, and in the last token


def _beam_of_one(
    tokens: Sequence[Sequence[int]], values: Sequence[Sequence[float]], blanks: Sequence[float], size: int
) -> list[tuple[int, ...]]:
    beam: dict[tuple[int, ...], Ways] = {(): (0.0, -math.inf)}
    for said, log_probs, silent in zip(tokens, values, blanks, strict=True):
        found: dict[tuple[int, ...], Ways] = {}

        def add(
            prefix: tuple[int, ...], blank: float, token: float, found: dict[tuple[int, ...], Ways] = found
        ) -> None:
            old = found.get(prefix, (-math.inf, -math.inf))
            found[prefix] = (_add(old[0], blank), _add(old[1], token))

        for prefix, (after_blank, after_token) in beam.items():
            either = _add(after_blank, after_token)
            add(prefix, either + silent, -math.inf)
            for token, log_prob in zip(said, log_probs, strict=True):
                if prefix[-1:] == (token,):  # again without a blank between is the same token still
                    add(prefix, -math.inf, after_token + log_prob)
                    add((*prefix, token), -math.inf, after_blank + log_prob)
                else:
                    add((*prefix, token), -math.inf, either + log_prob)
        beam = dict(sorted(found.items(), key=lambda item: -_add(*item[1]))[:size])
    return [prefix for prefix, ways in beam.items() if _add(*ways) > -math.inf]


def _add(left: float, right: float) -> float:
    """log(exp(left) + exp(right))."""
    low, high = sorted((left, right))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def exact(
    model: NonAutoregressive, memory: Memory, symbols: Symbols, found: list[list[tuple[int, ...]]]
) -> list[list[Hypothesis]]:
    """Hypotheses with the model's own log-probabilities, best first."""
    device = memory.mask.device
    sentence = [number for number, translations in enumerate(found) for _ in translations]
    gold, mask = pad_sources([tokens for translations in found for tokens in translations], symbols)
    start = torch.full((len(gold), 1), symbols.bos, dtype=torch.int64)
    target = torch.cat((start, gold), dim=1).to(device)
    of_rows = rows(memory, torch.tensor(sentence, device=device))
    parts = model.token_log_probs(of_rows, target, mask.to(device)).tolist()
    hypotheses: list[list[Hypothesis]] = [[] for _ in found]
    for number, tokens, row in zip(sentence, (t for each in found for t in each), parts, strict=True):
        own = tuple(row[: len(tokens) + 1])
        log_prob = math.fsum(own)
        hypotheses[number].append(Hypothesis(tokens, log_prob, log_prob, True, own))
    return [sorted(each, key=lambda hypothesis: -hypothesis.score) for each in hypotheses]
