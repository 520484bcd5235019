"""What is added up between two reports: losses, counts and metrics, as sums on the device.

Of several processes each adds up its own; what a report or a checkpoint is told are the sums over all.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from transduce.training.distributed import Group
from transduce.training.session import TrainingProgress

_COMMON = frozenset(("norm", "steps", "skipped", "in_a_row", "since"))  # the same in every process


class Sums:
    """Sums on the device between two reports; nothing waits for it until a report or a save asks."""

    def __init__(self, place: TrainingProgress, group: Group) -> None:
        self.place, self.device, self.group = place, group.device, group
        self.tensors = {
            name: torch.tensor(
                value if group.first or name in _COMMON else 0.0, dtype=torch.float64, device=self.device
            )
            for name, value in place.sums.items()
        }

    def add(self, name: str, value: Tensor) -> None:
        value = value.double()
        value = value.where(value.isfinite(), torch.zeros_like(value))
        self.tensors[name] = self.tensors[name] + value if name in self.tensors else value

    def skip(self, skipped: Tensor) -> None:
        self.add("skipped", skipped)
        before = self.tensors.get("in_a_row", torch.zeros((), dtype=torch.float64, device=self.device))
        self.tensors["in_a_row"] = (before + 1) * skipped.double()

    def store(self) -> None:
        """Put the sums into the place, for a checkpoint."""
        own = [name for name in self.tensors if name not in _COMMON]
        total = dict(self.tensors)
        if own:
            total |= zip(own, self.group.sum(torch.stack([self.tensors[name] for name in own])), strict=True)
        self.place.sums = {name: tensor.item() for name, tensor in total.items()}

    def take(self) -> dict[str, float]:
        """The sums so far, and start anew; `since` is the training time when they were begun."""
        started = time.monotonic()
        self.store()
        self.place.seconds += time.monotonic() - started  # a GPU was still at the steps it had been handed
        taken = {"since": 0.0, **self.place.sums}
        self.tensors = {name: self.tensors[name] for name in ("in_a_row",) if name in self.tensors}
        self.tensors["since"] = torch.tensor(self.place.seconds, dtype=torch.float64, device=self.device)
        return taken
