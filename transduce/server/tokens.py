"""Texts of requests tokenized in the thread that asks for it.

For a list of texts sentencepiece starts a thread, even for one text, and waits until that thread has had its turn on a
busy core, and the event loop with it. A server has one text at a time, and for that no thread is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from transduce.data.tokenizer import Tokenizer, Tokenizers
from transduce.translator import Translator


class Direct(Tokenizer):
    """The same tokens, text by text."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, without start and end."""
        every = super().encode
        return [list(self.spelling(text)) if text == text.strip() else every([text])[0] for text in texts]


def direct(translator: Translator) -> Translator:
    """The same translator over such tokenizers; the one given stays as it is."""
    own = translator.tokenizers
    source, target = (Direct(one.model, one.origin, one.table) for one in (own.source, own.target))
    found = copy.copy(translator)
    found.tokenizers = Tokenizers(source, source if own.source is own.target else target)
    return found
