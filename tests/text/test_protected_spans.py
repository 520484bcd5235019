"""Marks for protected spans: which spans are found, and that both sides of a pair get the same marks."""

from __future__ import annotations

import random
import re
import time
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.core.errors import ConfigError
from transduce.text.protect import (
    _HINT,
    MARKS,
    RULES,
    find_spans,
    icu_message,
    mark_pair,
    own_patterns,
    protected_spans,
)
from transduce.text.train_tokenizer import SentencePiece

EXAMPLES = {
    "code": ["`rm -rf x`", "``a `b` c``", "`echo 'a b'`"],
    "url": [
        "https://example.org/a?b=1#c",
        "http://localhost:8080/x_y",
        "www.example.com/path",
        "ftp://a.b/c,d;e",
        "https://en.wikipedia.org/wiki/Mercury_(planet)",
        "https://x.org/{id}/edit",
        "example.com",
        "t.co/Ab3",
        "sub.example.co.uk/a",
        "mailto:a@b.org",
        "192.168.0.1:8080/x",
        "<https://example.org>",
        "https://müller.de/straße",
        "s3://bucket/key",
    ],
    "email": ["jane.doe+x@mail.example.org", "jürgen@müller.de", "a_b@x.io"],
    "tag": [
        "<b>",
        "</b>",
        '<a href="x">',
        "<0/>",
        "</1>",
        "<br/>",
        "<br />",
        "<x-y:z>",
        "<!-- no -->",
        "[b]",
        "[url=x]",
    ],
    "file": [
        "index.html",
        "setup.py",
        "my-file.tar.gz",
        "src/main/App.java",
        ".gitignore",
        "{name}.txt",
        "Übersicht.pdf",
        "main.c",
    ],
    "icu": ["{n, plural, one {# file} other {# files}}", "{who,select,a{x {n,plural,other{#}}}other{y}}"],
    "placeholder": [
        "{name}",
        "{0}",
        "{{x}}",
        "{{ user.name }}",
        "{% if x %}",
        "${x}",
        "{ $count }",
        "$[officename]",
        "&nbsp;",
        "&#39;",
        "%{name}",
        "#{x}",
        "{x:.2f}",
        "{n, number}",
        "$HOME",
        "$user_name",
        "[[name]]",
    ],
    "path": [
        "/usr/lib/x.so",
        "./run",
        "~/notes",
        "C:\\Temp\\a.txt",
        "C:\\Program Files\\App\\x.exe",
        "../../a/b",
        "%APPDATA%\\x",
        "/etc",
        "\\\\server\\share",
        "C:/a/b",
    ],
    "format": ["%s", "%d", "%(n)d", "%1$s", "%.2f", "%PRODUCTNAME", "%1", "%@", "%-10s", "%lu", "%name%"],
    "flag": ["--verbose", "--to=de", "--no-cache-dir"],
    "call": ["print()", "os.path.join()", "CamelCase()", "std::move()"],
    "identifier": [
        "snake_case",
        "MAX_SIZE",
        "camelCase",
        "getUserId",
        "OpenStreetMapper",
        "__init__",
        "std::vector",
        "a.b_c",
    ],
    "iban": ["DE89 3704 0044 0532 0130 00", "FR7630006000011234567890189", "GB29 NWBK 6016 1331 9268 19"],
    "reference": [
        "2026-00417",
        "ISO-8859",
        "RFC2119",
        "2026-11-18",
        "2026-11-18T10:00:00Z",
        "INV-2026-0042",
        "RE/2026/17",
        "#4711",
        "XK7P-9Q2M-4TTA",
        "A1B2C3D4",
        "4f3a9b1c",
        "123e4567-e89b-12d3-a456-426614174000",
        "10.1000/xyz123",
    ],
    "version": ["1.2.3", "v2.0", "3.12.0-rc1", "10.0.19045.1"],
    "phone": [
        "+49 30 123456",
        "030 1234 5678",
        "+4930123456",
        "+49 (0)30 123456",
        "(555) 123-4567",
        "555-123-4567",
        "06 12 34 56 78",
        "030/123456",
        "612 345 678",
        "(11) 91234-5678",
        "138 0013 8000",
        "0151 23456789",
    ],
    "long_number": ["1234567"],
    "handle": ["@somebody", "@some.body", "@scope/package", "@user@host.tld"],
    "hashtag": ["#hashtag", "#Größe", "#话题#"],
    "emoji": ["😀", "👍🏽", "🇩🇪", "✅", "👩‍💻", "1️⃣", "❤️"],
    "number": ["42", "1,200", "3.14", "12:30"],
    "name": ["Barroso", "New York", "Müller", "McDonald"],
}


def test_every_rule_has_examples() -> None:
    assert list(EXAMPLES) == [rule.kind for rule in RULES if rule.kind != "markup"]


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in EXAMPLES.items() for text in texts])
@pytest.mark.parametrize("frame", ["we saw {} here.", "请看{}，好吗？", "({})"])
def test_spans_are_found_whole(kind: str, text: str, frame: str) -> None:
    whole = frame.replace("{}", text)
    found = [(span.kind, whole[span.start : span.stop]) for span in find_spans(whole)]
    assert found == [(kind, text)]


def test_texts_without_a_hint_have_no_span_to_protect() -> None:
    for rule in RULES:
        if not rule.learned and rule.kind != "markup":
            assert all(_HINT.search(text) for text in EXAMPLES[rule.kind])


PROSE = """I am 100% sure that a and/or b goes at most 5 km/h, e.g. here.
Wait... what?
Note:this starts at 12:30, and his/her car: yes.
My iPhone and McDonald's, YouTube, GmbH, macOS, PhD and pH.
It was 1.250.000 in 2018-2019, or 10 000 000, on 18.11.2026 or 12/11/2018.
He said -- well -- no. "Yes," she said - and left.
z.B. d.h. u.a. a.m. p.m. U.S. e.g. i.e. Dr. No. 5
It costs $5, 50 %, US$100, EUR 1000, 3,50 and 1'000.
He\'s a don\'t-know, 2*3*4, 5 < 6 > 4, A4, B2B, G20, COVID-19.
Die Note:gut und 50%ige Lösung. Um 15.30 Uhr, am 3. Mai
他说:“好”。时间是12:30，价格100元，50%的人。
C\'est l\'un d\'eux : oui ; 15h30, 1er, 2e.
``quoted\'\' and `this\' text\'.""".split("\n")


@pytest.mark.parametrize("text", PROSE)
def test_prose_has_nothing_to_protect(text: str) -> None:
    assert [text[span.start : span.stop] for span in protected_spans(text)] == []


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (
            "See https://a.org/x. (Or https://b.org/y), https://c.org/!",
            ["https://a.org/x", "https://b.org/y", "https://c.org/"],
        ),
        ("Open `a`, index.html.", ["`a`", "index.html"]),
        ("请看https://a.org/x，或写信给jo@x.org。", ["https://a.org/x", "jo@x.org"]),
        (
            "**bold** and *it*, [docs](https://a.org) ~~no~~",
            ["**", "**", "*", "*", "[", "](https://a.org)", "~~", "~~"],
        ),
        ("# Title", ["#"]),
        ("这是**重点**内容", ["**", "**"]),
        ("<b>{name}</b> is", ["<b>", "{name}", "</b>"]),
        ('a <a href="x">word</a> here', ['<a href="x">', "</a>"]),
        ("a * b ** c", []),
        (":count of :total", [":count", ":total"]),
        ('":name" said', [":name"]),
        ("您好:name，", [":name"]),
        ("Say {n, plural, one {# file} other {# files}}!", ["{n, plural, one {# file} other {# files}}"]),
        ("{n, plural, one {# file}", []),
        ("{n, plural} here", []),
        ("Call 030 1234567 or +49 (0)30 / 12 34 56.", ["030 1234567", "+49 (0)30 / 12 34 56"]),
        ("@x_y #z_1 😀👍", ["@x_y", "#z_1", "😀👍"]),
    ],
)
def test_spans_to_protect(text: str, spans: list[str]) -> None:
    assert [text[span.start : span.stop] for span in protected_spans(text)] == spans


def test_own_patterns_come_on_top_and_join_what_they_overlap() -> None:
    own = own_patterns([r"ACME\w*", r"\b[A-Z]\d\b"])
    text = "ACMEcorp has A4 and https://x.org/ACME, {n, plural, other {A4}}"
    found = [(span.kind, text[span.start : span.stop]) for span in protected_spans(text, own)]
    assert found == [
        ("own", "ACMEcorp"),
        ("own", "A4"),
        ("url", "https://x.org/ACME"),
        ("icu", "{n, plural, other {A4}}"),
    ]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(", r"protect: pattern 2, 'a\(', is not a regular expression of Python: .*; write \\ before a character"),
        ("a*", r"protect: pattern 2, 'a\*', also matches an empty text; it must match at least one character"),
    ],
)
def test_own_patterns_are_checked(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own_patterns(["x", pattern])


def test_an_icu_message_is_taken_apart_and_put_together() -> None:
    text = "{n, plural, offset:1 =0 {no one} one {# of {who}} other {{g, select, a {x} other {y}}}}"
    message = icu_message(text)
    assert message is not None
    assert message.texts == ("no one", "# of {who}", "{g, select, a {x} other {y}}")
    assert message.filled(message.texts) == text
    assert message.filled(("1", "2", "3")) == "{n, plural, offset:1 =0 {1} one {2} other {3}}"
    case = message.texts[1]
    assert [case[span.start : span.stop] for span in protected_spans(case, in_message=True)] == ["#", "{who}"]
    assert [span.kind for span in protected_spans(f"Is {case}")] == ["placeholder"]
    assert icu_message(message.texts[2]) is not None
    assert icu_message("{n}") is None
    assert icu_message(text + "x") is None


HOSTILE = """a|a |A|1|1 |1.|1-|0 |a.|a-|_|_a|*|**a|*a |~~a|[|[a](|](|<|<a |<a =|<!--|{|{a
{a,plural,|{n, plural, one {|\'{|$
%|%(a|%-0|:a|: :a|:a:|/|/a|/a/|../|~/|C:\\|C:\\a b|a/b.|a.py.|a@|a@b.|@a.|#a|`|``a`|```a``|http://
http://(a|http://!|www.
+1 |(12) |DE89 |2026-|AB-|--a-|a.b()|a::|aB|Ab|😀|⟦1|&#|中|#中 |x.com|1.1.1.1|12/11/|f0|F0|é|\u00a0
{{a|{%|[[a|[url=|v1.|![
"""


@pytest.mark.parametrize("seed", [seed for line in HOSTILE.split("\n") for seed in line.split("|") if seed])
def test_hostile_text_takes_no_longer_than_its_length(seed: str) -> None:
    text = (seed * 100_000)[:100_000]
    begun = time.process_time()
    protected_spans(text)
    assert time.process_time() - begun < 1


@given(st.text(alphabet="ab1 {}<>/*_`#@:.,'%$[]()-~\\中😀ICU\n", max_size=60))
def test_spans_are_in_order_and_apart_in_any_text(text: str) -> None:
    spans = protected_spans(text)
    assert all(0 <= span.start < span.stop <= len(text) for span in spans)
    assert all(one.stop <= other.start for one, other in pairwise(spans))


def test_a_span_becomes_the_same_mark_on_both_sides() -> None:
    one, two = mark_pair("Send {file} to jane@x.org!", "Schicke {file} an jane@x.org!", scale=2)
    first, second = re.findall("⟦\\d+⟧", one)
    assert first != second
    assert {first, second} <= set(MARKS)
    assert (one, two) == (f"Send {first} to {second}!", f"Schicke {first} an {second}!")


def test_order_may_differ_and_equal_spans_get_marks_of_their_own() -> None:
    one, two = mark_pair("<b>one</b> and <i>two</b>", "<i>zwei</b> und <b>eins</b>", scale=2)
    assert sorted(re.findall("⟦\\d+⟧", one)) == sorted(re.findall("⟦\\d+⟧", two))
    assert len(set(re.findall("⟦\\d+⟧", one))) == 4
    assert "<" not in one + two


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("See {a} here", "Siehe {b} hier"),  # another one
        ("{a} is {a}", "{a} ist da"),  # not equally often
        ("Take 12345 of it", "Nimm 123456 davon"),  # part of a longer one
        ("Take 12345 of it", "Nimm 12345,7 davon"),
    ],
)
def test_spans_that_differ_stay(source: str, target: str) -> None:
    assert mark_pair(source, target, scale=2) == (source, target)


def test_about_half_the_pairs_are_marked_always_the_same_and_with_every_mark() -> None:
    pairs = [(f"Open item_{n} now", f"Öffne item_{n} jetzt") for n in range(2000)]
    made = [mark_pair(*pair) for pair in pairs]
    assert made == [mark_pair(*pair) for pair in pairs]
    marked = [one for one, _ in made if "⟦" in one]
    assert 0.45 < len(marked) / len(pairs) < 0.56
    assert {found for one in marked for found in re.findall("⟦\\d+⟧", one)} == set(MARKS)
    assert [mark_pair(*pair, scale=0) for pair in pairs] == pairs


WORDS = ("foo_bar", "13", "7", "61", "Mary", "Mary Smith", "{name}", "{0}", "5.5", "v1.2.3", "take", "and", "⟦2⟧")


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=24), st.randoms(use_true_random=False))
def test_marks_stay_whole_whatever_else_is_marked(words: list[str], draw: random.Random) -> None:
    """A mark holds a number, and numbers are marked too."""
    source, target = " ".join(words), " ".join(draw.sample(words, len(words)))
    one, two = mark_pair(source, target, scale=100)
    found = [re.findall("⟦[^⟦⟧]*⟧", side) for side in (one, two)]
    assert sorted(found[0]) == sorted(found[1])
    assert all(side.count("⟦") == side.count("⟧") == len(marks) for side, marks in zip((one, two), found, strict=True))
    assert {*found[0]} <= {*MARKS}
    if "⟦" not in source:
        assert len({*found[0]}) == len(found[0])


def test_a_number_in_a_mark_is_no_number_of_the_text() -> None:
    pairs = [(f"Run foo_bar and take 13 of them, item {n}.", f"Nimm 13 davon, foo_bar, {n}.") for n in range(14, 2000)]
    for pair in pairs:
        for side in mark_pair(*pair, scale=2):
            assert re.fullmatch("[^⟦⟧]*(⟦(?:[0-9]|1[0-5])⟧[^⟦⟧]*)*", side), side


def test_names_of_prose_are_marked_now_and_then() -> None:
    pairs = [
        (f"Mr Aa{'bcdefghijk'[n % 10]}{'lmnopqrstu'[n // 10 % 10]} came {'again ' * (n // 100)}.",) for n in range(1000)
    ]
    made = [mark_pair(one, one.replace("Mr", "Herr").replace("came", "kam")) for (one,) in pairs]
    marked = [pair for pair in made if "⟦" in pair[0]]
    assert 60 < len(marked) < 180
    assert all(one.startswith("Mr ⟦") and two.startswith("Herr ⟦") for one, two in marked)


def test_tokenizers_keep_marks_whole() -> None:
    lines = [f"The small cat number {n} sits here." for n in range(300)]
    settings = SentencePiece(vocabulary=400, symbols=MARKS)
    tokenizer = settings.train(lines, lines).tokenizers.source
    for mark in MARKS:
        assert unicodedata.normalize("NFKC", mark) == mark
        for text in (f"The {mark} sits here.", f"({mark})", f"cat{mark}{mark}", mark):
            tokens = tokenizer.encode([text])[0]
            assert tokens.count(tokenizer.token(mark)) == text.count(mark)
            assert tokenizer.decode(tokens) == text
