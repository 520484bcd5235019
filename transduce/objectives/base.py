"""What the training loop knows of an objective: a sum, what to divide it by, and sums to report.

Only the loop divides, once, after adding up micro-batches and processes: the mean of means is not the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from transduce.data.batch import Batch
from transduce.model.contract import Stepwise


@dataclass(frozen=True)
class Loss:
    """`total` is a differentiable sum, `count` its divisor (target tokens); `metrics` are detached sums."""

    total: Tensor
    count: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """Owns the forward pass: the loop never sees logits. `step` is the number of updates made so far."""

    def __call__(self, model: Stepwise, batch: Batch, step: int) -> Loss: ...


def teacher_force(model: Stepwise, batch: Batch) -> Tensor:
    """Logits (B, T, V) for every target position at once, the decoder reading the right answer shifted by one."""
    memory = model.encode(batch.source, batch.source_mask)
    logits, _ = model.advance(batch.inputs, model.start(memory))
    return logits


class Step(nn.Module):
    """Model and objective as one module: what distributed training wraps, so that every gradient is seen."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, step: int) -> Loss:
        return self.objective(self.model, batch, step)  # type: ignore[arg-type]
