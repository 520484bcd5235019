"""What a layer keeps, counts, waits for and connects, read off the real layer: nothing here knows a formula.

Operations are counted as torch does them, what is kept is what the backward pass asks for, waiting is the longest chain
in the graph that gradients go back along, and a path is there where a gradient is not 0. All on a CPU, where the graph
of a recurrence shows every step (on a GPU it is one kernel). Shapes: B batch, n length, d width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from transduce.lab.layers import Kind, Recurrent, input_of

CPU = torch.device("cpu")
_PATH_WIDTH = 8  # whether a gradient is 0 is no matter of width


def operations(layer: nn.Module, length: int, width: int) -> int:
    """Multiplications and additions of one forward pass over one sequence.

    In double precision, which is done by torch's own products alone: those are what the counter knows.
    """
    x = input_of(length, width, 1, CPU, torch.float64)
    with FlopCounterMode(display=False) as counted:
        layer.double()(x)
    return int(counted.get_total_flops())


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """What a forward pass leaves for the backward pass, weights and its own input not counted."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x)  # held until the sum is taken: what is freed might be counted twice
        total = sum(kept.values())
    del out
    return total


def waiting_steps(layer: nn.Module, length: int, width: int) -> int:
    """Operations on the longest chain in which each waits for the one before."""
    out: Tensor = layer(input_of(length, width, 1, CPU))
    assert out.grad_fn is not None
    depth: dict[Any, int] = {}
    waiting: list[Any] = [out.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [one for one, _ in node.next_functions if one is not None]
        left = [one for one in before if one not in depth]
        if left:
            waiting += left
        else:
            depth[waiting.pop()] = 1 + max((depth[one] for one in before), default=0)
    return depth[out.grad_fn]


def path_length(kind: Kind, length: int) -> int:
    """Layers, or steps of a recurrence, on the way from the first place to the last.

    Layers are stacked until the last place's output has a gradient by the first place's input. In a recurrence, which
    needs one layer, those hand-overs are counted without any one of which that gradient is 0.
    """
    torch.manual_seed(1)
    if kind.stepwise:
        layer = kind.build(_PATH_WIDTH).double()
        assert isinstance(layer, Recurrent)
        return 1 + sum(not _reached(layer, length, cut) for cut in range(1, length))
    x = input_of(length, _PATH_WIDTH, 1, CPU, torch.float64)
    out, layers = x, 0
    while layers == 0 or not _gradient(out[:, -1], x)[:, 0].any():
        out, layers = kind.build(_PATH_WIDTH).double()(out), layers + 1
        if layers > length:
            raise AssertionError(f"{kind.name}: the ends of {length} places never meet")
    return layers


def _reached(layer: Recurrent, length: int, cut: int) -> bool:
    """Whether the last state knows of the first input if what is handed to place `cut` has no gradient."""
    words = [input_of(1, _PATH_WIDTH, 1, CPU, torch.float64) for _ in range(length)]
    carried = None
    for place, word in enumerate(words):
        if place == cut and carried is not None:
            carried = tuple(tensor.detach() for tensor in carried)
        out, carried = layer.step(word, carried)
    return bool(_gradient(out, words[0]).any())


def _gradient(out: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(out.sum(), x, retain_graph=True, materialize_grads=True)
    return found
