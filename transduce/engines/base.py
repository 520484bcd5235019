"""What a translator works with: the engine that runs its model, and the results it gives. Imports no torch.

An engine backed by another: what the first refuses, the second does. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from transduce.core.errors import EngineRefusal
from transduce.core.locks import ForkLock
from transduce.core.progress import say
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import Hypothesis, SearchConfig
from transduce.text.alignment import Alignment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Source: TypeAlias = Any  # tokens, a sequence of numbers; or the frames (n, width) of a recording or a picture


class Engine(Protocol):
    """Runs a model over token sequences (without bos and eos), or over frames."""

    @property
    def decoder_layers(self) -> int:
        """How many decoder layers `attend` can read one by one; 0 where it has no attention to read."""
        ...

    def search(
        self,
        sources: Sequence[Source],
        search: SearchConfig,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """Hypotheses of each source, best first, by the given search config."""
        ...

    def score(self, sources: Sequence[Source], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each target token, the end symbol last."""
        ...

    def attend(
        self, sources: Sequence[Source], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        """How much each target token looks at each source token (T, S), in one decoder layer or the mean of all."""
        ...


@dataclass(frozen=True)
class Translation:
    """What became of one text.

    `score` is what the search ranks by and `log_prob` the model's log-probability (sums over the parts of a long text);
    `tokens` are the subword pieces; `finished` is False where the length limit cut the output (or left no room for all
    that was to be included). `alternatives` holds the other hypotheses when more than one was asked for (of a text that
    was not cut into parts), `alignment` where in the source it came from, when that was asked for.
    """

    text: str
    score: float = 0.0
    log_prob: float = 0.0
    tokens: tuple[str, ...] = ()
    finished: bool = True
    parts: int = 1
    alternatives: tuple[Translation, ...] = ()
    alignment: Alignment | None = None

    @classmethod
    def joined(cls, parts: Sequence[Translation], text: str, alignment: Alignment | None = None) -> Translation:
        """The translations of parts that follow each other as one, whose `text` the caller puts together."""
        return cls(
            text,
            sum(part.score for part in parts),
            sum(part.log_prob for part in parts),
            tuple(token for part in parts for token in part.tokens),
            all(part.finished for part in parts),
            len(parts),
            alignment=alignment,
        )


@dataclass(frozen=True)
class Scored:
    """A given translation under the model: log-probability of all its tokens with the end symbol, and their number."""

    log_prob: float
    tokens: int

    @property
    def per_token(self) -> float:
        return self.log_prob / self.tokens


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
        search: SearchConfig,
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

    @property
    def decoder_layers(self) -> int:
        return self._either(lambda engine: engine.decoder_layers)

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
    say(f"{refusal} (torch does it this time)")
