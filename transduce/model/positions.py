"""Position schemes (section 3.5): six ways to encode positions, behind three methods.

A scheme adds to the embeddings (`add`), rotates queries and keys (`rotate`) or adds to attention scores (`bias`); it
overrides the method that it uses. `start` is the number of tokens read before, so that decoding token by token sees the
same positions as reading all at once. In a static cache each sentence has its own position: `start` is a tensor (B,),
for all vectors of a row (`rotate` takes one per vector).
Shapes: B batch, T length, D d_model, H heads, K their width.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import torch
from torch import Tensor, nn

from transduce.core.bounds import PLACES, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.kernels import dispatch


class PositionScheme(nn.Module):
    """No positions, the base of all schemes: an encoder without positions is permutation-equivariant."""

    def add(self, x: Tensor, start: int | Tensor) -> Tensor:
        """Add positions to the embeddings x (B, T, D)."""
        return x

    def rotate(self, heads: Tensor, start: int | Tensor) -> Tensor:
        """Rotate queries or keys (B, H, T, K) of self-attention; `start` may be a tensor, (B, T) or (B, 1)."""
        return heads

    def bias(self, queries: int, keys: int) -> Tensor | None:
        """Bias (1, H, queries, keys) of self-attention scores; the queries are the last of the keys' positions."""
        return None

    def bias_at(self, start: Tensor, keys: int) -> Tensor | None:
        """Bias (B, H, 1, keys) for queries at positions start (B,), and keys at the first `keys` positions."""
        return None

    def reaches(self, length: int) -> bool:
        """Whether a sequence may be so long. Call it before `start` is a tensor, whose values are not checked."""
        return True


# -- added to the embeddings ------------------------------------------------------------------------------------------


def sinusoids(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same; interleaved, as printed."""
    if _shapes_alone():
        return torch.empty(length, d_model)
    angle = angles(length, d_model, base)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :d_model].float()


def _shapes_alone() -> bool:
    """Whether tensors are on the meta device, where torch would load its compiler for this, which takes a second."""
    return torch.get_default_device().type == "meta"


def angles(length: int, width: int, base: float) -> Tensor:
    """Angles pos / base^(2i / width): (length, width / 2, rounded up), in float64."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    even = torch.arange(0, width, 2, dtype=torch.float64)
    return position / base ** (even / width)


def add_row(x: Tensor, table: Tensor, start: Tensor) -> Tensor:
    """Add to x (B, T, D) the table row of each batch row's position start (B,)."""
    kernels = dispatch.decoding_kernels(x)
    if kernels is None:
        return x + table[start][:, None].to(x.dtype)
    added: Tensor = kernels.lookup(table, start, 1.0, x)
    return added


class SinusoidalPositions(PositionScheme):
    """Sinusoidal positions of the paper. The table grows for longer sequences; it is not saved."""

    table: Tensor

    def __init__(self, d_model: int, base: float = 10000.0) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("table", sinusoids(1024, d_model, base), persistent=False)

    def add(self, x: Tensor, start: int | Tensor) -> Tensor:
        if isinstance(start, Tensor):
            return add_row(x, self.table, start)
        self.reaches(start + x.size(1))
        return x + self.table[start : start + x.size(1)].to(x.dtype)

    def reaches(self, length: int) -> bool:
        if length > self.table.size(0):
            self.table = sinusoids(2 * length, self.table.size(1), self.base).to(self.table)
        return True


class LearnedPositions(PositionScheme):
    """A learned vector for each of the first `longest` positions (section 3.5, Table 3 row E)."""

    looked_up: ClassVar[tuple[str, ...]] = ("vectors",)

    def __init__(self, d_model: int, longest: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(longest, d_model))
        if not _shapes_alone():
            nn.init.normal_(self.vectors, std=d_model**-0.5)

    def add(self, x: Tensor, start: int | Tensor) -> Tensor:
        if isinstance(start, Tensor):
            return add_row(x, self.vectors, start)
        end = start + x.size(1)
        if not self.reaches(end):
            raise ConfigError(
                f"positions.longest: a sequence has {end} tokens, and positions are learned for"
                f" {self.vectors.size(0)}; split the text, or train with a larger 'longest'"
            )
        return x + self.vectors[start:end]

    def reaches(self, length: int) -> bool:
        return length <= self.vectors.size(0)


# -- turning queries and keys -----------------------------------------------------------------------------------------


class RotaryPositions(PositionScheme):
    """Rotary positions: each pair of a head's numbers is rotated by pos * base^(-2i / K) (Su et al. 2021, eq. 15).

    The dot product of two rotated vectors depends on their distance, not on their positions.
    """

    table: Tensor

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("table", self._table(1024, width), persistent=False)  # (length, K / 2, 2)

    def _table(self, length: int, width: int) -> Tensor:
        if _shapes_alone():
            return torch.empty(length, width // 2, 2)
        angle = angles(length, width, self.base)
        return torch.stack((angle.cos(), angle.sin()), dim=-1).float()

    def reaches(self, length: int) -> bool:
        if length > self.table.size(0):
            self.table = self._table(2 * length, 2 * self.table.size(1)).to(self.table)
        return True

    def rotate(self, heads: Tensor, start: int | Tensor) -> Tensor:
        if isinstance(start, Tensor):
            rotations = self.table[start].unsqueeze(1)  # (B, 1, T, K / 2, 2)
        else:
            self.reaches(start + heads.size(2))
            rotations = self.table[start : start + heads.size(2)]
        cos, sin = rotations.to(heads.dtype).unbind(-1)  # (T, K / 2)
        even, odd = heads[..., 0::2], heads[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


# -- added to the scores ----------------------------------------------------------------------------------------------


def distances(queries: int, keys: int, device: torch.device) -> Tensor:
    """Distances (queries, keys) from each key to each query, negative for keys ahead."""
    return torch.arange(keys - queries, keys, device=device).unsqueeze(1) - torch.arange(keys, device=device)


def alibi_slopes(heads: int) -> list[float]:
    """Slopes 2^(-8 h / H) for h = 1 .. H; for other H than powers of two completed as by the authors."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return (slopes + between)[:heads]


class DistanceScheme(PositionScheme):
    """Base of schemes whose bias depends on the distance between query and key, and on the head."""

    def of(self, distance: Tensor) -> Tensor:
        """Bias (B, H, queries, keys) of distances (B, queries, keys), as `distances` returns them."""
        raise NotImplementedError

    def bias(self, queries: int, keys: int) -> Tensor:
        return self.of(distances(queries, keys, self._device)[None])

    def bias_at(self, start: Tensor, keys: int) -> Tensor:
        return self.of((start[:, None] - torch.arange(keys, device=start.device))[:, None])

    @property
    def _device(self) -> torch.device:
        return next(itertools.chain(self.parameters(), self.buffers())).device


class AlibiPositions(DistanceScheme):
    """ALiBi: -slope * distance for each head, nothing learned (Press et al. 2022); symmetric in an encoder."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def of(self, distance: Tensor) -> Tensor:
        return -self.slopes.view(1, -1, 1, 1) * distance[:, None].abs()


class RelativeBiasPositions(DistanceScheme):
    """A learned bias for each head and bucket of distances (Raffel et al. 2020, T5).

    One table for all layers. In an encoder half of the buckets are for keys ahead.
    """

    looked_up: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, heads: int, buckets: int, farthest: int, causal: bool) -> None:
        super().__init__()
        self.buckets, self.farthest, self.causal = buckets, farthest, causal
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def of(self, distance: Tensor) -> Tensor:
        return self.table[self._bucket(distance)].permute(0, 3, 1, 2)  # (B, H, queries, keys)

    def _bucket(self, distance: Tensor) -> Tensor:
        """Bucket of each distance: half of the buckets are exact, the rest grow logarithmically up to `farthest`."""
        first, buckets = torch.zeros_like(distance), self.buckets
        if not self.causal:
            buckets //= 2
            first = (distance < 0) * buckets
        distance = distance.clamp(min=0) if self.causal else distance.abs()
        exact = buckets // 2
        far = (distance.clamp(min=1) / exact).log() / math.log(self.farthest / exact) * (buckets - exact)
        return first + distance.where(distance < exact, (exact + far.long()).clamp(max=buckets - 1))


# -- choices ----------------------------------------------------------------------------------------------------------


class PositionsConfig(Protocol):
    """Config of a position scheme."""

    def check_width(self, width: int) -> None:
        """Raise ConfigError for an unsupported head width."""
        ...

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        """Build the scheme of a stack with `heads` heads of width `width`; `causal` in a decoder."""
        ...


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed sines and cosines added to the embeddings (the paper); the longest wavelength is 2 pi times `base`."""

    base: Annotated[float, Bounds(1, above=True)] = 10000.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def check_width(self, width: int) -> None:
        """Accept any head width."""

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        return SinusoidalPositions(d_model, self.base)


@dataclass(frozen=True)
class Learned:
    """A learned vector per position, added to the embeddings."""

    longest: Annotated[int, Bounds(1, PLACES)] = 512

    def __post_init__(self) -> None:
        check_bounds(self)

    def check_width(self, width: int) -> None:
        """Accept any head width."""

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        return LearnedPositions(d_model, self.longest)


@dataclass(frozen=True)
class Rotary:
    """Queries and keys rotated by their position (RoPE)."""

    base: Annotated[float, Bounds(1, above=True)] = 10000.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def check_width(self, width: int) -> None:
        if width % 2:
            raise ConfigError(f"positions: 'rotary' rotates pairs, and a head is {width} wide; make it even")

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        return RotaryPositions(width, self.base)


@dataclass(frozen=True)
class Alibi:
    """A bias that falls linearly with the distance (ALiBi)."""

    def check_width(self, width: int) -> None:
        """Accept any head width."""

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        return AlibiPositions(heads)


@dataclass(frozen=True)
class RelativeBias:
    """A learned bias for each distance, added to the scores (T5)."""

    buckets: Annotated[int, Bounds(most=PLACES)] = 32
    farthest: Annotated[int, Bounds(most=PLACES)] = 128
    LEAST: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.buckets < self.LEAST or self.buckets % 2:
            raise ConfigError(f"buckets: expected an even number of at least {self.LEAST}, got {self.buckets}")
        if self.farthest <= self.buckets // 2:
            raise ConfigError(f"farthest: expected more than half of buckets = {self.buckets}, got {self.farthest}")

    def check_width(self, width: int) -> None:
        """Accept any head width."""

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        return RelativeBiasPositions(heads, self.buckets, self.farthest, causal)


@dataclass(frozen=True)
class Unordered:
    """No positions at all."""

    def check_width(self, width: int) -> None:
        """Accept any head width."""

    def build(self, d_model: int, heads: int, width: int, causal: bool) -> PositionScheme:
        return PositionScheme()


Positions = Sinusoidal | Learned | Rotary | Alibi | RelativeBias | Unordered
