"""The keys and values that a decoder stack remembers: as many as there are, or in memory set aside once.

Shapes: B sentences, K paths of a sentence, L target places, S source places, G heads of keys and values, W the width
of a head, which may be another for keys than for values.
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
    """Keys and values (B, G, L, W) of one attention, G = H unless heads share them."""

    key: Tensor
    value: Tensor

    empty: ClassVar[bool] = False

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """All there is with the newest (B, G, t, W)."""
        return KVCache(torch.cat((self.key, key), dim=2), torch.cat((self.value, value), dim=2))


@dataclass(frozen=True)
class EmptyKVCache:
    """Before the first token."""

    empty: ClassVar[bool] = True

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """The newest alone."""
        return KVCache(key, value)


@dataclass(frozen=True)
class StaticKVCache(KVCache):
    """The same in memory set aside: keys and values (B, L, K, G, W), the paths of a place side by side.

    What a path needs thus lies together with what its sentence's other paths need: attention reads all of it once, for
    all K at a time, and the ancestor mask tells them apart.
    """

    @classmethod
    def of(cls, room: CacheShape, attention: MultiHeadAttention) -> StaticKVCache:
        """All zeros, not whatever the memory held: what nobody sees is still multiplied, by 0."""
        like, before = attention.key.weight, (room.sentences, room.length, room.paths, attention.groups)
        return cls(like.new_zeros(*before, attention.width), like.new_zeros(*before, attention.value_width))

    def at(self, where: tuple[Tensor, Tensor], reach: int) -> StaticKVView:
        """To be written `where` (numbers of sentences and places in them), and read as far as `reach`."""
        return StaticKVView(self.key, self.value, where, reach)


@dataclass(frozen=True)
class StaticKVView(KVCache):
    """Memory set aside, at one step."""

    where: tuple[Tensor, Tensor]
    reach: int

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """Writes keys and values (B, G, K, W) of the K newest; all there is: (B, G, reach * K, W)."""
        self.key.index_put_(self.where, key.transpose(1, 2))
        self.value.index_put_(self.where, value.transpose(1, 2))
        return KVCache(*(held[:, : self.reach].flatten(1, 2).transpose(1, 2) for held in (self.key, self.value)))


@dataclass(frozen=True)
class CrossKV:
    """What the decoder knows of the source: keys and values for each of its layers, and where they are real.

    mask (B, 1, 1, S) is True there, or a number to add to the scores (attention.additive_mask).
    """

    layers: tuple[KVCache, ...]
    mask: Tensor

    @classmethod
    def of(cls, room: CacheShape, attentions: Sequence[MultiHeadAttention], additive: bool) -> CrossKV:
        """Memory for the sources of all sentences, for the attention of each layer."""
        layers = []
        for attention in attentions:
            like, before = attention.key.weight, (room.sentences, attention.groups, room.source)
            widths = attention.width, attention.value_width
            layers.append(KVCache(*(like.new_zeros(*before, width) for width in widths)))
        mask = torch.zeros(room.sentences, 1, 1, room.source, dtype=torch.bool, device=like.device)
        return cls(tuple(layers), additive_mask(mask, like.dtype) if additive else mask)

    def put(self, slots: Tensor, view: CrossKV) -> None:
        """In the places slots (b,) what was found of b sentences of at most S tokens."""
        length = view.mask.size(-1)
        for held, new in zip(self.layers, view.layers, strict=True):
            held.key[:, :, :length].index_copy_(0, slots, new.key)
            held.value[:, :, :length].index_copy_(0, slots, new.value)
        mask = view.mask.new_zeros(len(slots), 1, 1, self.mask.size(-1))
        mask[..., :length] = view.mask
        self.mask.index_copy_(0, slots, mask if self.mask.dtype == torch.bool else additive_mask(mask, self.mask.dtype))
