"""KV caches of a decoder stack: growing, or in memory allocated once.

Shapes: B sentences, K paths of a sentence, L target positions, S source positions, G heads of keys and values, W the
width of a head, which may differ between keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transduce.model.attention import MultiHeadAttention, additive_mask
from transduce.model.contract import CacheShape


@dataclass(frozen=True)
class KVCache:
    """Keys and values (B, G, L, W) of one attention; G = H unless heads share them."""

    key: Tensor
    value: Tensor

    empty: ClassVar[bool] = False

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """Return the cache with the newest keys and values (B, G, t, W) appended."""
        return KVCache(torch.cat((self.key, key), dim=2), torch.cat((self.value, value), dim=2))


@dataclass(frozen=True)
class EmptyKVCache:
    """The cache before the first token."""

    empty: ClassVar[bool] = True

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """Return a cache of the first keys and values."""
        return KVCache(key, value)


@dataclass(frozen=True)
class StaticKVCache(KVCache):
    """Keys and values in memory allocated once: (B, L, K, G, W), the paths of a position side by side.

    A path's entries thus lie next to those of its sentence's other paths: attention reads all of it once, for all K
    paths, and the ancestor mask separates them.
    """

    @classmethod
    def of(cls, cache_shape: CacheShape, attention: MultiHeadAttention) -> StaticKVCache:
        """Allocate zeros, not uninitialised memory: masked entries are still multiplied, by weight 0."""
        weight, shape = (
            attention.key.weight,
            (cache_shape.sentences, cache_shape.length, cache_shape.paths, attention.groups),
        )
        return cls(weight.new_zeros(*shape, attention.width), weight.new_zeros(*shape, attention.value_width))

    def at(self, where: tuple[Tensor, Tensor], reach: int) -> StaticKVView:
        """Return a view for one step that writes at `where` (sentence and position indices) and reads up to `reach`."""
        return StaticKVView(self.key, self.value, where, reach)


@dataclass(frozen=True)
class StaticKVView(KVCache):
    """A static cache at one step."""

    where: tuple[Tensor, Tensor]
    reach: int

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """Write keys and values (B, G, K, W) of the K newest; return those up to `reach`: (B, G, reach * K, W)."""
        self.key.index_put_(self.where, key.transpose(1, 2))
        self.value.index_put_(self.where, value.transpose(1, 2))
        return KVCache(*(tensor[:, : self.reach].flatten(1, 2).transpose(1, 2) for tensor in (self.key, self.value)))


@dataclass(frozen=True)
class CrossKV:
    """Cross-attention cache: keys and values of the source for each decoder layer, and the source mask.

    mask (B, 1, 1, S) is True at real tokens, or an additive mask (attention.additive_mask).
    """

    layers: tuple[KVCache, ...]
    mask: Tensor

    @classmethod
    def of(cls, cache_shape: CacheShape, attentions: Sequence[MultiHeadAttention], additive: bool) -> CrossKV:
        """Allocate the cache for the attention of each layer."""
        layers = []
        for attention in attentions:
            weight, shape = attention.key.weight, (cache_shape.sentences, attention.groups, cache_shape.source)
            widths = attention.width, attention.value_width
            layers.append(KVCache(*(weight.new_zeros(*shape, width) for width in widths)))
        mask = torch.zeros(cache_shape.sentences, 1, 1, cache_shape.source, dtype=torch.bool, device=weight.device)
        return cls(tuple(layers), additive_mask(mask, weight.dtype) if additive else mask)

    def put(self, slots: Tensor, source: CrossKV) -> None:
        """Store the sources of b sentences, of at most S tokens, in rows `slots` (b,)."""
        length = source.mask.size(-1)
        for cache, new in zip(self.layers, source.layers, strict=True):
            cache.key[:, :, :length].index_copy_(0, slots, new.key)
            cache.value[:, :, :length].index_copy_(0, slots, new.value)
        mask = source.mask.new_zeros(len(slots), 1, 1, self.mask.size(-1))
        mask[..., :length] = source.mask
        self.mask.index_copy_(0, slots, mask if self.mask.dtype == torch.bool else additive_mask(mask, self.mask.dtype))
