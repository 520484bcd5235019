"""Gather and shard tensors (DTensors, under FSDP), and validate a sharded model as an unsharded copy.

`hollow` copies the model without weights before it is sharded; `filled` puts gathered weights into it for a while.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
_PLAIN = (Tensor, nn.Parameter)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the full tensor from all shards; every process must call it. A plain tensor is returned as it is."""
    return tensor if type(tensor) in _PLAIN else cast("Tensor", tensor.full_tensor())  # type: ignore[attr-defined]


def shard_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Shard a full tensor like `model`, on its device: each process keeps its own shard."""
    tensor = tensor.to(model.device)
    if type(model) in _PLAIN or tensor.dim() == 0:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    cut = cast("DTensor", model)
    return distribute_tensor(tensor, cut.device_mesh, cut.placements, src_data_rank=None)


def hollow(model: M) -> M:
    """Copy a model without its weights: the same modules, with parameters and saved buffers on the meta device."""
    tensors = model.state_dict(keep_vars=True).values()
    empty = {id(tensor): _of_kind(tensor, torch.empty_like(tensor, device="meta")) for tensor in tensors}
    return copy.deepcopy(model, empty)


def filled(model: M, weights: Mapping[str, Tensor]) -> M:
    """Copy a hollow model with these weights in place, which are not copied; the hollow one stays as it is."""
    hollows = model.state_dict(keep_vars=True)
    given = {id(hollows[name]): _of_kind(hollows[name], tensor) for name, tensor in weights.items()}
    return copy.deepcopy(model, given)


def _of_kind(tensor: Tensor, numbers: Tensor) -> Tensor:
    """`numbers` as a parameter, if `tensor` is one."""
    return nn.Parameter(numbers, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else numbers
