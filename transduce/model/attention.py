"""Attention as in "Attention Is All You Need", section 3.2: equation 1, and several heads side by side.

Shapes: B batch, T queries, S keys, D d_model, H heads, G heads of keys and values, K the width of a head, which is
D / H unless `key_width` makes queries and keys narrower or wider than values. A mask is True where a query may look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import ConfigError
from transduce.model.attention_on_cpu import attend_on_cpu
from transduce.model.dropout import dropout as drop
from transduce.model.linear import Linear, mapped, narrowed
from transduce.model.packing import PADDED, PaddedLayout
from transduce.model.scores import DotScore, ScaledDot, Score, Softmax, ToWeights, Weights, softmax
from transduce.model.stepping import Stepping
from transduce.model.window import WindowBlocks, windowed_mask
from transduce.sizes import WIDTH, check_most

Trace = dict[str, Tensor]
_EQUATION_1 = DotScore()
# Keys up to which compiled training multiplies and sums attention plainly, which the compiler fuses: kernels made for
# long texts waste most of their tiles on sentences (measured: a quarter slower at 24 keys).
SHORT = 256
TILED = {16, 32, 64, 128}  # widths of a head that attention_on_gpu.py and decoding_on_gpu.py can hold


@dataclass(frozen=True)
class Attention:
    """Heads that do not cross, joined by one output projection (section 3.2.2); the defaults are the paper's.

    `key_heads` below `heads` lets several query heads share one head of keys and values (grouped-query attention,
    Ainslie et al. 2023). `query_key_norm` gives queries and keys unit size before the score (Henry et al. 2020).
    """

    heads: int = 8
    key_heads: int = 0  # 0 = as many as heads
    key_width: int = 0  # d_k, of queries and keys in a head (Table 3, row B); 0 = d_model / heads, as d_v always is
    score: Score = ScaledDot()
    weights: Weights = Softmax()
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
    """softmax(Q K^T / sqrt(d_k)) V, equation 1, or another score and other weights in its place.

    query (B, H, T, K), key and value (B, H, S, K), mask broadcastable to (B, H, T, S), bias (1, H, T, S) added to the
    scores. Where the fused kernel is sure to be used, the mask may be one of `hidden`, with no bias besides. `causal`
    means that the queries are the last T of the S places and none looks ahead (it takes no further mask). With a trace
    the weights are kept under `name`; without one the fused kernel does the same sum without storing them, where it
    knows the score, save where gradients are wanted: on a CPU (attention_on_cpu.py), and in compiled training on
    sentences, where the compiler's own chain of steps is faster.
    """
    queries, keys = query.size(2), key.size(2)
    compiling = torch.compiler.is_compiling()
    learning_on_cpu = query.requires_grad and query.device.type == "cpu"
    known = isinstance(score, DotScore) and to_weights is softmax and trace is None
    fused = known and not learning_on_cpu and not (query.requires_grad and compiling and keys <= SHORT)
    causal = causal and bool(queries > 1)  # a single query is the last place, and sees everything
    if causal and (not fused or queries != keys or bias is not None):
        mask, causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries), False
    if fused and isinstance(score, DotScore):
        query, key = score.prepare(query, key)
        if bias is not None:
            bias = bias.to(query.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, scale=score.scale)
    plain = known and learning_on_cpu and bias is None and not dropout and not compiling
    if plain and isinstance(score, DotScore):
        scale = query.size(-1) ** -0.5 if score.scale is None else score.scale
        return attend_on_cpu(*score.prepare(query, key), value, mask, scale)
    scores = score(query, key)  # (B, H, T, S)
    weights = to_weights(scores if bias is None else scores + bias, mask)
    if trace is not None:
        trace[name] = weights
    return drop(weights.to(value.dtype), dropout, True) @ value  # (B, H, T, K)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add to scores: 0 where one may look, else the lowest there is."""
    # Not torch.where: it would bring both numbers to the device, for which a graph that is recorded cannot wait.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True)
class AttentionMask:
    """What queries may see, what is added to their scores, and where weights are noted (see `attend`).

    `mask` is True where a query may look, or what a layout gives in its place (packing.py). `window` > 0 lets each see
    so many places to either side (window.py).
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
        self.fused = isinstance(self.score, DotScore) and self.to_weights is softmax
        # Whether our kernels know it, and whether tokens can be looked at where they lie packed (packing.py).
        self.tiled = self.fused and {width, value_width} <= TILED
        self.short = self.tiled and not config.dropout
        # Whether queries, keys and values are alike and left as they were made, and so may stay side by side.
        self.alike = type(self.score) is DotScore and self.groups == config.heads and width == value_width
        self.alike = self.alike and not config.query_key_norm
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
        key, value = (layout.spread(x) for x in self._project(memory, self.key, self.value))
        return rotate(self.key_norm(split(key, self.width))), split(value, self.value_width)

    def project_qkv(
        self, x: Tensor, rotate: RotaryFn = identity, layout: PaddedLayout = PADDED
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same x, for self-attention."""
        if layout.beside:
            all_three = self._beside(x, self.query, self.key, self.value)
            return all_three, all_three, all_three
        key, value, query = (layout.spread(part) for part in self._project(x, self.key, self.value, self.query))
        query, key = self.query_norm(split(query, self.width)), self.key_norm(split(key, self.width))
        return rotate(query), rotate(key), split(value, self.value_width)

    def forward(
        self, x: Tensor, key: Tensor, value: Tensor, sight: AttentionMask = UNMASKED, layout: PaddedLayout = PADDED
    ) -> Tensor:
        """Look from x (B, T, D) at remembered keys and values; (B, T, D)."""
        query = self.query_norm(split(layout.spread(self.query(x)), self.width))
        return self.attend(query, key, value, sight, layout)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, sight: AttentionMask = UNMASKED, layout: PaddedLayout = PADDED
    ) -> Tensor:
        """The same for queries (B, H, T, K) there are."""
        if layout.direct and isinstance(self.score, DotScore):
            query, key = self.score.prepare(query, key)
            found: Tensor = self.output(layout.attend(query, key, value, sight.mask, sight.causal, self.score.scale))
            return found
        if self.repeats > 1:
            key, value = (heads.repeat_interleave(self.repeats, dim=1) for heads in (key, value))  # (B, H, S, K)
        heads = self.heads(query, key, value, sight)
        joined: Tensor = self.output(layout.collect(heads.transpose(1, 2).flatten(2)))  # (B, T, D)
        return joined

    def heads(self, query: Tensor, key: Tensor, value: Tensor, sight: AttentionMask) -> Tensor:
        """What the heads find before they are joined, (B, H, T, K); all heads have keys and values."""
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

    def step(self, x: Tensor, memory: tuple[Tensor, Tensor], rotate: RotaryFn, layout: Stepping) -> Tensor:
        """Self-attention of the newest tokens x (B, K, D) of K paths, in memory set aside; (B, K, D)."""
        query, key, value = self.project_qkv(x, rotate)
        assert isinstance(self.score, DotScore)
        query, key = self.score.prepare(query, key)  # once for each key: prepared again, it stays as it is
        found: Tensor = self.output(layout.attend_held(query, (key, value), memory, self.score.scale))
        return found

    def _project(self, x: Tensor, *maps: nn.Linear) -> Sequence[Tensor]:
        """x through several maps; in compiled training as one product, for which joining the weights costs little."""
        # The joined copy is no parameter: where a gradient is wanted, each map goes by itself.
        if self.joined is not None and len(maps) == 3 and not self.training and not torch.is_grad_enabled():
            return torch.split(mapped(x, *self.joined), [one.out_features for one in maps], dim=-1)
        if not (self.training and torch.compiler.is_compiling()):
            x = narrowed(x)
            return [projection(x) for projection in maps]
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
