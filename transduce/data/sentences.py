"""A text in sentences, with all that stands between them: line breaks, indents, spaces. Imports no torch.

Rules, not a model: stops end a sentence unless the word before them is an abbreviation, an initial or an ordinal, or
the text goes on in lower case. Joining the parts with their spaces gives the text back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from transduce.data.segment import TextPiece

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
