"""Normalisation: over each token's width (LayerNorm, RMSNorm) or over all real tokens of a batch (BatchNorm).

Each takes x (B, T, D) and a mask (B, T), True at real tokens (None: all are), which only BatchNorm looks at. `of_sum`
is the norm of x + drop(y), on a GPU in one kernel: LayerNorm always, RMSNorm where no gradient is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as processes
from torch.nn import functional as F

from transduce.core.bounds import Bounds, check_bounds
from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels
from transduce.model.layers import Dropout, narrowed

EPSILON = 1e-5
NOTHING_DROPPED = Dropout(0.0)


class LayerNormOfToken(nn.LayerNorm):
    """Mean 0 and variance 1 over a token's width."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)

    def of_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        drop: Dropout = NOTHING_DROPPED,
        kernels: Kernels = None,
    ) -> Tensor:
        if kernels is not None:
            found: Tensor = kernels.normed_sum(x, y, self.weight, self.bias, self.eps)
            return found
        training = dispatch.residual_kernels(y) if self.training else None
        if training is not None:
            found = training.normed_sum(narrowed(x), y, self.weight, self.bias, drop.probability, self.eps)
            return found
        return self(x + drop(y), mask)  # type: ignore[no-any-return]


class RMSNormOfToken(nn.RMSNorm):
    """Mean square 1 over a token's width, the mean left where it is (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert self.weight is not None
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)

    def of_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        drop: Dropout = NOTHING_DROPPED,
        kernels: Kernels = None,
    ) -> Tensor:
        if kernels is None:
            return self(x + drop(y), mask)  # type: ignore[no-any-return]
        found: Tensor = kernels.normed_sum(x, y, self.weight, None, self.eps)
        return found


class BatchNormOverTokens(nn.Module):
    """Mean 0 and variance 1 of each of the D numbers over the real tokens of a batch (Ioffe and Szegedy 2015).

    In training the batch's own statistics are used and followed by running ones, which serve afterwards: one token
    alone has no variance. A batch's later words thus touch its earlier ones in training, which no other norm does.
    Where several processes have rows of one batch, the statistics are those of all its rows.
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

    def of_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        drop: Dropout = NOTHING_DROPPED,
        kernels: Kernels = None,
    ) -> Tensor:
        return self(x + drop(y), mask)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, variance = self._statistics(x, mask) if self.training else self._running()
        scale = self.weight * (variance + EPSILON).rsqrt()
        return (x * scale + (self.bias - mean * scale)).to(x.dtype)

    def _running(self) -> tuple[Tensor, Tensor]:
        return self.running_mean, self.running_variance

    def _statistics(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x.to(self.running_mean.dtype)  # sums over a batch want more than 16 bits
        real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        count = over_processes(real.sum()).clamp(min=1)
        real = real.unsqueeze(-1)  # (B, T, 1)
        mean = over_processes((x * real).sum((0, 1))) / count
        variance = over_processes(((x - mean).square() * real).sum((0, 1))) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)  # what torch.nn.BatchNorm1d keeps
            self.running_mean.lerp_(mean, self.momentum)
            self.running_variance.lerp_(unbiased, self.momentum)
        return mean, variance


def over_processes(part: Tensor) -> Tensor:
    """The sum over the processes that train together, with gradient; of one process, its own part."""
    if not processes.is_available() or not processes.is_initialized():
        return part
    whole: Tensor = _Summed.apply(part)  # type: ignore[no-untyped-call]
    return whole


class _Summed(torch.autograd.Function):
    """What a process adds reaches the loss of each, so that its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        whole = part.clone()
        processes.all_reduce(whole)
        return whole

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        whole = gradient.contiguous().clone()
        processes.all_reduce(whole)
        return whole


@dataclass(frozen=True)
class LayerNorm:
    """Over each token's width, with mean (the paper)."""

    def build(self, d_model: int) -> nn.Module:
        return LayerNormOfToken(d_model, eps=EPSILON)


@dataclass(frozen=True)
class RMSNorm:
    """Over each token's width, without mean."""

    kind: ClassVar[str] = "rms_norm"

    def build(self, d_model: int) -> nn.Module:
        return RMSNormOfToken(d_model, eps=1e-6)


@dataclass(frozen=True)
class BatchNorm:
    """Over the real tokens of a batch, each of the D numbers apart; running statistics when not training."""

    # share of the newest batch in the running statistics
    momentum: Annotated[float, Bounds(0, 1, above=True, expected="a number above 0 and at most 1")] = 0.1

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int) -> nn.Module:
        return BatchNormOverTokens(d_model, self.momentum)


Norm = LayerNorm | RMSNorm | BatchNorm
