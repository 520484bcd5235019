"""How good a text is: what a measure of the user's own must have, of single sentences and of whole texts.

Imports nothing, so that settings can name them; the builtin measures are in sentence.py and corpus.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

SentenceMetric = Literal["chrf", "bleu"]
Metric = Literal["bleu", "chrf", "loss", "wer", "cer", "accuracy"]


class SentenceMetricConfig(Protocol):
    """The config of a measure of sentences: what rewards a translation, or what candidates agree by."""

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Sequence[float]:
        """From 0 to 100, the more the better, for each hypothesis against the reference beside it."""
        ...


class MetricConfig(Protocol):
    """The config of a measure of whole texts, which validations are judged by."""

    @property
    def lower(self) -> bool:
        """Whether lower values are better."""
        ...

    def measure(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """One figure for all the translations of a text."""
        ...
