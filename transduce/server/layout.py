"""Texts taken apart and put together again: sentences with their spacing, and HTML with its tags where they belong.

A `Layout` names the sentences to translate; `joined` puts their translations where they stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transduce.data.segment import TextPiece
from transduce.data.sentences import sentences
from transduce.languages import WITHOUT_SPACES, base_of

# Pictures, and what puts several together; marks of lists, quotes and headings, as plain text has them.
_PICTURE = "\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff\ufe0f\u200d\u20e3\U000e0020-\U000e007f"
_BEFORE = re.compile(rf"(?:[\s{_PICTURE}]|[-–—*•‣◦▪▫●○■□▸►→⇒#>|]++\s)*+")
_AFTER = re.compile(rf"(?<![\s{_PICTURE}])[\s{_PICTURE}]*+$")  # begun where a run begins: once for each


@dataclass(frozen=True)
class Layout:
    """The parts of a text; those that hold text are translated, the spaces between them stay.

    So do pictures and marks around a sentence, and what holds no letter and no digit: a model that never saw them takes
    them for words.
    """

    parts: tuple[TextPiece, ...]

    @classmethod
    def of(cls, text: str, whole: bool = False) -> Layout:
        """In sentences, or as a whole (but for the space around it)."""
        if not whole:
            return cls(tuple(bare_sentences(text)))
        bare = text.strip()
        begin = text.find(bare)
        return cls(
            (TextPiece("", text[:begin]), TextPiece(bare, text[begin + len(bare) :]))
            if bare
            else (TextPiece("", text),)
        )

    @property
    def texts(self) -> list[str]:
        """What is to be translated, in order."""
        return [part.text for part in self.parts if part.text]

    def joined(self, translations: Sequence[str], target: str) -> str:
        """The text again, in another language."""
        spaces = self.spaces(target)
        return spaces[0] + "".join(text + space for text, space in zip(translations, spaces[1:], strict=True))

    def spaces(self, target: str) -> list[str]:
        """What stands before the first sentence and after each.

        Between sentences a space is put in or left out where the languages differ in that; nothing else changes.
        """
        found = [""]
        last = len(self.parts) - 1
        for number, part in enumerate(self.parts):
            space = part.space
            if part.text and number < last:
                close = base_of(target) in WITHOUT_SPACES
                space = "" if space == " " and close else " " if not space and not close else space
            if part.text:
                found.append(space)
            else:
                found[-1] += space
        return found


def bare_sentences(text: str) -> list[TextPiece]:
    """The sentences of a text, and as spaces all that is not translated."""
    return [bare for part in sentences(text) for bare in _bare(part)]


def _bare(part: TextPiece) -> Iterator[TextPiece]:
    """A sentence without what stands around it."""
    begin, end = _BEFORE.match(part.text).end(), _AFTER.search(part.text).start()  # type: ignore[union-attr]
    if any(map(str.isalnum, part.text[begin:end])):
        if begin:
            yield TextPiece("", part.text[:begin])
        yield TextPiece(part.text[begin:end], part.text[end:] + part.space)
    else:
        yield TextPiece("", part.text + part.space)
