"""The layers of the paper's Table 1, the real ones of transduce/model, and the measures taken from them.

Each layer is a function from (B, n, d) to (B, n, d). What is counted and timed is a layer's own work, as in Table 1:
for attention equation 1 without the projections around it, which are O(n d^2) for every kind of layer and have a row of
their own.

The measures know no formula: operations are counted as torch does them, memory is what the backward pass stores,
sequential steps are the longest chain in the autograd graph, and a path exists where a gradient is not 0. All on a CPU,
where the graph of a recurrence shows every step (on a GPU it is one kernel).

Shapes: B batch, n length, d width, H heads of 64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from transduce.model.attention import Attention, AttentionMask, split
from transduce.model.convolutional import GatedConvolution
from transduce.model.recurrent import Carried, Recurrence

HEAD = 64  # the width of a head in the paper's models; the number of heads grows with d


@dataclass(frozen=True)
class Kind:
    """A row of Table 1: the paper's formulas, and a builder of the real layer for a width.

    `over_length` and `over_width` are the powers of n and d in its cost, None where the paper gives no single one.
    `path` is how many layers, or steps of a recurrence, lie between the first and the last of n positions.
    """

    name: str
    cost: str
    over_length: int
    over_width: int | None
    path: Callable[[int], int]
    build: Callable[[int], nn.Module]
    stepwise: bool = False  # goes from position to position inside one layer


class EquationOne(nn.Module):
    """Attention over x, its own queries, keys and values, in heads, without projections."""

    def __init__(self, d_model: int, window: int = 0) -> None:
        super().__init__()
        self.attention = Attention(max(1, d_model // HEAD)).build(d_model)
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        heads = split(x, self.attention.width)
        found = self.attention.heads(heads, heads, heads, AttentionMask(window=self.window))
        return found.transpose(1, 2).flatten(2)


class Projected(nn.Module):
    """The whole attention layer: queries, keys, values and output are linear maps."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.attention = Attention(max(1, d_model // HEAD)).build(d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention.attend(*self.attention.project_qkv(x))


class Recurrent(nn.Module):
    """The recurrence h_t = tanh(U x_t + W h_{t-1})."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.cells = Recurrence("elman", d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(x)
        return states  # type: ignore[no-any-return]

    def step(self, x: Tensor, carried: Carried | None) -> tuple[Tensor, Carried]:
        """Advance by one position (B, 1, d)."""
        return self.cells(x, carried)  # type: ignore[no-any-return]


class Convolutional(nn.Module):
    """A convolution over k neighbours, as many on the left as on the right."""

    def __init__(self, d_model: int, kernel: int, separable: bool) -> None:
        super().__init__()
        self.convolution = GatedConvolution(d_model, kernel, 0.0, separable)
        self.beside = kernel // 2

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.convolution(F.pad(x, (0, 0, self.beside, self.beside)))
        return out


def kinds(window: int, kernel: int) -> tuple[Kind, ...]:
    """The rows of Table 1 in its order, then separable convolution, and attention with its projections."""

    def hops(reach: int) -> Callable[[int], int]:
        return lambda n: -(-(n - 1) // reach)  # layers until the first position sees the last, rounded up

    def convolution(name: str, cost: str, separable: bool) -> Kind:
        return Kind(
            f"{name}, k = {kernel}", cost, 1, 2, hops(kernel // 2), lambda d: Convolutional(d, kernel, separable)
        )

    return (
        Kind("self-attention", "n² d", 2, 1, lambda n: 1, EquationOne),
        Kind("recurrent", "n d²", 1, 2, lambda n: n, Recurrent, stepwise=True),
        convolution("convolutional", "k n d²", separable=False),
        Kind(f"restricted, r = {2 * window + 1}", "r n d", 1, 1, hops(window), lambda d: EquationOne(d, window)),
        convolution("separable", "k n d + n d²", separable=True),
        Kind("self-attention, projected", "n² d + n d²", 2, None, lambda n: 1, Projected),
    )


def input_of(length: int, width: int, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random vectors (B, n, d) that require gradients."""
    return torch.randn(batch, length, width, device=device, dtype=dtype).requires_grad_()


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
    """Bytes that a forward pass stores for the backward pass, without weights and its own input."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters())}
    stored: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x)  # alive until the sum is taken: what is freed might be counted twice
        total = sum(stored.values())
    del out
    return total


def waiting_steps(layer: nn.Module, length: int, width: int) -> int:
    """The number of operations on the longest chain in which each waits for the one before."""
    out: Tensor = layer(input_of(length, width, 1, CPU))
    assert out.grad_fn is not None
    depth: dict[Any, int] = {}
    waiting: list[Any] = [out.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        left = [parent for parent in before if parent not in depth]
        if left:
            waiting += left
        else:
            depth[waiting.pop()] = 1 + max((depth[parent] for parent in before), default=0)
    return depth[out.grad_fn]


def path_length(kind: Kind, length: int) -> int:
    """Layers, or steps of a recurrence, on the path from the first position to the last.

    Layers are stacked until the last position's output has a gradient by the first one's input. In a recurrence, which
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
    """Whether the last state depends on the first input if what is handed to position `cut` has no gradient."""
    words = [input_of(1, _PATH_WIDTH, 1, CPU, torch.float64) for _ in range(length)]
    carried = None
    for position, word in enumerate(words):
        if position == cut and carried is not None:
            carried = tuple(tensor.detach() for tensor in carried)
        out, carried = layer.step(word, carried)
    return bool(_gradient(out, words[0]).any())


def _gradient(out: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(out.sum(), x, retain_graph=True, materialize_grads=True)
    return found
