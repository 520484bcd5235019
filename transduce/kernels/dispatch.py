"""Kernel selection: the only place that asks for device, dtype, shape, gradients or a compiler.

Each function returns a faster kernel for this device, or None: then the caller computes its formula in plain torch. Our
own kernels are in Triton, which torch for CPUs lacks; tests compare every one with torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.kernels import gradients
from transduce.kernels.gradients import product, summed_products, to_autocast_dtype

try:
    from transduce.kernels import decoding, training, varlen_attention
except ImportError:  # torch for CPUs comes without triton
    decoding = training = varlen_attention = None  # type: ignore[assignment]

__all__ = ["product", "summed_products", "to_autocast_dtype"]  # which the model and its losses use as they are

Kernels = ModuleType | None  # a module of kernels; None: plain torch
# Keys up to which compiled training computes attention with plain products, which the compiler fuses: kernels made for
# long texts waste most of their tiles on sentences (measured: a quarter slower at 24 keys).
FEW_KEYS = 256
TILE_WIDTHS = {16, 32, 64, 128}  # head widths that varlen_attention.py and decoding.py support
WORTH = 1 << 24  # multiplications from which on the oneDNN path pays off
LONGEST_ROW = 128  # longest row, in tokens, that varlen_attention.py supports


@dataclass(frozen=True)
class KernelSupport:
    """Properties of an attention, or of all attentions of a stack, that kernels depend on.

    `dot_product`: scores are products of prepared queries and keys, weights a softmax. `tiles`: head widths fit our
    kernels. `whole_rows`: a query attends to its whole row, with no bias or dropout, so that a kernel can work on
    packed rows in place. `unchanged`: queries, keys and values have one width and stay as projected, so they may stay
    packed in one tensor.
    """

    dot_product: bool
    tiles: bool
    whole_rows: bool
    unchanged: bool

    def __and__(self, other: KernelSupport) -> KernelSupport:
        """Combine the support of two attentions: what both support."""
        return KernelSupport(
            self.dot_product and other.dot_product,
            self.tiles and other.tiles,
            self.whole_rows and other.whole_rows,
            self.unchanged and other.unchanged,
        )


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    dropout: float,
    scale: float | None,
) -> Tensor | None:
    """Equation 1 of prepared queries and keys without storing its weights; arguments as in `model.attention.attend`.

    Uses torch's fused kernel except where gradients are wanted: on a CPU its backward pass is slow (gradients.py),
    and in compiled training on sentences the compiler's own fusion is faster.
    """
    queries, keys = query.size(2), key.size(2)
    compiling, needs_grad = torch.compiler.is_compiling(), query.requires_grad
    if needs_grad and compiling and keys <= FEW_KEYS:
        return None
    if causal and (queries != keys or bias is not None or (needs_grad and query.device.type == "cpu")):
        mask, causal = causal_mask(queries, keys, query.device), False
    if needs_grad and query.device.type == "cpu":
        if bias is not None or dropout or compiling:
            return None
        return gradients.attend_on_cpu(query, key, value, mask, query.size(-1) ** -0.5 if scale is None else scale)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, scale=scale)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Causal mask (T, S), True where a query may attend; the queries are the last T of the S positions."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, kernels: Kernels) -> Tensor | None:
    """Linear map of x (..., I) by weight (O, I) and bias (O,), with optional ReLU, in one faster kernel: (..., O).

    With gradients: oneDNN on a CPU where it pays off, and the product with its ReLU in compiled code on a GPU. Without:
    `kernels` of a decoding step.
    """
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        if gradients.for_one_dnn(x) and _one_dnn_pays(x, weight, relu):
            return gradients.linear_on_cpu(x, weight, bias, relu)
        if relu and x.is_cuda and torch.compiler.is_compiling():
            return gradients.linear_relu(x, weight, bias)
    if kernels is None:
        return None
    if x.numel() <= kernels.FEW * x.size(-1) and x.size(-1) <= kernels.WIDEST:
        few: Tensor = kernels.linear_few_rows(x, weight, bias, relu)
        return few
    if relu:
        rows: Tensor = torch._addmm_activation(bias, x.flatten(0, -2), weight.T)  # one kernel for both
        return rows.view(*x.shape[:-1], -1)
    return None


def fast_dropout(x: Tensor, probability: float) -> Tensor | None:
    """Dropout with cheaper draws than F.dropout's, on a CPU."""
    return gradients.dropout_on_cpu(x, probability) if x.device.type == "cpu" else None


def _one_dnn_pays(x: Tensor, weight: Tensor, relu: bool) -> bool:
    """Whether oneDNN pays off: in bfloat16 torch uses it with less overhead, which dominates small products."""
    return (relu or not torch.is_autocast_enabled("cpu")) and x.numel() * weight.size(0) >= WORTH


def varlen_kernels(x: Tensor, longest: int) -> Kernels:
    """Kernels for attention within packed rows of up to `longest` tokens."""
    return varlen_attention if x.is_cuda and longest <= LONGEST_ROW else None


def residual_kernels(x: Tensor) -> Kernels:
    """Kernels for residual, dropout and norm after a sublayer, with gradients; they sum in single precision."""
    if training is None or not x.is_cuda or x.dtype == torch.float64 or x.size(-1) > training.WIDEST:
        return None
    return training


def loss_kernels(logits: Tensor) -> Kernels:
    """Kernels for losses and the gradients of logits."""
    return training if logits.is_cuda and logits.dtype != torch.float64 else None


def search_kernels(logits: Tensor, paths: int, vocabulary: int) -> Kernels:
    """Kernels for greedy and beam steps on the current GPU; None under torch.compile, which generates its own."""
    if decoding is None or not logits.is_cuda or torch.compiler.is_compiling():
        return None
    if logits.get_device() != torch.cuda.current_device():
        return None
    return decoding if decoding.serves(paths, vocabulary) else None


def decoding_kernels(x: Tensor) -> Kernels:
    """Kernels for a decoding step in a static cache; None with gradients, autocast or torch.compile.

    x must be on the current GPU: triton does not check where tensors are.
    """
    plain = torch.is_grad_enabled() or torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling()
    return decoding if x.is_cuda and not plain and x.get_device() == torch.cuda.current_device() else None
