"""The model that comes with the package: its size, its card and its scores, and that it says what it should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import transduce
from transduce.engines.native.library import built
from transduce.translate.directions import directions_of
from transduce.translate.model_folder import SCORES, SHIPPED

DIRECTIONS = {f"en-{other}" for other in "de fr es pt zh".split()} | {
    f"{other}-en" for other in "de fr es pt zh".split()
}
FILES = [path for path in SHIPPED.rglob("*") if path.is_file()]
SAID = {
    "de": "Katzen schlafen gerne.",
    "fr": "Les chats aiment dormir.",
    "es": "A los gatos les gusta dormir.",
    "pt": "Os gatos gostam de dormir.",
    "zh": "猫喜欢睡觉。",
}
BACK = {
    "Wo ist der nächste Bahnhof?": "Where's the nearest station?",
    "Combien coûte ce livre ?": "How much is this book?",
    "Nunca he estado en Japón.": "I've never been to Japan.",
    "Ele se esqueceu de comprar leite e pão.": "He forgot to buy milk and bread.",
    "孩子们在花园里玩。": "The children are playing in the garden.",
}


@pytest.fixture(scope="module")
def translator() -> transduce.Translator:
    if built() is None:  # torch opens the same weights
        return transduce.load(SHIPPED, "cpu", engine="torch")
    return transduce.load(SHIPPED, engine="native")


def test_it_is_small_enough_to_come_along() -> None:
    assert sum(path.stat().st_size for path in FILES) <= 25 << 20


def test_what_it_says(translator: transduce.Translator) -> None:
    assert {language: translator("Cats like to sleep.", to=language) for language in SAID} == SAID
    assert {text: translator(text, to="en") for text in BACK} == BACK


def test_torch_says_the_same_with_its_weights(translator: transduce.Translator) -> None:
    """What a machine without a compiler has."""
    with_torch = transduce.load(SHIPPED, "cpu", engine="torch")
    assert {language: with_torch("Cats like to sleep.", to=language) for language in SAID} == SAID


def test_its_scores_are_those_that_were_requested(translator: transduce.Translator) -> None:
    """Student within 1.5 BLEU of the teacher, 8 bits within 0.2 of the student, 33 on average, in ten directions."""
    scores = json.loads((SHIPPED / SCORES).read_bytes())
    found = {
        who: {f"{one['source']}-{one['target']}": one["bleu"] for one in scores[who]["directions"]} for who in scores
    }
    assert list(found) == ["teacher", "student", "int8"]
    assert {
        f"{source}-{target}" for source, target in directions_of(SHIPPED, translator.tokenizers.source)
    } == DIRECTIONS
    for who in found:
        assert set(found[who]) == DIRECTIONS
    for direction in DIRECTIONS:
        teacher, student, rounded = (found[who][direction] for who in found)
        assert student > teacher - 1.5
        assert abs(rounded - student) <= 0.2
    assert sum(found["int8"].values()) / len(DIRECTIONS) > 40


def test_its_card_says_what_it_owes_and_what_it_cannot() -> None:
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    for heading in ("Scores", "Faults", "What it is not good for", "Data, and whom it is owed to", "How it was made"):
        assert f"## {heading}" in card
    for owed in ("tatoeba.org", "CC BY 2.0", "TICO-19", "BibleNLP/ebible", "python/python-docs-fr", "MaxyLee/3AM"):
        assert owed in card
    assert "tok:zh" in card
    assert "\ntransduce translate FOLDER --to de" in card
    assert "the model that comes with the package needs no name" in card


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_of_the_machine_that_made_it_is_in_it(path: Path) -> None:
    assert not re.search(rb"/(tmp|home|root|work)/", path.read_bytes())
