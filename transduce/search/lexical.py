"""Phrases that must appear: dynamic beam allocation (Post and Vilar 2018) over one automaton a sentence.

Each path stands at a node of its sentence's automaton (automaton.py). Places in the beam are dealt out by the number of
tokens that are left to write, one after another to each number, so that every stage has a path.
Shapes: B sentences, R rows, K paths, V vocabulary, M nodes, U tokens that occur in a sentence's phrases, W constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.search.automaton import Automaton, Include
from transduce.search.beam_state import greatest
from transduce.search.limits import check_tokens
from transduce.search.paths import ConstraintState
from transduce.search.rules import Rule


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
