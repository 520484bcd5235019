"""A step of greedy search, sampling or beam search in fixed shapes.

Nothing here waits for the device.

Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, V vocabulary, C stretches of it.

Searches in fixed shapes: what is held of each sentence, in tensors that are only ever written into.

A search by hand of Python lets sentences leave and tensors grow; here every step does the same work at the same
addresses, so that a GPU may replay it. Sentences stand at places of their own, and new ones take over from those that
are done. What is found is the same as by beam.py and sampling.py.
Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, b arrivals, P longest prefix,
M phrases of X tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from transduce.kernels import dispatch
from transduce.model.contract import CacheShape, StaticDecoderState, SupportsStaticCache
from transduce.search.beam_state import BeamRules, BeamState, Candidates, best_possible, expand
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.hypothesis import UNNORMALIZED, Hypothesis, LengthPenalty, best_first
from transduce.search.rules import LOWEST, strike
from transduce.search.sampling import drawing, make_streams, most_probable
from transduce.search.settings import Beam, Greedy, Limits, MinimumBayesRisk, Sample, Samples
from transduce.text.vocabulary import Symbols

# Limits that `StaticSearchStep._allowed` and the lengths hold; what sets others is left to the eager searches.
KNOWN_LIMITS = ("longest_ratio", "longest_extra", "longest", "shortest", "no_repeat", "forbid")


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
        return plan if plan._serves(constraints) and not search.limits.beyond(KNOWN_LIMITS) else None

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
