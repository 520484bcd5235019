"""Options that are one for all texts or one a text, checked as the texts come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

from transduce.errors import DataError

T = TypeVar("T")
Words = Sequence[str] | Sequence[Sequence[str]]  # one list for all texts, or one a text


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
