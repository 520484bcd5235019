"""Terms: what may be added to the forward pass of cross-entropy or R-Drop, and how their sums are added.

Shapes: B batch, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from transduce.objectives.base import ForwardOutput, Loss, ObjectiveContext
from transduce.objectives.distillation import Distillation
from transduce.objectives.guided import GuidedAlignment, GuidedAttention
from transduce.objectives.weighted import Added, Weighted, read_head


@dataclass(frozen=True)
class CTC(Weighted):
    """-log p(target) under the model's CTC head (Graves et al., 2006): the sum over all ways to space the tokens out.

    The end symbol is no part of it. A target with too few frames (see the head's `upsample`) adds nothing.
    """

    kind: ClassVar[str] = "ctc"
    head: ClassVar[str] = "ctc"
    weight: float = 0.3

    def build(self, tools: ObjectiveContext) -> Added:
        return ctc_loss


def ctc_loss(passed: ForwardOutput) -> Tensor:
    """The sum over sentences. The lengths go to the host, where torch wants them: one wait a batch on a GPU."""
    log_probs = read_head(passed, "ctc").log_softmax(-1)  # (B, S * upsample, V + 1)
    mask = passed.memory.mask
    frames = mask.sum(1) * (log_probs.size(1) // mask.size(1))
    tokens = (passed.batch.target_mask.sum(1) - 1).clamp(min=0)  # gold ends in eos, or the row holds no pair
    blank = log_probs.size(2) - 1
    return F.ctc_loss(
        log_probs.transpose(0, 1), passed.batch.gold, frames, tokens, blank, reduction="sum", zero_infinity=True
    )


@dataclass(frozen=True)
class Length(Weighted):
    """-log p(length of the target) under the model's length head, once a sentence, as if one more token were told."""

    kind: ClassVar[str] = "length"
    head: ClassVar[str] = "length"
    weight: float = 0.1

    def build(self, tools: ObjectiveContext) -> Added:
        return length_loss


def length_loss(passed: ForwardOutput) -> Tensor:
    """The sum over sentences; a target longer than the last class is of that class."""
    logits = read_head(passed, "length")  # (B, longest + 1)
    length = (passed.batch.target_mask.sum(1) - 1).clamp_max(logits.size(1) - 1)  # -1 in rows without a pair
    return F.cross_entropy(logits, length, reduction="sum", ignore_index=-1)


@dataclass(frozen=True)
class ZLoss(Weighted):
    """(log Z)^2 at every target token, Z the softmax's normaliser: keeps logits from drifting (PaLM, section 5)."""

    kind: ClassVar[str] = "z_loss"
    weight: float = 1e-4

    def build(self, tools: ObjectiveContext) -> Added:
        return z_loss


def z_loss(passed: ForwardOutput) -> Tensor:
    """The sum over target tokens."""
    squared = passed.logits.float().logsumexp(-1).square()  # (B, T)
    return squared.where(passed.batch.target_mask, squared.new_zeros(())).sum()


Term = GuidedAttention | GuidedAlignment | CTC | Length | ZLoss | Distillation


class Terms:
    """Terms that have been built, beside an objective."""

    def __init__(self, configs: Sequence[Term], tools: ObjectiveContext) -> None:
        self._terms = [(config, config.build(tools)) for config in configs]

    def trace(self, step: int) -> dict[str, Tensor] | None:
        """An empty trace for the pass to fill, if a term of this step wants one: attention then cannot be fused."""
        return {} if any(config.traced and config.active(step) for config, _ in self._terms) else None

    def add(self, loss: Loss, passed: ForwardOutput, step: int) -> Loss:
        """The loss with the terms of this step; each reports its own sum, before its weight."""
        total, metrics = loss.total, dict(loss.metrics)
        for number, (config, term) in enumerate(self._terms):
            if config.active(step):
                value = term(passed)
                total = total + config.weight * value
                name = config.kind
                metrics[name if name not in metrics else f"{name}_{number}"] = value.detach()
        return Loss(total, loss.count, metrics)
