"""Mask-predict: the search for models that write all tokens at once on a canvas (Ghazvininejad et al. 2019).

Shapes: B sentences, k length candidates of each, N = B * k rows, C places of the
canvas, V vocabulary.

Search for models that write all tokens at once by CTC: each frame says a token or the blank (Graves et al. 2006).

Shapes: B sentences, C frames, V vocabulary, whose size is the blank's number, m tokens considered in each frame.

Search by two outputs of one model: what the decoder finds and what the CTC head finds, ranked by both together.

The decoder knows what is likely said, and may skip or repeat; the CTC head keeps to the order and number of what was
heard. This is the rescoring of Watanabe et al. (2017, "Hybrid CTC/Attention"), with candidates of both sides instead of
the decoder's alone. Shapes: B sentences, N candidates of all, S frames of the head, T tokens, V vocabulary.
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
from transduce.search.constraints import DecodingConstraints, Phrase
from transduce.search.hypothesis import Hypothesis, best_first
from transduce.search.rules import checked
from transduce.search.settings import CTCCollapse, Joint, MaskPredict
from transduce.text.vocabulary import Symbols


@dataclass(frozen=True)
class Sheet:
    """A canvas in the making: tokens, their log_probs, and masks of what is real, given and open; all (N, C)."""

    tokens: Tensor
    log_probs: Tensor
    mask: Tensor
    given: Tensor
    open: Tensor

    def least_sure(self, share: float) -> Tensor:
        """That share of each row's open places, rounded down, where log_probs are lowest; of equals the first."""
        count = (self.open.sum(1, keepdim=True).double() * share + 1e-9).long()  # (N, 1)
        order = self.log_probs.masked_fill(~self.open, torch.inf).argsort(dim=1, stable=True)
        return (order.argsort(dim=1) < count) & self.open

    def write(self, places: Tensor, tokens: Tensor, log_probs: Tensor) -> Sheet:
        """The same with other tokens at some places."""
        tokens, log_probs = tokens.where(places, self.tokens), log_probs.where(places, self.log_probs)
        return replace(self, tokens=tokens, log_probs=log_probs)


@dataclass(frozen=True)
class MaskPredictSearch:
    """All sentences and all their length candidates as rows of one batch."""

    settings: MaskPredict

    @torch.no_grad()
    def __call__(
        self,
        model: NonAutoregressive,
        memory: Memory,
        symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        asked = checked(constraints, len(memory.mask))
        if any(constraint.include or constraint.exclude for constraint in asked):
            raise ConfigError(
                "include, exclude: a search that writes all words at once promises nothing about single ones; use a"
                " model that writes token by token"
            )
        forced = [constraint.prefix for constraint in asked]
        log_probs = model.lengths(memory)  # (B, L)
        possible = int((log_probs > -torch.inf).sum(1).max())
        best = log_probs.topk(min(self.settings.length_candidates, possible))  # both (B, k)
        count = best.indices.size(1)
        index = torch.arange(len(forced), device=memory.mask.device).repeat_interleave(count)
        memory = rows(memory, index)
        sheet = begin(best.indices.flatten(), [forced[i] for i in index.tolist()], symbols.eos)
        if any(forced):
            sheet = self._score_given(model, memory, sheet)
        never = torch.tensor(symbols.never, dtype=torch.int64, device=index.device)
        for iteration in range(self.settings.iterations):
            again = sheet.least_sure(1 - iteration / self.settings.iterations)
            canvas = sheet.tokens.masked_fill(again, UNDECIDED)
            logits = model.refine(canvas, sheet.mask, memory).float()  # (N, C, V)
            total = logits.logsumexp(-1)  # of the model's own probabilities: what may not be written counts too
            found = logits.index_fill_(-1, never, -torch.inf).max(-1)
            sheet = sheet.write(again, found.indices, found.values - total)
        return self._collect(sheet, best.values, symbols.eos)

    def _score_given(self, model: NonAutoregressive, memory: Memory, sheet: Sheet) -> Sheet:
        """A forced beginning has the log-probability that it would have as the work of one pass."""
        undecided = sheet.tokens.masked_fill(sheet.given, UNDECIDED)
        found = model.refine(undecided, sheet.mask, memory).float().log_softmax(-1)
        own = found.gather(-1, sheet.tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return sheet.write(sheet.given, sheet.tokens, own)

    def _collect(self, sheet: Sheet, lengths: Tensor, eos: int) -> list[list[Hypothesis]]:
        """The best candidates of each sentence; lengths (B, k) are the log-probabilities of their lengths."""
        found: list[list[Hypothesis]] = [[] for _ in lengths]
        count = lengths.size(1)
        columns = (sheet.tokens.tolist(), sheet.log_probs.tolist(), lengths.flatten().tolist())
        for row, (tokens, parts, length) in enumerate(zip(*columns, strict=True)):
            if length == -math.inf:  # another sentence of the batch had more lengths to choose from
                continue
            end = tokens.index(eos)
            parts = (*parts[:end], parts[end] + length)
            log_prob = math.fsum(parts)
            found[row // count].append(Hypothesis(tuple(tokens[:end]), log_prob / len(parts), log_prob, True, parts))
        return [sorted(each, key=lambda hypothesis: -hypothesis.score)[: self.settings.n_best] for each in found]


def begin(lengths: Tensor, prefixes: Sequence[Phrase], eos: int) -> Sheet:
    """Undecided places after each prefix, and the end symbol: lengths (N,), raised where the prefix is longer."""
    device = lengths.device
    given = torch.tensor([len(prefix) for prefix in prefixes], device=device).unsqueeze(1)  # (N, 1)
    lengths = lengths.unsqueeze(1).maximum(given)
    place = torch.arange(int(lengths.max()) + 1, device=device)  # (C,)
    beginning = [[*prefix, *[eos] * (len(place) - len(prefix))] for prefix in prefixes]
    to_write = (place >= given) & (place < lengths)
    tokens = torch.tensor(beginning, dtype=torch.int64, device=device).masked_fill(to_write, UNDECIDED)
    return Sheet(tokens, torch.zeros(tokens.shape, device=device), place <= lengths, place < given, to_write)


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


IMPOSSIBLE = -1e9  # log p of a text that has more tokens than there are frames


@dataclass(frozen=True)
class JointSearch:
    """A beam search, the CTC head's prefix beam, and one more pass of the decoder over all that they found."""

    settings: Joint

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        memory: Memory,
        symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        heads = getattr(model, "heads", {})
        if "ctc" not in heads:
            raise ConfigError(
                "search.kind: 'joint' needs a model with a CTC head (model.heads, trained by the term ctc), and it has"
                " none; use beam"
            )
        settings, asked = self.settings, checked(constraints, len(memory.mask))
        found = settings.beam.build()(model, memory, symbols, asked, keys)
        logits = heads["ctc"](memory).float()
        frames = memory.mask.sum(1) * (logits.size(1) // memory.mask.size(1))
        heard = self._heard(logits, frames, symbols)
        for number, constraint in enumerate(asked):
            known = {hypothesis.tokens for hypothesis in found[number]}
            free = not (
                constraint.prefix or constraint.include or constraint.exclude
            )  # the head cannot be told what to say
            found[number] += [_bare(tokens) for tokens in heard[number] if free and tokens not in known]
        return self._ranked(model, memory, symbols, found, logits.log_softmax(-1), frames)

    def _heard(self, logits: Tensor, frames: Tensor, symbols: Symbols) -> list[list[tuple[int, ...]]]:
        """What the head finds, as tokens."""
        never = torch.tensor((*symbols.never, symbols.eos), dtype=torch.int64, device=logits.device)
        allowed = logits.log_softmax(-1).index_fill(-1, never, -torch.inf)
        return prefix_beam(allowed, frames.tolist(), self.settings.size)

    def _ranked(
        self,
        model: Any,
        memory: Memory,
        symbols: Symbols,
        found: list[list[Hypothesis]],
        log_probs: Tensor,
        frames: Tensor,
    ) -> list[list[Hypothesis]]:
        """All candidates by the weighted sum of both log-probabilities, best first."""
        device = memory.mask.device
        sentence = torch.tensor([n for n, own in enumerate(found) for _ in own], device=device)  # (N,)
        texts = [hypothesis.tokens for own in found for hypothesis in own]
        gold, mask = (tensor.to(device) for tensor in pad_sources(texts, symbols))  # (N, T)
        target = torch.cat((torch.full_like(gold[:, :1], symbols.bos), gold), dim=1)
        parts = teacher_forced_log_probs(model, rows(memory, sentence), target, mask).tolist()
        lengths = mask.sum(1) - 1
        blank = log_probs.size(2) - 1
        of_rows = log_probs[sentence].transpose(0, 1)  # (S, N, V + 1)
        losses = F.ctc_loss(of_rows, gold, frames[sentence], lengths, blank, reduction="none")
        heard = (-losses).clamp(min=IMPOSSIBLE).tolist()
        weight = self.settings.weight
        ranked: list[list[Hypothesis]] = [[] for _ in found]
        finished = [hypothesis.finished for own in found for hypothesis in own]
        for number, tokens, row, other, done in zip(sentence.tolist(), texts, parts, heard, finished, strict=True):
            own = tuple(row[: len(tokens) + 1])
            log_prob = math.fsum(own)
            ranked[number].append(Hypothesis(tokens, (1 - weight) * log_prob + weight * other, log_prob, done, own))
        return [sorted(own, key=best_first)[: self.settings.n_best] for own in ranked]


def _bare(tokens: tuple[int, ...]) -> Hypothesis:
    """A candidate that has no score yet."""
    return Hypothesis(tokens, 0.0, 0.0, True, ())
