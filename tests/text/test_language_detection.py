"""Sentences whose language is plain need no tables; whatever is open is left to those."""

from __future__ import annotations

import pytest

from transduce.core.errors import UserError
from transduce.text import languages
from transduce.text.languages import FREQUENT, LIKELY, TOLD, Detector, plain_language
from transduce.translate.directions import ChosenDirection, DirectionQuery

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
        ("Katzen schlafen gern.", "de"),
        ("Vögel singen draußen.", ""),  # no such word
        ("Der Film is the best.", ""),  # of two languages
        ("12 + 7", ""),
    ],
)
def test_what_is_plain(text: str, language: str) -> None:
    assert plain_language(text, SIX) == language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Hello", "en"), ("Hello World", "en"), ("Thanks!", "en"), ("Hallo", "de"), ("Danke!", "de"), ("Merci", "fr"),
        ("bonjour", "fr"), ("¡Hola!", "es"), ("Gracias", "es"), ("Olá", "pt"), ("Obrigada", "pt"), ("你好", "zh"),
    ],
)  # fmt: skip
def test_a_word_is_enough_where_it_is_frequent(text: str, language: str) -> None:
    """The tables alone take "Hello" for Spanish."""
    first, second, *_ = Detector(SIX).detect(text)
    assert first.language == language
    assert first.confidence >= TOLD > 100 - TOLD >= second.confidence


def test_words_tell_nothing_where_a_language_has_none_listed() -> None:
    assert Detector(("en", "nl")).detect("Hello")[0].confidence < LIKELY
    assert Detector(SIX).detect("12")[0].confidence == 0


def test_no_word_is_of_two_languages() -> None:
    words = [word for words in FREQUENT.values() for word in words.split()]
    assert len(words) == len(set(words))
    assert all(word == word.lower() and word.isalpha() for word in words)


def test_codes_are_the_models_own_and_all_must_be_known() -> None:
    assert plain_language("Where is the station?", ("en-GB", "zh-Hans")) == "en-GB"
    assert plain_language("Where is the station?", ("en-GB", "en-US")) == ""
    assert plain_language("Where is the station?", ("en", "pl")) == ""
    assert plain_language("Wo ist der Bahnhof?", ("en", "fr")) == ""


def test_no_table_is_read_for_what_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("tables were read")

    monkeypatch.setattr(languages, "_identifier", fail)
    assert DirectionQuery(PAIRS, target="zh").way("Cats like to sleep.") == ChosenDirection("en", "zh", True)
    assert DirectionQuery(PAIRS, target="en").way("猫喜欢睡觉。") == ChosenDirection("zh", "en", True)
    with pytest.raises(AssertionError, match="tables were read"):
        DirectionQuery(PAIRS, target="en").way("The cat is here.")  # nothing is refused by words alone


def test_what_is_plain_and_wrong_is_still_refused() -> None:
    with pytest.raises(UserError, match=r"this seems to be English \(en\), which --to names too"):
        DirectionQuery(PAIRS, target="en").way("The cat is sleeping in the garden.")
