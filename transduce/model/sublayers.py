"""What surrounds attention in a block: the feed-forward network (section 3.3), residual and norm (section 3.1).

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.dropout import Dropout, dropout

Activation = Literal["relu", "gelu", "silu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, the same at every position (equation 2)."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation = "relu", inner_dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.inner_dropout = inner_dropout  # not in the paper, 0 by default

    def forward(self, x: Tensor) -> Tensor:
        inner = dropout(self.activation(self.inner(x)), self.inner_dropout, self.training)  # (B, T, d_ff)
        outer: Tensor = self.outer(inner)  # (B, T, D)
        return outer


class PostNormResidual(nn.Module):
    """LayerNorm(x + Sublayer(x)), as in the paper; dropout on the sublayer's output (section 5.4)."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        normed: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return normed


class PreNormResidual(nn.Module):
    """x + Sublayer(LayerNorm(x)): not the paper's, but steadier for deep stacks and large learning rates."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        summed: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return summed


@dataclass(frozen=True)
class PostNorm:
    """Norm after the sum (the paper)."""

    def build(self, d_model: int, dropout: float) -> nn.Module:
        return PostNormResidual(d_model, dropout)

    def final(self, d_model: int) -> nn.Module:
        """What the stack ends with: nothing, since each block's output is normed already."""
        return nn.Identity()


@dataclass(frozen=True)
class PreNorm:
    """Norm before the sublayer, and once more at the top of the stack."""

    def build(self, d_model: int, dropout: float) -> nn.Module:
        return PreNormResidual(d_model, dropout)

    def final(self, d_model: int) -> nn.Module:
        return nn.LayerNorm(d_model)


Residual = PostNorm | PreNorm
