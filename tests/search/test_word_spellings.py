"""Words as tokens: which ways of writing a word count as the word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.core.errors import DataError
from transduce.search.constraints import DecodingConstraints, _shortest, constraints_of_words, holds
from transduce.text.tokenizer import Tokenizer, spellings
from transduce.text.train_tokenizer import SentencePiece

LINES = [
    "das Haus am Hafen",
    "ein Krankenhaus, kein Hauskauf",
    "die Häuser der Häfen",
    "einer kaufte ein Haus.",
    "五百三十",
]


def train(**settings: object) -> Tokenizer:
    kind = SentencePiece(**{"vocabulary": 340, "normalization": "identity", **settings})  # type: ignore[arg-type]
    return kind.train(LINES * 20, LINES * 20).tokenizers.target


TOKENIZER = train(model="bpe")


def texts(tokenizer: Tokenizer, constraints: DecodingConstraints) -> tuple[list[list[str]], list[str]]:
    include = [["".join(tokenizer.pieces(way)) for way in ways] for ways in constraints.include]
    return include, ["".join(tokenizer.pieces(phrase)) for phrase in constraints.exclude]


def test_all_ways_through_the_pieces_fewest_first():
    pieces = {"a": (1,), "b": (2,), "ab": (3,), "ba": (4,), "c": (5, 6)}
    assert spellings("ab", pieces, 9) == [(3,), (1, 2)]
    assert spellings("abab", pieces, 9) == [(3, 3), (1, 2, 3), (1, 4, 2), (3, 1, 2), (1, 2, 1, 2)]
    assert spellings("abab", pieces, 2) == [(3, 3), (1, 2, 3)]
    assert spellings("ac", pieces, 9) == [(1, 5, 6)]
    assert spellings("ax", pieces, 9) == []
    assert spellings("", pieces, 9) == [()]


@pytest.mark.parametrize("word", ["Haus", "Krankenhaus", "ein Haus", " Hafen ", "五百", "😀", "."])
def test_every_spelling_reads_as_the_word(word):
    found = TOKENIZER.spellings(word)
    assert {TOKENIZER.decode(way).strip() for way in found} == {word.strip()}
    assert len(found) == len(set(found))
    assert {TOKENIZER.spelling(word), TOKENIZER.spelling(word, inside=True)} <= {*found}


def test_a_word_with_cases_begins_after_a_space():
    include, _ = texts(TOKENIZER, constraints_of_words(TOKENIZER, ["Haus", "ein Haus", "Haus", "7"], []))
    assert include == [["▁Haus"], ["▁ein▁Haus"], ["▁<0x37>"]]


def test_other_words_may_stand_inside_others_text():
    include, _ = texts(TOKENIZER, constraints_of_words(TOKENIZER, [",", "百三"], []))
    assert include[0][:2] == ["▁,", ","]
    assert include[1][:2] == ["▁百三", "百三"]
    assert all("百三" in way for way in include[1])


def test_excluded_words_are_struck_with_and_without_a_space_however_they_are_cut():
    _, exclude = texts(TOKENIZER, constraints_of_words(TOKENIZER, [], ["aus"]))
    assert {*exclude} == {"aus"}  # what begins with a space ends with these
    constraints = constraints_of_words(TOKENIZER, [], ["Haus", "百"])
    for way in [*TOKENIZER.spellings("Haus"), *TOKENIZER.encode(["ein Haus", "五百三十"])]:
        assert any(way[i : i + len(p)] in (p, [*p]) for p in constraints.exclude for i in range(len(way)))
    other = TOKENIZER.encode(["Hafen"])[0]
    assert not any(tuple(other[i : i + len(p)]) == p for p in constraints.exclude for i in range(len(other)))


def test_what_cannot_be_written():
    plain = train(byte_fallback=False, vocabulary=60)
    with pytest.raises(DataError, match="include: 'Möwe' cannot be written, since the model's vocabulary lacks 'Möw'"):
        constraints_of_words(plain, ["Möwe"], [])
    assert constraints_of_words(plain, [], ["Möwe"]) == DecodingConstraints()
    with pytest.raises(DataError, match="include: 'kein Haus' cannot be written without 'Haus', which exclude forbids"):
        constraints_of_words(TOKENIZER, ["kein Haus"], ["Haus"])
    with pytest.raises(DataError, match="exclude: a blank word was given"):
        constraints_of_words(TOKENIZER, [], [""])


def test_a_word_of_which_normalization_leaves_nothing_is_blank():
    """No piece writes a zero-width space, and every piece holds as much: excluded, nothing could be written."""
    normalized = train(model="bpe", normalization="nmt_nfkc")
    for name, words in (("include", (["\u200b"], [])), ("exclude", ([], ["Haus", "\u200b"]))):
        with pytest.raises(DataError, match=f"{name}: a blank word was given; give words that can be seen, or none"):
            constraints_of_words(normalized, *words)


PHRASES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), max_size=12)


@given(PHRASES)
def test_phrases_that_hold_another_are_left_out(phrases: list[tuple[int, ...]]) -> None:
    kept = [one for one in phrases if not any(other != one and holds(one, other) for other in phrases)]
    assert _shortest(phrases) == kept
