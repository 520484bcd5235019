"""Tensors of which each process holds a piece (DTensors, under FSDP): the way out of them and back.

A model in pieces is validated as a whole one, which is there only meanwhile: `hollow` before it is cut, `filled` then.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
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


def hollow(model: M) -> M:
    """The model without its weights: the same modules, on parameters and saved buffers that hold no numbers."""
    own = model.state_dict(keep_vars=True).values()
    empty = {id(tensor): _of_kind(tensor, torch.empty_like(tensor, device="meta")) for tensor in own}
    return copy.deepcopy(model, empty)


def filled(model: M, weights: Mapping[str, Tensor]) -> M:
    """A hollow model with these weights, which are not copied, in their places; the hollow one stays as it is."""
    own = model.state_dict(keep_vars=True)
    given = {id(own[name]): _of_kind(own[name], tensor) for name, tensor in weights.items()}
    return copy.deepcopy(model, given)


def _of_kind(tensor: Tensor, numbers: Tensor) -> Tensor:
    """`numbers` as a parameter, if `tensor` is one."""
    return nn.Parameter(numbers, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else numbers
