"""One step of beam search as a pure function on tensors: who lives on, who is finished, when nobody can win any more.

The eager driver (beam.py) lets sentences leave and its tensors grow; the static one (static_search.py) masks those that
are done and writes in place; a kernel (kernels/decoding.py) and the C++ core do the same arithmetic in one piece.
All of them rank, penalise, finish and stop as is written here.
Shapes: R rows (a sentence, or one of its groups), K live paths of a row, n finished ones kept, L the longest path, V
vocabulary.

What a beam search holds of each sentence: live and finished paths, and how the best of them are told.

Shapes: R rows (one for each sentence still searched, or for each of its groups), K live paths, n finished ones, t
tokens so far, S source length (0 where no coverage is kept), W phrases to include.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class BeamState:
    """live_log_probs (R, K), the best path first, -inf where there is none; finished_scores (R, n), the best first,
    -inf where there is none; slots (R,), how many of the K paths are a row's own.
    """

    live_log_probs: Tensor
    finished_scores: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Candidates:
    """The 2 K best continuations of each row, the best first, all (R, 2 K): the path it goes on from, its token, the
    token's log-probability and that of the whole path. Each path has one end, so that K of them always go on.
    """

    parent: Tensor
    token: Tensor
    log_prob: Tensor
    total: Tensor


@dataclass(frozen=True)
class BeamRules:
    """What is the same at every step. penalties (L + 2,) is what the log-probability of a path is divided by, by its
    length; they `grow` with it or not. A `shrinking` beam gives up a slot for each path that is finished.
    """

    penalties: Tensor
    grow: bool
    eos: int
    shrinking: bool = False


@dataclass(frozen=True)
class Expansion:
    """What a step has found: the state after it, and where its parts come from.

    live (R, K) are places among the candidates. finished (R, n) are places in a row of the n that were finished before
    and then the first K candidates.
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
    """One token further: `length`, of one number or (R,), counts the tokens of a path with the newest.

    Candidates that end are finished if they are among the first K (a beam of 1 is then greedy search), with a score to
    which `bonus` (R, K) is added; of equals the older stay first. The best K that do not end live on. Rows that are
    `done` (R,) keep what they have.
    """
    size, kept = state.live_log_probs.size(1), state.finished_scores.size(1)
    ended, rank = candidates.token == rules.eos, torch.arange(size, device=state.slots.device)
    ending = ended[:, :size] & (rank < state.slots[:, None])  # (R, K)
    if done is not None:
        ending = ending & ~done[:, None]
    penalty = rules.penalties[length]
    scores = candidates.total[:, :size] / (penalty if penalty.dim() == 0 else penalty[:, None])
    scores = (scores if bonus is None else scores + bonus).masked_fill(~ending, -torch.inf)
    every = torch.cat([state.finished_scores, scores.to(state.finished_scores.dtype)], dim=1)  # (R, n + K)
    finished = every.argsort(dim=1, descending=True, stable=True)[:, :kept]

    slots = state.slots
    if rules.shrinking:
        slots = slots - (ending & (candidates.total[:, :size] > -torch.inf)).sum(1)
    live = first_unfinished(ended, size)
    log_probs = candidates.total.gather(1, live).masked_fill(rank >= slots[:, None], -torch.inf)
    if done is not None:
        log_probs = torch.where(done[:, None], state.live_log_probs, log_probs)
    return Expansion(BeamState(log_probs, every.gather(1, finished), slots), live, finished)


def best_possible(state: BeamState, length: int | Tensor, longest: Tensor, rules: BeamRules) -> Tensor:
    """The highest score (R,) that a live path can still come to, of which `length` tokens are written.

    Log-probabilities only fall. So none will score more than what it has now, divided by the penalty that flatters it
    most: that of the `longest` (R,) path where penalties grow with the length, else the next one's.
    """
    return state.live_log_probs.amax(1) / rules.penalties[longest if rules.grow else length + 1]


def first_unfinished(ended: Tensor, count: int) -> Tensor:
    """Where the first `count` candidates stand that have not ended: (R, M) -> (R, count)."""
    return ended.to(torch.int8).argsort(dim=1, stable=True)[:, :count]


def greatest(totals: Tensor, count: int) -> Tensor:
    """Where the `count` greatest of each row stand, in order; of equals the first: (R, M) -> (R, count).

    torch.topk takes any of several equals, and 16-bit logits often are equal. Without its sign a float's bits order
    as its size does, so these bits of a log-probability above its place make an integer without equals.
    """
    keyed = totals.view(torch.int32).to(torch.int64)
    # In place: on a CPU fresh memory for each of these took longer than topk.
    keyed.bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(32)
    keyed.bitwise_or_(torch.arange(totals.shape[1], device=totals.device))
    return keyed.topk(count, largest=False).values & 0xFFFFFFFF


@dataclass(frozen=True)
class ConstraintState:
    """How far each path is with what it must include: node (R, n) of the automaton, met (R, n, W) what is written."""

    node: Tensor
    met: Tensor


@dataclass(frozen=True)
class Paths:
    """Translations of each row's sentence, whole or in part: tokens and token_log_probs (R, n, t), rank (R, n).

    `rank` is a log-probability for live paths and a score for finished ones, -inf where there is no path. Finished
    paths are shorter than t: they are read as far as their end symbol. covered (R, n, S) is the attention that the
    source received; `standing` says how far the phrases to include are written.
    """

    tokens: Tensor
    token_log_probs: Tensor
    rank: Tensor
    covered: Tensor
    standing: ConstraintState

    def take(self, index: Tensor) -> Paths:
        """Other paths of the same rows: index (R, m) -> (R, m, t)."""
        row = torch.arange(len(index), device=index.device)[:, None]
        return Paths(
            self.tokens[row, index],
            self.token_log_probs[row, index],
            self.rank[row, index],
            self.covered[row, index],
            ConstraintState(self.standing.node[row, index], self.standing.met[row, index]),
        )

    def append(self, token: Tensor, log_prob: Tensor, standing: ConstraintState) -> Paths:
        """Each path one token longer, all (R, n); its rank is yet to come."""
        tokens = torch.cat([self.tokens, token[..., None]], dim=2)
        token_log_probs = torch.cat([self.token_log_probs, log_prob[..., None]], dim=2)
        return Paths(tokens, token_log_probs, self.rank, self.covered, standing)


@dataclass(frozen=True)
class BeamProgress:
    """All that is known of the rows still searched.

    sentence (R,) their place in the batch, longest (R,) their limit, slots (R,) how many of the K paths are theirs,
    live K paths and finished n paths of each.
    """

    sentence: Tensor
    longest: Tensor
    slots: Tensor
    live: Paths
    finished: Paths


def joined(finished: Paths, ends: Paths, eos: int) -> Paths:
    """Finished paths (R, n, t), and behind them those that may end now (R, K, t + 1): (R, n + K, t + 1)."""
    return Paths(
        torch.cat([F.pad(finished.tokens, (0, 1), value=eos), ends.tokens], dim=1),
        torch.cat([F.pad(finished.token_log_probs, (0, 1)), ends.token_log_probs], dim=1),
        torch.cat([finished.rank, ends.rank], dim=1),
        torch.cat([finished.covered, ends.covered], dim=1),
        ConstraintState(
            torch.cat([finished.standing.node, ends.standing.node], dim=1),
            torch.cat([finished.standing.met, ends.standing.met], dim=1),
        ),
    )
