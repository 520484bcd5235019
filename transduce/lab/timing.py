"""Time on a machine that does other things too, and the power of n that it grows with.

On a CPU the seconds are those that one core worked for us, not those that we waited for it; on a GPU they are the
clock's. Other work only ever makes something slower, so the least of several tries is nearest to the truth; the tries
of all that is compared take turns, so that a busy minute hits all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from transduce.training.cpu import keep_freed_memory

Key = TypeVar("Key")


def least_seconds(tasks: Mapping[Key, Callable[[], object]], repeats: int, device: torch.device) -> dict[Key, float]:
    """For each task its shortest time in `repeats` rounds, after one to warm up; by one thread."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cpu":
        keep_freed_memory()  # as training does: else large sizes pay for fresh memory each time, and small ones do not
    best: dict[Key, float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, small sizes are done by one and large ones by all: a bend in every line
    try:
        for number in range(repeats + 1):
            for key, task in tasks.items():
                wait(device)
                started = clock()
                task()
                wait(device)
                took = clock() - started
                if number:
                    best[key] = min(took, best.get(key, took))
    finally:
        torch.set_num_threads(threads)
    return best


def wait(device: torch.device) -> None:
    """Until the device has done all that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Exponent:
    """y grows as x^value; `error` is the standard error of the straight line through the logarithms."""

    value: float
    error: float
    factor: float  # y = factor x^value

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"

    def at(self, x: float) -> float:
        """What the line says of x."""
        return float(self.factor * x**self.value)


def fitted(sizes: Sequence[float], values: Sequence[float]) -> Exponent:
    """Least squares on logarithms; with two points the line goes through both and its error is not known (0)."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float))
    slope, shift = np.polyfit(x, y, 1)
    rest = y - (slope * x + shift)
    free = len(x) - 2
    error = float(np.sqrt((rest @ rest) / free / ((x - x.mean()) @ (x - x.mean())))) if free > 0 else 0.0
    return Exponent(float(slope), error, float(np.exp(shift)))
