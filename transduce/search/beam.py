"""Beam search with a length penalty for a batch of sentences: the eager driver.

At each step it ranks the continuations of a row's live paths, calls `beam_state.expand` to find which stay live and
which are finished, gathers their tokens, and drops sentences that are decided. Groups, coverage and phrases to include
exist only in this driver.
Shapes: B sentences, G groups, R = B * G rows still searched (each a beam; a sentence's groups are adjacent), K paths of
a row, n hypotheses kept, t tokens so far, V vocabulary, H heads, S source length.

Coverage penalty (Wu et al. 2016, equation 14): a translation that never attends to a source token loses score.

Diverse beam search (Vijayakumar et al. 2016): each group avoids the tokens that earlier groups write at the same step.

Phrases that must appear: dynamic beam allocation (Post and Vilar 2018) over one automaton per sentence
(constraints.py). Each path is at a node of its sentence's automaton. Slots of the beam are dealt out by the number of
constraint tokens still to write, in turn to each number, so that every stage has a path.
Shapes: M nodes, U distinct tokens in a sentence's phrases, W constraints.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.core.errors import ConfigError
from transduce.model.contract import Autoregressive, Memory, rows
from transduce.search import Hypothesis, best_first
from transduce.search.beam_state import (
    BeamProgress,
    BeamRules,
    BeamState,
    Candidates,
    ConstraintState,
    Paths,
    best_possible,
    expand,
    first_unfinished,
    greatest,
    joined,
)
from transduce.search.constraints import Automaton, DecodingConstraints, Include, cancelled_rows
from transduce.search.rules import Rule, checked, next_log_probs, rules_of
from transduce.search.sampling import part
from transduce.search.settings import Beam, check_tokens
from transduce.text.vocabulary import Symbols

# An attention sum of exactly 0, possible with ReLU weights, would exclude a translation; the paper has softmax only.
LEAST = 1e-6


def coverage_penalty(covered: Tensor, real: Tensor, weight: float) -> Tensor:
    """Coverage penalty: weight * sum over real source tokens of log(min(attention received, 1)), at most 0.

    covered (R, n, S) is the attention that each source token received from all target tokens, the end symbol included;
    real (R, S) -> (R, n).
    """
    received = covered.clamp(LEAST, 1).masked_fill(~real[:, None], 1)
    return weight * received.log().sum(-1)


def attention(trace: dict[str, Tensor]) -> Tensor:
    """Cross-attention of the newest token: the mean over heads of the last layer, and over an ensemble: (N, S)."""
    last: dict[str, Tensor] = {}  # by ensemble member; layers are traced in order
    for name, weights in trace.items():  # weights (N, H, t, S)
        if match := re.fullmatch(r"(.*?)decoder\.\d+\.cross", name):
            last[match[1]] = weights[:, :, -1].float().mean(1)
    if not last:
        raise ConfigError(
            "coverage: this model's decoder has no attention to the source (it traces no decoder.N.cross), so"
            " coverage cannot be computed; set coverage=0"
        )
    return torch.stack(list(last.values())).mean(0)


# Totals (B, K, V) of a group, and its rows -> indices in K * V of the best and their totals, -inf if none: (B, 2K).
Order = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


def in_groups(
    totals: Tensor, slots: Tensor, groups: int, strength: float, order: Order, eos: int
) -> tuple[Tensor, Tensor]:
    """Rank continuations group by group with a diversity penalty: indices and ranking totals (R, 2K).

    totals (R, K, V), of whose paths slots (R,) stay live. A group sees a token's log-probability lowered by `strength`
    for each path of earlier groups that continues with it (Hamming diversity). Only the ranking changes:
    log-probabilities stay the model's own. The end symbol is not penalised: groups may end alike.
    """
    _, size, vocabulary = totals.shape
    used = totals.new_zeros(())  # (B, 1, V) from the second group on
    ranked = []
    for number in range(groups):
        members = slice(number, None, groups)
        indices, steered_totals = order(totals[members] if number == 0 else totals[members] - strength * used, members)
        ranked.append((indices, steered_totals))
        if number + 1 < groups:
            survivors = first_unfinished(indices % vocabulary == eos, size)  # (B, K)
            is_live = steered_totals.gather(1, survivors) > -torch.inf
            is_live &= torch.arange(size, device=slots.device) < slots[members, None]
            counts = totals.new_zeros(len(survivors), vocabulary)
            used = used + counts.scatter_add(1, indices.gather(1, survivors) % vocabulary, is_live.float())[:, None]
    indices, steered_totals = (torch.stack(part, dim=1).flatten(0, 1) for part in zip(*ranked, strict=True))
    return indices, steered_totals


@dataclass(frozen=True)
class LexicalConstraints:
    """The automata of a batch, padded: tokens (B, U), goto (B, M, U + 1), complete and rest (B, M, W), needed (B, W).

    The last column of `goto` is for every other token. A padding constraint needs no token and is met from the start.
    `most` is the greatest number of tokens that any sentence needs for all its constraints.
    """

    tokens: Tensor
    goto: Tensor
    complete: Tensor
    rest: Tensor
    needed: Tensor
    highest: int
    most: int

    @classmethod
    def of(cls, includes: Sequence[Include], device: torch.device) -> LexicalConstraints:
        known = {include: Automaton.of(include) for include in {*includes}}
        automata = [known[include] for include in includes]
        batch, nodes = len(automata), max(len(automaton.goto) for automaton in automata)
        used = max(len(automaton.tokens) for automaton in automata)
        constraints = max(len(automaton.needed) for automaton in automata)
        tokens, needed = torch.full((batch, used), -1), torch.zeros(batch, constraints, dtype=torch.int64)
        goto, rest = needed.new_zeros(batch, nodes, used + 1), needed.new_zeros(batch, nodes, constraints)
        complete = torch.zeros(batch, nodes, constraints, dtype=torch.bool)
        for sentence, automaton in enumerate(automata):
            own_nodes, own_tokens, own_constraints = len(automaton.goto), len(automaton.tokens), len(automaton.needed)
            tokens[sentence, :own_tokens] = torch.tensor(automaton.tokens)
            goto[sentence, :own_nodes, :own_tokens] = torch.tensor(automaton.goto)
            complete[sentence, :own_nodes, :own_constraints] = torch.tensor(automaton.complete)
            rest[sentence, :own_nodes, :own_constraints] = torch.tensor(automaton.rest)
            needed[sentence, :own_constraints] = torch.tensor(automaton.needed)
        highest = max(max(automaton.tokens, default=-1) for automaton in automata)
        most = max(sum(automaton.needed) for automaton in automata)
        tokens, goto, complete = tokens.to(device), goto.to(device), complete.to(device)
        return cls(tokens, goto, complete, rest.to(device), needed.to(device), highest, most)

    @property
    def empty(self) -> bool:
        """Whether no sentence has a constraint."""
        return self.needed.shape[1] == 0

    def start(self, sentence: Tensor, count: int) -> ConstraintState:
        """Constraint state before the first token: sentence (R,) -> (R, count)."""
        node = sentence.new_zeros(len(sentence), count)
        return ConstraintState(node, (self.needed == 0)[sentence][:, None].expand(-1, count, -1))

    def after(self, sentence: Tensor, state: ConstraintState, token: Tensor) -> ConstraintState:
        """Constraint state after one more token (R, n)."""
        if self.empty:
            return state
        same = token[..., None] == self.tokens[sentence][:, None]  # (R, n, U)
        column = torch.where(same.any(-1), same.to(torch.int8).argmax(-1), same.shape[2])
        node = self.goto[sentence[:, None], state.node, column]
        return ConstraintState(node, state.met | self.complete[sentence[:, None], node])

    def left(self, sentence: Tensor, state: ConstraintState) -> Tensor:
        """Count the tokens that complete what is begun and then write the other phrases in turn: (R, n).

        Overlapping phrases may need fewer, never more.
        """
        return self._left(sentence[:, None], state.node, state.met)

    def left_after(self, sentence: Tensor, state: ConstraintState) -> Tensor:
        """Count the tokens left after each token of `tokens`, and last after any other token: (R, n, U + 1)."""
        node = self.goto[sentence[:, None], state.node]  # (R, n, U + 1)
        sentences = sentence[:, None, None]
        return self._left(sentences, node, state.met[:, :, None] | self.complete[sentences, node])

    def _left(self, sentences: Tensor, node: Tensor, met: Tensor) -> Tensor:
        needed = self.needed[sentences]  # (R, 1.., W)
        unmet = needed.masked_fill(met, 0).sum(-1)
        return unmet - (needed - self.rest[sentences, node]).masked_fill(met, 0).amax(-1)

    def rule(self, sentence: Tensor, state: ConstraintState, left: Tensor, remaining: Tensor, eos: int) -> Rule:
        """Rule for rows (R, K) flattened: no end before all phrases, and no token that leaves too few tokens for them.

        left (R, K, U + 1) is the result of `left_after`, remaining (R,) how many tokens may still come before the end.
        If too few remain from the start, only tokens that help are allowed.
        """
        spare = remaining[:, None] - self.left(sentence, state)  # (R, K)
        feasible = remaining[:, None, None] - 1 - left >= spare.clamp(max=0)[..., None]  # (R, K, U + 1)
        feasible |= (self.needed.sum(1) == 0)[sentence, None, None]
        columns = self.tokens[sentence][:, None].expand(-1, left.shape[1], -1)  # (R, K, U)

        def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
            vocabulary = allowed.shape[1]
            check_tokens("include", self.highest, vocabulary)
            other = feasible[..., -1:].expand(-1, -1, vocabulary + 1)  # one more column absorbs padding
            permitted = other.scatter(2, columns.where(columns >= 0, vocabulary), feasible[..., :-1])
            permitted[..., eos] = state.met.all(-1)
            return allowed & permitted[..., :vocabulary].flatten(0, 1)

        return rule

    def order(self, totals: Tensor, sentence: Tensor, left: Tensor, eos: int) -> tuple[Tensor, Tensor]:
        """Rank continuations dealt out by the tokens they leave: indices in K * V and their totals (R, 2K).

        totals (R, K, V). Continuations with equally many tokens left are ranked by total; then comes the first of each
        number, the second of each, and so on, fewer tokens left first. Without constraints this is the order of the
        totals.
        """
        count, size, vocabulary = totals.shape
        tokens = self.tokens[sentence]  # (R, U)
        special = torch.cat([tokens.where(tokens >= 0, eos), torch.full_like(tokens[:, :1], eos)], dim=1)
        special = special[:, None].expand(-1, size, -1)  # (R, K, U + 1)
        real = torch.cat([tokens >= 0, torch.ones_like(tokens[:, :1], dtype=torch.bool)], dim=1)[:, None]
        others = totals.scatter(2, special, -torch.inf)
        best = greatest(others.flatten(0, 1), min(size, vocabulary)).view(count, size, -1)  # (R, K, K)
        token = torch.cat([best, special], dim=2)
        total = torch.cat([others.gather(2, best), totals.gather(2, special).masked_fill(~real, -torch.inf)], dim=2)
        ends = torch.zeros_like(left[..., :1])
        after = torch.cat([left[..., -1:].expand_as(best), left[..., :-1], ends], dim=2)
        position = token + vocabulary * torch.arange(size, device=token.device)[:, None]
        position, total, after = position.flatten(1), total.flatten(1), after.flatten(1)
        index = deal(position, total, after, self.most)[:, : 2 * size]
        return position.gather(1, index), total.gather(1, index)


def deal(position: Tensor, total: Tensor, left: Tensor, most: int) -> Tensor:
    """Order that takes one of each number of tokens left in turn, best totals first, ties by position: (R, M)."""
    index = position.argsort(dim=1)
    index = index.gather(1, total.gather(1, index).argsort(dim=1, descending=True, stable=True))
    total, left = total.gather(1, index), left.gather(1, index)
    same = left[..., None] == torch.arange(most + 1, device=left.device)  # (R, M, most + 1)
    turn = same.cumsum(1).gather(2, left[..., None]).squeeze(2)  # rank among those with equally many left, from 1
    key = (turn * (most + 1) + left).masked_fill(total == -torch.inf, torch.iinfo(torch.int64).max)
    return index.gather(1, key.argsort(dim=1, stable=True))


INCOMPLETE = 1e9  # subtracted from the score of a path that ended before all phrases: any complete one is better


@dataclass(frozen=True)
class BeamTask:
    """Constants of a batch: rules for tokens and paths, lexical constraints, and the source mask (B, S)."""

    token_rules: Sequence[Rule]
    rules: BeamRules
    lexical: LexicalConstraints
    real: Tensor


@dataclass(frozen=True)
class BeamSearch:
    """Eager beam search: advance all live paths, expand, reorder the state, and drop decided sentences."""

    beam: Beam

    @torch.no_grad()
    def __call__(
        self, model: Autoregressive, memory: Memory, symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None, keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        required, limits, device = checked(constraints, len(memory.mask)), self.beam.limits, memory.mask.device
        lexical = LexicalConstraints.of([constraint.include for constraint in required], device)
        longest = limits.lengths(memory.mask.sum(1).tolist(), required)
        penalties = torch.tensor([self.beam.penalty(length) for length in range(max(longest) + 2)], device=device)
        rules = BeamRules(penalties, self.beam.penalty.grows, symbols.eos, self.beam.shrinking)
        task = BeamTask(rules_of(limits, symbols, required, device), rules, lexical, memory.mask)
        progress = self._begin(longest, task)
        size = progress.live.rank.shape[1]
        state = rows(model.start(memory), progress.sentence.repeat_interleave(size))
        newest = torch.full_like(progress.live.rank, symbols.bos, dtype=torch.int64)  # (R, K)
        decided: list[BeamProgress] = []
        while True:
            trace: dict[str, Tensor] | None = {} if self.beam.needs_attention else None
            logits, state = model.advance(newest.view(-1, 1), state, trace)
            progress, parent = self._step(attend(progress, trace), logits[:, -1], task)
            for number in cancelled_rows(required):
                progress.longest[progress.sentence == number] = 0
            staying, leaving = part(self._decided(progress, task.rules))
            if len(leaving):
                decided.append(rows(progress, leaving))
                progress, parent = rows(progress, staying), parent[staying]
                if not len(staying):
                    return self._collect(decided, task)
            index = (staying[:, None] * size + parent).flatten()
            if len(leaving):
                state = rows(state, index)
            else:  # paths move only within their sentences, where `static` is shared
                state = dataclasses.replace(state, cache=rows(state.cache, index))
            newest = progress.live.tokens[:, :, -1]

    def _begin(self, longest: list[int], task: BeamTask) -> BeamProgress:
        """Start rows with one live path each: with K copies the first step would find each continuation K times."""
        groups, device = self.beam.groups, task.real.device
        size = self.beam.size // groups
        sentence = torch.arange(len(longest), device=device).repeat_interleave(groups)
        source = task.real.shape[1] if self.beam.needs_attention else 0

        def empty_paths(count: int) -> Paths:
            rank = torch.full((len(sentence), count), -torch.inf, device=device)
            no_tokens, covered = rank.new_empty(*rank.shape, 0), rank.new_zeros(*rank.shape, source)
            return Paths(no_tokens.to(torch.int64), no_tokens, rank, covered, task.lexical.start(sentence, count))

        live = empty_paths(max(size, task.lexical.most + 1))
        live.rank[:, 0] = 0
        slots = (task.lexical.needed.sum(1) + 1).clamp(min=size)[sentence]
        limits, finished = torch.tensor(longest, device=device)[sentence], empty_paths(self.beam.n_best)
        return BeamProgress(sentence, limits, slots, live, finished)

    def _step(self, progress: BeamProgress, logits: Tensor, task: BeamTask) -> tuple[BeamProgress, Tensor]:
        """Expand by one token: the new progress after logits (R * K, V), and each live path's parent (R, K)."""
        live, sentence = progress.live, progress.sentence
        size, step = live.rank.shape[1], live.tokens.shape[2]
        rules, order = self._ways(progress, task)
        sentence_of_path = sentence.repeat_interleave(size)
        log_probs = next_log_probs(logits, live.tokens.flatten(0, 1), sentence_of_path, rules, task.rules.eos)
        log_probs = log_probs.view(*live.rank.shape, -1)  # (R, K, V)
        totals = live.rank[..., None] + log_probs
        groups, strength = self.beam.groups, self.beam.diversity
        indices, ranked = in_groups(totals, progress.slots, groups, strength, order, task.rules.eos)  # (R, 2K)
        candidates = Candidates(
            indices // log_probs.shape[2],
            indices % log_probs.shape[2],
            log_probs.flatten(1).gather(1, indices),
            totals.flatten(1).gather(1, indices).masked_fill(ranked == -torch.inf, -torch.inf),
        )
        ends = live.take(candidates.parent[:, :size])
        constraint_state = task.lexical.after(sentence, ends.constraints, candidates.token[:, :size])
        bonus = self._coverage(ends, sentence, task) - INCOMPLETE * ~constraint_state.met.all(-1)
        before = BeamState(live.rank, progress.finished.rank, progress.slots)
        expansion = expand(before, candidates, step + 1, task.rules, bonus)

        ends = ends.append(candidates.token[:, :size], candidates.log_prob[:, :size], constraint_state)
        finished = joined(progress.finished, ends, task.rules.eos).take(expansion.finished)
        parent, token, log_prob = (
            part.gather(1, expansion.live) for part in (candidates.parent, candidates.token, candidates.log_prob)
        )
        after = live.take(parent)
        after = after.append(token, log_prob, task.lexical.after(sentence, after.constraints, token))
        after = dataclasses.replace(after, rank=expansion.state.live_log_probs)
        finished = dataclasses.replace(finished, rank=expansion.state.finished_scores)
        return dataclasses.replace(progress, slots=expansion.state.slots, live=after, finished=finished), parent

    def _ways(self, progress: BeamProgress, task: BeamTask) -> tuple[Sequence[Rule], Order]:
        """The token rules of this step, and how continuations are ranked: by totals, unless phrases must appear."""
        lexical, sentence, live = task.lexical, progress.sentence, progress.live
        size, step = live.rank.shape[1], live.tokens.shape[2]
        if lexical.empty:
            return task.token_rules, lambda totals, members: ordered(totals, 2 * size)
        left = lexical.left_after(sentence, live.constraints)  # (R, K, U + 1)
        rule = lexical.rule(sentence, live.constraints, left, progress.longest - step - 1, task.rules.eos)
        return [rule, *task.token_rules], lambda totals, members: lexical.order(
            totals, sentence[members], left[members], task.rules.eos
        )

    def _coverage(self, paths: Paths, sentence: Tensor, task: BeamTask) -> Tensor:
        """Coverage penalty (R, n) of each path's score."""
        if not self.beam.needs_attention:
            return paths.rank.new_zeros(())
        return coverage_penalty(paths.covered, task.real[sentence], self.beam.coverage)

    def _decided(self, progress: BeamProgress, rules: BeamRules) -> Tensor:
        """Rows (R,) that are at their limit, or whose live paths cannot beat the worst finished one that counts.

        The coverage penalty is never positive, so the bound remains one. Groups are decided together, since each
        affects the next. If the best of all groups are fewer than n different hypotheses, they continue until each has
        n, to fill up from.
        """
        step = progress.live.tokens.shape[2]
        state = BeamState(progress.live.rank, progress.finished.rank, progress.slots)
        bound = best_possible(state, step, progress.longest, rules)
        ranks, limited = progress.finished.rank, progress.longest <= step
        decided = ((ranks[:, self._per_group - 1] >= bound) | limited).view(-1, self.beam.groups).all(1)  # (B,)
        if self._per_group < self.beam.n_best:
            full = ((ranks[:, -1] >= bound) | limited).view(-1, self.beam.groups).all(1)
            best = progress.finished.tokens[:, : self._per_group].reshape(len(decided), -1, step)  # (B, G * n, t)
            for number in (decided & ~full).nonzero().flatten().tolist():
                decided[number] = len(set(map(tuple, best[number].tolist()))) >= self.beam.n_best
        return decided.repeat_interleave(self.beam.groups)

    @property
    def _per_group(self) -> int:
        """How many hypotheses of each group are in the result, whatever the other groups found."""
        return min(self.beam.n_best, self.beam.size // self.beam.groups)

    def _collect(self, decided: list[BeamProgress], task: BeamTask) -> list[list[Hypothesis]]:
        """Collect the n best of each sentence; live paths at the limit only fill slots that finished ones left empty.

        Each group contributes its best. Where groups agree, the result is filled up with their other hypotheses.
        """
        best: list[dict[tuple[int, ...], Hypothesis]] = [{} for _ in task.real]
        more: list[list[Hypothesis]] = [[] for _ in task.real]
        for chunk in decided:
            finished, live = (self._read(paths, chunk.sentence, task) for paths in (chunk.finished, chunk.live))
            for row, sentence in enumerate(chunk.sentence.tolist()):
                for hypothesis in finished[row][: self._per_group]:
                    best[sentence].setdefault(hypothesis.tokens, hypothesis)
                more[sentence] += [*finished[row][self._per_group :], *live[row]]
        for chosen, rest in zip(best, more, strict=True):
            for hypothesis in sorted(rest, key=best_first):
                if len(chosen) < self.beam.n_best:
                    chosen.setdefault(hypothesis.tokens, hypothesis)
        return [sorted(chosen.values(), key=best_first)[: self.beam.n_best] for chosen in best]

    def _read(self, paths: Paths, sentence: Tensor, task: BeamTask) -> list[list[Hypothesis]]:
        coverages = self._coverage(paths, sentence, task).expand_as(paths.rank)
        complete = paths.constraints.met.all(-1)
        parts = (paths.tokens, paths.token_log_probs, paths.rank, coverages, complete)
        return [
            sorted(
                (
                    Hypothesis.read(tokens, log_probs, task.rules.eos, self.beam.penalty, coverage, is_complete)
                    for tokens, log_probs, rank, coverage, is_complete in zip(*row, strict=True)
                    if rank > -math.inf
                ),
                key=best_first,
            )
            for row in zip(*(part.tolist() for part in parts), strict=True)
        ]


def ordered(totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices in K * V of the greatest totals (R, K, V), and these totals: (R, count)."""
    indices = greatest(totals.flatten(1), count)
    return indices, totals.flatten(1).gather(1, indices)


def attend(progress: BeamProgress, trace: dict[str, Tensor] | None) -> BeamProgress:
    """Add the newest token's attention to the coverage of live paths, where it is traced."""
    if trace is None:
        return progress
    live = progress.live
    covered = live.covered + attention(trace).view_as(live.covered)
    return dataclasses.replace(progress, live=dataclasses.replace(live, covered=covered))
