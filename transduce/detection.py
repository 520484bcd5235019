"""Which language a text is in, among those that are served: naive Bayes over byte n-grams (py3langid).

All languages it knows are weighed: a text in none of ours is still said to be in one of them, with little confidence.
Its tables take half a second to read, for which a sentence that has words like "the" or "und" need not wait; and of a
word or two they tell little, so that "Hello" is English by its being frequent there (frequent_words.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from transduce.forking import ForkLock
from transduce.frequent_words import FREQUENT
from transduce.languages import base_of

ENOUGH = 1000  # characters of a text tell
LIKELY, TOLD, SURE = 50.0, 75.0, 90.0  # percent of confidence: to go by it; by a frequent word; to refuse a text for it
_NAMES = {"nb": "no"}  # codes of ours that have another there
_KIN = {"yue": "zh", "wuu": "zh", "nn": "no"}  # told apart there, and written nearly as these
_OWN = {word: code for code, words in FREQUENT.items() for word in words.split()}
_READING = ForkLock()  # the tables, once
_WORDS = re.compile(r"[^\W\d_]+")
_HAN, _KANA = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff]")


def plain_language(text: str, languages: Sequence[str]) -> str:
    """The language that a text is plainly in, by words of that language alone, or ""; needs no tables.

    Answers only where all of the languages are among those of FREQUENT; words of two of them leave it open.
    """
    if not all(base_of(code) in FREQUENT for code in languages):
        return ""
    found = {_OWN[word] for word in _WORDS.findall(text.lower()[:ENOUGH]) if word in _OWN}
    if _HAN.search(text) and not _KANA.search(text):
        found.add("zh")
    known = [code for code in languages if base_of(code) in found]
    return known[0] if len(found) == len(known) == 1 else ""


@dataclass(frozen=True)
class Detected:
    """A language and how sure it is, in percent."""

    language: str
    confidence: float


class Detector:
    """Tells the served languages apart; reads its tables when it is first asked."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = tuple(languages)
        self._labels = {code: _NAMES.get(base_of(code), base_of(code)) for code in languages}

    def prepare(self) -> None:
        """Read the tables, where nobody has: for those who cannot wait for them when they ask."""
        with _READING:
            _identifier()

    def detect(self, text: str) -> list[Detected]:
        """All served languages, the likeliest first; the confidence of a text that tells nothing is 0.

        It is the share among those served, less by as much as the likeliest of all languages is likelier than ours.
        """
        every = self._weighed(text[:ENOUGH]) if any(map(str.isalpha, text)) else {}
        own = {code: every.get(label, 0.0) for code, label in self._labels.items()}
        most, total = max(every.values(), default=0.0), sum(own.values())
        sure = max(own.values()) / most if total else 0.0
        shares = {code: round(100 * sure * weight / (total or 1), 1) for code, weight in own.items()}
        plain = plain_language(text, self.languages)
        if plain and max(shares.values()) < SURE:
            shares = {code: min(share, 100 - TOLD) for code, share in shares.items()} | {
                plain: max(shares[plain], TOLD)
            }
        return sorted((Detected(*one) for one in shares.items()), key=lambda one: -one.confidence)

    def _weighed(self, text: str) -> dict[str, float]:
        """The probability of every language there is; what we do not serve counts for its kin."""
        found: dict[str, float] = {}
        for label, weight in _identifier().rank(text):
            label = label if label in self._labels.values() else _KIN.get(label, label)
            found[label] = max(weight, found.get(label, 0.0))
        return found


@cache
def _identifier() -> Any:
    """Its tables, which take a second to read: once a process."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
