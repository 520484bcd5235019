"""Word-level distillation (Hinton et al., 2015; Kim and Rush, 2016, section 3.1): agree with a teacher at each token.

    temperature^2 * KL(teacher || student), both softened by the temperature, at each target token

The square keeps the gradient's size as the temperature grows. The papers mix, (1 - a) CE + a KD; here the term's weight
stands beside the objective's own, so that `weight = a` and `objective.weight = 1 - a` are theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import ConfigError
from transduce.model.contract import Autoregressive
from transduce.objectives.base import ForwardOutput, ObjectiveContext
from transduce.objectives.weighted import Added, Weighted


@dataclass(frozen=True)
class Distillation(Weighted):
    """`teacher` is a run folder; its tokenizer must be the student's own."""

    kind: ClassVar[str] = "distillation"
    teacher: str = ""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teacher:
            raise ConfigError("teacher: expected the run folder of a trained model, such as runs/teacher, got ''")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature: expected a number above 0, got {self.temperature}")

    def build(self, tools: ObjectiveContext) -> Added:
        teacher = tools.teacher(self.teacher)
        return lambda passed: self._loss(passed, teacher)

    def _loss(self, passed: ForwardOutput, teacher: Autoregressive) -> Tensor:
        batch = passed.batch
        with torch.no_grad():
            memory = teacher.encode(batch.source, batch.source_mask)
            logits, _ = teacher.advance(passed.inputs, teacher.start(memory), mask=batch.target_mask)
            wanted = (logits.float() / self.temperature).log_softmax(-1)  # (B, T, V)
        own = passed.log_probs
        if self.temperature != 1:
            own = (own / self.temperature).log_softmax(-1)
        apart = F.kl_div(own, wanted, reduction="none", log_target=True).sum(-1)  # (B, T)
        return self.temperature**2 * apart.where(batch.target_mask, apart.new_zeros(())).sum()
