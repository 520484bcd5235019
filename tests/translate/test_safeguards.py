"""Spans that are no language survive, whatever the model does with their marks; the rounds of safeguards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.engines import Translation
from transduce.text.alignment import Alignment
from transduce.text.protect import MARKS, protected_spans
from transduce.translate.safeguards import (
    AROUND,
    MARKED,
    NAMES,
    NUMBERS,
    Decode,
    Safeguards,
    as_it_is,
    together,
    writable_marks,
)

Model = Callable[[Decode], str]


def safeguards(**changes: object) -> Safeguards:
    """The protection of the first text of a request for a model without marks of its own."""
    return replace(
        Safeguards(0, marks=(NAMES, NUMBERS), beam=True, bound=False, aligned=False, fits=lambda text: len(text) < 400),
        **changes,
    )  # type: ignore[arg-type]


def run(text: str, model: Model, **changes: object) -> tuple[Translation, list[Decode]]:
    """Translate a text with a function for a model; also all that it was asked to decode."""
    asked: list[Decode] = []
    steps = together([safeguards(**changes).translate(text, protected_spans(text))])
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
    return decode.text.upper()  # a fault in long sentences, and so a warning


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
    for span in protected_spans(text):
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
    _, asked = run("See {a}.", lose, marks=(MARKS, NAMES, NUMBERS))
    assert [decode.text for decode in asked] == ["See ⟦0⟧.", "See T1.", "See 4711.", "See"]


def test_without_marks_that_can_be_written_the_text_around_is_translated() -> None:
    found, asked = run("See {a}.", shout, marks=())
    assert (found.text, [decode.text for decode in asked]) == ("SEE {a}.", ["See"])


def test_marks_are_those_that_the_vocabulary_can_write() -> None:
    assert writable_marks(str.isdigit) == (NUMBERS,)
    assert writable_marks(lambda mark: mark not in ("T1", "⟦0⟧"))[:2] == (MARKS[1:], NAMES[1:])


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
    spans = [text[span.start : span.stop] for span in protected_spans(text)]
    for model in (shout, lose):
        found, _ = run(text, model, fits=lambda part: len(part) < 20)
        rest = found.text
        for span in spans:  # in order: neither of these models moves anything
            assert span in rest
            rest = rest[rest.index(span) + len(span) :]


def test_an_alternative_that_lost_a_span_is_dropped() -> None:
    steps = together([safeguards().translate("See {a}.", protected_spans("See {a}."))])
    next(steps)
    others = (Translation("Sieh."), Translation("Schau T1 an."))
    with pytest.raises(StopIteration) as end:
        steps.send([Translation("Sieh T1.", alternatives=others)])
    (found,) = end.value.value
    assert [other.text for other in found.alternatives] == ["Schau {a} an."]


def test_a_cancelled_text_is_not_tried_again() -> None:
    steps = together([safeguards().translate("See {a}.", protected_spans("See {a}."))])
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([Translation("", finished=False)])
    assert end.value.value == [Translation("", finished=False)]


def test_a_forced_beginning_has_the_mark_too() -> None:
    (first, *_) = next(safeguards().translate("Go to {a}.", protected_spans("Go to {a}."), "Nach {a} "))
    assert first == Decode("Go to T1.", 0, ("T1",), "Nach T1 ")


def reverse(text: str) -> Translation:
    """Words in reverse order, each linked to itself."""
    words = text.split()
    links = [(number, len(words) - 1 - number, 1.0) for number in range(len(words))]
    return Translation(" ".join(words[::-1]), alignment=Alignment.linked(words, words[::-1], links))


def test_tags_in_pairs_go_with_their_words() -> None:
    steps = together([safeguards().translate(text := "open <b>the {a} door</b> now", protected_spans(text))])
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


def test_markup_around_nothing_but_a_span_is_part_of_it() -> None:
    _, asked = run("open **{a}** and <i><b>%s</b></i> now", shout)
    assert asked[0] == Decode("open T1 and T2 now", 0, ("T1", "T2"))


def test_markdown_goes_with_its_words() -> None:
    text = "read [our **new** terms](/terms)  now"
    steps = together([safeguards().translate(text, protected_spans(text))])
    (asked,) = next(steps)
    assert asked.text == "read our new terms  now"
    with pytest.raises(StopIteration) as end:
        steps.send([reverse(asked.text)])
    assert end.value.value[0].text == "now [terms **new** our](/terms) read"


def test_cases_of_an_icu_message_are_translated() -> None:
    text = "Delete {n, plural, one {# old file} other {# old files in {place}}}?"
    found, asked = run(text, lambda decode: decode.text.replace("old", "alt"))
    assert found.text == "Delete {n, plural, one {# alt file} other {# alt files in {place}}}?"
    assert [decode.text for decode in asked] == ["Delete T1?", "T1 old file", "T1 old files in T2"]


def test_patterns_of_ones_own() -> None:
    own = (re.compile(r"Blue Tooth"),)
    text = "the Blue Tooth is on"
    steps = together([safeguards(own=own).translate(text, protected_spans(text, own))])
    assert [decode.text for decode in next(steps)] == ["the T1 is on"]


def test_what_shows_faults_is_translated_again() -> None:
    steps = together([safeguards(repeating=True, target="de").translate("cats sleep, dogs too", [])])
    assert next(steps) == [Decode("cats sleep, dogs too", 0)]
    bad = Translation("na na na na na")
    assert steps.send([bad]) == [Decode("cats sleep, dogs too", 0, n_best=4, no_repeat=True)]
    with pytest.raises(StopIteration) as end:
        steps.send([replace(bad, alternatives=(Translation("Katzen schlafen, Hunde auch"),))])
    assert end.value.value == [Translation("Katzen schlafen, Hunde auch")]


def test_clauses_are_translated_by_themselves_where_another_search_fails_too() -> None:
    steps = together([safeguards(repeating=True).translate("cats sleep, dogs too", [])])
    next(steps)
    bad = Translation("na na na na na")
    steps.send([bad])
    assert [decode.text for decode in steps.send([bad])] == ["cats sleep,", "dogs too"]
    with pytest.raises(StopIteration) as end:
        steps.send([Translation("Katzen schlafen,"), Translation("Hunde auch")])
    assert end.value.value[0].text == "Katzen schlafen, Hunde auch"


def test_what_stays_faulty_says_so() -> None:
    found, asked = run("cats sleep", lambda decode: "na na na na na", repeating=True)
    assert (found.text, found.warnings, len(asked)) == ("na na na na na", ("repeated",), 2)


def test_a_search_of_ones_own_is_not_replaced() -> None:
    """Samples, or candidates to rerank, are what was requested."""
    found, asked = run("cats sleep", lambda decode: "na na na na na")
    assert (found.warnings, len(asked)) == (("repeated",), 1)


def wrong_number(decode: Decode) -> str:
    """A model that changes every number but the marks."""
    return re.sub(r"\d[\d.,]*\d", lambda match: match[0] if match[0] in NUMBERS else "77", decode.text)


def test_numbers_that_came_back_as_others_are_marked() -> None:
    found, asked = run("it costs 1,249.50 euros", wrong_number, source="en", target="de")
    assert [decode.text for decode in asked] == ["it costs 1,249.50 euros", "it costs 4711 euros"]
    assert (found.text, found.warnings) == ("it costs 1.249,50 euros", ())


def test_numbers_that_were_kept_are_translated_once() -> None:
    def german(decode: Decode) -> str:
        return "es kostet 1.249,50 Euro"

    found, asked = run("it costs 1,249.50 euros", german, source="en", target="de")
    assert (found.text, len(asked), found.protection) == ("es kostet 1.249,50 Euro", 1, "")


def test_numbers_stay_as_they_are_where_the_languages_are_unknown() -> None:
    found, _ = run("it costs 1,249 euros", wrong_number)
    assert found.text == "it costs 1,249 euros"


def test_the_lost_numbers_are_marked_before_all() -> None:
    def one_lost(decode: Decode) -> str:
        return decode.text.replace("250", "52") if "4711" not in decode.text else "4711 at 12 of 13"

    found, asked = run("250 at 12 of 13", one_lost)
    assert [decode.text for decode in asked] == ["250 at 12 of 13", "4711 at 12 of 13"]
    assert found.text == "250 at 12 of 13"


def test_a_translation_with_other_numbers_says_so() -> None:
    found, asked = run("it costs 250 euros", lambda decode: "es kostet 77 Euro")
    assert (found.text, found.warnings) == ("es kostet 77 Euro", ("numbers",))
    assert len(asked) == 3  # as it is, with a number for a mark, with a name


def test_spans_and_numbers_are_kept_together() -> None:
    found, asked = run("see {a} for 250 euros", wrong_number)
    assert found.text == "see {a} for 250 euros"
    assert asked[-1] == Decode("see T1 for T2 euros", 0, ("T1", "T2"))
    assert found.protection == MARKED


def test_a_span_with_digits_is_no_number() -> None:
    found, asked = run("see https://example.org/250 now", shout)
    assert (len(asked), "numbers" in found.warnings) == (1, False)


def ranked(word: str, candidates: Sequence[Translation], back: Mapping[str, str]) -> str:
    """The translation of a word by a model with these candidates, which it translates back so."""
    steps = together([safeguards(source="en", target="de", ranking=True).translate(word, [])])
    assert next(steps) == [Decode(word, 0, n_best=4)]
    again = steps.send([replace(candidates[0], alternatives=tuple(candidates[1:]))])
    assert {decode.to for decode in again} == {"en"}
    with pytest.raises(StopIteration) as end:
        steps.send([Translation(back.get(decode.text, "?")) for decode in again])
    return str(end.value.value[0].text)


def likely(*texts: str) -> list[Translation]:
    """Translations, each a nat less likely than the one before."""
    return [Translation(text, log_prob=-float(rank)) for rank, text in enumerate(texts)]


def test_a_word_is_what_is_translated_back_to_it() -> None:
    equal = [Translation("sei still", log_prob=-1.0), Translation("sichern", log_prob=-1.5)]
    assert ranked("save", equal, {"sichern": "Save."}) == "sichern"
    assert ranked("save", likely("retten", "so", "sichern"), {"sichern": "save"}) == "retten"


def test_a_word_is_copied_only_where_all_else_is_unlikely() -> None:
    assert ranked("agree", likely("agree", "und", "zustimmen"), {"agree": "agree"}) == "und"
    assert ranked("Berlin", likely("Berlin"), {"Berlin": "Berlin"}) == "Berlin"


@pytest.mark.parametrize(
    ("source", "target", "label"),
    [
        ("Hello", "Hallo,", "Hallo"),
        ("About", "ungefähr", "Ungefähr"),
        ("Privacy Policy", "Datenschutz.", "Datenschutz"),
        ("about", "ungefähr", "ungefähr"),
        ("Hello!", "Hallo,", "Hallo,"),  # not a label
        ("I do not know him", "ich kenne ihn nicht.", "ich kenne ihn nicht."),
    ],
)
def test_labels_end_and_begin_as_in_the_source(source: str, target: str, label: str) -> None:
    found, _ = run(source, lambda decode: target)
    assert found.text == label


@pytest.mark.parametrize("text", ["<p>see</p>", "😀 see", "<br><p>see</p> 😀", "<i><b>see</b></i> <br>"])
def test_what_stands_around_a_text_stays_there(text: str) -> None:
    found, asked = run(text, shout)
    assert [decode.text for decode in asked] == ["see"]
    assert (found.text, found.protection) == (text.replace("see", "SEE"), MARKED)


def test_a_pair_that_ends_within_the_text_is_no_edge() -> None:
    _, asked = run("<b>see</b> it", shout)
    assert asked[0] == Decode("see it", 0, align="pieces")


def test_safeguards_of_many_texts_share_rounds() -> None:
    steps = together([as_it_is("one", 0), safeguards(number=1).translate("{a} b", protected_spans("{a} b"))])
    assert next(steps) == [Decode("one", 0), Decode("T1 b", 1, ("T1",))]
    assert steps.send([Translation("eins"), Translation("b")]) == [Decode("4711 b", 1, ("4711",))]


def test_alignments_have_spans_for_marks() -> None:
    words = Alignment.linked(["See", "T1."], ["Sieh", "T1."], [(0, 0, 0.9), (1, 1, 0.8)])
    assert words.with_units({"T1": "{a}"}, {"T1": "{a}"}).source == ("See", "{a}.")
    pieces = Alignment.linked(["▁See", "▁T", "1", "."], ["▁T", "1", "▁an"], [(1, 0, 0.5), (2, 1, 0.8), (0, 2, 0.7)])
    found = pieces.with_units({"T1": "{a}"}, {"T1": "{a}"})
    assert (found.source, found.target) == (("▁See", "▁{a}", "."), ("▁{a}", "▁an"))
    assert (found.links, found.strengths) == (((0, 1), (1, 0)), (0.7, 0.8))


def test_alignments_of_parts_follow_each_other() -> None:
    one, two = Alignment.linked(["a"], ["b"], [(0, 0, 0.5)]), Alignment.linked(["c", "d"], ["e"], [(1, 0, 0.6)])
    assert Alignment.chained([one, two]) == Alignment.linked("acd", "be", [(0, 0, 0.5), (2, 1, 0.6)])
