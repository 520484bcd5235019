"""What a translator works with: the engine that runs its model, and the results it gives. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from transduce.alignment import Alignment
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import Hypothesis

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Source: TypeAlias = Any  # tokens, a sequence of numbers; or the frames (n, width) of a recording or a picture


class Engine(Protocol):
    """Runs a model over token sequences (without bos and eos), or over frames."""

    def search(
        self, sources: Sequence[Source], search: Any, constraints: Sequence[DecodingConstraints], keys: Sequence[int]
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


@dataclass(frozen=True)
class Scored:
    """A given translation under the model: log-probability of all its tokens with the end symbol, and their number."""

    log_prob: float
    tokens: int

    @property
    def per_token(self) -> float:
        return self.log_prob / self.tokens
