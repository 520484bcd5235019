"""The interface of engines and their results, and a fallback from one engine to another. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from transduce.core.errors import EngineRefusal
from transduce.core.processes import ForkLock
from transduce.core.progress import say
from transduce.search import Hypothesis, SearchConfig
from transduce.search.constraints import DecodingConstraints
from transduce.text.alignment import Alignment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")
Source: TypeAlias = Any  # tokens, a sequence of integers; or the frames (n, width) of a recording or a picture


class Engine(Protocol):
    """Runs a model over token sequences (without bos and eos), or over frames."""

    @property
    def decoder_layers(self) -> int:
        """How many decoder layers `attend` can read one by one; 0 where it has no attention to read."""
        ...

    def search(
        self, sources: Sequence[Source], search: SearchConfig,
        constraints: Sequence[DecodingConstraints], keys: Sequence[int],
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Hypotheses of each source, best first, by the given search config."""
        ...

    def score(self, sources: Sequence[Source], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each target token, the end symbol last."""
        ...

    def attend(
        self, sources: Sequence[Source], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        """Attention of each target token to each source token (T, S), in one decoder layer or the mean of all."""
        ...


@dataclass(frozen=True)
class Translation:
    """The translation of one text.

    `score` is what the search ranks by and `log_prob` the model's log-probability (summed over the parts of a long
    text); `tokens` are the subword pieces, `token_log_probs` the log-probability of each and of the end symbol;
    `finished` is False where the length limit cut the output (or left no room for all required phrases). `alternatives`
    holds the other hypotheses if more than one was requested (for a text that was not split into parts), `alignment`
    the source positions, if requested. `protection` says how spans such as URLs
    were kept: by "marks" that the model copied, or by translating the text "around" them; "" if there are none.
    `warnings` name what may be wrong: "numbers" where some have another value than in the text.
    `confidence` is the probability that the translation is acceptable (`translate/confidence.py`), None where the model
    does not say; of a text in parts it is their mean by tokens.
    `missing_terms` are the glossary's terms for this text that it lacks.
    """

    text: str
    score: float = 0.0
    log_prob: float = 0.0
    tokens: tuple[str, ...] = ()
    finished: bool = True
    parts: int = 1
    alternatives: tuple[Translation, ...] = ()
    alignment: Alignment | None = None
    protection: str = ""
    warnings: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    confidence: float | None = None
    missing_terms: tuple[str, ...] = ()

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
            token_log_probs=tuple(log for part in parts for log in part.token_log_probs),
            confidence=_confidence_of(parts),
            warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
            missing_terms=tuple(dict.fromkeys(term for part in parts for term in part.missing_terms)),
        )


def _confidence_of(parts: Sequence[Translation]) -> float | None:
    """The mean confidence of parts by their tokens; None if a part that has tokens has none."""
    weighed = [(part.confidence, len(part.tokens)) for part in parts if part.tokens]
    if not weighed or any(confidence is None for confidence, _ in weighed):
        return None
    return sum((confidence or 0.0) * count for confidence, count in weighed) / sum(count for _, count in weighed)


@dataclass(frozen=True)
class Scored:
    """A given translation under the model: log-probability of all its tokens with the end symbol, and their number."""

    log_prob: float
    tokens: int

    @property
    def per_token(self) -> float:
        return self.log_prob / self.tokens


class Fallback:
    """Runs `first`, and what it does not support with a second engine, opened by `open_second` on first need.

    Each reason is reported once, in a line on standard error. `note` describes the second engine's weights, if they are
    those of the first.
    """

    def __init__(self, first: Engine, open_second: Callable[[EngineRefusal], Engine], note: str = "") -> None:
        self.first = first
        self.note = note
        self._open_second = open_second
        self._second: Engine | None = None
        self._reported: set[str] = set()
        self._lock = ForkLock()

    def search(
        self, sources: Sequence[Sequence[int]], search: SearchConfig,
        constraints: Sequence[DecodingConstraints], keys: Sequence[int],
    ) -> list[list[Hypothesis]]:  # fmt: skip
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
        """Open the second engine for a request that the first has no method for, such as inspection.

        With a note nothing is reported: the caller shows the note.
        """
        return self._take_over(refusal, quiet=bool(self.note))

    def _either(self, work: Callable[[Engine], T]) -> T:
        try:
            return work(self.first)
        except EngineRefusal as refusal:
            return work(self._take_over(refusal))

    def _take_over(self, refusal: EngineRefusal, quiet: bool = False) -> Engine:
        with self._lock:  # threads refused together open one engine
            if self._second is None:
                self._second = self._open_second(refusal)
            if not quiet and str(refusal) not in self._reported:
                self._reported.add(str(refusal))
                report(refusal)
            return self._second


def report(refusal: EngineRefusal) -> None:
    """Report on stderr that torch takes over."""
    say(f"{refusal} (torch does it this time)")
