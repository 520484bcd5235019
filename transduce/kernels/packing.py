"""The real tokens of a padded batch end to end: all that looks at one token alone then does no work on padding.

Only attention sees rows and places; before it tokens are spread over them, after it collected again, or it is a kernel
that looks at them where they lie. Numbers are those of the padded batch.
Shapes: B rows, T places each, N packed places, `*` what a token has (D, H and K, nothing).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


def key_mask(mask: Tensor) -> Tensor:
    """(B, S) as (B, 1, 1, S), for every head and query: look at real tokens only.

    A row of padding alone looks at all of it, for kernels differ in what they make of nothing to look at.
    """
    return (mask | ~mask.any(1, keepdim=True))[:, None, None, :]


class Attending(Protocol):
    """What a layout knows of a `MultiHeadAttention`; kernels are asked only where its score is a `DotScore`."""

    score: Any

    def heads(self, query: Tensor, key: Tensor, value: Tensor, sight: Any) -> Tensor:
        """What the heads find before they are joined, (B, H, T, K)."""
        ...


class PaddedLayout:
    """Tokens stay where they are, (B, T, *)."""

    beside: bool = False  # whether it takes queries, keys and values as one product leaves them
    sees_ancestors: ClassVar[bool] = False  # whether it keeps paths apart by itself, without a mask

    def __init__(self, kernels: ModuleType | None = None) -> None:
        """`kernels` do what looks at one token alone, in steps of decoding."""
        self.kernels = kernels

    def attend(self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, sight: Any) -> Tensor:
        """What the heads of an attention find, side by side: (B, T, H * K).

        query (B, H, T, K), key and value (B, G, S, K), `sight` as an attention takes it.
        """
        heads = attention.heads(query, key, value, sight)
        return self.collect(heads.transpose(1, 2).flatten(2))

    def attend_past(
        self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, past: Any, sight: Any
    ) -> tuple[Tensor, Any]:
        """The same to all that is remembered, the newest key and value included; and what is remembered now."""
        known = past.append(key, value)
        return self.attend(attention, query, known.key, known.value, sight), known

    def spread(self, x: Tensor) -> Tensor:
        return x

    def collect(self, x: Tensor) -> Tensor:
        return x

    def real(self, mask: Tensor | None) -> Tensor | None:
        """Where tokens are, in the layout that `collect` gives."""
        return mask

    def sight(self, mask: Tensor) -> Tensor:
        """What attention to these tokens is told of them."""
        return key_mask(mask)

    def within(self, start: int | Tensor) -> int | Tensor:
        """The place of each token in its row, as positions take it, for rows that begin at `start`."""
        return start


PADDED = PaddedLayout()


class PackedLayout(PaddedLayout):
    """(B, T, *) <-> (1, N, *) for the tokens at which mask (B, T) is True; there must not be more than `room` = N.

    Nothing waits for the device. Places of padding, and packed ones beyond the last token, hold the first token's
    numbers; nothing real looks at them, and no gradient comes from them.
    """

    def __init__(self, mask: Tensor, room: int) -> None:
        super().__init__()
        flat = mask.flatten()
        self.rows = tuple(mask.shape)
        places = torch.arange(flat.size(0), device=mask.device)
        slots = flat.cumsum(0) - 1
        self.kept = flat
        self.slots = slots.clamp(0, room - 1)  # (B * T,): the packed place of each token
        found = places.new_zeros(room + 1).scatter_(0, slots.where(flat, room), places)  # the last is for padding
        self.places = found[:room]  # (N,): where each packed token comes from
        self.used = torch.arange(room, device=mask.device) <= slots[-1]

    def spread(self, x: Tensor) -> Tensor:
        moved: Tensor = _Moved.apply(x.flatten(0, 1), self.slots, self.places, self.used)  # type: ignore[no-untyped-call]
        return moved.view(*self.rows, *moved.shape[1:])

    def collect(self, x: Tensor) -> Tensor:
        moved: Tensor = _Moved.apply(x.flatten(0, 1), self.places, self.slots, self.kept)  # type: ignore[no-untyped-call]
        return moved.unsqueeze(0)

    def real(self, mask: Tensor | None) -> Tensor:
        return self.used.unsqueeze(0)  # (1, N)


class VarlenLayout(PackedLayout):
    """Packed, and looked at where they lie: heads are (1, H, N, K), and `sight` is where each row starts.

    `beside`: what one product makes stays side by side, so that its gradient need not be put together: queries, keys
    and values of the same tokens are then one (1, N, 3, H, K), and keys and values alone (1, M, 2, H, K).
    """

    def __init__(self, mask: Tensor, room: int, longest: int, kernels: ModuleType, beside: bool = False) -> None:
        super().__init__(mask, room)
        self.longest = longest  # of a row, here and where it looks
        self.varlen = kernels
        self.beside = beside
        ends = mask.sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self.starts = torch.cat((ends.new_zeros(1), ends))  # (B + 1,)

    def spread(self, x: Tensor) -> Tensor:
        return x

    def sight(self, mask: Tensor) -> Tensor:
        return self.starts

    def within(self, start: int | Tensor) -> Tensor:
        return (self.places % self.rows[1] + start).unsqueeze(0)  # (1, N)

    def attend(self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, sight: Any) -> Tensor:
        """For query (1, H, N, K), key and value (1, G, M, K) whose rows begin at the sight's mask.

        What lies side by side is given once for each that is in it.
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
        both = self.starts, self.starts if sight.mask is None else sight.mask
        found: Tensor = self.varlen.attend_rows(parts, both, scale, sight.causal, self.longest)
        return found.flatten(1).unsqueeze(0)


def _by_token(heads: Tensor) -> Tensor:
    """(1, H, N, K) to (N, H, K)."""
    return heads.squeeze(0).transpose(0, 1)


class _Moved(torch.autograd.Function):
    """x[there]; the gradient of x comes back by x's own list of where each went, which needs no adding up.

    `kept` are the places of x that went anywhere for real; the others get none.
    """

    @staticmethod
    def forward(x: Tensor, there: Tensor, back: Tensor, kept: Tensor) -> Tensor:
        return x.index_select(0, there)  # on a CPU many times faster than x[there]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, back, kept = inputs
        ctx.save_for_backward(back, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, kept = ctx.saved_tensors
        (gradient,) = gradients
        found = gradient.index_select(0, back)
        shape = (-1,) + (1,) * (found.dim() - 1)
        return found * kept.view(shape), None, None, None


class StaticCacheLayout(PaddedLayout):
    """The newest token of each of K paths, (B, K, *), all of them at their sentence's position (B,)."""

    def __init__(self, position: Tensor, ancestors: Tensor, kernels: ModuleType | None) -> None:
        super().__init__(kernels)
        self.position, self.ancestors = position, ancestors

    def within(self, start: int | Tensor) -> Tensor:
        return self.position.unsqueeze(1)  # (B, 1)


class StaticKernelLayout(StaticCacheLayout):
    """The same, and kernels look at the cache where it lies, each path at its own ancestors."""

    kernels: ModuleType
    sees_ancestors = True

    def attend(self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, sight: Any) -> Tensor:
        """To the source: query (B, H, K, W), the sight's mask as `additive_mask` makes it."""
        query, key = attention.score.prepare(query, key)
        found: Tensor = self.kernels.attend_source(query, key, value, sight.mask, _scale(query, attention.score.scale))
        return found

    def attend_past(
        self, attention: Attending, query: Tensor, key: Tensor, value: Tensor, past: Any, sight: Any
    ) -> tuple[Tensor, Any]:
        """To what each path has written; the newest key and value are put into the cache."""
        query, key = attention.score.prepare(query, key)  # once for each key: prepared again, it stays as it is
        newest, scale = (key, value), _scale(query, attention.score.scale)
        cache = past.key, past.value
        found: Tensor = self.kernels.attend_held(query, newest, cache, self.position, self.ancestors, scale)
        return found, past


def _scale(query: Tensor, scale: float | None) -> float:
    return query.size(-1) ** -0.5 if scale is None else scale
