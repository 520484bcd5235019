"""The mean of several checkpoints' weights: one model, often a little better than the last one (paper, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from transduce.errors import RunError
from transduce.progress import Progress
from transduce.training.checkpoint import read_tensors
from transduce.training.weights import check_shapes


def average(paths: Sequence[Path], stem: str = "model") -> dict[str, Tensor]:
    """The mean of one file's tensors over checkpoint folders, summed in float64, in the type they are stored in.

    Tensors of whole numbers have no mean: they must be equal everywhere.
    """
    if not paths:
        raise RunError("no checkpoints to average; name at least one folder such as RUN/checkpoints/step-00001000")
    with Progress("Averaging", total=len(paths), unit="checkpoints") as progress:
        first = read_tensors(paths[0], stem)
        sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
        progress.advance()
        for path in paths[1:]:
            tensors = read_tensors(path, stem)
            check_shapes(tensors, {name: tuple(tensor.shape) for name, tensor in first.items()}, path)
            for name, tensor in tensors.items():
                if tensor.dtype != first[name].dtype:
                    raise RunError(f"{path}: {name} is {tensor.dtype}, but {first[name].dtype} in {paths[0]}")
                if name in sums:
                    sums[name] += tensor
                elif not torch.equal(tensor, first[name]):
                    raise RunError(f"{path}: {name} holds whole numbers that differ from those in {paths[0]}")
            progress.advance()
    return {
        name: (sums[name] / len(paths)).to(tensor.dtype) if name in sums else tensor for name, tensor in first.items()
    }
