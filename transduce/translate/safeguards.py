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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from transduce.engines import Translation
from transduce.text.alignment import Alignment, Unit
from transduce.text.faults import problems
from transduce.text.markup import Tag, TaggedText, elements, place_tags
from transduce.text.numbers import Number, NumberCheck, find_numbers, missing_numbers, write_number
from transduce.text.protect import MARKS, ProtectedSpan, icu_message, protected_spans
from transduce.text.segment import TextPiece, split_long

# Marks for models that have learned none, best first. Numbers are alike in capitals and small letters.
NAMES = tuple(f"T{number}" for number in range(1, 10))
NUMBERS = ("4711", "5823", "6934", "7145", "8256", "9367", "2478", "3589", "1692")
MARKED, AROUND = "marks", "around"  # how spans were kept: `Translation.protection`
NUMBERS_CHANGED = "numbers"  # a warning: numbers of the translation are not those of the text
SEVERAL, AGREEING, COPIED = 4, 1.0, 4.0  # translations of a word; nats for one that is translated back, and for a copy
LABEL_WORDS, LABEL_LETTERS = 3, 40
_CLAUSE_END = re.compile(r"[,;:.!?][\s]+\S|[，；：。！？]+\S")
_SINGLE = re.compile(r"[㐀-鿿]{1,4}|(?:(?![㐀-鿿])[^\W\d_]){2,30}(?:[-'’][^\W\d_]{2,30})?")
_PLACE = 0xE000  # private characters that stand for spans while a text is cut


@dataclass(frozen=True)
class Decode:
    """A text for the model to translate with the options of the `number`-th text requested.

    `include`: words that it must also contain, by beam search. `prefix`, `align` and `to` replace the requested ones,
    `n_best` above 1 the search, with `no_repeat` by one that writes no three tokens twice.
    """

    text: str
    number: int
    include: tuple[str, ...] = ()
    prefix: str | None = None
    align: Unit | None = None
    n_best: int = 1
    no_repeat: bool = False
    to: str | None = None


Steps: TypeAlias = Generator[list[Decode], list[Translation], Translation]


def as_it_is(text: str, number: int) -> Steps:
    """Translate a text that needs no safeguard."""
    (found,) = yield [Decode(text, number)]
    return found


def writable_marks(written: Callable[[str], bool]) -> tuple[tuple[str, ...], ...]:
    """The sets of marks that a vocabulary can write, the best first; `MARKS` only where each is a piece."""
    schemes = (tuple(filter(written, scheme)) for scheme in (MARKS, NAMES, NUMBERS))
    return tuple(scheme for scheme in schemes if scheme)


@dataclass(frozen=True)
class Safeguards:
    """The safeguards of the `number`-th text requested, by what its request and its model allow.

    `marks`: those that the vocabulary can write (`writable_marks`). `beam`: the request's own search is a beam
    search. `bound`: the request has words that the translation must hold, so that it cannot be put together from parts.
    `aligned`: it wants an alignment. `fits` says whether the model reads a text at once. `own` are the user's patterns.
    `source` and `target` are the languages, "" if unknown. `ranking`: translations of single words may be ranked,
    since the model also translates back. `held`: the model has a beam search, which may be held to write words.
    `repeating`: what shows faults may be translated again by another search.
    """

    number: int
    marks: tuple[tuple[str, ...], ...]
    beam: bool
    bound: bool
    aligned: bool
    fits: Callable[[str], bool]
    own: tuple[re.Pattern[str], ...] = ()
    source: str = ""
    target: str = ""
    ranking: bool = False
    held: bool = True
    repeating: bool = False

    def translate(self, text: str, spans: Sequence[ProtectedSpan], prefix: str = "") -> Steps:
        """Translate a text, keeping its spans; the cases of its ICU messages are texts of their own."""
        messages = {span: icu_message(text[span.start : span.stop]) for span in spans if span.kind == "icu"}
        known = [(text[span.start : span.stop], message) for span, message in messages.items() if message]
        cases = [
            self.translate(case, protected_spans(case, self.own, in_message=True))
            for _, message in known
            for case in message.texts
        ]
        whole, *rest = yield from together([self._whole(text, spans, prefix), *cases])
        for written, message in known:
            filled = message.filled([made.text for made in rest[: len(message.texts)]])
            rest = rest[len(message.texts) :]
            whole = replace(whole, text=whole.text.replace(written, filled, 1))
        return whole

    def _whole(self, text: str, spans: Sequence[ProtectedSpan], prefix: str) -> Steps:
        """Translate a text in parts that the model reads at once."""
        plain: Translation | None = None
        if not spans:
            plain = yield from self._without_spans(text)
            if self.bound or (self._numbers_of(text, plain).kept and not self._faults_of(text, plain)):
                return plain
        begin, end = _edges(text, spans)
        inner = [span.moved(-begin) for span in spans if begin <= span.start < end]
        parts = _cut(text[begin:end], inner, self.fits)
        if len(parts) == 1 or self.bound:
            whole = yield from self._part(text[begin:end], inner, prefix, plain)
            return whole if end - begin == len(text) else _wrapped(whole, text[:begin], text[end:])
        found = yield from together([self._part(part.text, own) for part, own in parts])
        joined = "".join(made.text + part.space for made, (part, _) in zip(found, parts, strict=True))
        return _joined(found, text[:begin] + joined.rstrip() + text[end:])

    def _without_spans(self, text: str) -> Steps:
        """Translate a text as it is; a single word by the best of several translations, a label as a label."""
        word = text.strip()
        if self.ranking and _SINGLE.fullmatch(word) and not word.isupper():
            return _like_a_label(text, (yield from self._best_of_several(text)))
        found = yield from as_it_is(text, self.number)
        return found if self.bound or self.aligned else _like_a_label(text, found)

    def _best_of_several(self, word: str) -> Steps:
        """Rank the translations of a word by log-probability, by what they are translated back to, and no copy."""
        (found,) = yield [Decode(word, self.number, n_best=SEVERAL)]
        candidates = {_plain(one.text): one for one in (*found.alternatives[::-1], found)}  # the best of equal ones
        texts = list(candidates)
        back = yield [Decode(candidates[text].text, self.number, to=self.source) for text in texts]

        def rank(text: str, again: Translation) -> float:
            copied = text == _plain(word)
            agrees = _plain(again.text) == _plain(word) and not copied
            return candidates[text].log_prob + AGREEING * agrees - COPIED * copied

        _, best = max((rank(text, again), text) for text, again in zip(texts, back, strict=True))
        return replace(candidates[best], alternatives=())

    def _part(
        self, text: str, spans: Sequence[ProtectedSpan], prefix: str = "", plain: Translation | None = None
    ) -> Steps:
        """Translate a part with its spans, and once more where something is wrong; `plain` is known."""
        found = plain if plain is not None else (yield from self._with_spans(text, spans, prefix))
        if self.bound or not (found.text or found.finished):
            return found
        if faults := self._faults_of(text, found):
            found = replace(found, warnings=(*found.warnings, *faults))
            if self.repeating:
                found = yield from self._without_faults(text, spans, found)
        check = self._numbers_of(text, found)
        if check.kept:
            return found
        best, fewest = found, len(check.missing) + len(check.added)
        for masked in self._with_marked_numbers(text, spans, check) if self.held else ():
            (made,) = yield [Decode(masked.text, self.number, masked.marks)]
            restored = masked.restored(made)
            if restored is None:
                continue
            check = self._numbers_of(text, restored)
            if len(check.missing) + len(check.added) < fewest:
                best, fewest = replace(restored, protection=found.protection), len(check.missing) + len(check.added)
            if not fewest:
                return best
        return replace(best, warnings=(*best.warnings, NUMBERS_CHANGED))

    def _without_faults(self, text: str, spans: Sequence[ProtectedSpan], faulty: Translation) -> Steps:
        """Translate again what repeats, runs away, is a copy or in another script; the faulty one if that fails too."""
        if spans:
            around = yield from _around(text, spans, self.number)
            return faulty if self._faults_of(text, around) else around
        (found,) = yield [Decode(text, self.number, n_best=SEVERAL, no_repeat=True)]
        for candidate in (found, *found.alternatives):
            if candidate.finished and not self._faults_of(text, candidate):
                return replace(candidate, alternatives=())
        clauses = _clauses(text)
        if len(clauses) > 1:
            made = yield [Decode(clause.text, self.number) for clause in clauses]
            whole = "".join(one.text + clause.space for one, clause in zip(made, clauses, strict=True))
            joined = Translation.joined(made, whole)
            if joined.finished and not self._faults_of(text, joined):
                return joined
        return faulty

    def _faults_of(self, text: str, found: Translation) -> list[str]:
        return problems(text, found.text, self.target)

    def _numbers_of(self, text: str, found: Translation) -> NumberCheck:
        return missing_numbers(text, found.text, self.source, self.target)

    def _with_marked_numbers(self, text: str, spans: Sequence[ProtectedSpan], check: NumberCheck) -> Iterator[Masked]:
        """Yield the text with marks for the numbers that were lost, then for all."""
        kept, _ = _grouped(text, spans, placing=False)
        all_numbers = [n for n in find_numbers(text, self.source) if n.kind != "words" and not _inside(n, kept)]
        lost = [number for number in all_numbers if number in check.missing]
        for numbers in (lost, all_numbers) if lost and len(lost) < len(all_numbers) else (all_numbers,):
            cuts = sorted([*kept, *(ProtectedSpan("number", n.start, n.stop) for n in numbers)], key=lambda s: s.start)
            written = {n.start: write_number(n, self.target) for n in numbers}
            for marks in self._marks(text, spans, len(cuts), numbers=len(kept) == 0):
                yield Masked.of(text, cuts, marks, written=written)

    def _with_spans(self, text: str, spans: Sequence[ProtectedSpan], prefix: str) -> Steps:
        """Translate a part with marks for its spans, or else the text around them."""
        if not spans:
            return (yield from as_it_is(text, self.number))
        if not any(map(str.isalpha, "".join(_between(text, spans)))):
            return Translation(text, protection=AROUND)
        for masked, include in self._attempts(text, spans):
            align: Unit | None = "pieces" if masked.tags else None
            (found,) = yield [Decode(masked.text, self.number, include, masked.masked_prefix(prefix), align)]
            restored = masked.restored(found)
            if restored is not None:
                return restored
            if not (found.text or found.finished):
                return found  # the request was cancelled
        return (yield from as_it_is(text, self.number) if self.bound else _around(text, spans, self.number))

    def _attempts(self, text: str, spans: Sequence[ProtectedSpan]) -> Iterator[tuple[Masked, tuple[str, ...]]]:
        """Yield the text with marks, the best first, and the marks that a beam search is held to write."""
        kept, tags = _grouped(text, spans, placing=not (self.aligned or self.bound))
        for marks in self._marks(text, spans, len(kept)):
            masked = Masked.of(text, kept, marks, tags)
            if marks and not self.beam:
                yield masked, ()
            if self.held or not marks:
                yield masked, marks

    def _marks(
        self, text: str, spans: Sequence[ProtectedSpan], count: int, numbers: bool = False
    ) -> Iterator[tuple[str, ...]]:
        """Yield sets of marks that do not occur in the text, the best first; `numbers` stand best for numbers."""
        folded, shouted = text.lower(), "".join(_between(text, spans)).isupper()
        schemes = [scheme for scheme in self.marks if not (shouted and scheme[0].lower() != scheme[0])]
        if numbers:
            schemes.sort(key=lambda scheme: scheme[0].isalnum() and not scheme[0].isdigit())
        for scheme in schemes if count else schemes[:1]:
            free = [mark for mark in scheme if mark.lower() not in folded]
            if len(free) >= count:
                yield tuple(free[:count])


@dataclass(frozen=True)
class Masked(TaggedText):
    """A text with marks in place of its spans, and its tags in pairs."""

    marks: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # what is put for each mark: its span, or its number in the target's way
    patterns: tuple[re.Pattern[str], ...] = ()  # what each mark must look like in a translation

    @classmethod
    def of(
        cls,
        text: str,
        spans: Sequence[ProtectedSpan],
        marks: Sequence[str],
        tags: Sequence[Tag] = (),
        written: Mapping[int, str] | None = None,
    ) -> Masked:
        """Replace each span by its mark, and leave the tags out; `written` is another text for the span at a place."""
        made, begin, placed, patterns = "", 0, [], []
        cuts: list[tuple[int, int, str | Tag]] = []
        cuts += [(span.start, span.stop, mark) for span, mark in zip(spans, marks, strict=True)]
        cuts += [(tag.at, tag.at + len(tag.text), tag) for tag in tags]
        for start, stop, cut in sorted(cuts, key=lambda cut: cut[:2]):
            made += text[begin:start]
            begin = stop
            if isinstance(cut, Tag):
                placed.append(replace(cut, at=len(made)))
            else:
                made += cut
                patterns.append(_alone(cut, text[start - 1 : start], text[stop : stop + 1]))
        kept = tuple(text[span.start : span.stop] for span in spans)
        others = tuple((written or {}).get(span.start, own) for span, own in zip(spans, kept, strict=True))
        return cls(made + text[begin:], tuple(placed), tuple(marks), kept, others, tuple(patterns))

    def masked_prefix(self, prefix: str) -> str | None:
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
        of_source = dict(zip(self.marks, self.spans, strict=True))
        of_target = dict(zip(self.marks, self.written, strict=True))
        return replace(
            found,
            text=text,
            alternatives=tuple(replace(other, text=kept) for other, kept in others if kept is not None),
            alignment=None if found.alignment is None or tags else found.alignment.with_units(of_source, of_target),
            protection=MARKED,
        )

    def _restored(self, text: str, tags: Sequence[tuple[int, str]] = ()) -> str | None:
        places = [(at, at, number, tag) for number, (at, tag) in enumerate(tags)]
        for mark, pattern, span in zip(self.marks, self.patterns, self.written, strict=True):
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


_TAG = re.compile(r"<(/?)([A-Za-z][\w:-]*|\d+)[^<>]*(?<!/)>|\[(/?)([a-z]+)(?:=[^\[\]]*)?\]")


def tag_pairs(text: str, spans: Sequence[ProtectedSpan]) -> list[tuple[Tag, Tag]]:
    """List the tags among the spans that belong together, each at its place in the text, markup such as ** too."""
    found, opened = [], set[str]()
    for span in spans:
        written = text[span.start : span.stop]
        if span.kind == "tag" and (match := _TAG.fullmatch(written)):
            found.append(Tag(span.start, written, (match[2] or match[4]).lower(), bool(match[1] or match[3])))
        elif span.kind == "markup" and not written.startswith("#"):
            name = "[" if written[0] in "![]" else written
            closing = written[0] == "]" or name in opened
            opened ^= {name} if name != "[" else set()
            found.append(Tag(span.start, written, name, closing))
    pairs, _ = elements(found)
    return [(found[first], found[last]) for first, last in pairs]


def _grouped(text: str, spans: Sequence[ProtectedSpan], placing: bool) -> tuple[list[ProtectedSpan], list[Tag]]:
    """The spans to mark and the tags to place: those that have words between them, if they are placed at all.

    Spans that touch are one.
    """
    tags: dict[int, Tag] = {}
    for first, last in tag_pairs(text, spans) if placing else ():
        inner = [span for span in spans if first.at < span.start < last.at]
        between = ProtectedSpan("tag", first.at, first.at + len(first.text))
        words = _between(text[: last.at], [between, *inner])[1:]
        if any(map(str.isalnum, "".join(words))):
            tags |= {first.at: first, last.at: last}
    kept: list[ProtectedSpan] = []
    for span in spans:
        if span.start in tags:
            continue
        if kept and kept[-1].stop == span.start:
            span = replace(span, start=kept.pop().start)
        kept.append(span)
    return kept, list(tags.values())


def together(safeguards: Sequence[Steps]) -> Generator[list[Decode], list[Translation], list[Translation]]:
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
    rest = deque(span for span in spans if span.kind in ("tag", "markup", "emoji"))
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


def _around(text: str, spans: Sequence[ProtectedSpan], number: int) -> Steps:
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


def _plain(word: str) -> str:
    return word.casefold().strip(" .,!?;:，。！？；：")


def _like_a_label(source: str, found: Translation) -> Translation:
    """Give the translation of a few words without a full stop the end and the first capital that they have."""
    source, text = source.strip(), found.text
    if len(source.split()) > LABEL_WORDS or len(source) > LABEL_LETTERS or not source[-1:].isalnum() or not text:
        return found
    if not source.endswith("."):
        text = text.rstrip(" .,;:，。；：") or text
    if source[0].isupper() and text[0].islower():
        text = text[0].upper() + text[1:]
    return found if text == found.text else replace(found, text=text)


def _clauses(text: str) -> list[TextPiece]:
    """Cut a text at all marks between clauses."""
    return split_long(text, lambda part: not _CLAUSE_END.search(part))


def _inside(number: Number, spans: Sequence[ProtectedSpan]) -> bool:
    """Whether a number overlaps a span that is kept as it is."""
    return any(span.start < number.stop and number.start < span.stop for span in spans)


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
