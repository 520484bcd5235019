"""Cutting long text: nothing is lost, every part fits, and the cut is at the best place there is."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from transduce.text.segment import TextPiece, split_long

TEXT = st.text("ab .,!?…。！，、;:\"'”)）\t\r\x0c\u0085\u2028\u3000é😀", max_size=60)


def joined(parts: list[TextPiece]) -> str:
    return "".join(part.text + part.space for part in parts)


@given(TEXT | st.text(max_size=60), st.integers(1, 12))
def test_the_parts_give_the_text_back_and_all_fit(text: str, most: int) -> None:
    parts = split_long(text, lambda part: len(part) <= most)
    assert joined(parts) == text
    assert all(len(part.text) <= most for part in parts)
    assert all(not part.space.strip() for part in parts)


@given(TEXT, st.integers(1, 12))
def test_this_holds_for_bytes_too_as_long_as_one_character_fits(text: str, most: int) -> None:
    """Like tokens, bytes do not grow with the text character by character."""

    def fits(part: str) -> bool:
        return len(part.encode()) <= most + 3  # the widest character has four bytes

    parts = split_long(text, fits)
    assert joined(parts) == text
    assert all(fits(part.text) for part in parts)


@given(TEXT)
def test_a_text_that_fits_is_left_alone(text: str) -> None:
    assert split_long(text, lambda part: True) == [TextPiece(text, "")]


@given(TEXT)
def test_what_never_fits_ends_in_characters(text: str) -> None:
    parts = split_long(text, lambda part: False)
    assert joined(parts) == text
    assert all(len(part.text) <= 1 for part in parts)


def texts(text: str, most: int) -> list[str]:
    return [part.text for part in split_long(text, lambda part: len(part) <= most)]


def test_sentence_ends_come_first_then_commas_then_spaces_then_anywhere() -> None:
    assert texts("One two. Three, four! Five.", 21) == ["One two. Three, four!", "Five."]
    assert texts("One two. Three, four, five six.", 21) == ["One two.", "Three, four,", "five six."]
    assert texts("one two three four", 9) == ["one two", "three", "four"]
    assert texts("abcdefgh", 4) == ["abcd", "efgh"]
    assert texts('He said: "No!" Then he left.', 15) == ['He said: "No!"', "Then he left."]


def test_chinese_is_cut_after_its_own_stops_without_spaces() -> None:
    assert texts("你好。我是人。他走了！", 8) == ["你好。我是人。", "他走了！"]
    assert texts("你好，我是人，他走了", 6) == ["你好，", "我是人，", "他走了"]


def test_the_white_space_between_parts_is_kept() -> None:
    assert split_long("One.  \t Two.", lambda part: len(part) <= 5) == [
        TextPiece("One.", "  \t "),
        TextPiece("Two.", ""),
    ]


def test_a_stop_inside_a_number_is_no_sentence_end() -> None:
    assert texts("It is 3.14 or so. Yes.", 18) == ["It is 3.14 or so.", "Yes."]


def test_runs_of_stops_take_no_longer_than_other_text() -> None:
    started = time.monotonic()
    text = "." * 100_000 + "!?" * 50_000 + ".\"'" * 30_000
    assert joined(split_long(text, lambda part: len(part) <= 50_000)) == text
    assert time.monotonic() - started < 2
