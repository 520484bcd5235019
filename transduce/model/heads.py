"""Outputs of a model beside its decoder's: what an objective trains besides, saved with the model.

A head reads the encoder's top states: `model.heads["ctc"](memory)`. Its weights are drawn after all others, so that a
head changes no other weight of a new model. Shapes: B batch, S source length, D d_model, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from transduce.errors import ConfigError
from transduce.model.contract import Memory
from transduce.sizes import FEW, PLACES, check_most


@dataclass(frozen=True)
class CTCHead:
    """Each source state is split into `upsample` frames (Libovicky and Helcl, 2018); each says a token or nothing.

    CTC needs a frame for every target token, and one more between two that are the same.
    """

    kind: ClassVar[str] = "ctc"
    upsample: int = 2

    def __post_init__(self) -> None:
        if self.upsample < 1:
            raise ConfigError(f"upsample: expected at least 1, got {self.upsample}")
        check_most(self, FEW, "upsample")

    def build(self, d_model: int, vocabulary: int) -> nn.Module:
        return CTCHeadOutput(d_model, vocabulary, self.upsample)


@dataclass(frozen=True)
class LengthHead:
    """Which length the target has, by a linear classifier on the mean of the source states.

    Class n says n tokens, the end symbol not counted; the last class, `longest`, says that many or more.
    """

    kind: ClassVar[str] = "length"
    longest: int = 256

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ConfigError(f"longest: expected at least 1, got {self.longest}")
        check_most(self, PLACES, "longest")

    def build(self, d_model: int, vocabulary: int) -> nn.Module:
        return LengthHeadOutput(d_model, self.longest)


Head = CTCHead | LengthHead


def check_heads(heads: tuple[Head, ...]) -> None:
    """A head is found by its kind, so there is one of each at most."""
    kinds = [head.kind for head in heads]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"heads: expected each kind at most once, got {', '.join(kinds)}")


class CTCHeadOutput(nn.Module):
    """Logits (B, S * upsample, V + 1) of the memory; the class after the last token, V, is CTC's blank."""

    def __init__(self, d_model: int, vocabulary: int, upsample: int) -> None:
        super().__init__()
        self.upsample = upsample
        self.split = nn.Linear(d_model, upsample * d_model)
        self.output = nn.Linear(d_model, vocabulary + 1)

    def stacked(self) -> dict[Tensor, int]:
        """The map to each frame of a state."""
        return {self.split.weight: self.upsample}

    def forward(self, memory: Memory) -> Tensor:
        states = memory.layers[-1]
        frames = self.split(states).view(states.size(0), -1, states.size(2))  # (B, S * upsample, D)
        logits: Tensor = self.output(frames)
        return logits


class LengthHeadOutput(nn.Module):
    """Logits (B, longest + 1) of the target's length."""

    def __init__(self, d_model: int, longest: int) -> None:
        super().__init__()
        self.output = nn.Linear(d_model, longest + 1)

    def forward(self, memory: Memory) -> Tensor:
        states, real = memory.layers[-1], memory.mask.unsqueeze(-1)
        mean = states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp_min(1)  # (B, D)
        logits: Tensor = self.output(mean)
        return logits
