"""What is added up between two reports: losses, counts and metrics, as sums on the device."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from transduce.training.session import Place


class Sums:
    """Sums on the device between two reports; nothing waits for it until a report or a save asks."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place, self.device = place, device
        self.tensors = {
            name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in place.sums.items()
        }

    def add(self, name: str, value: Tensor) -> None:
        value = value.double()
        value = value.where(value.isfinite(), torch.zeros_like(value))
        self.tensors[name] = self.tensors[name] + value if name in self.tensors else value

    def skip(self, skipped: Tensor) -> None:
        self.add("skipped", skipped)
        before = self.tensors.get("in_a_row", torch.zeros((), dtype=torch.float64, device=self.device))
        self.tensors["in_a_row"] = (before + 1) * skipped.double()

    def count(self) -> int:
        """Target tokens since the last report."""
        return int(self.tensors["count"].item()) if "count" in self.tensors else 0

    def store(self) -> None:
        """Put the sums into the place, for a checkpoint."""
        self.place.sums = {name: tensor.item() for name, tensor in self.tensors.items()}

    def take(self) -> dict[str, float]:
        """The sums so far, and start anew; `since` is the training time when they were begun."""
        started = time.monotonic()
        self.store()
        self.place.seconds += time.monotonic() - started  # a GPU was still at the steps it had been handed
        taken = {"since": 0.0, **self.place.sums}
        self.tensors = {name: self.tensors[name] for name in ("in_a_row",) if name in self.tensors}
        self.tensors["since"] = torch.tensor(self.place.seconds, dtype=torch.float64, device=self.device)
        return taken
