"""Glossaries: read from files of strangers, and matched in texts by words, the longest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.core.errors import DataError
from transduce.text.term_files import format_entries, parse_entries, read_glossary
from transduce.text.terms import (
    Glossary,
    Term,
    TermMatcher,
    begins_sentence,
    forms,
    inflections,
    normalized,
    occurrences,
)

ENGLISH = {"graphics card": "Grafikkarte", "card": "Karte", "file": "Datei", "IT": "EDV", "GNOME": "GNOME"}


def found(terms: dict[str, str], text: str, source: str = "en", target: str = "de") -> list[str]:
    matcher = TermMatcher.of([Glossary.of(terms, source, target)], source, target)
    return [normalized(text)[match.start : match.stop] for match in matcher.find(text)]


# -- in the source ----------------------------------------------------------------------------------------------------


def test_a_term_is_found_in_any_case_and_with_the_endings_of_its_language() -> None:
    assert found(ENGLISH, "Open FILES, a file's File.") == ["FILES", "file", "File"]
    assert found({"entry": "Eintrag"}, "Two entries") == ["entries"]
    assert found({"Karte": "card"}, "Die Karten", "de", "en") == ["Karten"]
    assert found({"journal": "newspaper"}, "les journaux", "fr", "en") == ["journaux"]
    assert found({"luz": "light"}, "las luces", "es", "en") == ["luces"]
    assert found({"botão": "button"}, "os botões", "pt", "en") == ["botões"]
    assert found({"file": "x"}, "two files", "nl", "de") == [], "a language without endings is matched as it is"


def test_a_term_is_found_only_where_it_occurs() -> None:
    assert found(ENGLISH, "profile filed my_file file.txt a@file.org discard") == []
    assert found(ENGLISH, "it is a card, (file)!") == ["card", "file"], "IT in capitals alone"
    assert found({"URL": "URL"}, "URL, URLs and urls") == ["URL", "URLs"]
    assert found(ENGLISH, "") == []
    assert found({}, "file") == []


def test_the_longest_term_comes_first_and_none_over_another() -> None:
    assert found(ENGLISH, "graphics cards and a card") == ["graphics cards", "card"]
    assert found({"a b": "x", "b c d": "y"}, "a b c d") == ["b c d"]


def test_a_term_as_written_comes_before_an_inflected_one() -> None:
    terms = {"file": "Datei", "files": "Dateien"}
    matcher = TermMatcher.of([Glossary.of(terms, "en", "de")], "en", "de")
    assert [match.term.target for match in matcher.find("files of a file")] == ["Dateien", "Datei"]


def test_only_the_last_word_of_english_takes_endings() -> None:
    assert found({"file name": "x"}, "file names, files name") == ["file names"]
    assert found({"rote Karte": "red card"}, "die roten Karten", "de", "en") == ["roten Karten"]


def test_chinese_is_found_by_characters_and_latin_words_in_it_as_words() -> None:
    assert found({"变量": "variable", "成员变量": "member"}, "声明成员变量和变量", "zh", "en") == ["成员变量", "变量"]
    assert found({"API": "API"}, "使用API调用APIs", "zh", "en") == ["API"]


def test_apostrophes_and_accents_are_told_by_what_they_are() -> None:
    assert found({"l'équipe": "the team"}, "l’e\u0301quipe", "fr", "en") == ["l'équipe"]


def test_of_several_glossaries_the_first_is_preferred() -> None:
    first, second = Glossary.of({"file": "Akte"}), Glossary.of({"file": "Datei", "card": "Karte"})
    matcher = TermMatcher.of([first, second], "en", "de")
    assert [match.term.target for match in matcher.find("file card")] == ["Akte", "Karte"]
    assert TermMatcher.of([first, second], "en", "de") is matcher, "made once"


def test_dictionaries_serve_their_own_direction() -> None:
    several = Glossary({("en", "de"): (Term("file", "Datei"),), ("en", "fr"): (Term("file", "fichier"),)})
    assert len(several) == 2
    for target, word in (("de", "Datei"), ("fr-CA", "fichier")):
        assert [match.term.target for match in TermMatcher.of([several], "en", target).find("file")] == [word]
    assert TermMatcher.of([several], "de", "en").find("file") == ()
    with pytest.raises(DataError, match=r"terms for several languages \(de, fr\), and the model does not say"):
        TermMatcher.of([several])
    assert several.only("en", "de").dictionaries == {("en", "de"): (Term("file", "Datei"),)}
    with pytest.raises(DataError, match="has no terms from de to en; it has en-de, en-fr"):
        several.only("de", "en")


# -- in a translation -------------------------------------------------------------------------------------------------


def test_a_target_term_stands_as_a_word_as_written() -> None:
    assert occurrences("Datei", "Die Datei, Dateien, datei.", "de") == [(4, 9)]
    assert occurrences("Datei", "Die Datei, Dateien, datei.", "de", inflected=True) == [(4, 9), (11, 18), (20, 25)]
    assert occurrences("carte", "Carte. Une carte. Une Carte.", "fr") == [(0, 5), (11, 16)]
    assert occurrences("Datei", "DIE DATEI", "de") == [(4, 9)], "all in capitals"
    assert occurrences("变量", "成员变量") == [(2, 4)]
    assert occurrences("E-Mail-Adresse", "Die E-Mail-Adresse.", "de") == [(4, 18)]
    assert occurrences("Datei", "") == []


def test_forms_of_words_and_of_terms() -> None:
    assert forms("city", "en") == ("city", "citys", "cityes", "cities")
    assert forms("IT", "en") == ("IT",)
    assert forms("v2", "en") == ("v2",)
    assert forms("word", "xx") == ("word",)
    assert "roten Karten" in inflections("rote Karte", "de")
    assert inflections("file name", "en")[:2] == ["file name", "file names"]


@pytest.mark.parametrize("before", ["", "„", "Ende. ", "Was? - ", "是。"])
def test_the_beginning_of_a_sentence(before: str) -> None:
    assert begins_sentence(before, len(before))
    assert not begins_sentence(before + "ein ", len(before) + 4)


# -- files ------------------------------------------------------------------------------------------------------------


def read(folder: Path, name: str, content: str | bytes) -> Glossary:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_glossary(path)


def test_two_columns_are_terms_of_any_direction(tmp_path: Path) -> None:
    table = read(tmp_path, "a.tsv", "\ufefffile\tDatei*\r\n\r\ncard \t Karte\r\nC*\t*\n")
    assert table.dictionaries == {("", ""): (Term("file", "Datei", True), Term("card", "Karte"), Term("C", "*"))}
    path = f"en-de={tmp_path}/a.tsv"
    assert [*read_glossary(path).dictionaries] == [("en", "de")]
    assert read(tmp_path, "a.csv", 'file,"a ""b"", c"\n').dictionaries["", ""] == (Term("file", 'a "b", c'),)


def test_a_first_line_of_languages_makes_a_dictionary_of_every_two(tmp_path: Path) -> None:
    table = read(tmp_path, "a.tsv", "en\tde\tnote\tfr\nfile\tDatei*\tx\tfichier\nrow\tZeile\n")
    assert table.dictionaries["en", "de"] == (Term("file", "Datei", True), Term("row", "Zeile"))
    assert table.dictionaries["de", "fr"] == (Term("Datei", "fichier"),)
    assert len(table.dictionaries) == 6
    assert read_glossary(f"de-en={tmp_path}/a.tsv").dictionaries == {
        ("de", "en"): (Term("Datei", "file"), Term("Zeile", "row"))
    }


def test_csv_may_name_the_languages_of_each_entry(tmp_path: Path) -> None:
    table = read(tmp_path, "a.csv", "file,Datei,EN,DE\n".lower().replace("datei", "Datei"))
    assert table.dictionaries == {("en", "de"): (Term("file", "Datei"),)}


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><body>
<tu><tuv xml:lang="en-US"><seg>the <bpt i="1">b</bpt>file</seg></tuv><tuv lang="de"><seg>die
Datei</seg></tuv></tu></body></tmx>"""
TBX = """<martif xmlns="urn:iso:std:iso:30042"><text><body><termEntry>
<langSet xml:lang="en"><tig><term>file</term></tig><tig><term>document</term></tig></langSet>
<langSet xml:lang="de"><tig><term>Akte</term><termNote type="administrativeStatus">deprecatedTerm</termNote></tig>
<ntig><termGrp><term>Datei</term><termNote type="x">inflects</termNote></termGrp></ntig></langSet>
</termEntry></body></text></martif>"""


def test_tmx_and_tbx(tmp_path: Path) -> None:
    assert read(tmp_path, "a.tmx", TMX).dictionaries["en-US", "de"] == (Term("the file", "die Datei"),)
    table = read(tmp_path, "a.tbx", TBX)
    assert table.dictionaries["en", "de"] == (Term("file", "Datei", True), Term("document", "Datei", True))
    assert table.dictionaries["de", "en"] == (Term("Datei", "file"),)


def test_entries_are_written_as_they_are_read() -> None:
    terms = (Term("file", "Datei", True), Term("card", "Karte"))
    assert parse_entries(format_entries(terms), "tsv") == terms
    assert parse_entries("en,de\n", "csv") == (Term("en", "de"),), "no first line of languages here"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "expected a glossary in a file that ends in .tsv, .csv, .tbx or .tmx"),
        ("a.tsv", "", "has no entries; give a source term and a target term a line"),
        ("a.tsv", "en\tde\n", "has no entries; give terms in two languages or more"),
        ("a.tsv", "one\n", r"a.tsv:1: expected a source term and a target term, got 1 columns"),
        ("a.tsv", "a b\tc\n\nx\t \n", r"a.tsv:3: a blank term was given"),
        ("a.tsv", "a\tb\na\tc\n", r"a.tsv:2: 'a' has the target 'b' already; give one entry a source term"),
        ("a.tsv", "a\tb\x07\n", "has control characters; give words on one line"),
        ("a.tsv", "a\t" + 600 * "é", "a term of more than 1024 bytes"),
        ("a.tsv", b"a\t\xff", "not UTF-8 .invalid start byte at byte 2.; save it as UTF-8"),
        ("a.csv", 'a,"b\n', "not CSV .*; quote cells that have commas or quotes"),
        ("a.tmx", "<tmx>", "a.tmx:1: not TMX .no element found."),
        ("a.tmx", '<?xml version="1.0" encoding="x-no"?><tmx/>', "not TMX .*; save it as UTF-8|not TMX"),
        ("a.tmx", "<tmx>" * 100, "XML elements are nested deeper than 64; simplify the file"),
        ("a.tmx", '<!DOCTYPE t [<!ENTITY x "ha">]><tmx>&x;</tmx>', "declares XML entities, which glossaries have"),
        ("a.tmx", '<!DOCTYPE t [<!ENTITY x SYSTEM "/etc/passwd">]><tmx>&x;</tmx>', "declares XML entities"),
        ("a.tbx", "<martif/>", "has no entries"),
    ],
)
def test_what_is_no_glossary_is_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, name, content)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="the glossary cannot be read: No such file"):
        read_glossary(tmp_path / "no.tsv")
    monkeypatch.setattr("transduce.text.term_files.LARGEST_GLOSSARY", 4)
    with pytest.raises(DataError, match="larger than 4 bytes, and a glossary may be no larger; split it into several"):
        read(tmp_path, "a.tsv", "file\tDatei\n")
    monkeypatch.setattr("transduce.text.term_files.LARGEST_GLOSSARY", 400)
    monkeypatch.setattr("transduce.text.term_files.MOST_TERMS", 1)
    with pytest.raises(DataError, match="more than 1 entries; split it into several glossaries"):
        read(tmp_path, "a.tsv", "a\tb\nc\td\n")


def test_terms_that_are_none() -> None:
    with pytest.raises(DataError, match="expected terms that are texts, got 3"):
        Glossary.of({"a": 3})  # type: ignore[dict-item]
