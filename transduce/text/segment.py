"""Sentence splitting, splitting of texts too long for a model, and grouping by length. Imports no torch.

`split_long` cuts at sentence ends first, then at commas and the like, then at spaces, then anywhere.

`sentences` splits by rules, not a model: stops end a sentence unless the word before them is an abbreviation, an
initial or an ordinal, or the text continues in lower case. It keeps everything between sentences: line breaks, indents,
spaces.

In both, joining the parts with their spaces restores the text exactly.

`group_by_length` batches sentences of similar length under a budget of padded tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Each pattern matches up to a cut point and the white space that follows. A run of stops is matched once, from its
# start and without backtracking: ten thousand dots in a row take no longer than other text.
_PLACES = (
    re.compile(r"(?:(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s+|[。！？]+[”’」』）]*\s*)"),
    re.compile(r"(?:[,;:–—]\s+|[，；：、]\s*)"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True)
class TextPiece:
    """A piece of text, and the white space after it."""

    text: str
    space: str


def split_long(text: str, fits: Callable[[str], bool]) -> list[TextPiece]:
    """Split `text` into parts that each fit, packed greedily; the whole text if it fits."""
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
            # A single piece that is too long is cut at the next weaker kind of boundary.
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


# Stops of many scripts, with closing quotes and brackets; Western stops must be followed by a space.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？｡]++[”’」』）]*+")
_LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")  # every line break of str.splitlines
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof sr jr st vs etc inc ltd co corp dept est approx fig no nos vol pp ed eds al cf e.g i.e a.m p.m"
    " u.s jan feb mar apr jun jul aug sep sept oct nov dec bzw ca ggf hr fr frl nr str usw vgl z.b d.h u.a s.o i.d.r"
    " abb bd ff mme mlle av env p.ej sra srta dra ud uds ej pág sig.ra dott avv ecc tel".split()
)


def sentences(text: str) -> list[TextPiece]:
    """Split a text into sentences, each with the white space after it; leading space is a part without text."""
    spans = [span for line in _LINE.finditer(text) for span in _spans(text, *line.span())]
    begins = [begin for begin, _ in spans] + [len(text)]
    parts = [TextPiece("", text[: begins[0]])] if begins[0] else []
    return parts + [
        TextPiece(text[begin:end], text[end:after]) for (begin, end), after in zip(spans, begins[1:], strict=True)
    ]


def _spans(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the span of each sentence in a line, without surrounding space."""
    stops = [stop.end() for stop in _END.finditer(text, begin, end) if _ends(text, begin, stop)]
    for left, right in pairwise([begin, *stops, end]):
        bare = text[left:right].strip()
        if bare:
            start = text.index(bare, left)
            yield start, start + len(bare)


def _ends(text: str, begin: int, stop: re.Match[str]) -> bool:
    """Whether a sentence ends at these stops."""
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
    """Yield indices of sentences in groups, the longest first; a sentence over the budget is a group of its own."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
