"""Which attention to show: a part, a layer and a head, or the mean of heads and layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transduce.errors import ConfigError
from transduce.inspection.record import PARTS, Inspection, Part

NAMES = {"encoder": "The encoder's attention", "decoder": "The decoder's own attention", "cross": "Cross-attention"}


@dataclass(frozen=True, eq=False)
class Drawn:
    """What to draw: weights (rows, columns), None where the model has none; what rows and columns stand for."""

    title: str
    weights: NDArray[np.float32] | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """`layer` and `head` count from 0; None is the mean of all. The mean of cross-attention is shown for words."""

    part: Part = "cross"
    layer: int | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ConfigError(f"part: expected encoder, decoder or cross, got {self.part!r}")
        if self.head is not None and self.layer is None:
            raise ConfigError(f"head: {self.head} was asked for without a layer; heads differ from layer to layer")

    @property
    def words(self) -> bool:
        """Whether this is what the word alignment shows."""
        return self.part == "cross" and self.layer is None

    def of(self, seen: Inspection) -> Drawn:
        """What an inspection has of it."""
        if self.words and seen.alignment is not None:
            weights = np.array(seen.alignment.weights, dtype=np.float32)
            return Drawn(
                "Where each word looks, mean of all heads", weights, seen.alignment.target, seen.alignment.source
            )
        maps = [one for one in seen.maps if one.part == self.part]
        rows = {"encoder": seen.source, "decoder": seen.read, "cross": seen.written}[self.part]
        columns = seen.read if self.part == "decoder" else seen.source
        if not maps:
            return Drawn(f"{NAMES[self.part]}: none in this model", None, rows, columns)
        if self.layer is None:
            found: NDArray[np.float32] = np.mean([one.weights.mean(0) for one in maps], axis=0)
            return Drawn(f"{NAMES[self.part]}, mean of all heads", found, rows, columns)
        check("layer", self.layer, len(maps))
        weights = maps[self.layer].weights
        if self.head is None:
            return Drawn(f"{NAMES[self.part]}, layer {self.layer}, mean of its heads", weights.mean(0), rows, columns)
        check("head", self.head, len(weights))
        return Drawn(f"{NAMES[self.part]}, layer {self.layer}, head {self.head}", weights[self.head], rows, columns)


def check(name: str, number: int, count: int) -> None:
    """Refuse a layer or a head that is not there."""
    if not -count <= number < count:
        raise ConfigError(f"{name}: expected one of the {count} that this model has, 0 to {count - 1}, got {number}")
