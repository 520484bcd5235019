"""Linear maps and dropout (section 5.4); kernels/dispatch.py has faster ways of both for the device at hand.

Shapes: N tokens, I input features, O output features.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels


class Linear(nn.Linear):
    """Linear map x W^T + b, with optional ReLU: (..., I) -> (..., O)."""

    def forward(self, x: Tensor, relu: bool = False, kernels: Kernels = None) -> Tensor:
        return linear(x, self.weight, self.bias, relu, kernels)


def linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False, kernels: Kernels = None) -> Tensor:
    """Linear map of x (..., I) by weight (O, I) and bias (O,), with optional ReLU: (..., O)."""
    y = dispatch.fused_linear(x, weight, bias, relu, kernels)
    if y is None:
        y = F.linear(x, weight, bias)
        y = F.relu(y) if relu else y
    return y


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout: set each number to 0 with `probability` and scale up the rest, like F.dropout."""
    if not training or probability == 0:
        return x
    dropped = dispatch.fast_dropout(x, probability)
    return F.dropout(x, probability) if dropped is None else dropped


class Dropout(nn.Module):
    """Module form of `dropout`."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.probability, self.training)
