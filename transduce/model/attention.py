"""Multi-head attention as in "Attention Is All You Need", section 3.2: equation 1, and restricted windows of it.

Shapes: B batch, T queries, S keys, D d_model, H heads, G heads of keys and values, K the width of a head, which is
D / H unless `key_width` makes queries and keys narrower or wider than values. A mask is True where a query may attend.

Self-attention may be restricted to a neighbourhood (section 4 and Table 1 of the paper): O(r n d) instead of O(n^2 d).
A position attends to those at most `window` away: r is 2 window + 1, or window + 1 in a causal stack. Long sequences
are cut into N blocks of W = window positions, each of which attends to its own and its neighbours' keys: no T x S
product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.core.bounds import WIDTH, BelowOne, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels
from transduce.kernels.packing import PADDED, PaddedLayout
from transduce.model.layers import Linear, linear
from transduce.model.layers import dropout as drop
from transduce.model.scores import (
    DotScore,
    ScaledDot,
    Score,
    ScoreConfig,
    Softmax,
    ToWeights,
    Weights,
    WeightsConfig,
    softmax,
)


def within_window(queries: int, keys: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """Window mask (T, S), True where a key is within a query's window; the queries are the last T of S positions."""
    position = torch.arange(keys - queries, keys, device=device).unsqueeze(1)
    distance = position - torch.arange(keys, device=device)
    return (distance <= window) & (distance >= (0 if causal else -window))


def windowed_mask(
    mask: Tensor | None, queries: int, keys: int, window: int, causal: bool, device: torch.device
) -> Tensor:
    """Mask (B, H, T, S) of keys that both `mask`, broadcastable to it, and the window allow; for any score.

    Padding far from any real key attends to all real keys: attention kernels disagree on fully masked rows.
    """
    in_window = within_window(queries, keys, window, causal, device)
    if mask is None:
        return in_window
    both = mask & in_window
    return both | (mask & ~both.any(-1, keepdim=True))


class WindowBlocks:
    """Windowed self-attention over T = S positions as B * N short ones: cut queries, keys and values, then `join`."""

    def __init__(self, length: int, window: int, causal: bool) -> None:
        self.length, self.window = length, window
        self.neighbours = 2 if causal else 3  # blocks that a block attends to, itself included
        self.count = -(-length // window)
        self.causal = causal

    def queries(self, query: Tensor) -> Tensor:
        """Cut queries into blocks: (B, H, T, K) -> (B * N, H, W, K)."""
        return self._stacked(self._in_blocks(self._padded(query)))

    def keys(self, key: Tensor) -> Tensor:
        """Cut keys or values into blocks with their neighbours: (B, H, T, K) -> (B * N, H, W neighbours, K)."""
        ahead = 0 if self.causal else self.window
        padded = F.pad(self._padded(key), (0, 0, self.window, ahead))
        blocks = self._in_blocks(padded)  # (B, H, N + neighbours - 1, W, K)
        shifted = [blocks[:, :, first : first + self.count] for first in range(self.neighbours)]
        return self._stacked(torch.cat(shifted, dim=3))

    def mask(self, mask: Tensor | None, batch: int, device: torch.device) -> Tensor:
        """Cut a key mask (B, 1, 1, T), None for all real, into (B * N, 1, W, W neighbours): real, and in the window."""
        real = torch.ones(1, 1, self.length, 1, dtype=torch.bool, device=device) if mask is None else mask.mT
        keys = self.keys(real.expand(batch, -1, -1, -1)).mT  # (B * N, 1, 1, W neighbours)
        reach = self.window * self.neighbours
        in_window = within_window(reach, reach, self.window, self.causal, device)[self.window : 2 * self.window]
        visible = keys & in_window
        return visible | ~visible.any(-1, keepdim=True)  # blocks of padding only: their output is never used

    def join(self, heads: Tensor) -> Tensor:
        """Put the outputs of blocks together: (B * N, H, W, K) -> (B, H, T, K)."""
        blocks = heads.reshape(-1, self.count, *heads.shape[1:]).transpose(1, 2)  # (B, H, N, W, K)
        return blocks.flatten(2, 3)[:, :, : self.length]

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, self.count * self.window - self.length))

    def _in_blocks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.window, x.size(3))

    def _stacked(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)


Trace = dict[str, Tensor]
_EQUATION_1 = DotScore()


@dataclass(frozen=True)
class Attention:
    """Config of multi-head attention (section 3.2.2); the defaults are the paper's.

    `key_heads` below `heads` lets several query heads share one head of keys and values (grouped-query attention,
    Ainslie et al. 2023). `query_key_norm` gives queries and keys unit size before the score (Henry et al. 2020).
    """

    heads: Annotated[int, Bounds(1, WIDTH)] = 8
    key_heads: Annotated[int, Bounds(most=WIDTH)] = 0  # 0 = as many as heads
    # d_k, of queries and keys in a head (Table 3, row B); 0 = d_model / heads, as d_v always is
    key_width: Annotated[
        int, Bounds(0, WIDTH, expected="at least 1, or 0 for d_model / heads", too_large=f"at most {WIDTH:,}")
    ] = 0
    score: Score | ScoreConfig = ScaledDot()
    weights: Weights | WeightsConfig = Softmax()
    query_key_norm: bool = False
    dropout: BelowOne = 0.0  # on attention weights: not in section 5.4

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.key_heads < 0 or self.heads % (self.key_heads or self.heads):
            raise ConfigError(f"key_heads: expected a divisor of heads = {self.heads}, or 0, got {self.key_heads}")

    def widths(self, d_model: int) -> tuple[int, int]:
        """Return d_k and d_v: the width of a head's queries and keys, and of its values."""
        return self.key_width or d_model // self.heads, d_model // self.heads

    def check_width(self, d_model: int) -> None:
        if d_model % self.heads:
            raise ConfigError(f"heads: {self.heads} heads do not divide d_model = {d_model}; choose a divisor")

    def build(self, d_model: int) -> MultiHeadAttention:
        return MultiHeadAttention(self, d_model)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, bias: Tensor | None = None,
    dropout: float = 0.0, score: nn.Module = _EQUATION_1, to_weights: ToWeights = softmax,
    trace: Trace | None = None, name: str = "",
) -> Tensor:  # fmt: skip
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, equation 1; `trace` records the weights under `name`."""
    scores = score(query, key)  # (B, H, T, S)
    weights = to_weights(scores if bias is None else scores + bias, mask)
    if trace is not None:
        trace[name] = weights
    return drop(weights.to(value.dtype), dropout, True) @ value  # (B, H, T, K)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False,
    bias: Tensor | None = None, dropout: float = 0.0, score: nn.Module = _EQUATION_1, to_weights: ToWeights = softmax,
    trace: Trace | None = None, name: str = "",
) -> Tensor:  # fmt: skip
    """Compute `attention`, with a fused kernel where one computes the same and no trace is wanted.

    query (B, H, T, K), key and value (B, H, S, K), mask broadcastable to (B, H, T, S), bias (1, H, T, S) added to the
    scores. `causal` means that the queries are the last T of the S positions and none attends ahead (no other mask is
    then allowed). For attention that all our kernels support, the mask may be an `additive_mask`, without a bias.
    """
    causal = causal and bool(query.size(2) > 1)  # a single query is the last position, and attends to all
    if isinstance(score, DotScore) and to_weights is softmax and trace is None:
        prepared = score.prepare(query, key)
        output = dispatch.fused_attention(*prepared, value, mask, causal, bias, dropout, score.scale)
        if output is not None:
            return output
    if causal:
        mask = dispatch.causal_mask(query.size(2), key.size(2), query.device)
    return attention(query, key, value, mask, bias, dropout, score, to_weights, trace, name)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask into numbers to add to scores: 0 where attention is allowed, else the lowest finite number."""
    # Not torch.where, which copies both numbers to the device: a CUDA graph cannot record that.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True)
class AttentionMask:
    """The mask, bias and window of an attention, and where its weights are recorded (see `attend`).

    `mask` is True where a query may attend, or the value that a layout provides instead (kernels/packing.py). A
    `window` > 0 restricts each query to so many positions on either side.
    """

    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    window: int = 0
    trace: Trace | None = None
    name: str = ""


UNMASKED = AttentionMask()
RotaryFn = Callable[[Tensor], Tensor]  # heads (B, H, T, K) -> the same, rotated by position or unchanged


def identity(heads: Tensor) -> Tensor:
    """Leave queries and keys unrotated: the `RotaryFn` of schemes without rotation."""
    return heads


class MultiHeadAttention(nn.Module):
    """Multi-head attention: H heads side by side, joined by an output projection (section 3.2.2)."""

    def __init__(self, config: Attention, d_model: int) -> None:
        super().__init__()
        config.check_width(d_model)
        width, value_width = config.widths(d_model)
        self.groups = config.key_heads or config.heads
        self.repeats = config.heads // self.groups
        self.width, self.value_width = width, value_width
        self.dropout = config.dropout
        # The paper writes W^Q, W^K, W^V, W^O without biases; like the authors' own code and torch.nn we have them.
        self.query = Linear(d_model, config.heads * width)
        self.key = Linear(d_model, self.groups * width)
        self.value = Linear(d_model, self.groups * value_width)
        self.output = Linear(d_model, d_model)
        self.score = config.score.build(config.heads, width)
        self.to_weights = config.weights.build()
        dot_product = isinstance(self.score, DotScore) and self.to_weights is softmax
        tiles = dot_product and {width, value_width} <= dispatch.TILE_WIDTHS
        plain = type(self.score) is DotScore and self.repeats == 1 and width == value_width
        self.support = dispatch.KernelSupport(
            dot_product, tiles, tiles and not config.dropout, plain and not config.query_key_norm
        )
        self.query_norm = UnitNorm(width) if config.query_key_norm else nn.Identity()
        self.key_norm = UnitNorm(width) if config.query_key_norm else nn.Identity()
        self.joined: tuple[Tensor, Tensor] | None = None  # weights and biases of keys, values and queries, see `join`

    def join(self) -> None:
        """Store the weights of keys, values and queries side by side, so that decoding takes one product for all three.

        Each stays a parameter of its own, a view of the joint tensor: in-place changes reach both. Joined tensors keep
        their addresses, since recorded CUDA graphs refer to them.
        """
        maps = (self.key, self.value, self.query)
        if self.joined is not None and all(
            own.untyped_storage().data_ptr() == joint.untyped_storage().data_ptr()
            for each in maps
            for own, joint in zip((each.weight, each.bias), self.joined, strict=True)
        ):
            return
        with torch.inference_mode(False), torch.no_grad():
            weight, bias = torch.cat([each.weight for each in maps]), torch.cat([each.bias for each in maps])
            sizes = [each.out_features for each in maps]
            for each, own_weight, own_bias in zip(
                maps, torch.split(weight, sizes), torch.split(bias, sizes), strict=True
            ):
                each.weight.data, each.bias.data = own_weight, own_bias
        self.joined = weight, bias

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MultiHeadAttention:
        self.joined = None  # `_apply` moves or casts each weight by itself
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def project_kv(
        self, memory: Tensor, rotate: RotaryFn = identity, layout: PaddedLayout = PADDED
    ) -> tuple[Tensor, Tensor]:
        """Project memory (B, S, D) to keys and values (B, G, S, K)."""
        if layout.packed_qkv:
            pair = self._packed(memory, self.key, self.value)
            return pair, pair
        key, value = (layout.pad(x) for x in self._project(memory, layout.kernels, self.key, self.value))
        return rotate(self.key_norm(split(key, self.width))), split(value, self.value_width)

    def project_qkv(
        self, x: Tensor, rotate: RotaryFn = identity, layout: PaddedLayout = PADDED
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (B, T, D) to queries, keys and values for self-attention."""
        if layout.packed_qkv:
            packed = self._packed(x, self.query, self.key, self.value)
            return packed, packed, packed
        key, value, query = (
            layout.pad(part) for part in self._project(x, layout.kernels, self.key, self.value, self.query)
        )
        query, key = self.query_norm(split(query, self.width)), self.key_norm(split(key, self.width))
        return rotate(query), rotate(key), split(value, self.value_width)

    def forward(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: AttentionMask = UNMASKED,
        layout: PaddedLayout = PADDED,
    ) -> Tensor:
        """Attend from x (B, T, D) to projected keys and values: (B, T, D)."""
        query = self.query_norm(split(layout.pad(self.query(x, kernels=layout.kernels)), self.width))
        return self.attend(query, key, value, attention_mask, layout)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: AttentionMask = UNMASKED,
        layout: PaddedLayout = PADDED,
    ) -> Tensor:
        """Attend with projected queries (B, H, T, K), and join the heads: (B, T, D)."""
        output: Tensor = self.output(layout.attend(self, query, key, value, attention_mask), kernels=layout.kernels)
        return output

    def attend_past(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past: Any,
        attention_mask: AttentionMask,
        layout: PaddedLayout = PADDED,
    ) -> tuple[Tensor, Any]:
        """Append the newest keys and values to a cache, and attend to all of it: (B, T, D), and the new cache."""
        heads, cache = layout.attend_past(self, query, key, value, past, attention_mask)
        return self.output(heads, kernels=layout.kernels), cache

    def heads(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionMask) -> Tensor:
        """Attention output of each head before they are joined: (B, H, T, K)."""
        if self.repeats > 1:
            key, value = (heads.repeat_interleave(self.repeats, dim=1) for heads in (key, value))  # (B, H, S, K)
        dropout = self.dropout if self.training else 0.0
        attend_heads = partial(attend, dropout=dropout, score=self.score, to_weights=self.to_weights)
        mask, causal, bias = attention_mask.mask, attention_mask.causal, attention_mask.bias
        window, trace = attention_mask.window, attention_mask.trace
        queries, keys = query.size(2), key.size(2)
        if not window:
            return attend_heads(query, key, value, mask, causal, bias, trace=trace, name=attention_mask.name)
        if bias is None and trace is None and queries == keys > 2 * window:
            blocks = WindowBlocks(queries, window, causal)
            visible = blocks.mask(mask, len(query), query.device)
            return blocks.join(attend_heads(blocks.queries(query), blocks.keys(key), blocks.keys(value), visible))
        if bias is None and trace is None and mask is None and causal and keys > queries + window:
            key, value = (heads[:, :, -(queries + window) :] for heads in (key, value))  # the rest is not visible
        visible = windowed_mask(mask, queries, key.size(2), window, causal, query.device)
        return attend_heads(query, key, value, visible, bias=bias, trace=trace, name=attention_mask.name)

    def _project(self, x: Tensor, kernels: Kernels, *maps: Linear) -> Sequence[Tensor]:
        """Apply several maps to x; in compiled training as one product, where joining the weights is cheap."""
        # The joined copy is not a parameter: where gradients are wanted, each map is applied by itself.
        if self.joined is not None and len(maps) == 3 and not self.training and not torch.is_grad_enabled():
            return torch.split(linear(x, *self.joined, kernels=kernels), [each.out_features for each in maps], dim=-1)
        if not (self.training and torch.compiler.is_compiling()):
            x = dispatch.to_autocast_dtype(x)
            return [each(x, kernels=kernels) for each in maps]
        weight, bias = torch.cat([each.weight for each in maps]), torch.cat([each.bias for each in maps])
        return torch.split(F.linear(x, weight, bias), [each.out_features for each in maps], dim=-1)

    def _packed(self, x: Tensor, *maps: nn.Linear) -> Tensor:
        """Apply several maps to x (1, N, D) as one product, left packed: (1, N, maps, H, K)."""
        weight, bias = torch.cat([each.weight for each in maps]), torch.cat([each.bias for each in maps])
        return F.linear(x, weight, bias).view(*x.shape[:2], len(maps), -1, self.width)


def split(x: Tensor, width: int) -> Tensor:
    """Split into heads of a width: (B, T, H * K) -> (B, H, T, K)."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


class UnitNorm(nn.Module):
    """RMS norm over a head's width with a learned gain per dimension, shared by the heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, heads: Tensor) -> Tensor:
        return F.rms_norm(heads, self.weight.shape, self.weight.to(heads.dtype), eps=1e-6)
