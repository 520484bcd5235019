"""The tree that a search walked, with what it left behind.

The search runs as it is. What is watched is the model: its state carries the tokens of every path, so that whatever the
search reorders and drops is seen at the next step. Exact for greedy search, sampling and beams; where words must be
included or a beam falls into groups, ends that are shown as finished may have been dropped.
Shapes: N paths, t tokens so far, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.data.symbols import Symbols
from transduce.data.tokenizer import Tokenizer
from transduce.inspection.record import Fate, Node, Tree
from transduce.model.contract import Autoregressive, DecoderState, Memory, evaluating
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import UNNORMALIZED, LengthPenalty
from transduce.search.limits import Limits
from transduce.search.rules import Rule, next_log_probs, rules_of

FEWEST = 4  # continuations shown of a step, where a search looks at fewer
Path = tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """One step: the tokens of each path without the start symbol, and log-probabilities (N, V) of what may follow."""

    paths: list[Path]
    log_probs: Tensor


@dataclass(frozen=True)
class Followed:
    """What grows in a watched state: what grows in the model's own, and the tokens (N, t) read so far."""

    own: Any
    tokens: Tensor


class Watched:
    """A stepwise model that tells `heard` all it is asked, step by step."""

    def __init__(self, model: Autoregressive, rules: Sequence[Rule], eos: int, heard: Callable[[Seen], None]) -> None:
        self.model, self.rules, self.eos, self.heard = model, rules, eos, heard

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory:
        return self.model.encode(source, mask, trace)

    def start(self, memory: Memory) -> DecoderState:
        state = self.model.start(memory)
        nothing = memory.mask.new_empty(len(memory.mask), 0, dtype=torch.int64)
        return dataclasses.replace(state, cache=Followed(state.cache, nothing))

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        followed: Followed = state.cache
        logits, after = self.model.advance(tokens, dataclasses.replace(state, cache=followed.own), trace, mask)
        every = torch.cat((followed.tokens, tokens), dim=1)
        written, sentence = every[:, 1:], every.new_zeros(len(every))
        allowed = next_log_probs(logits[:, -1], written, sentence, self.rules, self.eos)
        self.heard(Seen([tuple(path) for path in written.tolist()], allowed.cpu()))
        return logits, dataclasses.replace(after, cache=Followed(after.cache, every))


def grow(
    model: Autoregressive,
    memory: Memory,
    search: Any,
    constraints: DecodingConstraints,
    key: int,
    tokenizer: Tokenizer,
    chosen: Path,
) -> Tree:
    """The tree of one sentence's search (a search config); `chosen` is the path that was taken, with its end symbol.

    Of a joint search it is the tree of its beam, which may lack what the CTC head found.
    """
    search = getattr(search, "beam", search)
    symbols = tokenizer.symbols
    rules = rules_of(getattr(search, "limits", Limits()), symbols, [constraints], memory.mask.device)
    penalty: LengthPenalty = getattr(search, "penalty", UNNORMALIZED)
    growing = _Growing(tokenizer, symbols, penalty, bool(getattr(search, "shrinking", False)))
    watched = Watched(model, rules, symbols.eos, growing.hear)
    with evaluating(cast("nn.Module", model)), torch.inference_mode():
        search.build()(watched, memory, symbols, [constraints], [key])
    return growing.tree(chosen)


class _Growing:
    """Nodes while they are made: `number` of each path, `total` of each path, `lost` places of a shrinking beam.

    Which paths of a step were kept is known at the next; only the last step's distributions are held.
    """

    def __init__(self, tokenizer: Tokenizer, symbols: Symbols, penalty: LengthPenalty, shrinking: bool) -> None:
        self.tokenizer, self.eos, self.penalty = tokenizer, symbols.eos, penalty
        self.shrinking, self.lost = shrinking, 0
        self.nodes: list[Node] = []
        self.number: dict[Path, int] = {(): -1}
        self.total: dict[Path, float] = {(): 0.0}
        self.steps = 0
        self.last: Seen | None = None

    def hear(self, seen: Seen) -> None:
        """One step more."""
        self._grow(set(seen.paths))
        self.last = seen

    def tree(self, chosen: Path) -> Tree:
        """All that was heard."""
        self._grow(None)
        best = [self.number[chosen[:end]] for end in range(1, len(chosen) + 1) if chosen[:end] in self.number]
        return Tree(tuple(self.nodes), tuple(best))

    def _grow(self, following: set[Path] | None) -> None:
        if self.last is not None:
            self._step(self.steps, self.last, following)
            self.steps += 1

    def _step(self, step: int, here: Seen, following: set[Path] | None) -> None:
        """All that was considered at one step; `following` are the paths gone on with, None at the last."""
        live = {path: row for row, path in enumerate(here.paths) if path in self.total}  # equal rows count once
        width = len(here.paths) - self.lost
        ranked = self._ranked(live, here.log_probs, max(2 * len(here.paths), FEWEST))
        if self.shrinking:  # paths that have lost their places are still read, but nothing comes of them
            self.lost += sum(path[-1] == self.eos for path, log_prob in ranked[:width] if log_prob > -torch.inf)
        left = len(here.paths) - self.lost
        known = {path for path, _ in ranked}
        kept = {path for path in following or () if path[:-1] in live and path not in known}  # a draw may be far down
        ranked += [(path, float(here.log_probs[live[path[:-1]], path[-1]])) for path in sorted(kept)]
        going = 0
        for place, (path, log_prob) in enumerate(ranked):
            total = self.total[path[:-1]] + log_prob
            if total == -torch.inf:
                continue
            ended = path[-1] == self.eos
            fate: Fate = "pruned"
            if ended and place < width:
                fate = "finished"
            elif not ended and following is not None and path in following and not (self.shrinking and going >= left):
                fate = "kept"
            elif not ended and following is None and going < left:
                fate = "open"
            going += not ended
            self._add(path, step, log_prob, total, fate)

    def _ranked(self, live: dict[Path, int], log_probs: Tensor, count: int) -> list[tuple[Path, float]]:
        """The best continuations of all live paths, by their totals."""
        found: list[tuple[float, Path, float]] = []
        for path, row in live.items():
            best = log_probs[row].topk(min(count, log_probs.shape[1]))
            for log_prob, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                found.append((self.total[path] + log_prob, (*path, token), log_prob))
        found.sort(key=lambda one: -one[0])
        return [(path, log_prob) for _, path, log_prob in found[:count]]

    def _add(self, path: Path, step: int, log_prob: float, total: float, fate: Fate) -> None:
        score = total / self.penalty(step + 1) if fate == "finished" else None
        (piece,) = self.tokenizer.pieces(path[-1:])
        self.nodes.append(Node(self.number[path[:-1]], step, path[-1], piece, log_prob, total, fate, score))
        self.number[path] = len(self.nodes) - 1
        if fate == "kept":
            self.total[path] = total
