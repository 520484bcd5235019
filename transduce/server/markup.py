"""Translate HTML and plain text around their markup: text is translated, tags, spacing and marks stay.

A passage with tags inside it is translated whole, and every tag moves to where the words it stood at have gone, by the
model's attention. Tags are kept letter for letter; what is inside script, style, code and the like, or marked
translate="no", is not touched. Where tags would cross each other, the segments between them are translated one by one
instead.

A `Layout` names the sentences of a plain text to translate; `joined` puts their translations where they stood.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from transduce.text.alignment import Alignment
from transduce.text.languages import WITHOUT_SPACES, base_of
from transduce.text.markup import Tag, TaggedText, place_tags
from transduce.text.segment import TextPiece, sentences

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
    def of(cls, text: str, whole: bool = False, language: str = "") -> Layout:
        """Split a text of a language into sentences, or take it as a whole (without the space around it)."""
        if not whole:
            return cls(tuple(bare_sentences(text, language)))
        bare = text.strip()
        begin = text.find(bare)
        return cls(
            (TextPiece("", text[:begin]), TextPiece(bare, text[begin + len(bare) :]))
            if bare
            else (TextPiece("", text),)
        )

    @property
    def texts(self) -> list[str]:
        """The texts to translate, in order."""
        return [part.text for part in self.parts if part.text]

    def joined(self, translations: Sequence[str], target: str) -> str:
        """Join the translations with the text's own spacing."""
        spaces = self.spaces(target)
        return spaces[0] + "".join(text + space for text, space in zip(translations, spaces[1:], strict=True))

    def spaces(self, target: str) -> list[str]:
        """The spaces before the first sentence and after each.

        Between sentences a space is added or removed where the languages differ in that; nothing else changes.
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


def bare_sentences(text: str, language: str = "") -> list[TextPiece]:
    """The sentences of a text, with all that is not translated as spaces."""
    return [bare for part in sentences(text, language) for bare in _bare(part)]


def _bare(part: TextPiece) -> Iterator[TextPiece]:
    """A sentence without the marks and spaces around it."""
    begin, end = _BEFORE.match(part.text).end(), _AFTER.search(part.text).start()  # type: ignore[union-attr]
    if any(map(str.isalnum, part.text[begin:end])):
        if begin:
            yield TextPiece("", part.text[:begin])
        yield TextPiece(part.text[begin:end], part.text[end:] + part.space)
    else:
        yield TextPiece("", part.text + part.space)


_TOKEN = re.compile(
    r"<!--.*?(?:-->|$)|<[!?][^<>]*+>|<(/?)([a-zA-Z][^\s/<>]*+)((?:[^<>\"']|\"[^\"]*+\"|'[^']*+')*+)>", re.DOTALL
)
_INLINE = frozenset(
    "a abbr b bdi bdo cite data del dfn em font i ins label mark q s samp small span strong sub sup time u var".split()
)
_UNTOUCHED = frozenset("script style code pre kbd textarea svg math template noscript".split())
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # hold no text
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>=]+))?""")


_SPACE, _BREAK = re.compile(r"\s+"), re.compile(r"\r\n|\r|\n")


def _unwrapped(space: re.Match[str]) -> str:
    """Collapse white space as a browser does: one line break is a space; a blank line stays, since it is meant."""
    return " " * len(space[0]) if len(_BREAK.findall(space[0])) < 2 else space[0]


@dataclass(frozen=True)
class Passage(TaggedText):
    """Text between block tags, with the inline tags inside; `text` is unescaped."""

    def sentences(self, language: str = "") -> list[Piece]:
        """Split into passages of one sentence and the spaces between them; a tag between two goes where it belongs."""
        found: list[Piece] = []
        begin, rest = 0, deque(self.tags)
        cut = sentences if self.tags else bare_sentences  # a tag around a picture must not lose it
        parts = cut(_SPACE.sub(_unwrapped, self.text), language)
        for number, part in enumerate(parts):
            end = begin + len(part.text)
            after = end + len(part.space)
            text, space = self.text[begin:end], self.text[end:after]
            last = number == len(parts) - 1
            inside = []
            while rest and text and (last or rest[0].at < end or (rest[0].closing and rest[0].at <= after)):
                inside.append(rest.popleft())
            moved = tuple(replace(tag, at=min(max(tag.at - begin, 0), len(text))) for tag in inside)
            found += [Passage(text, moved)] * bool(text) + [html.escape(space)] * bool(space)
            begin = after
        return found

    def stripped(self, before: int) -> Passage:
        """Strip the space around it, of which `before` characters are leading."""
        text = self.text.strip()
        moved = (replace(tag, at=max(0, min(tag.at - before, len(text)))) for tag in self.tags)
        return Passage(text, tuple(moved))

    def split_at_tags(self) -> list[Piece]:
        """Split at the tags: each segment of text by itself, and the tags; punctuation alone stays as it is."""
        found: list[Piece] = []
        ends = [*(tag.at for tag in self.tags), len(self.text)]
        for begin, end, tag in zip([0, *ends], ends, [*self.tags, None], strict=False):
            run = self.text[begin:end]
            found += [Passage(run) if any(map(str.isalnum, run)) else html.escape(run, quote=False)] * bool(run)
            found += [tag.text] if tag is not None else []
        return found


Piece = str | Passage  # what stays as it is, or is translated


def passages(text: str) -> list[Piece]:
    """Split a document into passages and what lies between them."""
    found: list[Piece] = []
    open_text, open_tags, depth, inside = "", [], 0, ""
    for match, between in _tokens(text):
        if inside:
            found.append(between)
        else:
            open_text += html.unescape(between)
        if match is None:
            break
        closing, name = match[1] == "/", (match[2] or "").lower()
        if not inside and name in _INLINE and not _kept(match[3]):
            open_tags.append(Tag(len(open_text), match[0], name, closing))
            continue
        if not inside:
            found += _closed(open_text, open_tags)
            open_text, open_tags = "", []
        found.append(match[0])
        if inside:
            depth += (-1 if closing else 1) * (name == inside)
            inside = inside if depth else ""
        elif _opens_untouched(match, name):
            inside, depth = name, 1
    return [*found, *_closed(open_text, open_tags)]


def _tokens(text: str) -> Iterator[tuple[re.Match[str] | None, str]]:
    """Yield each tag, or None at the end, with the text before it."""
    at = 0
    for match in _TOKEN.finditer(text):
        yield match, text[at : match.start()]
        at = match.end()
    yield None, text[at:]


def _opens_untouched(match: re.Match[str], name: str) -> bool:
    """Whether all up to the end of this element stays as it is."""
    return match[1] != "/" and not match[0].endswith("/>") and _stays(name, match[3] or "")


def _stays(name: str, attributes: str) -> bool:
    return name in _UNTOUCHED or (name not in _VOID and _kept(attributes))


def _kept(attributes: str) -> bool:
    """Whether the attributes say translate="no"."""
    found = ((name.lower(), value.strip("\"'").strip().lower()) for name, value in _ATTRIBUTE.findall(attributes))
    return ("translate", "no") in found


def _closed(text: str, tags: list[Tag]) -> list[Piece]:
    if not text.strip():
        return [with_tags(text, [(tag.at, tag.text) for tag in tags])] if text or tags else []
    return [Passage(text, tuple(tags))]


def with_tags(text: str, tags: Sequence[tuple[int, str]]) -> str:
    """Escape text and insert tags before the given characters."""
    parts, begin = [], 0
    for at, tag in tags:
        parts += [html.escape(text[begin:at], quote=False), tag]
        begin = at
    return "".join([*parts, html.escape(text[begin:], quote=False)])


def placed(passage: Passage, target: str, alignment: Alignment | None) -> str | None:
    """Insert the tags of a passage into its translation, by an alignment of pieces; None where that fails."""
    found = place_tags(passage, target, alignment)
    return None if found is None else with_tags(target, found)
