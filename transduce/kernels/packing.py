"""Packing: the real tokens of a padded batch end to end, so that token-wise layers do no work on padding.

Only attention needs rows and positions: tokens are padded before it and packed again after it, or a varlen kernel works
on packed rows directly. Results equal those of the padded batch.
Shapes: B rows, T positions each, N packed positions, `*` trailing dimensions (D, H and K, or none).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


def key_mask(mask: Tensor) -> Tensor:
    """Key mask (B, S) -> (B, 1, 1, S), for every head and query: attend to real tokens only.

    A row of padding alone attends to all of it, because attention kernels disagree on fully masked rows.
    """
    return (mask | ~mask.any(1, keepdim=True))[:, None, None, :]


class Attending(Protocol):
    """The parts of a `MultiHeadAttention` that layouts need; kernels are used only where its score is a `DotScore`."""

    score: Any

    def heads(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any) -> Tensor:
        """Attention output of each head before they are joined: (B, H, T, K)."""
        ...


class PaddedLayout:
    """The padded layout: tokens stay (B, T, *)."""

    packed_qkv: bool = False  # whether queries, keys and values stay packed in the tensor of one product
    sees_ancestors: ClassVar[bool] = False  # whether its kernels follow ancestors, without a mask

    def __init__(self, kernels: ModuleType | None = None) -> None:
        """Create a layout; `kernels` compute token-wise layers in decoding steps."""
        self.kernels = kernels

    def attend(self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any) -> Tensor:
        """Compute the heads of an attention, concatenated: (B, T, H * K).

        query (B, H, T, K), key and value (B, G, S, K), `attention_mask` as an attention takes it.
        """
        heads = attention.heads(query, key, value, attention_mask)
        return self.pack(heads.transpose(1, 2).flatten(2))

    def attend_past(
        self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, past: Any, attention_mask: Any
    ) -> tuple[Tensor, Any]:
        """Append the newest key and value to a cache, and attend to all of it; returns heads and the new cache."""
        cache = past.append(key, value)
        return self.attend(attention, query, cache.key, cache.value, attention_mask), cache

    def pad(self, x: Tensor) -> Tensor:
        return x

    def pack(self, x: Tensor) -> Tensor:
        return x

    def real(self, mask: Tensor | None) -> Tensor | None:
        """The mask of real tokens, in the layout of `pack`."""
        return mask

    def attention_mask(self, mask: Tensor) -> Tensor:
        """The mask for attention to these tokens."""
        return key_mask(mask)

    def positions(self, start: int | Tensor) -> int | Tensor:
        """The position of each token in its row, as position schemes take it, for rows that begin at `start`."""
        return start


PADDED = PaddedLayout()


class PackedLayout(PaddedLayout):
    """Packed layout: (B, T, *) <-> (1, N, *) of the tokens where mask (B, T) is True; at most `capacity` = N of them.

    Nothing waits for the device. Padded positions, and packed ones beyond the last token, hold the first token's
    values; nothing real attends to them, and they pass no gradient.
    """

    def __init__(self, mask: Tensor, capacity: int) -> None:
        super().__init__()
        flat = mask.flatten()
        self.rows = tuple(mask.shape)
        indices = torch.arange(flat.size(0), device=mask.device)
        slots = flat.cumsum(0) - 1
        self.is_real = flat
        self.slots = slots.clamp(0, capacity - 1)  # (B * T,): the packed index of each token
        # The last one is for padding.
        sources = indices.new_zeros(capacity + 1).scatter_(0, slots.where(flat, capacity), indices)
        self.sources = sources[:capacity]  # (N,): the padded index of each packed token
        self.used = torch.arange(capacity, device=mask.device) <= slots[-1]

    def pad(self, x: Tensor) -> Tensor:
        moved: Tensor = _MovedRows.apply(x.flatten(0, 1), self.slots, self.sources, self.used)  # type: ignore[no-untyped-call]
        return moved.view(*self.rows, *moved.shape[1:])

    def pack(self, x: Tensor) -> Tensor:
        moved: Tensor = _MovedRows.apply(x.flatten(0, 1), self.sources, self.slots, self.is_real)  # type: ignore[no-untyped-call]
        return moved.unsqueeze(0)

    def real(self, mask: Tensor | None) -> Tensor:
        return self.used.unsqueeze(0)  # (1, N)


class VarlenLayout(PackedLayout):
    """Packed layout for varlen kernels: heads are (1, H, N, K), and the attention mask is where each row starts.

    `packed_qkv`: the result of one product stays one tensor, so that its gradient need not be concatenated: queries,
    keys and values of the same tokens are then (1, N, 3, H, K), and keys and values alone (1, M, 2, H, K).
    """

    def __init__(
        self, mask: Tensor, capacity: int, longest: int, kernels: ModuleType, packed_qkv: bool = False
    ) -> None:
        super().__init__(mask, capacity)
        self.longest = longest  # longest row of queries or keys
        self.varlen = kernels
        self.packed_qkv = packed_qkv
        ends = mask.sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self.starts = torch.cat((ends.new_zeros(1), ends))  # (B + 1,)

    def pad(self, x: Tensor) -> Tensor:
        return x

    def attention_mask(self, mask: Tensor) -> Tensor:
        return self.starts

    def positions(self, start: int | Tensor) -> Tensor:
        return (self.sources % self.rows[1] + start).unsqueeze(0)  # (1, N)

    def attend(self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any) -> Tensor:
        """Attend with query (1, H, N, K), key and value (1, G, M, K), whose rows begin at the starts in the mask.

        Tensors that hold several of them are passed once per use.
        """
        query, key = attention.score.prepare(query, key)
        scale = _scale(query, attention.score.scale)
        if query.dim() == 5:
            parts = [query.squeeze(0)]
        elif key.dim() == 5:
            parts = [_by_token(query), key.squeeze(0)]
        else:
            repeats = query.size(1) // key.size(1)
            if repeats > 1:
                key, value = (heads.repeat_interleave(repeats, dim=1) for heads in (key, value))
            parts = [_by_token(heads) for heads in (query, key, value)]
        both = self.starts, self.starts if attention_mask.mask is None else attention_mask.mask
        heads: Tensor = self.varlen.attend_rows(parts, both, scale, attention_mask.causal, self.longest)
        return heads.flatten(1).unsqueeze(0)


def _by_token(heads: Tensor) -> Tensor:
    """(1, H, N, K) -> (N, H, K)."""
    return heads.squeeze(0).transpose(0, 1)


class _MovedRows(torch.autograd.Function):
    """x[there], with a backward pass that gathers by the inverse index instead of scattering with sums.

    `used` are the rows of x that were really moved; the others get no gradient.
    """

    @staticmethod
    def forward(x: Tensor, index: Tensor, inverse: Tensor, used: Tensor) -> Tensor:
        return x.index_select(0, index)  # on a CPU many times faster than x[index]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, inverse, used = inputs
        ctx.save_for_backward(inverse, used)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inverse, used = ctx.saved_tensors
        (gradient,) = gradients
        moved = gradient.index_select(0, inverse)
        shape = (-1,) + (1,) * (moved.dim() - 1)
        return moved * used.view(shape), None, None, None


class StaticCacheLayout(PaddedLayout):
    """The newest token of each of K paths, (B, K, *), all at their sentence's position (B,)."""

    def __init__(self, position: Tensor, ancestors: Tensor, kernels: ModuleType | None) -> None:
        super().__init__(kernels)
        self.position, self.ancestors = position, ancestors

    def positions(self, start: int | Tensor) -> Tensor:
        return self.position.unsqueeze(1)  # (B, 1)


class StaticKernelLayout(StaticCacheLayout):
    """Static-cache layout whose kernels read the cache in place, each path at its own ancestors."""

    kernels: ModuleType
    sees_ancestors = True

    def attend(self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any) -> Tensor:
        """Attend to the source: query (B, H, K, W), with an additive mask."""
        query, key = attention.score.prepare(query, key)
        heads: Tensor = self.kernels.attend_source(
            query, key, value, attention_mask.mask, _scale(query, attention.score.scale)
        )
        return heads

    def attend_past(
        self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, past: Any, attention_mask: Any
    ) -> tuple[Tensor, Any]:
        """Attend to each path's own past; the newest key and value are written to the cache."""
        query, key = attention.score.prepare(query, key)  # once per key; `prepare` is idempotent
        newest, scale = (key, value), _scale(query, attention.score.scale)
        cache = past.key, past.value
        heads: Tensor = self.kernels.attend_cache(query, newest, cache, self.position, self.ancestors, scale)
        return heads, past


def _scale(query: Tensor, scale: float | None) -> float:
    return query.size(-1) ** -0.5 if scale is None else scale
