"""Non-autoregressive decoding: mask-predict, CTC, and joint ranking by decoder and CTC head.

Mask-predict decodes a canvas of tokens, all positions at once (Ghazvininejad et al. 2019).
Shapes: B sentences, k length candidates of each, N = B * k rows, C positions of the canvas, V vocabulary.

CTC decodes frames, each a token or the blank (Graves et al. 2006).
Shapes: C frames, V the blank's index, m tokens considered in each frame.

Joint search ranks the candidates of the decoder and of the CTC head by both. The decoder knows what is likely, and may
skip or repeat; the CTC head keeps the order and number of source events. This is the rescoring of Watanabe et al.
(2017, "Hybrid CTC/Attention"), with candidates of both sides instead of the decoder's alone.
Shapes: N candidates of all sentences, S frames of the head, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.data.batch import pad_sources
from transduce.model.contract import UNDECIDED, Memory, NonAutoregressive, rows, teacher_forced_log_probs
from transduce.search import Hypothesis, best_first
from transduce.search.constraints import DecodingConstraints, Phrase
from transduce.search.rules import checked
from transduce.search.settings import CTCCollapse, Joint, MaskPredict
from transduce.text.vocabulary import Symbols


@dataclass(frozen=True)
class CanvasState:
    """A canvas being filled: tokens, their log_probs, and masks of real, given and open positions; all (N, C)."""

    tokens: Tensor
    log_probs: Tensor
    mask: Tensor
    given: Tensor
    open: Tensor

    def least_sure(self, share: float) -> Tensor:
        """Mask of each row's open positions with the lowest log_probs: that share, rounded down; ties to the first."""
        count = (self.open.sum(1, keepdim=True).double() * share + 1e-9).long()  # (N, 1)
        order = self.log_probs.masked_fill(~self.open, torch.inf).argsort(dim=1, stable=True)
        return (order.argsort(dim=1) < count) & self.open

    def write(self, positions: Tensor, tokens: Tensor, log_probs: Tensor) -> CanvasState:
        """Return the canvas with other tokens at some positions."""
        tokens, log_probs = tokens.where(positions, self.tokens), log_probs.where(positions, self.log_probs)
        return replace(self, tokens=tokens, log_probs=log_probs)


@dataclass(frozen=True)
class MaskPredictSearch:
    """Mask-predict decoding: all sentences and all their length candidates are rows of one batch."""

    settings: MaskPredict

    @torch.no_grad()
    def __call__(
        self, model: NonAutoregressive, memory: Memory, symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None, keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        required = checked(constraints, len(memory.mask))
        if any(constraint.include or constraint.exclude for constraint in required):
            raise ConfigError(
                "include, exclude: a non-autoregressive search cannot guarantee single words; use a model that"
                " decodes token by token"
            )
        forced = [constraint.prefix for constraint in required]
        log_probs = model.lengths(memory)  # (B, L)
        possible = int((log_probs > -torch.inf).sum(1).max())
        best = log_probs.topk(min(self.settings.length_candidates, possible))  # both (B, k)
        count = best.indices.size(1)
        index = torch.arange(len(forced), device=memory.mask.device).repeat_interleave(count)
        memory = rows(memory, index)
        state = begin(best.indices.flatten(), [forced[i] for i in index.tolist()], symbols.eos)
        if any(forced):
            state = self._score_given(model, memory, state)
        never = torch.tensor(symbols.never, dtype=torch.int64, device=index.device)
        for iteration in range(self.settings.iterations):
            rewritten = state.least_sure(1 - iteration / self.settings.iterations)
            canvas = state.tokens.masked_fill(rewritten, UNDECIDED)
            logits = model.refine(canvas, state.mask, memory).float()  # (N, C, V)
            total = logits.logsumexp(-1)  # of the model's own probabilities, forbidden tokens included
            best_tokens = logits.index_fill_(-1, never, -torch.inf).max(-1)
            state = state.write(rewritten, best_tokens.indices, best_tokens.values - total)
        return self._collect(state, best.values, symbols.eos)

    def _score_given(self, model: NonAutoregressive, memory: Memory, state: CanvasState) -> CanvasState:
        """Score a forced prefix as one parallel pass would."""
        undecided = state.tokens.masked_fill(state.given, UNDECIDED)
        log_probs = model.refine(undecided, state.mask, memory).float().log_softmax(-1)
        given_log_probs = log_probs.gather(-1, state.tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return state.write(state.given, state.tokens, given_log_probs)

    def _collect(self, state: CanvasState, lengths: Tensor, eos: int) -> list[list[Hypothesis]]:
        """Collect the best candidates of each sentence; lengths (B, k) are the log-probabilities of their lengths."""
        candidates: list[list[Hypothesis]] = [[] for _ in lengths]
        count = lengths.size(1)
        columns = (state.tokens.tolist(), state.log_probs.tolist(), lengths.flatten().tolist())
        for row, (tokens, parts, length) in enumerate(zip(*columns, strict=True)):
            if length == -math.inf:  # a padded length candidate
                continue
            end = tokens.index(eos)
            parts = (*parts[:end], parts[end] + length)
            log_prob = math.fsum(parts)
            hypothesis = Hypothesis(tuple(tokens[:end]), log_prob / len(parts), log_prob, True, parts)
            candidates[row // count].append(hypothesis)
        return [sorted(each, key=lambda hypothesis: -hypothesis.score)[: self.settings.n_best] for each in candidates]


def begin(lengths: Tensor, prefixes: Sequence[Phrase], eos: int) -> CanvasState:
    """Start canvases with undecided positions after each prefix, and the end symbol; lengths (N,) fit the prefixes."""
    device = lengths.device
    given = torch.tensor([len(prefix) for prefix in prefixes], device=device).unsqueeze(1)  # (N, 1)
    lengths = lengths.unsqueeze(1).maximum(given)
    position = torch.arange(int(lengths.max()) + 1, device=device)  # (C,)
    beginning = [[*prefix, *[eos] * (len(position) - len(prefix))] for prefix in prefixes]
    to_write = (position >= given) & (position < lengths)
    tokens = torch.tensor(beginning, dtype=torch.int64, device=device).masked_fill(to_write, UNDECIDED)
    log_probs = torch.zeros(tokens.shape, device=device)
    return CanvasState(tokens, log_probs, position <= lengths, position < given, to_write)


@dataclass(frozen=True)
class CTCSearch:
    """CTC decoding in one pass: the best path, or a prefix beam search."""

    settings: CTCCollapse

    @torch.no_grad()
    def __call__(
        self, model: NonAutoregressive, memory: Memory, symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None, keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        if any(
            constraint.prefix or constraint.include or constraint.exclude
            for constraint in checked(constraints, len(memory.mask))
        ):
            raise ConfigError(
                "prefixes, include, exclude: a CTC decoder places its tokens on frames freely and cannot be"
                " constrained; use a model that decodes token by token"
            )
        frames = model.lengths(memory).argmax(1)  # (B,)
        mask = torch.arange(int(frames.max()), device=frames.device) < frames.unsqueeze(1)  # (B, C)
        canvas = torch.full_like(mask, UNDECIDED, dtype=torch.int64)
        log_probs = model.refine(canvas, mask, memory).float().log_softmax(-1)  # (B, C, V + 1)
        never = torch.tensor((*symbols.never, symbols.eos), dtype=torch.int64, device=mask.device)
        allowed = log_probs.index_fill(-1, never, -torch.inf)
        if self.settings.size == 1:
            return greedy(allowed, frames.tolist())
        candidates = [
            ranked[: self.settings.n_best] for ranked in prefix_beam(allowed, frames.tolist(), self.settings.size)
        ]
        return exact(model, memory, symbols, candidates)


def greedy(log_probs: Tensor, frames: list[int]) -> list[list[Hypothesis]]:
    """Decode the best path of each sentence: log_probs (B, C, V + 1)."""
    best = log_probs.max(-1)
    blank = log_probs.size(-1) - 1
    columns = (best.indices.tolist(), best.values.tolist(), frames)
    return [[collapse(path[:count], values[:count], blank)] for path, values, count in zip(*columns, strict=True)]


def collapse(path: Sequence[int], log_probs: Sequence[float], blank: int) -> Hypothesis:
    """Collapse a path. A token's log-probability covers frames since the previous one, the end symbol's the rest."""
    tokens: list[int] = []
    parts: list[float] = []
    pending, previous = 0.0, blank
    for token, log_prob in zip(path, log_probs, strict=True):
        pending += log_prob
        if token not in (previous, blank):
            tokens.append(token)
            parts.append(pending)
            pending = 0.0
        previous = token
    log_prob = math.fsum((*parts, pending))
    return Hypothesis(tuple(tokens), log_prob, log_prob, True, (*parts, pending))


def prefix_beam(log_probs: Tensor, frames: list[int], size: int) -> list[list[tuple[int, ...]]]:
    """The `size` most probable translations of each sentence, best first, from the likeliest tokens of each frame."""
    blank = log_probs.size(-1) - 1
    best = log_probs[..., :blank].topk(min(2 * size, blank))  # (B, C, m)
    columns = (best.indices.tolist(), best.values.tolist(), log_probs[..., blank].tolist(), frames)
    return [
        _beam_of_one(tokens[:count], values[:count], blanks[:count], size)
        for tokens, values, blanks, count in zip(*columns, strict=True)
    ]


Ways = tuple[float, float]  # log-probabilities of all paths that end in a blank, and in the last token


def _beam_of_one(
    tokens: Sequence[Sequence[int]], values: Sequence[Sequence[float]], blanks: Sequence[float], size: int
) -> list[tuple[int, ...]]:
    beam: dict[tuple[int, ...], Ways] = {(): (0.0, -math.inf)}
    for candidates, log_probs, blank_log_prob in zip(tokens, values, blanks, strict=True):
        extended: dict[tuple[int, ...], Ways] = {}

        def add(
            prefix: tuple[int, ...], blank: float, token: float, extended: dict[tuple[int, ...], Ways] = extended
        ) -> None:
            old = extended.get(prefix, (-math.inf, -math.inf))
            extended[prefix] = (_add(old[0], blank), _add(old[1], token))

        for prefix, (after_blank, after_token) in beam.items():
            either = _add(after_blank, after_token)
            add(prefix, either + blank_log_prob, -math.inf)
            for token, log_prob in zip(candidates, log_probs, strict=True):
                if prefix[-1:] == (token,):  # a repetition without a blank between is the same token
                    add(prefix, -math.inf, after_token + log_prob)
                    add((*prefix, token), -math.inf, after_blank + log_prob)
                else:
                    add((*prefix, token), -math.inf, either + log_prob)
        beam = dict(sorted(extended.items(), key=lambda item: -_add(*item[1]))[:size])
    return [prefix for prefix, ways in beam.items() if _add(*ways) > -math.inf]


def _add(left: float, right: float) -> float:
    """log(exp(left) + exp(right))."""
    low, high = sorted((left, right))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def exact(
    model: NonAutoregressive, memory: Memory, symbols: Symbols, candidates: list[list[tuple[int, ...]]]
) -> list[list[Hypothesis]]:
    """Score candidates exactly under the model: hypotheses, best first."""
    device = memory.mask.device
    sentence = [number for number, translations in enumerate(candidates) for _ in translations]
    gold, mask = pad_sources([tokens for translations in candidates for tokens in translations], symbols)
    start = torch.full((len(gold), 1), symbols.bos, dtype=torch.int64)
    target = torch.cat((start, gold), dim=1).to(device)
    of_rows = rows(memory, torch.tensor(sentence, device=device))
    parts = model.token_log_probs(of_rows, target, mask.to(device)).tolist()
    hypotheses: list[list[Hypothesis]] = [[] for _ in candidates]
    for number, tokens, row in zip(sentence, (t for each in candidates for t in each), parts, strict=True):
        token_log_probs = tuple(row[: len(tokens) + 1])
        log_prob = math.fsum(token_log_probs)
        hypotheses[number].append(Hypothesis(tokens, log_prob, log_prob, True, token_log_probs))
    return [sorted(each, key=lambda hypothesis: -hypothesis.score) for each in hypotheses]


IMPOSSIBLE = -1e9  # log p of a text with more tokens than frames


@dataclass(frozen=True)
class JointSearch:
    """Joint decoding: beam search, prefix beam of the CTC head, and one more decoder pass over all candidates."""

    settings: Joint

    @torch.no_grad()
    def __call__(
        self, model: Any, memory: Memory, symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None, keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        heads = getattr(model, "heads", {})
        if "ctc" not in heads:
            raise ConfigError(
                "search.kind: 'joint' needs a model with a CTC head (model.heads, trained by the term ctc), and it has"
                " none; use beam"
            )
        settings, required = self.settings, checked(constraints, len(memory.mask))
        candidates = settings.beam.build()(model, memory, symbols, required, keys)
        logits = heads["ctc"](memory).float()
        frames = memory.mask.sum(1) * (logits.size(1) // memory.mask.size(1))
        ctc_candidates = self._ctc_candidates(logits, frames, symbols)
        for number, constraint in enumerate(required):
            known = {hypothesis.tokens for hypothesis in candidates[number]}
            # The CTC head cannot be constrained.
            unconstrained = not (constraint.prefix or constraint.include or constraint.exclude)
            more = [tokens for tokens in ctc_candidates[number] if unconstrained and tokens not in known]
            candidates[number] += [_unscored(tokens) for tokens in more]
        return self._ranked(model, memory, symbols, candidates, logits.log_softmax(-1), frames)

    def _ctc_candidates(self, logits: Tensor, frames: Tensor, symbols: Symbols) -> list[list[tuple[int, ...]]]:
        """Candidates of the CTC head, as tokens."""
        never = torch.tensor((*symbols.never, symbols.eos), dtype=torch.int64, device=logits.device)
        allowed = logits.log_softmax(-1).index_fill(-1, never, -torch.inf)
        return prefix_beam(allowed, frames.tolist(), self.settings.size)

    def _ranked(
        self,
        model: Any,
        memory: Memory,
        symbols: Symbols,
        candidates: list[list[Hypothesis]],
        log_probs: Tensor,
        frames: Tensor,
    ) -> list[list[Hypothesis]]:
        """Rank all candidates by the weighted sum of both log-probabilities, best first."""
        device = memory.mask.device
        numbers = [number for number, hypotheses in enumerate(candidates) for _ in hypotheses]
        sentence = torch.tensor(numbers, device=device)  # (N,)
        texts = [hypothesis.tokens for hypotheses in candidates for hypothesis in hypotheses]
        gold, mask = (tensor.to(device) for tensor in pad_sources(texts, symbols))  # (N, T)
        target = torch.cat((torch.full_like(gold[:, :1], symbols.bos), gold), dim=1)
        parts = teacher_forced_log_probs(model, rows(memory, sentence), target, mask).tolist()
        lengths = mask.sum(1) - 1
        blank = log_probs.size(2) - 1
        of_rows = log_probs[sentence].transpose(0, 1)  # (S, N, V + 1)
        losses = F.ctc_loss(of_rows, gold, frames[sentence], lengths, blank, reduction="none")
        ctc_scores = (-losses).clamp(min=IMPOSSIBLE).tolist()
        weight = self.settings.weight
        ranked: list[list[Hypothesis]] = [[] for _ in candidates]
        finished = [hypothesis.finished for hypotheses in candidates for hypothesis in hypotheses]
        for number, tokens, row, ctc_score, done in zip(numbers, texts, parts, ctc_scores, finished, strict=True):
            token_log_probs = tuple(row[: len(tokens) + 1])
            log_prob = math.fsum(token_log_probs)
            score = (1 - weight) * log_prob + weight * ctc_score
            ranked[number].append(Hypothesis(tokens, score, log_prob, done, token_log_probs))
        return [sorted(hypotheses, key=best_first)[: self.settings.n_best] for hypotheses in ranked]


def _unscored(tokens: tuple[int, ...]) -> Hypothesis:
    """A candidate without a score yet."""
    return Hypothesis(tokens, 0.0, 0.0, True, ())
