"""One step of greedy or beam search in fixed shapes, on the tensors of board.py: nothing here waits for the device.

Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, V vocabulary, C stretches of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from transduce.data.symbols import Symbols
from transduce.model.contract import Held, Holding
from transduce.search.board import Board, Finding
from transduce.search.constraints import LOWEST, strike
from transduce.search.diverse import first_going
from transduce.search.hypothesis import Hypothesis, length_penalty
from transduce.search.limits import Limits
from transduce.search.paths import greatest
from transduce.search.settings import Beam, Greedy
from transduce.search.wishes import Wishes

STRETCH = 64  # tokens whose greatest is found first, so that few of them need be ordered


@dataclass(frozen=True)
class Plan:
    """A search that can be done in fixed shapes: greedy search, or a beam of so many paths and hypotheses kept."""

    greedy: bool
    paths: int
    kept: int
    alpha: float
    limits: Limits
    symbols: Symbols
    vocabulary: int

    @classmethod
    def of(cls, search: Any, wishes: Sequence[Wishes], symbols: Symbols, vocabulary: int) -> Plan | None:
        """The plan of a search config; None for what needs shapes that change, or would be refused."""
        if type(search) is Greedy:
            plan = cls(True, 1, 1, 0.0, search.limits, symbols, vocabulary)
        elif type(search) is Beam and search.groups == 1 and not search.coverage:
            size, kept, alpha = search.size, search.n_best, search.length_penalty
            plan = cls(False, size, kept, alpha, search.limits, symbols, vocabulary)
        else:
            return None
        return plan if plan._serves(wishes) else None

    def _serves(self, wishes: Sequence[Wishes]) -> bool:
        never = {*self.symbols.never, *self.limits.forbid}
        left = self.vocabulary - len(never | {self.symbols.eos})
        known = all(token < self.vocabulary for token in never) and self.symbols.eos not in never
        asked = all(
            not wish.include and not wish.exclude and all(token < self.vocabulary for token in wish.prefix)
            for wish in wishes
        )
        return known and asked and left >= 1 and self.vocabulary >= 2 * self.paths

    def penalties(self, length: int, device: torch.device) -> Tensor:
        """The penalty of each length up to `length`."""
        return torch.tensor([length_penalty(written, self.alpha) for written in range(length + 1)], device=device)

    def read(self, finding: Finding) -> list[list[Hypothesis]]:
        """Hypotheses of sentences that are done, best first."""
        if self.greedy:
            return finding.greedy(self.vocabulary, self.symbols.eos)
        return finding.beams(self.vocabulary, self.symbols.eos, self.alpha)


@dataclass(frozen=True)
class Stepper:
    """Reads the newest tokens of all paths of all sentences, and chooses the next."""

    model: Holding
    held: Held
    board: Board
    plan: Plan
    penalties: Tensor  # (L + 1,)
    never: Tensor  # tokens that are not to be written

    @classmethod
    def of(cls, model: Holding, held: Held, board: Board, plan: Plan) -> Stepper:
        device = board.place.device
        never = torch.tensor(sorted({*plan.symbols.never, *plan.limits.forbid}), dtype=torch.int64, device=device)
        return cls(model, held, board, plan, plan.penalties(board.ancestors.size(2), device), never)

    def __call__(self, reach: int) -> None:
        """One token further; no sentence has written as many as `reach`."""
        board = self.board
        state = replace(self.held, length=reach, place=board.place, ancestors=board.ancestors)
        logits, _ = self.model.advance(board.newest, state)
        log_probs = self._allowed(logits.log_softmax(-1, dtype=torch.float32))  # (B, K, V)
        if self.plan.greedy:
            self._follow(log_probs)
        else:
            self._expand(log_probs)

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """-inf where a rule forbids a token; the same rules as those of constraints.py, in the same order."""
        board, eos, limits = self.board, self.plan.symbols.eos, self.plan.limits
        wanted = kept = None
        if board.prefix.size(1):
            column = board.place.clamp(max=board.prefix.size(1) - 1)[:, None]
            wanted = board.prefix.gather(1, column).masked_fill(board.place[:, None] > column, -1)[:, :, None]
            wanted = wanted.expand(*log_probs.shape[:2], 1)  # (B, K, 1), -1 where the prefix is over
            kept = log_probs.gather(2, wanted.clamp(min=0))
        end = log_probs[..., eos].clamp(min=LOWEST) if limits.no_repeat else None
        log_probs.index_fill_(2, self.never, -torch.inf)
        if limits.shortest:
            log_probs[..., eos].masked_fill_((board.place < board.shortest)[:, None], -torch.inf)
        if end is not None:
            log_probs.masked_fill_(~self._unrepeated(log_probs), -torch.inf)
            stuck = log_probs.amax(-1) == -torch.inf  # other rules leave some token: a plan sees to that
            log_probs[..., eos].copy_(torch.where(stuck, end, log_probs[..., eos]))
        if wanted is not None and kept is not None:
            log_probs.masked_fill_(wanted >= 0, -torch.inf)
            log_probs.scatter_(2, wanted.clamp(min=0), torch.where(wanted >= 0, kept, log_probs[..., :1]))
        return log_probs

    def _unrepeated(self, log_probs: Tensor) -> Tensor:
        """No n-gram twice in one path; (B, K, V)."""
        board, size = self.board, self.plan.limits.no_repeat
        written = board.chosen[:, 1:-1].transpose(1, 2).gather(1, board.ancestors[..., 1:]) % self.plan.vocabulary
        allowed = torch.ones_like(log_probs, dtype=torch.bool)
        if written.size(2) < size:
            return allowed
        grams = written.unfold(2, size, 1)  # (B, K, L - size, size)
        behind = torch.arange(1 - size, 0, device=written.device)
        latest = written.gather(2, (board.place[:, None, None] + behind).clamp(min=0).expand(*written.shape[:2], -1))
        whole = torch.arange(size, size + grams.size(2), device=written.device) <= board.place[:, None, None]
        repeats = (grams[..., :-1] == latest[:, :, None]).all(-1) & whole
        rows = (grams[..., -1].flatten(0, 1), repeats.flatten(0, 1))
        return strike(allowed.flatten(0, 1), *rows).view_as(log_probs)

    def _follow(self, log_probs: Tensor) -> None:
        """Greedy search: the most probable token, of equals the first."""
        board = self.board
        token = log_probs.argmax(-1)  # (B, 1)
        board.write(token, log_probs.gather(2, token[..., None]).squeeze(2))
        board.newest.copy_(token)
        board.close(token[:, 0] == self.plan.symbols.eos)

    def _expand(self, log_probs: Tensor) -> None:
        """Beam search: see beam.py, whose `_step` and `_decided` this is."""
        board, size, vocabulary = self.board, self.plan.paths, self.plan.vocabulary
        places, totals = best(board.rank, log_probs, 2 * size)  # (B, 2K)
        own = log_probs.flatten(1).gather(1, places)
        ended = places % vocabulary == self.plan.symbols.eos
        self._finish(places[:, :size] // vocabulary, totals[:, :size], own[:, :size], ended[:, :size])

        going = first_going(ended, size)
        chosen, parent = places.gather(1, going), places.gather(1, going) // vocabulary
        board.write(chosen, own.gather(1, going))
        board.newest.copy_(chosen % vocabulary)
        board.rank.copy_(torch.where(board.done[:, None], board.rank, totals.gather(1, going)))
        before = torch.arange(board.ancestors.size(2), device=places.device) <= board.place[:, None, None]
        paths = torch.arange(size, device=places.device)[:, None]
        followed = board.ancestors.gather(1, parent[..., None].expand_as(board.ancestors))
        board.ancestors.copy_(torch.where(before, followed, paths))

        kindest = self.penalties[board.longest if self.plan.alpha >= 0 else board.place + 1]
        board.close(board.score[:, -1] >= board.rank.amax(1) / kindest)

    def _finish(self, path: Tensor, totals: Tensor, own: Tensor, ended: Tensor) -> None:
        """The best of what is finished and of what ends now; of equals the older: all (B, K)."""
        board = self.board
        scores = totals / self.penalties[board.place + 1][:, None]
        scores = scores.masked_fill(~ended | board.done[:, None], -torch.inf)
        every = torch.cat([board.score, scores], dim=1)
        order = every.argsort(dim=1, descending=True, stable=True)[:, : self.plan.kept]
        end = board.place[:, None] * self.plan.paths + path
        board.end.copy_(torch.cat([board.end, end], dim=1).gather(1, order))
        board.last.copy_(torch.cat([board.last, own], dim=1).gather(1, order))
        board.score.copy_(every.gather(1, order))


def best(rank: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places in K * V of the greatest of rank (B, K) + log_probs (B, K, V), of equals the first, and these: (B, count).

    The `count` greatest lie in the `count` stretches whose own greatest are greatest: only those are ordered.
    """
    _, paths, vocabulary = log_probs.shape
    whole = vocabulary - vocabulary % STRETCH
    tops = log_probs[..., :whole].view(len(rank), paths, whole // STRETCH, STRETCH).amax(-1)
    if whole < vocabulary:
        tops = torch.cat([tops, log_probs[..., whole:].amax(-1, keepdim=True)], dim=2)
    stretches = tops.size(2)  # C
    # In order of their places, so that of equals the first is the first.
    chosen = greatest((rank[..., None] + tops).flatten(1), min(count, paths * stretches)).sort(1).values[..., None]
    path = chosen // stretches
    columns = chosen % stretches * STRETCH + torch.arange(STRETCH, device=rank.device)
    places = path * vocabulary + columns.clamp(max=vocabulary - 1)
    totals = rank.gather(1, path.flatten(1))[..., None] + log_probs.flatten(1).gather(1, places.flatten(1)).view_as(
        places
    )
    totals = totals.masked_fill(columns >= vocabulary, -torch.inf).flatten(1)
    first = greatest(totals, count)
    return places.flatten(1).gather(1, first), totals.gather(1, first)
