"""Masked prediction (CMLM, Ghazvininejad et al. 2019): a parallel decoder fills in the places that are hidden from it.

Shapes: B batch, C places of the canvas, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transduce.data.batch import Batch
from transduce.errors import ConfigError
from transduce.model.contract import UNDECIDED, TokenCanvasModel
from transduce.objectives.base import NO_CONTEXT, Loss, Objective, ObjectiveContext
from transduce.objectives.cross_entropy import smoothed_loss
from transduce.objectives.masking import Everything, Glancing, Uniform


@dataclass(frozen=True)
class MaskedPrediction:
    """Smoothed cross-entropy of the hidden places, and `length_weight` times that of the length, once a sentence.

    The count is that of the hidden places, so that reports are means over what had to be said.
    """

    needs: ClassVar[str] = "parallel"  # of a decoder (search/fit.py)

    label_smoothing: float = 0.1
    length_weight: float = 0.1
    masking: Uniform | Everything | Glancing = Uniform()

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing: expected at least 0 and below 1, got {self.label_smoothing}")
        if not 0 <= self.length_weight < math.inf:
            raise ConfigError(f"length_weight: expected 0 or more, got {self.length_weight}")

    def build(self, tools: ObjectiveContext = NO_CONTEXT) -> Objective:
        return self._loss

    def _loss(self, model: TokenCanvasModel, batch: Batch, step: int) -> Loss:
        memory = model.encode(batch.source, batch.source_mask)
        canvas = model.lay(memory, batch.gold, batch.target_mask)

        def wrong() -> Tensor:
            with torch.no_grad():
                guess = model.refine(canvas.gold.masked_fill(canvas.open, UNDECIDED), canvas.mask, memory)
            return guess.argmax(-1) != canvas.gold

        hidden = self.masking.masked(canvas.open, wrong, step)  # (B, C)
        logits = model.refine(canvas.gold.masked_fill(hidden, UNDECIDED), canvas.mask, memory)
        words = smoothed_loss(logits.float().log_softmax(-1), canvas.gold, hidden, self.label_smoothing)
        length = -canvas.log_prob.sum()
        metrics = {**words.metrics, "length": length.detach()}
        return Loss(words.total + self.length_weight * length, words.count, metrics)
