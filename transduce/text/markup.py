"""Tags inside a text, and where they go in its translation: every tag moves to where the words it stood at have gone.

The words are found by the model's attention, an alignment of pieces. `<b>...</b>` is an element, which goes around all
words that its own are linked to; a tag without a partner keeps its share of the text. Where elements would cross each
other there is no answer, and the caller translates the segments between the tags one by one. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transduce.text.alignment import Alignment

MOST_TAGS = 100  # in a sentence; more cannot be placed sensibly


@dataclass(frozen=True)
class Tag:
    """A tag inside a text, before the character `at` of its text; `name` without its slash."""

    at: int
    text: str
    name: str
    closing: bool


@dataclass(frozen=True)
class TaggedText:
    """A text without its tags, and the tags."""

    text: str
    tags: tuple[Tag, ...] = ()


def place_tags(tagged: TaggedText, target: str, alignment: Alignment | None) -> list[tuple[int, str]] | None:
    """Find the characters of a translation to put each tag before, in order; None where that fails.

    `alignment` is one of pieces.
    """
    if not tagged.tags:
        return []
    if alignment is None or len(tagged.tags) > MOST_TAGS:
        return None
    sources, targets = _spans(alignment.source, tagged.text), _spans(alignment.target, target)
    if sources is None or targets is None:
        return None
    links = [(sources[s], targets[t]) for s, t in alignment.links]
    found = _moved(tagged, target, links, whole=True)
    return _moved(tagged, target, links, whole=False) if found is None else found  # two elements may share a word


def _spans(pieces: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """The span of each piece in the text; None where the pieces do not spell it."""
    spans, at = [], 0
    for piece in pieces:
        bare = piece.replace("▁", " ").strip(" ")
        while at < len(text) and text[at].isspace():
            at += 1
        if not text.startswith(bare, at):
            return None
        spans.append((at, at + len(bare)))
        at += len(bare)
    return spans if not text[at:].strip() else None


Span = tuple[int, int]
Link = tuple[Span, Span]
Element = tuple[int, int, int, int]  # where it begins and ends in the target, and the numbers of its two tags


def _whole_words(tagged: TaggedText, element: Span, target: str, span: Span) -> Span:
    """Grow an element's span in the target to whole words, where it had whole words in the source."""
    begin, end = span
    while not _within_word(tagged.text, element[0]) and _within_word(target, begin):
        begin -= 1
    while not _within_word(tagged.text, element[1]) and _within_word(target, end):
        end += 1
    return begin, end


def _within_word(text: str, at: int) -> bool:
    """Whether letters stand on both sides, in scripts that separate words by spaces."""
    around = text[max(at - 1, 0) : at + 1]
    return (
        len(around) == 2 and at > 0 and all(c.isalnum() and (c < "\u0e00" or "\u1e00" <= c < "\u2000") for c in around)
    )


def _moved(tagged: TaggedText, target: str, links: Sequence[Link], whole: bool) -> list[tuple[int, str]] | None:
    """The target position of each tag, in order, at `whole` words or not; None where elements would cross."""
    pairs, single = elements(tagged.tags)
    spans: list[Element] = []
    for first, last in pairs:
        element = tagged.tags[first].at, tagged.tags[last].at
        span = _reached(tagged, element, target, links, whole)
        if span is None:
            return None
        spans.append((*span, first, last))
    if any(_cross(one, other) for one in spans for other in spans):
        return None
    for number in single:
        at = _end_of_words(tagged, tagged.tags[number].at, target)
        if any(begin < at < end for begin, end, *_ in spans):
            return None
        spans.append((at, at, number, number))
    return _in_order(tagged, spans)


def _reached(tagged: TaggedText, element: Span, target: str, links: Sequence[Link], whole: bool) -> Span | None:
    """The span in the target that the words of an element are linked to; None if they have no links."""
    begin, end = element
    reached = [to for (left, right), to in links if left < end and right > begin]
    if tagged.text[begin:end][-1:].isalnum():  # a comma that the model adds is no part of a word
        reached = [(left, right) for left, right in reached if any(map(str.isalnum, target[left:right]))] or reached
    if not reached and tagged.text[begin:end].strip():
        return None
    left_end = min((left for left, _ in reached), default=_end_of_words(tagged, begin, target))
    right_end = max((right for _, right in reached), default=left_end)
    return _whole_words(tagged, element, target, (left_end, right_end)) if reached and whole else (left_end, right_end)


def _cross(one: Element, other: Element) -> bool:
    """Whether an element leaves the one that it was in, or overlaps one that it came before."""
    if one[2] < other[2] and other[3] < one[3]:
        return not (one[0] <= other[0] and other[1] <= one[1])
    return one[2] < other[2] and one[3] < other[2] and not (one[1] <= other[0] or other[1] <= one[0])


def _in_order(tagged: TaggedText, spans: Sequence[Element]) -> list[tuple[int, str]]:
    """Sort tags by position; at one position elements that end come first, the innermost of them before the others."""
    marks: list[tuple[tuple[int, int, int], str]] = []
    for begin, end, first, last in spans:
        marks.append(((begin, 0 if begin == end and first == last else 1, first), tagged.tags[first].text))
        if first != last:
            # An element without text ends right after it begins.
            order = (end, 1, last) if begin == end else (end, -1, last)
            marks.append((order, tagged.tags[last].text))
    return [(order[0], text) for order, text in sorted(marks, key=lambda mark: mark[0])]


def elements(tags: Sequence[Tag]) -> tuple[list[tuple[int, int]], list[int]]:
    """Pairs of tags that belong together, by number, and tags without a partner in the tagged."""
    pairs: list[tuple[int, int]] = []
    opened: list[int] = []
    single = []
    for number, tag in enumerate(tags):
        if not tag.closing:
            opened.append(number)
            continue
        partner = next((index for index in reversed(opened) if tags[index].name == tag.name), None)
        if partner is None:
            single.append(number)
        else:
            opened.remove(partner)
            pairs.append((partner, number))
    return pairs, [*single, *opened]


def _end_of_words(tagged: TaggedText, at: int, target: str) -> int:
    """Map a source position to the target by its share of the text, at the nearest space before."""
    if not tagged.text[:at].strip():
        return 0
    if not tagged.text[at:].strip():
        return len(target)
    guess = round(at / len(tagged.text) * len(target))
    before = target.rfind(" ", 0, guess)
    while before < 0 and _within_word(target, guess):
        guess -= 1
    return before + 1 if before >= 0 else guess
