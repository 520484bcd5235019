"""Optimizers, learning-rate schedules, and the one update that divides, clips and refuses what is not finite.

A schedule is a function of the step (1 for the first update).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.errors import ConfigError
from transduce.training.muon import MuonWithAdam
from transduce.training.pieces import whole

Schedule = Callable[[int], float]


def _check_positive(config: object, *names: str) -> None:
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise ConfigError(f"{name}: expected a number above 0, got {getattr(config, name)}")


@dataclass(frozen=True)
class Adam:
    """Adam with the paper's settings (section 5.3)."""

    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9

    def __post_init__(self) -> None:
        _check_betas(self.beta1, self.beta2)
        _check_positive(self, "epsilon")

    def build(self, parameters: Iterable[nn.Parameter], tables: Collection[nn.Parameter] = ()) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.0, betas=(self.beta1, self.beta2), eps=self.epsilon, fused=True)


@dataclass(frozen=True)
class AdamW:
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2019); matrices only are decayed."""

    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_betas(self.beta1, self.beta2)
        _check_positive(self, "epsilon")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay: expected 0 or more, got {self.weight_decay}")

    def build(self, parameters: Iterable[nn.Parameter], tables: Collection[nn.Parameter] = ()) -> torch.optim.Optimizer:
        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=self.epsilon, fused=True)


@dataclass(frozen=True)
class Muon:
    """Orthogonal updates for matrices (Jordan et al. 2024), AdamW for the rest at the same rate (muon.py).

    `tables` (embeddings, learned positions: rows that are looked up) count to the rest; decay is for the matrices.
    `stacks` are those that hold several maps, one below the other, and how many.
    """

    momentum: float = 0.95
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_betas(self.beta1, self.beta2)
        _check_positive(self, "epsilon")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum: expected at least 0 and below 1, got {self.momentum}")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay: expected 0 or more, got {self.weight_decay}")

    def build(
        self,
        parameters: Iterable[nn.Parameter],
        tables: Collection[nn.Parameter] = (),
        stacks: Mapping[Tensor, int] | None = None,
    ) -> MuonWithAdam:
        parameters, looked_up = list(parameters), {id(table) for table in tables}
        matrices = [p for p in parameters if p.dim() == 2 and id(p) not in looked_up]
        chosen = {id(matrix) for matrix in matrices}
        others = [p for p in parameters if id(p) not in chosen]
        betas = (self.beta1, self.beta2)
        return MuonWithAdam(matrices, others, stacks or {}, self.momentum, betas, self.epsilon, self.weight_decay)


def _check_betas(beta1: float, beta2: float) -> None:
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= beta < 1:
            raise ConfigError(f"{name}: expected at least 0 and below 1, got {beta}")


Optimizer = Adam | AdamW | Muon


@dataclass(frozen=True)
class Paper:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), equation 3."""

    warmup: int = 4000
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "warmup", "factor")

    def build(self, d_model: int, steps: int) -> Schedule:
        scale = self.factor * d_model**-0.5
        return lambda step: scale * min(step**-0.5, step * self.warmup**-1.5)


@dataclass(frozen=True)
class InverseRoot:
    """Up in a line to `peak` at `warmup`, then down as step^-0.5: equation 3 with its height named."""

    peak: float = 5e-4
    warmup: int = 4000

    def __post_init__(self) -> None:
        _check_positive(self, "peak", "warmup")

    def build(self, d_model: int, steps: int) -> Schedule:
        return lambda step: self.peak * min(step / self.warmup, (self.warmup / step) ** 0.5)


@dataclass(frozen=True)
class Cosine:
    """Up in a line to `peak` at `warmup`, then down half a cosine to `floor` at the last step.

    Where `training.minutes` end the run, the last step is the one that the pace so far leads to, and the warm-up takes
    half of the steps at most (rate.py).
    """

    peak: float = 5e-4
    warmup: int = 1000
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_positive(self, "peak", "warmup")
        if not 0 <= self.floor <= self.peak:
            raise ConfigError(f"floor: expected a number from 0 to peak = {self.peak}, got {self.floor}")

    def build(self, d_model: int, steps: int) -> Schedule:
        def rate(step: int) -> float:
            if step <= self.warmup:
                return self.peak * step / self.warmup
            done = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
            return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * done))

        return rate


@dataclass(frozen=True)
class Constant:
    """The same rate throughout."""

    rate: float = 1e-4

    def __post_init__(self) -> None:
        _check_positive(self, "rate")

    def build(self, d_model: int, steps: int) -> Schedule:
        return lambda step: self.rate


LearningRate = Paper | InverseRoot | Cosine | Constant


@torch.no_grad()
def update(optimizer: torch.optim.Optimizer, rate: float, count: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """One step on gradients of a sum: divide them by `count`, clip their norm, skip the step if it is not finite.

    Gives the norm before clipping, and 1.0 where the step was skipped. With optimizers that obey (`obeys`) nothing
    waits for the device: they divide by `grad_scale` and hold still where `found_inf` is set. For all others the
    gradients are divided here, and the host looks whether the step is to be skipped.
    """
    groups = optimizer.param_groups
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients)) / count
    divisor = count * (norm / clip).clamp(min=1.0) if clip > 0 else count
    skipped = (~torch.isfinite(norm)).float()
    for group in groups:
        group["lr"] = rate
    if obeys(optimizer):
        optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
        optimizer.found_inf = skipped  # type: ignore[attr-defined]
        optimizer.step()
    elif not skipped:
        torch._foreach_div_(gradients, divisor.item())
        optimizer.step()
    return norm, skipped


def obeys(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer reads `grad_scale` and `found_inf`, as torch's fused ones do.

    The mark is torch's own, by which GradScaler decides the same.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
