"""What every term has: a weight, a last step, and what it needs of the model.

A term adds to the one forward pass of an objective and reads what that pass left. It gives a sum over the batch in the
objective's unit, target tokens, so that its weight means the same however a batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from transduce.errors import ConfigError
from transduce.model.contract import HasHeads
from transduce.model.seq2seq import Model
from transduce.objectives.base import ForwardOutput

Added = Callable[[ForwardOutput], Tensor]


@dataclass(frozen=True)
class Weighted:
    """`weight` multiplies the term's sum; `until` is the last step that has the term, 0 for all steps."""

    weight: float = 1.0
    until: int = 0
    kind: ClassVar[str]  # the term's name in configs and reports
    traced: ClassVar[bool] = False  # whether the term reads a trace of the decoder
    head: ClassVar[str] = ""  # the kind of the model's head that the term trains

    def __post_init__(self) -> None:
        check_weight(self.weight)
        if self.until < 0:
            raise ConfigError(f"until: expected a step, or 0 for all of them, got {self.until}")

    def check(self, model: Model) -> None:
        """Refuse a model that lacks what the term needs."""
        kinds = [head.kind for head in model.heads]
        if self.head and self.head not in kinds:
            raise ConfigError(
                f"kind: this term trains a head that the model has not; set model.heads={[*kinds, self.head]}"
            )

    def active(self, step: int) -> bool:
        """`step` counts the updates already made."""
        return not self.until or step < self.until


def check_weight(weight: float) -> None:
    """Weights are not negative; 0 takes part in a comparison."""
    if not 0 <= weight < math.inf:
        raise ConfigError(f"weight: expected 0 or more, got {weight}")


def read_head(passed: ForwardOutput, kind: str) -> Tensor:
    """The logits that the model's head of this kind gives for the memory, in single precision."""
    return cast("HasHeads", passed.model).heads[kind](passed.memory).float()
