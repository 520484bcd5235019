"""Which language a text is in, among those that are served: naive Bayes over byte n-grams (py3langid).

All languages it knows are weighed: a text in none of ours is still said to be in one of them, with little confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from transduce.languages import base_of

ENOUGH = 1000  # characters of a text tell
_NAMES = {"nb": "no"}  # codes of ours that have another there
_KIN = {"yue": "zh", "wuu": "zh", "nn": "no"}  # told apart there, and written nearly as these


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

    def detect(self, text: str) -> list[Detected]:
        """All served languages, the likeliest first; the confidence of a text that tells nothing is 0.

        It is the share among those served, less by as much as the likeliest of all languages is likelier than ours.
        """
        every = self._weighed(text[:ENOUGH]) if any(map(str.isalpha, text)) else {}
        own = {code: every.get(label, 0.0) for code, label in self._labels.items()}
        most, total = max(every.values(), default=0.0), sum(own.values())
        sure = max(own.values()) / most if total else 0.0
        found = [Detected(code, round(100 * sure * weight / (total or 1), 1)) for code, weight in own.items()]
        return sorted(found, key=lambda one: -one.confidence)

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
