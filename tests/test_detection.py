"""Sentences whose language is plain need no tables; whatever is open is left to those."""

from __future__ import annotations

import pytest

from transduce import detection
from transduce.detection import plain_language
from transduce.directions import Asked, Way
from transduce.errors import UserError

SIX = ("en", "de", "fr", "es", "pt", "zh")
PAIRS = tuple(pair for other in SIX[1:] for pair in (("en", other), (other, "en")))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Cats like to sleep.", "en"),
        ("Ich habe Hunger, und du?", "de"),
        ("Elle est dans le jardin.", "fr"),
        ("¿Qué hay para comer?", "es"),
        ("Você não está em casa.", "pt"),
        ("猫喜欢睡觉。", "zh"),
        ("猫は眠るのが好きです。", ""),  # kana: Japanese
        ("Katzen schlafen gern.", ""),  # no such word
        ("Der Film is the best.", ""),  # of two languages
        ("12 + 7", ""),
    ],
)
def test_what_is_plain(text: str, language: str) -> None:
    assert plain_language(text, SIX) == language


def test_codes_are_the_models_own_and_all_must_be_known() -> None:
    assert plain_language("Where is the station?", ("en-GB", "zh-Hans")) == "en-GB"
    assert plain_language("Where is the station?", ("en-GB", "en-US")) == ""
    assert plain_language("Where is the station?", ("en", "pl")) == ""
    assert plain_language("Wo ist der Bahnhof?", ("en", "fr")) == ""


def test_no_table_is_read_for_what_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("tables were read")

    monkeypatch.setattr(detection, "_identifier", fail)
    assert Asked(PAIRS, target="zh").way("Cats like to sleep.") == Way("en", "zh", True)
    assert Asked(PAIRS, target="en").way("猫喜欢睡觉。") == Way("zh", "en", True)
    with pytest.raises(AssertionError, match="tables were read"):
        Asked(PAIRS, target="en").way("The cat is here.")  # nothing is refused by words alone


def test_what_is_plain_and_wrong_is_still_refused() -> None:
    with pytest.raises(UserError, match=r"this seems to be English \(en\), which is what --to asks for too"):
        Asked(PAIRS, target="en").way("The cat is sleeping in the garden.")
