"""The layers of the paper's Table 1, the real ones of transduce/model, each as a function from (B, n, d) to (B, n, d).

What is counted and timed is a layer's own work, as in Table 1: for attention equation 1 without the projections around
it, which are O(n d^2) for every kind of layer and have a row of their own.
Shapes: B batch, n length, d width, H heads of 64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.attention import Attention, AttentionMask, split
from transduce.model.convolutional import GatedConvolution
from transduce.model.recurrent import Carried, Recurrence

HEAD = 64  # the width of a head in the paper's models; the number of heads grows with d


@dataclass(frozen=True)
class Kind:
    """A row of Table 1: what the paper says of it, and how to make the real layer for a width.

    `over_length` and `over_width` are the powers of n and d in its cost, None where the paper gives no single one.
    `path` is how many layers, or steps of a recurrence, lie between the first and the last of n places.
    """

    name: str
    cost: str
    over_length: int
    over_width: int | None
    path: Callable[[int], int]
    build: Callable[[int], nn.Module]
    stepwise: bool = False  # goes from place to place inside one layer


class EquationOne(nn.Module):
    """Attention between the places of x, its own queries, keys and values, in heads."""

    def __init__(self, d_model: int, window: int = 0) -> None:
        super().__init__()
        self.attention = Attention(max(1, d_model // HEAD)).build(d_model)
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        heads = split(x, self.attention.width)
        found = self.attention.heads(heads, heads, heads, AttentionMask(window=self.window))
        return found.transpose(1, 2).flatten(2)


class Projected(nn.Module):
    """The whole layer: queries, keys, values and output are linear maps."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.attention = Attention(max(1, d_model // HEAD)).build(d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention.attend(*self.attention.project_qkv(x))


class Recurrent(nn.Module):
    """h_t = tanh(U x_t + W h_{t-1})."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.cells = Recurrence("elman", d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(x)
        return states  # type: ignore[no-any-return]

    def step(self, x: Tensor, carried: Carried | None) -> tuple[Tensor, Carried]:
        """One place (B, 1, d) further."""
        return self.cells(x, carried)  # type: ignore[no-any-return]


class Convolutional(nn.Module):
    """k neighbours, as many on the left as on the right."""

    def __init__(self, d_model: int, kernel: int, separable: bool) -> None:
        super().__init__()
        self.convolution = GatedConvolution(d_model, kernel, 0.0, separable)
        self.beside = kernel // 2

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.convolution(F.pad(x, (0, 0, self.beside, self.beside)))
        return out


def kinds(window: int, kernel: int) -> tuple[Kind, ...]:
    """The rows of Table 1 in its order, then separable convolution, and attention with its projections."""

    def hops(reach: int) -> Callable[[int], int]:
        return lambda n: -(-(n - 1) // reach)  # layers until the first place knows of the last, rounded up

    def convolution(name: str, cost: str, separable: bool) -> Kind:
        return Kind(
            f"{name}, k = {kernel}", cost, 1, 2, hops(kernel // 2), lambda d: Convolutional(d, kernel, separable)
        )

    return (
        Kind("self-attention", "n² d", 2, 1, lambda n: 1, EquationOne),
        Kind("recurrent", "n d²", 1, 2, lambda n: n, Recurrent, stepwise=True),
        convolution("convolutional", "k n d²", separable=False),
        Kind(f"restricted, r = {2 * window + 1}", "r n d", 1, 1, hops(window), lambda d: EquationOne(d, window)),
        convolution("separable", "k n d + n d²", separable=True),
        Kind("self-attention, projected", "n² d + n d²", 2, None, lambda n: 1, Projected),
    )


def input_of(length: int, width: int, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random vectors (B, n, d) that gradients are wanted of."""
    return torch.randn(batch, length, width, device=device, dtype=dtype).requires_grad_()
