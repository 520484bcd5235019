"""An engine backed by another: what the first refuses, the second does. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from transduce.errors import EngineRefusal
from transduce.forking import ForkLock
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import Hypothesis
from transduce.translation import Engine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")


class Fallback:
    """Runs `first`; `open_second` gives the engine for what it refuses, and is called when that first happens.

    Each refusal is told once, in a line on standard error. `note` says of what sort the second one's weights are, where
    they are those of the first.
    """

    def __init__(self, first: Engine, open_second: Callable[[EngineRefusal], Engine], note: str = "") -> None:
        self.first = first
        self.note = note
        self._open_second = open_second
        self._second: Engine | None = None
        self._told: set[str] = set()
        self._lock = ForkLock()

    def search(
        self,
        sources: Sequence[Sequence[int]],
        search: Any,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]]:
        return self._either(lambda engine: engine.search(sources, search, constraints, keys))

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._either(lambda engine: engine.score(sources, targets))

    def attend(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        return self._either(lambda engine: engine.attend(sources, targets, layer))

    def behind(self, refusal: EngineRefusal) -> Engine:
        """The engine that can be looked into, which the first has no way to be asked for; opened if it is not yet.

        With a note nothing is told: who looks reads it there.
        """
        return self._take_over(refusal, quietly=bool(self.note))

    def _either(self, work: Callable[[Engine], T]) -> T:
        try:
            return work(self.first)
        except EngineRefusal as refusal:
            return work(self._take_over(refusal))

    def _take_over(self, refusal: EngineRefusal, quietly: bool = False) -> Engine:
        with self._lock:  # threads that are refused together open one engine
            if self._second is None:
                self._second = self._open_second(refusal)
            if not quietly and str(refusal) not in self._told:
                self._told.add(str(refusal))
                tell(refusal)
            return self._second


def tell(refusal: EngineRefusal) -> None:
    """Say that torch does what was refused."""
    print(f"{refusal} (torch does it this time)", file=sys.stderr, flush=True)
