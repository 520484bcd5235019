"""Cut a text that is too long for a model into parts at the best places, so that nothing is dropped.

Sentence ends first, then commas and the like, then spaces, then anywhere. Joining the parts with the spaces that
stood between them gives the text back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# Each pattern matches the place after which one may cut, with the white space that follows it. A run of stops is
# looked at once, from its start and without going back: ten thousand dots in a row take no longer than other text.
_PLACES = (
    re.compile(r"(?:(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s+|[。！？]+[”’」』）]*\s*)"),
    re.compile(r"(?:[,;:–—]\s+|[，；：、]\s*)"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True)
class TextPiece:
    """A piece of text and the white space that followed it."""

    text: str
    space: str


def split_long(text: str, fits: Callable[[str], bool]) -> list[TextPiece]:
    """`text` in parts that each fit, as few as greedy packing needs; the whole text if it fits."""
    return _pack(text, "", fits, level=0)


def _pack(text: str, space: str, fits: Callable[[str], bool], level: int) -> list[TextPiece]:
    if fits(text):
        return [TextPiece(text, space)]
    pieces = _pieces(text, level) if level < len(_PLACES) else _halves(text)
    if len(pieces) == 1:
        return [TextPiece(text, space)] if len(text) < 2 else _pack(text, space, fits, level + 1)
    parts: list[TextPiece] = []
    for piece in pieces:
        if parts and fits(parts[-1].text + parts[-1].space + piece.text):
            last = parts.pop()
            parts.append(TextPiece(last.text + last.space + piece.text, piece.space))
        else:
            # A piece too long by itself is cut at the next weaker kind of place.
            deeper = level if level == len(_PLACES) else level + 1
            parts += _pack(piece.text, piece.space, fits, deeper)
    return [*parts[:-1], TextPiece(parts[-1].text, parts[-1].space + space)]


def _pieces(text: str, level: int) -> list[TextPiece]:
    pieces: list[TextPiece] = []
    begin = 0
    for match in _PLACES[level].finditer(text):
        chunk = text[begin : match.end()]
        bare = chunk.rstrip()
        if bare and match.end() < len(text):
            pieces.append(TextPiece(bare, chunk[len(bare) :]))
            begin = match.end()
    return [*pieces, TextPiece(text[begin:], "")]


def _halves(text: str) -> list[TextPiece]:
    middle = len(text) // 2
    return [TextPiece(text[:middle], ""), TextPiece(text[middle:], "")] if middle else [TextPiece(text, "")]
