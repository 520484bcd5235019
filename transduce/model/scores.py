"""How much a query cares for a key: five score functions, and two ways to turn scores into weights.

Each score takes query (B, H, T, K) and key (B, H, S, K), already projected, and gives (B, H, T, S). All but the
additive one are dot products of prepared queries and keys, so that a fused kernel can do the same (`prepare`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DotScore(nn.Module):
    """query . key times `scale`; None means 1 / sqrt(d_k), the paper's equation 1."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """What the dot product is taken of."""
        return query, key

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = self.prepare(query, key)
        scale = query.size(-1) ** -0.5 if self.scale is None else self.scale
        return query @ key.transpose(-2, -1) * scale


class CosineScore(DotScore):
    """The cosine of the angle, times a learned number for each head, without which softmax would stay almost flat."""

    def __init__(self, heads: int) -> None:
        super().__init__(scale=1.0)
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        sharp = F.normalize(query, dim=-1) * self.log_scale.exp()
        return sharp.to(query.dtype), F.normalize(key, dim=-1)


class BilinearScore(DotScore):
    """query W key (Luong et al. 2015, "general"), a matrix a head; scaled like equation 1, which they did not."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(heads, width, width) * width**-0.5)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query @ self.matrix.to(query.dtype), key


class AdditiveScore(nn.Module):
    """v . tanh(query + key) (Bahdanau et al. 2015); their W and U are the projections that made query and key."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(heads, 1, width) * width**-0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        both = torch.tanh(query.unsqueeze(3) + key.unsqueeze(2))  # (B, H, T, S, K)
        return torch.einsum("bhtsk,hok->bhts", both, self.vector.to(both.dtype))


class ScoreConfig(Protocol):
    """The config of a score function."""

    def build(self, heads: int, width: int) -> nn.Module:
        """A module from query (B, H, T, K) and key (B, H, S, K), K = `width`, to scores (B, H, T, S)."""
        ...


@dataclass(frozen=True)
class ScaledDot:
    """The paper's: dot product / sqrt(d_k)."""

    def build(self, heads: int, width: int) -> nn.Module:
        return DotScore()


@dataclass(frozen=True)
class Dot:
    """Unscaled: large products push softmax to where its gradient vanishes (section 3.2.1)."""

    def build(self, heads: int, width: int) -> nn.Module:
        return DotScore(scale=1.0)


@dataclass(frozen=True)
class Additive:
    """A small network of one hidden layer."""

    def build(self, heads: int, width: int) -> nn.Module:
        return AdditiveScore(heads, width)


@dataclass(frozen=True)
class Bilinear:
    """A learned matrix between query and key."""

    def build(self, heads: int, width: int) -> nn.Module:
        return BilinearScore(heads, width)


@dataclass(frozen=True)
class Cosine:
    """The angle alone, sharpened by a learned factor."""

    def build(self, heads: int, width: int) -> nn.Module:
        return CosineScore(heads)


Score = ScaledDot | Dot | Additive | Bilinear | Cosine

ToWeights = Callable[[Tensor, Tensor | None], Tensor]  # scores (B, H, T, S), and where to look, broadcastable to it


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Weights that sum to 1. The lowest finite number rather than -inf: a row with nothing to look at gives no NaN."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def rectified(scores: Tensor, mask: Tensor | None) -> Tensor:
    """max(0, score) / number of places in sight (Wortsman et al. 2023 divide by the length, padding and all)."""
    if mask is None:
        return scores.relu() / scores.size(-1)
    return scores.relu() * mask / mask.sum(-1, keepdim=True).clamp(min=1)


class WeightsConfig(Protocol):
    """The config of what turns scores into weights."""

    def build(self) -> ToWeights:
        """A function or module from scores (B, H, T, S) and a mask, or None, to weights of the same shape."""
        ...


@dataclass(frozen=True)
class Softmax:
    """Weights that sum to one (the paper)."""

    def build(self) -> ToWeights:
        return softmax


@dataclass(frozen=True)
class Relu:
    """Scores below zero are not looked at; the rest are divided by the number of places in sight."""

    def build(self) -> ToWeights:
        return rectified


Weights = Softmax | Relu
