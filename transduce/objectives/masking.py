"""Which places of a canvas a parallel decoder has to write in training; the others hold the right answer.

Shapes: B batch, C places of the canvas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.errors import ConfigError


@dataclass(frozen=True)
class Uniform:
    """A number drawn evenly from 1 to all, anywhere (Ghazvininejad et al. 2019): for a search that refines."""

    def masked(self, places: Tensor, wrong: Callable[[], Tensor], step: int) -> Tensor:
        """Of `places` (B, C) those to be written; `wrong` (B, C) tells where a first pass errs, if it is asked."""
        count = places.sum(1)
        drawn = (torch.rand(len(count), device=count.device) * count).long() + 1  # 1 .. count
        return draw(places, drawn)


@dataclass(frozen=True)
class Everything:
    """All of them (Gu et al. 2018): for a search of one pass."""

    def masked(self, places: Tensor, wrong: Callable[[], Tensor], step: int) -> Tensor:
        return places


@dataclass(frozen=True)
class Glancing:
    """All but a share of those that a first pass gets wrong, as many anywhere (GLAT, Qian et al. 2021).

    For a search of one pass: what is told helps with what is not, and less is told the more the model knows. The share
    falls in a line from `first` to `last` within `steps` steps.
    """

    first: float = 0.5
    last: float = 0.3
    steps: int = 50_000

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: expected a share from 0 to 1, got {getattr(self, name)}")
        if self.steps < 1:
            raise ConfigError(f"steps: expected at least 1, got {self.steps}")

    def masked(self, places: Tensor, wrong: Callable[[], Tensor], step: int) -> Tensor:
        return places & ~self.revealed(wrong() & places, places, step)

    def revealed(self, wrong: Tensor, among: Tensor, step: int) -> Tensor:
        """The places (B, C) to give away: as many as the share of `wrong` (B, C), any of `among` (B, C)."""
        share = self.first + (self.last - self.first) * min(1.0, step / self.steps)
        return draw(among, (wrong.sum(1) * share).long())


def draw(among: Tensor, count: Tensor) -> Tensor:
    """`count` (B,) places a row, chosen evenly among those that are True (B, C)."""
    chance = torch.rand(among.shape, device=among.device).masked_fill(~among, 2.0)
    return (chance.argsort(dim=1).argsort(dim=1) < count.unsqueeze(1)) & among
