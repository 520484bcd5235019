"""Beam search with a length penalty, for all sentences of a batch at once.

The eager driver: it ranks every continuation of a sentence's live paths together, has `beam_state.expand` say who lives
on and who is finished, gathers their tokens, and lets sentences leave that are decided. Groups, coverage and phrases to
include are its own. Shapes: B sentences, G groups, R = B * G rows still searched (each a beam by itself), K paths of a
row, n hypotheses kept, t tokens so far, V vocabulary.

The coverage penalty of Wu et al. 2016 (equation 14): a translation that never looked at a source token loses score.

Shapes: B sentences, R rows (the groups of a sentence stand together), K paths a row, H heads, S source length.

Diverse beam search (Vijayakumar et al. 2016): groups that each avoid what the groups before them write at a step.

Shapes: B sentences, G groups of K paths, R = B * G rows (the groups of a sentence stand together), V vocabulary.

Phrases that must appear: dynamic beam allocation (Post and Vilar 2018) over one automaton a sentence.

Each path stands at a node of its sentence's `Automaton`. Places in the beam are dealt out by the number of
tokens that are left to write, one after another to each number, so that every stage has a path.
Shapes: B sentences, R rows, K paths, V vocabulary, M nodes, U tokens that occur in a sentence's phrases, W constraints.
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
from transduce.search.hypothesis import Hypothesis, best_first
from transduce.search.rules import Rule, checked, next_log_probs, rules_of
from transduce.search.sampling import part
from transduce.search.settings import Beam, check_tokens
from transduce.text.vocabulary import Symbols

# A sum of exactly 0, as ReLU attention gives, would rule a translation out for good: the paper has softmax only.
LEAST = 1e-6


def coverage_penalty(covered: Tensor, real: Tensor, weight: float) -> Tensor:
    """weight * sum over real source tokens of log(min(attention received, 1)), never above 0.

    covered (R, n, S) is the attention each source token received from all target tokens, the end symbol's included;
    real (R, S) -> (R, n).
    """
    received = covered.clamp(LEAST, 1).masked_fill(~real[:, None], 1)
    return weight * received.log().sum(-1)


def attention(trace: dict[str, Tensor]) -> Tensor:
    """Where the newest token's step looked: the last decoder layer's mean over heads, and over an ensemble: (N, S)."""
    last: dict[str, Tensor] = {}  # by member; layers are traced in order
    for name, weights in trace.items():  # weights (N, H, t, S)
        if found := re.fullmatch(r"(.*?)decoder\.\d+\.cross", name):
            last[found[1]] = weights[:, :, -1].float().mean(1)
    if not last:
        raise ConfigError(
            "coverage: this model's decoder does not look at the source by attention (it traces no decoder.N.cross),"
            " so that there is nothing to cover with; set coverage=0"
        )
    return torch.stack(list(last.values())).mean(0)


# Totals (B, K, V) of a group and its rows -> the best places in K * V and their totals, -inf where none is: (B, 2K).
Order = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


def in_groups(
    totals: Tensor, slots: Tensor, groups: int, strength: float, order: Order, eos: int
) -> tuple[Tensor, Tensor]:
    """The best places of each row, group after group, and what each was ranked by: (R, 2K).

    totals (R, K, V), of whose paths slots (R,) go on. A group sees a token's log-probability lowered by `strength` for
    each path of the groups before it that goes on with this token (Hamming diversity). Only the order is steered:
    log-probabilities stay the model's own. An end is nothing that a path goes on with: groups may end alike.
    """
    _, size, vocabulary = totals.shape
    used = totals.new_zeros(())  # (B, 1, V) from the second group on
    found = []
    for number in range(groups):
        members = slice(number, None, groups)
        places, steered = order(totals[members] if number == 0 else totals[members] - strength * used, members)
        found.append((places, steered))
        if number + 1 < groups:
            going = first_unfinished(places % vocabulary == eos, size)  # (B, K)
            living = steered.gather(1, going) > -torch.inf
            living &= torch.arange(size, device=slots.device) < slots[members, None]
            counts = totals.new_zeros(len(going), vocabulary)
            used = used + counts.scatter_add(1, places.gather(1, going) % vocabulary, living.float())[:, None]
    places, steered = (torch.stack(part, dim=1).flatten(0, 1) for part in zip(*found, strict=True))
    return places, steered


@dataclass(frozen=True)
class LexicalConstraints:
    """The automata of a batch, padded: tokens (B, U), goto (B, M, U + 1), complete and rest (B, M, W), needed (B, W).

    The last column of `goto` is for every other token. A constraint that only pads needs no token and is met from the
    start. `most` is the greatest number of tokens that any sentence needs for all its constraints.
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
        batch, nodes = len(automata), max(len(one.goto) for one in automata)
        used, constraints = max(len(one.tokens) for one in automata), max(len(one.needed) for one in automata)
        tokens, needed = torch.full((batch, used), -1), torch.zeros(batch, constraints, dtype=torch.int64)
        goto, rest = needed.new_zeros(batch, nodes, used + 1), needed.new_zeros(batch, nodes, constraints)
        complete = torch.zeros(batch, nodes, constraints, dtype=torch.bool)
        for place, one in enumerate(automata):
            own_nodes, own_tokens, own_wishes = len(one.goto), len(one.tokens), len(one.needed)
            tokens[place, :own_tokens] = torch.tensor(one.tokens)
            goto[place, :own_nodes, :own_tokens] = torch.tensor(one.goto)
            complete[place, :own_nodes, :own_wishes] = torch.tensor(one.complete)
            rest[place, :own_nodes, :own_wishes] = torch.tensor(one.rest)
            needed[place, :own_wishes] = torch.tensor(one.needed)
        highest = max(max(one.tokens, default=-1) for one in automata)
        most = max(sum(one.needed) for one in automata)
        tokens, goto, complete = tokens.to(device), goto.to(device), complete.to(device)
        return cls(tokens, goto, complete, rest.to(device), needed.to(device), highest, most)

    @property
    def nothing(self) -> bool:
        """Whether no sentence has a constraint."""
        return self.needed.shape[1] == 0

    def start(self, sentence: Tensor, count: int) -> ConstraintState:
        """Nothing written: sentence (R,) -> (R, count)."""
        node = sentence.new_zeros(len(sentence), count)
        return ConstraintState(node, (self.needed == 0)[sentence][:, None].expand(-1, count, -1))

    def after(self, sentence: Tensor, standing: ConstraintState, token: Tensor) -> ConstraintState:
        """One token further: token (R, n)."""
        if self.nothing:
            return standing
        same = token[..., None] == self.tokens[sentence][:, None]  # (R, n, U)
        column = torch.where(same.any(-1), same.to(torch.int8).argmax(-1), same.shape[2])
        node = self.goto[sentence[:, None], standing.node, column]
        return ConstraintState(node, standing.met | self.complete[sentence[:, None], node])

    def left(self, sentence: Tensor, standing: ConstraintState) -> Tensor:
        """How many tokens complete what is begun and then write the other phrases one after another: (R, n).

        Phrases that overlap may need fewer: never more.
        """
        return self._left(sentence[:, None], standing.node, standing.met)

    def left_after(self, sentence: Tensor, standing: ConstraintState) -> Tensor:
        """The same after each token of `tokens`, and last after any other token: (R, n, U + 1)."""
        node = self.goto[sentence[:, None], standing.node]  # (R, n, U + 1)
        which = sentence[:, None, None]
        return self._left(which, node, standing.met[:, :, None] | self.complete[which, node])

    def _left(self, which: Tensor, node: Tensor, met: Tensor) -> Tensor:
        needed = self.needed[which]  # (R, 1.., W)
        unmet = needed.masked_fill(met, 0).sum(-1)
        return unmet - (needed - self.rest[which, node]).masked_fill(met, 0).amax(-1)

    def rule(self, sentence: Tensor, standing: ConstraintState, left: Tensor, room: Tensor, eos: int) -> Rule:
        """No end before all is written, and no token that leaves too little room: its rows are (R, K) flattened.

        left (R, K, U + 1) is what `left_after` gave, room (R,) how many tokens may still come before the end. Where
        the room is too small from the start, only tokens that help are written.
        """
        spare = room[:, None] - self.left(sentence, standing)  # (R, K)
        fine = room[:, None, None] - 1 - left >= spare.clamp(max=0)[..., None]  # (R, K, U + 1)
        fine |= (self.needed.sum(1) == 0)[sentence, None, None]
        columns = self.tokens[sentence][:, None].expand(-1, left.shape[1], -1)  # (R, K, U)

        def rule(allowed: Tensor, tokens: Tensor, sentence: Tensor) -> Tensor:
            vocabulary = allowed.shape[1]
            check_tokens("include", self.highest, vocabulary)
            everything = fine[..., -1:].expand(-1, -1, vocabulary + 1)  # one column more takes what pads
            kept = everything.scatter(2, columns.where(columns >= 0, vocabulary), fine[..., :-1])
            kept[..., eos] = standing.met.all(-1)
            return allowed & kept[..., :vocabulary].flatten(0, 1)

        return rule

    def order(self, totals: Tensor, sentence: Tensor, left: Tensor, eos: int) -> tuple[Tensor, Tensor]:
        """Where the best continuations stand in K * V, dealt out by what they leave, and their totals: (R, 2K).

        totals (R, K, V). Those with equally many tokens left are ranked by their total; then comes the first of each,
        the second of each, and so on, those that leave least before the others. Without constraints this is the order
        of the totals.
        """
        count, size, vocabulary = totals.shape
        own = self.tokens[sentence]  # (R, U)
        special = torch.cat([own.where(own >= 0, eos), torch.full_like(own[:, :1], eos)], dim=1)
        special = special[:, None].expand(-1, size, -1)  # (R, K, U + 1)
        real = torch.cat([own >= 0, torch.ones_like(own[:, :1], dtype=torch.bool)], dim=1)[:, None]
        others = totals.scatter(2, special, -torch.inf)
        best = greatest(others.flatten(0, 1), min(size, vocabulary)).view(count, size, -1)  # (R, K, K)
        token = torch.cat([best, special], dim=2)
        total = torch.cat([others.gather(2, best), totals.gather(2, special).masked_fill(~real, -torch.inf)], dim=2)
        ends = torch.zeros_like(left[..., :1])
        after = torch.cat([left[..., -1:].expand_as(best), left[..., :-1], ends], dim=2)
        place = token + vocabulary * torch.arange(size, device=token.device)[:, None]
        place, total, after = place.flatten(1), total.flatten(1), after.flatten(1)
        index = deal(place, total, after, self.most)[:, : 2 * size]
        return place.gather(1, index), total.gather(1, index)


def deal(place: Tensor, total: Tensor, left: Tensor, most: int) -> Tensor:
    """In turn one of each number of tokens left, best totals first, of equals the first place: all (R, M)."""
    index = place.argsort(dim=1)
    index = index.gather(1, total.gather(1, index).argsort(dim=1, descending=True, stable=True))
    total, left = total.gather(1, index), left.gather(1, index)
    same = left[..., None] == torch.arange(most + 1, device=left.device)  # (R, M, most + 1)
    turn = same.cumsum(1).gather(2, left[..., None]).squeeze(2)  # which it is among those with as many left, from 1
    key = (turn * (most + 1) + left).masked_fill(total == -torch.inf, torch.iinfo(torch.int64).max)
    return index.gather(1, key.argsort(dim=1, stable=True))


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
