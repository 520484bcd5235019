"""Lines in and lines out of the command line, and a search named in a few words."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.cli.output import (
    Unsure,
    as_json,
    as_lines,
    chosen_search,
    read_lines,
    sure_enough,
    translations_of,
    with_warnings_named,
    written,
)
from transduce.core.errors import ConfigError, DataError
from transduce.search.settings import Beam, Greedy, Limits, MinimumBayesRisk, Sample, Samples
from transduce.translate.translator import Translation


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_lines_end_at_newline_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("a\r\n\nb\u2028c\x85d\x0ce\u0085\rf\n😀".encode())
    assert list(read_lines(tmp_path / "a")) == ["a", "", "b\u2028c\x85d\x0ce\u0085\rf", "😀"]


@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff")), max_size=5))
def test_what_is_written_is_read_back(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    with written(path) as file:
        file.writelines(f"{line}\n" for line in lines)
    assert path.read_bytes() == "".join(f"{line}\n" for line in lines).encode()
    assert list(read_lines(path)) == lines


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert list(read_lines(tmp_path / "a")) == ["one", "\ufefftwo"]


def test_the_last_newline_may_be_missing_and_nothing_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, lines in ((b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""])):
        stdin(monkeypatch, data)
        assert list(read_lines(None)) == lines


def test_bytes_that_are_no_utf8_are_named_by_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stdin(monkeypatch, b"fine\nna\xefve\n")
    with pytest.raises(DataError, match="standard input:2: not UTF-8 at byte 3 of the line; convert the text to UTF-8"):
        list(read_lines(None))
    (tmp_path / "a").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"a:1: not UTF-8 at byte 1 of the line"):
        list(read_lines(tmp_path / "a"))


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: cannot be read: No such file or directory"):
        list(read_lines(tmp_path / "gone"))
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))
    with (
        pytest.raises(DataError, match="out: cannot be written: No such file or directory"),
        written(tmp_path / "none" / "out"),
    ):
        pass


def test_the_file_that_is_read_is_not_emptied(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("precious\n")
    (tmp_path / "link").symlink_to(text)
    for output in (text, tmp_path / "link"):
        with (
            pytest.raises(DataError, match="is read and written at once, which would empty it"),
            written(output, [text]),
        ):
            pass
    assert text.read_text() == "precious\n"


def test_what_a_file_held_stays_until_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("one\ntwo\n")
    for name, left in (("old", "one\ntwo\n"), ("new", None)):
        path = tmp_path / name
        with pytest.raises(DataError), written(path):
            raise DataError("nothing came")
        assert (path.read_text() if path.exists() else None) == left
    with written(tmp_path / "old") as file:
        file.writelines(["drei\n"])
    assert (tmp_path / "old").read_text() == "drei\n"
    with written(tmp_path / "old"):
        pass  # no line at all is as many as there were
    assert (tmp_path / "old").read_text() == ""


def test_packed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "packed.gz").write_bytes(gzip.compress("fünf\nsix\n".encode()))
    assert list(read_lines(tmp_path / "packed.gz")) == ["fünf", "six"]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"five\n" * 1000)[:-12])
    with pytest.raises(DataError, match=r"cut\.gz:.*the compressed file is cut short or damaged"):
        list(read_lines(tmp_path / "cut.gz"))


def test_standard_output_keeps_its_newlines(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with written(None) as file:
        file.write("ä\u2028\n")
    assert capsysbinary.readouterr().out == "ä\u2028\n".encode()


def test_one_line_a_translation_or_numbered_ones() -> None:
    translation = Translation("a", -1.25, alternatives=(Translation("b", -2.0),))
    assert as_lines(translation, 7, 1) == "a\n"
    assert as_lines(translation, 7, 2) == "7\t-1.2500\ta\n7\t-2.0000\tb\n"
    assert as_lines(Translation(""), 8, 2) == "8\t0.0000\t\n"


def test_json_is_one_line_with_all_that_is_known() -> None:
    line = as_json(Translation("ä\u2028b", -1.5, -2.5, ("▁ä",), False, 2, (Translation("c"),)))
    assert line.count("\n") == 1
    found = json.loads(line)
    assert found.pop("alternatives")[0]["text"] == "c"
    assert found == {
        "text": "ä\u2028b",
        "score": -1.5,
        "log_prob": -2.5,
        "tokens": ["▁ä"],
        "finished": False,
        "parts": 2,
        "alignment": None,
        "protection": "",
        "warnings": [],
        "missing_terms": [],
        "token_log_probs": [],
        "confidence": None,
    }


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [("mark", ["a", "[unsure] b", "c"]), ("source", ["a", "B", "c"]), ("empty", ["a", "", "c"])],
)
def test_too_little_confidence(fallback: Unsure, expected: list[str]) -> None:
    made = [Translation("a", confidence=0.5), Translation("b", confidence=0.49), Translation("c")]
    assert [one.text for one in sure_enough(made, iter("ABC"), 0.5, fallback)] == expected


OWN = SimpleNamespace(search=Beam(size=3, limits=Limits(longest=99)))


SEARCHES = "beam, greedy, sample, mbr, mask_predict, ctc, joint"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size=8", Beam(size=8, limits=Limits(longest=99))),
        ("kind=beam,size=8", Beam(size=8, limits=Limits(longest=99))),
        ('kind="beam", size = 8', Beam(size=8, limits=Limits(longest=99))),
        ("greedy", Greedy()),
        ("kind=greedy", Greedy()),
        ("kind=sample,top_p=0.9,seed=3", Sample(top_p=0.9, seed=3)),
        ("top_p=0.9,kind=sample", Sample(top_p=0.9)),
        ("limits.no_repeat=3,limits.forbid=[4, 5]", Beam(3, limits=Limits(longest=99, no_repeat=3, forbid=(4, 5)))),
        ("mbr", MinimumBayesRisk()),
        ("kind=mbr,utility=bleu,candidates.top_p=0.9", MinimumBayesRisk(Samples(top_p=0.9), utility="bleu")),
        ("kind=mbr,candidates={kind='beam',size=6,n_best=5}", MinimumBayesRisk(Beam(size=6, n_best=5))),
        ("limits={no_repeat=3}", Beam(3, limits=Limits(longest=99, no_repeat=3))),
    ],
)
def test_a_search_in_a_few_words(text: str, expected: Any) -> None:
    assert chosen_search(OWN, text) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("greedy", 1),
        ("kind=beam,size=8", 1),
        ("kind=beam,size=8,n_best=6", 6),
        ("kind=sample,samples=5", 5),
        ("kind=mbr,candidates={kind='beam',size=6,n_best=5}", 1),
        ("kind=mbr,n_best=2,candidates.samples=9", 2),
    ],
)
def test_how_many_a_search_in_a_few_words_asks_for(text: str, count: int) -> None:
    assert translations_of(text) == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "kind=sampel",
            f"search.kind: 'sampel' is not one of {SEARCHES}; did you mean 'sample'?",
        ),
        (
            "gredy",
            f"search.kind: 'gredy' is not one of {SEARCHES}; did you mean 'greedy'?",
        ),
        ("kind=beam,size", "--search: 'kind=beam,size' is no list of settings"),
        ("size=", "expected such as kind=sample,top_p=0.9"),
        ("kind=sample,size=3", "search.size: no such setting"),
        ("size=0", "search.size: expected an integer of at least 1, got 0"),
    ],
)
def test_a_search_that_is_none(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen_search(OWN, text)  # type: ignore[arg-type]
    assert expected in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("text", ["", "a line\n", 100_000 * "x"])
def test_a_full_disk_is_called_one(text: str) -> None:
    """Whether the buffer overflows on the way or at the end; with nothing to write there is nothing to refuse."""
    if not text:
        with written(Path("/dev/full")):
            return
    told = "/dev/full: cannot be written: the disk is full"
    with pytest.raises(DataError, match=told), written(Path("/dev/full")) as file:
        file.write(text)


def test_what_is_wrong_is_named_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Translation("x", warnings=("numbers", "repeated"))
    assert [*with_warnings_named([Translation("x"), wrong, wrong])] == [Translation("x"), wrong, wrong]
    first, second = capsys.readouterr().err.strip().split("\n")
    assert "the translation has other numbers than the text in line 2, 3" in first
    assert "the translation repeats itself in line 2, 3" in second


def test_a_device_may_be_written_to() -> None:
    with written(Path("/dev/null")) as file:
        file.write("a line\n")


def test_lines_that_lack_terms_are_named_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = Translation("x", missing_terms=("Datei", "Karte"))
    every = [Translation("x"), *[lacking] * 12]
    assert [*with_warnings_named(every)] == every
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert "could not be placed in line 2 (Datei, Karte), 3 (Datei, Karte)" in line
    assert line.endswith("11 (Datei, Karte) and 2 more")
    assert [*with_warnings_named([Translation("x")])] == [Translation("x")]
    assert capsys.readouterr().err == ""
