"""What a beam search holds of each sentence: live and finished paths, and how the best of them are told.

Shapes: R rows (one for each sentence still searched, or for each of its groups), K live paths, n finished ones, t
tokens so far, S source length (0 where no coverage is kept), W phrases to include.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


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
