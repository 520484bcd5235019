"""Other words at a place: they begin as requested, differ there, and the likeliest come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transduce.inspection.alternatives import WORST, alternatives
from transduce.model.parallel import ParallelDecoder
from transduce.search.constraints import DecodingConstraints
from transduce.search.settings import Greedy
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

TEXT = "sixty-two, eleven"


def test_they_begin_as_requested_and_differ_in_the_next_word(toy: Toy) -> None:
    for before in ("", "zwei, "):
        found = alternatives(toy.translator, TEXT, before, to="de", count=4)
        assert 1 < len(found) <= 4
        words = [one.word for one in found]
        assert len(set(words)) == len(words)
        for one in found:
            assert one.text.startswith(before.rstrip())
            assert one.text[len(before.rstrip()) :].split()[0] == one.word
            assert one.log_prob >= found[0].log_prob - WORST


def test_the_first_of_them_is_the_translation_itself(toy: Toy) -> None:
    greedy = Translator(toy.engine, toy.translator.tokenizers, Greedy())
    first, *_ = alternatives(greedy, TEXT, "", to="de")
    # A beginning lengthens what may be written: where the limit cuts it off, there is a token more.
    assert first.text.startswith(greedy(TEXT, to="de"))


def test_each_is_the_model_s_own_search_from_its_token_on(toy: Toy) -> None:
    source, target = toy.translator.tokenizers.source, toy.translator.tokenizers.target
    tokens = (source.tag("de"), *source.encode([TEXT])[0])
    for one in alternatives(toy.translator, TEXT, "", to="de"):
        begun = target.encode([one.text])[0][:1]
        (found,) = toy.translator.find([tokens], toy.translator.search, [DecodingConstraints(prefix=tuple(begun))])
        if target.decode(found[0].tokens) == one.text:
            assert found[0].log_prob == pytest.approx(one.log_prob, abs=1e-4)


def test_there_are_none_for_nothing_or_for_words_written_all_at_once(toy: Toy) -> None:
    assert alternatives(toy.translator, "  ", "", to="de") == []
    parallel = Translator(toy.engine, toy.translator.tokenizers, Greedy(), decoder=ParallelDecoder())
    assert alternatives(parallel, TEXT, "") == []
