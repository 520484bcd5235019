"""Cross-entropy with label smoothing (section 5.4), summed over target tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from transduce.data.batch import Batch
from transduce.errors import ConfigError
from transduce.model.contract import Stepwise
from transduce.objectives.base import BARE, Loss, Objective, Tools, teacher_force


@dataclass(frozen=True)
class CrossEntropy:
    """-log p(gold), smoothed: the gold token gets weight 1 - e + e / V and every other e / V (e = label_smoothing).

    V counts the whole vocabulary, padding included, as in `torch.nn.functional.cross_entropy`.
    """

    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing: expected a number from 0 up to 1, got {self.label_smoothing}")

    def build(self, tools: Tools = BARE) -> Objective:
        return self._loss

    def _loss(self, model: Stepwise, batch: Batch, step: int) -> Loss:
        log_probs = teacher_force(model, batch).float().log_softmax(-1)
        return smoothed_loss(log_probs, batch.gold, batch.target_mask, self.label_smoothing)


def smoothed_loss(log_probs: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> Loss:
    """log_probs (B, T, V), gold and mask (B, T). The metric `nll` is the unsmoothed sum."""
    nll = -log_probs.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # (B, T)
    smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(-1) if smoothing else nll
    nothing = nll.new_zeros(())
    return Loss(
        total=smoothed.where(mask, nothing).sum(),
        count=mask.sum(),
        metrics={"nll": nll.detach().where(mask, nothing).sum()},
    )
