"""Hypotheses, length penalties, and the interface of every search.

Imports no torch at run time: translators with other engines use these names too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from transduce.search.constraints import DecodingConstraints
from transduce.text.vocabulary import Symbols

if TYPE_CHECKING:
    from transduce.model.contract import Memory


LengthNormalization = Literal["gnmt", "power"]


@dataclass(frozen=True)
class LengthPenalty:
    """The divisor of a log-probability as a function of the length, which counts the end symbol.

    "gnmt" is ((5 + length) / 6)^exponent (Wu et al. 2016, equation 14), "power" is length^exponent, as in Marian,
    fairseq, Hugging Face's transformers and CTranslate2.
    """

    exponent: float = 0.0
    normalization: LengthNormalization = "gnmt"

    def __call__(self, length: int) -> float:
        base = (5 + length) / 6 if self.normalization == "gnmt" else max(length, 1)
        return float(base**self.exponent)

    @property
    def grows(self) -> bool:
        """Whether the divisor does not decrease with length, so that the longest path bounds all scores."""
        return self.exponent >= 0


UNNORMALIZED = LengthPenalty()


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    `tokens` are without start and end symbol. `log_prob` is the model's own log-probability of the tokens and the end
    symbol, `token_log_probs` its parts, the end symbol's last; unaffected by temperature and constraints. `score` is
    what the search ranks by. `finished` is False when the length limit came before the end symbol, or the end before
    all required phrases.
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float
    finished: bool
    token_log_probs: tuple[float, ...]

    @classmethod
    def read(
        cls,
        tokens: Sequence[int],
        token_log_probs: Sequence[float],
        eos: int,
        penalty: LengthPenalty = UNNORMALIZED,
        coverage: float = 0.0,
        complete: bool = True,
    ) -> Hypothesis:
        """Build a hypothesis from a search's tokens, up to the first end symbol if there is one.

        `coverage` is the coverage penalty to add, `complete` whether all required phrases are there.
        """
        ended = eos in tokens
        length = tokens.index(eos) + 1 if ended else len(tokens)
        text_tokens = tokens[: length - 1] if ended else tokens
        return cls.written(text_tokens, token_log_probs[:length], ended and complete, penalty, coverage)

    @classmethod
    def written(
        cls,
        tokens: Sequence[int],
        token_log_probs: Sequence[float],
        finished: bool,
        penalty: LengthPenalty = UNNORMALIZED,
        coverage: float = 0.0,
    ) -> Hypothesis:
        """Build a hypothesis from tokens without end symbol and log-probabilities including it, if finished."""
        parts = tuple(token_log_probs)
        log_prob = math.fsum(parts)
        score = log_prob / penalty(len(parts)) + coverage
        return cls(tuple(tokens), score, log_prob, finished, parts)


def best_first(hypothesis: Hypothesis) -> tuple[bool, float]:
    """Sort key: finished hypotheses first, then by falling score."""
    return not hypothesis.finished, -hypothesis.score


class Reranker(Protocol):
    """A search config that generates candidates and ranks them by their texts."""

    @property
    def hypotheses(self) -> int:
        """The number of candidates of a sentence."""
        ...

    def choose(self, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Choose among the candidates' texts: indices, best first, each with the score it was chosen by."""
        ...


class SearchConfig(Protocol):
    """Config of a search, such as `Beam(size=4)`; hashable, since equal ones share batches.

    One for other than autoregressive decoders states that in `needs` (settings.py). One that returns several
    translations of a sentence also has `hypotheses`, their number, and `with_n_best(count)`.
    """

    def build(self) -> Search:
        """Build the search; torch is imported here, so that a config can be read without it."""
        ...


class CandidatesConfig(SearchConfig, Protocol):
    """Config of a search that returns several candidates to choose from."""

    @property
    def needs(self) -> str:
        """Capability that the search requires of a decoder (settings.py)."""
        ...

    @property
    def hypotheses(self) -> int:
        """Number of candidates per sentence."""
        ...

    def with_n_best(self, count: int) -> CandidatesConfig:
        """Return a copy with `count` candidates."""
        ...


class Search(Protocol):
    """Generates translations of a batch of encoded sentences; results do not depend on the rest of the batch."""

    def __call__(
        self, model: Any, memory: Memory, symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None, keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Return hypotheses of each sentence, best first, at least one.

        The model is of the kind that the search needs: `Autoregressive` or `NonAutoregressive` (`check_search` in
        settings.py). `constraints` and `keys` have one entry per sentence; a key is a 64-bit number that seeds its
        random draws, by default its index in the batch.
        """
        ...
