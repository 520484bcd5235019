"""Memory: the most a run has held, and what to do when there is not enough."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transduce.errors import explaining_shortage
from transduce.experiment import Config
from transduce.training.session import TrainingProgress


def peak_memory(device: torch.device) -> int:
    """Bytes since the process began: on a GPU what tensors took there, on a CPU all that was resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


@contextmanager
def explained_shortage(config: Config, place: TrainingProgress) -> Iterator[None]:
    """Say which setting to lower when memory runs out."""

    def advice() -> str:
        tokens = config.data.tokens
        return (
            f"at step {place.step + 1}: lower data.tokens (now {tokens}), for example data.tokens={tokens // 2}"
            f" training.accumulate={2 * config.training.accumulate}, which keeps the size of an update"
        )

    with explaining_shortage(advice):
        yield
