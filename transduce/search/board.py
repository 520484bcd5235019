"""Searches in fixed shapes: what is held of each sentence, in tensors that are only ever written into.

A search by hand of Python lets sentences leave and tensors grow; here every step does the same work at the same
addresses, so that a GPU may replay it. Sentences stand at places of their own, and new ones take over from those that
are done. What is found is the same as by beam.py and stepwise.py.
Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, b arrivals, P longest prefix,
M phrases of X tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.symbols import Symbols
from transduce.model.contract import Room
from transduce.search.hypothesis import Hypothesis, best_first


@dataclass(frozen=True)
class Arrivals:
    """Sentences that come in: source and mask (b, S), the slots (b,) they take of the B there are.

    longest (b,) is the most tokens each may write, shortest (b,) the fewest before an end, prefix (b, P) how it must
    begin, -1 after that. exclude (b, M, X) are phrases it must not hold: -1 before a phrase, -2 where there is none.
    streams (b, K) are what each path's random draws follow from.
    """

    source: Tensor
    mask: Tensor
    slots: Tensor
    longest: Tensor
    shortest: Tensor
    prefix: Tensor
    exclude: Tensor
    streams: Tensor

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]


@dataclass(frozen=True)
class Board:
    """All that is known of B sentences.

    newest (B, K) are tokens still to be read, place (B,) tells how many were written before them, done (B,) whether the
    sentence is decided (or nobody is in its slot). chosen (B, L + 1, K) holds for each place and path the token
    written there plus `radix` times the path it went on from; token_log_probs (B, L + 1, K) how probable it was. Line
    0, where nothing is written, takes what sentences write that are done. Of live paths cost (B, K) is minus the
    log-probability, and ancestors (B, K, L) is as in contract.py. finished (B, n, 3) has the score of each finished
    path (-inf: there is none), where it ended (place * K + path) and the log-probability of the end. What sentences
    brought with them is kept as in `Arrivals`.
    """

    newest: Tensor
    place: Tensor
    done: Tensor
    longest: Tensor
    shortest: Tensor
    prefix: Tensor
    exclude: Tensor
    streams: Tensor
    chosen: Tensor
    token_log_probs: Tensor
    cost: Tensor
    ancestors: Tensor
    finished: Tensor

    @classmethod
    def of(cls, room: Room, kept: int, prefix: int, phrases: tuple[int, int], device: torch.device) -> Board:
        """With nobody in it. `phrases`: how many to exclude there may be, and how long."""
        size, paths, length = room.sentences, room.paths, room.length

        def whole(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, dtype=torch.int64, device=device)

        def real(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, device=device)

        return cls(
            newest=whole(paths),
            place=whole(),
            done=torch.ones(size, dtype=torch.bool, device=device),
            longest=whole() + 1,
            shortest=whole(),
            prefix=whole(prefix) - 1,
            exclude=whole(*phrases) - 2,
            streams=whole(paths),
            chosen=whole(length + 1, paths),
            token_log_probs=real(length + 1, paths),
            cost=real(paths),
            ancestors=whole(paths, length),
            finished=real(kept, 3).double() - torch.inf,  # whole numbers and float32 both fit in float64
        )

    def admit(self, arrivals: Arrivals, symbols: Symbols) -> None:
        """New sentences, with nothing written: one live path each, or the first step would find all K times."""
        slots = arrivals.slots
        for name in ("longest", "shortest", "prefix", "exclude", "streams"):
            getattr(self, name).index_copy_(0, slots, getattr(arrivals, name))
        self.place.index_fill_(0, slots, 0)
        self.done.index_fill_(0, slots, False)
        self.newest.index_fill_(0, slots, symbols.bos)
        self.finished.index_fill_(0, slots, -torch.inf)
        paths = torch.arange(self.cost.shape[1], device=slots.device)
        self.cost.index_fill_(0, slots, torch.inf)
        self.cost[:, 0].index_fill_(0, slots, 0.0)
        self.ancestors.index_copy_(0, slots, paths[:, None].expand(len(slots), *self.ancestors.shape[1:]))

    def write(self, rows: Tensor, chosen: Tensor, log_probs: Tensor) -> None:
        """One token further for each path: both (B, K); rows are the numbers of all sentences."""
        where = rows, (self.place + 1).masked_fill(self.done, 0)
        self.chosen.index_put_(where, chosen)
        self.token_log_probs.index_put_(where, log_probs)

    def close(self, decided: Tensor) -> None:
        """Sentences that are decided (B,), or at their limit, are done; the others go on to their next place."""
        self.done.logical_or_(decided).logical_or_(self.longest <= self.place + 1)
        self.place.add_(~self.done)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The order in which sentences come in, so that none is longer than those that made the room."""
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


@dataclass(frozen=True)
class Finding:
    """What is read of boards when sentences are done: parts of `Board` for them, on the CPU."""

    place: Tensor
    chosen: Tensor
    token_log_probs: Tensor
    cost: Tensor
    finished: Tensor

    @classmethod
    def of(cls, board: Board, slots: Tensor) -> Finding:
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(getattr(board, name).index_select(0, slots) for name in names))

    @classmethod
    def joined(cls, findings: Sequence[Finding]) -> Finding:
        """All of them in a row, on the CPU."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(torch.cat([getattr(finding, name) for finding in findings]).cpu() for name in names))

    def singles(self, eos: int) -> list[list[Hypothesis]]:
        """Every path of each sentence, the most probable first, of equals the first: they went on by themselves."""
        lengths = (self.place + 1).tolist()
        written = slice(1, max(lengths) + 1)
        parts = (part[:, written].transpose(1, 2).tolist() for part in (self.chosen, self.token_log_probs))
        return [
            sorted(
                (Hypothesis.read(own[:length], logs[:length], eos) for own, logs in zip(*paths, strict=True)),
                key=lambda hypothesis: -hypothesis.score,
            )
            for *paths, length in zip(*parts, lengths, strict=True)
        ]

    def beams(self, radix: int, eos: int, alpha: float) -> list[list[Hypothesis]]:
        """The n best of each sentence; live paths at the limit only fill places that finished ones left empty."""
        paths, kept = self.cost.shape[1], self.finished.shape[1]
        there = self.finished[..., 0] > -torch.inf  # (B, n)
        end = self.finished[..., 1].where(there, 0).long()
        finished = _ends(there, end // paths, end % paths)
        every = torch.arange(paths).expand_as(self.cost)
        lacking = kept - there.sum(1, keepdim=True)  # (B, 1)
        last = self.cost.sort(dim=1).values.gather(1, (lacking - 1).clamp(min=0))
        # Reading takes a while, so only those are read that can be chosen: costs were added up in single precision.
        near = self.cost <= last * (1 + 1e-5) + 1e-4
        wanting = (self.cost < torch.inf) & near & (lacking > 0)
        live = _ends(wanting, (self.place[:, None] + 1).expand_as(every), every)
        found: list[tuple[list[Hypothesis], list[Hypothesis]]] = [([], []) for _ in range(len(self.place))]
        lasts = self.finished[..., 2][there].tolist()
        for (sentence, tokens, log_probs), last in zip(self._read(finished, radix), lasts, strict=True):
            found[sentence][0].append(Hypothesis.read([*tokens, eos], [*log_probs, last], eos, alpha))
        for sentence, tokens, log_probs in self._read(live, radix):
            found[sentence][1].append(Hypothesis.read(tokens, log_probs, eos, alpha))
        return [_best(*own, kept) for own in found]

    def _read(self, ends: Ends, radix: int) -> Iterator[tuple[int, list[int], list[float]]]:
        """The sentence of each path, its tokens and their log-probabilities, walking back from where it ended."""
        chosen, log_probs, path = self.chosen.numpy(), self.token_log_probs.numpy(), ends.path
        count, longest = len(path), int(ends.place.max(initial=0))
        tokens, logs = np.zeros((count, longest), np.int64), np.zeros((count, longest), np.float32)
        for line in range(longest, 0, -1):
            parent, tokens[:, line - 1] = np.divmod(chosen[ends.sentence, line, path], radix)
            logs[:, line - 1] = log_probs[ends.sentence, line, path]
            path = np.where(ends.place >= line, parent, path)
        parts = zip(ends.sentence.tolist(), ends.place.tolist(), tokens.tolist(), logs.tolist(), strict=True)
        for sentence, length, own, own_logs in parts:
            yield sentence, own[:length], own_logs[:length]


@dataclass(frozen=True)
class Ends:
    """Where paths ended: numbers of sentence, place and path, all (h,)."""

    sentence: NDArray[np.int64]
    place: NDArray[np.int64]
    path: NDArray[np.int64]


def _ends(there: Tensor, place: Tensor, path: Tensor) -> Ends:
    sentence, column = there.nonzero(as_tuple=True)
    return Ends(sentence.numpy(), place[sentence, column].numpy(), path[sentence, column].numpy())


def _best(finished: list[Hypothesis], live: list[Hypothesis], count: int) -> list[Hypothesis]:
    best = [*sorted(finished, key=best_first), *sorted(live, key=best_first)][:count]
    different: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in best:
        different.setdefault(hypothesis.tokens, hypothesis)
    return sorted(different.values(), key=best_first)
