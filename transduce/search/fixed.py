"""A step of greedy search, sampling or beam search in fixed shapes, on the tensors of board.py.

Nothing here waits for the device.

Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, V vocabulary, C stretches of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.symbols import Symbols
from transduce.kernels import dispatch
from transduce.model.contract import StaticDecoderState, SupportsStaticCache
from transduce.search.beam_state import BeamRules, BeamState, Candidates, best_possible, expand
from transduce.search.board import StaticSearchResult, StaticSearchState
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.hypothesis import UNNORMALIZED, Hypothesis, LengthPenalty
from transduce.search.limits import Limits
from transduce.search.minimum_bayes_risk import MinimumBayesRisk, Samples
from transduce.search.rules import LOWEST, strike
from transduce.search.settings import Beam, Greedy, Sample
from transduce.search.stepwise import drawing, make_streams, most_probable

VOCABULARY_BLOCK = 64  # tokens whose greatest is found first, so that few of them need be ordered


@dataclass(frozen=True)
class StaticSearchConfig:
    """A search that can be done in fixed shapes: a beam of so many paths and hypotheses kept, or paths by themselves.

    These take the most probable token, or draw as the settings `drawn` say (whose seed is not looked at). A `shrinking`
    beam gives up a place for each path that is finished.
    """

    beam: bool
    paths: int
    kept: int
    penalty: LengthPenalty
    limits: Limits
    symbols: Symbols
    vocabulary: int
    drawn: Sample | None = None
    shrinking: bool = False

    @classmethod
    def of(
        cls, search: Any, constraints: Sequence[DecodingConstraints], symbols: Symbols, vocabulary: int
    ) -> StaticSearchConfig | None:
        """The plan of a search config; None for what needs shapes that change, or would be refused."""
        if type(search) is MinimumBayesRisk:
            search = search.candidates
        if type(search) is Greedy:
            plan = cls(False, 1, 0, UNNORMALIZED, search.limits, symbols, vocabulary)
        elif type(search) in (Sample, Samples):
            drawn = replace(search, seed=0)
            plan = cls(False, search.samples, 0, UNNORMALIZED, search.limits, symbols, vocabulary, drawn)
        elif type(search) is Beam and search.groups == 1 and not search.coverage:
            sizes = search.size, search.n_best, search.penalty
            plan = cls(True, *sizes, search.limits, symbols, vocabulary, shrinking=search.shrinking)
        else:
            return None
        return plan if plan._serves(constraints) else None

    def _serves(self, constraints: Sequence[DecodingConstraints]) -> bool:
        never = {*self.symbols.never, *self.limits.forbid}
        left = self.vocabulary - len(never | {self.symbols.eos})
        known = all(token < self.vocabulary for token in never) and self.symbols.eos not in never
        asked = all(
            not constraint.include
            and all(token < self.vocabulary for phrase in (constraint.prefix, *constraint.exclude) for token in phrase)
            for constraint in constraints
            if constraint is not UNCONSTRAINED
        )
        return known and asked and left >= 1 and not (self.beam and self.vocabulary < 2 * self.paths)

    def streams(self, search: Any, keys: Sequence[int]) -> list[list[int]]:
        """What the draws of each path follow from, for each sentence."""
        if self.drawn is None:
            return [[0] * self.paths] * len(keys)
        seed: int = getattr(search, "candidates", search).seed
        found: list[list[int]] = make_streams(seed, keys, self.paths, len(keys)).view(-1, self.paths).tolist()
        return found

    @property
    def radix(self) -> int:
        """The vocabulary's size, rounded up to whole stretches."""
        return -(-self.vocabulary // VOCABULARY_BLOCK) * VOCABULARY_BLOCK

    def read(self, finding: StaticSearchResult) -> list[list[Hypothesis]]:
        """Hypotheses of sentences that are done, best first."""
        if self.beam:
            return finding.beams(self.radix, self.penalty)
        return finding.singles(self.symbols.eos)


@dataclass(frozen=True)
class StepConstants:
    """Numbers that every step needs, made once.

    rows (B,), paths (K, 1) and lines (L,) count from 0, `rules` are those of a beam, `never` the tokens that are not to
    be written and barred (V,) is 1 at these, starts (K * C,) where each stretch begins in a sentence's K * radix
    continuations, and offsets (STRETCH,) count within one.
    """

    rows: Tensor
    paths: Tensor
    lines: Tensor
    rules: BeamRules
    never: Tensor
    barred: Tensor
    starts: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, plan: StaticSearchConfig, board: StaticSearchState) -> StepConstants:
        sentences, paths, length = board.ancestors.shape

        def count(*bounds: int) -> Tensor:
            return torch.arange(*bounds, device=board.position.device)

        penalties = torch.tensor([plan.penalty(written) for written in range(length + 2)]).to(board.position.device)
        never = torch.tensor(sorted({*plan.symbols.never, *plan.limits.forbid}), dtype=torch.int64)
        return cls(
            count(sentences),
            count(paths)[:, None],
            count(length),
            BeamRules(penalties, plan.penalty.grows, plan.symbols.eos, plan.shrinking),
            never.to(board.position.device),
            torch.zeros(plan.vocabulary, dtype=torch.uint8).index_fill_(0, never, 1).to(board.position.device),
            count(0, paths * plan.radix, VOCABULARY_BLOCK),
            count(VOCABULARY_BLOCK),
        )


@dataclass(frozen=True)
class StaticSearchStep:
    """Reads the newest tokens of all paths of all sentences, and chooses the next."""

    model: SupportsStaticCache
    held: StaticDecoderState
    board: StaticSearchState
    plan: StaticSearchConfig
    constants: StepConstants

    def __call__(self, reach: int) -> None:
        """One token further; no sentence has written as many as `reach`."""
        self.choose(self.read(reach))

    def read(self, reach: int) -> Tensor:
        """What the model thinks of each continuation of each path: (B, K, V)."""
        state = replace(self.held, length=reach, position=self.board.position, ancestors=self.board.ancestors)
        return self.model.advance(self.board.newest, state)[0]

    def choose(self, logits: Tensor) -> None:
        """Write what is chosen on the board."""
        kernels = dispatch.search_kernels(logits, self.plan.paths, self.plan.vocabulary) if self._simple else None
        if kernels is not None and self.plan.beam:
            kernels.expand(
                logits,
                self.board,
                self.constants.barred,
                self.constants.rules,
            )
            return
        if kernels is not None:
            kernels.follow(logits, self.board, self.constants.barred, self.plan.symbols.eos)
            return
        log_probs = self._allowed(logits.log_softmax(-1, dtype=torch.float32))  # (B, K, V)
        if not self.plan.beam:
            self._follow(log_probs)
            return
        if self.plan.radix > self.plan.vocabulary:
            log_probs = F.pad(log_probs, (0, self.plan.radix - self.plan.vocabulary), value=-torch.inf)
        self._expand(log_probs)

    @property
    def _simple(self) -> bool:
        """Whether each path takes one token, which may be the same whatever is written, and no path is lost."""
        plan, board = self.plan, self.board
        single = (plan.beam and not plan.shrinking) or (plan.drawn is None and plan.paths == 1)
        return single and not (plan.limits.no_repeat or board.exclude.numel() or board.prefix.size(1))

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """-inf where a rule forbids a token; the same rules as those of rules.py, in the same order."""
        board, eos, limits = self.board, self.plan.symbols.eos, self.plan.limits
        wanted = kept = None
        if board.prefix.size(1):
            column = board.position.clamp(max=board.prefix.size(1) - 1)[:, None]
            wanted = board.prefix.gather(1, column).masked_fill(board.position[:, None] > column, -1)[:, :, None]
            wanted = wanted.expand(*log_probs.shape[:2], 1)  # (B, K, 1), -1 where the prefix is over
            kept = log_probs.gather(2, wanted.clamp(min=0))
        told = bool(limits.no_repeat or board.exclude.numel())  # rules that go by what is written
        end = log_probs[..., eos].clamp(min=LOWEST) if told else None
        log_probs.index_fill_(2, self.constants.never, -torch.inf)
        if limits.shortest:
            log_probs[..., eos].masked_fill_((board.position < board.shortest)[:, None], -torch.inf)
        if end is not None:
            log_probs.masked_fill_(self._struck(log_probs), -torch.inf)
            stuck = log_probs.amax(-1) == -torch.inf  # other rules leave some token: a plan sees to that
            log_probs[..., eos].copy_(torch.where(stuck, end, log_probs[..., eos]))
        if wanted is not None and kept is not None:
            log_probs.masked_fill_(wanted >= 0, -torch.inf)
            log_probs.scatter_(2, wanted.clamp(min=0), torch.where(wanted >= 0, kept, log_probs[..., :1]))
        return log_probs

    def _struck(self, log_probs: Tensor) -> Tensor:
        """Where a token would repeat an n-gram of its path, or end a phrase that is excluded: (B, K, V)."""
        board, size = self.board, self.plan.limits.no_repeat
        written = board.chosen[:, 1:-1].transpose(1, 2).gather(1, board.ancestors[..., 1:]) % self.plan.radix
        allowed = torch.ones_like(log_probs, dtype=torch.bool).flatten(0, 1)
        if 0 < size <= written.size(2):
            grams = written.unfold(2, size, 1)  # (B, K, L - size, size)
            whole = torch.arange(size, size + grams.size(2), device=written.device) <= board.position[:, None, None]
            repeats = (grams[..., :-1] == self._latest(written, size)).all(-1) & whole
            allowed = strike(allowed, grams[..., -1].flatten(0, 1), repeats.flatten(0, 1))
        if board.exclude.numel():
            head, last = board.exclude[:, None, :, :-1], board.exclude[:, None, :, -1]  # (B, 1, M, X - 1), (B, 1, M)
            latest = self._latest(written, board.exclude.size(2))
            ending = ((head == -1) | (head == latest)).all(-1) & (last >= 0)  # (B, K, M)
            allowed = strike(allowed, last.expand_as(ending).flatten(0, 1), ending.flatten(0, 1))
        return ~allowed.view_as(log_probs)

    def _latest(self, written: Tensor, size: int) -> Tensor:
        """The last size - 1 tokens of each path, -3 before its first: written (B, K, L - 1) -> (B, K, 1, size - 1)."""
        behind = self.board.position[:, None, None] + torch.arange(1 - size, 0, device=written.device)
        found = written.gather(2, behind.clamp(min=0).expand(*written.shape[:2], -1))
        return found.masked_fill(behind < 0, -3)[:, :, None]

    def _follow(self, log_probs: Tensor) -> None:
        """Greedy search and sampling: each path by itself; one that has ended writes end symbols."""
        board, eos, paths = self.board, self.plan.symbols.eos, self.plan.paths
        pick = most_probable if self.plan.drawn is None else drawing(self.plan.drawn)
        steps = board.position[:, None].expand(-1, paths).flatten()
        token = pick(log_probs.flatten(0, 1), board.streams.flatten(), steps).view(-1, paths)  # (B, K)
        if paths > 1:
            token = token.masked_fill((board.newest == eos) & (board.position > 0)[:, None], eos)
        board.write(self.constants.rows, token, log_probs.gather(2, token[..., None]).squeeze(2))
        board.newest.copy_(token)
        board.close((token == eos).all(1) if paths > 1 else token[:, 0] == eos)

    def _expand(self, log_probs: Tensor) -> None:
        """Beam search: `beam_state.expand`, and what it found written where it stays."""
        board, size, constants = self.board, self.plan.paths, self.constants
        places, costs = best(board.cost, log_probs, 2 * size, constants.starts, constants.offsets)  # (B, 2K)
        parent, token = places // self.plan.radix, places % self.plan.radix
        candidates = Candidates(parent, token, log_probs.flatten(1).gather(1, places), -costs)
        length = board.position + 1
        before = BeamState(-board.cost, board.finished[..., 0], board.width)
        found = expand(before, candidates, length, constants.rules, done=board.done)

        end = board.position[:, None] * size + parent[:, :size]
        ends = torch.stack([end, candidates.log_prob[:, :size]], dim=2)
        kept = torch.cat([board.finished[..., 1:], ends], dim=1).gather(1, found.finished[..., None].expand(-1, -1, 2))
        board.finished.copy_(torch.cat([found.state.finished_scores[..., None], kept], dim=2))
        board.width.copy_(torch.where(board.done, board.width, found.state.slots))
        board.write(constants.rows, places.gather(1, found.live), candidates.log_prob.gather(1, found.live))
        torch.gather(token, 1, found.live, out=board.newest)
        board.cost.copy_(-found.state.live_log_probs)
        written = constants.lines <= board.position[:, None, None]
        followed = board.ancestors.gather(1, parent.gather(1, found.live)[..., None].expand_as(board.ancestors))
        board.ancestors.copy_(torch.where(written, followed, constants.paths))
        bound = best_possible(found.state, length, board.longest, constants.rules)
        board.close(board.finished[:, -1, 0] >= bound)


def best(cost: Tensor, log_probs: Tensor, count: int, starts: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Places in K * V, of the least of cost (B, K) - log_probs (B, K, V), of equals the first; and these: (B, count).

    V is of whole stretches; starts and offsets are as in `Constants`. The `count` best lie in the `count` stretches
    whose own best are best: only those are ordered.
    """
    rows, paths, vocabulary = log_probs.shape
    tops = log_probs.view(rows, paths, -1, VOCABULARY_BLOCK).amax(-1)  # (B, K, C)
    start, _ = lowest((cost[..., None] - tops).flatten(1), starts, min(count, len(starts)))
    places = (start[..., None] + offsets).flatten(1)  # (B, count * STRETCH)
    own = log_probs.flatten(1).gather(1, places).view(rows, -1, VOCABULARY_BLOCK)
    costs = (cost.gather(1, start // vocabulary)[..., None] - own).flatten(1)
    found, index = lowest(costs, places, count)
    return found, costs.gather(1, index)


def lowest(costs: Tensor, names: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The names of the `count` least costs of each row, of equals the least name; and where they stand.

    torch.topk takes any of several equals, and 16-bit logits often are equal. A float above 0 orders as its bits do, so
    these bits above the name make a whole number without equals.
    """
    keyed = torch.add(names, costs.view(torch.int32), alpha=1 << 32)
    least = keyed.topk(count, largest=False)
    return least.values & 0xFFFFFFFF, least.indices
