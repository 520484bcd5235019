"""Sublayers around attention: the feed-forward network (section 3.3), residual and norm (section 3.1).

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels
from transduce.model.layers import Dropout, Linear, dropout
from transduce.model.norms import Norm, NormConfig

Activation = Literal["relu", "gelu", "silu", "swiglu", "geglu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}
GATED = ("swiglu", "geglu")
Sublayer = Callable[[Tensor], Tensor]


class ActivationConfig(Protocol):
    """Config of an activation."""

    def build(self, d_ff: int) -> Callable[[Tensor], Tensor]:
        """Build a function or module from (B, T, d_ff) to the same shape, applied to each position."""
        ...


class FeedForward(nn.Module):
    """Position-wise feed-forward network max(0, x W1 + b1) W2 + b2 (equation 2).

    Gated variants (Shazeer 2020) multiply the activation by a second inner map: half as many matrices more, so for
    equal parameters d_ff must be two thirds as wide.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation | ActivationConfig = "relu", inner_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.gate = Linear(d_model, d_ff) if activation in GATED else None
        self.outer = Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation.build(d_ff)
        self.inner_dropout = inner_dropout  # not in the paper, default 0

    def forward(self, x: Tensor, kernels: Kernels = None) -> Tensor:
        if self.activation is F.relu:
            inner: Tensor = self.inner(x, relu=True, kernels=kernels)  # (B, T, d_ff)
        else:
            inner = self.activation(self.inner(x, kernels=kernels))
        if self.gate is not None:
            inner = inner * self.gate(x, kernels=kernels)
        dropped = dropout(inner, self.inner_dropout, self.training)
        outer: Tensor = self.outer(dropped, kernels=kernels)  # (B, T, D)
        return outer


class FeedForwardConfig(Protocol):
    """Config of the feed-forward network of each layer."""

    def build(
        self, d_model: int, d_ff: int, activation: Activation | ActivationConfig, inner_dropout: float
    ) -> nn.Module:
        """Build a module with `forward(x, kernels)` from x (B, T, D) to (B, T, D); `kernels` may be None."""
        ...


@dataclass(frozen=True)
class PositionWise:
    """Two linear maps with an activation between them (the paper)."""

    def build(
        self, d_model: int, d_ff: int, activation: Activation | ActivationConfig, inner_dropout: float
    ) -> nn.Module:
        return FeedForward(d_model, d_ff, activation, inner_dropout)


class PostNormResidual(nn.Module):
    """LayerNorm(x + Sublayer(x)), as in the paper; dropout on the sublayer's output (section 5.4)."""

    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer, mask: Tensor | None = None, kernels: Kernels = None) -> Tensor:
        normed: Tensor = self.norm.of_sum(x, sublayer(dispatch.to_autocast_dtype(x)), mask, self.dropout, kernels)  # type: ignore[operator]
        return normed


class PreNormResidual(nn.Module):
    """x + Sublayer(LayerNorm(x)): not the paper's, but more stable for deep stacks and large learning rates."""

    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer, mask: Tensor | None = None, kernels: Kernels = None) -> Tensor:
        summed: Tensor = x + self.dropout(sublayer(dispatch.to_autocast_dtype(self.norm(x, mask))))
        return summed


class NoNorm(nn.Module):
    """The identity, where outputs are already normed."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


class ResidualConfig(Protocol):
    """Config of the residual connection around each sublayer."""

    def build(self, d_model: int, dropout: float, norm: Norm | NormConfig) -> nn.Module:
        """Build a module with `forward(x, sublayer, mask, kernels)`: x (B, T, D) plus sublayer(x), with a norm."""
        ...

    def final(self, d_model: int, norm: Norm | NormConfig) -> nn.Module:
        """Build the final norm of the stack: a module with `forward(x, mask)`, such as `NoNorm`."""
        ...


@dataclass(frozen=True)
class PostNorm:
    """Post-norm: LayerNorm after the residual sum (the paper)."""

    def build(self, d_model: int, dropout: float, norm: Norm | NormConfig) -> nn.Module:
        return PostNormResidual(norm.build(d_model), dropout)

    def final(self, d_model: int, norm: Norm | NormConfig) -> nn.Module:
        """The final norm of the stack: none, since each layer's output is already normed."""
        return NoNorm()


@dataclass(frozen=True)
class PreNorm:
    """Pre-norm: LayerNorm before the sublayer, and once more at the top of the stack."""

    def build(self, d_model: int, dropout: float, norm: Norm | NormConfig) -> nn.Module:
        return PreNormResidual(norm.build(d_model), dropout)

    def final(self, d_model: int, norm: Norm | NormConfig) -> nn.Module:
        return norm.build(d_model)


Residual = PostNorm | PreNorm
