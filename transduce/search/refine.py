"""Mask-predict: the search for models that write all tokens at once on a canvas (Ghazvininejad et al. 2019).

Shapes: B sentences, k length candidates of each, N = B * k rows, C places of the
canvas, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transduce.data.symbols import Symbols
from transduce.errors import ConfigError
from transduce.model.contract import UNDECIDED, Memory, NonAutoregressive, rows
from transduce.search.constraints import DecodingConstraints, Phrase
from transduce.search.hypothesis import Hypothesis
from transduce.search.rules import checked
from transduce.search.settings import MaskPredict


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
