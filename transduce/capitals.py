"""TEXT IN CAPITALS is read in small letters and answered in capitals, where the vocabulary hardly knows them.

Ordinary text has next to none: a vocabulary made of it spells them letter by letter, and what a model makes of such
spelling is a copy or nonsense. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from transduce.data.tokenizer import Tokenizer
from transduce.search.constraints import DecodingConstraints
from transduce.translation import Translation

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
