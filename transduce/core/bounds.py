"""Ranges of settings, as part of their types: `layers: Annotated[int, Bounds(1, LAYERS)] = 6`.

`check_bounds` checks them when a config is made, and core/schema.py writes them into the JSON schema for editors.

The largest sizes that a config may set are far above what any machine trains. Beyond them the number of weights no
longer fits into 64 bits, and loops over layers and batches do not end. Whether a model within them fits this machine is
checked elsewhere (training/machine.py).
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, cast

from transduce.core.errors import ConfigError

LAYERS = 1024  # as in the native engine
WIDTH = 1 << 20  # of vectors, heads and hidden layers
PLACES = 1 << 24  # of tables of positions and buckets, as in the native engine's files
FEW = 1 << 12  # of what is counted by hand: pixels of a patch, kernel width, shapes, steps of a bucket
TOKENS = 1 << 31  # per batch
ACCUMULATED = 1 << 16  # batches accumulated per update


@dataclass(frozen=True)
class Bounds:
    """A range from `least` to `most`; `above` and `below` exclude the ends, `expected` replaces the words of the error.

    NaN and infinity are outside every range.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False
    expected: str = ""
    too_large: str = ""  # replaces `expected` for a value that is too large

    def check(self, name: str, value: float) -> None:
        """Raise ConfigError for a value outside the range."""
        high_enough = value > self.least if self.above else value >= self.least
        low_enough = value < self.most if self.below or self.most == math.inf else value <= self.most
        if not (high_enough and low_enough):
            expected = (self.too_large if high_enough else "") or self.expected or self._range(too_low=not high_enough)
            raise ConfigError(f"{name}: expected {expected}, got {value!r}")

    def _range(self, too_low: bool) -> str:
        if not too_low and self.most < math.inf:
            return f"{'below' if self.below else 'at most'} {self.most:,}"
        if self.above:
            return f"a number above {self.least}"
        return f"at least {self.least}" if self.least else "0 or more"


PositiveInt = Annotated[int, Bounds(1)]
NonNegativeInt = Annotated[int, Bounds(0)]
PositiveFloat = Annotated[float, Bounds(0, above=True)]
NonNegativeFloat = Annotated[float, Bounds(0)]
BelowOne = Annotated[float, Bounds(0, 1, below=True, expected="at least 0 and below 1")]
Probability = Annotated[float, Bounds(0, 1, expected="a probability from 0 to 1")]


def check_bounds(config: object) -> None:
    """Raise ConfigError for settings outside the bounds of their types; call it in `__post_init__`."""
    for name, bounds in bounds_of(cast("Hashable", type(config))):
        bounds.check(name, getattr(config, name))


@functools.cache
def bounds_of(cls: Any) -> tuple[tuple[str, Bounds], ...]:
    """Map settings to their bounds; a subclass that only changes a default keeps the bounds of its base."""
    found: dict[str, Bounds] = {}
    for base in cls.__mro__[:-1]:
        for name, hint in typing.get_type_hints(base, include_extras=True).items():
            if (bounds := bounds_in(hint)) is not None:
                found.setdefault(name, bounds)
    return tuple(found.items())


def bounds_in(hint: Any) -> Bounds | None:
    """Return the bounds in a type, or None."""
    return next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Bounds)), None)
