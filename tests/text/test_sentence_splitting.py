"""Splitting into sentences: which numbers before a stop are ordinals, and that no text whatever is lost."""

from __future__ import annotations

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


def texts(text: str) -> list[str]:
    return [part.text for part in sentences(text)]


@pytest.mark.parametrize("number", ["1", "3", "12", "31", "99"])
def test_a_number_of_one_or_two_digits_before_a_stop_is_an_ordinal(number: str) -> None:
    """As in German dates and names of kings: "am 3. Mai", "Ludwig der 14. Er"."""
    assert texts(f"Am {number}. Mai kam er.") == [f"Am {number}. Mai kam er."]
    assert texts(f"({number}. Auflage)") == [f"({number}. Auflage)"]


@pytest.mark.parametrize("number", ["100", "365", "1989", "2024", "12345"])
def test_a_longer_number_ends_its_sentence(number: str) -> None:
    """A year at the end of a sentence is far more frequent than an ordinal above 99."""
    assert texts(f"That was in {number}. He left.") == [f"That was in {number}.", "He left."]


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
