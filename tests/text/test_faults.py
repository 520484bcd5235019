"""Faults that show without a reference: each named where it is one, and nowhere else."""

from __future__ import annotations

import pytest

from transduce.core.errors import near_words
from transduce.text.faults import FAULTS, length, other_script, problems, scripts_of

SENTENCE = "The quick brown fox jumps over the lazy dog."


@pytest.mark.parametrize(
    ("source", "translation", "to", "expected"),
    [
        (SENTENCE, "Der schnelle braune Fuchs springt über den faulen Hund.", "de", []),
        (SENTENCE, "", "de", ["empty"]),
        (SENTENCE, " \t", "de", ["empty"]),
        ("", "", "de", []),
        (" ", "", "de", []),
        (SENTENCE, SENTENCE, "de", ["copied"]),
        (SENTENCE, SENTENCE.upper(), "de", ["copied"]),
        ("Anna-Lena Müller", "Anna-Lena Müller", "de", []),  # a name
        ("print('hello')", "print('hello')", "de", []),
        ("猫喜欢在阳光下睡觉。", "猫喜欢在阳光下睡觉。", "en", ["copied", "language"]),
        (SENTENCE, "der Hund der Hund der Hund der Hund", "de", ["repeated"]),
        ("no no no no no", "nein nein nein nein nein", "de", []),  # the source does so too
        ("Hi.", "Hallo und vieles mehr, das niemand gesagt hat und niemand hören will", "de", ["long"]),
        (SENTENCE, "敏捷的棕色狐狸跳过了懒狗。", "zh", []),
        (SENTENCE, "The fast fox", "zh", ["language"]),
        (SENTENCE, "Быстрая лиса", "de", ["language"]),
        ("I own an iPhone.", "我有一部iPhone。", "zh", []),  # the source has the word
        (SENTENCE, "Быстрая лиса", "ru", []),
        (SENTENCE, "Быстрая лиса", "", []),  # nobody says what it should be
        (SENTENCE, "Der Bär β", "de", []),  # a sign is no language
    ],
)
def test_what_is_a_fault(source: str, translation: str, to: str, expected: list[str]) -> None:
    assert problems(source, translation, to) == expected


def test_copied_words_are_no_other_language_but_copied_characters_are() -> None:
    assert problems("猫喜欢睡觉。", "猫喜欢睡觉。", "en") == ["language"]
    assert problems("Доброе утро, как ваши дела", "Доброе утро, как ваши дела", "de") == ["copied"]


def test_a_detected_language_counts() -> None:
    assert problems("Good morning!", "Bonjour !", "de", detected="fr") == ["language"]
    assert problems("Good morning!", "Guten Morgen!", "de-AT", detected="de") == []
    assert problems("Good morning!", "Bonjour !", "", detected="fr") == []


def test_faults_are_named_in_their_order() -> None:
    found = problems("Hello there.", "привет " * 30, "de")
    assert found == ["repeated", "long", "language"]
    assert [name for name in FAULTS if name in found] == found
    assert not near_words("repeated", [name for name in FAULTS if name != "repeated"])


def test_scripts_of_languages() -> None:
    assert scripts_of("de") == scripts_of("pt-BR") == {"LATIN"}
    assert "CJK" in scripts_of("zh-Hans") & scripts_of("ja")
    assert scripts_of("km") == scripts_of("") == scripts_of("xyz") == frozenset()  # not known: nothing is said
    assert not other_script("", "ABC déjà vu ＡＢＣ", "de")
    assert not other_script("", "ខ្ញុំ​ទៅ", "km")


def test_a_wide_character_is_three_letters() -> None:
    assert length("abc") == 3
    assert length("猫a") == 4
