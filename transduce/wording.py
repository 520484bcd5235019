"""Words for messages: of a number of things, of the type of a value, and of the name that was perhaps meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

TYPES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


DOTTED = r"""(?:[\w.-]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")*"""  # what `dotted_key` gives


def dotted_key(where: str, key: str) -> str:
    """The name of a setting in a table; one that is no plain name is quoted, safe for a terminal."""
    plain = key if re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{where}.{plain}" if where else plain


def printable(text: str) -> str:
    """A text for a terminal: what would move its cursor or colour it is written out, but for the ends of lines."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", _escaped, text)


def is_plain(text: str) -> bool:
    """Whether any file and terminal takes it as one line: no control characters, no halves of surrogate pairs."""
    return "\n" not in text and printable(text) == text and not re.search("[\ud800-\udfff]", text)


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def counted(count: int, one: str, many: str = "") -> str:
    """`1 line`, `2,000 lines`; `many` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def type_in_words(kind: type[Any]) -> str:
    """What a setting of a type holds."""
    return TYPES.get(kind, kind.__name__)


def value_in_words(value: Any) -> str:
    """What a value from a file is."""
    if isinstance(value, (Mapping, list)):
        return "a table" if isinstance(value, Mapping) else "an array"
    return type_in_words(type(value))


def nearest(word: Any, words: Iterable[Any]) -> str:
    """`; did you mean 'steps'?` where one of the words is near."""
    near = difflib.get_close_matches(str(word), [str(item) for item in words], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
