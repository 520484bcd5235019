"""Normalisation: over each token's features (LayerNorm, RMSNorm) or over all real tokens of a batch (BatchNorm).

Each takes x (B, T, D) and a mask (B, T), True at real tokens (None: all), which only BatchNorm uses. `of_sum` is the
norm of x + dropout(y), on a GPU in one kernel: LayerNorm always, RMSNorm where no gradient is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as processes
from torch.nn import functional as F

from transduce.core.bounds import Bounds, check_bounds
from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels
from transduce.model.layers import Dropout

EPSILON = 1e-5
NO_DROPOUT = Dropout(0.0)


class TokenNorm(nn.Module):
    """Base of norms that define only `forward(x, mask)`, from x (B, T, D) to the same shape."""

    def of_sum(
        self, x: Tensor, y: Tensor, mask: Tensor | None = None, drop: Dropout = NO_DROPOUT, kernels: Kernels = None
    ) -> Tensor:
        return self(x + drop(y), mask)  # type: ignore[no-any-return]


class LayerNormOfToken(nn.LayerNorm):
    """LayerNorm: mean 0 and variance 1 over a token's features."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)

    def of_sum(
        self, x: Tensor, y: Tensor, mask: Tensor | None = None, drop: Dropout = NO_DROPOUT, kernels: Kernels = None
    ) -> Tensor:
        if kernels is not None:
            normed: Tensor = kernels.normed_sum(x, y, self.weight, self.bias, self.eps)
            return normed
        training = dispatch.residual_kernels(y) if self.training else None
        if training is not None:
            normed = training.normed_sum(
                dispatch.to_autocast_dtype(x), y, self.weight, self.bias, drop.probability, self.eps
            )
            return normed
        return self(x + drop(y), mask)  # type: ignore[no-any-return]


class RMSNormOfToken(nn.RMSNorm):
    """RMSNorm: mean square 1 over a token's features, without centring (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert self.weight is not None
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)

    def of_sum(
        self, x: Tensor, y: Tensor, mask: Tensor | None = None, drop: Dropout = NO_DROPOUT, kernels: Kernels = None
    ) -> Tensor:
        if kernels is None:
            return self(x + drop(y), mask)  # type: ignore[no-any-return]
        normed: Tensor = kernels.normed_sum(x, y, self.weight, None, self.eps)
        return normed


class BatchNormOverTokens(TokenNorm):
    """BatchNorm: mean 0 and variance 1 of each feature over the real tokens of a batch (Ioffe and Szegedy 2015).

    Training uses the batch's own statistics and updates running ones, which are used in evaluation: a single token has
    no variance. In training a batch's later words thus affect its earlier ones, as with no other norm here. Where
    several processes have rows of one batch, the statistics are those of all its rows.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, d_model: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_variance", torch.ones(d_model))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, variance = self._statistics(x, mask) if self.training else self._running()
        scale = self.weight * (variance + EPSILON).rsqrt()
        return (x * scale + (self.bias - mean * scale)).to(x.dtype)

    def _running(self) -> tuple[Tensor, Tensor]:
        return self.running_mean, self.running_variance

    def _statistics(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x.to(self.running_mean.dtype)  # sums over a batch need more than 16 bits
        real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        count = over_processes(real.sum()).clamp(min=1)
        real = real.unsqueeze(-1)  # (B, T, 1)
        mean = over_processes((x * real).sum((0, 1))) / count
        variance = over_processes(((x - mean).square() * real).sum((0, 1))) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)  # as torch.nn.BatchNorm1d keeps it
            self.running_mean.lerp_(mean, self.momentum)
            self.running_variance.lerp_(unbiased, self.momentum)
        return mean, variance


def over_processes(part: Tensor) -> Tensor:
    """All-reduce sum over the training processes, with gradient; the identity for a single process."""
    if not processes.is_available() or not processes.is_initialized():
        return part
    total: Tensor = _Summed.apply(part)  # type: ignore[no-untyped-call]
    return total


class _Summed(torch.autograd.Function):
    """All-reduce sum whose backward pass sums the gradients of all processes."""

    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        total = part.clone()
        processes.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        processes.all_reduce(total)
        return total


class NormConfig(Protocol):
    """Config of a norm."""

    def build(self, d_model: int) -> nn.Module:
        """Build a module with the `forward` and `of_sum` of `TokenNorm`."""
        ...


@dataclass(frozen=True)
class LayerNorm:
    """Over each token's features, with mean (the paper)."""

    def build(self, d_model: int) -> nn.Module:
        return LayerNormOfToken(d_model, eps=EPSILON)


@dataclass(frozen=True)
class RMSNorm:
    """Over each token's features, without mean."""

    kind: ClassVar[str] = "rms_norm"

    def build(self, d_model: int) -> nn.Module:
        return RMSNormOfToken(d_model, eps=1e-6)


@dataclass(frozen=True)
class BatchNorm:
    """Over the real tokens of a batch, per feature; running statistics in evaluation."""

    # weight of the newest batch in the running statistics
    momentum: Annotated[float, Bounds(0, 1, above=True, expected="a number above 0 and at most 1")] = 0.1

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int) -> nn.Module:
        return BatchNormOverTokens(d_model, self.momentum)


Norm = LayerNorm | RMSNorm | BatchNorm
