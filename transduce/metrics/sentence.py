"""chrF and smoothed BLEU of single sentences, fast enough to compare every candidate with every other.

The scores equal sacreBLEU's `sentence_chrf` (Popović, 2015) and `sentence_bleu` (exponential smoothing: method 3 of
Chen and Cherry, 2014), for one reference. A text is read once into sets: the k-th occurrence of an n-gram is a separate
element, so that clipped matches are intersections, and those of many texts one matrix product.
Shapes: N hypotheses, M references, n orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from transduce.core.errors import DataError
from transduce.core.plugins import name_of
from transduce.metrics import SentenceMetric as SentenceMetric
from transduce.metrics import SentenceMetricConfig

Floats = NDArray[np.float64]
Grams = tuple[frozenset[Hashable], ...]  # one set per order; as many elements as the text has n-grams
CHARACTERS, WORDS, BETA = 6, 4, 2  # sacreBLEU's defaults


@dataclass(frozen=True)
class SentenceScorer:
    """A sentence metric: `scorer(hypotheses, references)` line by line, `scorer.matrix(...)` all pairs; 0 to 100.

    `read` extracts the n-grams of a text; `combine` turns matches, hypothesis and reference counts (..., n) into
    scores.
    """

    read: Callable[[str], Grams]
    combine: Callable[[Floats, Floats, Floats], Floats]

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """Score each hypothesis against its reference: (N,)."""
        if len(hypotheses) != len(references):
            raise DataError(f"{len(hypotheses)} hypotheses and {len(references)} references; give one reference each")
        if not hypotheses:
            return np.zeros(0)
        known = {text: self.read(text) for text in {*hypotheses, *references}}  # each text is read once
        pairs = [(known[one], known[other]) for one, other in zip(hypotheses, references, strict=True)]
        matches = [[len(a & b) for a, b in zip(hypothesis, reference, strict=True)] for hypothesis, reference in pairs]
        found, wanted = _counts([hypothesis for hypothesis, _ in pairs]), _counts([reference for _, reference in pairs])
        return self.combine(np.array(matches, dtype=np.float64), found, wanted)

    def matrix(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """Score every hypothesis against every reference: (N, M)."""
        if not hypotheses or not references:
            return np.zeros((len(hypotheses), len(references)))
        number = {text: i for i, text in enumerate(dict.fromkeys([*hypotheses, *references]))}
        grams_of_text = [self.read(text) for text in number]
        rows, columns = [number[text] for text in hypotheses], [number[text] for text in references]
        counts = _counts(grams_of_text)
        overlaps = []
        for grams in zip(*grams_of_text, strict=True):  # n-grams of one order, per text
            indicators = _indicators(grams)
            overlaps.append(indicators[rows] @ indicators[columns].T)
        matches = np.stack(overlaps, axis=-1).astype(np.float64)  # (N, M, n)
        found, wanted = np.broadcast_arrays(counts[rows][:, None], counts[columns][None])
        return self.combine(matches, found, wanted)


class Scorer(Protocol):
    """A sentence metric, 0 to 100."""

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """Score each hypothesis against the reference at its index: (N,)."""
        ...

    def matrix(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """Score every hypothesis against every reference: (N, M)."""
        ...


@dataclass(frozen=True)
class OwnScorer:
    """A metric of the user's own, which scores line by line: a matrix is one long list of pairs."""

    metric: SentenceMetricConfig

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        scores = np.asarray(self.metric.score(list(hypotheses), list(references)), dtype=np.float64)
        if scores.shape != (len(hypotheses),) or not np.isfinite(scores).all():
            raise DataError(
                f"'{name_of(type(self.metric))}': score gave {scores.shape}, for {len(hypotheses)} hypotheses; expected"
                " a finite number from 0 to 100 for each"
            )
        return scores

    def matrix(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        repeated = [hypothesis for hypothesis in hypotheses for _ in references]
        return self(repeated, list(references) * len(hypotheses)).reshape(len(hypotheses), len(references))


def sentence_scorer(metric: SentenceMetric | SentenceMetricConfig, tokenize: str = "13a") -> Scorer:
    """Build sentence chrF2, sentence BLEU over sacreBLEU's tokenizer `tokenize`, or the user's own metric."""
    if not isinstance(metric, str):
        return OwnScorer(metric)
    if metric == "chrf":
        return SentenceScorer(read_characters, chrf_of)
    from transduce.metrics.corpus import bleu_metric  # sacreBLEU is slow to import, and chrF does not need it

    tokenizer: Any = bleu_metric(tokenize=tokenize).tokenizer
    return SentenceScorer(lambda text: read_words(tokenizer(text.rstrip()).split()), bleu_of)


def read_characters(text: str) -> Grams:
    """Extract character n-grams of 1 to 6, without white space."""
    line = "".join(text.split())
    return tuple(
        _distinct([line[i : i + size] for i in range(len(line) - size + 1)]) for size in range(1, CHARACTERS + 1)
    )


def read_words(words: Sequence[str]) -> Grams:
    """Extract word n-grams of 1 to 4."""
    return tuple(
        _distinct([tuple(words[i : i + size]) for i in range(len(words) - size + 1)]) for size in range(1, WORDS + 1)
    )


def chrf_of(matches: Floats, found: Floats, wanted: Floats) -> Floats:
    """F-score of mean precision and mean recall over the orders that both texts have: (..., n) -> (...)."""
    both = (found > 0) & (wanted > 0)
    orders = np.maximum(both.sum(-1), 1)
    precision = (np.where(both, matches, 0) / np.maximum(found, 1)).sum(-1) / orders
    recall = (np.where(both, matches, 0) / np.maximum(wanted, 1)).sum(-1) / orders
    denominator = BETA**2 * precision + recall
    scores: Floats = 100 * (1 + BETA**2) * precision * recall / np.where(denominator > 0, denominator, 1)
    return scores


def bleu_of(matches: Floats, found: Floats, wanted: Floats) -> Floats:
    """Brevity penalty times the geometric mean of precisions over the hypothesis's orders: (..., n) -> (...).

    The k-th order without a match counts 2^-k matches; without any match the score is 0.
    """
    present = found > 0
    smoothed = np.where(matches > 0, matches, 0.5 ** (present & (matches == 0)).cumsum(-1))
    logs = np.log(smoothed / np.maximum(found, 1), where=present, out=np.zeros(found.shape))
    length, needed = np.maximum(found[..., 0], 1), wanted[..., 0]
    brevity = np.minimum(0, 1 - needed / length)
    scores = 100 * np.exp(brevity + logs.sum(-1) / np.maximum(present.sum(-1), 1))
    return np.where(matches.any(-1), scores, 0)


def _distinct(grams: list[Any]) -> frozenset[Hashable]:
    """A set with as many elements as there are n-grams: repetitions are numbered."""
    distinct = frozenset(grams)
    if len(distinct) == len(grams):
        return distinct
    return distinct | {(gram, repetition) for gram, count in Counter(grams).items() for repetition in range(1, count)}


def _counts(texts: Sequence[Grams]) -> Floats:
    """Count the n-grams of each text by order: (N, n)."""
    return np.array([[len(grams) for grams in text] for text in texts], dtype=np.float64)


def _indicators(texts: Sequence[frozenset[Hashable]]) -> NDArray[np.float32]:
    """Indicator matrix of n-grams, 1 where a text has it: (N, columns). Products of rows count matches."""
    column: dict[Hashable, int] = {}
    columns_of_text = [[column.setdefault(gram, len(column)) for gram in grams] for grams in texts]
    indicators = np.zeros((len(texts), len(column)), dtype=np.float32)
    for row, columns in enumerate(columns_of_text):
        indicators[row, columns] = 1
    return indicators
