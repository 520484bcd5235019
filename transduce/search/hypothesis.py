"""What a search finds, and what every search looks like to its callers.

Imports no torch when it runs: a translator with another engine uses these names too.
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
    """What a log-probability is divided by, as a function of the length, which counts the end symbol.

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
        """Whether a longer hypothesis is divided by more (or as much), so that the longest bounds all scores."""
        return self.exponent >= 0


UNNORMALIZED = LengthPenalty()


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    `tokens` are without start and end symbol. `log_prob` is the model's own log-probability of the tokens and the
    end symbol, `token_log_probs` its parts, the end symbol's last; no temperature or constraint alters them. `score`
    is what the search ranks by. `finished` is False when the length limit came before the end symbol, or the end before
    all that was to be included.
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
        """From what a search wrote: all of it, or as far as the first end symbol.

        `coverage` is the coverage penalty to add, `complete` whether all is there that must be.
        """
        ended = eos in tokens
        length = tokens.index(eos) + 1 if ended else len(tokens)
        own = tokens[: length - 1] if ended else tokens
        return cls.written(own, token_log_probs[:length], ended and complete, penalty, coverage)

    @classmethod
    def written(
        cls,
        tokens: Sequence[int],
        token_log_probs: Sequence[float],
        finished: bool,
        penalty: LengthPenalty = UNNORMALIZED,
        coverage: float = 0.0,
    ) -> Hypothesis:
        """From tokens without end symbol and log-probabilities with it, where there is one."""
        parts = tuple(token_log_probs)
        log_prob = math.fsum(parts)
        score = log_prob / penalty(len(parts)) + coverage
        return cls(tuple(tokens), score, log_prob, finished, parts)


def best_first(hypothesis: Hypothesis) -> tuple[bool, float]:
    """What hypotheses are sorted by."""
    return not hypothesis.finished, -hypothesis.score


class SearchConfig(Protocol):
    """The settings of a search, such as `Beam(size=4)`; hashable, since the same ones share batches.

    A config may say more: what it `needs` of a model (fit.py), and where it finds several, how many `hypotheses` and
    `with_n_best(count)`.
    """

    def build(self) -> Search:
        """The search itself; torch is imported here at the earliest."""
        ...


class Reranker(Protocol):
    """A search config that finds candidates and leaves the choice among them to whoever sees their texts."""

    @property
    def hypotheses(self) -> int:
        """How many candidates a sentence has."""
        ...

    def choose(self, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Places among the texts, best first, each with the score it was chosen by."""
        ...


class Search(Protocol):
    """Finds translations of a batch of encoded sentences, the same ones whatever else is in the batch."""

    def __call__(
        self,
        model: Any,
        memory: Memory,
        symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """One list a sentence, best first and never empty.

        The model is of the kind that the search needs: `Autoregressive` or `NonAutoregressive` (see fit.py).
        `constraints`: how each translation must begin, what must appear in it and what must not, one a sentence.
        `keys`: one 64-bit number a sentence from which its random draws follow; without them the place in the batch is
        the key.
        """
        ...
