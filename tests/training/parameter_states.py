"""Gradients, values and optimizer states of a few parameters, for tests of optimizers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def give_gradients(owners: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in owners:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def values(owners: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in owners]


def moments(optimizer: torch.optim.Optimizer, owners: list[nn.Parameter]) -> list[Tensor]:
    return [tensor.clone() for parameter in owners for tensor in optimizer.state[parameter].values()]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
