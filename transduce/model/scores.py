"""Attention scores of queries and keys: five score functions, and two ways to turn scores into weights.

Each score takes projected query (B, H, T, K) and key (B, H, S, K), and returns (B, H, T, S). All but the additive one
are dot products of prepared queries and keys (`prepare`), so that a fused kernel can compute them.
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
    """Dot product query . key times `scale`; None means 1 / sqrt(d_k), the paper's equation 1."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and keys whose dot product is the score."""
        return query, key

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = self.prepare(query, key)
        scale = query.size(-1) ** -0.5 if self.scale is None else self.scale
        return query @ key.transpose(-2, -1) * scale


class CosineScore(DotScore):
    """Cosine similarity times a learned scale per head, without which softmax would stay almost flat."""

    def __init__(self, heads: int) -> None:
        super().__init__(scale=1.0)
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        sharp = F.normalize(query, dim=-1) * self.log_scale.exp()
        return sharp.to(query.dtype), F.normalize(key, dim=-1)


class BilinearScore(DotScore):
    """Bilinear score query W key (Luong et al. 2015, "general"), one per head; scaled like equation 1."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(heads, width, width) * width**-0.5)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query @ self.matrix.to(query.dtype), key


class AdditiveScore(nn.Module):
    """Additive score v . tanh(query + key) (Bahdanau et al. 2015); their W and U are our projections."""

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
    """Scaled dot product q . k / sqrt(d_k) (the paper)."""

    def build(self, heads: int, width: int) -> nn.Module:
        return DotScore()


@dataclass(frozen=True)
class Dot:
    """Unscaled dot product: large values push softmax to where its gradient vanishes (section 3.2.1)."""

    def build(self, heads: int, width: int) -> nn.Module:
        return DotScore(scale=1.0)


@dataclass(frozen=True)
class Additive:
    """Additive score: a network of one hidden layer."""

    def build(self, heads: int, width: int) -> nn.Module:
        return AdditiveScore(heads, width)


@dataclass(frozen=True)
class Bilinear:
    """Bilinear score: a learned matrix between query and key."""

    def build(self, heads: int, width: int) -> nn.Module:
        return BilinearScore(heads, width)


@dataclass(frozen=True)
class Cosine:
    """Cosine similarity, sharpened by a learned factor."""

    def build(self, heads: int, width: int) -> nn.Module:
        return CosineScore(heads)


Score = ScaledDot | Dot | Additive | Bilinear | Cosine

ToWeights = Callable[[Tensor, Tensor | None], Tensor]  # scores (B, H, T, S), and the mask, broadcastable to it


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax weights. Masked scores are the lowest finite number, not -inf: a fully masked row gives no NaN."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def rectified(scores: Tensor, mask: Tensor | None) -> Tensor:
    """ReLU weights max(0, score) / number of visible keys (Wortsman et al. 2023 divide by the length with padding)."""
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
    """Softmax weights (the paper)."""

    def build(self) -> ToWeights:
        return softmax


@dataclass(frozen=True)
class Relu:
    """ReLU weights: negative scores are dropped, the rest divided by the number of visible keys."""

    def build(self) -> ToWeights:
        return rectified


Weights = Softmax | Relu
