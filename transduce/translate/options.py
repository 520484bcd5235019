"""Options of a translation, one for all texts or one a text, checked as the texts arrive; and text in capitals.

TEXT IN CAPITALS is lowercased before the model and uppercased after it, where the vocabulary hardly knows it. Ordinary
text has next to none: a vocabulary made of it spells them letter by letter, and what a model makes of such spelling is
a copy or nonsense. Imports no torch.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast, get_args

from transduce.core.errors import ConfigError, DataError
from transduce.engines import Translation
from transduce.search import SearchConfig
from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.text.alignment import Unit
from transduce.text.terms import Glossary, TermMatch
from transduce.text.tokenizer import Tokenizer
from transduce.translate.safeguards import Decode

T = TypeVar("T")
Words = Sequence[str] | Sequence[Sequence[str]]  # one list for all texts, or one a text


@dataclass(frozen=True)
class TranslateOptions:
    """Options of a translation: the keyword arguments of `Translator.translate`, which explains them."""

    beam: int = 0
    n_best: int = 1
    search: SearchConfig | None = None
    to: str | Sequence[str] = ""
    prefixes: str | Sequence[str] = ""
    include: Words = ()
    exclude: Words = ()
    align: Unit | None = None
    dense: bool = True
    cancel_tokens: Sequence[CancelToken] = ()
    protect: bool | None = None
    patterns: Sequence[str] = ()
    source: str | Sequence[str] = ""
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of texts that the caller has tokenized already
    glossary: Sequence[Glossary] = ()
    terms: Sequence[tuple[TermMatch, ...]] = ()  # one a text: those that the caller has found already, for `glossary`

    def check(self) -> None:
        """Raise ConfigError for an option that is not a known value."""
        if self.align is not None:
            check_unit("align", self.align, "words, pieces or None")

    def of_texts(self, begin: int, count: int) -> TranslateOptions:
        """The options of `count` texts from the `begin`-th on, one value per text."""
        return replace(
            self,
            prefixes=part_of("prefixes", self.prefixes, begin, count),
            to=part_of("to", self.to, begin, count),
            source=part_of("source", self.source, begin, count),
            include=words_of("include", self.include, begin, count),
            exclude=words_of("exclude", self.exclude, begin, count),
            cancel_tokens=one_a_text("cancel_tokens", self.cancel_tokens, begin, count) if self.cancel_tokens else (),
            terms=one_a_text("terms", self.terms, begin, count) if self.terms else (),
        )

    def chosen(self, numbers: Sequence[int]) -> TranslateOptions:
        """The options of some of the texts, from options that have one value per text."""
        return replace(
            self,
            prefixes=[self.prefixes[number] for number in numbers],
            to=[self.to[number] for number in numbers],
            source=[self.source[number] for number in numbers],
            include=[self.include[number] for number in numbers],
            exclude=[self.exclude[number] for number in numbers],
            cancel_tokens=[self.cancel_tokens[number] for number in numbers] if self.cancel_tokens else (),
            terms=[self.terms[number] for number in numbers] if self.terms else (),
        )

    def of_decodes(self, decodes: Sequence[Decode]) -> TranslateOptions:
        """The options of what safeguards request, from those of the texts it is for, which have one value per text."""
        numbers = [decode.number for decode in decodes]
        own = [self.prefixes[decode.number] if decode.prefix is None else decode.prefix for decode in decodes]
        return replace(
            self,
            prefixes=own,
            to=[self.to[decode.number] if decode.to is None else decode.to for decode in decodes],
            include=[[*self.include[n], *decode.include] for n, decode in zip(numbers, decodes, strict=True)],
            exclude=[self.exclude[n] for n in numbers],
            cancel_tokens=[self.cancel_tokens[n] for n in numbers] if self.cancel_tokens else (),
        )

    def check_all_used(self, count: int) -> None:
        """Raise DataError if there are more values than texts."""
        for name, given in (
            ("prefixes", self.prefixes),
            ("to", self.to),
            ("source", self.source),
            ("cancel_tokens", self.cancel_tokens),
        ):
            check_all_used(name, given, count)
        for name, words in (("include", self.include), ("exclude", self.exclude)):
            if not for_all(name, words):
                check_all_used(name, words, count)


def check_unit(name: str, unit: object, expected: str) -> None:
    """Raise ConfigError for a unit that alignments do not link."""
    if unit not in get_args(Unit):
        raise ConfigError(f"{name}: expected {expected}, got {unit!r}")


def texts_of(name: str, given: Any, instead: str, files: bool = False) -> Iterator[str]:
    """Yield the texts of a list as they arrive; raise DataError for a single text, a non-list or a non-text.

    `files`: what stands for a text may be anything that has frames, and whoever reads it says what is wrong with it.
    """
    if isinstance(given, str):
        raise DataError(f"{name}: one text was given where a list is expected; {instead}")
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise DataError(f"{name}: expected a list of texts, got {_shown(given)}; {instead}")
    return iter(given) if files else _only_texts(name, given)


def _only_texts(name: str, given: Iterable[object]) -> Iterator[str]:
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise DataError(f"{name}[{number}]: expected a text (str), got {_shown(text)}")
        yield text


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of `size` texts, without reading further ahead."""
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def part_of(name: str, given: str | Sequence[str], begin: int, count: int) -> Sequence[str]:
    """The values for `count` texts from index `begin` on; one word serves all."""
    return [given] * count if isinstance(given, str) else one_a_text(name, given, begin, count)


def one_a_text(name: str, given: Sequence[T], begin: int, count: int) -> Sequence[T]:
    """The values for `count` texts from index `begin` on."""
    if len(given) < begin + count:
        raise DataError(f"{name}: {len(given)} were given for at least {begin + count} texts; give one a text")
    return given[begin : begin + count]


def words_of(name: str, given: Words, begin: int, count: int) -> Sequence[Sequence[str]]:
    """The words for `count` texts from index `begin` on; one list of words serves all."""
    if for_all(name, given):
        return [cast("Sequence[str]", given)] * count
    return one_a_text(name, given, begin, count)


def for_all(name: str, given: Words) -> bool:
    """Whether one list of words serves all texts, rather than a list of words a text."""
    if isinstance(given, str):
        raise DataError(f"{name}: one word was given where a list is expected; use [{given!r}]")
    strings = [isinstance(item, str) for item in given]
    if any(strings) and not all(strings):
        raise DataError(
            f"{name}: words and lists of words are mixed; give one list of words, or a list of words a text"
        )
    return all(strings)


def check_all_used(name: str, given: str | Sequence[object], count: int) -> None:
    """Raise DataError if there are more values than texts."""
    if not isinstance(given, str) and len(given) > count:
        raise DataError(f"{name}: {len(given)} were given for only {count} texts; give one a text")


LETTERS = 4  # fewer are an abbreviation
TIMES = 1.5  # as many tokens as in small letters, at least
_BEGINNINGS = re.compile(r"^\W*\w|[.!?]\s+\w")
_ALONE = re.compile(r"\bi\b")


def lowercase_shouting(
    texts: Sequence[str], constraints: Sequence[DecodingConstraints], tokenizer: Tokenizer
) -> tuple[list[str], list[bool]]:
    """Lowercase texts in capitals and say which they were; texts with forced words that have a case stay as written."""
    loud = [
        is_loud(text, tokenizer) and _without_case(constraint, tokenizer)
        for text, constraint in zip(texts, constraints, strict=True)
    ]
    return [small(text) if shouts else text for text, shouts in zip(texts, loud, strict=True)], loud


def _without_case(constraint: DecodingConstraints, tokenizer: Tokenizer) -> bool:
    """Whether all forced words are alike in capitals and small letters."""
    phrases = [constraint.prefix, *constraint.exclude, *(way for ways in constraint.include for way in ways)]
    pieces = tokenizer.pieces([token for phrase in phrases for token in phrase])
    return all(piece.lower() == piece.upper() for piece in pieces)


def is_loud(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text is all in capitals that the vocabulary does not know; imported models read what is given."""
    if not text.isupper() or tokenizer.table is not None or sum(map(str.isupper, text)) < LETTERS:
        return False
    loud, quiet = tokenizer.encode([text, small(text)])
    return len(loud) >= TIMES * len(quiet)


def small(text: str) -> str:
    """Lowercase, except the beginnings of sentences and the English "I", which no other language minds."""
    return _ALONE.sub("I", _BEGINNINGS.sub(lambda found: found[0].upper(), text.lower()))


def restore_case(translation: Translation) -> Translation:
    """Uppercase the translation and its alternatives; scores and tokens stay those of what the model wrote."""
    others = tuple(restore_case(other) for other in translation.alternatives)
    return replace(translation, text=translation.text.upper(), alternatives=others)
