"""Glossaries: terms by direction, and where they occur in a text. Imports no torch.

A `Glossary` holds dictionaries, one for each direction (source language, target language); "" stands for any language.
A `TermMatcher` finds the terms of one direction in a source text: word by word, in any case, with the endings that the
source language gives to words, the longest term first, none over another. Chinese and Japanese are matched character
by character, so a term of theirs is found anywhere. A term in capitals alone is found in capitals alone: `IT` is not
"it". `occurrences` finds a target term in a translation: as written, but for the case at the beginning of a sentence.

Inflection is a list of endings, not grammar: it finds `files` for `file` and `Dateien` for `Datei`, not `mice`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from transduce.core.errors import DataError
from transduce.text.languages import base_of

Direction = tuple[str, str]
MARK = "*"  # after a target term: its inflected forms will do as well
LONGEST_TERM = 1024  # bytes of UTF-8, as with DeepL

_HAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # kana and Han: no spaces between words
_TOKEN = re.compile(rf"[{_HAN}]|[^\W{_HAN}]+|[^\w\s]")
_UNSPACED = re.compile(f"[{_HAN}]")
_SHORTEST = 3  # letters of a word that takes endings

# (ending of the given form, ending of another form). The first rule that fits may not be the grammar's: all are tried.
_ENDINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "en": (("", "s"), ("", "es"), ("y", "ies")),
    "de": (("", "n"), ("", "en"), ("", "e"), ("", "s"), ("", "es"), ("", "er"), ("", "ern"), ("", "em"), ("", "nen")),
    "fr": (("", "s"), ("", "x"), ("", "e"), ("", "es"), ("al", "aux"), ("if", "ive"), ("if", "ives")),
    "es": (("", "s"), ("", "es"), ("o", "a"), ("o", "as"), ("z", "ces"), ("ón", "ones"), ("or", "ora"), ("or", "oras")),
    "pt": (
        *(("", "s"), ("", "es"), ("o", "a"), ("o", "as"), ("ão", "ões"), ("m", "ns"), ("or", "ora"), ("or", "oras")),
        *(("al", "ais"), ("el", "eis"), ("il", "is")),
    ),
}
_LAST_WORD_ALONE = ("en",)  # languages whose adjectives and first nouns stay as they are


@dataclass(frozen=True)
class Term:
    """A source term and its target term; `inflects` accepts the target's inflected forms too."""

    source: str
    target: str
    inflects: bool = False

    @classmethod
    def written(cls, source: str, target: str) -> Term:
        """The term of an entry: `MARK` after the target accepts inflected forms; a source loses its own mark."""
        inflects = target.endswith(MARK) and target != MARK
        return cls(unmarked(source), unmarked(target), inflects)

    @property
    def entry(self) -> str:
        """The target as an entry writes it."""
        return self.target + MARK if self.inflects else self.target


def unmarked(text: str) -> str:
    """Strip a term of its mark."""
    return text.removesuffix(MARK).rstrip() if text != MARK else text


@dataclass(frozen=True, eq=False)
class Glossary:
    """Dictionaries of terms, each for a direction; `name` is for messages."""

    dictionaries: Mapping[Direction, tuple[Term, ...]]
    name: str = "glossary"

    @classmethod
    def of(cls, terms: Mapping[str, str], source: str = "", target: str = "", name: str = "glossary") -> Glossary:
        """Make a glossary of one direction from {source term: target term}."""
        for pair in terms.items():
            for text in pair:
                check_term(text, name)
        return cls({(source, target): tuple(Term.written(*pair) for pair in terms.items())}, name)

    def __len__(self) -> int:
        return sum(map(len, self.dictionaries.values()))

    def only(self, source: str, target: str) -> Glossary:
        """The dictionaries of one direction; DataError where there are none."""
        found = {pair: terms for pair, terms in self.dictionaries.items() if _fits(pair, source, target)}
        if not found:
            raise DataError(f"{self.name}: has no terms from {source} to {target}; it has {_shown(self.dictionaries)}")
        return Glossary({(source, target): tuple(chain.from_iterable(found.values()))}, self.name)


def check_term(text: object, where: str) -> None:
    """Raise DataError for a term that no text can hold."""
    if not isinstance(text, str):
        raise DataError(f"{where}: expected terms that are texts, got {text!r}")
    if not text.strip() or not _TOKEN.search(text):
        raise DataError(f"{where}: a blank term was given; give both sides of each entry")
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") for character in text):
        raise DataError(f"{where}: the term {text[:40]!r} has control characters; give words on one line")
    if len(text.encode()) > LONGEST_TERM:
        raise DataError(f"{where}: a term of more than {LONGEST_TERM} bytes ({text[:40]!r}...); give shorter ones")


def _shown(dictionaries: Mapping[Direction, object]) -> str:
    return ", ".join(f"{source or 'any'}-{target or 'any'}" for source, target in dictionaries) or "none at all"


def _fits(pair: Direction, source: str, target: str) -> bool:
    """Whether a dictionary serves a direction, "" being any language; `pt-BR` serves `pt`."""
    return all(
        not own or not asked or base_of(own) == base_of(asked)
        for own, asked in zip(pair, (source, target), strict=True)
    )


# -- forms of words ---------------------------------------------------------------------------------------------------


def forms(word: str, language: str) -> tuple[str, ...]:
    """List a word and what it becomes with the endings of its language."""
    if len(word) < _SHORTEST or not word.isalpha():
        return (word,)
    made = (
        word[: len(word) - len(old)] + new for old, new in _ENDINGS.get(base_of(language), ()) if word.endswith(old)
    )
    return tuple(dict.fromkeys((word, *made)))


def inflections(text: str, language: str) -> list[str]:
    """List a term and its forms: each rule applied to the last word, and to all words that take it."""
    words = text.split(" ")
    found = [text]
    for old, new in _ENDINGS.get(base_of(language), ()):
        changed = [f"{word[: len(word) - len(old)]}{new}" if _takes(word, old) else word for word in words]
        found += [" ".join([*words[:-1], changed[-1]])]
        if base_of(language) not in _LAST_WORD_ALONE:
            found += [" ".join(changed)]
    return list(dict.fromkeys(found))


def _takes(word: str, ending: str) -> bool:
    return len(word) >= _SHORTEST and word.isalpha() and word.endswith(ending)


def _token_forms(tokens: Sequence[str], language: str) -> tuple[frozenset[str], ...]:
    """The forms that each token of a term may have."""
    fixed = len(tokens) - 1 if base_of(language) in _LAST_WORD_ALONE else 0
    return tuple(
        frozenset(forms(token, language)) if index >= fixed else frozenset((token,))
        for index, token in enumerate(tokens)
    )


def is_unspaced(text: str) -> bool:
    """Whether a text has characters of a script without spaces between words."""
    return _UNSPACED.search(text) is not None


def normalized(text: str) -> str:
    """A text as terms are looked for in it: composed characters and straight apostrophes."""
    return unicodedata.normalize("NFC", text).replace("’", "'")


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(normalized(text))


# -- terms in a source text -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TermMatch:
    """A term at `start` to `stop` of the `normalized` source text, with the language of its target."""

    start: int
    stop: int
    term: Term
    language: str = ""


@dataclass(frozen=True)
class _Pattern:
    """A term to look for: its words, the forms of each, and the words as written where case matters."""

    term: Term
    language: str  # of the target
    words: tuple[str, ...]
    forms: tuple[frozenset[str], ...]
    exact: tuple[str, ...]

    def inflected(self, tokens: Sequence[str], folded: Sequence[str]) -> int | None:
        """How many tokens are other forms than the term's own; None where the tokens are not this term."""
        if len(tokens) != len(self.words) or any(w not in f for w, f in zip(folded, self.forms, strict=True)):
            return None
        if any(not token.startswith(word) for token, word in zip(tokens, self.exact, strict=False)):
            return None
        return sum(token != word for token, word in zip(folded, self.words, strict=True))


class TermMatcher:
    """Finds the terms of one direction in source texts."""

    def __init__(self, entries: Iterable[tuple[Term, Direction]]) -> None:
        """Index terms with their directions, the preferred first: of two with one source the first counts."""
        self._patterns: dict[str, list[_Pattern]] = {}
        for term, (source, target) in entries:
            tokens = _tokens(term.source)
            if not tokens:
                continue
            words = tuple(token.casefold() for token in tokens)
            exact = tuple(tokens) if term.source.isupper() else ()
            pattern = _Pattern(term, target, words, _token_forms(words, source), exact)
            for form in pattern.forms[0]:
                self._patterns.setdefault(form, []).append(pattern)

    @classmethod
    def of(cls, glossaries: Sequence[Glossary], source: str = "", target: str = "") -> TermMatcher:
        """The matcher of several glossaries, the first preferred, for a direction; "" is an unknown language."""
        return _matcher(tuple(glossaries), source, target)

    def find(self, text: str) -> tuple[TermMatch, ...]:
        """The terms of a text, from left to right."""
        if not self._patterns:
            return ()
        text = normalized(text)
        spans = [match.span() for match in _TOKEN.finditer(text)]
        tokens = [text[start:stop] for start, stop in spans]
        folded = [token.casefold() for token in tokens]
        return tuple(_longest_first(self._found(text, spans, tokens, folded)))

    def _found(
        self, text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[str], folded: Sequence[str]
    ) -> Iterator[TermMatch]:
        """Yield the longest preferred term that begins at each token; one as written comes before an inflected one."""
        for begin in range(len(folded)):
            found: list[tuple[int, int, TermMatch]] = []
            for pattern in self._patterns.get(folded[begin], ()):
                end = begin + len(pattern.words)
                inflected = pattern.inflected(tokens[begin:end], folded[begin:end])
                if inflected is not None:
                    start, stop = spans[begin][0], spans[end - 1][1]
                    if not _glued(text, start, stop):
                        found.append((begin - end, inflected, TermMatch(start, stop, pattern.term, pattern.language)))
            if found:
                yield min(found, key=lambda one: one[:2])[2]


_GLUE = ".@\\_"  # between two words these make a name of them: `file.txt` has no `file`


def _glued(text: str, start: int, stop: int) -> bool:
    """Whether a span is part of a longer name."""
    before, after = text[max(0, start - 2) : start], text[stop : stop + 2]
    return (len(before) == 2 and before[1] in _GLUE and before[0].isalnum()) or (
        len(after) == 2 and after[0] in _GLUE and after[1].isalnum()
    )


def _longest_first(found: Iterable[TermMatch]) -> list[TermMatch]:
    """Drop matches that overlap a longer one, or an earlier one of the same length."""
    kept: list[TermMatch] = []
    for match in sorted(found, key=lambda match: (match.start - match.stop, match.start)):
        if all(match.stop <= other.start or other.stop <= match.start for other in kept):
            kept.append(match)
    return sorted(kept, key=lambda match: match.start)


@lru_cache(maxsize=64)  # of many users of a server; a glossary is one object for all its texts
def _matcher(glossaries: tuple[Glossary, ...], source: str, target: str) -> TermMatcher:
    fitting = [
        (glossary, pair, terms)
        for glossary in glossaries
        for pair, terms in glossary.dictionaries.items()
        if _fits(pair, source, target)
    ]
    ends = {base_of(end) for _, (_, end), _ in fitting if end}
    if not target and len(ends) > 1:
        raise DataError(
            f"{fitting[0][0].name}: has terms for several languages ({', '.join(sorted(ends))}), and the model does not"
            " say which one it writes; name the direction, as en-de=FILE or glossary.only('en', 'de')"
        )
    return TermMatcher((term, (pair[0] or source, pair[1] or target)) for _, pair, terms in fitting for term in terms)


# -- terms in a translation -------------------------------------------------------------------------------------------

_BEGINNING = re.compile(r"(?:^|[.!?:…。！？：]\s*)[\W_]*$")


def occurrences(target: str, text: str, language: str = "", inflected: bool = False) -> list[tuple[int, int]]:
    """Spans of a `normalized` text where a target term stands as a word, from left to right, none over another.

    With `inflected` with any ending of the language, in any case.
    """
    wanted, spans = _target_forms(target, language, inflected), [match.span() for match in _TOKEN.finditer(text)]
    tokens = [text[start:stop] for start, stop in spans]
    shouted = text.isupper()
    found: list[tuple[int, int]] = []
    begin = 0
    while wanted and begin + len(wanted) <= len(tokens):
        here = tokens[begin : begin + len(wanted)]
        if inflected or shouted:
            here = [token.casefold() for token in here]
        start = spans[begin][0]
        if _same(here, wanted, inflected or shouted) or (
            not inflected and begins_sentence(text, start) and _same([_lowered(here[0]), *here[1:]], wanted, False)
        ):
            found.append((start, spans[begin + len(wanted) - 1][1]))
            begin += len(wanted)
        else:
            begin += 1
    return found


@lru_cache(maxsize=4096)
def _target_forms(target: str, language: str, inflected: bool) -> tuple[frozenset[str], ...]:
    tokens = _tokens(target)
    if not inflected:
        return tuple(frozenset((token,)) for token in tokens)
    return _token_forms([token.casefold() for token in tokens], language)


def _same(tokens: Sequence[str], wanted: Sequence[frozenset[str]], folded: bool) -> bool:
    return all(
        token in options or (folded and any(token == option.casefold() for option in options))
        for token, options in zip(tokens, wanted, strict=True)
    )


def _lowered(word: str) -> str:
    return word[:1].lower() + word[1:]


def begins_sentence(text: str, start: int) -> bool:
    """Whether a word at `start` is the first of a sentence, as far as marks tell."""
    return _BEGINNING.search(text[:start]) is not None
