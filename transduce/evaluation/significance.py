"""Is one system really better than another? Paired bootstrap resampling by sacreBLEU, and a verdict in words.

Both systems translate the same text. The test (Koehn, 2004) redraws the sentences many times, with repetition, and asks
how often a difference as large as the one seen comes about through the choice of sentences alone: the p-value. It is
about these two systems; whether another seed would turn the result around is another question, for which each must be
trained several times (`seeds.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from transduce.errors import ConfigError, DataError
from transduce.evaluation.by_language import Told, target_languages
from transduce.evaluation.metrics import (
    References,
    bleu_metric,
    chrf_metric,
    reference_streams,
    ter_metric,
)
from transduce.progress import Progress

# A difference is claimed below this p-value. sacreBLEU's is one-sided in effect, while either system may turn out the
# winner: equal systems (300 noisy pairs) passed 0.05 in 9 % of trials and 0.025 in 4 %. So half of the customary 0.05.
SIGNIFICANT = 0.025
LOWER_IS_BETTER = ("TER",)


@dataclass(frozen=True)
class Verdict:
    """What the test says of two systems by one metric; `first` and `second` are their figures."""

    metric: str
    first: float
    second: float
    p_value: float
    text: str


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone: set it, and leave no trace."""
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
    """The figures of two systems and the p-value of their difference, put into words."""
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
    """Verdicts by BLEU, chrF and TER on two systems' translations of one text, the same for the same seed.

    Without a `language` the script of the references tells it.
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
    (target,) = target_languages(lines, (), Told(language, "the language that was given"))
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
