"""Searches in fixed shapes: what is held of each sentence, in tensors that are only ever written into.

A search by hand of Python lets sentences leave and tensors grow; here every step does the same work at the same
addresses, so that a GPU may replay it. Sentences stand at places of their own, and new ones take over from those that
are done. What is found is the same as by beam.py and stepwise.py.
Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, b arrivals, P longest prefix,
M phrases of X tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.symbols import Symbols
from transduce.model.contract import CacheShape
from transduce.search.hypothesis import UNNORMALIZED, Hypothesis, LengthPenalty, best_first


@dataclass(frozen=True)
class PrefillBatch:
    """Sentences that come in: source (b, S), of which each has so many tokens (b,), the slots (b,) they take of the B.

    longest (b,) is the most tokens each may write, shortest (b,) the fewest before an end, prefix (b, P) how it must
    begin, -1 after that. exclude (b, M, X) are phrases it must not hold: -1 before a phrase, -2 where there is none.
    streams (b, K) are what each path's random draws follow from.
    """

    source: Tensor
    tokens: Tensor
    slots: Tensor
    longest: Tensor
    shortest: Tensor
    prefix: Tensor
    exclude: Tensor
    streams: Tensor

    @property
    def mask(self) -> Tensor:
        """True at real tokens: (b, S)."""
        return torch.arange(self.source.size(1), device=self.source.device) < self.tokens[:, None]


@dataclass(frozen=True)
class StaticSearchState:
    """All that is known of B sentences.

    newest (B, K) are tokens still to be read, position (B,) tells how many were written before them, done (B,) whether
    the sentence is decided (or nobody is in its slot). chosen (B, L + 1, K) holds for each place and path the token
    written there plus `radix` times the path it went on from; token_log_probs (B, L + 1, K) how probable it was. Line
    0, where nothing is written, takes what sentences write that are done. Of live paths cost (B, K) is minus the
    log-probability, width (B,) is how many there may be (fewer than K only in a shrinking beam), and ancestors
    (B, K, L) is as in contract.py. finished (B, n, 3) has the score of each finished path (-inf: there is none), where
    it ended (place * K + path) and the log-probability of the end. What sentences brought with them is kept as in
    `PrefillBatch`.
    """

    newest: Tensor
    position: Tensor
    done: Tensor
    longest: Tensor
    shortest: Tensor
    prefix: Tensor
    exclude: Tensor
    streams: Tensor
    chosen: Tensor
    token_log_probs: Tensor
    cost: Tensor
    width: Tensor
    ancestors: Tensor
    finished: Tensor

    @classmethod
    def of(
        cls, room: CacheShape, kept: int, prefix: int, phrases: tuple[int, int], device: torch.device
    ) -> StaticSearchState:
        """With nobody in it. `phrases`: how many to exclude there may be, and how long."""
        size, paths, length = room.sentences, room.paths, room.length

        def whole(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, dtype=torch.int64, device=device)

        def real(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, device=device)

        return cls(
            newest=whole(paths),
            position=whole(),
            done=torch.ones(size, dtype=torch.bool, device=device),
            longest=whole() + 1,
            shortest=whole(),
            prefix=whole(prefix) - 1,
            exclude=whole(*phrases) - 2,
            streams=whole(paths),
            chosen=whole(length + 1, paths),
            token_log_probs=real(length + 1, paths),
            cost=real(paths),
            width=whole() + paths,
            ancestors=whole(paths, length),
            finished=real(kept, 3).double() - torch.inf,  # whole numbers and float32 both fit in float64
        )

    def admit(self, arrivals: PrefillBatch, symbols: Symbols) -> None:
        """New sentences, with nothing written: one live path each, or the first step would find all K times."""
        slots = arrivals.slots
        for name in ("longest", "shortest", "prefix", "exclude", "streams"):
            getattr(self, name).index_copy_(0, slots, getattr(arrivals, name))
        self.position.index_fill_(0, slots, 0)
        self.done.index_fill_(0, slots, False)
        self.newest.index_fill_(0, slots, symbols.bos)
        self.finished.index_fill_(0, slots, -torch.inf)
        paths = torch.arange(self.cost.shape[1], device=slots.device)
        self.cost.index_fill_(0, slots, torch.inf)
        self.cost[:, 0].index_fill_(0, slots, 0.0)
        self.width.index_fill_(0, slots, self.cost.shape[1])
        self.ancestors.index_copy_(0, slots, paths[:, None].expand(len(slots), *self.ancestors.shape[1:]))

    def write(self, rows: Tensor, chosen: Tensor, log_probs: Tensor) -> None:
        """One token further for each path: both (B, K); rows are the numbers of all sentences."""
        where = rows, (self.position + 1).masked_fill(self.done, 0)
        self.chosen.index_put_(where, chosen)
        self.token_log_probs.index_put_(where, log_probs)

    def close(self, decided: Tensor) -> None:
        """Sentences that are decided (B,), or at their limit, are done; the others go on to their next place."""
        self.done.logical_or_(decided).logical_or_(self.longest <= self.position + 1)
        self.position.add_(~self.done)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The order in which sentences come in, so that none is longer than those that made the room."""
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


@dataclass(frozen=True)
class StaticSearchResult:
    """What is read of boards when sentences are done: parts of `StaticSearchState` for them, on the CPU."""

    position: Tensor
    chosen: Tensor
    token_log_probs: Tensor
    cost: Tensor
    finished: Tensor

    @classmethod
    def of(cls, board: StaticSearchState, slots: Tensor) -> StaticSearchResult:
        """On its way: a GPU has to come by what it is asked now before this may be read or joined."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(getattr(board, name).index_select(0, slots).to("cpu", non_blocking=True) for name in names))

    @classmethod
    def joined(cls, findings: Sequence[StaticSearchResult]) -> StaticSearchResult:
        """All of them in a row."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(torch.cat([getattr(finding, name) for finding in findings]) for name in names))

    def singles(self, eos: int) -> list[list[Hypothesis]]:
        """Every path of each sentence, the most probable first, of equals the first: they went on by themselves."""
        paths, most = self.cost.shape[1], int(self.position.max()) + 1
        parts = (part[:, 1 : most + 1].transpose(1, 2).flatten(0, 1) for part in (self.chosen, self.token_log_probs))
        tokens, log_probs = (part.numpy() for part in parts)  # (B * K, most)
        lengths = (self.position + 1).repeat_interleave(paths).numpy()
        ends = (tokens == eos) & (np.arange(most) < lengths[:, None])
        ended = ends.any(1)
        every = _written(tokens, log_probs, np.where(ended, ends.argmax(1) + 1, lengths), ended, UNNORMALIZED)
        own = [every[first : first + paths] for first in range(0, len(every), paths)]
        return own if paths == 1 else [sorted(one, key=lambda hypothesis: -hypothesis.score) for one in own]

    def beams(self, radix: int, penalty: LengthPenalty) -> list[list[Hypothesis]]:
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
        live = _ends(wanting, (self.position[:, None] + 1).expand_as(every), every)
        found: list[list[Hypothesis]] = [[] for _ in range(len(self.position))]
        for ends, lasts in ((finished, self.finished[..., 2][there].numpy()), (live, None)):
            for sentence, hypothesis in zip(
                ends.sentence.tolist(), self._read(ends, lasts, radix, penalty), strict=True
            ):
                found[sentence].append(hypothesis)
        return [own if len(own) == 1 else _best(own, kept) for own in found]

    def _read(
        self, ends: PathEnds, lasts: NDArray[np.float64] | None, radix: int, penalty: LengthPenalty
    ) -> list[Hypothesis]:
        """Paths, walking back from where they ended. `lasts`: log-probabilities of their end symbols, or None."""
        chosen, log_probs, paths = self.chosen.numpy(), self.token_log_probs.numpy(), self.cost.shape[1]
        count, longest = len(ends.path), int(ends.place.max(initial=0))
        lines = np.append(np.arange(1, longest + 1), 0)[:, None]  # the last for end symbols, which are in no line
        where = (ends.sentence * chosen.shape[1] + lines) * paths  # (longest + 1, h), in the flat tables
        path = ends.path
        for line in range(longest, 0, -1):
            where[line - 1] += path
            path = np.where(ends.place >= line, chosen.take(where[line - 1]) // radix, path)
        tokens, logs = chosen.take(where).T % radix, log_probs.take(where).T
        if lasts is not None:
            logs[np.arange(count), ends.place] = lasts
        ended = np.full(count, lasts is not None)
        return _written(tokens, logs, ends.place + ended, ended, penalty)


def _written(
    tokens: NDArray[np.int64],
    log_probs: NDArray[np.float32],
    lengths: NDArray[np.int64],
    ended: NDArray[np.bool_],
    penalty: LengthPenalty,
) -> list[Hypothesis]:
    """Of rows of tokens and log-probabilities (h, l), of which `lengths` (h,) count, with an end symbol where `ended`.

    Each row is cut from one long tuple: hundreds of lists would have the garbage collector look at them.
    """
    all_tokens, all_log_probs = tuple(tokens.ravel().tolist()), tuple(log_probs.ravel().tolist())
    starts = np.arange(len(lengths)) * tokens.shape[1]
    rows = zip(starts.tolist(), (starts + lengths).tolist(), ended.tolist(), strict=True)
    return [
        Hypothesis.written(all_tokens[start : end - has_end], all_log_probs[start:end], has_end, penalty)
        for start, end, has_end in rows
    ]


@dataclass(frozen=True)
class PathEnds:
    """Where paths ended: numbers of sentence, place and path, all (h,)."""

    sentence: NDArray[np.int64]
    place: NDArray[np.int64]
    path: NDArray[np.int64]


def _ends(there: Tensor, place: Tensor, path: Tensor) -> PathEnds:
    sentence, column = there.nonzero(as_tuple=True)
    return PathEnds(sentence.numpy(), place[sentence, column].numpy(), path[sentence, column].numpy())


def _best(own: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The best, each text once."""
    different: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in sorted(own, key=best_first)[:count]:
        different.setdefault(hypothesis.tokens, hypothesis)
    return list(different.values())
