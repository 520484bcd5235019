"""Greedy search, sampling and beam search in static shapes: ancestor masks over a static KV cache.

The eager search drops finished rows; this one keeps static shapes and addresses so that CUDA graphs can replay it.
Sentences have positions of their own, and new ones take over the slots of finished ones. Nothing in a step waits for
the device. Results equal those of beam.py and sampling.py.
Shapes: B sentences, K paths of each, L the longest path, n hypotheses kept, V vocabulary, C blocks of it, b sentences
admitted together, P longest prefix, M phrases of X tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from transduce.kernels import dispatch
from transduce.model.contract import CacheShape, StaticDecoderState, SupportsStaticCache
from transduce.search import UNNORMALIZED, Hypothesis, LengthPenalty, SearchConfig, best_first
from transduce.search.beam_state import BeamRules, BeamState, Candidates, best_possible, expand
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.rules import LOWEST, strike
from transduce.search.sampling import drawing, make_streams, most_probable
from transduce.search.settings import Beam, Greedy, Limits, MinimumBayesRisk, Sample, Samples
from transduce.text.vocabulary import Symbols

# Limits that `StaticSearchStep._allowed` and the lengths hold; what sets others is left to the eager searches.
KNOWN_LIMITS = ("longest_ratio", "longest_extra", "longest", "shortest", "no_repeat", "forbid")


@dataclass(frozen=True)
class PrefillBatch:
    """Sentences to admit: source (b, S), number of tokens (b,) of each, and the slots (b,) of B that they take.

    longest (b,) is the most tokens each may write, shortest (b,) the fewest before an end, prefix (b, P) the forced
    prefix, -1 after it. exclude (b, M, X) are excluded phrases: -1 before a phrase, -2 where there is none. streams (b,
    K) seed each path's random draws.
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
        """The source mask (b, S), True at real tokens."""
        return torch.arange(self.source.size(1), device=self.source.device) < self.tokens[:, None]


@dataclass(frozen=True)
class StaticSearchState:
    """State of B sentences in tensors that are only written in place.

    newest (B, K) are tokens still to be read, position (B,) the number written before them, done (B,) whether the
    sentence is decided (or the slot is free). chosen (B, L + 1, K) holds for each position and path the token written
    there plus `radix` times the path it extends; token_log_probs (B, L + 1, K) its log-probability. Row 0 is a dummy
    that finished sentences write to. For live paths cost (B, K) is minus the log-probability, width (B,) how many there
    may be (fewer than K only in a shrinking beam), and ancestors (B, K, L) is as in contract.py. finished (B, n, 3) has
    the score of each finished path (-inf: none), where it ended (position * K + path) and the log-probability of its
    end. The limits of sentences are as in `PrefillBatch`.
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
        cls, cache_shape: CacheShape, kept: int, prefix: int, phrases: tuple[int, int], device: torch.device
    ) -> StaticSearchState:
        """Allocate a state of free slots; `phrases` is the maximum number of excluded phrases, and their length."""
        size, paths, length = cache_shape.sentences, cache_shape.paths, cache_shape.length

        def integers(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, dtype=torch.int64, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, device=device)

        return cls(
            newest=integers(paths),
            position=integers(),
            done=torch.ones(size, dtype=torch.bool, device=device),
            longest=integers() + 1,
            shortest=integers(),
            prefix=integers(prefix) - 1,
            exclude=integers(*phrases) - 2,
            streams=integers(paths),
            chosen=integers(length + 1, paths),
            token_log_probs=floats(length + 1, paths),
            cost=floats(paths),
            width=integers() + paths,
            ancestors=integers(paths, length),
            finished=floats(kept, 3).double() - torch.inf,  # integers and float32 both fit in float64
        )

    def admit(self, batch: PrefillBatch, symbols: Symbols) -> None:
        """Admit sentences, one live path each: with K copies the first step would find each continuation K times."""
        slots = batch.slots
        for name in ("longest", "shortest", "prefix", "exclude", "streams"):
            getattr(self, name).index_copy_(0, slots, getattr(batch, name))
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
        """Write one token per path, with log-probabilities: both (B, K); rows are the indices of all sentences."""
        where = rows, (self.position + 1).masked_fill(self.done, 0)
        self.chosen.index_put_(where, chosen)
        self.token_log_probs.index_put_(where, log_probs)

    def close(self, decided: Tensor) -> None:
        """Mark sentences that are decided (B,) or at their limit as done; the others advance by one position."""
        self.done.logical_or_(decided).logical_or_(self.longest <= self.position + 1)
        self.position.add_(~self.done)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The order in which sentences are admitted: longest first, so that none needs a larger cache than those before."""
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


@dataclass(frozen=True)
class StaticSearchResult:
    """The parts of `StaticSearchState` that hypotheses are read from, of done sentences, on the CPU."""

    position: Tensor
    chosen: Tensor
    token_log_probs: Tensor
    cost: Tensor
    finished: Tensor

    @classmethod
    def of(cls, state: StaticSearchState, slots: Tensor) -> StaticSearchResult:
        """Start copying the results of `slots` to the CPU; synchronise with the GPU before reading or joining them."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(getattr(state, name).index_select(0, slots).to("cpu", non_blocking=True) for name in names))

    @classmethod
    def joined(cls, results: Sequence[StaticSearchResult]) -> StaticSearchResult:
        """Concatenate results."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(torch.cat([getattr(result, name) for result in results]) for name in names))

    def singles(self, eos: int) -> list[list[Hypothesis]]:
        """Hypotheses of independent paths (greedy, samples) per sentence, by falling probability, stable for ties."""
        paths, most = self.cost.shape[1], int(self.position.max()) + 1
        parts = (part[:, 1 : most + 1].transpose(1, 2).flatten(0, 1) for part in (self.chosen, self.token_log_probs))
        tokens, log_probs = (part.numpy() for part in parts)  # (B * K, most)
        lengths = (self.position + 1).repeat_interleave(paths).numpy()
        ends = (tokens == eos) & (np.arange(most) < lengths[:, None])
        ended = ends.any(1)
        hypotheses = _written(tokens, log_probs, np.where(ended, ends.argmax(1) + 1, lengths), ended, UNNORMALIZED)
        by_sentence = [hypotheses[first : first + paths] for first in range(0, len(hypotheses), paths)]
        return (
            by_sentence
            if paths == 1
            else [
                sorted(paths_of_sentence, key=lambda hypothesis: -hypothesis.score) for paths_of_sentence in by_sentence
            ]
        )

    def beams(self, radix: int, penalty: LengthPenalty) -> list[list[Hypothesis]]:
        """The n best of each sentence; live paths at the limit only fill slots that finished ones left empty."""
        paths, kept = self.cost.shape[1], self.finished.shape[1]
        has_finished = self.finished[..., 0] > -torch.inf  # (B, n)
        end = self.finished[..., 1].where(has_finished, 0).long()
        finished = _ends(has_finished, end // paths, end % paths)
        path_indices = torch.arange(paths).expand_as(self.cost)
        lacking = kept - has_finished.sum(1, keepdim=True)  # (B, 1)
        last = self.cost.sort(dim=1).values.gather(1, (lacking - 1).clamp(min=0))
        # Reading is slow, so only paths that can be chosen are read; costs were summed in single precision.
        near = self.cost <= last * (1 + 1e-5) + 1e-4
        candidates = (self.cost < torch.inf) & near & (lacking > 0)
        live = _ends(candidates, (self.position[:, None] + 1).expand_as(path_indices), path_indices)
        hypotheses_of: list[list[Hypothesis]] = [[] for _ in range(len(self.position))]
        for ends, lasts in ((finished, self.finished[..., 2][has_finished].numpy()), (live, None)):
            for sentence, hypothesis in zip(
                ends.sentence.tolist(), self._read(ends, lasts, radix, penalty), strict=True
            ):
                hypotheses_of[sentence].append(hypothesis)
        return [hypotheses if len(hypotheses) == 1 else _best(hypotheses, kept) for hypotheses in hypotheses_of]

    def _read(
        self, ends: PathEnds, lasts: NDArray[np.float64] | None, radix: int, penalty: LengthPenalty
    ) -> list[Hypothesis]:
        """Read paths back from their ends. `lasts`: log-probabilities of their end symbols, None if unfinished."""
        chosen, log_probs, paths = self.chosen.numpy(), self.token_log_probs.numpy(), self.cost.shape[1]
        count, longest = len(ends.path), int(ends.position.max(initial=0))
        lines = np.append(np.arange(1, longest + 1), 0)[:, None]  # the last for end symbols, which are not in the table
        where = (ends.sentence * chosen.shape[1] + lines) * paths  # (longest + 1, h), in the flat tables
        path = ends.path
        for line in range(longest, 0, -1):
            where[line - 1] += path
            path = np.where(ends.position >= line, chosen.take(where[line - 1]) // radix, path)
        tokens, logs = chosen.take(where).T % radix, log_probs.take(where).T
        if lasts is not None:
            logs[np.arange(count), ends.position] = lasts
        ended = np.full(count, lasts is not None)
        return _written(tokens, logs, ends.position + ended, ended, penalty)


def _written(
    tokens: NDArray[np.int64],
    log_probs: NDArray[np.float32],
    lengths: NDArray[np.int64],
    ended: NDArray[np.bool_],
    penalty: LengthPenalty,
) -> list[Hypothesis]:
    """Build hypotheses from rows of tokens and log-probabilities (h, l): `lengths` (h,) count, `ended` with end symbol.

    Each row is a slice of one long tuple: hundreds of lists would be scanned by the garbage collector.
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
    """Where paths ended: indices of sentence, position and path, all (h,)."""

    sentence: NDArray[np.int64]
    position: NDArray[np.int64]
    path: NDArray[np.int64]


def _ends(mask: Tensor, position: Tensor, path: Tensor) -> PathEnds:
    sentence, column = mask.nonzero(as_tuple=True)
    return PathEnds(sentence.numpy(), position[sentence, column].numpy(), path[sentence, column].numpy())


def _best(hypotheses: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The best hypotheses, each text once."""
    unique: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in sorted(hypotheses, key=best_first)[:count]:
        unique.setdefault(hypothesis.tokens, hypothesis)
    return list(unique.values())


VOCABULARY_BLOCK = 64  # tokens whose maximum is found first, so that few blocks need sorting


@dataclass(frozen=True)
class StaticSearchConfig:
    """A search that supports static shapes: a beam of `paths` with `kept` hypotheses, or independent paths.

    Independent paths take the most probable token, or sample by the settings `drawn` (whose seed is ignored). A
    `shrinking` beam loses a slot for each finished path.
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
        cls, search: SearchConfig, constraints: Sequence[DecodingConstraints], symbols: Symbols, vocabulary: int
    ) -> StaticSearchConfig | None:
        """Convert a search config; None if it needs dynamic shapes, or would be refused."""
        if type(search) is MinimumBayesRisk:
            search = search.candidates
        if type(search) is Greedy:
            plan = cls(False, 1, 0, UNNORMALIZED, search.limits, symbols, vocabulary)
        elif type(search) is Sample or type(search) is Samples:
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
        constraints_fit = all(
            not constraint.include
            and all(token < self.vocabulary for phrase in (constraint.prefix, *constraint.exclude) for token in phrase)
            for constraint in constraints
            if constraint is not UNCONSTRAINED
        )
        return known and constraints_fit and left >= 1 and not (self.beam and self.vocabulary < 2 * self.paths)

    def streams(self, search: SearchConfig, keys: Sequence[int]) -> list[list[int]]:
        """Seeds of the random streams of each path, for each sentence."""
        if self.drawn is None:
            return [[0] * self.paths] * len(keys)
        drawn = search.candidates if isinstance(search, MinimumBayesRisk) else search
        assert isinstance(drawn, Sample)
        streams: list[list[int]] = make_streams(drawn.seed, keys, self.paths, len(keys)).view(-1, self.paths).tolist()
        return streams

    @property
    def radix(self) -> int:
        """The vocabulary's size, rounded up to whole blocks."""
        return -(-self.vocabulary // VOCABULARY_BLOCK) * VOCABULARY_BLOCK

    def read(self, result: StaticSearchResult) -> list[list[Hypothesis]]:
        """Read the hypotheses of done sentences, best first."""
        if self.beam:
            return result.beams(self.radix, self.penalty)
        return result.singles(self.symbols.eos)


@dataclass(frozen=True)
class StepConstants:
    """Tensors that every step needs, made once.

    rows (B,), paths (K, 1) and lines (L,) count from 0, `rules` are those of a beam, `never` the forbidden tokens and
    barred (V,) is 1 at these, starts (K * C,) where each block begins in a sentence's K * radix continuations, and
    offsets (BLOCK,) count within one.
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
    def of(cls, plan: StaticSearchConfig, state: StaticSearchState) -> StepConstants:
        sentences, paths, length = state.ancestors.shape

        def count(*bounds: int) -> Tensor:
            return torch.arange(*bounds, device=state.position.device)

        penalties = torch.tensor([plan.penalty(written) for written in range(length + 2)]).to(state.position.device)
        never = torch.tensor(sorted({*plan.symbols.never, *plan.limits.forbid}), dtype=torch.int64)
        return cls(
            count(sentences),
            count(paths)[:, None],
            count(length),
            BeamRules(penalties, plan.penalty.grows, plan.symbols.eos, plan.shrinking),
            never.to(state.position.device),
            torch.zeros(plan.vocabulary, dtype=torch.uint8).index_fill_(0, never, 1).to(state.position.device),
            count(0, paths * plan.radix, VOCABULARY_BLOCK),
            count(VOCABULARY_BLOCK),
        )


@dataclass(frozen=True)
class StaticSearchStep:
    """One decoding step: reads the newest tokens of all paths of all sentences, and writes the next."""

    model: SupportsStaticCache
    cache: StaticDecoderState
    state: StaticSearchState
    plan: StaticSearchConfig
    constants: StepConstants

    def __call__(self, reach: int) -> None:
        """Decode one token; no sentence may have written `reach` tokens yet."""
        self.choose(self.read(reach))

    def read(self, reach: int) -> Tensor:
        """Compute logits of the next token of each path: (B, K, V)."""
        decoder_state = replace(self.cache, length=reach, position=self.state.position, ancestors=self.state.ancestors)
        return self.model.advance(self.state.newest, decoder_state)[0]

    def choose(self, logits: Tensor) -> None:
        """Choose the next tokens from logits, and write them to the state."""
        kernels = dispatch.search_kernels(logits, self.plan.paths, self.plan.vocabulary) if self._simple else None
        if kernels is not None and self.plan.beam:
            kernels.expand(
                logits,
                self.state,
                self.constants.barred,
                self.constants.rules,
            )
            return
        if kernels is not None:
            kernels.greedy_step(logits, self.state, self.constants.barred, self.plan.symbols.eos)
            return
        log_probs = self._allowed(logits.log_softmax(-1, dtype=torch.float32))  # (B, K, V)
        if not self.plan.beam:
            self._pick(log_probs)
            return
        if self.plan.radix > self.plan.vocabulary:
            log_probs = F.pad(log_probs, (0, self.plan.radix - self.plan.vocabulary), value=-torch.inf)
        self._expand(log_probs)

    @property
    def _simple(self) -> bool:
        """Whether each path takes one token by fixed rules that ignore the text so far, and no slot is lost."""
        plan, state = self.plan, self.state
        single = (plan.beam and not plan.shrinking) or (plan.drawn is None and plan.paths == 1)
        return single and not (plan.limits.no_repeat or state.exclude.numel() or state.prefix.size(1))

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """Apply the rules of rules.py in the same order: -inf where one forbids a token."""
        state, eos, limits = self.state, self.plan.symbols.eos, self.plan.limits
        forced = forced_log_probs = None
        if state.prefix.size(1):
            column = state.position.clamp(max=state.prefix.size(1) - 1)[:, None]
            forced = state.prefix.gather(1, column).masked_fill(state.position[:, None] > column, -1)[:, :, None]
            forced = forced.expand(*log_probs.shape[:2], 1)  # (B, K, 1), -1 where the prefix is over
            forced_log_probs = log_probs.gather(2, forced.clamp(min=0))
        text_rules = bool(limits.no_repeat or state.exclude.numel())  # rules that depend on the tokens written
        end = log_probs[..., eos].clamp(min=LOWEST) if text_rules else None
        log_probs.index_fill_(2, self.constants.never, -torch.inf)
        if limits.shortest:
            log_probs[..., eos].masked_fill_((state.position < state.shortest)[:, None], -torch.inf)
        if end is not None:
            log_probs.masked_fill_(self._forbidden(log_probs), -torch.inf)
            stuck = (
                log_probs.amax(-1) == -torch.inf
            )  # the other rules always leave some token: `StaticSearchConfig.of` checks that
            log_probs[..., eos].copy_(torch.where(stuck, end, log_probs[..., eos]))
        if forced is not None and forced_log_probs is not None:
            log_probs.masked_fill_(forced >= 0, -torch.inf)
            log_probs.scatter_(2, forced.clamp(min=0), torch.where(forced >= 0, forced_log_probs, log_probs[..., :1]))
        return log_probs

    def _forbidden(self, log_probs: Tensor) -> Tensor:
        """Mask (B, K, V) of tokens that would repeat an n-gram of their path, or complete an excluded phrase."""
        state, size = self.state, self.plan.limits.no_repeat
        written = state.chosen[:, 1:-1].transpose(1, 2).gather(1, state.ancestors[..., 1:]) % self.plan.radix
        allowed = torch.ones_like(log_probs, dtype=torch.bool).flatten(0, 1)
        if 0 < size <= written.size(2):
            grams = written.unfold(2, size, 1)  # (B, K, L - size, size)
            complete = torch.arange(size, size + grams.size(2), device=written.device) <= state.position[:, None, None]
            repeats = (grams[..., :-1] == self._latest(written, size)).all(-1) & complete
            allowed = strike(allowed, grams[..., -1].flatten(0, 1), repeats.flatten(0, 1))
        if state.exclude.numel():
            head, last = state.exclude[:, None, :, :-1], state.exclude[:, None, :, -1]  # (B, 1, M, X - 1), (B, 1, M)
            latest = self._latest(written, state.exclude.size(2))
            ending = ((head == -1) | (head == latest)).all(-1) & (last >= 0)  # (B, K, M)
            allowed = strike(allowed, last.expand_as(ending).flatten(0, 1), ending.flatten(0, 1))
        return ~allowed.view_as(log_probs)

    def _latest(self, written: Tensor, size: int) -> Tensor:
        """The last size - 1 tokens of each path, -3 before its first: written (B, K, L - 1) -> (B, K, 1, size - 1)."""
        behind = self.state.position[:, None, None] + torch.arange(1 - size, 0, device=written.device)
        latest = written.gather(2, behind.clamp(min=0).expand(*written.shape[:2], -1))
        return latest.masked_fill(behind < 0, -3)[:, :, None]

    def _pick(self, log_probs: Tensor) -> None:
        """Greedy search and sampling: each path picks a token; one that has ended writes end symbols."""
        state, eos, paths = self.state, self.plan.symbols.eos, self.plan.paths
        pick = most_probable if self.plan.drawn is None else drawing(self.plan.drawn)
        steps = state.position[:, None].expand(-1, paths).flatten()
        token = pick(log_probs.flatten(0, 1), state.streams.flatten(), steps).view(-1, paths)  # (B, K)
        if paths > 1:
            token = token.masked_fill((state.newest == eos) & (state.position > 0)[:, None], eos)
        state.write(self.constants.rows, token, log_probs.gather(2, token[..., None]).squeeze(2))
        state.newest.copy_(token)
        state.close((token == eos).all(1) if paths > 1 else token[:, 0] == eos)

    def _expand(self, log_probs: Tensor) -> None:
        """Beam search: `beam_state.expand`, with the result written in place."""
        state, size, constants = self.state, self.plan.paths, self.constants
        indices, costs = best(state.cost, log_probs, 2 * size, constants.starts, constants.offsets)  # (B, 2K)
        parent, token = indices // self.plan.radix, indices % self.plan.radix
        candidates = Candidates(parent, token, log_probs.flatten(1).gather(1, indices), -costs)
        length = state.position + 1
        before = BeamState(-state.cost, state.finished[..., 0], state.width)
        expansion = expand(before, candidates, length, constants.rules, done=state.done)

        end = state.position[:, None] * size + parent[:, :size]
        ends = torch.stack([end, candidates.log_prob[:, :size]], dim=2)
        kept = torch.cat([state.finished[..., 1:], ends], dim=1).gather(
            1, expansion.finished[..., None].expand(-1, -1, 2)
        )
        state.finished.copy_(torch.cat([expansion.state.finished_scores[..., None], kept], dim=2))
        state.width.copy_(torch.where(state.done, state.width, expansion.state.slots))
        state.write(constants.rows, indices.gather(1, expansion.live), candidates.log_prob.gather(1, expansion.live))
        torch.gather(token, 1, expansion.live, out=state.newest)
        state.cost.copy_(-expansion.state.live_log_probs)
        written = constants.lines <= state.position[:, None, None]
        followed = state.ancestors.gather(1, parent.gather(1, expansion.live)[..., None].expand_as(state.ancestors))
        state.ancestors.copy_(torch.where(written, followed, constants.paths))
        bound = best_possible(expansion.state, length, state.longest, constants.rules)
        state.close(state.finished[:, -1, 0] >= bound)


def best(cost: Tensor, log_probs: Tensor, count: int, starts: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Indices in K * V of the lowest cost (B, K) - log_probs (B, K, V), ties to the first, and their costs: (B, count).

    V is a multiple of the block size; starts and offsets are as in `StepConstants`. The `count` best lie in the `count`
    blocks with the best minima: only those are sorted.
    """
    rows, paths, vocabulary = log_probs.shape
    tops = log_probs.view(rows, paths, -1, VOCABULARY_BLOCK).amax(-1)  # (B, K, C)
    start, _ = lowest((cost[..., None] - tops).flatten(1), starts, min(count, len(starts)))
    indices = (start[..., None] + offsets).flatten(1)  # (B, count * BLOCK)
    block_log_probs = log_probs.flatten(1).gather(1, indices).view(rows, -1, VOCABULARY_BLOCK)
    costs = (cost.gather(1, start // vocabulary)[..., None] - block_log_probs).flatten(1)
    lowest_indices, index = lowest(costs, indices, count)
    return lowest_indices, costs.gather(1, index)


def lowest(costs: Tensor, names: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The names of the `count` lowest costs of each row, ties to the lowest name, and their indices.

    torch.topk breaks ties arbitrarily, and 16-bit logits often tie. A float above 0 orders like its bits, so these bits
    above the name make an integer without ties.
    """
    keyed = torch.add(names, costs.view(torch.int32), alpha=1 << 32)
    least = keyed.topk(count, largest=False)
    return least.values & 0xFFFFFFFF, least.indices
