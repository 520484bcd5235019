"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal before they are added to the weights.

Matrices are multiplied, so what counts is what an update does to every direction; all its singular values become
about 1. Tables that are looked up, biases and norms are no such maps and get AdamW. A matrix that is several maps of
one input, such as the gates of an LSTM, is made orthogonal map by map. torch.optim.Muon does the same one matrix at a
time and cannot hold still on a gradient that is not finite; here maps of one shape are done together.
Shapes: P parameters of one shape, N maps in each (1 but for stacks), R rows and C columns of a map.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that lifts small singular values fastest
ROUNDS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices (..., R, C) with the same singular vectors and singular values near 1 (0.7 to 1.2)."""
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
    so that a rate means the same for both. `stacks` says how many maps lie one below the other in a matrix.
    `grad_scale` and `found_inf` are set and read as fused Adam's.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True  # torch's mark of an optimizer that obeys these two

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        stacks: Mapping[Tensor, int],
        momentum: float,
        betas: tuple[float, float],
        epsilon: float,
        weight_decay: float,
    ) -> None:
        others = list(others)
        super().__init__([{"params": list(matrices)}, {"params": others}], {"lr": 0.0})
        self.stacks, self.momentum, self.weight_decay = stacks, momentum, weight_decay
        self.adam = torch.optim.AdamW(others, lr=0.0, betas=betas, eps=epsilon, weight_decay=0.0, fused=True)
        self.adam.state = self.state  # one place for what a checkpoint keeps

    def misfit(self, parameter: nn.Parameter) -> bool:
        """Whether a state that a checkpoint held for this parameter is not of the kind that it has here."""
        state = self.state.get(parameter)
        if not state:
            return False
        matrices = {id(matrix) for matrix in self.param_groups[0]["params"]}
        expected = self._shape(parameter) if id(parameter) in matrices else None
        return expected != (state["momentum"].shape if "momentum" in state else None)

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
                alike[self._shape(parameter)].append(parameter)
        for shape, parameters in alike.items():
            self._move(parameters, shape, matrices["lr"], 0.2 * max(shape[-2:]) ** 0.5)

    def _shape(self, parameter: nn.Parameter) -> torch.Size:
        """(R, C) of a matrix, (N, R, C) of one that is a stack."""
        maps = self.stacks.get(parameter, 1)
        return parameter.shape if maps == 1 else torch.Size((maps, parameter.size(0) // maps, parameter.size(1)))

    def _move(self, parameters: list[nn.Parameter], shape: torch.Size, rate: float, size: float) -> None:
        """Nesterov momentum, made orthogonal; where `found_inf` is set neither momentum nor weights change."""
        gradient = torch.stack([p.grad.view(shape) for p in parameters if p.grad is not None])  # (P, [N,] R, C)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        stored = [self._momentum(p, shape) for p in parameters]
        before, weights = torch.stack(stored), torch.stack([p.detach().view(shape) for p in parameters])
        momentum = before.lerp(gradient, 1 - self.momentum)
        direction = orthogonal(gradient.lerp(momentum, self.momentum))
        moved = weights * (1 - rate * self.weight_decay) - rate * size * direction
        if self.found_inf is not None:
            still = self.found_inf > 0
            momentum, moved = before.where(still, momentum), weights.where(still, moved)
        torch._foreach_copy_(stored, list(momentum.unbind(0)))
        torch._foreach_copy_([p.data.view(shape) for p in parameters], list(moved.unbind(0)))

    def _momentum(self, parameter: nn.Parameter, shape: torch.Size) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter).view(shape)
        found: Tensor = state["momentum"]
        return found
