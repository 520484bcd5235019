"""Glossaries from files: TSV and CSV, TBX (ISO 30042), TMX 1.4. Imports no torch.

TSV and CSV have the source term and the target term of an entry in two columns. A first line of language codes (`en`,
`de`, `fr`) makes a dictionary of every two columns; columns named otherwise are notes. CSV may name the languages of
each entry in a third and fourth column, as DeepL's does. TBX and TMX name their languages: each pair of them is a
dictionary. `*` after a target term, or `inflects` in a TBX note, accepts its inflected forms.

Files come from strangers. Sizes are bounded; XML is read by events, entities are not declared or fetched, so that a
small file cannot grow.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any
from xml.parsers import expat

from transduce.core.errors import DataError
from transduce.core.untrusted import DEEPEST, read_small
from transduce.text.languages import CODE, TWO_LETTERS, base_of
from transduce.text.terms import LONGEST_TERM, Direction, Glossary, Term, check_term, unmarked

LARGEST_GLOSSARY = 10 << 20  # bytes of a file, or of all entries of a glossary, as with DeepL
MOST_TERMS = 100_000
_DIRECTION = re.compile(rf"({CODE})-({CODE})=(.+)", re.DOTALL)
_CODE = re.compile(CODE)
DEPRECATED = ("deprecatedTerm", "deprecatedTerm-admn-sts", "supersededTerm", "supersededTerm-admn-sts")


def read_glossary(given: str | Path) -> Glossary:
    """Read a glossary file by its suffix; `en-de=FILE` reads one direction of it, or says which one it has."""
    direction = _DIRECTION.fullmatch(str(given)) if not Path(given).exists() else None
    source, target, path = (direction[1], direction[2], Path(direction[3])) if direction else ("", "", Path(given))
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _READERS:
        raise DataError(f"{path}: expected a glossary in a file that ends in .tsv, .csv, .tbx or .tmx; rename it")
    try:
        data = read_small(path, LARGEST_GLOSSARY)
    except OSError as error:
        raise DataError(f"{path}: the glossary cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}, and a glossary may be no larger; split it into several") from None
    found = _READERS[kind](data, str(path))
    if not direction:
        return found
    if [*found.dictionaries] == [("", "")]:
        return Glossary({(source, target): found.dictionaries["", ""]}, found.name)
    return found.only(source, target)


# -- tables -----------------------------------------------------------------------------------------------------------


def parse_entries(text: str, kind: str, where: str = "entries") -> tuple[Term, ...]:
    """Parse the entries of one dictionary, two columns of TSV or CSV without a first line of languages."""
    entries = _Entries(where)
    for number, row in _rows(text, kind, where):
        entries.add(*_two(row, f"{where}:{number}"), f"{where}:{number}")
    return entries.terms(("", ""))


def format_entries(terms: Iterable[Term]) -> str:
    """Write terms as lines of TSV."""
    return "".join(f"{term.source}\t{term.entry}\n" for term in terms)


def _table(kind: str, data: bytes, where: str) -> Glossary:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    rows = _rows(text, kind, where)
    entries, first = _Entries(where), next(rows, None)
    if first is None:
        raise DataError(f"{where}: has no entries; give a source term and a target term a line")
    columns = {index: cell for index, cell in enumerate(first[1]) if _is_code(cell)}
    if len(columns) > 1 and 0 in columns and len(set(columns.values())) == len(columns):
        for number, row in rows:
            cells = {code: row[index : index + 1] for index, code in columns.items()}
            entries.add_all({code: cell for code, cell in cells.items() if any(cell)}, f"{where}:{number}")
        return entries.glossary()
    for number, row in (first, *rows):
        place = f"{where}:{number}"
        named = kind == "csv" and len(row) == 4 and all(map(_is_code, row[2:]))
        direction = (row[2].strip(), row[3].strip()) if named else ("", "")
        entries.add(*_two(row[:2] if named else row, place), place, direction)
    return entries.glossary()


def _is_code(cell: str) -> bool:
    return _CODE.fullmatch(cell.strip()) is not None and base_of(cell.strip()) in TWO_LETTERS


def _rows(text: str, kind: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not blank."""
    if kind == "tsv":
        lines: Iterable[tuple[int, list[str]]] = (
            (number, line.removesuffix("\r").split("\t")) for number, line in enumerate(text.split("\n"), 1)
        )
    else:
        lines = _csv_rows(text, where)
    for number, cells in lines:
        if any(cell.strip() for cell in cells):
            yield number, [cell.strip() for cell in cells]


def _csv_rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        place = f"{where}:{reader.line_num}"
        raise DataError(f"{place}: not CSV ({error}); quote cells that have commas or quotes") from None


def _two(row: Sequence[str], place: str) -> tuple[str, str]:
    if len(row) != 2:
        raise DataError(f"{place}: expected a source term and a target term, got {len(row)} columns")
    return row[0], row[1]


@dataclass
class _Entries:
    """Dictionaries as they are read; of two entries of a dictionary with one source the first counts."""

    where: str
    found: dict[Direction, dict[str, Term]] = field(default_factory=dict)
    count: int = 0

    def add(self, source: str, target: str, place: str, direction: Direction = ("", "")) -> None:
        """Add one entry; DataError where its source has another target already."""
        for text in (source, target):
            check_term(text, place)
        term, known = Term.written(source, target), self.found.setdefault(direction, {})
        if known.setdefault(term.source, term) != term:
            other = known[term.source].target
            raise DataError(f"{place}: {term.source!r} has the target {other!r} already; give one entry a source term")
        self._count()

    def add_all(self, terms: dict[str, list[str]], place: str) -> None:
        """Add the terms of one concept by language: all of a language as sources, the first as the target."""
        for text in (text for texts in terms.values() for text in texts):
            check_term(text, place)
        for source, target in permutations(terms, 2):
            known = self.found.setdefault((source, target), {})
            for text in terms[source]:
                known.setdefault(unmarked(text), Term.written(text, terms[target][0]))
                self._count()

    def _count(self) -> None:
        self.count += 1
        if self.count > MOST_TERMS:
            raise DataError(f"{self.where}: more than {MOST_TERMS:,} entries; split it into several glossaries")

    def terms(self, direction: Direction) -> tuple[Term, ...]:
        return tuple(self.found.get(direction, {}).values())

    def glossary(self) -> Glossary:
        if not self.count:
            raise DataError(f"{self.where}: has no entries; give terms in two languages or more")
        return Glossary({pair: tuple(terms.values()) for pair, terms in self.found.items()}, self.where)


# -- XML --------------------------------------------------------------------------------------------------------------


@dataclass
class _Concept:
    """A <tu> of TMX, or a <termEntry> or <conceptEntry> of TBX, while it is read."""

    terms: dict[str, list[str]] = field(default_factory=dict)
    language: str = ""
    text: list[str] | None = None  # of the term that is being read
    term: str = ""
    kept: bool = True
    note: str = ""  # the type of the note that is being read
    skipped: int = 0  # depth of inline markup


_INLINE = ("bpt", "ept", "ph", "it", "ut", "sub")  # of TMX: codes of the document, no words


class _XMLTerms:
    """Handlers of expat for TBX and TMX: collects the terms of each concept by language."""

    def __init__(self, where: str) -> None:
        self.entries, self.where = _Entries(where), where
        self._concept = _Concept()
        self._depth = 0
        self.parser: Any = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.StartElementHandler, self.parser.EndElementHandler = self._start, self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._entity
        self.parser.ExternalEntityRefHandler = self._external

    def _entity(self, *_: object) -> None:
        raise DataError(f"{self.where}: declares XML entities, which glossaries have no need of; write their text")

    def _external(self, *_: object) -> int:
        return 1  # nothing is fetched, and the rest is read

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise DataError(f"{self.where}: XML elements are nested deeper than {DEEPEST}; simplify the file")
        name, concept = _local(name), self._concept
        if name in ("tu", "termEntry", "conceptEntry"):
            self._concept = _Concept()
        elif name in ("tuv", "langSet", "langSec"):
            code = next((value for key, value in attributes.items() if _local(key) == "lang"), "")
            concept.language = code.strip().replace("_", "-")
        elif name in ("seg", "term"):
            concept.text = []
        elif name in ("tig", "ntig", "termSec"):
            concept.term, concept.kept = "", True
        elif name == "termNote":
            concept.note, concept.text = attributes.get("type", ""), []
        elif name in _INLINE:
            concept.skipped += 1

    def _characters(self, text: str) -> None:
        if self._concept.text is not None and not self._concept.skipped:
            self._concept.text.append(text)

    def _end(self, name: str) -> None:
        self._depth -= 1
        name, concept = _local(name), self._concept
        text = " ".join("".join(concept.text or ()).split())
        if name == "seg":
            self._add(text)
        elif name == "term":
            concept.term = text
        elif name == "termNote":
            if text in DEPRECATED:
                concept.kept = False
            elif text == "inflects":
                concept.term += "*"
        elif name in ("tig", "ntig", "termSec") and concept.kept:
            self._add(concept.term)
        elif name in ("tu", "termEntry", "conceptEntry"):
            self.entries.add_all(concept.terms, f"{self.where}:{self.parser.CurrentLineNumber}")
            self._concept = _Concept()
        elif name in _INLINE:
            concept.skipped -= 1
        if name in ("seg", "term", "termNote"):
            concept.text = None

    def _add(self, text: str) -> None:
        """Keep a term of the concept's language; a blank one, or a TMX segment longer than a term, is none."""
        if self._concept.language and text and len(text.encode()) <= LONGEST_TERM:
            self._concept.terms.setdefault(self._concept.language, []).append(text)


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(" ")[2]


def _xml(kind: str, data: bytes, where: str) -> Glossary:
    handlers = _XMLTerms(where)
    try:
        handlers.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DataError(f"{where}:{error.lineno}: not {kind.upper()} ({expat.ErrorString(error.code)})") from None
    except (ValueError, LookupError) as error:  # an encoding that this Python does not have
        raise DataError(f"{where}: not {kind.upper()} ({error}); save it as UTF-8") from None
    return handlers.entries.glossary()


_READERS = {
    "tsv": lambda data, where: _table("tsv", data, where),
    "csv": lambda data, where: _table("csv", data, where),
    "tbx": lambda data, where: _xml("tbx", data, where),
    "tmx": lambda data, where: _xml("tmx", data, where),
}
