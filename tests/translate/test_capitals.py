"""Text in capitals is translated by way of small letters where the vocabulary has no capitals, and nowhere else."""

from __future__ import annotations

import pytest

import transduce
from transduce.text.tokenizer import Tokenizer
from transduce.text.train_tokenizer import SentencePiece
from transduce.text.vocabulary import VocabularyMap
from transduce.translate.model_folder import SHIPPED
from transduce.translate.options import is_loud, small

ORDINARY = ["The cat is on the table.", "Where are you?", "What should I do?", "NASA is in the U.S.A."] * 3


@pytest.fixture(scope="module")
def translator() -> transduce.Translator:
    return transduce.load(SHIPPED)


@pytest.mark.parametrize(
    ("text", "loud"),
    [
        ("THE CAT IS ON THE TABLE.", True),
        ("WO IST DER BAHNHOF?", True),
        ("USB", False),  # three letters are an abbreviation
        ("USB TV", False),  # which the vocabulary knows
        ("The CAT is on the TABLE.", False),
        ("12345 + 6789", False),
        ("猫在桌子上", False),  # has no capitals
        ("", False),
    ],
)
def test_what_is_loud(text: str, loud: bool, translator: transduce.Translator) -> None:
    assert is_loud(text, translator.tokenizers.source) is loud


def test_a_vocabulary_of_capitals_is_taken_at_its_word() -> None:
    shouted = [line.upper() for line in ORDINARY]
    own = SentencePiece(vocabulary=340).train(shouted, shouted).tokenizers.source
    assert not is_loud("THE CAT IS ON THE TABLE.", own)


def test_models_of_others_read_what_they_are_given(translator: transduce.Translator) -> None:
    tokenizer = translator.tokenizers.source
    table = VocabularyMap(tuple(tokenizer.pieces(range(tokenizer.size))), tokenizer.symbols)
    assert not is_loud("WHERE ARE YOU?", Tokenizer(tokenizer.model, table=table))


def test_small_letters() -> None:
    assert small("“WHERE AM I?” HE ASKED. 2 CATS! ÜBER ALLES") == "“Where am I?” he asked. 2 cats! Über alles"


def test_it_is_read_small_and_answered_loudly(translator: transduce.Translator) -> None:
    quiet = translator.translate(["The cat is on the table."], to="de", n_best=2, align="words")[0]
    loud, plain = translator.translate(["THE CAT IS ON THE TABLE.", "Cats"], to="de", n_best=2, align="words")
    assert loud.text == quiet.text.upper()
    assert [one.text for one in loud.alternatives] == [one.text.upper() for one in quiet.alternatives]
    assert (loud.score, loud.tokens, loud.alignment) == (quiet.score, quiet.tokens, quiet.alignment)
    assert not plain.text.isupper()
    assert translator("I LOVE YOU", to="zh") == translator("I love you", to="zh")


def test_included_words_stay_as_they_are_written(translator: transduce.Translator) -> None:
    (begun,) = translator.translate(["THE CAT IS ON THE TABLE."], to="de", prefixes="Die Katze")
    assert begun.text.startswith("Die Katze")
    assert "Tisch" in translator.translate(["THE CAT IS ON THE TABLE."], to="de", include=["Tisch"])[0].text
