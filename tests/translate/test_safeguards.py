"""Spans that are no language survive, whatever the model does with their marks; the rounds of safeguards."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.engines import Translation
from transduce.text.alignment import Alignment
from transduce.text.protect import MARKS, find_protected
from transduce.translate.safeguards import AROUND, MARKED, NAMES, NUMBERS, Decode, Protection, as_it_is, together

Model = Callable[[Decode], str]


def protection(**changes: object) -> Protection:
    """The protection of the first text of a request for a model without marks of its own."""
    return replace(
        Protection(0, symbols=False, beam=True, bound=False, aligned=False, fits=lambda text: len(text) < 400),
        **changes,
    )  # type: ignore[arg-type]


def run(text: str, model: Model, **changes: object) -> tuple[Translation, list[Decode]]:
    """Translate a text with a function for a model; also all that it was asked to decode."""
    asked: list[Decode] = []
    steps = together([protection(**changes).translate(text, find_protected(text))])
    answer: list[Translation] | None = None
    while True:
        try:
            decodes = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            return end.value[0], asked
        asked += decodes
        answer = [Translation(model(decode)) for decode in decodes]


def shout(decode: Decode) -> str:
    """A model that translates into capitals and copies everything else."""
    return decode.text.upper()


def marks_of(text: str) -> list[str]:
    return [mark for mark in (*MARKS, *NAMES, *NUMBERS) if mark in text]


def lose(decode: Decode) -> str:
    for mark in marks_of(decode.text):
        decode = replace(decode, text=decode.text.replace(mark, ""))
    return decode.text.upper()


def double(decode: Decode) -> str:
    return f"{decode.text} {' '.join(marks_of(decode.text))}".upper()


def glue(decode: Decode) -> str:
    return re.sub(r"(T\d|\d{4})", r"5\1", decode.text)


TEXTS = [
    "Click {name} to open %s in the settings.",
    "See https://example.org/a?b=1.",
    "Delete ${file}?",
    "Write to anna.b@example.com, or call +49 30 1234567!",
    "运行 `git push` 后再打开 https://example.org/路径。",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", [shout, lose, double, glue])
def test_spans_survive_whatever_the_model_does(text: str, model: Model) -> None:
    found, _ = run(text, model)
    for span in find_protected(text):
        kept = text[span.start : span.stop]
        assert found.text.count(kept) == text.count(kept)
    assert found.protection == (MARKED if model is shout else AROUND)


def test_marks_stand_where_the_model_put_them() -> None:
    def swap(decode: Decode) -> str:
        first, second = decode.include
        return f"{second} von {first}."

    found, asked = run("{a} of {b}.", swap)
    assert found.text == "{b} von {a}."
    assert asked == [Decode("T1 of T2.", 0, ("T1", "T2"))]


def test_symbols_of_the_vocabulary_come_first() -> None:
    _, asked = run("See {a}.", lose, symbols=True)
    assert [decode.text for decode in asked] == ["See ⟦0⟧.", "See T1.", "See 4711.", "See"]


def test_a_search_of_one_path_is_tried_before_a_beam() -> None:
    """Greedy search and sampling cannot be held to write a word."""
    _, asked = run("See {a}.", lose, beam=False)
    assert [(decode.text, decode.include) for decode in asked[:2]] == [("See T1.", ()), ("See T1.", ("T1",))]


def test_marks_do_not_occur_in_the_text() -> None:
    _, asked = run("T1 and t2: {a}", shout)
    assert asked[0].include == ("T3",)


def test_a_text_in_capitals_has_marks_without_a_case() -> None:
    _, asked = run("DELETE ${file} NOW!", shout)
    assert asked[0].text == "DELETE 4711 NOW!"


def test_a_text_without_words_is_not_translated() -> None:
    found, asked = run("{a}: 25 %", shout)
    assert (found.text, asked) == ("{a}: 25 %", [])


def test_around_a_span_spaces_and_marks_stay() -> None:
    found, asked = run("«See» {a}, then  go!", lose)
    assert found.text == "«SEE» {a}, THEN  GO!"
    assert [decode.text for decode in asked[-2:]] == ["See", "then  go!"]


def test_a_full_stop_that_ends_no_sentence_is_taken_away() -> None:
    found, _ = run("Open {a} now.", lambda decode: "offen." if decode.text == "Open" else "jetzt.")
    assert found.text == "offen {a} jetzt."


def test_with_forced_words_a_text_is_never_put_together() -> None:
    found, asked = run("See {a}.", lose, bound=True)
    assert asked[-1] == Decode("See {a}.", 0)
    assert found.protection == ""


def test_a_long_text_is_cut_between_spans() -> None:
    text = "See https://example.org/one-that-is-longer-than-the-model-reads now. Then go to {place} at once."
    found, asked = run(text, shout, fits=lambda part: len(part) < 30)
    assert (
        found.text == "SEE https://example.org/one-that-is-longer-than-the-model-reads NOW. THEN GO TO {place} AT ONCE."
    )
    assert [decode.text for decode in asked] == ["See T1 now.", "Then go to T1 at once."]


@given(st.lists(st.sampled_from(["{a}", "%s", "see", "https://x.org/a", ". ", " ", "你", "e@f.org", "B"]), max_size=12))
def test_any_text_keeps_its_spans(words: list[str]) -> None:
    text = "".join(words)
    spans = [text[span.start : span.stop] for span in find_protected(text)]
    for model in (shout, lose):
        found, _ = run(text, model, fits=lambda part: len(part) < 20)
        rest = found.text
        for span in spans:  # in order: neither of these models moves anything
            assert span in rest
            rest = rest[rest.index(span) + len(span) :]


def test_an_alternative_that_lost_a_span_is_dropped() -> None:
    steps = together([protection().translate("See {a}.", find_protected("See {a}."))])
    next(steps)
    others = (Translation("Sieh."), Translation("Schau T1 an."))
    with pytest.raises(StopIteration) as end:
        steps.send([Translation("Sieh T1.", alternatives=others)])
    (found,) = end.value.value
    assert [other.text for other in found.alternatives] == ["Schau {a} an."]


def test_a_cancelled_text_is_not_tried_again() -> None:
    steps = together([protection().translate("See {a}.", find_protected("See {a}."))])
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([Translation("", finished=False)])
    assert end.value.value == [Translation("", finished=False)]


def test_a_forced_beginning_has_the_mark_too() -> None:
    (first, *_) = next(protection().translate("Go to {a}.", find_protected("Go to {a}."), "Nach {a} "))
    assert first == Decode("Go to T1.", 0, ("T1",), "Nach T1 ")


def reverse(text: str) -> Translation:
    """Words in reverse order, each linked to itself."""
    words = text.split()
    links = [(number, len(words) - 1 - number, 1.0) for number in range(len(words))]
    return Translation(" ".join(words[::-1]), alignment=Alignment.linked(words, words[::-1], links))


def test_tags_in_pairs_go_with_their_words() -> None:
    steps = together([protection().translate(text := "open <b>the {a} door</b> now", find_protected(text))])
    (asked,) = next(steps)
    assert asked == Decode("open the T1 door now", 0, ("T1",), align="pieces")
    with pytest.raises(StopIteration) as end:
        steps.send([reverse(asked.text)])
    (found,) = end.value.value
    assert (found.text, found.alignment, found.protection) == ("now <b>door {a} the</b> open", None, MARKED)


def test_where_tags_cannot_be_placed_the_text_between_them_is_translated() -> None:
    found, asked = run("open <b>the</b> door", shout)  # without an alignment
    assert found.text == "OPEN <b>THE</b> DOOR"
    assert [decode.text for decode in asked] == ["open the door", "open", "the", "door"]


def test_a_tag_without_partner_is_a_word_that_is_copied() -> None:
    _, asked = run("press <0/> to <br> go", shout)
    assert [decode.text for decode in asked] == ["press T1 to T2 go"]


@pytest.mark.parametrize("text", ["<p>see</p>", "😀 see", "<br><p>see</p> 😀", "<i><b>see</b></i> <br>"])
def test_what_stands_around_a_text_stays_there(text: str) -> None:
    found, asked = run(text, shout)
    assert [decode.text for decode in asked] == ["see"]
    assert (found.text, found.protection) == (text.replace("see", "SEE"), MARKED)


def test_a_pair_that_ends_within_the_text_is_no_edge() -> None:
    _, asked = run("<b>see</b> it", shout)
    assert asked[0] == Decode("see it", 0, align="pieces")


def test_safeguards_of_many_texts_share_rounds() -> None:
    steps = together([as_it_is("one", 0), protection(number=1).translate("{a} b", find_protected("{a} b"))])
    assert next(steps) == [Decode("one", 0), Decode("T1 b", 1, ("T1",))]
    assert steps.send([Translation("eins"), Translation("b")]) == [Decode("4711 b", 1, ("4711",))]


def test_alignments_have_spans_for_marks() -> None:
    words = Alignment.linked(["See", "T1."], ["Sieh", "T1."], [(0, 0, 0.9), (1, 1, 0.8)])
    assert words.with_units({"T1": "{a}"}).source == ("See", "{a}.")
    pieces = Alignment.linked(["▁See", "▁T", "1", "."], ["▁T", "1", "▁an"], [(1, 0, 0.5), (2, 1, 0.8), (0, 2, 0.7)])
    found = pieces.with_units({"T1": "{a}"})
    assert (found.source, found.target) == (("▁See", "▁{a}", "."), ("▁{a}", "▁an"))
    assert (found.links, found.strengths) == (((0, 1), (1, 0)), (0.7, 0.8))


def test_alignments_of_parts_follow_each_other() -> None:
    one, two = Alignment.linked(["a"], ["b"], [(0, 0, 0.5)]), Alignment.linked(["c", "d"], ["e"], [(1, 0, 0.6)])
    assert Alignment.chained([one, two]) == Alignment.linked("acd", "be", [(0, 0, 0.5), (2, 1, 0.6)])
