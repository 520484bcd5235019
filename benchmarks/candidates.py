"""Ways to make the compiled step faster that wait to be measured on a GPU; compiling.py tries them as variants.

Each is put in the place of a part of the package, for Transformers on packed tokens that train by cross-entropy, and
gives the same numbers but for rounding (dropout: other draws). What pays moves into the package; what does not goes.
Shapes: N packed queries, M packed keys, H heads, K the width of a head, V vocabulary, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.batch import Batch
from transduce.model import attention, dropout, linear, sublayers
from transduce.model.attention import MultiHeadAttention
from transduce.model.linear import narrowed
from transduce.objectives import projected
from transduce.objectives.base import Loss
from transduce.training.passes import Graphed

# -- dropout: a few integer operations a number, where the compiler's own generator takes about a hundred --------------


def hashed_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with each number set to 0 with `probability` and the rest scaled up; the draws are a hash of place and seed.

    The hash is that of a 32-bit number with the lowest bias known (Wellons 2018, "lowbias32"), with a second seed in
    its middle. Worked out again on the way back, the mask is not kept.
    """
    if not training or probability == 0:
        return x
    seeds = (torch.rand(2, device=x.device) * 2.0**31).to(torch.int32)
    places = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    kept = hashed(places, seeds[0], seeds[1]) & 0xFFFFFF >= round(probability * 2**24)
    return torch.where(kept, x * (1 / (1 - probability)), 0.0).to(x.dtype)


def hashed(numbers: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """32 bits for each number (int32) by two seeds; products overflow, as they should."""
    numbers = numbers + first
    numbers = numbers ^ ((numbers >> 16) & 0xFFFF)
    numbers = numbers * 0x7FEB352D ^ second
    numbers = numbers ^ ((numbers >> 15) & 0x1FFFF)
    numbers = numbers * (0x846CA68B - 2**32)
    return numbers ^ ((numbers >> 16) & 0xFFFF)


def hash_dropout() -> None:
    for module in (dropout, sublayers):
        module.dropout = hashed_dropout
    attention.drop = hashed_dropout


# -- max(0, x W^T + b) in the product's own kernel ---------------------------------------------------------------------


class _CutOff(torch.autograd.Function):
    """rows (N, I), weight (O, I), bias (O,) to (N, O), none below 0."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found = torch._addmm_activation(bias, rows, weight.T)
        ctx.save_for_backward(rows, weight, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight, found = ctx.saved_tensors
        gradient = torch.where(found > 0, gradients[0], 0.0).to(found.dtype)
        return gradient @ weight, to_weight(gradient, rows), gradient.sum(0)


def cut_off(self: Any, x: Tensor) -> Tensor:
    """`FeedForward.forward` of the paper's network."""
    given = (narrowed(part) for part in (x.flatten(0, -2), self.inner.weight, self.inner.bias))
    inner: Tensor = _CutOff.apply(*given)  # type: ignore[no-untyped-call]
    outer: Tensor = self.outer(inner.view(*x.shape[:-1], -1))
    return outer


def fuse_activation() -> None:
    sublayers.FeedForward.forward = cut_off  # type: ignore[method-assign]


# -- gradients of weights: small matrices, each number a sum over all tokens, for which a GPU has too few tiles --------

TILE, UNITS = (128, 256), 132  # of a product, and how many tiles an H200 works on at once
split_sums = False


def to_weight(gradient: Tensor, rows: Tensor) -> Tensor:
    """gradient (N, O), turned, times rows (N, I): (O, I); split, some tokens each at once, then added up."""
    tiles = -(-gradient.size(1) // TILE[0]) * -(-rows.size(1) // TILE[1])
    parts = max(n for n in range(1, max(1, UNITS // tiles) + 1) if len(rows) % n == 0) if split_sums else 1
    if parts == 1:
        return gradient.T @ rows
    sides = (side.view(parts, -1, side.size(1)) for side in (gradient.contiguous(), rows.contiguous()))
    left, right = sides
    return torch.bmm(left.transpose(1, 2), right).sum(0, dtype=torch.float32).to(rows.dtype)


class _Mapped(torch.autograd.Function):
    """rows (N, I), weight (O, I), bias (O,) to (N, O)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return F.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        return gradients[0] @ weight, to_weight(gradients[0], rows), gradients[0].sum(0)


def split_mapped(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """`linear.mapped` and F.linear."""
    given = (narrowed(part) for part in (x.flatten(0, -2), weight, bias))
    found: Tensor = _Mapped.apply(*given)  # type: ignore[no-untyped-call]
    found = found.view(*x.shape[:-1], -1)
    return F.relu(found) if relu else found


def _split_project(self: Any, x: Tensor, *maps: Any) -> Sequence[Tensor]:
    weight, bias = torch.cat([one.weight for one in maps]), torch.cat([one.bias for one in maps])
    return torch.split(split_mapped(x, weight, bias), [one.out_features for one in maps], dim=-1)


def split_products() -> None:
    global split_sums
    split_sums = True
    linear.mapped = split_mapped
    MultiHeadAttention._project = _split_project  # type: ignore[method-assign]


# -- gradients added up many at a time ---------------------------------------------------------------------------------


def add_gradients(total: Tensor, parameters: Sequence[Tensor]) -> None:
    """What `total.backward()` does, with a few kernels for all parameters instead of one for each."""
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    alike: tuple[list[Tensor], list[Tensor]] = [], []
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if gradient.stride() == parameter.grad.stride() and gradient.dtype == parameter.grad.dtype:
            alike[0].append(parameter.grad)
            alike[1].append(gradient)
        else:
            parameter.grad += gradient
    torch._foreach_add_(*alike)


class Gathered(Graphed):
    def run(self, batch: Batch, step: int, counted: bool = True) -> Loss:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch, step)
        add_gradients(loss.total, [parameter for parameter in self.module.parameters() if parameter.requires_grad])
        return replace(loss, total=loss.total.detach())


# -- loss and slopes of the logits in one kernel, which reads them from memory once ------------------------------------


def fuse_loss() -> None:
    from candidate_kernels import losses_and_slopes

    projected._losses_compiled = losses_and_slopes


# -- queries, keys and values side by side, and so their gradients, which the product back takes as they lie -----------


def join_heads() -> None:
    MultiHeadAttention.reflect = _reflect  # type: ignore[method-assign]
    MultiHeadAttention.remember = _remember  # type: ignore[method-assign]
    MultiHeadAttention.look = _look  # type: ignore[method-assign]


def _side_by_side(self: Any, x: Tensor, *maps: Any) -> Tensor:
    """(N, maps, H, K)."""
    weight, bias = torch.cat([one.weight for one in maps]), torch.cat([one.bias for one in maps])
    mapped = split_mapped if split_sums else F.linear
    return mapped(x, weight, bias).view(x.size(1), len(maps), -1, self.width)


def _reflect(self: Any, x: Tensor, turn: Any = None, layout: Any = None) -> tuple[Any, Any, Any]:
    return None, _side_by_side(self, x, self.key, self.value, self.query), None


def _remember(self: Any, memory: Tensor, turn: Any = None, layout: Any = None) -> tuple[Any, Any]:
    return _side_by_side(self, memory, self.key, self.value), None


def _look(self: Any, query: Tensor | None, key: Tensor, value: None, sight: Any, layout: Any) -> Tensor:
    """`key` is what one of the two above made; of `query` there is none where it is in there too."""
    from candidate_kernels import attend_joined, attend_to_joined

    starts = layout.starts, layout.starts if sight.mask is None else sight.mask
    settings = self.width**-0.5, sight.causal, layout.longest
    if query is None:
        found = attend_joined(key, starts[0], *settings)
    else:
        found = attend_to_joined(query.squeeze(0).transpose(0, 1), key, *starts, *settings)
    joined: Tensor = self.output(found.flatten(1).unsqueeze(0))
    return joined
