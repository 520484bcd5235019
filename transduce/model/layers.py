"""Linear maps and dropout, with fast paths for training on CPUs and in compiled code on GPUs.

On a CPU with AVX-512 oneDNN multiplies single precision a tenth faster than torch's default library (measured on Zen
4), and fuses bias and ReLU into the product; in bfloat16 torch uses it anyway. With AVX2 alone it is slower (Zen 3: a
tenth, weight gradients by a third), and torch's default is used. Dropout (section 5.4) draws masks cheaply on a CPU.
Shapes: N tokens, I input features, O output features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.kernels.dispatch import Kernels

WORTH = 1 << 24  # multiplications from which on the oneDNN path pays off
_ONE_DNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_IN_SINGLE: bool = _ONE_DNN and torch.backends.cpu.get_cpu_capability() == "AVX512"
_IN_BFLOAT16: bool = _ONE_DNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Linear(nn.Linear):
    """Linear map x W^T + b, with optional ReLU: (..., I) -> (..., O)."""

    def forward(self, x: Tensor, relu: bool = False, kernels: Kernels = None) -> Tensor:
        learning = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        if learning and _for_one_dnn(x) and self._pays(x, relu):
            y: Tensor = _LearningOnCpu.apply(x, self.weight, self.bias, relu)  # type: ignore[no-untyped-call]
            return y
        if learning and relu and x.is_cuda and torch.compiler.is_compiling():
            rows = (narrowed(part) for part in (x.flatten(0, -2), self.weight, self.bias))
            y = _CutOff.apply(*rows)  # type: ignore[no-untyped-call]
            return y.view(*x.shape[:-1], -1)
        return mapped(x, self.weight, self.bias, relu, kernels)

    def _pays(self, x: Tensor, relu: bool) -> bool:
        """Whether oneDNN pays off: in bfloat16 torch uses it with less overhead, which dominates small products."""
        return (relu or not torch.is_autocast_enabled("cpu")) and x.numel() * self.out_features >= WORTH


def mapped(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False, kernels: Kernels = None) -> Tensor:
    """Linear map of x (..., I) by weight (O, I) and bias (O,), with optional ReLU: (..., O)."""
    if kernels is not None and x.numel() <= kernels.FEW * x.size(-1) and x.size(-1) <= kernels.WIDEST:
        y: Tensor = kernels.linear_few_rows(x, weight, bias, relu)
        return y
    if relu and kernels is not None:
        rows: Tensor = torch._addmm_activation(bias, x.flatten(0, -2), weight.T)  # one kernel for both
        return rows.view(*x.shape[:-1], -1)
    y = F.linear(x, weight, bias)
    return F.relu(y) if relu else y


class _CutOff(torch.autograd.Function):
    """ReLU(rows W^T + b) in the product's own kernel: rows (N, I), weight (O, I), bias (O,) -> (N, O).

    A compiler would apply ReLU in a second kernel, which reads and writes everything again.
    """

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


class _LearningOnCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        rows, matrix = narrowed(x).reshape(-1, x.size(-1)), narrowed(weight)  # (N, I), (O, I)
        y = _multiplied(rows, matrix, narrowed(bias), relu)
        ctx.save_for_backward(rows, matrix, y if relu else None)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, matrix, y = ctx.saved_tensors
        shape = gradients[0].shape[:-1]
        gradient = gradients[0].reshape(-1, gradients[0].size(-1))  # (N, O)
        if y is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        to_x = multiplied(gradient, matrix.T).view(*shape, -1) if ctx.needs_input_grad[0] else None
        to_weight = summed_products(gradient, rows) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, gradient.sum(0), None


def narrowed(x: Tensor) -> Tensor:
    """Cast x to the dtype that autocast uses, so that several maps of it share one copy."""
    device = x.device.type
    # Autocast does not support the meta device, on which shapes are tested.
    return x.to(torch.get_autocast_dtype(device)) if device != "meta" and torch.is_autocast_enabled(device) else x


def multiplied(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of rows (N, I) and matrix (O, I) transposed, plus bias (O,): (N, O)."""
    return _multiplied(rows, matrix, bias) if _for_one_dnn(rows) else F.linear(rows, matrix, bias)


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Product of left (N, O) transposed and right (N, I): (O, I).

    oneDNN copies a transposed first matrix, so the narrower one goes first; at equal widths it does not pay off.
    """
    if left.dtype != torch.float32 or left.size(1) == right.size(1) or not _for_one_dnn(left):
        return left.T @ right
    return _multiplied(left.T, right.T) if left.size(1) < right.size(1) else _multiplied(right.T, left.T).T


def _for_one_dnn(x: Tensor) -> bool:
    """Whether oneDNN is installed and faster than torch's default for x; never while compiling."""
    in_bfloat16 = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    able = _IN_BFLOAT16 if in_bfloat16 else _IN_SINGLE and x.dtype == torch.float32
    return able and x.device.type == "cpu" and not torch.compiler.is_compiling()


def _multiplied(rows: Tensor, matrix: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, bias, "relu" if relu else "none", [], "")
    return product


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout: set each number to 0 with `probability` and scale up the rest, like F.dropout.

    On a CPU F.dropout draws one number at a time, an eighth of a training step; here one 64-bit draw decides four
    elements, by 16 bits each, so that probabilities are multiples of 1/65536.
    """
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    threshold = min(round(probability * 65536), 65535)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    # Compared in place, 1 and 0 stay 16 bits wide: several times faster than converting booleans to numbers.
    keep = words.view(torch.int16)[: x.numel()].view(x.shape).ge_(threshold - 32768)
    return x * keep.to(x.dtype).mul_(65536 / (65536 - threshold))


class Dropout(nn.Module):
    """Module form of `dropout`."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.probability, self.training)
