"""R-Drop (Liang et al., 2021): two passes under different dropout must agree.

    total = sum over tokens of  CE_1 / 2 + CE_2 / 2 + alpha / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

The paper adds the two cross-entropies and weighs the symmetric KL by alpha / 2; dividing by two keeps the loss in the
unit of one pass, so that learning rates and logs mean the same as for plain cross-entropy. Terms are halved likewise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from transduce.data.batch import Batch
from transduce.errors import ConfigError
from transduce.model.contract import TrainableSeq2Seq, rows
from transduce.objectives.base import NO_CONTEXT, Loss, Objective, ObjectiveContext, forward
from transduce.objectives.cross_entropy import Smoothed
from transduce.objectives.terms import Terms


@dataclass(frozen=True)
class RDrop(Smoothed):
    """Smoothed cross-entropy and agreement between two dropout masks, weighted by `alpha`."""

    alpha: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"alpha: expected 0 or more, got {self.alpha}")

    def build(self, tools: ObjectiveContext = NO_CONTEXT) -> Objective:
        terms = Terms(self.terms, tools)

        def objective(model: TrainableSeq2Seq, batch: Batch, step: int) -> Loss:
            return self._loss(model, batch, step, terms)

        return objective

    def _loss(self, model: TrainableSeq2Seq, batch: Batch, step: int, terms: Terms) -> Loss:
        twice = rows(batch, torch.arange(len(batch.source), device=batch.source.device).repeat(2))
        passed = forward(model, twice, terms.trace(step))  # (2 B, T, V): each row a second time, under other dropout
        both = self.loss_of(passed, terms, step)
        first, second = passed.log_probs.chunk(2)
        difference = (first.exp() - second.exp()) * (first - second)  # both KL directions at once
        disagreement = difference.sum(-1).where(batch.target_mask, difference.new_zeros(())).sum()
        return Loss(
            total=both.total / 2 + self.alpha / 4 * disagreement,
            count=batch.target_mask.sum(),
            metrics={name: value / 2 for name, value in both.metrics.items()},
        )
