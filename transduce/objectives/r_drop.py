"""R-Drop (Liang et al., 2021): two passes under different dropout must agree.

    total = sum over tokens of  CE_1 / 2 + CE_2 / 2 + alpha / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

The paper adds the two cross-entropies and weighs the symmetric KL by alpha / 2; dividing by two keeps the loss in the
unit of one pass, so that learning rates and logs mean the same as for plain cross-entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from transduce.data.batch import Batch
from transduce.errors import ConfigError
from transduce.model.contract import Stepwise
from transduce.objectives.base import BARE, Loss, Objective, Tools, teacher_force
from transduce.objectives.cross_entropy import smoothed_loss


@dataclass(frozen=True)
class RDrop:
    """Smoothed cross-entropy and agreement between two dropout masks, weighted by `alpha`."""

    label_smoothing: float = 0.1
    alpha: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing: expected a number from 0 up to 1, got {self.label_smoothing}")
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"alpha: expected 0 or more, got {self.alpha}")

    def build(self, tools: Tools = BARE) -> Objective:
        return self._loss

    def _loss(self, model: Stepwise, batch: Batch, step: int) -> Loss:
        twice = Batch(*(torch.cat((t, t)) for t in batch.tensors()))
        # (2 B, T, V): each row a second time, under other dropout
        log_probs = teacher_force(model, twice).float().log_softmax(-1)
        both = smoothed_loss(log_probs, twice.gold, twice.target_mask, self.label_smoothing)
        first, second = log_probs.chunk(2)
        difference = (first.exp() - second.exp()) * (first - second)  # both KL directions at once
        disagreement = difference.sum(-1).where(batch.target_mask, difference.new_zeros(())).sum()
        return Loss(
            total=both.total / 2 + self.alpha / 4 * disagreement,
            count=batch.target_mask.sum(),
            metrics={name: value / 2 for name, value in both.metrics.items()},
        )
