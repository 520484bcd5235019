"""One step of beam search as a pure function on tensors: which paths stay live, which are finished, when to stop.

The eager driver (beam.py) drops finished sentences and lets tensors grow; the static one (static_search.py) masks
finished ones and writes in place; a kernel (kernels/decoding.py) and the C++ core do the same arithmetic in one piece.
All of them rank, penalise, finish and stop as defined here.
Shapes: R rows (a sentence, or one of its groups), K live paths of a row, n finished ones kept, L the longest path, V
vocabulary.

`Paths` and `BeamProgress` are the eager driver's data.
Shapes: t tokens so far, S source length (0 without coverage), W phrases to include.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class BeamState:
    """Scores of a beam: live paths and finished hypotheses, best first.

    live_log_probs (R, K) and finished_scores (R, n) are -inf where there is none; slots (R,) is how many of the K paths
    a row may use.
    """

    live_log_probs: Tensor
    finished_scores: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Candidates:
    """The 2 K best continuations of each row, best first, all (R, 2 K).

    Each has the index of the path it extends, its token, the token's log-probability and the total of the whole path.
    Each path has one end symbol, so at least K of them do not end.
    """

    parent: Tensor
    token: Tensor
    log_prob: Tensor
    total: Tensor


@dataclass(frozen=True)
class BeamRules:
    """Constants of a search: length penalties, and how the beam shrinks.

    penalties (L + 2,) divide the log-probability of a path by its length; they `grow` with it or not. A `shrinking`
    beam loses a slot for each finished path.
    """

    penalties: Tensor
    grow: bool
    eos: int
    shrinking: bool = False


@dataclass(frozen=True)
class Expansion:
    """Result of a step: the new state, and the indices of its parts.

    live (R, K) are indices of candidates. finished (R, n) are indices into the n finished before followed by the first
    K candidates.
    """

    state: BeamState
    live: Tensor
    finished: Tensor


def expand(
    state: BeamState,
    candidates: Candidates,
    length: int | Tensor,
    rules: BeamRules,
    bonus: Tensor | None = None,
    done: Tensor | None = None,
) -> Expansion:
    """Expand a beam by one token; `length`, a number or (R,), counts the tokens of a path including the newest.

    Candidates that end are finished if they are among the first K (a beam of 1 is then greedy search), with `bonus` (R,
    K) added to their score; ties go to the older. The best K that do not end stay live. Rows that are `done` (R,) are
    unchanged.
    """
    size, kept = state.live_log_probs.size(1), state.finished_scores.size(1)
    ended, rank = candidates.token == rules.eos, torch.arange(size, device=state.slots.device)
    ending = ended[:, :size] & (rank < state.slots[:, None])  # (R, K)
    if done is not None:
        ending = ending & ~done[:, None]
    penalty = rules.penalties[length]
    scores = candidates.total[:, :size] / (penalty if penalty.dim() == 0 else penalty[:, None])
    scores = (scores if bonus is None else scores + bonus).masked_fill(~ending, -torch.inf)
    scores_of_all = torch.cat([state.finished_scores, scores.to(state.finished_scores.dtype)], dim=1)  # (R, n + K)
    finished = scores_of_all.argsort(dim=1, descending=True, stable=True)[:, :kept]

    slots = state.slots
    if rules.shrinking:
        slots = slots - (ending & (candidates.total[:, :size] > -torch.inf)).sum(1)
    live = first_unfinished(ended, size)
    log_probs = candidates.total.gather(1, live).masked_fill(rank >= slots[:, None], -torch.inf)
    if done is not None:
        log_probs = torch.where(done[:, None], state.live_log_probs, log_probs)
    return Expansion(BeamState(log_probs, scores_of_all.gather(1, finished), slots), live, finished)


def best_possible(state: BeamState, length: int | Tensor, longest: Tensor, rules: BeamRules) -> Tensor:
    """Upper bound (R,) of the scores that live paths can still reach, after `length` tokens.

    Log-probabilities only decrease. So no path will score more than its current total divided by the most favourable
    penalty: that of the `longest` (R,) path where penalties grow with the length, else the next one's.
    """
    return state.live_log_probs.amax(1) / rules.penalties[longest if rules.grow else length + 1]


def first_unfinished(ended: Tensor, count: int) -> Tensor:
    """Indices of the first `count` candidates that have not ended: (R, M) -> (R, count)."""
    return ended.to(torch.int8).argsort(dim=1, stable=True)[:, :count]


def greatest(totals: Tensor, count: int) -> Tensor:
    """Indices of the `count` greatest of each row in order, ties to the first: (R, M) -> (R, count).

    torch.topk breaks ties arbitrarily, and 16-bit logits often tie. Without its sign bit a negative float's bits order
    like its magnitude, so these bits above the index make an integer without ties.
    """
    keyed = totals.view(torch.int32).to(torch.int64)
    # In place: on a CPU fresh memory for each of these took longer than topk.
    keyed.bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(32)
    keyed.bitwise_or_(torch.arange(totals.shape[1], device=totals.device))
    return keyed.topk(count, largest=False).values & 0xFFFFFFFF


@dataclass(frozen=True)
class ConstraintState:
    """Progress of each path through its constraints: node (R, n) of the automaton, met (R, n, W) phrases."""

    node: Tensor
    met: Tensor


@dataclass(frozen=True)
class Paths:
    """Partial or finished translations of each row's sentence: tokens and token_log_probs (R, n, t), rank (R, n).

    `rank` is a log-probability for live paths and a score for finished ones, -inf where there is no path. Finished
    paths are shorter than t: they are read up to their end symbol. covered (R, n, S) is the attention that the source
    received; `constraints` is the progress of phrases to include.
    """

    tokens: Tensor
    token_log_probs: Tensor
    rank: Tensor
    covered: Tensor
    constraints: ConstraintState

    def take(self, index: Tensor) -> Paths:
        """Select paths of each row: index (R, m) -> (R, m, t)."""
        row = torch.arange(len(index), device=index.device)[:, None]
        return Paths(
            self.tokens[row, index],
            self.token_log_probs[row, index],
            self.rank[row, index],
            self.covered[row, index],
            ConstraintState(self.constraints.node[row, index], self.constraints.met[row, index]),
        )

    def append(self, token: Tensor, log_prob: Tensor, constraints: ConstraintState) -> Paths:
        """Append a token to each path, all (R, n); ranks are updated later."""
        tokens = torch.cat([self.tokens, token[..., None]], dim=2)
        token_log_probs = torch.cat([self.token_log_probs, log_prob[..., None]], dim=2)
        return Paths(tokens, token_log_probs, self.rank, self.covered, constraints)


@dataclass(frozen=True)
class BeamProgress:
    """The state of all rows still searched.

    sentence (R,) is their index in the batch, longest (R,) their limit, slots (R,) how many of the K paths they may
    use; K live paths and n finished paths of each.
    """

    sentence: Tensor
    longest: Tensor
    slots: Tensor
    live: Paths
    finished: Paths


def joined(finished: Paths, ends: Paths, eos: int) -> Paths:
    """Concatenate finished paths (R, n, t) and those that may end now (R, K, t + 1): (R, n + K, t + 1)."""
    return Paths(
        torch.cat([F.pad(finished.tokens, (0, 1), value=eos), ends.tokens], dim=1),
        torch.cat([F.pad(finished.token_log_probs, (0, 1)), ends.token_log_probs], dim=1),
        torch.cat([finished.rank, ends.rank], dim=1),
        torch.cat([finished.covered, ends.covered], dim=1),
        ConstraintState(
            torch.cat([finished.constraints.node, ends.constraints.node], dim=1),
            torch.cat([finished.constraints.met, ends.constraints.met], dim=1),
        ),
    )
