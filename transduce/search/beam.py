"""Beam search with the length penalty of Wu et al. 2016, for all sentences of a batch at once.

A step ranks every continuation of a sentence's live paths together and takes the best 2 * size. Those among the first
`size` that end are finished (the rest of the ends are dropped: a beam of 1 is then greedy search); the best `size` that
go on live, and there are always so many since a path has one end. Shapes: B sentences still searched, K beam size,
n hypotheses kept, t tokens so far, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.symbols import Symbols
from transduce.model.contract import Memory, Stepwise, rows
from transduce.search.constraints import Limits, Prefixes, Rule, next_log_probs, require
from transduce.search.hypothesis import Hypothesis, Search, length_penalty
from transduce.search.stepwise import part


@dataclass(frozen=True)
class Beam:
    """The `size` best paths at each step, ranked at their end by log-probability / ((5 + length) / 6)^length_penalty.

    `length` counts the end symbol; a penalty of 0 ranks by log-probability, more favours longer translations.
    `n_best` hypotheses a sentence are returned, fewer only where the rules allow no more.
    """

    size: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        require(self.size >= 1, "size", self.size, "a whole number of at least 1")
        require(-5 <= self.length_penalty <= 5, "length_penalty", self.length_penalty, "a number from -5 to 5")
        expected = f"a whole number from 1 to the beam's size ({self.size}); raise size for more"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)

    def build(self) -> Search:
        return BeamSearch(self)


@dataclass(frozen=True)
class Paths:
    """Translations of each sentence, whole or in part: tokens and token_log_probs (B, n, t), rank (B, n).

    `rank` is a log-probability for live paths and a score for finished ones, -inf where there is no path. Finished
    paths are shorter than t: they are read as far as their end symbol.
    """

    tokens: Tensor
    token_log_probs: Tensor
    rank: Tensor

    def take(self, index: Tensor) -> Paths:
        """Other paths of the same sentences: index (B, m) -> (B, m, t)."""
        wide = index[..., None].expand(-1, -1, self.tokens.shape[2])
        return Paths(self.tokens.gather(1, wide), self.token_log_probs.gather(1, wide), self.rank.gather(1, index))

    def append(self, token: Tensor, log_prob: Tensor, rank: Tensor) -> Paths:
        """Each path one token longer: all (B, n)."""
        tokens = torch.cat([self.tokens, token[..., None]], dim=2)
        return Paths(tokens, torch.cat([self.token_log_probs, log_prob[..., None]], dim=2), rank)


@dataclass(frozen=True)
class Progress:
    """All that is known of the sentences still searched.

    sentence (B,) their place in the batch, longest (B,) their limit, live K paths and finished n paths of each.
    """

    sentence: Tensor
    longest: Tensor
    live: Paths
    finished: Paths


@dataclass(frozen=True)
class BeamSearch:
    """The loop: advance all live paths, expand, reorder the state, and let sentences leave that are decided."""

    beam: Beam

    @torch.no_grad()
    def __call__(
        self,
        model: Stepwise,
        memory: Memory,
        symbols: Symbols,
        prefixes: Prefixes | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        size, limits = self.beam.size, self.beam.limits
        rules = limits.rules(symbols, prefixes, memory.mask)
        progress = self._begin(limits.lengths(memory.mask, prefixes), memory.mask.device)
        penalties = self._penalties(progress.longest)
        state = rows(model.start(memory), progress.sentence.repeat_interleave(size))
        newest = torch.full_like(progress.live.rank, symbols.bos, dtype=torch.int64)  # (B, K)
        left: list[Progress] = []
        while True:
            logits, state = model.advance(newest.view(-1, 1), state)
            progress, parent = self._step(progress, logits[:, -1], rules, symbols.eos, penalties)
            staying, leaving = part(self._decided(progress, penalties))
            if len(leaving):
                left.append(rows(progress, leaving))
                progress, parent = rows(progress, staying), parent[staying]
                if not len(staying):
                    return self._collect(left, len(memory.mask), symbols.eos)
            index = (staying[:, None] * size + parent).flatten()
            if len(leaving):
                state = rows(state, index)
            else:  # paths change places within their sentences only, where `fixed` is the same for all
                state = dataclasses.replace(state, grown=rows(state.grown, index))
            newest = progress.live.tokens[:, :, -1]

    def _begin(self, longest: list[int], device: torch.device) -> Progress:
        """Nothing written: one live path a sentence, or the first step would find each continuation K times."""

        def nothing(count: int) -> Paths:
            empty = torch.empty(len(longest), count, 0, device=device)
            return Paths(empty.to(torch.int64), empty, empty.new_full((len(longest), count), -torch.inf))

        live = nothing(self.beam.size)
        live.rank[:, 0] = 0
        sentence = torch.arange(len(longest), device=device)
        return Progress(sentence, torch.tensor(longest, device=device), live, nothing(self.beam.n_best))

    def _penalties(self, longest: Tensor) -> Tensor:
        """The penalty of each length up to the longest. From one table, so that scores and bounds round alike."""
        alpha, most = self.beam.length_penalty, int(longest.max())
        return torch.tensor([length_penalty(length, alpha) for length in range(most + 2)], device=longest.device)

    def _step(
        self, progress: Progress, logits: Tensor, rules: Sequence[Rule], eos: int, penalties: Tensor
    ) -> tuple[Progress, Tensor]:
        """One token further: the paths after logits (B * K, V), and the parent (B, K) of each that lives."""
        size, live = self.beam.size, progress.live
        sentence = progress.sentence.repeat_interleave(size)
        log_probs = next_log_probs(logits, live.tokens.flatten(0, 1), sentence, rules, eos)
        log_probs = log_probs.view(*live.rank.shape, -1)  # (B, K, V)
        totals = (live.rank[..., None] + log_probs).flatten(1)  # (B, K * V)
        order = greatest(totals, 2 * size)  # (B, 2K)
        parent, token = order // log_probs.shape[2], order % log_probs.shape[2]
        candidates = live.take(parent).append(token, log_probs.flatten(1).gather(1, order), totals.gather(1, order))
        ended = token == eos

        scores = candidates.rank[:, :size] / penalties[candidates.tokens.shape[2]]
        ends = Paths(
            candidates.tokens[:, :size],
            candidates.token_log_probs[:, :size],
            scores.masked_fill(~ended[:, :size], -torch.inf),
        )
        going = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :size]
        progress = dataclasses.replace(
            progress, live=candidates.take(going), finished=best_of(progress.finished, ends, eos)
        )
        return progress, parent.gather(1, going)

    def _decided(self, progress: Progress, penalties: Tensor) -> Tensor:
        """Sentences (B,) at their limit, or whose live paths cannot beat the last of the n finished ones any more.

        Log-probabilities only fall. So no live path will score more than what it has now, divided by the penalty that
        flatters it most: the longest length's where the penalty grows with the length, else the next one's.
        """
        step = progress.live.tokens.shape[2]
        kindest = penalties[progress.longest] if self.beam.length_penalty >= 0 else penalties[step + 1]
        bound = progress.live.rank.amax(1) / kindest
        return (progress.finished.rank[:, -1] >= bound) | (progress.longest <= step)

    def _collect(self, left: list[Progress], batch: int, eos: int) -> list[list[Hypothesis]]:
        """The n best of each sentence; live paths at the limit only fill places that finished ones left empty."""
        found: list[list[Hypothesis]] = [[] for _ in range(batch)]
        for chunk in left:
            finished, live = self._read(chunk.finished, eos), self._read(chunk.live, eos)
            for place, sentence in enumerate(chunk.sentence.tolist()):
                found[sentence] = [*finished[place], *live[place]][: self.beam.n_best]
        return found

    def _read(self, paths: Paths, eos: int) -> list[list[Hypothesis]]:
        columns = (paths.tokens.tolist(), paths.token_log_probs.tolist(), paths.rank.tolist())
        return [
            sorted(
                (
                    Hypothesis.read(tokens, log_probs, eos, self.beam.length_penalty)
                    for tokens, log_probs, rank in zip(*sentence, strict=True)
                    if rank > -math.inf
                ),
                key=lambda hypothesis: -hypothesis.score,
            )
            for sentence in zip(*columns, strict=True)
        ]


def best_of(finished: Paths, ends: Paths, eos: int) -> Paths:
    """As many paths as `finished` (B, n, t) has, the best of these and of `ends` (B, K, t + 1); of equals the older."""
    tokens = torch.cat([F.pad(finished.tokens, (0, 1), value=eos), ends.tokens], dim=1)
    token_log_probs = torch.cat([F.pad(finished.token_log_probs, (0, 1)), ends.token_log_probs], dim=1)
    every = Paths(tokens, token_log_probs, torch.cat([finished.rank, ends.rank], dim=1))
    return every.take(every.rank.argsort(dim=1, descending=True, stable=True)[:, : finished.rank.shape[1]])


def greatest(totals: Tensor, count: int) -> Tensor:
    """Where the `count` greatest of each row stand, in order; of equals the first: (B, M) -> (B, count).

    torch.topk takes any of several equals, and 16-bit logits often are equal. Without its sign a float's bits order
    as its size does, so these bits of a log-probability above its place make a whole number without equals.
    """
    keyed = totals.view(torch.int32).to(torch.int64)
    # In place: on a CPU fresh memory for each of these took longer than topk.
    keyed.bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(32)
    keyed.bitwise_or_(torch.arange(totals.shape[1], device=totals.device))
    return keyed.topk(count, largest=False).values & 0xFFFFFFFF
