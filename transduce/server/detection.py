"""Which language a text is in, among those that are served: naive Bayes over byte n-grams (py3langid)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transduce.server.languages import base_of

ENOUGH = 1000  # characters of a text tell


@dataclass(frozen=True)
class Detected:
    """A language and how sure it is, in percent."""

    language: str
    confidence: float


class Detector:
    """Tells the served languages apart; reads its tables when it is first asked."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = tuple(languages)
        self._lock = threading.Lock()
        self._known: Any = None

    def detect(self, text: str) -> list[Detected]:
        """All served languages, the likeliest first; the confidence of a text that tells nothing is 0."""
        told = any(map(str.isalpha, text)) and self._identifier().labels
        ranked = dict(self._identifier().rank(text[:ENOUGH])) if told else {}
        found = [Detected(code, round(100 * ranked.get(base_of(code), 0.0), 1)) for code in self.languages]
        return sorted(found, key=lambda one: -one.confidence)

    def _identifier(self) -> Any:
        with self._lock:
            if self._known is None:
                from py3langid.langid import MODEL_FILE, LanguageIdentifier

                identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
                identifier.set_languages({base_of(code) for code in self.languages} & set(identifier.labels))
                self._known = identifier
            return self._known
