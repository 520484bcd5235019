"""Attention, linear maps and dropout for training, of torch's own operations, with gradients written by hand.

Attention (equation 1) on CPUs: the fused kernel's backward pass took a quarter of a training step, and torch's own
chain of operations copies keys in a slow order and goes over the scores eight times. Here keys are not copied, scale
and mask are fused into the product, and the gradient ignores the mask, where weights are 0 anyway. Shapes: B batch, H
heads, T queries, S keys, K width of a key, W of a value.

Linear maps on CPUs: with AVX-512 oneDNN multiplies single precision a tenth faster than torch's default library
(measured on Zen 4), and fuses bias and ReLU into the product; in bfloat16 torch uses it anyway. With AVX2 alone it is
slower (Zen 3: a tenth, weight gradients by a third), and torch's default is used. Shapes: N tokens, I input features, O
output features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ONE_DNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
IN_SINGLE: bool = ONE_DNN and torch.backends.cpu.get_cpu_capability() == "AVX512"
IN_BFLOAT16: bool = ONE_DNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def attend_on_cpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention softmax(scale Q K^T) V where mask, broadcastable to (B, H, T, S), is True."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (heads.to(torch.get_autocast_dtype("cpu")) for heads in (query, key, value))
    heads: Tensor = _Attend.apply(query, key, value, mask, scale)  # type: ignore[no-untyped-call]
    return heads


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        batch, heads, queries, _ = query.shape
        query, key, value = (part.reshape(batch * heads, *part.shape[2:]) for part in (query, key, value))
        additive = _additive(query, batch, heads, mask)  # (B * H or 1, T or 1, S)
        scores = torch.baddbmm(additive, query, key.transpose(1, 2), alpha=scale)  # (B * H, T, S)
        weights = scores.softmax(-1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        return (weights @ value).view(batch, heads, queries, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        gradient = gradients[0]
        shape = gradient.shape[:2]
        gradient = gradient.reshape(-1, *gradient.shape[2:])  # (B * H, T, W)
        to_value = weights.transpose(1, 2) @ gradient
        to_weights = gradient @ value.transpose(1, 2)
        to_scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        to_inputs = to_scores @ key, to_scores.transpose(1, 2) @ query, to_value
        return *(part.view(*shape, *part.shape[1:]) for part in to_inputs), None, None


def _additive(query: Tensor, batch: int, heads: int, mask: Tensor | None) -> Tensor:
    """Additive mask of the scores: 0 where attention is allowed, else a number low enough to cancel them.

    Half of the lowest number: adding a score to the lowest might give -inf, and a row of those has no softmax.
    """
    if mask is None:
        return query.new_zeros(1, 1, 1)
    low = query.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(query.dtype).min / 2)
    low = low.expand(*(1,) * (4 - low.dim()), *low.shape) if low.dim() < 4 else low
    if low.size(0) == low.size(1) == 1:
        return low[0]
    return low.expand(batch, heads, -1, -1).reshape(batch * heads, *low.shape[2:])


def linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Linear map of x (..., I) by weight (O, I) and bias (O,), with optional ReLU, by oneDNN: (..., O)."""
    y: Tensor = _LinearOnCpu.apply(x, weight, bias, relu)  # type: ignore[no-untyped-call]
    return y


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU(x W^T + b) in the product's own kernel, for compiled code on a GPU: x (..., I) -> (..., O).

    A compiler would apply ReLU in a second kernel, which reads and writes everything again.
    """
    rows = (to_autocast_dtype(part) for part in (x.flatten(0, -2), weight, bias))
    y: Tensor = _LinearRelu.apply(*rows)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


def for_one_dnn(x: Tensor) -> bool:
    """Whether oneDNN is installed and faster than torch's default for x; never while compiling."""
    in_bfloat16 = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    able = IN_BFLOAT16 if in_bfloat16 else IN_SINGLE and x.dtype == torch.float32
    return able and x.device.type == "cpu" and not torch.compiler.is_compiling()


def product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of rows (N, I) and matrix (O, I) transposed, plus bias (O,), by the faster library: (N, O)."""
    return _one_dnn(rows, matrix, bias) if for_one_dnn(rows) else F.linear(rows, matrix, bias)


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Product of left (N, O) transposed and right (N, I), by the faster library: (O, I).

    oneDNN copies a transposed first matrix, so the narrower one goes first; at equal widths it does not pay off.
    """
    if left.dtype != torch.float32 or left.size(1) == right.size(1) or not for_one_dnn(left):
        return left.T @ right
    return _one_dnn(left.T, right.T) if left.size(1) < right.size(1) else _one_dnn(right.T, left.T).T


def _one_dnn(rows: Tensor, matrix: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, bias, "relu" if relu else "none", [], "")
    return y


def dropout_on_cpu(x: Tensor, probability: float) -> Tensor:
    """Dropout whose masks are drawn cheaply: one 64-bit draw decides four elements, by 16 bits each.

    F.dropout draws one number at a time on a CPU, an eighth of a training step. Probabilities are multiples of 1/65536.
    """
    threshold = min(round(probability * 65536), 65535)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    # Compared in place, 1 and 0 stay 16 bits wide: several times faster than converting booleans to numbers.
    keep = words.view(torch.int16)[: x.numel()].view(x.shape).ge_(threshold - 32768)
    return x * keep.to(x.dtype).mul_(65536 / (65536 - threshold))


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast x to the dtype that autocast uses, so that several maps of it share one copy; x itself without autocast."""
    device = x.device.type
    # Autocast does not support the meta device, on which shapes are tested.
    return x.to(torch.get_autocast_dtype(device)) if device != "meta" and torch.is_autocast_enabled(device) else x


class _LinearRelu(torch.autograd.Function):
    """ReLU(rows W^T + b): rows (N, I), weight (O, I), bias (O,) -> (N, O)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = torch._addmm_activation(bias, rows, weight.T)
        ctx.save_for_backward(rows, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight, y = ctx.saved_tensors
        gradient = torch.where(y > 0, gradients[0], 0.0).to(y.dtype)
        return gradient @ weight, gradient.T @ rows, gradient.sum(0)


class _LinearOnCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        rows, matrix = to_autocast_dtype(x).reshape(-1, x.size(-1)), to_autocast_dtype(weight)  # (N, I), (O, I)
        y = _one_dnn(rows, matrix, to_autocast_dtype(bias), relu)
        ctx.save_for_backward(rows, matrix, y if relu else None)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, matrix, y = ctx.saved_tensors
        shape = gradients[0].shape[:-1]
        gradient = gradients[0].reshape(-1, gradients[0].size(-1))  # (N, O)
        if y is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        to_x = product(gradient, matrix.T).view(*shape, -1) if ctx.needs_input_grad[0] else None
        to_weight = summed_products(gradient, rows) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, gradient.sum(0), None
