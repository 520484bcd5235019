"""Protected spans: what of a text is not language, such as URLs, `{name}`, tags and phone numbers.

`protected_spans` finds what a translation must keep to the letter; the rules are data (`RULES`). An ICU message such as
`{n, plural, one {# file} other {# files}}` is a span too, and holds texts to translate (`icu_message`).

A mark is a string such as `⟦3⟧` that stands for a span. The tokenizer holds every mark as a symbol of its own
(`tokenizer.symbols`), so that normalization does not change it and it is never split: U+27E6 and U+27E7 are their own
NFKC forms and occur in no training text. `mark_pair` replaces a span on both sides of a training pair where both have
it equally often. The numbers of the marks are drawn by a hash: a model learns to copy any mark to its position,
whatever its number.

All patterns are linear in the length of the text: a run of characters is tried from its start alone, and repeats are
possessive or bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

from transduce.core.errors import ConfigError

MARKS = tuple(f"⟦{number}⟧" for number in range(16))

_MARK = re.compile("⟦[0-9]*⟧?")

# \w and \d are ASCII: in Chinese a span touches its neighbours. Latin letters with accents are letters of a word.
_LATIN = "0-9A-Za-z_À-ÖØ-öø-ɏ"
_BEGIN, _END = f"(?<![{_LATIN}])", f"(?![{_LATIN}])"
_SPACE = "[ \u00a0\u202f]"

_DOMAINS = "com|org|net|edu|gov|info|io|eu|de|at|ch|fr|es|pt|br|uk|nl|it|pl|cn|tw|jp|ru|in|us|ca|au|dev|app|xyz|test"
# What a URL goes on with: brackets in pairs, and marks such as a full stop only where more follows.
_URL = (
    r"(?:[.,;:!?'*|]*+(?:[\w/#@$&+=%~\u00c0-\u024f-]|\{[\w.]{1,40}+\}|\([^\s()<>\u2e80-\uffef]{1,200}+\)"
    r"|\[[\w.:]{0,60}+\]))++"
)
_HOST = rf"(?<![{_LATIN}.@/-])(?:[A-Za-z0-9][\w-]*+\.)+?"
_EXTENSIONS = (
    "7z|aac|apk|avi|bak|bash|bat|bib|bin|bmp|bz2|cfg|cmd|conf|cpp|crt|css|csv|dat|deb|dll|dmg|docx?|env|epub|exe|flac"
    "|gif|go|gradle|gz|hpp|html?|ico|ini|ipynb|iso|jar|java|jpe?g|js|json|jsonl|jsx|kt|lock|log|lua|md|mjs|mkv|mov|mp3"
    "|mp4|mpeg|odp|ods|odt|ogg|parquet|pdf|pem|php|plist|png|pptx?|ps1|psd|py|rar|rb|rpm|rs|rst|rtf|scss|sh|sql|sqlite"
    "|srt|svg|swift|tar|tex|tiff?|tmp|toml|tsv|tsx?|ttf|txt|vue|wasm|wav|webm|webp|woff2?|xlsx?|xml|xz|ya?ml|zip"
)
_DOTFILES = "bashrc|dockerignore|editorconfig|env|gitattributes|gitignore|gitmodules|htaccess|npmrc|profile|zshrc"
_ROOTS = (
    "Applications|Library|Users|Volumes|api|bin|boot|dev|etc|home|lib|media|mnt|opt|proc|root|run|srv|sys|tmp|usr|var"
)
_SEGMENT = r"(?:\.*+[\w@+~{}$%\u00c0-\u024f-]++)++"  # of a path: no final full stop
_WIDTH = r"[-+#0]*(?:\d{1,3}|\*)?(?:\.\d{1,2})?(?:hh?|ll?|[zjt])?"  # of a format such as %5.2f
_FENCES = r"\*{1,3}+|_{1,3}+|~~"
_EMOJI = "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u2b50\u2b55\u231a\u231b\u23e9-\u23f3]"
_JOINED = rf"(?:[\ufe0f\u200d\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|{_EMOJI})*+"
# Numbers that look like a version, a reference or a phone number, and have a value of their own.
_DATE = r"(?:\d{1,2}[./-]\d{1,2}[./-](?:\d{4}|\d\d)(?!\d)|\d{1,3}(?:\.\d{3})+(?![.\d]))"
_YEARS = r"(?:1[5-9]|20)\d\d[/-](?:1[5-9]|20)\d\d(?![\d-])"
_ALONE = f"(?<![{_LATIN}.,:/+-])"  # a number that is not part of another
_CURRENCIES = "EUR|USD|GBP|CHF|RMB|CNY|JPY|AUD|CAD|NZD|HKD|BRL|RUB|INR|MXN|SEK|NOK|DKK|PLN|CZK"

# Where a span can begin at all, so that most characters are done with at once: at a word, or at one of these signs.
_FIRST = rf"(?:{_BEGIN}(?=[{_LATIN}])|(?=[!-/:-@\[-`{{-~])|(?={_EMOJI}))"

_NAME = "[A-ZÀ-Þ][a-zß-ÿ’'A-Z-]+[a-zß-ÿ]"


def _any(*patterns: str) -> str:
    return "|".join(patterns)


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


# The first matching rule at a position wins, so specific kinds come first.
RULES = (
    Rule(
        "code",
        r"(?<!`)(?P<ticks>`{1,3}+)(?!`)(?![^`']*+(?<=[\w.,!?])'[\s.,;:!?)])(?:(?!'')[^`]|(?!(?P=ticks)(?!`))`++)++(?P=ticks)(?!`)",
    ),
    Rule(
        "url",
        _any(
            r"<[A-Za-z][A-Za-z0-9+-]{1,15}://[^\s<>]{1,2000}+>",
            rf"{_BEGIN}(?:[A-Za-z][A-Za-z0-9+-]{{1,15}}://|mailto:|tel:(?=\+?\d)){_URL}",
            rf"(?<![{_LATIN}.@-])www\.[\w-]++\.{_URL}",
            rf"{_HOST}(?<=[\w-]{{3}}\.)(?:{_DOMAINS})(?:(?::\d{{2,5}})?/(?:{_URL})?|(?![\w@/-]|\.\w|[\w.%+-]*+@))",
            rf"{_HOST}[a-z]{{2,6}}(?::\d{{2,5}})?/{_URL}",
            rf"(?<![{_LATIN}.])(?:localhost|(?!{_DATE})\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::\d{{2,5}}(?:/(?:{_URL})?)?|/{_URL})",
        ),
    ),
    Rule(
        "email",
        rf"(?<![{_LATIN}.%+-])[{_LATIN}.%+-]++@(?:[{_LATIN}-]++\.)+?[{_LATIN}-]{{2,}}+(?!\.?\w)(?::[\w~.-]++(?:/[\w.-]*\w)+)?",
    ),
    Rule(
        "tag",
        _any(
            r"</?[A-Za-z][\w:.-]{0,60}+(?:\s++(?:(?:selected|checked|disabled|hidden)|[^<>=]{1,60}=[^<>]{0,600}))?\s*+/?>",
            r"</?\d{1,3} ?/?>",
            r"<!--[^<>]{0,2000}+(?<=--)>|<!\[CDATA\[|\]\]>|<!(?:DOCTYPE|doctype)[^<>]{0,200}>|<\?\w[^<>]{0,200}\?>",
            r"\[/?(?:b|i|u|s|url|img|quote|code|color|size|list)(?:=[^\[\]\s]{1,200}+)?\](?!\()",
        ),
    ),
    Rule(
        "file",
        _any(
            rf"(?<![{_LATIN}./\\@{{}}%+-])[{_LATIN}./{{}}%+-]*?[{_LATIN}}}]\.(?:{_EXTENSIONS}|(?<=\w\w\w\.)[chmr]){_END}(?![./-]?\w)",
            rf"(?<![{_LATIN}./\\-])\.(?:{_DOTFILES}){_END}",
        ),
    ),
    Rule("icu", r"\{\s{0,4}[\w.-]{1,60}+\s{0,4},\s{0,4}(?:plural|select|selectordinal)\s{0,4},"),
    Rule(
        "placeholder",
        _any(
            r"\{\{[^{}\n]{1,80}+\}\}|\{%[^{}\n]{1,80}+\}",
            r"\{\s?\w{1,60}+,\s?(?:number|date|time|duration|ordinal|spellout)(?:,[^{}\n]{1,60}+)?\}",
            r"[$#%@]?\{ ?[\w.:$\[\]!|,<>=+/-]{0,60}+ ?\}",
            r"\$\[\w+\]|\$\(\w+\)|\$\w{1,40}+\$|\[\[\w[\w.-]{0,60}+\]\]|@@\w{1,60}+@@|<%[^<>%\n]{1,80}+%>",
            rf"(?<![{_LATIN}$])\$(?!(?:US|AU|CA|NZ|HK)D?(?![A-Z_]))(?:[a-z_][A-Za-z0-9_]++|[A-Z_][A-Z0-9_]{{2,}}+)",
            r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9a-fA-F]{1,6});",
            rf"(?:(?<![{_LATIN}:;)\]}}.!?\"'’”»*`~@/\\-])|(?<=[\s(][\"'])|(?<=\A[\"']))"
            r":(?:[a-z_][\w-]{0,60}+:|[a-z_]\w{0,60}+(?<=\w\w)(?![:@/(]))",
            r"(?<![\\:])\\[nrt](?![a-z\\])",
        ),
    ),
    Rule(
        "path",
        _any(
            rf"(?<![{_LATIN}.\\])(?:[A-Za-z]:|%\w{{2,40}}%|\\\\[\w.$-]++)"
            rf"(?:[\\/](?:{_SEGMENT}(?: [\w.()-]{{1,40}}+){{0,3}}(?=\\)|{_SEGMENT}))++[\\/]?|{_BEGIN}[A-Z]:\\(?!\w)",
            rf"(?<![{_LATIN}/.\\~])(?:~|\.{{1,2}}(?:/\.\.)*+)(?:/{_SEGMENT})++/?",
            rf"(?<![{_LATIN}/.\\:)])/(?:{_ROOTS}){_END}(?:/{_SEGMENT})*+/?",
            rf"(?<![^\s\"'“‘(\[=（「])/{_SEGMENT}(?:/{_SEGMENT})++/?",
        ),
    ),
    Rule(
        "format",
        _any(
            rf"%(?:\(\w{{1,60}}+\)|\d{{1,2}}\$|<\w{{1,60}}+>){_WIDTH}[sdiufxXeEgGcroaA@]",
            rf"(?<![\d%{_LATIN}])%{_WIDTH}(?:[sdiufxXeEgGcrop@]{_END}|d(?=(?:px|ms|[smhx]){_END}))",
            rf"(?<![\d{_LATIN}])%(?:[A-Z]{{3,}}{_END}(?!%)|[A-Za-z_]\w{{1,40}}+%|L?\d{{1,2}}(?![\w.,%]))",
        ),
    ),
    Rule("flag", rf"(?<![{_LATIN}-])--[a-z](?:-?[a-z0-9]++)*+(?:=[\w./:@%-]*[\w/])?{_END}"),
    Rule("call", rf"(?<![{_LATIN}.])[A-Za-z_]\w*+(?:(?:\.|::|->)[A-Za-z_]\w*+)*+\(\)"),
    Rule(
        "identifier",
        _any(
            rf"(?<![{_LATIN}.])_*+[A-Za-z][A-Za-z0-9]*+(?:\.[A-Za-z][A-Za-z0-9]*+)*+_\w++(?:\.[A-Za-z_]\w*+)*+{_END}",
            rf"{_BEGIN}__[a-z0-9]++__{_END}",
            rf"{_BEGIN}(?!(?:de|la|le|du|di|da|van|von|mac|mc)[A-Z]|[a-z]{{1,6}}OS{_END})"
            rf"[a-z]{{2,}}+[0-9]*+(?:[A-Z][a-z0-9]*+)++{_END}",
            rf"{_BEGIN}(?:[A-Z][a-z][a-z0-9]*+){{3,}}+{_END}",
            rf"{_BEGIN}[A-Za-z_]\w*+(?:::[A-Za-z_]\w*+)++",
        ),
    ),
    Rule(
        "markup",
        _any(
            rf"(?<![{_LATIN}*_~\\])(?P<fence>{_FENCES})(?=(?P<inner>[^\s*_~]|[^\s*~](?:(?!(?P=fence))[^\n]){{0,400}}[^\s\\])"
            rf"(?P=fence)(?![*_~]))",
            _FENCES,
            r"!?\[(?=[^\[\]\n]{1,300}+\]\([^\s()]++(?:\s\"[^\"\n]{0,200}+\")?\))|\]\([^\s()]++(?:\s\"[^\"\n]{0,200}+\")?\)",
            r"(?:(?<=\n)|\A)#{1,6}(?=\s\S)",
        ),
    ),
    Rule(
        "iban",
        rf"{_BEGIN}[A-Z]{{2}}\d\d{_SPACE}?[A-Z0-9]{{4}}(?:{_SPACE}?(?=[A-Z]{{0,3}}\d)[A-Z0-9]{{4}}){{2,7}}"
        rf"(?:{_SPACE}?(?=[A-Z]{{0,2}}\d)[A-Z0-9]{{1,3}})?{_END}",
    ),
    Rule(
        "reference",
        _any(
            rf"{_BEGIN}[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}{_END}",
            rf"{_BEGIN}\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
            rf"(?!-){_END}",
            rf"{_BEGIN}(?!{_YEARS})\d{{4}}[-/]\d{{4,}}+(?:[-/]\d++)*+{_END}",
            rf"{_BEGIN}(?!(?:{_CURRENCIES})\d)(?:[A-Z]{{2,8}}+[-/#]?\d{{3}}|[A-Z][-/#]?\d{{4}}|[A-Z]{{2,8}}+-[A-Z]\d\d)"
            rf"\d*+(?:[-/][A-Z0-9]++|[A-Z])*+{_END}",
            rf"{_BEGIN}(?:0x[0-9a-fA-F]{{2,}}+|[0-9a-fA-F]{{1,4}}(?::[0-9a-fA-F]{{0,4}}){{3,7}}){_END}",
            rf"{_BEGIN}[A-Z]{{1,8}}+(?:[-/][A-Z0-9]{{1,8}}+){{1,3}}?[-/]\d{{3,}}+(?:[-/][A-Z0-9]++)*+{_END}",
            rf"{_BEGIN}(?=[A-Z0-9-]{{0,40}}?\d)(?=[\d-]{{0,40}}+[A-Z])(?:[A-Z0-9]{{2,8}}-){{2,7}}[A-Z0-9]{{2,8}}{_END}(?!-)",
            rf"{_BEGIN}(?=[A-Z0-9]{{0,40}}?[A-Z]\d)(?=[A-Z0-9]{{0,40}}?\d[A-Z])[A-Z0-9]{{6,40}}+{_END}",
            rf"{_BEGIN}(?=[a-f0-9]{{0,64}}?[a-f]\d)(?=[a-f0-9]{{0,64}}?\d[a-f])[a-f0-9]{{7,64}}+{_END}",
            rf"(?<![{_LATIN}&#])#\d{{2,}}+(?:-\d++)*+{_END}|{_BEGIN}10\.\d{{4,9}}/{_URL}",
        ),
    ),
    Rule(
        "version",
        _any(
            rf"(?<![{_LATIN}.,])(?!{_DATE})v?\d{{1,9}}+(?:\.\d{{1,9}}+){{2,}}+(?:[-+]\w++(?:\.\w++)*+|[a-z]{{1,4}}\d{{1,4}})?{_END}(?!,\d)",
            rf"{_BEGIN}[vV]\d{{1,9}}+(?:\.\d{{1,9}}+)++(?:[-+]\w++(?:\.\w++)*+)?{_END}",
        ),
    ),
    Rule(
        "phone",
        _any(
            rf"(?<![{_LATIN}+])\+\d(?:[ \u00a0\u202f()/.-]{{0,3}}+\d){{6,14}}+(?!\d)",
            rf"(?<![{_LATIN}])\((?!(?:19|20)\d\d\))\d{{2,5}}\)(?=(?:[ \u00a0/.-]?\d){{5}})"
            r"(?:[ \u00a0/.-]?\d{2,8}+){1,4}+(?!\d)",
            rf"{_ALONE}(?<!\d[ \u00a0\u202f])(?!{_DATE})0\d{{1,5}}(?=(?:[ \u00a0\u202f/.-]{{1,3}}\d|\d){{5}})"
            rf"(?:(?:[ \u00a0\u202f./-]| / | - )\d{{2,8}}+){{1,5}}+(?![.,:]?\d){_END}",
            rf"{_ALONE}(?:1[ .-])?(?:\d{{3}}[ .-]\d{{3}}-\d{{4}}|\d{{3}}\.\d{{3}}\.\d{{4}}|555-\d{{4}}){_END}",
            rf"{_ALONE}(?:1[3-9]\d[ -]\d{{4}}[ -]\d{{4}}|\d\d 9?\d{{4}}-\d{{4}}){_END}",
            rf"{_ALONE}97[89]-\d{{1,5}}-\d{{1,7}}-\d{{1,7}}-[\dX]{_END}",
            rf"{_ALONE}(?<!\d )(?:[26-9]\d\d[ -]\d{{3}}[ -](?!000)\d{{3}}|[6789]\d\d(?: \d\d){{3}})"
            rf"(?![ -]?\d|[.,]\d){_END}",
        ),
    ),
    Rule("long_number", rf"(?<![{_LATIN}.,-])\d{{7,}}+(?![.,]?\d){_END}"),
    Rule(
        "handle", rf"(?<![{_LATIN}@.])@[A-Za-z_](?:[.-]?\w)++(?:/[\w-]++|@(?:[\w-]++\.)+?[\w-]{{2,}}+(?!\.?\w))?{_END}"
    ),
    Rule(
        "hashtag",
        rf"(?<![{_LATIN}#&/])#(?:[A-Za-zÀ-ɏ_][{_LATIN}]++|[\u3400-\u9fff\w]{{1,30}}#|[\u3400-\u9fff][\u3400-\u9fff\w]{{1,15}}+(?=\s|\Z))",
    ),
    Rule("emoji", rf"{_EMOJI}{_JOINED}|[0-9#*]\ufe0f?\u20e3|(?<!\S)[:;][-o]?[()DP](?!\w)"),
    Rule("number", r"(?<![\w.,])\d+(?:[.,:]\d+)*+(?![.,]?\d)\b", share=0.12, learned=True),
    Rule("name", rf"(?!(?:All|Also|But|For|Man|Once|Was)\b){_NAME}(?: {_NAME})*", share=0.12, learned=True),
)
_LEARNED = frozenset(rule.kind for rule in RULES if rule.learned)
_SHARES = {rule.kind: rule.share for rule in RULES}
_LARGEST = [max(rule.share for rule in RULES if rule.learned == learned) for learned in (False, True)]
# A text without one of these has no span to protect. Most sentences have none, and matching all rules is slow.
_HINT = re.compile(
    rf"[\d`@{{<$%&/\\_#~*\[\]]|[a-z][A-Z]|[A-Z][a-z0-9]+[A-Z]|[\w-]\.\w|--|\(\)|:[a-z:]|[:;][-o]?[()DP]|{_EMOJI}|\.[a-z]",
    re.ASCII,
)
_WORD = re.compile(r"[0-9A-Za-z_À-ÖØ-öø-ÿ]")
MOST_EQUAL = 4  # at most so many equal spans, such as </b>, in a pair


def _compiled(rules: Iterable[Rule]) -> re.Pattern[str]:
    return re.compile(_FIRST + "(?:" + "|".join(f"(?P<{rule.kind}>{rule.pattern})" for rule in rules) + ")", re.ASCII)


_ALL, _ORDINARY = _compiled(RULES), _compiled(rule for rule in RULES if rule.learned)
_PROTECTED = _compiled(rule for rule in RULES if not rule.learned)
_ICU_NUMBER = re.compile("#(?![0-9A-Za-z])")


@dataclass(frozen=True)
class ProtectedSpan:
    """A span of a text, and the kind of rule that matched it; "own" is the user's pattern."""

    kind: str
    start: int
    stop: int

    @property
    def learned(self) -> bool:
        return self.kind in _LEARNED

    def overlaps(self, other: ProtectedSpan) -> bool:
        return self.start < other.stop and other.start < self.stop

    def moved(self, by: int) -> ProtectedSpan:
        """The span in a text with so many more characters before it."""
        return ProtectedSpan(self.kind, self.start + by, self.stop + by)


@dataclass(frozen=True)
class IcuMessage:
    """An ICU plural or select: the texts of its cases, to be translated, and what stands around them.

    A case may hold spans of its own, another message, and `#`, which is the number.
    """

    fixed: tuple[str, ...]  # one more than texts
    texts: tuple[str, ...]

    def filled(self, texts: Sequence[str]) -> str:
        """Return the message with other texts, one a case."""
        pieces = [piece for pair in zip(self.fixed, texts, strict=False) for piece in pair]
        return "".join([*pieces, self.fixed[-1]])


def find_spans(text: str) -> Iterator[ProtectedSpan]:
    """Yield the spans of a text from left to right, without overlap; learned kinds are among them."""
    yield from _scan(text, _ALL if _HINT.search(text) else _ORDINARY)


def protected_spans(text: str, own: Sequence[re.Pattern[str]] = (), in_message: bool = False) -> list[ProtectedSpan]:
    """Return what a translation must keep to the letter, from left to right; spans that overlap are one.

    `own` are the user's patterns (`own_patterns`); `in_message` says that the text is a case of an `IcuMessage`. A span
    of kind "icu" never joins another: `icu_message` gives its texts.
    """
    found = list(_scan(text, _PROTECTED)) if _HINT.search(text) else []
    messages = [span for span in found if span.kind == "icu"]
    more = [ProtectedSpan("own", *match.span()) for pattern in own for match in pattern.finditer(text) if match[0]]
    if in_message:  # # is a number there, no heading
        found = [span for span in found if span.kind != "markup" or text[span.start] != "#"]
        more += [ProtectedSpan("placeholder", *match.span()) for match in _ICU_NUMBER.finditer(text)]
    found += [span for span in more if not any(span.overlaps(message) for message in messages)]
    return _merged(found)


def _merged(spans: Iterable[ProtectedSpan]) -> list[ProtectedSpan]:
    """Sort spans and make one of those that overlap, but for ICU messages."""
    merged: list[ProtectedSpan] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        last = merged[-1] if merged else span
        if merged and span.start < last.stop and "icu" not in (span.kind, last.kind):
            merged[-1] = ProtectedSpan(last.kind, last.start, max(last.stop, span.stop))
        else:
            merged.append(span)
    return merged


def own_patterns(patterns: Sequence[str], where: str = "protect") -> tuple[re.Pattern[str], ...]:
    """Compile the user's patterns; refuse what is no regular expression, or matches nothing at all.

    How long a pattern takes is up to its author: one such as (a+)+b may take forever.
    """
    compiled = []
    for number, pattern in enumerate(patterns, 1):
        try:
            compiled.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"{where}: pattern {number}, {pattern!r}, is not a regular expression of Python: {error};"
                r" write \ before a character that stands for itself, as in \$\d+"
            ) from None
        if compiled[-1].fullmatch(""):
            raise ConfigError(
                f"{where}: pattern {number}, {pattern!r}, also matches an empty text; it must match at least one"
                " character: + instead of *"
            )
    return tuple(compiled)


def icu_message(text: str) -> IcuMessage | None:
    """Take an ICU plural or select apart; None for any other text."""
    header = _ICU_HEADER.match(text)
    if not header or (ends := _brace_ends(text)).get(0) != len(text):
        return None
    position, fixed_from = header.end(), 0
    fixed, texts = list[str](), list[str]()
    while case := _ICU_CASE.match(text, position):
        stop = ends.get(case.end() - 1)
        if stop is None:
            return None
        fixed.append(text[fixed_from : case.end()])
        texts.append(text[case.end() : stop - 1])
        fixed_from, position = stop - 1, stop
    if not texts or text[position:].strip() != "}":
        return None
    return IcuMessage((*fixed, text[fixed_from:]), tuple(texts))


_ICU_HEADER = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|select|selectordinal)\s*+,\s*+(?:offset:\d++\s*+)?")
_ICU_CASE = re.compile(r"\s*+(?:=\d++|[\w-]++)\s*+\{")
_BRACE = re.compile("'[{}][^']*+'|[{}]")  # ICU quotes braces with apostrophes


def _brace_ends(text: str) -> dict[int, int]:
    """Map the start of each opening brace to the end of its closing one."""
    ends, opened = dict[int, int](), list[int]()
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            ends[opened.pop()] = brace.end()
    return ends


def _scan(text: str, pattern: re.Pattern[str]) -> Iterator[ProtectedSpan]:
    """Yield the matches of the rules; of markup such as ** the opening ones and those that close them."""
    ends: dict[int, int] | None = None
    closing = set[int]()
    position = 0
    while match := pattern.search(text, position):
        kind, (start, position) = str(match.lastgroup), match.span()
        if kind == "icu":
            ends = _brace_ends(text) if ends is None else ends
            if icu_message(text[start : ends.get(start, start)]) is None:
                position = start + 1
                continue
            position = ends[start]
        elif kind == "markup" and re.match(_FENCES, match[0]):
            if match["fence"]:
                closing.add(match.end("inner"))
            elif start not in closing:
                continue
        yield ProtectedSpan(kind, start, position)


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
        if draws[span.learned] < scale * _SHARES[span.kind]:
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
