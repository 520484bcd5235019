"""Ranges of settings, as part of their types: `layers: Annotated[int, Bounds(1, LAYERS)] = 6`.

`check_bounds` holds a config to them when it is made, and core/schema.py tells editors.

The largest sizes that a config may ask for are far above what any machine trains. Beyond them numbers of weights no
longer fit into 64 bits, and loops over layers and batches do not end. Whether a model within them fits this machine is
another matter (training/machine.py).
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, cast

from transduce.core.errors import ConfigError

LAYERS = 1024  # as the native engine has it
WIDTH = 1 << 20  # of vectors, heads and hidden layers
PLACES = 1 << 24  # of tables of positions and buckets, as in the native engine's files
FEW = 1 << 12  # of what is counted by hand: pixels of a patch, places of a kernel, shapes, steps of a bucket
TOKENS = 1 << 31  # of a batch
ACCUMULATED = 1 << 16  # batches that are made before an update


@dataclass(frozen=True)
class Bounds:
    """From `least` to `most`; `above` and `below` leave the ends out, `expected` says it in words of its own.

    What is not a finite number lies within no bounds.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False
    expected: str = ""
    too_large: str = ""  # what is expected instead of a value that is too large, where that is said in other words

    def check(self, name: str, value: float) -> None:
        """Refuse a value outside."""
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
    """Refuse settings outside the bounds that their types name; to be called from `__post_init__`."""
    for name, bounds in bounds_of(cast("Hashable", type(config))):
        bounds.check(name, getattr(config, name))


@functools.cache
def bounds_of(cls: Any) -> tuple[tuple[str, Bounds], ...]:
    """Of each setting, those of the class nearest that has any: another default takes none away."""
    found: dict[str, Bounds] = {}
    for base in cls.__mro__[:-1]:
        for name, hint in typing.get_type_hints(base, include_extras=True).items():
            if (bounds := bounds_in(hint)) is not None:
                found.setdefault(name, bounds)
    return tuple(found.items())


def bounds_in(hint: Any) -> Bounds | None:
    """The bounds that a type names, if it does."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Bounds)), None)
