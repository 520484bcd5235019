"""Tensors of which each process holds a piece (DTensors, under FSDP): the way out of them and back."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)


def whole(tensor: Tensor) -> Tensor:
    """The tensor that all pieces make; every process must ask, and each gets it. A plain tensor is whole."""
    return tensor if type(tensor) in _PLAIN else cast("Tensor", tensor.full_tensor())  # type: ignore[attr-defined]


def alike(tensor: Tensor, model: Tensor) -> Tensor:
    """A whole tensor on the device of `model`, cut as that is: each process keeps its own piece."""
    tensor = tensor.to(model.device)
    if type(model) in _PLAIN or tensor.dim() == 0:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    cut = cast("DTensor", model)
    return distribute_tensor(tensor, cut.device_mesh, cut.placements, src_data_rank=None)
