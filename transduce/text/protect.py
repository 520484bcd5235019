"""Placeholders for protected spans: a URL, `{name}` or number becomes one symbol that the model copies.

A mark is a string such as `⟦3⟧`. The tokenizer holds every mark as a symbol of its own (`tokenizer.symbols`), so that
normalization does not change it and it is never split: U+27E6 and U+27E7 are their own NFKC forms and occur in no
training text. `mark_pair` replaces a span on both sides of a training pair where both have it equally often. The
numbers of the marks are drawn by a hash: a model learns to copy any mark to its position, whatever its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

MARKS = tuple(f"⟦{number}⟧" for number in range(16))

_MARK = re.compile("⟦[0-9]*⟧?")
_EXTENSIONS = (
    "c|cfg|conf|cpp|css|csv|docx?|env|exe|gif|go|gz|html?|ini|java|jpe?g|js|json|jsx|lock|log|md|mjs|mp3|mp4|odt|pdf|php"
    "|png|pptx?|py|rb|rs|rst|sh|sql|svg|tar|toml|tsx?|txt|wasm|xlsx?|xml|ya?ml|zip"
)
_EMOJI = "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u2b50\u2b55]"

_NAME = "[A-ZÀ-Þ][a-zß-ÿ’'A-Z-]+[a-zß-ÿ]"


@dataclass(frozen=True)
class Rule:
    """A kind of span: its pattern, and the share of training pairs with one that get a mark.

    `learned` kinds are ordinary language. They are marked in some training pairs, so that the model sees marks in prose
    of every kind, and are never protected in translation.
    """

    kind: str
    pattern: str
    share: float = 0.5
    learned: bool = False


# The first matching rule at a position wins, so specific kinds come first. \w and \d are ASCII: in Chinese a
# span touches its neighbours.
RULES = (
    Rule("code", r"`[^`]+`"),
    Rule("url", r"(?:https?|ftp)://[!-~]*[\w/=#&~-]|\bwww\.[\w.-]+\.\w{2,}(?:/[!-~]*[\w/=#&~-])?"),
    Rule("email", r"(?<![\w.%+-])[\w.%+-]+@[\w-]+(?:\.[\w-]+)+"),
    Rule("tag", r"</?[A-Za-z][^<>]{0,120}>|</?\d{1,2} ?/?>"),
    Rule("placeholder", r"\{\{[^{}]{1,60}\}\}|[$#%]?\{ ?[\w.:$-]{0,40} ?\}|\$\[\w+\]|\$\w+\$|&[a-z]{2,8};"),
    Rule(
        "format", r"(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+#0]*(?:\d+|\*)?(?:\.\d+)?[sdiufxXeEgGcr@](?!\w)|%[A-Z]{3,}\b|%\d\b"
    ),
    Rule("path", r"(?<![\w/.])(?:[A-Za-z]:\\|~/|\.{1,2}/|/)[\w.@+-]+(?:[/\\][\w.@+-]+)*[/\\]?(?<!\.)"),
    Rule("file", rf"(?<![\w.])[\w-]*\.?[\w-]+\.(?:{_EXTENSIONS})\b(?!\.\w)"),
    Rule("flag", r"(?<![\w-])--[a-z][\w-]*(?:=[\w./-]+)?"),
    Rule("call", r"\b[A-Za-z_][\w.]*\(\)"),
    Rule("identifier", r"\b\w*[A-Za-z]\w*_\w+|\b_+[a-z]\w*|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b|\b(?:[A-Z][a-z0-9]+){2,}\b"),
    Rule("iban", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"),
    Rule("reference", r"\b[A-Z]{2,}-?\d[\d-]*\b|\b\d{4}-\d{4,}\b|\b\d{4}-\d\d-\d\d\b"),
    Rule("version", r"\bv?\d+(?:\.\d+){2,}(?:[-+]\w[\w.]*\w)?\b|\bv\d+(?:\.\d+)+\b"),
    Rule("phone", r"\+\d[\d ()/-]{5,20}\d\b|\(\d{2,5}\)(?:[ /-]?\d{2,6}){2,4}\b|(?<!\w)\d{2,5}(?:[ /-]\d{2,6}){2,4}\b"),
    Rule("long_number", r"(?<![\w.,])\d{5,}(?![.,]?\d)\b"),
    Rule("handle", r"(?<![\w@])@[A-Za-z]\w+"),
    Rule("hashtag", r"(?<![\w#&])#[A-Za-z]\w+"),
    Rule("emoji", rf"{_EMOJI}(?:[\ufe0f\u200d\U0001f3fb-\U0001f3ff]|{_EMOJI})*"),
    Rule("number", r"(?<![\w.,])\d+(?:[.,:]\d+)*(?![.,]?\d)\b", share=0.12, learned=True),
    Rule("name", rf"(?!(?:All|Also|But|For|Man|Once|Was)\b){_NAME}(?: {_NAME})*", share=0.12, learned=True),
)
_BY_KIND = {rule.kind: rule for rule in RULES}
_LARGEST = [max(rule.share for rule in RULES if rule.learned == learned) for learned in (False, True)]
# A text without one of these has no span to protect. Most sentences have none, and matching all rules is slow.
_HINT = re.compile(rf"[\d`@{{<$%&/\\_#~]|[a-z][A-Z]|[A-Z][a-z0-9]+[A-Z]|[\w-]\.\w|--|\(\)|{_EMOJI}", re.ASCII)
_WORD = re.compile(r"[0-9A-Za-z_À-ÖØ-öø-ÿ]")
MOST_EQUAL = 4  # at most so many equal spans, such as </b>, in a pair


def _compiled(rules: Iterable[Rule]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{rule.kind}>{rule.pattern})" for rule in rules), re.ASCII)


_ALL, _LEARNED = _compiled(RULES), _compiled(rule for rule in RULES if rule.learned)
_PROTECTED = _compiled(rule for rule in RULES if not rule.learned)


@dataclass(frozen=True)
class ProtectedSpan:
    """A span of a text, and the kind of rule that matched it."""

    kind: str
    start: int
    stop: int

    @property
    def learned(self) -> bool:
        return _BY_KIND[self.kind].learned

    def moved(self, by: int) -> ProtectedSpan:
        """The span in a text with so many more characters before it."""
        return ProtectedSpan(self.kind, self.start + by, self.stop + by)


def find_spans(text: str) -> Iterator[ProtectedSpan]:
    """Yield the spans of a text from left to right, without overlap."""
    for match in (_ALL if _HINT.search(text) else _LEARNED).finditer(text):
        yield ProtectedSpan(str(match.lastgroup), match.start(), match.end())


def find_protected(text: str) -> list[ProtectedSpan]:
    """List the spans that translation keeps."""
    found = _PROTECTED.finditer(text) if _HINT.search(text) else ()
    return [ProtectedSpan(str(match.lastgroup), match.start(), match.end()) for match in found]


def mark_pair(source: str, target: str, scale: float = 1.0) -> tuple[str, str]:
    """Mark the spans that both texts have equally often, in a share of the pairs drawn by hash.

    `scale` multiplies the shares of all rules: 0 marks nothing, 2 every pair with a protected span.
    """
    digest = blake2b(f"{source}\0{target}".encode(), digest_size=16).digest()
    draws = [int.from_bytes(digest[at : at + 4], "little") / 2**32 for at in (0, 4)]  # protected kinds, learned kinds
    active = [draw < scale * share for draw, share in zip(draws, _LARGEST, strict=True)]
    if not active[1] and not (active[0] and _HINT.search(source)):
        return source, target
    chosen = dict[str, int]()
    for span in find_spans(source):
        if draws[span.learned] < scale * _BY_KIND[span.kind].share:
            chosen |= _common(span, source, target)
    first, step = digest[8] % len(MARKS), digest[9] | 1  # odd: every number comes once
    texts = [text for text, count in chosen.items() for _ in range(count)][: len(MARKS)]
    marks: dict[str, list[str]] = {}
    for number, text in enumerate(texts):
        marks.setdefault(text, []).append(MARKS[(first + number * step) % len(MARKS)])
    marked = _replaced(source, marks), _replaced(target, marks)
    return marked if all(_marks_in(side) == sorted(chain(*marks.values())) for side in marked) else (source, target)


def _replaced(text: str, marks: Mapping[str, Sequence[str]]) -> str:
    """Replace the first occurrences of each span by its marks, in one pass: a mark contains a number, itself a span."""
    left = {span: iter(marks_of_span) for span, marks_of_span in marks.items()}
    longest_first = sorted(marks, key=len, reverse=True)
    if not longest_first:
        return text
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(pattern, lambda match: next(left[match[0]], match[0]), text)


def _marks_in(text: str) -> list[str]:
    return sorted(_MARK.findall(text))


def _common(span: ProtectedSpan, source: str, target: str) -> dict[str, int]:
    """Return a span and its count if both sides have it equally often; of several names, the longest part."""
    words = source[span.start : span.stop].split(" ") if span.kind == "name" else [source[span.start : span.stop]]
    most = 1 if span.learned else MOST_EQUAL
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            text = " ".join(words[start : start + length])
            count = _count(text, source)
            if 0 < count <= most and count == _count(text, target):
                return {text: count}
    return {}


def _count(span: str, text: str) -> int:
    """Count the occurrences of a string; 0 if any is part of a longer word or number."""
    count, stop = 0, 0
    while (start := text.find(span, stop)) >= 0:
        stop, count = start + len(span), count + 1
        before, after = text[max(0, start - 2) : start], text[stop : stop + 2]
        if _WORD.match(span[0]) and (_WORD.match(before[-1:]) or re.fullmatch(r"\d[.,:]", before)):
            return 0
        if _WORD.match(span[-1]) and (_WORD.match(after[:1]) or re.fullmatch(r"[.,:]\d", after)):
            return 0
    return count
