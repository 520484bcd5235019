"""Fitting confidence: figures against counted ones, damage that is damage, and a fit that finds what it was given."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from transduce.core.errors import DataError
from transduce.search import Hypothesis
from transduce.search.settings import Greedy
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.confidence import FEATURES, Figures
from transduce.translate.translator import Translator
from transduce.workflows.pipeline.confidence import (
    WORST,
    HeldOut,
    Observed,
    auroc,
    damaged,
    fit,
    measure,
    observe,
    reliability,
    reliability_table,
    summary,
)


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    draw = np.random.default_rng(1)
    confidence, good = draw.integers(0, 9, 60) / 9, draw.random(60) < 0.6
    pairs = [(a > b) + (a == b) / 2 for a in confidence[good] for b in confidence[~good]]
    assert auroc(confidence, good) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(confidence, np.ones(60, bool)) == 0.5


def test_reliability_by_tenths() -> None:
    confidence = np.array([0.05, 0.05, 0.95, 1.0, 1.0])
    good = np.array([False, True, True, True, False])
    bins = list(reliability(confidence, good))
    assert [count for count, _, _ in bins] == [2, 3]
    assert bins[0][1:] == pytest.approx((0.05, 0.5))
    assert bins[1][1:] == pytest.approx((2.95 / 3, 2 / 3))
    figures = measure(confidence, good, {"a": np.arange(2), "b": np.arange(2, 5)})
    assert figures.error == pytest.approx((2 * 0.45 + 3 * (2.95 - 2) / 3) / 5)
    assert figures.auroc == pytest.approx((0.5 + 0.25) / 2)


def test_a_table_for_a_card() -> None:
    figures = Figures(1234, 0.75, 0.031, ((1000, 0.95, 0.9), (234, 0.55, 0.6)))
    assert list(reliability_table(figures))[2:] == [
        "| 0.9 to 1.0 | 1,000 | 0.95 | 0.90 |",
        "| 0.5 to 0.6 | 234 | 0.55 | 0.60 |",
    ]
    said = next(iter(summary(figures)))
    assert "1,234 translations that were left out" in said
    assert "AUROC 0.750" in said
    assert "calibration error 0.031" in said


@pytest.mark.parametrize("text", ["The quick brown fox jumps over the lazy dog.", "敏捷的棕色狐狸跳过了懒狗。", "a"])
def test_damaged_text(text: str) -> None:
    made = [damaged(text, random.Random(seed)) for seed in range(60)]
    assert all(made)
    assert made == [damaged(text, random.Random(seed)) for seed in range(60)]  # the same for a seed
    if len(text) > 1:
        assert sum(one != text for one in made) > 40
        assert len({*made}) > 20


def test_pairs_that_lack_a_side_are_left_out() -> None:
    text = HeldOut.spread("en-de", "de", ["a", " ", "c", "d", "e"], ["A", "B", "", "D", "E"], 2)
    assert (text.sources, text.references) == (["a", "d"], ["A", "D"])
    assert HeldOut.spread("en-de", "de", ["a", " "], ["A", "B"]).sources == ["a"]


def observed(count: int = 1000) -> list[Observed]:
    """The quality of a translation is the mean log-probability, with some noise; two directions of unlike quality."""
    draw = np.random.default_rng(7)
    found = []
    for number in range(count):
        features = draw.normal(size=len(FEATURES))
        direction = ("en-de", "de-en")[number % 2]
        chrf = 50 + 10 * features[0] + 5 * draw.normal() + 20 * (number % 2)
        found.append(Observed(direction, direction[3:], number, tuple(features.tolist()), float(chrf)))
    return found


def test_a_fit_finds_what_quality_depends_on() -> None:
    found = observed()
    model = fit(found)
    weights = dict(zip(FEATURES, model.weights, strict=True))
    assert weights.pop("mean") > 4 * max(map(abs, weights.values()))
    assert model.figures.sentences == len(found)
    assert model.figures.auroc > 0.9
    assert model.figures.error < 0.05
    assert model.bounds["de-en"] == pytest.approx(model.bounds["en-de"] + 20, abs=2)
    mean = sum(model.confidence(one.features, one.group) for one in found) / len(found)
    assert mean == pytest.approx(1 - WORST, abs=0.01)
    assert set(model.centres) == {"", "de", "en"}


def test_noise_cannot_be_foretold() -> None:
    draw = np.random.default_rng(107)
    chrf = draw.random(1000)
    found = [replace(one, chrf=float(score)) for one, score in zip(observed(), chrf, strict=True)]
    assert fit(found).figures.auroc == pytest.approx(0.5, abs=0.1)  # of sentences that were left out


def test_few_sentences_are_refused() -> None:
    with pytest.raises(DataError, match="confidence: 99 held-out sentences could be used, and at least 100 are needed"):
        fit(observed(99))


class Sure:
    """An engine that copies, and is less sure of rare tokens."""

    def search(self, sources: Any, search: Any, constraints: Any, keys: Any) -> Any:
        return [[Hypothesis.written(source, [-0.01 * t for t in source] + [-0.1], True)] for source in sources]


def test_observed_as_it_is_and_damaged() -> None:
    lines = ["one two three", "four five six seven", "eight nine ten"] * 20
    tokenizers = SentencePiece(vocabulary=300).train(lines, lines).tokenizers
    engine: Any = Sure()
    translator = Translator(engine, tokenizers, Greedy())
    texts = [HeldOut("a", "", lines[:30], lines[:30]), HeldOut("b", "", lines[:6], lines[:6])]
    found = observe(translator, texts)
    assert translator.confidence is None  # as before
    assert [one.direction for one in found] == ["a"] * 40 + ["b"] * 8
    assert [one.sentence for one in found[:30]] == list(range(30))
    assert {one.sentence for one in found[40:]} == set(range(30, 36))
    assert all(one.chrf == 100 for one in found[:30])
    assert sum(one.chrf < 100 for one in found[30:40]) > 5
    assert all(len(one.features) == len(FEATURES) for one in found)
