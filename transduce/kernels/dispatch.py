"""Which kernel does a piece of work: the only place that asks for device, type, shape, gradients or a compiler.

Each function gives a way that is faster here, or None: then the caller does what its formula says. Kernels of ours are
written in Triton, which torch for CPUs comes without; every one is held against torch's own by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.kernels.cpu_attention import attend_on_cpu

try:
    from transduce.kernels import decoding, training, varlen_attention
except ImportError:  # torch for CPUs comes without triton
    decoding = training = varlen_attention = None  # type: ignore[assignment]

Kernels = ModuleType | None  # a module of kernels that do a piece of work; None: do it as the formula says
# Keys up to which compiled training multiplies and sums attention plainly, which the compiler fuses: kernels made for
# long texts waste most of their tiles on sentences (measured: a quarter slower at 24 keys).
FEW_KEYS = 256
TILE_WIDTHS = {16, 32, 64, 128}  # widths of a head that varlen_attention.py and decoding.py can hold
LONGEST_ROW = 128  # tokens of a row that varlen_attention.py can look at where it lies


@dataclass(frozen=True)
class KernelSupport:
    """What kernels must know of an attention, or of all attentions of a stack.

    `dot_product`: its scores are products of prepared queries and keys, its weights a softmax. `tiles`: heads have a
    width that our kernels hold. `whole_rows`: it sees all of a row, by scores alone and without dropout, so that a
    kernel can look at packed rows where they lie. `unchanged`: queries, keys and values are of one width and stay as
    they are projected, so that they may stay side by side.
    """

    dot_product: bool
    tiles: bool
    whole_rows: bool
    unchanged: bool

    def __and__(self, other: KernelSupport) -> KernelSupport:
        """Of both."""
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
    """Equation 1 of prepared queries and keys without storing its weights: arguments as in `model.attention.attend`.

    torch's fused kernel, save where gradients are wanted: on a CPU its backward pass is slow (cpu_attention.py), and in
    compiled training on sentences the compiler's own chain of steps is faster.
    """
    queries, keys = query.size(2), key.size(2)
    compiling, learning = torch.compiler.is_compiling(), query.requires_grad
    if learning and compiling and keys <= FEW_KEYS:
        return None
    if causal and (queries != keys or bias is not None or (learning and query.device.type == "cpu")):
        mask, causal = causal_mask(queries, keys, query.device), False
    if learning and query.device.type == "cpu":
        if bias is not None or dropout or compiling:
            return None
        return attend_on_cpu(query, key, value, mask, query.size(-1) ** -0.5 if scale is None else scale)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, scale=scale)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(T, S), True where a query may look; the queries are the last T of the S places, and none looks ahead."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def varlen_kernels(x: Tensor, longest: int) -> Kernels:
    """Attention among packed rows of up to `longest` tokens."""
    return varlen_attention if x.is_cuda and longest <= LONGEST_ROW else None


def residual_kernels(x: Tensor) -> Kernels:
    """Sum, dropout and norm after a sublayer, with gradients; its sums are of single precision."""
    if training is None or not x.is_cuda or x.dtype == torch.float64 or x.size(-1) > training.WIDEST:
        return None
    return training


def loss_kernels(logits: Tensor) -> Kernels:
    """Losses and slopes of logits."""
    return training if logits.is_cuda and logits.dtype != torch.float64 else None


def search_kernels(logits: Tensor, paths: int, vocabulary: int) -> Kernels:
    """The choice of one token a path, on the GPU in use; torch, where it compiles a step, makes its own."""
    if decoding is None or not logits.is_cuda or torch.compiler.is_compiling():
        return None
    if logits.get_device() != torch.cuda.current_device():
        return None
    return decoding if decoding.serves(paths, vocabulary) else None


def decoding_kernels(x: Tensor) -> Kernels:
    """A step of decoding in a static cache, if nobody wants a gradient and torch does not compile, which has its own.

    x must be on the GPU in use: triton asks no tensor where it is.
    """
    plain = torch.is_grad_enabled() or torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling()
    return decoding if x.is_cuda and not plain and x.get_device() == torch.cuda.current_device() else None
