"""Beam search with a length penalty, for all sentences of a batch at once.

The eager driver: it ranks every continuation of a sentence's live paths together, has `beam_state.expand` say who lives
on and who is finished, gathers their tokens, and lets sentences leave that are decided. Groups, coverage and phrases to
include are its own. Shapes: B sentences, G groups, R = B * G rows still searched (each a beam by itself), K paths of a
row, n hypotheses kept, t tokens so far, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.data.symbols import Symbols
from transduce.model.contract import Autoregressive, Memory, rows
from transduce.search.beam_state import BeamRules, BeamState, Candidates, best_possible, expand, greatest
from transduce.search.constraints import DecodingConstraints, cancelled_rows
from transduce.search.coverage import attention, coverage_penalty
from transduce.search.diverse import Order, in_groups
from transduce.search.hypothesis import Hypothesis, best_first
from transduce.search.lexical import LexicalConstraints
from transduce.search.paths import BeamProgress, Paths, joined
from transduce.search.rules import Rule, checked, next_log_probs, rules_of
from transduce.search.settings import Beam
from transduce.search.stepwise import part

INCOMPLETE = 1e9  # taken from the score of a path that had to end before all was included: any whole one is better


@dataclass(frozen=True)
class BeamTask:
    """What stays the same from step to step: the rules for tokens and for paths, what to include, and which source
    tokens (B, S) are real."""

    token_rules: Sequence[Rule]
    rules: BeamRules
    wanted: LexicalConstraints
    real: Tensor


@dataclass(frozen=True)
class BeamSearch:
    """The loop: advance all live paths, expand, reorder the state, and let sentences leave that are decided."""

    beam: Beam

    @torch.no_grad()
    def __call__(
        self,
        model: Autoregressive,
        memory: Memory,
        symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        asked, limits, device = checked(constraints, len(memory.mask)), self.beam.limits, memory.mask.device
        wanted = LexicalConstraints.of([constraint.include for constraint in asked], device)
        longest = limits.lengths(memory.mask.sum(1).tolist(), asked)
        penalties = torch.tensor([self.beam.penalty(length) for length in range(max(longest) + 2)], device=device)
        rules = BeamRules(penalties, self.beam.penalty.grows, symbols.eos, self.beam.shrinking)
        task = BeamTask(rules_of(limits, symbols, asked, device), rules, wanted, memory.mask)
        progress = self._begin(longest, task)
        size = progress.live.rank.shape[1]
        state = rows(model.start(memory), progress.sentence.repeat_interleave(size))
        newest = torch.full_like(progress.live.rank, symbols.bos, dtype=torch.int64)  # (R, K)
        left: list[BeamProgress] = []
        while True:
            trace: dict[str, Tensor] | None = {} if self.beam.needs_attention else None
            logits, state = model.advance(newest.view(-1, 1), state, trace)
            progress, parent = self._step(attend(progress, trace), logits[:, -1], task)
            for number in cancelled_rows(asked):
                progress.longest[progress.sentence == number] = 0
            staying, leaving = part(self._decided(progress, task.rules))
            if len(leaving):
                left.append(rows(progress, leaving))
                progress, parent = rows(progress, staying), parent[staying]
                if not len(staying):
                    return self._collect(left, task)
            index = (staying[:, None] * size + parent).flatten()
            if len(leaving):
                state = rows(state, index)
            else:  # paths change places within their sentences only, where `static` is the same for all
                state = dataclasses.replace(state, cache=rows(state.cache, index))
            newest = progress.live.tokens[:, :, -1]

    def _begin(self, longest: list[int], task: BeamTask) -> BeamProgress:
        """Nothing written: one live path a row, or the first step would find each continuation K times."""
        groups, device = self.beam.groups, task.real.device
        size = self.beam.size // groups
        sentence = torch.arange(len(longest), device=device).repeat_interleave(groups)
        source = task.real.shape[1] if self.beam.needs_attention else 0

        def nothing(count: int) -> Paths:
            rank = torch.full((len(sentence), count), -torch.inf, device=device)
            empty, covered = rank.new_empty(*rank.shape, 0), rank.new_zeros(*rank.shape, source)
            return Paths(empty.to(torch.int64), empty, rank, covered, task.wanted.start(sentence, count))

        live = nothing(max(size, task.wanted.most + 1))
        live.rank[:, 0] = 0
        slots = (task.wanted.needed.sum(1) + 1).clamp(min=size)[sentence]
        limits, finished = torch.tensor(longest, device=device)[sentence], nothing(self.beam.n_best)
        return BeamProgress(sentence, limits, slots, live, finished)

    def _step(self, progress: BeamProgress, logits: Tensor, task: BeamTask) -> tuple[BeamProgress, Tensor]:
        """One token further: the paths after logits (R * K, V), and the parent (R, K) of each that lives."""
        live, sentence = progress.live, progress.sentence
        size, step = live.rank.shape[1], live.tokens.shape[2]
        rules, order = self._ways(progress, task)
        each = sentence.repeat_interleave(size)
        log_probs = next_log_probs(logits, live.tokens.flatten(0, 1), each, rules, task.rules.eos)
        log_probs = log_probs.view(*live.rank.shape, -1)  # (R, K, V)
        totals = live.rank[..., None] + log_probs
        groups, strength = self.beam.groups, self.beam.diversity
        places, ranked = in_groups(totals, progress.slots, groups, strength, order, task.rules.eos)  # (R, 2K)
        candidates = Candidates(
            places // log_probs.shape[2],
            places % log_probs.shape[2],
            log_probs.flatten(1).gather(1, places),
            totals.flatten(1).gather(1, places).masked_fill(ranked == -torch.inf, -torch.inf),
        )
        ends = live.take(candidates.parent[:, :size])
        standing = task.wanted.after(sentence, ends.standing, candidates.token[:, :size])
        bonus = self._coverage(ends, sentence, task) - INCOMPLETE * ~standing.met.all(-1)
        before = BeamState(live.rank, progress.finished.rank, progress.slots)
        found = expand(before, candidates, step + 1, task.rules, bonus)

        ends = ends.append(candidates.token[:, :size], candidates.log_prob[:, :size], standing)
        finished = joined(progress.finished, ends, task.rules.eos).take(found.finished)
        parent, token, log_prob = (
            part.gather(1, found.live) for part in (candidates.parent, candidates.token, candidates.log_prob)
        )
        after = live.take(parent)
        after = after.append(token, log_prob, task.wanted.after(sentence, after.standing, token))
        after = dataclasses.replace(after, rank=found.state.live_log_probs)
        finished = dataclasses.replace(finished, rank=found.state.finished_scores)
        return dataclasses.replace(progress, slots=found.state.slots, live=after, finished=finished), parent

    def _ways(self, progress: BeamProgress, task: BeamTask) -> tuple[Sequence[Rule], Order]:
        """What this step may write, and how its continuations are ordered: with nothing to include by their totals."""
        wanted, sentence, live = task.wanted, progress.sentence, progress.live
        size, step = live.rank.shape[1], live.tokens.shape[2]
        if wanted.nothing:
            return task.token_rules, lambda totals, members: ordered(totals, 2 * size)
        left = wanted.left_after(sentence, live.standing)  # (R, K, U + 1)
        rule = wanted.rule(sentence, live.standing, left, progress.longest - step - 1, task.rules.eos)
        return [rule, *task.token_rules], lambda totals, members: wanted.order(
            totals, sentence[members], left[members], task.rules.eos
        )

    def _coverage(self, paths: Paths, sentence: Tensor, task: BeamTask) -> Tensor:
        """The penalty (R, n) to add to each path's score."""
        if not self.beam.needs_attention:
            return paths.rank.new_zeros(())
        return coverage_penalty(paths.covered, task.real[sentence], self.beam.coverage)

    def _decided(self, progress: BeamProgress, rules: BeamRules) -> Tensor:
        """Rows (R,) at their limit, or whose live paths cannot beat the last finished one that counts any more.

        Coverage takes from a score, and so leaves the bound one. Groups leave together: what one writes bears on the
        next. Where the best of all groups are fewer than n different hypotheses, they go on until each has n, of which
        the missing ones are taken.
        """
        step = progress.live.tokens.shape[2]
        state = BeamState(progress.live.rank, progress.finished.rank, progress.slots)
        bound = best_possible(state, step, progress.longest, rules)
        ranks, limited = progress.finished.rank, progress.longest <= step
        decided = ((ranks[:, self._own - 1] >= bound) | limited).view(-1, self.beam.groups).all(1)  # (B,)
        if self._own < self.beam.n_best:
            full = ((ranks[:, -1] >= bound) | limited).view(-1, self.beam.groups).all(1)
            best = progress.finished.tokens[:, : self._own].reshape(len(decided), -1, step)  # (B, G * own, t)
            for number in (decided & ~full).nonzero().flatten().tolist():
                decided[number] = len(set(map(tuple, best[number].tolist()))) >= self.beam.n_best
        return decided.repeat_interleave(self.beam.groups)

    @property
    def _own(self) -> int:
        """How many hypotheses of a group stand in the result whatever the other groups found."""
        return min(self.beam.n_best, self.beam.size // self.beam.groups)

    def _collect(self, left: list[BeamProgress], task: BeamTask) -> list[list[Hypothesis]]:
        """The n best of each sentence; live paths at the limit only fill places that finished ones left empty.

        Each group gives its best. Where groups give the same, the places are filled with what else they found.
        """
        found: list[dict[tuple[int, ...], Hypothesis]] = [{} for _ in task.real]
        more: list[list[Hypothesis]] = [[] for _ in task.real]
        for chunk in left:
            finished, live = (self._read(paths, chunk.sentence, task) for paths in (chunk.finished, chunk.live))
            for place, sentence in enumerate(chunk.sentence.tolist()):
                for hypothesis in finished[place][: self._own]:
                    found[sentence].setdefault(hypothesis.tokens, hypothesis)
                more[sentence] += [*finished[place][self._own :], *live[place]]
        for own, rest in zip(found, more, strict=True):
            for hypothesis in sorted(rest, key=best_first):
                if len(own) < self.beam.n_best:
                    own.setdefault(hypothesis.tokens, hypothesis)
        return [sorted(own.values(), key=best_first)[: self.beam.n_best] for own in found]

    def _read(self, paths: Paths, sentence: Tensor, task: BeamTask) -> list[list[Hypothesis]]:
        covering = self._coverage(paths, sentence, task).expand_as(paths.rank)
        complete = paths.standing.met.all(-1)
        parts = (paths.tokens, paths.token_log_probs, paths.rank, covering, complete)
        return [
            sorted(
                (
                    Hypothesis.read(tokens, log_probs, task.rules.eos, self.beam.penalty, coverage, whole)
                    for tokens, log_probs, rank, coverage, whole in zip(*row, strict=True)
                    if rank > -math.inf
                ),
                key=best_first,
            )
            for row in zip(*(part.tolist() for part in parts), strict=True)
        ]


def ordered(totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places in K * V of the greatest totals (R, K, V), and these totals: (R, count)."""
    places = greatest(totals.flatten(1), count)
    return places, totals.flatten(1).gather(1, places)


def attend(progress: BeamProgress, trace: dict[str, Tensor] | None) -> BeamProgress:
    """The same with the attention of one step more on the source, where it is traced."""
    if trace is None:
        return progress
    live = progress.live
    covered = live.covered + attention(trace).view_as(live.covered)
    return dataclasses.replace(progress, live=dataclasses.replace(live, covered=covered))
