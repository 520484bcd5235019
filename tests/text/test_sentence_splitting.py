"""Splitting into sentences: which numbers before a stop are ordinals, and that no text whatever is lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transduce.server.markup import Layout
from transduce.text.segment import TextPiece, sentences, split_long

# Any string Python can hold: lone surrogates (what `surrogateescape` makes of bad bytes) and control characters too.
ANY_TEXT = st.text(st.characters()) | st.text(
    "aB1 .!?…。！\"”)'\t\n\r\v\x1c\x85\u2028\u3000\ud800\udcff\x00😀-", max_size=60
)
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def texts(text: str, language: str = "") -> list[str]:
    return [part.text for part in sentences(text, language)]


# A stroke marks where a sentence ends.
@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "I am 42.|You are 40."),
        ("en", "Plan B.|It works."),
        ("en", "He lived in the U.S.|He left."),
        ("en", "The U.S. Army came at 5 p.m.|We left."),
        ("en", "Dr. Smith and Mr. Brown met in St. Petersburg."),
        ("en", "J. R. R. Tolkien and John F. Kennedy read a book by J. Smith."),
        ("en", "See No. 5 and Fig. 3.|See block No.|Making requests is slow."),
        ("en", "1. Introduction"),
        ("en", "Vol. IV is here, e.g. in Oxford."),
        ("en", "He works at Acme Inc.|They pay well, etc.|I know."),
        ("en", "He sold approx. three of them.|alwaysOnTop is a flag."),
        ("en", "“Really?” he asked.|“Yes!”|She left."),
        ("en", "Select option A.|Click Save."),
        ("de", "Er kam am 3. Mai.|Er ist 42.|Du bist 40."),
        ("de", "Das ist z. B. so gut, z.B. hier, d. h. Der Hund."),
        ("de", "Das 165. Stiftungsfest im 19. Jahrhundert war bei der 3. Sitzung."),
        ("de", "Ich nehme Vitamin C.|Es hilft."),
        ("de", "Er sagte „Hallo.“|Dann ging er, vgl. Müller 2004, S. 5, Nr. 7 usw.|Das war 5 Mio. Euro wert."),
        (
            "fr",
            "« Bonjour. »|M. Dupont est là avec Mme. Durand, p. ex. ici.|Le plan B.|Il marche, etc.|Ajoute.",
        ),
        ("es", "El Sr. García vino, p. ej. Madrid y p.ej. esto.|Tengo 42.|¿Tú tienes 40?|¡Sí!"),
        ("pt", "O Sr. Silva e a Dra. Costa vieram.|Eu tenho 42.|O resultado de um teste F.|Você irá."),
        ("zh", "我四十二岁。|你四十岁！|“你好吗？”他问道。|填充到4个字节.|如果正确?|是的"),
        ("ja", "「行く。」と言った。|そうです。"),
    ],
)
def test_each_language_has_its_rules_and_an_unknown_one_has_them_all(language: str, marked: str) -> None:
    expected = marked.split("|")
    text = marked.replace("|", "" if language in ("zh", "ja") else " ")
    assert texts(text, language) == expected
    assert texts(text) == expected


def test_a_language_has_no_rules_of_another() -> None:
    assert texts("I came am 3. Mai was there.", "en") == ["I came am 3.", "Mai was there."]
    assert texts("Er kam am 3. Mai.", "de-AT") == ["Er kam am 3. Mai."]
    assert texts("Ring ring 5. Katter.", "sv") == texts("Ring ring 5. Katter.")


def test_runs_of_marks_take_no_longer_than_other_text() -> None:
    started = time.monotonic()
    for text in (
        ". " * 20_000,
        "." * 100_000,
        "?!" * 50_000 + " A",
        "。" * 50_000,
        "A. " * 20_000,
        '."' * 30_000,
        "z. B. " * 9000,
    ):
        assert "".join(part.text + part.space for part in sentences(text)) == text
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("number", ["1", "3", "12", "31", "99"])
def test_a_number_of_one_or_two_digits_before_a_stop_is_an_ordinal(number: str) -> None:
    """As in German dates and names of kings: "am 3. Mai", "Ludwig der 14. Er"."""
    assert texts(f"Am {number}. Mai kam er.") == [f"Am {number}. Mai kam er."]
    assert texts(f"({number}. Auflage)") == [f"({number}. Auflage)"]


@pytest.mark.parametrize("number", ["100", "365", "1989", "2024", "12345"])
def test_a_longer_number_ends_its_sentence(number: str) -> None:
    """A year at the end of a sentence is far more frequent than an ordinal above 99."""
    assert texts(f"That was in {number}. He left.") == [f"That was in {number}.", "He left."]


def test_a_stop_before_a_small_letter_ends_nothing_and_several_before_a_large_one_do() -> None:
    assert texts("He sold approx. three of them.") == ["He sold approx. three of them."]
    assert texts("Wait... what?") == ["Wait... what?"]
    assert texts("Wait... What?") == ["Wait...", "What?"]


@given(ANY_TEXT)
@example("\udce9t\udce9. Oui.")
@example("A" * 20000 + ". B")
@example(". " * 5000)
@example("\u2028\u2028a\x00. \x1cB")
def test_sentences_give_every_text_back(text: str) -> None:
    parts = sentences(text)
    assert "".join(part.text + part.space for part in parts) == text
    for number, part in enumerate(parts):
        assert part.text or number == 0  # only space before the first stands by itself
        assert part.text == part.text.strip()
        assert not any(mark in part.text for mark in BREAKS)
        assert not part.space.strip()


@given(ANY_TEXT)
def test_a_sentence_is_not_split_again(text: str) -> None:
    for part in sentences(text):
        if part.text:
            assert sentences(part.text) == [TextPiece(part.text, "")]


@given(ANY_TEXT, st.booleans(), st.sampled_from(["de", "zh"]))
@example("- \udcff. 😀 a", False, "de")
def test_a_layout_changes_nothing_but_spaces_between_sentences(text: str, whole: bool, target: str) -> None:
    layout = Layout.of(text, whole)
    assert "".join(part.text + part.space for part in layout.parts) == text
    joined = layout.joined(layout.texts, target)
    assert "".join(joined.split()) == "".join(text.split())


@given(ANY_TEXT, st.integers(1, 9))
@example("a" * 5000, 3)
@example("a, " * 2000, 4)
def test_long_text_is_cut_into_parts_that_fit_and_give_it_back(text: str, most: int) -> None:
    parts = split_long(text, lambda part: len(part) <= most)
    assert "".join(part.text + part.space for part in parts) == text
    assert all(len(part.text) <= most for part in parts)
