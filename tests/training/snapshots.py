"""Small snapshots of a run for the tests of checkpoints, and the comparison of two to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.training.checkpoint import Snapshot


def make_snapshot(step: int, width: int = 4) -> Snapshot:
    """A snapshot that depends on the step alone, with equally shaped model and averaged weights."""
    generator = torch.Generator().manual_seed(step)

    def weights() -> dict[str, Tensor]:
        numbers = torch.randn(width, 3, generator=generator)
        return {"embedding": numbers, "half": numbers[0].bfloat16(), "count": torch.tensor(step)}

    tensors = {"model": weights(), "ema": weights(), "optimizer": {"first": torch.randn(width, generator=generator)}}
    return Snapshot(step, tensors, {"step": step, "loss_sum": step / 3, "best": [0.1 + 0.2, None], "text": "Grüße"})


def same(first: Snapshot, second: Snapshot) -> bool:
    """Equal to the bit, types and shapes included."""
    if (first.step, first.state, first.tensors.keys()) != (second.step, second.state, second.tensors.keys()):
        return False
    return all(same_tensors(tensors, second.tensors[stem]) for stem, tensors in first.tensors.items())


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """The same names, types, shapes and bits."""
    return first.keys() == second.keys() and all(
        tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]) for name, tensor in first.items()
    )
