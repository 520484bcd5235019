"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal before they are added to the weights.

Matrices are multiplied, so what counts is what an update does to every direction; all its singular values become
about 1. Embeddings, biases and norms are no such maps and get AdamW. torch.optim.Muon does the same one matrix at a
time and cannot hold still on a gradient that is not finite; here matrices of one shape are done together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that lifts small singular values fastest
ROUNDS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices (N, rows, columns) with the same singular vectors and singular values near 1 (0.7 to 1.2)."""
    a, b, c = COEFFICIENTS
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    made: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return made


class MuonWithAdam(torch.optim.Optimizer):
    """Muon for `matrices`, AdamW for `others`, at one rate.

    An update of Muon is scaled by 0.2 sqrt(larger side), the size that Adam's updates usually have (Liu et al. 2025),
    so that a rate means the same for both. `grad_scale` and `found_inf` are set and read as fused Adam's.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        momentum: float,
        betas: tuple[float, float],
        epsilon: float,
        weight_decay: float,
    ) -> None:
        others = list(others)
        super().__init__([{"params": list(matrices)}, {"params": others}], {"lr": 0.0})
        self.momentum, self.weight_decay = momentum, weight_decay
        self.adam = torch.optim.AdamW(others, lr=0.0, betas=betas, eps=epsilon, weight_decay=0.0, fused=True)
        self.adam.state = self.state  # one place for what a checkpoint keeps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of all; nothing waits for the device."""
        matrices, others = self.param_groups
        self.adam.param_groups[0]["lr"] = others["lr"]
        self.adam.grad_scale, self.adam.found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in matrices["params"]:
            if parameter.grad is not None:
                alike[parameter.shape].append(parameter)
        for shape, parameters in alike.items():
            self._move(parameters, matrices["lr"], 0.2 * max(shape) ** 0.5)

    def _move(self, parameters: list[nn.Parameter], rate: float, size: float) -> None:
        """Nesterov momentum, made orthogonal; where `found_inf` is set neither momentum nor weights change."""
        gradient = torch.stack([p.grad for p in parameters if p.grad is not None])  # (N, rows, columns)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        stored = [self._momentum(p) for p in parameters]
        before = torch.stack(stored)
        momentum = before.lerp(gradient, 1 - self.momentum)
        direction = orthogonal(gradient.lerp(momentum, self.momentum))
        moved = torch.stack([p.detach() for p in parameters])
        moved = moved * (1 - rate * self.weight_decay) - rate * size * direction
        if self.found_inf is not None:
            still = self.found_inf > 0
            momentum = before.where(still, momentum)
            moved = torch.stack([p.detach() for p in parameters]).where(still, moved)
        torch._foreach_copy_(stored, list(momentum.unbind(0)))
        torch._foreach_copy_([p.data for p in parameters], list(moved.unbind(0)))

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        found: Tensor = state["momentum"]
        return found
