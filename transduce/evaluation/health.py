"""What no translation should be, counted: empty, a copy, the same again and again, far too long, cut by the limit.

Only the worst is caught, by rules that people can check by eye; a good translation is hardly ever counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

REPEATS = 4  # the same words so often in a row are no accident
LONG_TIMES, LONG_MORE = 3, 30  # longer than so many times the source, and so many letters more
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# A unit of one to four words, or of up to eight characters where there are no spaces, and the same again.
_WORDS = re.compile(rf"(?:^|(?<=\s))(\S+(?:\s\S+){{0,3}}?)(?:\s\1){{{REPEATS - 1},}}(?=\s|$)")
_CHARACTERS = re.compile(rf"(\S{{2,8}}?)\1{{{REPEATS - 1},}}|(\S)\2{{{2 * REPEATS},}}")


@dataclass(frozen=True)
class Health:
    """How many of so many lines are what no translation should be."""

    lines: int = 0
    empty: int = 0
    copied: int = 0
    repeated: int = 0
    long: int = 0
    cut: int = 0

    def __add__(self, other: Health) -> Health:
        mine, its = asdict(self), asdict(other)
        return Health(**{key: mine[key] + its[key] for key in mine})


def letters(text: str) -> str:
    """Letters and digits alone, without case: what stays the same in a copy."""
    return "".join(character for character in text.casefold() if character.isalnum())


def length(text: str) -> int:
    """Letters of a text; a Chinese or Japanese character says as much as three."""
    return len(text) + 2 * len(_WIDE.findall(text))


def repeats(text: str) -> bool:
    """Whether some words, or characters, stand there many times in a row."""
    return bool(_WORDS.search(text) or _CHARACTERS.search(text))


def examine(
    sources: Sequence[str], translations: Sequence[str], finished: Sequence[bool], references: Sequence[str] = ()
) -> Health:
    """Counts over all lines. What the source (or the reference) does too is no fault."""
    found = Health()
    for number, (source, translation, complete) in enumerate(zip(sources, translations, finished, strict=True)):
        reference = references[number] if references else ""
        empty = not translation.strip() and bool(source.strip())
        copied = bool(letters(source)) and letters(translation) == letters(source) != letters(reference)
        found += Health(
            lines=1,
            empty=int(empty),
            copied=int(copied),
            repeated=int(repeats(translation) and not repeats(source) and not repeats(reference)),
            long=int(length(translation) > LONG_TIMES * length(source) + LONG_MORE),
            cut=int(not complete),
        )
    return found
