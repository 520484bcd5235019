"""Cut a text that is too long for a model into parts at the best places, so that nothing is dropped.

Sentence ends first, then commas and the like, then spaces, then anywhere. Joining the parts with the spaces that
stood between them gives the text back exactly.

A text in sentences, with all that stands between them: line breaks, indents, spaces. Imports no torch.

Rules, not a model: stops end a sentence unless the word before them is an abbreviation, an initial or an ordinal, or
the text goes on in lower case. Joining the parts with their spaces gives the text back exactly.

Sentences of like length side by side, as many as a budget of padded tokens allows. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


# Stops of the scripts in use, with the quotes and brackets that close after them; spaces must follow those of the West.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？｡]++[”’」』）]*+")
_LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")  # whatever str.splitlines takes for a break
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof sr jr st vs etc inc ltd co corp dept est approx fig no nos vol pp ed eds al cf e.g i.e a.m p.m"
    " u.s jan feb mar apr jun jul aug sep sept oct nov dec bzw ca ggf hr fr frl nr str usw vgl z.b d.h u.a s.o i.d.r"
    " abb bd ff mme mlle av env p.ej sra srta dra ud uds ej pág sig.ra dott avv ecc tel".split()
)


def sentences(text: str) -> list[TextPiece]:
    """The sentences of a text, each with the white space after it; space before the first is a part without text."""
    spans = [span for line in _LINE.finditer(text) for span in _spans(text, *line.span())]
    begins = [begin for begin, _ in spans] + [len(text)]
    parts = [TextPiece("", text[: begins[0]])] if begins[0] else []
    return parts + [
        TextPiece(text[begin:end], text[end:after]) for (begin, end), after in zip(spans, begins[1:], strict=True)
    ]


def _spans(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """From where to where the sentences of a line stand, without the space around them."""
    stops = [stop.end() for stop in _END.finditer(text, begin, end) if _ends(text, begin, stop)]
    for left, right in pairwise([begin, *stops, end]):
        bare = text[left:right].strip()
        if bare:
            at = text.index(bare, left)
            yield at, at + len(bare)


def _ends(text: str, begin: int, stop: re.Match[str]) -> bool:
    """Whether a sentence is over at these stops."""
    if stop[0][0] not in ".…":
        return True
    following = text[stop.end() : stop.end() + 80].lstrip()[:1]
    if following.islower():
        return False
    if stop[0] != ".":
        return True
    word = text[max(begin, stop.start() - 40) : stop.start()].rsplit(None, 1)[-1:]
    bare = word[0].lower().lstrip("(\"'“„«[") if word else ""
    initial = re.fullmatch(r"(?:\w\.)*\w", bare) is not None and bare[-1:].isalpha()  # A, and U.S.A
    ordinal = bare.isdigit() and len(bare) <= 2
    return not (initial or ordinal or bare in _ABBREVIATIONS)


def group_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Numbers of sentences in groups, the longest first; a sentence longer than the budget stands alone."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
