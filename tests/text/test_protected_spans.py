"""Marks for protected spans: which spans are found, and that both sides of a pair get the same marks."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.text.protect import _HINT, MARKS, RULES, find_spans, mark_pair
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


@pytest.mark.parametrize("text", ["I am 100% sure that a and/or b goes at most 5 km/h, e.g. here.", "Wait... what?"])
def test_prose_has_nothing_to_protect(text: str) -> None:
    assert [span for span in find_spans(text) if not span.learned] == []


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
