"""Terms are in the translation where they are in the source, and nowhere else; nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transduce.core.errors import ConfigError, DataError
from transduce.engines import Translation
from transduce.search.settings import Beam, Greedy
from transduce.text.alignment import Alignment
from transduce.text.terms import Glossary, TermMatcher
from transduce.translate.glossaries import glossaries_of, keep_terms
from transduce.translate.options import TranslateOptions

if TYPE_CHECKING:
    from toy_model import Toy


class Fake:
    """Translations and alignments as they are given; what a constrained search would find is `found`."""

    def __init__(
        self, texts: dict[str, str], links: str = "", found: Translation | None = None, parts: int = 1
    ) -> None:
        self.texts, self.links, self.found, self.parts = texts, links, found, parts
        self.aligned: list[str] = []
        self.included: list[Any] = []

    def translate(self, texts: Sequence[str], search: Any, options: TranslateOptions) -> list[Translation]:
        if any(options.include):
            self.included += options.include
            self.search = search
            assert self.found is not None
            return [self.found for _ in texts]
        made = [Translation(self.texts[text], parts=self.parts) for text in texts]
        if options.align:
            made = [
                replace(one, alignment=replace(self.alignment(text, one.text), weights=()))
                for text, one in zip(texts, made, strict=True)
            ]
        return made

    def align(self, sources: Sequence[str], targets: Sequence[str], to: Any, unit: str, dense: bool = True) -> Any:
        if not self.links:
            raise ConfigError("no cross-attention")
        self.aligned += targets
        return [self.alignment(source, target) for source, target in zip(sources, targets, strict=True)]

    def alignment(self, source: str, target: str) -> Alignment:
        pairs = [(int(s), int(t)) for s, t in (link.split("-") for link in self.links.split())]
        words, made = source.split(), target.split()
        weights = tuple(tuple(0.9 if (s, t) in pairs else 0.0 for s in range(len(words))) for t in range(len(made)))
        return Alignment.linked(words, made, [(s, t, 0.9) for s, t in pairs], weights)

    def keep(self, terms: dict[str, str], text: str, **options: Any) -> Translation:
        given = TranslateOptions(glossary=[Glossary.of(terms, "en", "de")], to="de", **options).of_texts(0, 1)
        (made,) = keep_terms([text], Greedy(), given, self.translate, self.align)
        return made


def test_a_translation_with_its_terms_is_left_alone() -> None:
    fake = Fake({"The file.": "Die Datei."})
    assert fake.keep({"file": "Datei"}, "The file.") == Translation("Die Datei.")
    assert fake.keep({"card": "Karte"}, "The file.") == Translation("Die Datei.")


def test_another_form_of_the_term_is_put_right() -> None:
    fake = Fake({"The files.": "Die Dateien."})
    assert fake.keep({"files": "Datei"}, "The files.").text == "Die Datei."
    assert fake.keep({"file": "Datei*"}, "The files.").text == "Die Dateien.", "the user lets it inflect"


def test_a_term_takes_the_place_of_what_is_aligned_with_its_source() -> None:
    fake = Fake({"The graphics card, now!": "Die schnelle Bildkarte, jetzt!"}, "0-0 1-2 2-2 3-3")
    assert (
        fake.keep({"graphics card": "Grafikkarte"}, "The graphics card, now!").text
        == "Die schnelle Grafikkarte, jetzt!"
    )
    fake = Fake({"The graphics card": "Die Bild Karte"}, "0-0 1-1 2-2")
    assert fake.keep({"graphics card": "Grafikkarte"}, "The graphics card").text == "Die Grafikkarte"
    fake = Fake({"Cards here": "Bildchen hier"}, "0-0 1-1")
    assert fake.keep({"card": "karte"}, "Cards here").text == "Karte hier", "a capital where a sentence begins"


def test_each_time_that_a_term_stands_in_the_source_one_is_placed() -> None:
    fake = Fake({"A card on a card": "Ein Bild auf einem Blatt"}, "0-0 1-1 2-2 3-3 4-4")
    assert fake.keep({"card": "Karte"}, "A card on a card").text == "Ein Karte auf einem Karte"


def test_a_prefix_is_not_written_over() -> None:
    fake = Fake({"card x": "Bild y"}, "0-0 1-1", Translation("Bild Karte"))
    assert fake.keep({"card": "Karte"}, "card x", prefixes="Bild").text == "Bild Karte"


def test_what_alignment_cannot_tell_the_search_is_constrained_to() -> None:
    fake = Fake({"A card": "Ein"}, "0-0", Translation("Eine Karte"))
    assert fake.keep({"card": "karte"}, "A card").text == "Eine karte", "what is found is put right too"
    assert fake.included == [(("karte", "Karte"),)], "a choice of spellings"
    assert isinstance(fake.search, Beam), "greedy search follows one path"
    assert fake.keep({"card": "Karte"}, "A card") == Translation("Eine Karte")
    fake.found = Translation("Eine Karten")
    assert fake.keep({"card": "Karte*"}, "A card") == Translation("Eine Karten")
    assert fake.included[-1][0][:2] == ("Karte", "Karten")


def test_what_no_way_can_place_is_named() -> None:
    fake = Fake({"A card": "Ein"}, "0-0", Translation("Karte Karte", finished=False))
    assert fake.keep({"card": "Karte"}, "A card") == Translation("Ein", missing_terms=("Karte",))


def test_a_model_without_cross_attention_is_searched_with_constraints() -> None:
    fake = Fake({"A card": "Ein Bild"}, "", Translation("Eine Karte"))
    assert fake.keep({"card": "Karte"}, "A card").text == "Eine Karte"


def test_words_that_must_appear_leave_the_placing_to_the_search() -> None:
    given = TranslateOptions(glossary=glossaries_of({"card": "Karte"}), include=["Bild"]).of_texts(0, 1)
    calls: list[Any] = []

    def translate(texts: Sequence[str], search: Any, options: TranslateOptions) -> list[Translation]:
        calls.append(options.include)
        return [Translation("Ein Bild" if len(calls) == 1 else "Bild Karte")]

    (made,) = keep_terms(["A card"], Greedy(), given, translate, Fake({}, "1-1").align)
    assert made.text == "Bild Karte"
    assert calls == [[["Bild"]], [("Bild", ("Karte",))]]


def test_a_text_in_parts_is_aligned_by_its_parts() -> None:
    fake = Fake({"A card": "Ein Bild"}, "0-0 1-1", parts=2)
    assert fake.keep({"card": "Karte"}, "A card").text == "Ein Karte"
    assert fake.aligned == []


def test_an_alignment_that_was_requested_is_that_of_the_new_text() -> None:
    fake = Fake({"A card": "Ein Bild"}, "0-0 1-1")
    made = fake.keep({"card": "Karte"}, "A card", align="words")
    assert made.alignment is not None
    assert made.alignment.target == ("Ein", "Karte")


def test_terms_found_before_need_no_glossary() -> None:
    found = TermMatcher.of(glossaries_of({"card": "Karte"})).find("A card")
    given = TranslateOptions(terms=[found]).of_texts(0, 1)
    fake = Fake({"A card": "Ein Bild"}, "0-0 1-1")
    assert keep_terms(["A card"], Greedy(), given, fake.translate, fake.align)[0].text == "Ein Karte"


# -- with a model -----------------------------------------------------------------------------------------------------


def test_a_model_keeps_terms_and_changes_nothing_else(toy: Toy) -> None:
    texts = ["five", "six, five", "seven", ""]
    plain = toy.translator(texts, to="de")
    kept = toy.translator.translate(texts, to="de", glossary={"five": "zwölf"})
    assert [one.text for one in kept][2:] == plain[2:]
    assert all("zwölf" in one.text and not one.missing_terms for one in kept[:2])
    assert "fünf" not in kept[0].text
    assert toy.translator(texts, to="de", glossary={"eight": "acht"}) == plain
    streamed = toy.translator.stream(texts, to="de", glossary={"five": "zwölf"}, window=1)
    assert [one.text for one in streamed] == [one.text for one in kept]


def test_a_model_that_writes_chinese_keeps_terms(toy: Toy) -> None:
    made = toy.translator.translate(["five, six"], to="zh", glossary={"five": "十二"}, n_best=2, beam=4)[0]
    assert "十二" in made.text


def test_glossaries_of_files_and_of_words(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("five\tzwölf\n")
    both = glossaries_of([tmp_path / "a.tsv", f"en-de={tmp_path}/a.tsv", {"x": "y"}, Glossary.of({"z": "z"})])
    assert [len(one) for one in both] == [1, 1, 1, 1]
    assert glossaries_of(None) == ()
    with pytest.raises(DataError, match=r"expected a Glossary, the path of a file, or \{term: translation\}, got 3"):
        glossaries_of(3)
