"""Sentences and their spacing, HTML and its tags: nothing is lost, and everything stands where it belongs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import transduce
from transduce.server.markup import Layout, Passage, Piece, passages, placed
from transduce.text.alignment import Alignment
from transduce.text.markup import _end_of_words
from transduce.text.segment import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith met J. Doe at 5 p.m. on the 3. May", ["Dr. Smith met J. Doe at 5 p.m. on the 3. May"]),
        ("A sign of E.S.E. Electronics in the U.S.A. now", ["A sign of E.S.E. Electronics in the U.S.A. now"]),
        ("It cost 3.50. He said so.", ["It cost 3.50.", "He said so."]),
        ("Wait... what? “Yes.” She left.", ["Wait... what?", "“Yes.”", "She left."]),
        ("你好。再见！走吧", ["你好。", "再见！", "走吧"]),
        ("one. two", ["one. two"]),
        ("Ja, z.B. Hunde. Und Katzen (viele). Ende", ["Ja, z.B. Hunde.", "Und Katzen (viele).", "Ende"]),
        ("a\nb\n\nc", ["a", "b", "c"]),
        ("a\r\nb \rc\u2028d\x85e\vf\fg", [*"abcdefg"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert [part.text for part in sentences(text) if part.text] == expected


@given(st.text(alphabet="ab .!?。\n\t A1", max_size=40) | st.text(max_size=30))
def test_nothing_is_lost(text: str) -> None:
    parts = sentences(text)
    assert "".join(part.text + part.space for part in parts) == text
    assert all(part.text == part.text.strip() for part in parts)
    for whole in (True, False):
        layout = Layout.of(text, whole)
        assert "".join(part.text + part.space for part in layout.parts) == text


def test_spaces_between_sentences_follow_the_language() -> None:
    assert Layout.of(" One. Two.\n  Three. ").joined(["1", "2", "3"], "de") == " 1 2\n  3 "
    assert Layout.of("One. Two.\n Three.").joined(["1", "2", "3"], "zh") == "12\n 3"
    assert Layout.of("你好。再见。").joined(["Hello.", "Bye."], "en") == "Hello. Bye."
    assert Layout.of("你好。再见。").joined(["甲", "乙"], "zh-Hans") == "甲乙"
    assert Layout.of(" \n ").joined([], "de") == " \n "
    breaks = "One. \r\n\r\n\tTwo.\rThree\u2028Four  \r\n"
    assert Layout.of(breaks).joined(["1", "2", "3", "4"], "zh") == "1 \r\n\r\n\t2\r3\u20284  \r\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello! 😀 How are you?", ["Hello!", "How are you?"]),
        ("I love pizza 🍕👍🏽", ["I love pizza"]),
        ("👩‍👩‍👧 We ❤️ you!", ["We ❤️ you!"]),
        ("- One cat\n* Two dogs\n  • Three birds", ["One cat", "Two dogs", "Three birds"]),
        ("> He said no.\n## The end", ["He said no.", "The end"]),
        ("-----\nOne\n* * *\nTwo …\n😀\n...", ["One", "Two …"]),
        ("-5 degrees. 3 - 2 = 1", ["-5 degrees.", "3 - 2 = 1"]),
        ("😀", []),
    ],
)  # fmt: skip
def test_pictures_and_marks_stay_where_they_are(text: str, expected: list[str]) -> None:
    layout = Layout.of(text)
    assert layout.texts == expected
    assert layout.joined(expected, "de") == text


def test_pictures_stay_in_html_too() -> None:
    (_, passage, _) = passages("<p>Hello! 😀 How are you? &lt;3</p>")
    assert isinstance(passage, Passage)
    assert passage.sentences() == [Passage("Hello!"), " ", "😀 ", Passage("How are you?"), " ", Passage("<3")]
    (tagged,) = passages("<b>😀</b> Hello!")
    assert isinstance(tagged, Passage)
    assert [one.text for one in tagged.sentences() if isinstance(one, Passage)] == ["😀 Hello!"]


def test_what_holds_no_word_is_given_back(client: TestClient) -> None:
    asked = {"q": "😀\n* * *", "source": "en", "target": "de", "alternatives": 1}
    assert client.post("/translate", json=asked).json() == {"translatedText": asked["q"], "alternatives": []}
    found = client.post("/v1/translate", json={"text": "🍕 five 🍕", "source": "en", "target": "de"}).json()
    (one,) = found["translations"]
    assert one["before"] + "".join(part["text"] + part["space"] for part in one["sentences"]) == one["text"]
    assert [part["source"] for part in one["sentences"]] == ["five"]
    assert (one["text"][:2], one["text"][-2:]) == ("🍕 ", " 🍕")


def untranslated(pieces: list[Piece]) -> str:
    """All pieces as they came."""
    found = []
    for piece in pieces:
        if isinstance(piece, str):
            found.append(piece)
        else:
            found += [untranslated(piece.split_at_tags()) if piece.tags else placed(piece, piece.text, None) or ""]
    return "".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "<p>One <b>two</b> three.</p>",
        "plain &amp; simple",
        "<div class='a>b'><br/>x<!-- <p>no</p> --><i>y</i></div>",
        "<script>if (a<b) c()</script> t <code>x = 1</code>",
        "<!doctype html><html><body>a</body></html>",
        "a < b and c > d".replace("<", "&lt;").replace(">", "&gt;"),
        "<b><i>both</i></b><span></span>",
        "<pre>a <pre>b</pre> c</pre> d",
    ],
)
def test_html_that_nobody_translates_is_unchanged(text: str) -> None:
    assert untranslated(passages(text)) == text
    apart = [one for piece in passages(text) for one in (piece.sentences() if isinstance(piece, Passage) else [piece])]
    assert untranslated(apart) == text


@given(st.text(alphabet="<>/ab \"'=!-&;.", max_size=60))
def test_no_html_is_too_broken(text: str) -> None:
    pieces = passages(text)
    for piece in pieces:
        if isinstance(piece, Passage):
            assert piece.text.strip()
            piece.sentences()


def test_html_s_lines_may_end_anywhere(client: TestClient, served_translator: transduce.Translator) -> None:
    """A line break is a space to a browser; a blank line parts, and what stands between sentences stays."""
    (passage,) = passages("One\n  <b>two</b>\r\nthree.\n Four\n\nFive")
    assert isinstance(passage, Passage)
    parts = passage.sentences()
    found = [part.text if isinstance(part, Passage) else part for part in parts]
    assert found == ["One\n  two\r\nthree.", "\n ", "Four", "\n\n", "Five"]
    asked = {"q": "<p>\n  sixty-two,\n  eleven\n</p>", "source": "en", "target": "de", "format": "html"}
    expected = served_translator("sixty-two, eleven", to="de")
    assert client.post("/translate", json=asked).json()["translatedText"] == f"<p>\n  {expected}\n</p>"


def texts(html: str) -> list[str]:
    return [piece.text for piece in passages(html) if isinstance(piece, Passage)]


def test_what_is_translated() -> None:
    html = '<p>A <b>big</b> dog</p><style>p {}</style><p translate="no">Name</p><td>x &lt; y</td><code>z</code>'
    assert texts(html) == ["A big dog", "x < y"]
    assert texts("<img translate=\"no\"> five <br translate=no> six <p TRANSLATE = 'No'>seven</p> eight") == [
        " five ",
        " six ",
        " eight",
    ]
    assert texts('<p data-translate="no">one</p><p title=" translate=no ">two</p><p translate=none>three</p>') == [
        "one",
        "two",
        "three",
    ]
    (passage,) = passages("One <b>two. Three</b> four.")
    assert isinstance(passage, Passage)
    assert [one.text for one in passage.sentences() if isinstance(one, Passage)] == ["One two.", "Three four."]
    assert texts("<p>One\ntwo</p>") == ["One\ntwo"]
    assert Passage("One\ntwo\n\nthree\n\n\nfour").sentences() == [
        *(Passage("One\ntwo"), "\n\n"),
        *(Passage("three"), "\n\n\n"),
        Passage("four"),
    ]


def test_text_between_tags_are_written_as_they_were() -> None:
    (passage,) = passages('One <b>"</b> two &amp; <i>&lt;</i>')
    assert isinstance(passage, Passage)
    written = [piece for piece in passage.split_at_tags() if isinstance(piece, str)]
    assert written == ["<b>", '"', "</b>", "<i>", "&lt;", "</i>"]


def test_a_tag_without_a_link_stands_before_the_word_at_its_share_of_the_text() -> None:
    assert _end_of_words(Passage("aaaa bbbb"), 5, "xx yyyy") == 3
    assert _end_of_words(Passage("aaaa bbbb"), 5, "一二三四") == 2
    assert [_end_of_words(Passage("aaaa"), at, "xx yy") for at in (0, 4)] == [0, 5]


def test_tags_follow_their_words() -> None:
    (passage,) = passages("the <b>red</b> car <i>here</i>")
    assert isinstance(passage, Passage)
    source, target = ("▁the", "▁red", "▁car", "▁here"), ("▁hier", "▁la", "▁voiture", "▁rouge")
    alignment = Alignment(source, target, (), ((0, 1), (1, 3), (2, 2), (3, 0)))
    found = placed(passage, "hier la voiture rouge", alignment)
    assert found == "<i>hier</i> la voiture <b>rouge</b>"
    crossed = Alignment(source, target, (), ((1, 0), (3, 1), (1, 3)))
    assert placed(passage, "hier la voiture rouge", crossed) is None
    assert placed(passage, "etwas anderes", alignment) is None  # these pieces do not spell it
    (marks,) = passages("<b>one</b>, <i>two</i>.")
    assert isinstance(marks, Passage)
    assert [one.text for one in marks.split_at_tags() if isinstance(one, Passage)] == ["one", "two"]  # no model says it
    assert untranslated(marks.split_at_tags()) == "<b>one</b>, <i>two</i>."
    (nested,) = passages("<a href='x'>the <b>red</b></a> car")
    assert isinstance(nested, Passage)
    linked = Alignment(source[:3], target[1:], (), ((0, 0), (1, 2), (2, 1)))
    assert placed(nested, "la voiture rouge", linked) == "<a href='x'>la voiture <b>rouge</b></a>"


@pytest.mark.parametrize(
    ("html", "target", "links", "expected"),
    [
        ("the <b>red</b> car", ("▁das", "▁rot", "e", "▁Auto"), ((0, 0), (1, 1), (2, 3)), "das <b>rote</b> Auto"),
        ("the <b>red</b> car", ("▁das", "▁un", "rot", "▁Auto"), ((0, 0), (1, 2), (2, 3)), "das <b>unrot</b> Auto"),
        ("the <b>red</b> <i>car</i>", ("▁das", "▁Rot", "auto"), ((0, 0), (1, 1), (2, 2)), "das <b>Rot</b><i>auto</i>"),
        ("the r<b>ed</b> car", ("▁das", "▁r", "ot"), ((0, 0), (2, 2)), "das r<b>ot</b>"),
        ("the <b>red</b> car", ("红", "车"), ((1, 0), (2, 1)), "<b>红</b>车"),
        ("the </b> red car", ("▁Rotauto",), ((1, 0),), "</b>Rotauto"),
    ],
)
def test_tags_stand_beside_words(
    html: str, target: tuple[str, ...], links: tuple[tuple[int, int], ...], expected: str
) -> None:
    """Not in the middle of one, unless they did so in the source, or two elements are in one word."""
    (passage,) = passages(html)
    assert isinstance(passage, Passage)
    source = ("▁the", "▁r", "ed", "▁car") if "r<b>" in html else ("▁the", "▁red", "▁car")
    text = "".join(target).replace("▁", " ").strip()
    assert placed(passage, text, Alignment(source, target, (), links)) == expected


def test_html_over_http(client: TestClient, served_translator: transduce.Translator) -> None:
    def ask(text: str) -> str:
        asked = {"q": text, "source": "en", "target": "de", "format": "html"}
        return str(client.post("/translate", data=asked).json()["translatedText"])

    five = served_translator("five", to="de")
    assert ask("<p> five </p>\n<ul><li>five</li></ul>") == f"<p> {five} </p>\n<ul><li>{five}</li></ul>"
    tagged = ask('<p>sixty-two <b class="x">five</b>, eleven</p>')
    assert tagged.startswith("<p>")
    assert tagged.index('<b class="x">') < tagged.index("</b>")
    assert ask("<code>five</code>") == "<code>five</code>"


def test_html_that_means_no_good_takes_no_time() -> None:
    begun = time.process_time()
    for text in ("<a" * 2500, "<!" * 2500, "<a '" * 1250, '<a "<' * 1000, "<b>x</b>" * 600, "<b>" * 1600 + "x"):
        for piece in passages(text):
            for one in piece.sentences() if isinstance(piece, Passage) else ():
                if isinstance(one, Passage):
                    placed(one, one.text, Alignment((one.text,), (one.text,), (), ((0, 0),)))
    assert time.process_time() - begun < 1
