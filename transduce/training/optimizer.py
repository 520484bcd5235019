"""Optimizers, learning-rate schedules, and the one update that divides, clips and skips non-finite gradients.

A schedule is a function of the step (1 for the first update), built for as many steps as the run will have.

Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised before they are added to the weights. Matrices
are multiplied, so what counts is what an update does to every direction; all its singular values become about 1.
Lookup tables, biases and norms are no such maps and get AdamW. A matrix that is several maps of one input, such as the
gates of an LSTM, is orthogonalised map by map. torch.optim.Muon does the same one matrix at a time and cannot skip a
gradient that is not finite; here maps of one shape are batched.

Shapes: P parameters of one shape, N maps in each (1 but for stacks), R rows and C columns of a map.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor, nn

from transduce.core.bounds import BelowOne, Bounds, NonNegativeFloat, PositiveFloat, check_bounds
from transduce.core.errors import ConfigError
from transduce.training.distributed import full_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that lifts small singular values fastest
ROUNDS = 5


def orthogonal(matrices: Tensor, narrow: bool = False) -> Tensor:
    """Orthogonalise matrices (..., R, C): the singular vectors stay, singular values become about 1 (0.7 to 1.2).

    It is computed in bf16 on a GPU, and where `narrow`, which runs in bf16 on a CPU set.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.bfloat16() if narrow or matrices.is_cuda else matrices.float()
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
    `grad_scale` and `found_inf` are set and read as fused Adam's. `narrow` is set for runs in bf16.
    """

    narrow = False
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True  # torch's mark of an optimizer that reads these two

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
        self.adam.state = self.state  # one dict for checkpoints

    def misfit(self, parameter: nn.Parameter) -> bool:
        """Whether the checkpoint's state for this parameter is of another kind than it has here."""
        state = self.state.get(parameter)
        if not state:
            return False
        matrices = {id(matrix) for matrix in self.param_groups[0]["params"]}
        expected = self._shape(parameter) if id(parameter) in matrices else None
        return expected != (state["momentum"].shape if "momentum" in state else None)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters; no host sync."""
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
        """Apply orthogonalised Nesterov momentum; where `found_inf` is set neither momentum nor weights change."""
        gradient = torch.stack([p.grad.view(shape) for p in parameters if p.grad is not None])  # (P, [N,] R, C)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        stored = [self._momentum(p, shape) for p in parameters]
        before, weights = torch.stack(stored), torch.stack([p.detach().view(shape) for p in parameters])
        momentum = before.lerp(gradient, 1 - self.momentum)
        direction = orthogonal(gradient.lerp(momentum, self.momentum), self.narrow)
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


Schedule = Callable[[int], float]  # from the step, 1 for the first update, to its rate


class OptimizerConfig(Protocol):
    """The config of an optimizer."""

    def build(self, parameters: Iterable[nn.Parameter], tables: Collection[nn.Parameter]) -> torch.optim.Optimizer:
        """An optimizer of all `parameters`; `tables` are those whose rows are looked up, such as embeddings."""
        ...


class LearningRateConfig(Protocol):
    """The config of a schedule of learning rates."""

    def build(self, d_model: int, steps: int) -> Schedule:
        """The rate at each step of a run of so many."""
        ...


@dataclass(frozen=True)
class Adam:
    """Adam with the paper's settings (section 5.3)."""

    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.98
    epsilon: PositiveFloat = 1e-9

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, parameters: Iterable[nn.Parameter], tables: Collection[nn.Parameter] = ()) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.0, betas=(self.beta1, self.beta2), eps=self.epsilon, fused=True)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019); only matrices are decayed."""

    weight_decay: NonNegativeFloat = 0.01

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
    """Orthogonalised updates for matrices (Jordan et al. 2024), AdamW for the rest at the same rate.

    `tables` (embeddings, learned positions: rows that are looked up) count to the rest; decay is for the matrices.
    `stacks` maps matrices that hold several maps, one below the other, to how many.
    """

    momentum: BelowOne = 0.95
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.98
    epsilon: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.01

    def __post_init__(self) -> None:
        check_bounds(self)

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


Optimizer = Adam | AdamW | Muon


@dataclass(frozen=True)
class Paper:
    """The paper's schedule: factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), equation 3."""

    warmup: Annotated[int, Bounds(1, expected="a number above 0")] = 4000
    factor: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int, steps: int) -> Schedule:
        scale = self.factor * d_model**-0.5
        return lambda step: scale * min(step**-0.5, step * self.warmup**-1.5)


@dataclass(frozen=True)
class InverseRoot:
    """Linear warm-up to `peak` at `warmup`, then step^-0.5: equation 3 parametrised by its height."""

    peak: PositiveFloat = 5e-4
    warmup: Annotated[int, Bounds(1, expected="a number above 0")] = 4000

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int, steps: int) -> Schedule:
        return lambda step: self.peak * min(step / self.warmup, (self.warmup / step) ** 0.5)


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up to `peak` at `warmup`, then half a cosine down to `floor` at the last step.

    Where `training.minutes` end the run, the last step is extrapolated from the pace so far, and the warm-up takes half
    of the steps at most (`within_time`).
    """

    peak: PositiveFloat = 5e-4
    warmup: Annotated[int, Bounds(1, expected="a number above 0")] = 1000
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
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
    """A constant rate."""

    rate: PositiveFloat = 1e-4

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int, steps: int) -> Schedule:
        return lambda step: self.rate


LearningRate = Paper | InverseRoot | Cosine | Constant


@torch.no_grad()
def update(optimizer: torch.optim.Optimizer, rate: float, count: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Step on gradients of a sum: divide them by `count`, clip their norm, skip the step if it is not finite.

    Returns the norm before clipping, and 1.0 where the step was skipped. With optimizers that support it (`obeys`)
    there is no host sync: they divide by `grad_scale` and skip where `found_inf` is set. For all others the gradients
    are divided here, and the host reads whether the step is to be skipped.
    """
    groups = optimizer.param_groups
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    norm = full_tensor(torch.nn.utils.get_total_norm(gradients)) / count
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


PACE_IS_KNOWN = 0.05  # of the time: earlier, the pace is that of the first steps, which are slow


def steps_within(steps: int, done: int, seconds: float, limit: float) -> int:
    """The number of steps a run will have: `steps`, or fewer where `limit` seconds end it first (0 = no limit).

    Extrapolated from `done` steps in `seconds`. A schedule that is built for this number at every step anneals by the
    share of the time that is used.
    """
    if limit <= 0 or done < 1 or seconds <= 0:
        return steps
    return max(1, round(min(steps, done * limit / seconds)))


def anneals(schedule: LearningRate | LearningRateConfig) -> bool:
    """Whether rates depend on the total number of steps; those of a user's own class may."""
    return not isinstance(schedule, (Paper, InverseRoot, Constant))


def within_time(schedule: LearningRate | LearningRateConfig, steps: int) -> LearningRate | LearningRateConfig:
    """Adapt a schedule to a run that the clock ends after `steps`: a cosine's warm-up takes half of them at most.

    Where the warm-up is longer, the rate rises along its line until then, never faster, and anneals from where it is.
    """
    if not isinstance(schedule, Cosine):
        return schedule
    warmup = min(schedule.warmup, max(1, steps // 2))
    peak = schedule.peak * (warmup / schedule.warmup)
    return replace(schedule, peak=peak, warmup=warmup, floor=min(schedule.floor, peak))


class LearningRateByBudget:
    """A learning rate that anneals by the budget that ends first, steps or minutes.

    `last` is the rate of the last update. Warnings are given to `say`.
    """

    def __init__(
        self,
        schedule: LearningRate | LearningRateConfig,
        d_model: int,
        steps: int,
        minutes: float,
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.d_model, self.steps, self.seconds = schedule, d_model, steps, 60 * minutes
        self.last = 0.0
        self._say, self._warned = say, False
        self._built_for = steps
        self._schedule: Schedule = schedule.build(d_model, steps)

    def __call__(self, done: int, seconds: float) -> float:
        """The rate of the update after `done` updates, which took `seconds`."""
        steps = steps_within(self.steps, done, seconds, self.seconds)
        if not self._warned and steps < self.steps and seconds >= PACE_IS_KNOWN * self.seconds:
            self._warn(done, steps)
        if steps != self._built_for:
            settings = within_time(self.settings, steps) if steps < self.steps else self.settings
            self._built_for, self._schedule = steps, settings.build(self.d_model, steps)
        self.last = self._schedule(done + 1)
        return self.last

    def _warn(self, done: int, steps: int) -> None:
        """Warn, once, that a cosine's peak lies beyond the half of the time that its warm-up may take.

        A run that got more minutes may be past that half already: its rate will not rise again.
        """
        reached = within_time(self.settings, steps)
        if not isinstance(self.settings, Cosine) or not isinstance(reached, Cosine):
            return
        if done >= self.settings.warmup or reached.warmup >= self.settings.warmup:
            return
        self._warned = True
        if done < reached.warmup:
            outcome = f"the rate will rise to about {reached.peak:.2e}, not to its peak of {self.settings.peak:.2e}"
        else:
            outcome = (
                f"these are over, and the rate falls along a curve from about {reached.peak:.2e}, not from its peak of"
                f" {self.settings.peak:.2e}"
            )
        self._say(
            f"training.learning_rate.warmup: {self.settings.warmup:,} steps, but at this pace training.minutes ends the"
            f" run after some {steps:,}, and a warm-up takes half of these at most: {outcome}. To reach the peak, begin"
            f" anew with training.learning_rate.warmup={reached.warmup} or less, or raise training.minutes"
        )
