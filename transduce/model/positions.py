"""Where in the sequence a token stands (section 3.5).

Each scheme adds something to the embeddings x (B, T, D); `start` is the number of tokens read before, so that decoding
token by token sees the same positions as reading all at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.errors import ConfigError


def sinusoids(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same: interleaved, as printed."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10000 ** (even / d_model)  # (length, D / 2)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :d_model].float()


class SinusoidalPositions(nn.Module):
    """The paper's fixed waves. The table grows when a longer sequence comes; it is not saved."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(1024, d_model), persistent=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        end = start + x.size(1)
        if end > self.table.size(0):
            self.table = sinusoids(2 * end, x.size(2)).to(self.table)
        return x + self.table[start:end].to(x.dtype)


class LearnedPositions(nn.Module):
    """A vector learned for each of the first `longest` positions (section 3.5, Table 3 row E)."""

    def __init__(self, d_model: int, longest: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(longest, d_model))
        nn.init.normal_(self.vectors, std=d_model**-0.5)

    def forward(self, x: Tensor, start: int) -> Tensor:
        end = start + x.size(1)
        if end > self.vectors.size(0):
            raise ConfigError(
                f"positions.longest: a sequence of {end} tokens came, and positions are learned for"
                f" {self.vectors.size(0)}; split the text, or train with a larger 'longest'"
            )
        return x + self.vectors[start:end]


class NoPositions(nn.Module):
    """Order is invisible: an encoder without positions is permutation-equivariant."""

    def forward(self, x: Tensor, start: int) -> Tensor:
        return x


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed sines and cosines."""

    def build(self, d_model: int) -> nn.Module:
        return SinusoidalPositions(d_model)


@dataclass(frozen=True)
class Learned:
    """One learned vector a position."""

    longest: int = 512

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ConfigError(f"longest: expected at least 1, got {self.longest}")

    def build(self, d_model: int) -> nn.Module:
        return LearnedPositions(d_model, self.longest)


@dataclass(frozen=True)
class Unordered:
    """No positions at all."""

    def build(self, d_model: int) -> nn.Module:
        return NoPositions()


Positions = Sinusoidal | Learned | Unordered
