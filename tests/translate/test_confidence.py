"""Confidence: features say what they are named after, the file is read back exactly, and nothing is guessed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.core.errors import RunError
from transduce.engines import Translation
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.confidence import (
    CONFIDENCE,
    FEATURES,
    ConfidenceModel,
    Estimator,
    FeatureReader,
    Figures,
    group_of,
)
from transduce.translate.translator import Translator


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    source = ["the cat sees the dog", "a dog sees 42 cats in Berlin", "it is 24 o'clock"] * 50
    target = ["die Katze sieht den Hund.", "ein Hund sieht 42 Katzen in Berlin.", "es ist 24 Uhr"] * 50
    return SentencePiece(vocabulary=330).train(source, target).tokenizers


def described(
    tokenizers: Tokenizers, source: str, text: str, logs: tuple[float, ...] = (-0.5, -1.5), **fields: Any
) -> dict[str, float]:
    encode = tokenizers.source.encode
    found = Translation(text, token_log_probs=logs, **fields)
    values = FeatureReader(tokenizers)(source, encode([source])[0], found, encode([text])[0], "de")
    return dict(zip(FEATURES, values, strict=True))


def test_features_of_log_probabilities(tokenizers: Tokenizers) -> None:
    found = described(tokenizers, "the cat", "die Katze", (-0.5, -4.0, -2.0, -1.5))
    assert found["mean"] == -2.0
    assert found["least"] == -4.0
    assert found["end"] == -1.5
    assert found["unsure"] == 0.75
    assert found["unlikely"] == 0.25
    assert found["probability"] == pytest.approx(sum(map(math.exp, (-0.5, -4.0, -2.0, -1.5))) / 4)
    assert found["spread"] == pytest.approx(math.sqrt(6.5 / 4))
    assert found["tokens"] == math.log(4)


def test_features_of_words_and_marks(tokenizers: Tokenizers) -> None:
    plain = described(tokenizers, "the dog sees Berlin and 42 cats.", "der Hund sieht Berlin und 42 Katzen.")
    worse = described(tokenizers, "the dog sees Berlin and 42 cats.", "der Hund sieht Bonn und 24 Katzen")
    assert plain["capitals"] == worse["capitals"] == plain["numbers"] == 1 / 7
    assert (plain["capitals_lost"], worse["capitals_lost"]) == (0, 1 / 7)
    assert (plain["numbers_lost"], worse["numbers_lost"]) == (0, 1 / 7)
    assert (plain["final_differs"], worse["final_differs"]) == (0, 1)
    assert plain["marks_differ"] == 0 < worse["marks_differ"]
    assert plain["copied"] > worse["copied"] == 0


def test_features_of_faults(tokenizers: Tokenizers) -> None:
    plain = described(tokenizers, "the cat sees the dog", "die Katze sieht den Hund")
    again = described(tokenizers, "the cat sees the dog", "Hund Hund Hund Hund Hund Hund")
    assert plain["repeated"] == plain["faults"] == plain["cut"] == 0
    assert again["repeated"] > 0.5 > again["distinct"]
    assert again["faults"] == 1
    assert described(tokenizers, "the cat", "die", finished=False)["cut"] == 1


def test_rare_characters_are_spelt(tokenizers: Tokenizers) -> None:
    plain, odd = described(tokenizers, "the cat", "die Katze"), described(tokenizers, "ѢѮ", "die Katze")
    assert plain["source_spelt"] == 0 < odd["source_spelt"]
    assert plain["source_rarity"] < odd["source_rarity"] <= math.log(tokenizers.source.size)


def test_nothing_at_all_has_features(tokenizers: Tokenizers) -> None:
    assert all(map(math.isfinite, described(tokenizers, "", "", ()).values()))


def model(**changes: Any) -> ConfidenceModel:
    zeros, ones = (0.0,) * len(FEATURES), (1.0,) * len(FEATURES)
    weights = tuple(float(name == "mean") for name in FEATURES)
    plain = ConfidenceModel(
        {"": zeros}, ones, weights, 0.5, {"en-de": 30.0}, Figures(10, 0.75, 0.03, ((10, 0.8, 0.7),))
    )
    return replace(plain, **changes)


def test_a_logistic_regression() -> None:
    features = [-1.5 if name == "mean" else 9.0 for name in FEATURES]
    assert model().confidence(features) == pytest.approx(1 / (1 + math.exp(1.0)))
    assert model(bias=3.5).confidence(features) == pytest.approx(1 / (1 + math.exp(-2.0)))


def test_what_lies_far_out_counts_no_more() -> None:
    far, farther = ([value] * len(FEATURES) for value in (-4.0, -1e9))
    assert model().confidence(far) == model().confidence(farther) > 0
    assert model(bias=-1e6).confidence(far) == 0
    assert model(bias=1e6).confidence(far) == 1


def test_groups_have_centres_of_their_own() -> None:
    centres = {"": (0.0,) * len(FEATURES), "de": (-1.0,) * len(FEATURES)}
    features = [0.0] * len(FEATURES)
    assert model(centres=centres).confidence(features, "de") > model(centres=centres).confidence(features, "fr")
    assert model(centres=centres).confidence(features, "fr") == model(centres=centres).confidence(features)
    assert group_of("Guten Morgen", "en") == "en"
    assert group_of("早上好", "en") == "en<wide"


def test_written_and_read_back(tmp_path: Path) -> None:
    model().write(tmp_path)
    assert ConfidenceModel.of(tmp_path) == model()


def test_a_model_without_numbers_has_no_confidence(tmp_path: Path, tokenizers: Tokenizers) -> None:
    assert ConfidenceModel.of(tmp_path) is None
    assert Estimator.open(tmp_path, tokenizers) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"features": ["mean"]}, "other features than this version has"),
        ({"weights": [1.0]}, f"expected {len(FEATURES)} finite numbers, got 1"),
        ({"bias": float("inf")}, "finite"),
        ({"scales": [0.0] * len(FEATURES)}, "a scale that is not positive"),
        ({"centres": {}}, "lacks centres"),
        ({"figures": None}, "subscriptable"),
    ],
)
def test_damaged_numbers_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    model().write(tmp_path)
    path = tmp_path / CONFIDENCE
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change), encoding="utf-8")
    with pytest.raises(RunError, match="cannot be read as the confidence of a model") as error:
        ConfidenceModel.of(tmp_path)
    assert reason in str(error.value)
    assert "fit it again with `transduce confidence`, or delete the file" in str(error.value)


class Parrot:
    """An engine that writes what it reads, each token with the same probability."""

    def search(self, sources: Any, search: Any, constraints: Any, keys: Any) -> Any:
        from transduce.search import Hypothesis

        return [[Hypothesis.written(source, [-0.5] * (len(source) + 1), True)] for source in sources]


def test_the_translator_asks_for_it(tokenizers: Tokenizers) -> None:
    from transduce.search.settings import Greedy

    engine: Any = Parrot()
    silent = Translator(engine, tokenizers, Greedy())
    sure = Translator(engine, tokenizers, Greedy(), confidence=Estimator(model(), tokenizers))
    (without,), (found, blank) = silent.translate(["the cat"]), sure.translate(["the cat", " "])
    assert without.confidence is None
    assert found.confidence == pytest.approx(1 / (1 + math.exp(0.0)))
    assert found.token_log_probs == (-0.5,) * (len(found.tokens) + 1)
    assert replace(found, confidence=None) == without
    assert blank.confidence is None


def test_a_text_in_parts_has_their_mean() -> None:
    long, short = (
        Translation("a b c", tokens=("a", "b", "c"), confidence=0.8),
        Translation("d", tokens=("d",), confidence=0.4),
    )
    assert Translation.joined([long, short], "a b c d").confidence == pytest.approx(0.7)
    assert Translation.joined([long, Translation("URL")], "a b c URL").confidence == pytest.approx(0.8)
    assert Translation.joined([long, replace(short, confidence=None)], "a b c d").confidence is None
    assert Translation.joined([Translation("URL")], "URL").confidence is None
