"""Contracts of the user's own metrics, of sentences and of corpora.

Imports nothing, so that settings can name them; the builtin metrics are in sentence.py and corpus.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

SentenceMetric = Literal["chrf", "bleu"]
Metric = Literal["bleu", "chrf", "loss", "wer", "cer", "accuracy"]


class SentenceMetricConfig(Protocol):
    """Config of a sentence metric: a reward in training, or the utility of minimum Bayes risk decoding."""

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Sequence[float]:
        """Score each hypothesis against the reference at its index: 0 to 100, higher is better."""
        ...


class MetricConfig(Protocol):
    """Config of a corpus metric for validation."""

    @property
    def lower(self) -> bool:
        """Whether lower values are better."""
        ...

    def measure(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Compute one score for all translations of a text."""
        ...
