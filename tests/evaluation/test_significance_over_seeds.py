"""The test over seeds and sentences: what it gives by hand, that it seldom claims what is not, and Holm."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from noisy_text import sentences, with_errors
from sacrebleu.metrics.bleu import BLEU

from transduce.evaluation.significance import (
    SeedScores,
    against_baseline,
    difference_p_value,
    holm,
    score_seeds,
    student_tails,
)
from transduce.workflows.compare import results

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import null_compare


def scores(whole: list[float], sentences: int = 50) -> SeedScores:
    """Of a text on which every draw of sentences gives the same."""
    return SeedScores(np.array(whole), np.tile(np.array(whole), (10, 1)), sentences)


def test_without_noise_of_sentences_it_is_welch_s_test() -> None:
    """By hand: means 30.1 and 31.1, variances 0.01 and 0.04 over 3, t = 1 / sqrt(0.05 / 3), 2.94 degrees of freedom."""
    p_value = difference_p_value(scores([30.0, 30.1, 30.2]), scores([30.9, 31.1, 31.3]))
    freedom = 0.05**2 / (0.01**2 / 2 + 0.04**2 / 2)
    assert p_value == pytest.approx(student_tails(1 / (0.05 / 3) ** 0.5, freedom))
    assert freedom == pytest.approx(2.94, abs=0.01)
    assert p_value is not None
    assert 0.004 < p_value < 0.006


def test_the_choice_of_sentences_adds_to_the_variance() -> None:
    """A variant whose seeds all move with the draw of sentences; what single seeds do is not counted twice."""
    base = scores([30.0, 30.1, 30.2])
    moved = np.linspace(-1, 1, 10)[:, None]
    together = SeedScores(np.array([30.9, 31.1, 31.3]), np.array([30.9, 31.1, 31.3]) + moved, 50)
    alone = difference_p_value(base, scores([30.9, 31.1, 31.3]))
    wider = difference_p_value(base, together)
    assert alone is not None
    assert wider is not None
    assert wider > 3 * alone
    spread = np.stack([np.roll([1.0, -0.5, -0.5], turn % 3) for turn in range(10)])  # of single seeds, in turn
    apart = SeedScores(together.whole, together.whole + spread, 50)
    assert difference_p_value(base, apart) == pytest.approx(alone, rel=0.2)


def test_one_seed_is_no_test() -> None:
    assert difference_p_value(scores([30.0]), scores([40.0, 40.1])) is None
    assert difference_p_value(scores([30.0, 30.1]), scores([40.0])) is None


def test_equal_means_and_no_noise_at_all() -> None:
    assert difference_p_value(scores([30.0, 31.0]), scores([31.0, 30.0])) == 1.0
    assert difference_p_value(scores([30.0, 30.0]), scores([31.0, 31.0])) == 0.0
    assert difference_p_value(scores([30.0, 30.0]), scores([30.0, 30.0])) == 1.0


def test_of_translations() -> None:
    """Clearly different variants, equal ones, and the same for the order of variants and seeds."""
    texts = sentences(80, seed=1)
    good = [with_errors(texts, 0.1, seed) for seed in (2, 4, 5)]
    bad = [with_errors(texts, 0.4, seed) for seed in (3, 6)]
    close = [with_errors(texts, 0.12, seed) for seed in (7, 8, 9)]
    variants = {"good": good, "bad": bad, "again": good, "close": close, "turned": close[::-1], "one": good[:1]}
    scored = {name: score_seeds(runs, texts, [(BLEU(), [*range(80)])], samples=100) for name, runs in variants.items()}
    found = against_baseline(scored, "good")
    assert list(found) == ["bad", "again", "close", "turned"]  # one seed is no test
    assert found["bad"] < 0.05
    assert found["again"] == 1.0
    assert found["close"] == pytest.approx(found["turned"])
    assert found["close"] == pytest.approx(against_baseline(scored, "close")["good"])
    assert against_baseline(scored, "one") == against_baseline(scored, "missing") == {}
    whole = score_seeds(good, texts, [(BLEU(), [*range(80)])], samples=10).whole
    assert whole == pytest.approx([BLEU().corpus_score(one, [texts]).score for one in good])


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("world", null_compare.WORLDS.values(), ids=null_compare.WORLDS)
def test_equal_variants_are_told_apart_in_less_than_seven_percent(world: null_compare.World, size: int) -> None:
    """Two variants without a difference; sentences alike or not, noise of training from nothing to most of all."""
    found = null_compare.simulate(world, size, trials=600, samples=100, seed=2)
    assert found.both <= 0.07 * found.tests


def test_the_null_test_counts_what_the_table_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tests and its bar are those of `compare`, Holm's correction and the level among them."""
    pairs = [(scores([30.0, 30.1, 30.2]), scores([30.9, 31.1, 31.3])), (scores([30.0, 31.0]), scores([30.0, 31.0]))]
    assert null_compare.claims(iter(pairs), 3).both == 1
    for level, expected in ((0.0, 0), (2.0, 2)):
        monkeypatch.setattr(results, "CLAIM", level)
        assert null_compare.claims(iter(pairs), 3).both == expected
    monkeypatch.setattr(results, "holm", lambda p_values: dict.fromkeys(p_values, 3.0))
    assert null_compare.claims(iter(pairs), 3).both == 0


def test_a_true_difference_is_found() -> None:
    """Two points with a deviation of 0.5 over seeds: five seeds a variant claim it nearly always."""
    generator, claims = np.random.default_rng(3), 0
    for _ in range(100):
        first, second = (scores(list(generator.normal(mean, 0.5, 5))) for mean in (30.0, 32.0))
        p_value = difference_p_value(first, second)
        claims += p_value is not None and p_value < 0.05
    assert claims >= 95


def test_splits_of_seeds_are_all_there_and_each_once() -> None:
    found = null_compare.splits(6, 2, 1000)
    assert len({frozenset(map(frozenset, pair)) for pair in found}) == len(found) == 45
    assert all(not set(one) & set(other) for one, other in found)
    assert len(null_compare.splits(10, 3, 50)) == 50


def test_holm() -> None:
    assert holm({}) == {}
    assert holm({"a": 0.03}) == {"a": 0.03}
    found = holm({"a": 0.04, "b": 0.01, "c": 0.02, "d": 0.9})
    assert found == pytest.approx({"b": 0.04, "c": 0.06, "a": 0.08, "d": 0.9})
    for order in itertools.permutations({"a": 0.04, "b": 0.01, "c": 0.02, "d": 0.9}.items()):
        assert holm(dict(order)) == found


@pytest.mark.parametrize(
    ("t", "freedom", "expected"),
    [  # tables of Student's t
        (12.706, 1, 0.05), (4.303, 2, 0.05), (2.571, 5, 0.05), (2.228, 10, 0.05), (63.657, 1, 0.01),
        (1.0, 1, 0.5), (0.0, 3, 1.0), (1.960, 1e6, 0.05), (6.869, 5, 0.001),
    ],
)  # fmt: skip
def test_student_s_tails(t: float, freedom: float, expected: float) -> None:
    assert student_tails(t, freedom) == pytest.approx(expected, rel=2e-3)
    assert student_tails(-t, freedom) == student_tails(t, freedom)
