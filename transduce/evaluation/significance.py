"""Significance tests: paired bootstrap for two systems, and a test over seeds and sentences for two variants.

Two systems translate the same text. The paired bootstrap (Koehn, 2004, by sacreBLEU) redraws the sentences many times,
with repetition, and asks how often a difference as large as the one seen comes about through the choice of sentences
alone: the p-value. It is about these two systems; whether another seed would turn the result around is another
question, for which each must be trained several times.

A variant is trained with n seeds, and every run translates the same text. Two things are drawn at random: the seeds of
training, and the sentences that happen to be in the test. A bootstrap over sentences alone leaves the first out, and
calls significant what seeds explain. Variance of the difference of two means, with seeds and sentences crossed:

    V = G + s1^2 / n1 + s2^2 / n2

s^2 is the variance between the seeds of a variant on the text as it is. That is the seed level of a hierarchical
bootstrap in closed form, with n - 1 instead of its n: resampling two or three seeds gives a variance that is smaller by
(n - 1) / n, and tails that are too light (Davison and Hinkley 1997, section 3.8). G is what the choice of sentences
adds: the variance of the difference over redrawn sentences, less the part that differs from seed to seed, which s^2
holds already (bootstrapping both factors counts this interaction more than once: Owen 2007, "The pigeonhole
bootstrap"). The difference divided by the root of V is compared with Student's t with the degrees of freedom of Welch
(1947) and Satterthwaite (1946). Several p-values are adjusted by Holm's correction. `benchmarks/null_compare.py`
measures the rate of false claims.

Shapes: n seeds, N sentences, K statistics of a sentence, D draws of sentences.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from transduce.core.errors import ConfigError, DataError
from transduce.core.progress import Progress
from transduce.metrics.corpus import (
    NamedTarget,
    References,
    bleu_metric,
    chrf_metric,
    reference_streams,
    target_languages,
    ter_metric,
)

# A difference is claimed below this p-value. sacreBLEU's is one-sided in effect, while either system may turn out the
# winner: equal systems (300 noisy pairs) passed 0.05 in 9 % of trials and 0.025 in 4 %. So half of the customary 0.05.
SIGNIFICANT = 0.025
LOWER_IS_BETTER = ("TER",)


@dataclass(frozen=True)
class Verdict:
    """The test's result for two systems by one metric; `first` and `second` are their scores."""

    metric: str
    first: float
    second: float
    p_value: float
    text: str


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set sacreBLEU's seed, which it takes from the environment alone, and restore the environment afterwards."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def verdict(metric: str, names: tuple[str, str], values: tuple[float, float], p_value: float, samples: int) -> Verdict:
    """Put the scores of two systems and the p-value of their difference into words."""
    first, second = values
    if first == second:
        text = f"{names[0]} and {names[1]} are equal: both have {first:.1f} {metric}. No difference can be claimed."
        # A difference of zero is always explained by chance. (sacreBLEU counts only resamples that pass the
        # difference strictly, so it gives a system against itself the smallest p-value there is.)
        return Verdict(metric, first, second, 1.0, text)
    second_wins = (second > first) != (metric in LOWER_IS_BETTER)
    winner, loser = (names[1], names[0]) if second_wins else names
    best, rest = (second, first) if second_wins else values
    gap = f"{abs(first - second):.1f} {metric} ({best:.1f} against {rest:.1f})"
    if round(abs(first - second), 1) == 0.0:
        gap = f"less than 0.1 {metric} ({best:.2f} against {rest:.2f})"
    share = f"{p_value:.1%}".replace("%", " %")
    chance = f"chance alone gives a difference this large in {share} of {samples:,} resamples (p = {p_value:.3f})"
    if p_value < SIGNIFICANT:
        text = f"{winner} is better than {loser} by {gap}; {chance}: unlikely to be chance."
    else:
        needed = f"a claim needs p < {SIGNIFICANT}"
        text = f"No difference can be claimed: {winner} is ahead of {loser} by {gap}, but {chance}; {needed}."
    return Verdict(metric, first, second, p_value, text)


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: References,
    names: tuple[str, str] = ("A", "B"),
    language: str = "",
    lowercase: bool = False,
    samples: int = 1000,
    seed: int = 12345,
) -> list[Verdict]:
    """Compare two systems' translations of one text by BLEU, chrF and TER, reproducibly for a given seed.

    Without a `language` the script of the references determines it.
    """
    if len(first) != len(second):
        raise DataError(
            f"The two systems cannot be compared: {names[0]} has {len(first):,} lines, {names[1]} has {len(second):,}. "
            "Both must translate the same text."
        )
    if samples < 1 or seed < 1:  # sacreBLEU reads 0 as 'the default number' and as 'a random seed'
        raise ConfigError(f"samples is {samples} and seed is {seed}: both must be at least 1.")
    streams = reference_streams(first, references)
    lines = ["\n".join(texts) for texts in zip(*streams, strict=True)]
    (target,) = target_languages(lines, (), NamedTarget(language, "the language that was given"))
    metrics = (bleu_metric(lowercase, target.tokenizer), chrf_metric(lowercase), ter_metric(target.language))
    verdicts = []
    with Progress("Comparing", total=len(metrics), unit="metrics") as progress, _seeded(seed):
        for metric in metrics:
            label, results = _paired_test(metric, [(names[0], first), (names[1], second)], streams, samples)
            p_value = results[1].p_value
            assert p_value is not None  # only the first system, the baseline, has none
            verdicts.append(verdict(label, names, (results[0].score, results[1].score), p_value, samples))
            progress.advance()
    return verdicts


def _paired_test(
    metric: Metric, systems: list[tuple[str, Sequence[str]]], streams: list[list[str]], samples: int
) -> tuple[str, list[Result]]:
    """The metric's own name ('chrF2') and sacreBLEU's results for both systems."""
    _, table = PairedTest(systems, {"metric": metric}, streams, test_type="bs", n_samples=samples)()
    label = next(name for name in table if name != "System")
    return label, [result for result in table[label] if isinstance(result, Result)]


SAMPLES = 1000  # draws of sentences
_TINY = 1e-300

Part = tuple[Metric, list[int]]  # sentences of a text, by number, and what they are measured by


@dataclass(frozen=True)
class SeedScores:
    """Scores of one variant: `whole` (n,) on the text, `redrawn` (D, n) on draws of its `sentences`.

    Draw d holds the same sentences for every variant.
    """

    whole: NDArray[np.float64]
    redrawn: NDArray[np.float64]
    sentences: int


def score_seeds(
    translations: Sequence[Sequence[str]],
    references: Sequence[str],
    parts: Sequence[Part],
    samples: int = SAMPLES,
    seed: int = 12345,
) -> SeedScores:
    """Score a variant whose seeds have translated one text, on the text and on `samples` draws of its sentences.

    A score is the mean over `parts` of the text, such as those of each target language.
    """
    generator, count = np.random.default_rng(seed), len(references)
    weights = np.ones((samples + 1, count))  # how often each sentence was drawn; the first row is the text itself
    for row in weights[1:]:
        row[:] = np.bincount(generator.integers(count, size=count), minlength=count)
    scores = np.empty((samples + 1, len(translations)))
    for number, texts in enumerate(translations):
        reference_streams(texts, references)  # raises if the lengths differ
        scores[:, number] = np.mean([_part_scores(part, texts, references, weights) for part in parts], axis=0)
    return SeedScores(scores[0], scores[1:], count)


def _part_scores(
    part: Part, texts: Sequence[str], references: Sequence[str], weights: NDArray[np.float64]
) -> list[float]:
    """The scores of one part of a text, on the text and on each draw."""
    metric, members = part
    streams = [[references[n] for n in members]]
    statistics = metric._extract_corpus_statistics([texts[n] for n in members], streams)
    sums: NDArray[Any] = weights[:, members] @ np.array(statistics, dtype=np.float64)  # (D + 1, K)
    return [metric._compute_score_from_stats(row).score for row in sums.tolist()]


def difference_p_value(first: SeedScores, second: SeedScores) -> float | None:
    """The two-sided p-value of the difference of two variants' mean scores; None if one has a single seed."""
    variants = (first, second)
    if min(len(variant.whole) for variant in variants) < 2:
        return None
    difference = float(second.whole.mean() - first.whole.mean())
    seeds = [float(variant.whole.var(ddof=1)) / len(variant.whole) for variant in variants]
    redrawn = float((second.redrawn.mean(1) - first.redrawn.mean(1)).var())
    sentences = max(0.0, redrawn - sum(_interaction(variant) / len(variant.whole) for variant in variants))
    variance = sentences + sum(seeds)
    if difference == 0.0 or variance <= _TINY:
        return 1.0 if difference == 0.0 else 0.0
    parts = [part**2 / (len(variant.whole) - 1) for part, variant in zip(seeds, variants, strict=True)]
    freedom = variance**2 / max(_TINY, sum(parts) + sentences**2 / max(1, first.sentences - 1))
    return student_tails(difference / math.sqrt(variance), freedom)


def against_baseline(scores: Mapping[str, SeedScores], baseline: str) -> dict[str, float]:
    """The p-value of each other variant's mean score against the baseline's, where both have several seeds."""
    if baseline not in scores:
        return {}
    others = {name: other for name, other in scores.items() if name != baseline}
    tested = {name: difference_p_value(scores[baseline], other) for name, other in others.items()}
    return {name: p_value for name, p_value in tested.items() if p_value is not None}


def _interaction(scores: SeedScores) -> float:
    """The variance over redrawn sentences of what one seed scores beyond the mean of its variant."""
    count = len(scores.whole)
    beyond_mean = scores.redrawn - scores.redrawn.mean(1, keepdims=True)
    return float(beyond_mean.var(axis=0).sum()) / (
        count - 1
    )  # a mean over n seeds, times n / (n - 1) for their own mean


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for their number: one below a level is false with no more than this chance (Holm 1979)."""
    adjusted, least = dict[str, float](), 0.0
    for number, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(p_values) - number) * value))
        adjusted[name] = least
    return adjusted


def student_tails(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees is as far from zero as `t`, on either side."""
    x = freedom / (freedom + t * t)
    return min(1.0, _incomplete_beta(freedom / 2, 0.5, x))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    lower = 1.0 / _off_zero(1.0 - (a + b) * x / (a + 1))  # Lentz's method: denominators and numerators in turn
    upper, value = 1.0, lower
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower, upper = 1.0 / _off_zero(1.0 + term * lower), _off_zero(1.0 + term / upper)
            value *= lower * upper
        if abs(lower * upper - 1.0) < 1e-13:
            break
    return math.exp(front) * value / a


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
