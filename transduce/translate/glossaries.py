"""Glossary terms kept in translations: found in the source, required in the translation, placed where it lacks them.

The model translates as usual, and most texts have their terms already: those cost nothing more. Where a text lacks one

1. a form of the term that stands there is put into the form of the glossary;
2. else the term takes the place of the words that cross-attention aligns with the source term;
3. else, where these cannot be told, the text is decoded again by beam search constrained to the term, whose casings
   and, if it inflects, forms are further spellings of one choice (search/constraints.py).

What cannot be placed by any of these is named in `Translation.missing_terms`. Scores and tokens stay those of what the
model wrote. Imports no torch.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from transduce.core.errors import DataError, UserError
from transduce.engines import Translation
from transduce.search import SearchConfig
from transduce.search.settings import Beam
from transduce.text.alignment import Alignment, Unit
from transduce.text.languages import language_of_tag
from transduce.text.protect import protected_spans
from transduce.text.term_files import read_glossary
from transduce.text.terms import (
    Glossary,
    TermMatch,
    TermMatcher,
    begins_sentence,
    inflections,
    is_unspaced,
    normalized,
    occurrences,
)

if TYPE_CHECKING:
    from transduce.translate.options import TranslateOptions

GlossaryLike: TypeAlias = "Glossary | str | PathLike[str] | Mapping[str, str]"
MOST_CHOICES = 32  # terms of a text that a constrained search is given,
MOST_LETTERS = 400  # of so many characters in all: its beam grows with them
MOST_VARIANTS = 16  # spellings of one of them
WEAKEST = 0.05  # share of its attention that a target word must pay to a source term to be its translation
_Translates = Callable[[Sequence[str], SearchConfig, "TranslateOptions"], list[Translation]]
_Aligns = Callable[..., list[Alignment]]


def glossaries_of(given: Any) -> tuple[Glossary, ...]:
    """The glossaries of an option, the first preferred: each a Glossary, a file, or {source term: target term}."""
    several = given if isinstance(given, (list, tuple)) else [given] if given is not None else []
    return tuple(_glossary(one) for one in several)


def _glossary(given: Any) -> Glossary:
    if isinstance(given, Glossary):
        return given
    if isinstance(given, Mapping):
        return Glossary.of(given)
    if isinstance(given, (str, PathLike)):
        return read_glossary(given if isinstance(given, str) else str(given))
    raise DataError(f"glossary: expected a Glossary, the path of a file, or {{term: translation}}, got {given!r}")


def find_terms(texts: Sequence[str], options: TranslateOptions) -> list[tuple[TermMatch, ...]]:
    """The terms in each text, by its languages, as far as they are known; none in spans that are kept as they are."""
    terms = options.terms or [
        TermMatcher.of(options.glossary, source, language_of_tag(target) or target).find(text)
        for text, source, target in zip(texts, options.source, options.to, strict=True)
    ]
    if not options.protect:
        return [*terms]
    return [_outside(found, text) if found else () for found, text in zip(terms, texts, strict=True)]


def _outside(found: tuple[TermMatch, ...], text: str) -> tuple[TermMatch, ...]:
    spans = protected_spans(text)
    return tuple(one for one in found if not any(one.start < span.stop and span.start < one.stop for span in spans))


def keep_terms(
    texts: Sequence[str], search: SearchConfig, options: TranslateOptions, translate: _Translates, align: _Aligns
) -> list[Translation]:
    """Translate texts, and place the terms that the translations lack; the options have one value per text."""
    terms = find_terms(texts, options)
    made = translate(texts, search, options)
    drafts = [
        _Draft(number, rank, found.text, wanted)
        for number, (translation, wanted) in enumerate(zip(made, terms, strict=True))
        for rank, found in enumerate((translation, *translation.alternatives))
        if wanted and found.text
    ]
    for draft in drafts:
        draft.respell()
    left = [draft for draft in drafts if draft.lacking and not options.include[draft.number]]
    _place(left, texts, made, search, options, translate, align)
    made = _rewritten(made, drafts, options, texts, align)
    poor = [draft.number for draft in drafts if draft.rank == 0 and draft.missing]
    return _searched(poor, made, texts, terms, search, options, translate) if poor else made


@dataclass
class _Draft:
    """A translation of a text while terms are placed in it; `rank` 0 is the best one."""

    number: int
    rank: int
    text: str
    wanted: tuple[TermMatch, ...]
    changed: bool = False

    def __post_init__(self) -> None:
        self.text = unicodedata.normalize("NFC", self.text)

    def spans(self, match: TermMatch, inflected: bool | None = None) -> list[tuple[int, int]]:
        """Where a term stands, in a form that will do, or with `inflected` in any form."""
        any_form = match.term.inflects if inflected is None else inflected
        return occurrences(match.term.target, normalized(self.text), match.language, any_form)

    @property
    def lacking(self) -> list[TermMatch]:
        """The terms that stand here less often than in the source."""
        needed = Counter(match.term.target for match in self.wanted)
        return [match for match in self.wanted if len(self.spans(match)) < needed[match.term.target]]

    @property
    def missing(self) -> tuple[str, ...]:
        """The target terms that do not stand here at all."""
        return tuple(dict.fromkeys(match.term.target for match in self.wanted if not self.spans(match)))

    def respell(self) -> None:
        """Put other forms of the terms into the form of the glossary."""
        for match in {match.term.target: match for match in self.lacking}.values():
            standing = self.spans(match)
            for start, stop in reversed(self.spans(match, inflected=True)):
                if (start, stop) not in standing:
                    self.put(start, stop, match.term.target)

    def put(self, start: int, stop: int, term: str) -> None:
        """Write a term in place of a span, with a capital where a sentence begins."""
        old = self.text[start:stop]
        if self.text.isupper():
            term = term.upper()
        elif old[:1].isupper() and term[:1].islower() and begins_sentence(self.text, start):
            term = term[:1].upper() + term[1:]
        self.text, self.changed = self.text[:start] + term + self.text[stop:], True


# -- by alignment -----------------------------------------------------------------------------------------------------


def _place(
    drafts: Sequence[_Draft],
    texts: Sequence[str],
    made: Sequence[Translation],
    search: SearchConfig,
    options: TranslateOptions,
    translate: _Translates,
    align: _Aligns,
) -> None:
    """Put terms in the place of what is aligned with their sources; drafts stay as they are where nothing is."""
    for unit in ("words", "pieces"):
        ours = [draft for draft in drafts if _unit_of(draft, texts[draft.number]) == unit]
        whole = [draft for draft in ours if made[draft.number].parts == 1]
        cut = [draft for draft in ours if made[draft.number].parts > 1 and draft.rank == 0]
        try:
            aligned = _aligned(whole, texts, made, options, unit, align)
            aligned += _realigned(cut, texts, search, options, unit, translate)
        except UserError:  # a model without cross-attention, or a pair too long for it
            continue
        for draft, alignment in zip([*whole, *cut], aligned, strict=True):
            if alignment is not None:
                _Placing(draft, texts[draft.number], alignment, unit).place(len(options.prefixes[draft.number]))


def _unit_of(draft: _Draft, source: str) -> Unit:
    targets = "".join(match.term.target for match in draft.wanted)
    return "pieces" if is_unspaced(source) or is_unspaced(draft.text) or is_unspaced(targets) else "words"


def _aligned(
    drafts: Sequence[_Draft],
    texts: Sequence[str],
    made: Sequence[Translation],
    options: TranslateOptions,
    unit: Unit,
    align: _Aligns,
) -> list[Alignment | None]:
    if not drafts:
        return []
    to = [options.to[draft.number] for draft in drafts]
    return [*align([texts[draft.number] for draft in drafts], [draft.text for draft in drafts], to, unit)]


def _realigned(
    drafts: Sequence[_Draft],
    texts: Sequence[str],
    search: SearchConfig,
    options: TranslateOptions,
    unit: Unit,
    translate: _Translates,
) -> list[Alignment | None]:
    """Alignments of texts that were translated in parts, which only translating gives."""
    if not drafts:
        return []
    numbers = [draft.number for draft in drafts]
    again = replace(options.chosen(numbers), align=unit, dense=False)
    return [found.alignment for found in translate([texts[number] for number in numbers], search, again)]


@dataclass
class _Placing:
    """A draft with its alignment: units of both sides, and where each target unit stands in the text."""

    draft: _Draft
    source: str
    alignment: Alignment
    unit: Unit

    def place(self, begin: int) -> None:
        """Put each lacking term in its place, none before `begin`; from right to left, so that places stay."""
        spans = _spans(self.alignment.target, self.draft.text, self.unit)
        lacking = self.draft.lacking
        if len(spans) != len(self.alignment.target) or not lacking:
            return
        taken = [span for match in self.draft.wanted for span in self.draft.spans(match)]
        taken += [(span.start, span.stop) for span in protected_spans(self.draft.text)]
        chosen: list[tuple[int, int, str]] = []
        for match, units in self._sources(lacking):
            room = Counter(m.term.target for m in self.draft.wanted)[match.term.target] - len(self.draft.spans(match))
            if sum(term == match.term.target for *_, term in chosen) >= room:
                continue
            span = self._window(match, units, spans, [*taken, *((a, b) for a, b, _ in chosen)])
            if span is not None and span[0] >= begin:
                chosen.append((*span, match.term.target))
        for start, stop, term in sorted(chosen, reverse=True):
            self.draft.put(start, stop, term)

    def _sources(self, lacking: Sequence[TermMatch]) -> Iterator[tuple[TermMatch, set[int]]]:
        """Yield each term with the source units that it covers."""
        source = normalized(self.source)
        if self.unit == "words":
            spans = [match.span() for match in re.finditer(r"\S+", source)]
            for match in lacking:
                yield match, {n for n, (a, b) in enumerate(spans) if a < match.stop and match.start < b}
            return
        whole = "".join(self.alignment.source).replace("▁", " ")
        ends = [len("".join(self.alignment.source[: n + 1])) for n in range(len(self.alignment.source))]
        begin: dict[str, int] = {}
        for match in lacking:  # the k-th time that a term stands in the text, and in its pieces
            written = source[match.start : match.stop]
            at = whole.casefold().find(written.casefold(), begin.get(written, 0))
            if at < 0 or len(whole) != len(whole.casefold()):
                continue
            stop = begin[written] = at + len(written)
            yield match, {n for n, end in enumerate(ends) if (ends[n - 1] if n else 0) < stop and at < end}

    def _window(
        self, match: TermMatch, units: set[int], spans: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """The span of the words that look at some source units most: the strongest, and its linked neighbours."""
        text, alignment = self.draft.text, self.alignment
        free = [
            target
            for target, (start, stop) in enumerate(spans)
            if _LETTERS.search(text, start, stop) and all(stop <= a or b <= start for a, b in taken)
        ]
        links = zip(alignment.links, alignment.strengths, strict=True)
        linked = {target: strength for (source, target), strength in links if source in units and target in free}
        looks = dict(linked)
        if alignment.weights:  # of a text in parts there are links alone
            looks = {target: sum(alignment.weights[target][source] for source in units) for target in free}
        first = last = max(looks, key=lambda target: (looks[target], -target), default=-1)
        if looks.get(first, 0.0) < WEAKEST:
            return None
        most = max(len(units), len(match.term.target.split())) if self.unit == "words" else len(spans)
        while last - first + 1 < most and {first - 1, last + 1} & linked.keys():
            left, right = linked.get(first - 1, -1.0), linked.get(last + 1, -1.0)
            first, last = (first - 1, last) if left > right else (first, last + 1)
        return _trimmed(text, spans[first][0], spans[last][1], match.term.target)


def _spans(units: Sequence[str], text: str, unit: Unit) -> list[tuple[int, int]]:
    """Where the units of a text stand in it; none where they do not spell it."""
    if unit == "words":
        return [match.span() for match in re.finditer(r"\S+", text)]
    whole = "".join(units).replace("▁", " ")
    shift = len(whole) - len(whole.lstrip())
    if len(whole) - shift != len(text):
        return []
    ends = [0]
    for piece in units:
        ends.append(ends[-1] + len(piece))
    return [(max(0, a - shift), max(0, b - shift)) for a, b in pairwise(ends)]


_ELISION = re.compile(r"\w{1,2}['’](?=\w)")  # French: l'image
_WORD = re.compile(r"\w+")
_LETTERS = re.compile(r"[^\W\d_]")  # a number is no translation of a term


def _trimmed(text: str, start: int, stop: int, term: str) -> tuple[int, int] | None:
    """A span without marks at its ends, and with the whole of the words at its ends where words have spaces."""
    words = [match.span() for match in _WORD.finditer(text, start, stop)]
    if not words:
        return None
    start, stop = words[0][0], words[-1][1]
    if not is_unspaced(text):
        while start > 0 and text[start - 1].isalnum():
            start -= 1
        while stop < len(text) and text[stop].isalnum():
            stop += 1
    elided = _ELISION.match(text, start, stop)
    if elided and elided.end() < stop and term[:1].lower() in "aeiouhéèêâàîôûy":
        start = elided.end()
    return start, stop


def _rewritten(
    made: Sequence[Translation],
    drafts: Sequence[_Draft],
    options: TranslateOptions,
    texts: Sequence[str],
    align: _Aligns,
) -> list[Translation]:
    """The translations with the texts of their drafts; those that changed are aligned again, if requested."""
    by_text: dict[int, list[_Draft]] = {}
    for draft in drafts:
        by_text.setdefault(draft.number, []).append(draft)
    found = list(made)
    for number, ours in by_text.items():
        every = [made[number], *made[number].alternatives]
        for draft in ours:
            if draft.changed:
                every[draft.rank] = replace(every[draft.rank], text=draft.text, alignment=None)
                if options.align and made[number].parts == 1:  # of parts, there is none for the whole
                    to = options.to[number]
                    (again,) = align([texts[number]], [draft.text], to, options.align, dense=options.dense)
                    every[draft.rank] = replace(every[draft.rank], alignment=again)
        missing = next((draft.missing for draft in ours if draft.rank == 0), ())
        found[number] = replace(every[0], alternatives=tuple(every[1:]), missing_terms=missing)
    return found


# -- by search --------------------------------------------------------------------------------------------------------


def _searched(
    numbers: Sequence[int],
    made: Sequence[Translation],
    texts: Sequence[str],
    terms: Sequence[tuple[TermMatch, ...]],
    search: SearchConfig,
    options: TranslateOptions,
    translate: _Translates,
) -> list[Translation]:
    """Decode some texts again, constrained to their terms; a result counts if it is complete and lacks fewer terms."""
    found = list(made)
    numbers = [number for number in numbers if made[number].parts == 1 and _is_small(terms[number])]
    if not numbers:
        return found
    beam = search if isinstance(search, Beam) else Beam(n_best=options.n_best, size=max(4, options.n_best))
    given = options.chosen(numbers)
    include: Any = [  # a tuple of words is a choice
        (*words, *dict.fromkeys(_spellings(match) for match in terms[number]))
        for number, words in zip(numbers, given.include, strict=True)
    ]
    try:
        again = translate([texts[number] for number in numbers], beam, replace(given, include=include))
    except UserError:  # a decoder without beam search, or a term that its vocabulary cannot write
        return found
    for number, translation in zip(numbers, again, strict=True):
        draft = _Draft(number, 0, translation.text, terms[number])
        draft.respell()
        if translation.finished and len(draft.missing) < len(found[number].missing_terms):
            found[number] = replace(translation, text=draft.text, missing_terms=draft.missing)
    return found


def _is_small(terms: Sequence[TermMatch]) -> bool:
    targets = {match.term.target for match in terms}
    return len(targets) <= MOST_CHOICES and sum(map(len, targets)) <= MOST_LETTERS


def _spellings(match: TermMatch) -> tuple[str, ...]:
    """The ways to write a term in a translation: as it is, capitalised, and its forms if it inflects."""
    term = match.term
    ways = inflections(term.target, match.language) if term.inflects else [term.target]
    capitals = [way[:1].upper() + way[1:] for way in ways]
    return tuple(dict.fromkeys((*ways, *capitals)))[:MOST_VARIANTS]
