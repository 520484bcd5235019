"""Attention as in "Attention Is All You Need", section 3.2: equation 1, and several heads side by side.

Shapes: B batch, T queries, S keys, D d_model, H heads, G heads of keys and values, K the width of a head, which is
D / H unless `key_width` makes queries and keys narrower or wider than values. A mask is True where a query may look.

Self-attention restricted to a neighbourhood (section 4 and Table 1 of the paper): O(r n d) instead of O(n^2 d).

A place sees those at most `window` away: r is 2 window + 1, or window + 1 where none looks ahead. Whole sequences are
cut into stretches of `window` places, each of which sees its own and its neighbours' keys: no sum over all pairs.
Shapes: B batch, H heads, T queries, S keys, N stretches of W = window places, K the width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.core.sizes import WIDTH, check_most
from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels
from transduce.kernels.packing import PADDED, PaddedLayout
from transduce.model.layers import Linear, mapped, narrowed
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
    """(T, S), True where a key is in the window of a query; the queries are the last T of the S places."""
    place = torch.arange(keys - queries, keys, device=device).unsqueeze(1)
    distance = place - torch.arange(keys, device=device)
    return (distance <= window) & (distance >= (0 if causal else -window))


def windowed_mask(
    mask: Tensor | None, queries: int, keys: int, window: int, causal: bool, device: torch.device
) -> Tensor:
    """`near` where mask, broadcastable to (B, H, T, S), lets one look too; for every score and every number of queries.

    Padding far from anything real looks at all that is real: kernels differ in what they make of nothing to look at.
    """
    nearby = within_window(queries, keys, window, causal, device)
    if mask is None:
        return nearby
    both = mask & nearby
    return both | (mask & ~both.any(-1, keepdim=True))


class WindowBlocks:
    """A self-attention of T = S places as one of B * N short ones: `cut` queries, keys and values, then `join`."""

    def __init__(self, length: int, window: int, causal: bool) -> None:
        self.length, self.window = length, window
        self.neighbours = 2 if causal else 3  # stretches that one sees, itself among them
        self.count = -(-length // window)
        self.causal = causal

    def queries(self, query: Tensor) -> Tensor:
        """(B, H, T, K) -> (B * N, H, W, K)."""
        return self._stacked(self._in_stretches(self._padded(query)))

    def keys(self, key: Tensor) -> Tensor:
        """(B, H, T, K) -> (B * N, H, W neighbours, K)."""
        ahead = 0 if self.causal else self.window
        padded = F.pad(self._padded(key), (0, 0, self.window, ahead))
        stretches = self._in_stretches(padded)  # (B, H, N + neighbours - 1, W, K)
        shifted = [stretches[:, :, first : first + self.count] for first in range(self.neighbours)]
        return self._stacked(torch.cat(shifted, dim=3))

    def mask(self, mask: Tensor | None, batch: int, device: torch.device) -> Tensor:
        """Real keys (B, 1, 1, T), or all, -> (B * N, 1, W, W neighbours): real, and in the window."""
        real = torch.ones(1, 1, self.length, 1, dtype=torch.bool, device=device) if mask is None else mask.mT
        cut = self.keys(real.expand(batch, -1, -1, -1)).mT  # (B * N, 1, 1, W neighbours)
        reach = self.window * self.neighbours
        nearby = within_window(reach, reach, self.window, self.causal, device)[self.window : 2 * self.window]
        seen = cut & nearby
        return seen | ~seen.any(-1, keepdim=True)  # of padding alone: of what it sees nothing is used

    def join(self, heads: Tensor) -> Tensor:
        """(B * N, H, W, K) -> (B, H, T, K)."""
        apart = heads.reshape(-1, self.count, *heads.shape[1:]).transpose(1, 2)  # (B, H, N, W, K)
        return apart.flatten(2, 3)[:, :, : self.length]

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, self.count * self.window - self.length))

    def _in_stretches(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.window, x.size(3))

    def _stacked(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)


Trace = dict[str, Tensor]
_EQUATION_1 = DotScore()


@dataclass(frozen=True)
class Attention:
    """Heads that do not cross, joined by one output projection (section 3.2.2); the defaults are the paper's.

    `key_heads` below `heads` lets several query heads share one head of keys and values (grouped-query attention,
    Ainslie et al. 2023). `query_key_norm` gives queries and keys unit size before the score (Henry et al. 2020).
    """

    heads: int = 8
    key_heads: int = 0  # 0 = as many as heads
    key_width: int = 0  # d_k, of queries and keys in a head (Table 3, row B); 0 = d_model / heads, as d_v always is
    score: Score | ScoreConfig = ScaledDot()
    weights: Weights | WeightsConfig = Softmax()
    query_key_norm: bool = False
    dropout: float = 0.0  # on attention weights: not in section 5.4

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ConfigError(f"heads: expected at least 1, got {self.heads}")
        if self.key_heads < 0 or self.heads % (self.key_heads or self.heads):
            raise ConfigError(f"key_heads: expected a divisor of heads = {self.heads}, or 0, got {self.key_heads}")
        check_most(self, WIDTH, "heads", "key_heads", "key_width")
        if self.key_width < 0:
            raise ConfigError(f"key_width: expected at least 1, or 0 for d_model / heads, got {self.key_width}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected at least 0 and below 1, got {self.dropout}")

    def widths(self, d_model: int) -> tuple[int, int]:
        """d_k and d_v: of a head's queries and keys, and of its values."""
        return self.key_width or d_model // self.heads, d_model // self.heads

    def check_width(self, d_model: int) -> None:
        if d_model % self.heads:
            raise ConfigError(f"heads: {self.heads} heads do not divide d_model = {d_model}; choose a divisor")

    def build(self, d_model: int) -> MultiHeadAttention:
        return MultiHeadAttention(self, d_model)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    score: nn.Module = _EQUATION_1,
    to_weights: ToWeights = softmax,
    trace: Trace | None = None,
    name: str = "",
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V, equation 1; `trace` is given the weights under `name`."""
    scores = score(query, key)  # (B, H, T, S)
    weights = to_weights(scores if bias is None else scores + bias, mask)
    if trace is not None:
        trace[name] = weights
    return drop(weights.to(value.dtype), dropout, True) @ value  # (B, H, T, K)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    score: nn.Module = _EQUATION_1,
    to_weights: ToWeights = softmax,
    trace: Trace | None = None,
    name: str = "",
) -> Tensor:
    """`attention`, by a fused kernel where there is one that does the same and no trace is wanted.

    query (B, H, T, K), key and value (B, H, S, K), mask broadcastable to (B, H, T, S), bias (1, H, T, S) added to the
    scores. `causal` means that the queries are the last T of the S places and none looks ahead (it takes no further
    mask). For attention that all of our kernels know the mask may be one of `additive_mask`, with no bias besides.
    """
    causal = causal and bool(query.size(2) > 1)  # a single query is the last place, and sees everything
    if isinstance(score, DotScore) and to_weights is softmax and trace is None:
        prepared = score.prepare(query, key)
        found = dispatch.fused_attention(*prepared, value, mask, causal, bias, dropout, score.scale)
        if found is not None:
            return found
    if causal:
        mask = dispatch.causal_mask(query.size(2), key.size(2), query.device)
    return attention(query, key, value, mask, bias, dropout, score, to_weights, trace, name)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add to scores: 0 where one may look, else the lowest there is."""
    # Not torch.where: it would bring both numbers to the device, for which a graph that is recorded cannot wait.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True)
class AttentionMask:
    """What queries may see, what is added to their scores, and where weights are noted (see `attend`).

    `mask` is True where a query may look, or what a layout gives in its place (packing.py). `window` > 0 lets each see
    so many places to either side.
    """

    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    window: int = 0
    trace: Trace | None = None
    name: str = ""


UNMASKED = AttentionMask()
RotaryFn = Callable[[Tensor], Tensor]  # heads (B, H, T, K) turned by their places, or left as they are


def identity(heads: Tensor) -> Tensor:
    return heads


class MultiHeadAttention(nn.Module):
    """h heads of width d_model / h (section 3.2.2)."""

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
        """Lay what makes keys, values and queries side by side, so that decoding takes one product for all three.

        Each stays a parameter of its own, a view of the whole: what changes it in place changes both. What is joined
        stays where it is, for whoever has recorded work knows it by its address.
        """
        maps = (self.key, self.value, self.query)
        if self.joined is not None and all(
            of_one.untyped_storage().data_ptr() == of_all.untyped_storage().data_ptr()
            for one in maps
            for of_one, of_all in zip((one.weight, one.bias), self.joined, strict=True)
        ):
            return
        with torch.inference_mode(False), torch.no_grad():
            weight, bias = torch.cat([one.weight for one in maps]), torch.cat([one.bias for one in maps])
            sizes = [one.out_features for one in maps]
            for one, own_weight, own_bias in zip(
                maps, torch.split(weight, sizes), torch.split(bias, sizes), strict=True
            ):
                one.weight.data, one.bias.data = own_weight, own_bias
        self.joined = weight, bias

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MultiHeadAttention:
        self.joined = None  # to another device or precision each weight goes by itself
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def project_kv(
        self, memory: Tensor, rotate: RotaryFn = identity, layout: PaddedLayout = PADDED
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, S, K) of what will be looked at, memory (B, S, D)."""
        if layout.beside:
            pair = self._beside(memory, self.key, self.value)
            return pair, pair
        key, value = (layout.spread(x) for x in self._project(memory, layout.kernels, self.key, self.value))
        return rotate(self.key_norm(split(key, self.width))), split(value, self.value_width)

    def project_qkv(
        self, x: Tensor, rotate: RotaryFn = identity, layout: PaddedLayout = PADDED
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same x, for self-attention."""
        if layout.beside:
            all_three = self._beside(x, self.query, self.key, self.value)
            return all_three, all_three, all_three
        key, value, query = (
            layout.spread(part) for part in self._project(x, layout.kernels, self.key, self.value, self.query)
        )
        query, key = self.query_norm(split(query, self.width)), self.key_norm(split(key, self.width))
        return rotate(query), rotate(key), split(value, self.value_width)

    def forward(
        self, x: Tensor, key: Tensor, value: Tensor, sight: AttentionMask = UNMASKED, layout: PaddedLayout = PADDED
    ) -> Tensor:
        """Look from x (B, T, D) at remembered keys and values; (B, T, D)."""
        query = self.query_norm(split(layout.spread(self.query(x, kernels=layout.kernels)), self.width))
        return self.attend(query, key, value, sight, layout)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sight: AttentionMask = UNMASKED,
        layout: PaddedLayout = PADDED,
    ) -> Tensor:
        """The same for queries (B, H, T, K) there are."""
        found: Tensor = self.output(layout.attend(self, query, key, value, sight), kernels=layout.kernels)
        return found

    def attend_past(
        self, query: Tensor, key: Tensor, value: Tensor, past: Any, sight: AttentionMask, layout: PaddedLayout = PADDED
    ) -> tuple[Tensor, Any]:
        """The same to all of a cache, to which the newest keys and values are appended; and the cache after it."""
        found, known = layout.attend_past(self, query, key, value, past, sight)
        return self.output(found, kernels=layout.kernels), known

    def heads(self, query: Tensor, key: Tensor, value: Tensor, sight: AttentionMask) -> Tensor:
        """What the heads find before they are joined, (B, H, T, K)."""
        if self.repeats > 1:
            key, value = (heads.repeat_interleave(self.repeats, dim=1) for heads in (key, value))  # (B, H, S, K)
        dropout = self.dropout if self.training else 0.0
        look = partial(attend, dropout=dropout, score=self.score, to_weights=self.to_weights)
        mask, causal, bias, window, trace = sight.mask, sight.causal, sight.bias, sight.window, sight.trace
        queries, keys = query.size(2), key.size(2)
        if not window:
            return look(query, key, value, mask, causal, bias, trace=trace, name=sight.name)
        if bias is None and trace is None and queries == keys > 2 * window:
            cut = WindowBlocks(queries, window, causal)
            seen = cut.mask(mask, len(query), query.device)
            return cut.join(look(cut.queries(query), cut.keys(key), cut.keys(value), seen))
        if bias is None and trace is None and mask is None and causal and keys > queries + window:
            key, value = (heads[:, :, -(queries + window) :] for heads in (key, value))  # the rest is out of sight
        seen = windowed_mask(mask, queries, key.size(2), window, causal, query.device)
        return look(query, key, value, seen, bias=bias, trace=trace, name=sight.name)

    def _project(self, x: Tensor, kernels: Kernels, *maps: Linear) -> Sequence[Tensor]:
        """x through several maps; in compiled training as one product, for which joining the weights costs little."""
        # The joined copy is no parameter: where a gradient is wanted, each map goes by itself.
        if self.joined is not None and len(maps) == 3 and not self.training and not torch.is_grad_enabled():
            return torch.split(mapped(x, *self.joined, kernels=kernels), [one.out_features for one in maps], dim=-1)
        if not (self.training and torch.compiler.is_compiling()):
            x = narrowed(x)
            return [projection(x, kernels=kernels) for projection in maps]
        weight, bias = torch.cat([one.weight for one in maps]), torch.cat([one.bias for one in maps])
        return torch.split(F.linear(x, weight, bias), [one.out_features for one in maps], dim=-1)

    def _beside(self, x: Tensor, *maps: nn.Linear) -> Tensor:
        """x (1, N, D) through several maps by one product, whose result stays as it is: (1, N, maps, H, K)."""
        weight, bias = torch.cat([one.weight for one in maps]), torch.cat([one.bias for one in maps])
        return F.linear(x, weight, bias).view(*x.shape[:2], len(maps), -1, self.width)


def split(x: Tensor, width: int) -> Tensor:
    """Into heads of a width: (B, T, H * K) -> (B, H, T, K)."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


class UnitNorm(nn.Module):
    """Root mean square 1 over a head's width, then a learned factor a place; shared by the heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, heads: Tensor) -> Tensor:
        return F.rms_norm(heads, self.weight.shape, self.weight.to(heads.dtype), eps=1e-6)
