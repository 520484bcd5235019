"""chrF and smoothed BLEU of single sentences, quick enough to compare every candidate with every other.

The figures are those of sacreBLEU's `sentence_chrf` (Popović, 2015) and `sentence_bleu` (exponential smoothing:
method 3 of Chen and Cherry, 2014), for one reference. A text is read once into sets: the k-th occurrence of an n-gram
is an element of its own, so that clipped matches are intersections, and those of many texts one matrix product.
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
Grams = tuple[frozenset[Hashable], ...]  # of each order; as many elements as the text has n-grams
CHARACTERS, WORDS, BETA = 6, 4, 2  # sacreBLEU's defaults


@dataclass(frozen=True)
class SentenceScorer:
    """`scorer(hypotheses, references)` scores line by line, `scorer.matrix(...)` all with all; 0 to 100.

    `read` gives the n-grams of a text; `combine` the scores of matches, hypothesis and reference counts (..., n).
    """

    read: Callable[[str], Grams]
    combine: Callable[[Floats, Floats, Floats], Floats]

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """The score (N,) of each hypothesis against the reference beside it."""
        if len(hypotheses) != len(references):
            raise DataError(f"{len(hypotheses)} hypotheses and {len(references)} references; give one reference each")
        if not hypotheses:
            return np.zeros(0)
        known = {text: self.read(text) for text in {*hypotheses, *references}}  # each text is read once
        pairs = [(known[one], known[other]) for one, other in zip(hypotheses, references, strict=True)]
        matches = [[len(a & b) for a, b in zip(one, other, strict=True)] for one, other in pairs]
        found, wanted = _counts([one for one, _ in pairs]), _counts([other for _, other in pairs])
        return self.combine(np.array(matches, dtype=np.float64), found, wanted)

    def matrix(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """The score (N, M) of every hypothesis against every reference."""
        if not hypotheses or not references:
            return np.zeros((len(hypotheses), len(references)))
        number = {text: i for i, text in enumerate(dict.fromkeys([*hypotheses, *references]))}
        read = [self.read(text) for text in number]
        rows, columns = [number[text] for text in hypotheses], [number[text] for text in references]
        counts = _counts(read)
        overlaps = []
        for grams in zip(*read, strict=True):  # the texts' n-grams of one order
            there = _indicators(grams)
            overlaps.append(there[rows] @ there[columns].T)
        matches = np.stack(overlaps, axis=-1).astype(np.float64)  # (N, M, n)
        found, wanted = np.broadcast_arrays(counts[rows][:, None], counts[columns][None])
        return self.combine(matches, found, wanted)


class Scorer(Protocol):
    """What measures sentences; 0 to 100."""

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """The score (N,) of each hypothesis against the reference beside it."""
        ...

    def matrix(self, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
        """The score (N, M) of every hypothesis against every reference."""
        ...


@dataclass(frozen=True)
class OwnScorer:
    """A measure of the user's own, which scores line by line: for all with all, every pair is a line."""

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
        left = [one for one in hypotheses for _ in references]
        return self(left, list(references) * len(hypotheses)).reshape(len(hypotheses), len(references))


def sentence_scorer(metric: SentenceMetric | SentenceMetricConfig, tokenize: str = "13a") -> Scorer:
    """Sentence chrF2, sentence BLEU over the tokens of sacreBLEU's tokenizer `tokenize`, or the user's own measure."""
    if not isinstance(metric, str):
        return OwnScorer(metric)
    if metric == "chrf":
        return SentenceScorer(read_characters, chrf_of)
    from transduce.metrics.corpus import bleu_metric  # sacreBLEU is slow to import, and chrF needs none of it

    tokenizer: Any = bleu_metric(tokenize=tokenize).tokenizer
    return SentenceScorer(lambda text: read_words(tokenizer(text.rstrip()).split()), bleu_of)


def read_characters(text: str) -> Grams:
    """Character n-grams of 1 to 6, white space left out."""
    line = "".join(text.split())
    return tuple(
        _distinct([line[i : i + size] for i in range(len(line) - size + 1)]) for size in range(1, CHARACTERS + 1)
    )


def read_words(words: Sequence[str]) -> Grams:
    """Word n-grams of 1 to 4."""
    return tuple(
        _distinct([tuple(words[i : i + size]) for i in range(len(words) - size + 1)]) for size in range(1, WORDS + 1)
    )


def chrf_of(matches: Floats, found: Floats, wanted: Floats) -> Floats:
    """The F-score of mean precision and mean recall over the orders that both texts have: (..., n) -> (...)."""
    both = (found > 0) & (wanted > 0)
    orders = np.maximum(both.sum(-1), 1)
    precision = (np.where(both, matches, 0) / np.maximum(found, 1)).sum(-1) / orders
    recall = (np.where(both, matches, 0) / np.maximum(wanted, 1)).sum(-1) / orders
    below = BETA**2 * precision + recall
    scores: Floats = 100 * (1 + BETA**2) * precision * recall / np.where(below > 0, below, 1)
    return scores


def bleu_of(matches: Floats, found: Floats, wanted: Floats) -> Floats:
    """Brevity penalty times the geometric mean of precisions over the hypothesis's orders: (..., n) -> (...).

    The k-th order without a match counts 2^-k matches; without any match at all the score is 0.
    """
    there = found > 0
    smoothed = np.where(matches > 0, matches, 0.5 ** (there & (matches == 0)).cumsum(-1))
    logs = np.log(smoothed / np.maximum(found, 1), where=there, out=np.zeros(found.shape))
    length, needed = np.maximum(found[..., 0], 1), wanted[..., 0]
    brevity = np.minimum(0, 1 - needed / length)
    scores = 100 * np.exp(brevity + logs.sum(-1) / np.maximum(there.sum(-1), 1))
    return np.where(matches.any(-1), scores, 0)


def _distinct(grams: list[Any]) -> frozenset[Hashable]:
    """As many elements as there are n-grams: those that come again bear a number."""
    once = frozenset(grams)
    if len(once) == len(grams):
        return once
    return once | {(gram, again) for gram, count in Counter(grams).items() for again in range(1, count)}


def _counts(texts: Sequence[Grams]) -> Floats:
    """How many n-grams each text has of each order: (N, n)."""
    return np.array([[len(grams) for grams in text] for text in texts], dtype=np.float64)


def _indicators(texts: Sequence[frozenset[Hashable]]) -> NDArray[np.float32]:
    """A column for every n-gram that occurs, 1 where a text has it: (N, columns). Products of rows count matches."""
    column: dict[Hashable, int] = {}
    places = [[column.setdefault(gram, len(column)) for gram in grams] for grams in texts]
    there = np.zeros((len(texts), len(column)), dtype=np.float32)
    for row, place in enumerate(places):
        there[row, place] = 1
    return there
