"""What is done around one text so that nothing in it is lost: spans that are no language survive letter for letter.

A safeguard is a generator that knows no model. It yields lists of `Decode`, texts for the model to translate, gets
their `Translation`s, and returns the translation of its text. The translator drives those of many texts side by side,
so that each round is one batch.

Spans (`text/protect.py`) become marks that the model copies: symbols of its own, if its vocabulary has them, else names
or numbers such as T1 and 4711 that do not occur in the text. Beam search is held to write each mark, and what comes
back is checked: each mark once, as a word of its own. Otherwise other marks are tried, and at last the text between the
spans is translated by itself. Tags in pairs, such as <b> and </b>, are no words: they are left out, and put where the
words between them have gone (`text/markup.py`). Imports no torch.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from transduce.engines import Translation
from transduce.text.alignment import Alignment, Unit
from transduce.text.markup import Tag, TaggedText, elements, place_tags
from transduce.text.protect import MARKS, ProtectedSpan
from transduce.text.segment import TextPiece, split_long

# Marks for models that have learned none, best first. Numbers are alike in capitals and small letters.
NAMES = tuple(f"T{number}" for number in range(1, 10))
NUMBERS = ("4711", "5823", "6934", "7145", "8256", "9367", "2478", "3589", "1692")
MARKED, AROUND = "marks", "around"  # how spans were kept: `Translation.protection`
_PLACE = 0xE000  # private characters that stand for spans while a text is cut


@dataclass(frozen=True)
class Decode:
    """A text for the model to translate with the options of the `number`-th text requested.

    `include`: words that it must also contain, by beam search. `prefix` and `align` replace the requested ones.
    """

    text: str
    number: int
    include: tuple[str, ...] = ()
    prefix: str | None = None
    align: Unit | None = None


Safeguard: TypeAlias = Generator[list[Decode], list[Translation], Translation]


def as_it_is(text: str, number: int) -> Safeguard:
    """Translate a text that needs no safeguard."""
    (found,) = yield [Decode(text, number)]
    return found


@dataclass(frozen=True)
class Protection:
    """How the spans of the `number`-th text requested are kept.

    `symbols`: the vocabulary has `MARKS`. `beam`: the request's own search is a beam search. `bound`: the request has
    words that the translation must hold, so that it cannot be put together from parts. `aligned`: it wants an
    alignment. `fits` says whether the model reads a text at once.
    """

    number: int
    symbols: bool
    beam: bool
    bound: bool
    aligned: bool
    fits: Callable[[str], bool]

    def translate(self, text: str, spans: Sequence[ProtectedSpan], prefix: str = "") -> Safeguard:
        """Translate a text in parts that the model reads at once, keeping its spans."""
        begin, end = _edges(text, spans)
        inner = [span.moved(-begin) for span in spans if begin <= span.start < end]
        parts = _cut(text[begin:end], inner, self.fits)
        if len(parts) == 1 or self.bound:
            whole = yield from self._part(text[begin:end], inner, prefix)
            return whole if end - begin == len(text) else _wrapped(whole, text[:begin], text[end:])
        found = yield from together([self._part(part.text, own) for part, own in parts])
        joined = "".join(made.text + part.space for made, (part, _) in zip(found, parts, strict=True))
        return _joined(found, text[:begin] + joined.rstrip() + text[end:])

    def _part(self, text: str, spans: Sequence[ProtectedSpan], prefix: str = "") -> Safeguard:
        if not spans:
            return (yield from as_it_is(text, self.number))
        if not any(map(str.isalpha, "".join(_between(text, spans)))):
            return Translation(text, protection=AROUND)
        for masked, include in self._attempts(text, spans):
            align: Unit | None = "pieces" if masked.tags else None
            (found,) = yield [Decode(masked.text, self.number, include, masked.hidden(prefix), align)]
            restored = masked.restored(found)
            if restored is not None:
                return restored
            if not (found.text or found.finished):
                return found  # the request was cancelled
        return (yield from as_it_is(text, self.number) if self.bound else _around(text, spans, self.number))

    def _attempts(self, text: str, spans: Sequence[ProtectedSpan]) -> Iterator[tuple[Masked, tuple[str, ...]]]:
        """Yield the text with marks, the best first, and the marks that a beam search is held to write."""
        tags = [] if self.aligned or self.bound else [tag for pair in tag_pairs(text, spans) for tag in pair]
        for marks in self._marks(text, spans, len(spans) - len(tags)):
            masked = Masked.of(text, spans, marks, tags)
            if marks and not self.beam:
                yield masked, ()
            yield masked, marks

    def _marks(self, text: str, spans: Sequence[ProtectedSpan], count: int) -> Iterator[tuple[str, ...]]:
        """Yield sets of marks that do not occur in the text, the best first."""
        folded, shouted = text.lower(), "".join(_between(text, spans)).isupper()
        schemes = [MARKS] * self.symbols + ([NUMBERS] if shouted else [NAMES, NUMBERS])
        for scheme in schemes if count else schemes[:1]:
            free = [mark for mark in scheme if mark.lower() not in folded]
            if len(free) >= count:
                yield tuple(free[:count])


@dataclass(frozen=True)
class Masked(TaggedText):
    """A text with marks in place of its spans, and its tags in pairs."""

    marks: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()  # what each mark must look like in a translation

    @classmethod
    def of(cls, text: str, spans: Sequence[ProtectedSpan], marks: Sequence[str], tags: Sequence[Tag] = ()) -> Masked:
        """Replace each span by its mark; those where a tag begins are left out."""
        made, begin, left = "", 0, {tag.at: tag for tag in tags}
        kept, patterns, placed, rest = [], [], [], iter(marks)
        for span in spans:
            made += text[begin : span.start]
            begin = span.stop
            if span.start in left:
                placed.append(replace(left[span.start], at=len(made)))
                continue
            mark = next(rest)
            made += mark
            kept.append(text[span.start : span.stop])
            patterns.append(_alone(mark, text[span.start - 1 : span.start], text[span.stop : span.stop + 1]))
        return cls(made + text[begin:], tuple(placed), tuple(marks), tuple(kept), tuple(patterns))

    def hidden(self, prefix: str) -> str | None:
        """The forced beginning of a translation with marks in place of the spans in it; None if there is none."""
        for mark, span in zip(self.marks, self.spans, strict=True):
            prefix = prefix.replace(span, mark, 1)
        return prefix or None

    def restored(self, found: Translation) -> Translation | None:
        """Put spans and tags back, if the translation has each mark once; alternatives that have not are dropped."""
        tags = place_tags(self, found.text, found.alignment)
        text = self._restored(found.text, tags) if tags is not None else None
        if text is None:
            return None
        others = ((other, None if tags else self._restored(other.text)) for other in found.alternatives)
        pairs = dict(zip(self.marks, self.spans, strict=True))
        return replace(
            found,
            text=text,
            alternatives=tuple(replace(other, text=kept) for other, kept in others if kept is not None),
            alignment=None if found.alignment is None or tags else found.alignment.with_units(pairs),
            protection=MARKED,
        )

    def _restored(self, text: str, tags: Sequence[tuple[int, str]] = ()) -> str | None:
        places = [(at, at, number, tag) for number, (at, tag) in enumerate(tags)]
        for mark, pattern, span in zip(self.marks, self.patterns, self.spans, strict=True):
            matches = list(pattern.finditer(text))
            if len(matches) != 1 or text.count(mark) != 1:
                return None
            places.append((matches[0].start(), matches[0].end(), len(tags), span))
        parts, begin = [], 0
        for start, stop, _, kept in sorted(places):
            if start < begin:
                return None  # a tag within a mark
            parts += [text[begin:start], kept]
            begin = stop
        return "".join([*parts, text[begin:]])


_TAG = re.compile(r"<(/?)([A-Za-z][\w:-]*|\d+)[^<>]*(?<!/)>")


def tag_pairs(text: str, spans: Sequence[ProtectedSpan]) -> list[tuple[Tag, Tag]]:
    """List the tags among the spans that belong together, each at its place in the text."""
    found = []
    for span in spans:
        match = _TAG.fullmatch(text, span.start, span.stop)
        if match:
            found.append(Tag(span.start, match[0], match[2].lower(), match[1] == "/"))
    pairs, _ = elements(found)
    return [(found[first], found[last]) for first, last in pairs]


def together(safeguards: Sequence[Safeguard]) -> Generator[list[Decode], list[Translation], list[Translation]]:
    """Run several safeguards as one, side by side, and return the translation of each."""
    results: dict[int, Translation] = {}
    answers: dict[int, list[Translation] | None] = dict.fromkeys(range(len(safeguards)))
    while answers:
        requests: dict[int, list[Decode]] = {}
        for number, answer in answers.items():
            try:
                requests[number] = next(safeguards[number]) if answer is None else safeguards[number].send(answer)
            except StopIteration as end:
                results[number] = end.value
        if not requests:
            break
        found = iter((yield [decode for decodes in requests.values() for decode in decodes]))
        answers = {number: [next(found) for _ in decodes] for number, decodes in requests.items()}
    return [results[number] for number in range(len(safeguards))]


def _edges(text: str, spans: Sequence[ProtectedSpan]) -> tuple[int, int]:
    """Where a text begins and ends without the tags and emoji around it, which stay where they are."""
    partner = {first.at: last.at for first, last in tag_pairs(text, spans)}
    paired = {*partner, *partner.values()}
    rest = deque(span for span in spans if span.kind in ("tag", "emoji"))
    begin, end = 0, len(text)
    while rest:
        first, last = rest[0], rest[-1]
        at_begin, at_end = not text[begin : first.start].strip(), not text[last.stop : end].strip()
        if at_begin and first.start not in paired:
            begin = rest.popleft().stop
        elif at_end and last.start not in paired:
            end = rest.pop().start
        elif at_begin and at_end and partner.get(first.start) == last.start:
            begin, end = rest.popleft().stop, rest.pop().start
        else:
            break
    inner = text[begin:end]
    return begin + (len(inner) - len(inner.lstrip())) * (begin > 0), end - (len(inner) - len(inner.rstrip())) * (
        end < len(text)
    )


def _wrapped(found: Translation, before: str, after: str) -> Translation:
    """A translation and its alternatives with the tags and emoji around it."""
    others = tuple(_wrapped(other, before, after) for other in found.alternatives)
    return replace(found, text=before + found.text + after, alternatives=others, protection=found.protection or MARKED)


def _cut(
    text: str, spans: Sequence[ProtectedSpan], fits: Callable[[str], bool]
) -> list[tuple[TextPiece, list[ProtectedSpan]]]:
    """Cut a text that the model cannot read at once, never within a span; parts with their own spans."""
    places = "".join(map(chr, range(_PLACE, _PLACE + len(spans))))
    parts, at = [], 0
    for piece in split_long(Masked.of(text, spans, places).text, fits):
        own, begin = [], at
        for place in filter(lambda letter: letter in places, piece.text):
            span = spans[ord(place) - _PLACE]
            own.append(span.moved(-begin))
            at += span.stop - span.start - 1
        at += len(piece.text)
        parts.append((TextPiece(text[begin:at], piece.space), own))
        at += len(piece.space)
    return parts


def _around(text: str, spans: Sequence[ProtectedSpan], number: int) -> Safeguard:
    """Translate the text between the spans by itself, each stretch with the spaces and marks around it."""
    kept = [*(text[span.start : span.stop] for span in spans), ""]
    stretches = list(zip(_between(text, spans), kept, strict=True))
    bare = [_WORDS.search(stretch) for stretch, _ in stretches]
    found = iter((yield [Decode(match[0], number) for match in bare if match]))
    parts: list[Translation] = []
    for (stretch, span), match in zip(stretches, bare, strict=True):
        if match:
            made = next(found)
            text = stretch[: match.start()] + _like_a_part(match[0], made.text) + stretch[match.end() :]
            parts.append(replace(made, text=text))
        else:
            parts.append(_copied(stretch))
        parts.append(_copied(span))
    return replace(_joined(parts, "".join(part.text for part in parts)), protection=AROUND)


_WORDS = re.compile(r"[^\W_](?:.*[^\W_])?[.!?。！？…]*", re.DOTALL)


def _like_a_part(source: str, target: str) -> str:
    """Take away the full stop that a model gives to what it takes for a sentence."""
    return target if source[-1:] in ".。" else target.rstrip(".。")


def _copied(text: str) -> Translation:
    units = (text,) if text.strip() else ()
    return Translation(text, alignment=Alignment.linked(units, units, [(0, 0, 1.0)] if units else []))


def _joined(parts: Sequence[Translation], text: str) -> Translation:
    """The translations of parts as one, with an alignment if all of them that hold words have one."""
    aligned = [part.alignment for part in parts if part.alignment is not None]
    whole = Alignment.chained(aligned) if len(aligned) == len(parts) else None
    made = Translation.joined(parts, text, whole)
    ways = {part.protection for part in parts}
    return replace(made, protection=AROUND if AROUND in ways else MARKED if MARKED in ways else "")


def _between(text: str, spans: Sequence[ProtectedSpan]) -> list[str]:
    """The text before each span and after the last."""
    ends = [0, *(end for span in spans for end in (span.start, span.stop)), len(text)]
    return [text[begin:end] for begin, end in zip(ends[::2], ends[1::2], strict=True)]


def _alone(mark: str, before: str, after: str) -> re.Pattern[str]:
    """A pattern of a mark that is no part of a longer word or number, unless its span was part of a word."""
    if not mark[0].isalnum():
        return re.compile(re.escape(mark))
    left = "" if re.match(r"\w", before, re.ASCII) else r"(?<![0-9A-Za-zÀ-ɏ])(?<!\d[.,:])"
    right = "" if re.match(r"\w", after, re.ASCII) else r"(?![0-9A-Za-zÀ-ɏ])(?![.,:]\d)"
    return re.compile(left + re.escape(mark) + right)
