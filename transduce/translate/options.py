"""Texts, and options that are one for all of them or one a text, checked as the texts come.

TEXT IN CAPITALS is read in small letters and answered in capitals, where the vocabulary hardly knows them.

Ordinary text has next to none: a vocabulary made of it spells them letter by letter, and what a model makes of such
spelling is a copy or nonsense. Imports no torch.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast, get_args

from transduce.core.errors import ConfigError, DataError
from transduce.engines.base import Translation
from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.search.hypothesis import SearchConfig
from transduce.text.alignment import Unit
from transduce.text.tokenizer import Tokenizer

T = TypeVar("T")
Words = Sequence[str] | Sequence[Sequence[str]]  # one list for all texts, or one a text


@dataclass(frozen=True)
class TranslateOptions:
    """What is asked of translations: the keyword arguments of `Translator.translate`, which explains them."""

    beam: int = 0
    n_best: int = 1
    search: SearchConfig | None = None
    to: str | Sequence[str] = ""
    prefixes: str | Sequence[str] = ""
    include: Words = ()
    exclude: Words = ()
    align: Unit | None = None
    dense: bool = True
    stops: Sequence[CancelToken] = ()
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of texts, where the caller has cut them already

    def check(self) -> None:
        """Refuse what alignments do not link."""
        if self.align is not None:
            check_unit("align", self.align, "words, pieces or None")

    def of_texts(self, begin: int, count: int) -> TranslateOptions:
        """The options of `count` texts from the `begin`-th on, one value a text."""
        return replace(
            self,
            prefixes=part_of("prefixes", self.prefixes, begin, count),
            to=part_of("to", self.to, begin, count),
            include=words_of("include", self.include, begin, count),
            exclude=words_of("exclude", self.exclude, begin, count),
            stops=one_a_text("stops", self.stops, begin, count) if self.stops else (),
        )

    def check_all_used(self, count: int) -> None:
        """Refuse more values than there were texts."""
        for name, given in (("prefixes", self.prefixes), ("to", self.to), ("stops", self.stops)):
            check_all_used(name, given, count)
        for name, words in (("include", self.include), ("exclude", self.exclude)):
            if not for_all(name, words):
                check_all_used(name, words, count)


def check_unit(name: str, unit: object, expected: str) -> None:
    """Refuse what alignments do not link."""
    if unit not in get_args(Unit):
        raise ConfigError(f"{name}: expected {expected}, got {unit!r}")


def texts_of(name: str, given: Any, instead: str, files: bool = False) -> Iterator[str]:
    """The texts of a list as they come; one text, what is no list, and what is no text in it are refused.

    `files`: what stands for a text may be anything that has frames, and whoever reads it says what is wrong with it.
    """
    if isinstance(given, str):
        raise DataError(f"{name}: one text was given where a list is expected; {instead}")
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise DataError(f"{name}: expected a list of texts, got {_shown(given)}; {instead}")
    return iter(given) if files else _only_texts(name, given)


def _only_texts(name: str, given: Iterable[object]) -> Iterator[str]:
    for number, one in enumerate(given):
        if not isinstance(one, str):
            raise DataError(f"{name}[{number}]: expected a text (str), got {_shown(one)}")
        yield one


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """`size` texts at a time, without reading further."""
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def part_of(name: str, given: str | Sequence[str], begin: int, count: int) -> Sequence[str]:
    """The values for `count` texts from the `begin`-th on; one word serves all."""
    return [given] * count if isinstance(given, str) else one_a_text(name, given, begin, count)


def one_a_text(name: str, given: Sequence[T], begin: int, count: int) -> Sequence[T]:
    """The values for `count` texts from the `begin`-th on."""
    if len(given) < begin + count:
        raise DataError(f"{name}: {len(given)} were given for at least {begin + count} texts; give one a text")
    return given[begin : begin + count]


def words_of(name: str, given: Words, begin: int, count: int) -> Sequence[Sequence[str]]:
    """The words for `count` texts from the `begin`-th on; one list of words serves all."""
    if for_all(name, given):
        return [cast("Sequence[str]", given)] * count
    return one_a_text(name, given, begin, count)


def for_all(name: str, given: Words) -> bool:
    """Whether these are words for all texts, not a list of words a text."""
    if isinstance(given, str):
        raise DataError(f"{name}: one word was given where a list is expected; use [{given!r}]")
    strings = [isinstance(one, str) for one in given]
    if any(strings) and not all(strings):
        raise DataError(
            f"{name}: words and lists of words are mixed; give one list of words, or a list of words a text"
        )
    return all(strings)


def check_all_used(name: str, given: str | Sequence[object], count: int) -> None:
    """Refuse more values than there were texts."""
    if not isinstance(given, str) and len(given) > count:
        raise DataError(f"{name}: {len(given)} were given for only {count} texts; give one a text")


LETTERS = 4  # fewer are an abbreviation
TIMES = 1.5  # as many tokens as in small letters, at least
_BEGINNINGS = re.compile(r"^\W*\w|[.!?]\s+\w")
_ALONE = re.compile(r"\bi\b")


def lowercase_shouting(
    texts: Sequence[str], constraints: Sequence[DecodingConstraints], tokenizer: Tokenizer
) -> tuple[list[str], list[bool]]:
    """The texts as they are to be read, and which of them are loud; words that are wished for stay as written."""
    free = [not (constraint.prefix or constraint.include or constraint.exclude) for constraint in constraints]
    loud = [own and is_loud(text, tokenizer) for text, own in zip(texts, free, strict=True)]
    return [small(text) if own else text for text, own in zip(texts, loud, strict=True)], loud


def is_loud(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text is all in capitals that the vocabulary does not know; models of others read what is given."""
    if not text.isupper() or tokenizer.table is not None or sum(map(str.isupper, text)) < LETTERS:
        return False
    loud, quiet = tokenizer.encode([text, small(text)])
    return len(loud) >= TIMES * len(quiet)


def small(text: str) -> str:
    """In small letters but for beginnings of sentences, and the English "I", which no other language minds."""
    return _ALONE.sub("I", _BEGINNINGS.sub(lambda found: found[0].upper(), text.lower()))


def restore_case(translation: Translation) -> Translation:
    """In capitals, alternatives too; scores and tokens are those of what the model wrote."""
    others = tuple(restore_case(one) for one in translation.alternatives)
    return replace(translation, text=translation.text.upper(), alternatives=others)
