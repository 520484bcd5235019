"""Faults of a translation that show without a reference: repetition, run-away length, another script, a copy.

The translator asks for them to translate again, confidence weighs them, and evaluation counts them: one rule for all.
What the source does itself is no fault. Lengths count a Chinese or Japanese character as three letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest

from transduce.text.languages import TWO_LETTERS, base_of

# The kinds of faults, in the order in which they are named.
EMPTY, COPIED, REPEATED, LONG, LANGUAGE = FAULTS = ("empty", "copied", "repeated", "long", "language")

REPEATS = 4  # repetitions in a row that are no accident
LONG_TIMES, LONG_MORE = 3, 30  # longer than so many times the source, and so many letters more
FEWEST_WORDS, FEWEST_WIDE = 4, 8  # words in small letters, or wide characters, from which on a copy is a fault
FEWEST_LETTERS = 4  # of another script, from which on a text is in another language
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# A unit of one to four words, or of up to eight characters where there are no spaces, repeated.
_WORDS = re.compile(rf"(?:^|(?<=\s))(\S+(?:\s\S+){{0,3}}?)(?:\s\1){{{REPEATS - 1},}}(?=\s|$)")
_CHARACTERS = re.compile(rf"(\S{{2,8}}?)\1{{{REPEATS - 1},}}|(\S)\2{{{2 * REPEATS},}}")
_SMALL_WORD = re.compile(r"(?<![^\W_])[^\W\d_A-Z\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}(?![^\W_])")
_LETTERS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_FAR = re.compile("[\u0370-\u1dff\u2c00-\U0003ffff]")  # of other scripts than Latin

_WRITTEN_IN = {
    code: frozenset(scripts.split())
    for codes, scripts in (
        ("zh yue", "CJK"),
        ("ja", "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA"),
        ("ko", "HANGUL CJK"),
        ("ru uk be bg mk ky tg", "CYRILLIC"),
        ("sr bs kk uz mn az tt", "CYRILLIC LATIN"),
        ("el", "GREEK"),
        ("he yi", "HEBREW"),
        ("ar fa ur ps sd ug", "ARABIC"),
        ("hi mr ne sa", "DEVANAGARI"),
        ("bn as", "BENGALI"),
        ("th", "THAI"),
        ("ka", "GEORGIAN"),
        ("hy", "ARMENIAN"),
    )
    for code in codes.split()
}
_UNSURE = frozenset("am bo dv dz gu ii iu km kn lo ml my or pa si ta te ti cr ks ku".split())  # scripts not listed here
_LATIN = frozenset({"LATIN"})


def scripts_of(language: str) -> frozenset[str]:
    """The scripts that a language is written in, by the words of Unicode's names; none where that is not known."""
    base = base_of(language)
    return _WRITTEN_IN.get(base, _LATIN if base in TWO_LETTERS - _UNSURE else frozenset())


@lru_cache(16384)
def _script_of(letter: str) -> str:
    name = unicodedata.name(letter, "")
    return "" if name.startswith(("FULLWIDTH", "MODIFIER")) else name.partition(" ")[0]


def letters(text: str) -> Iterator[str]:
    """Yield letters and digits alone, casefolded: what is unchanged in a copy."""
    return filter(str.isalnum, text.casefold())


def length(text: str) -> int:
    """Letters of a text; a Chinese or Japanese character says as much as three."""
    return len(text) if text.isascii() else len(text) + 2 * len(_WIDE.findall(text))


def repeats(text: str) -> bool:
    """Whether some words or characters are repeated many times in a row."""
    words = text.split()
    repeated = len(words) - len({*words}) >= REPEATS - 1 and _WORDS.search(text)  # cheap, and nearly always False
    return bool(repeated) or any(_CHARACTERS.search(word) for word in words if len(word) >= 2 * REPEATS)


def is_copy(source: str, translation: str) -> bool:
    """Whether a translation has the letters and digits of its source, in the same order, and no others."""
    if all(own == given for own, given in zip_longest(letters(translation), letters(source))):
        return any(map(str.isalnum, source))
    return False


def runs_away(source: str, translation: str) -> bool:
    """Whether a translation is far longer than its source."""
    return length(translation) > LONG_TIMES * length(source) + LONG_MORE


def other_script(source: str, translation: str, language: str) -> bool:
    """Whether most letters of a translation into `language` are of a script that it is not written in.

    Words that the source has as well, such as names, are not counted.
    """
    scripts = scripts_of(language)
    if not scripts or ("LATIN" in scripts and (translation.isascii() or not _FAR.search(translation))):
        return False
    given = {word for word in _LETTERS.findall(source) if len(word) > 1}
    words = [word for word in _LETTERS.findall(translation) if word not in given]
    new = [script for word in words for letter in word if (script := _script_of(letter))]
    wrong = sum(script not in scripts for script in new)
    return wrong >= FEWEST_LETTERS and 2 * wrong > len(new)


def _is_sentence(text: str) -> bool:
    """Whether a text has words to translate: not only names, numbers and code."""
    return len(_SMALL_WORD.findall(text)) >= FEWEST_WORDS or len(_WIDE.findall(text)) >= FEWEST_WIDE


def problems(source: str, translation: str, to: str = "", detected: str = "") -> list[str]:
    """Name the faults of a translation, of `FAULTS`; none for one that shows none.

    `to` is the language to translate to, whose script is checked if it is given; `detected` the language that the
    translation is in, where somebody has found out.
    """
    found = []
    if not translation.strip():
        return [EMPTY] if source.strip() else []
    if is_copy(source, translation) and _is_sentence(source):
        found.append(COPIED)
    if repeats(translation) and not repeats(source):
        found.append(REPEATED)
    if runs_away(source, translation):
        found.append(LONG)
    told = bool(detected and to) and base_of(detected) != base_of(to)
    if told or other_script(source, translation, to):
        found.append(LANGUAGE)
    return found
