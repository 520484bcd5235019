"""The data doctor: each fault of an input zoo with its documented outcome, and the checks over whole corpora."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from transduce.core.errors import ConfigError, DataError
from transduce.data.doctor.checks import Doctor, HashStore, hash_text, repeats, shared
from transduce.data.doctor.report import CorpusReport, DataIssue, DoctorReport
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, examine
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece

Pair = tuple[bytes | str, bytes | str]


def write_pairs(folder: Path, name: str, pairs: list[Pair]) -> ParallelText:
    sides = ["source", "target"]
    for number, side in enumerate(sides):
        lines = [pair[number] for pair in pairs]
        content = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
        (folder / f"{name}.{side}").write_bytes(content)
    return ParallelText(*(str(folder / f"{name}.{side}") for side in sides), name=name)


def run(folder: Path, train: list[Pair], valid: list[Pair] | None = None, doctor: Doctor | None = None) -> DoctorReport:
    config = Prepare(
        output=str(folder / "out"),
        train=(write_pairs(folder, "train", train),),
        valid=(write_pairs(folder, "valid", valid),) if valid else (),
        doctor=doctor or Doctor(),
    )
    return examine(config)


def findings(report: DoctorReport, corpus: int = 0) -> dict[str, tuple[str, int]]:
    return {finding.check: (finding.outcome, finding.count) for finding in report.corpora[corpus].findings}


GOOD: list[Pair] = [(f"good source {n}", f"gutes Ziel {n}") for n in range(3)]
ZOO: dict[str, tuple[Pair, dict[str, str], dict[str, str]]] = {
    # name: (the pair, what becomes of it in train, what becomes of it in valid)
    "invalid utf-8": ((b"caf\xe9", "x"), {"invalid_utf8": "refused"}, {"invalid_utf8": "refused"}),
    "half a character": (("x", "é".encode()[:1]), {"invalid_utf8": "refused"}, {"invalid_utf8": "refused"}),
    "surrogate as bytes": ((b"\xed\xa0\x80", "x"), {"invalid_utf8": "refused"}, {"invalid_utf8": "refused"}),
    "NUL": (("a\0b", "x"), {"control": "cleaned"}, {"control": "kept"}),
    "C0": (("a\x07b", "x"), {"control": "cleaned"}, {"control": "kept"}),
    "C1": (("a\x9bb", "x"), {"control": "cleaned"}, {"control": "kept"}),
    "form feed": (("a\x0cb", "x"), {"control": "cleaned"}, {"control": "kept"}),
    "carriage return inside": (("a\rb", "x"), {"control": "cleaned"}, {"control": "kept"}),
    "only controls": (("\x01\x02", "x"), {"control": "cleaned", "empty": "dropped"}, {"control": "kept"}),
    "line separators": (("a\u2028b\u2029c\u0085d", "x"), {}, {}),
    "tab": (("a\tb", "x"), {}, {}),
    "CRLF": (("a\r", "x"), {"carriage_return": "cleaned"}, {"carriage_return": "cleaned"}),
    "2 MB line": (("x" * 2_000_000, "x"), {"too_long": "dropped"}, {"too_long": "refused"}),
    "long line": (("x" * 6_000, "y" * 6_000), {"too_long": "dropped"}, {"too_long": "kept"}),
    "empty": (("", "x"), {"empty": "dropped"}, {"empty": "kept"}),
    "both empty": (("", ""), {"empty": "dropped"}, {"empty": "kept"}),
    "blank": (("x", " \t\u3000"), {"empty": "dropped"}, {"empty": "kept"}),
    "punctuation": (("?!", "..."), {}, {}),
    "emoji": (("👩\u200d👩\u200d👧", "🇩🇪"), {}, {}),
    "right to left": (("שלום \u202eעולם", "مرحبا"), {}, {}),
    "combining": (("e\u0301\u0323", "é"), {}, {}),
    "copied": (("same", "same"), {"copied": "kept"}, {"copied": "kept"}),
    "ratio": (("short", "long " * 60), {"ratio": "dropped"}, {"ratio": "kept"}),
    "short is no ratio": (("好。", "That is very well indeed."), {}, {}),
}


@pytest.mark.parametrize("name", ZOO)
def test_zoo(tmp_path: Path, name: str) -> None:
    pair, in_train, in_valid = ZOO[name]
    report = run(tmp_path, [*GOOD, pair], [("v1", "w1"), pair])
    train, valid = ({f.check: f.outcome for f in c.findings if "overlap" not in f.check} for c in report.corpora)
    assert train == in_train
    assert valid == in_valid
    leaves = {"dropped", "refused"} & set(in_train.values())
    overlaps = 0 if leaves or "refused" in in_valid.values() else 1
    assert report.count("overlap_with_valid") == overlaps
    assert report.corpora[0].kept == 4 - bool(leaves) - overlaps
    for corpus, line in zip(report.corpora, (4, 2), strict=True):
        for finding in corpus.findings:
            if finding.outcome != "cleaned" or finding.check == "control":
                assert f":{line}: " in finding.places[0]


def test_excerpts_are_short_and_escaped(tmp_path: Path) -> None:
    report = run(
        tmp_path, [*GOOD, ("a\0b\u202e", "x"), (b"ok " * 50 + b"\xff" + b"ok" * 50, "y"), ("x" * 2_000_000, "z")]
    )
    control, invalid, long = (report.corpora[0].findings[n].places[0] for n in range(3))
    assert control == f"{tmp_path}/train.source:4: 'a\\x00b\\u202e'"
    assert "\\xff" in invalid
    assert len(invalid) < len(str(tmp_path)) + 110
    assert long.endswith("…")


def test_only_the_first_places_are_kept(tmp_path: Path) -> None:
    report = run(tmp_path, [*GOOD, *[("", f"x{n}") for n in range(50)]])
    finding = report.corpora[0].findings[0]
    assert finding.count == 50
    assert [place.split(":")[1] for place in finding.places] == ["4", "5", "6"]


@pytest.mark.parametrize(
    ("pair", "settings", "outcome"),
    [
        ((b"\xff", "x"), {"invalid_utf8": "drop"}, "dropped"),
        (("a\0", "x"), {"control": "drop"}, "dropped"),
        (("a\0", "x"), {"control": "refuse"}, "refused"),
        (("a\0", "x"), {"control": "keep"}, "kept"),
        (("", "x"), {"empty": "keep"}, "kept"),
        (("", "x"), {"empty": "refuse"}, "refused"),
        (("x" * 101, "y" * 90), {"longest_characters": 100}, "dropped"),
        (("x" * 101, "y" * 90), {"longest_characters": 100, "too_long": "refuse"}, "refused"),
        (("same", "same"), {"copied": "drop"}, "dropped"),
        (("x", "y" * 30), {"largest_ratio": 2.0}, "dropped"),
        (("x", "y" * 300), {"ratio": "keep"}, "kept"),
    ],
)
def test_settings_decide(tmp_path: Path, pair: Pair, settings: dict[str, str], outcome: str) -> None:
    report = run(tmp_path, [*GOOD, pair], doctor=Doctor(**settings))  # type: ignore[arg-type]
    assert [finding.outcome for finding in report.corpora[0].findings] == [outcome]
    assert report.corpora[0].kept == 3 + (outcome == "kept")
    assert bool(report.refused) is (outcome == "refused")


def test_duplicates_across_corpora_but_not_across_tags(tmp_path: Path) -> None:
    first = write_pairs(tmp_path, "first", [("a b", "c"), ("a  b", "c"), ("x", "y")])
    second = write_pairs(tmp_path, "second", [("a b", "c"), ("a b", "d")])
    tagged = ParallelText(first.source, first.target, tag="<2de>", name="tagged")
    report = examine(Prepare(output="unused", train=(first, second, tagged)))
    assert findings(report, 0) == {"duplicates": ("dropped", 1)}
    assert findings(report, 1) == {"duplicates": ("dropped", 1)}
    assert findings(report, 2) == {"duplicates": ("dropped", 1)}
    assert report.corpora[1].findings[0].places == (f"{second.source}:1: as in {first.source}:1",)
    kept = examine(Prepare(output="unused", train=(first, second), doctor=Doctor(duplicates="keep")))
    assert findings(kept, 0) == {"duplicates": ("kept", 1)}
    assert kept.corpora[0].kept == 3


def test_overlap_with_held_out_text(tmp_path: Path) -> None:
    train = [("a", "b"), ("a", "other"), ("c", "d"), ("c", "d"), ("e", "f")]
    report = run(tmp_path, train, [("a", "b"), ("c", "d")])
    assert findings(report) == {"overlap_with_valid": ("dropped", 3), "source_overlap_with_valid": ("kept", 1)}
    assert report.corpora[0].kept == 2
    assert report.corpora[0].findings[0].places[0].endswith(f"train.source:1: as in {tmp_path}/valid.source:1")
    kept = run(tmp_path, train, [("a", "b")], Doctor(overlap="keep"))
    assert findings(kept) == {
        "overlap_with_valid": ("kept", 1),
        "source_overlap_with_valid": ("kept", 1),
        "duplicates": ("dropped", 1),
    }
    refused = run(tmp_path, train, [("a", "b")], Doctor(overlap="refuse"))
    assert "overlap_with_valid: 1 refused" in refused.refused[0]


def sentence(draw: random.Random, words: str) -> str:
    return " ".join(draw.choices(words.split(), k=8))


ENGLISH = "the of and to a in is that it was for on are with as his they be at one have this from"
GERMAN = "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an"


def test_swapped_sides_are_noticed(tmp_path: Path) -> None:
    draw = random.Random(0)
    pairs: list[Pair] = [(sentence(draw, ENGLISH), sentence(draw, GERMAN)) for _ in range(200)]
    straight, more = write_pairs(tmp_path, "straight", pairs[:80]), write_pairs(tmp_path, "more", pairs[80:150])
    swapped = write_pairs(tmp_path, "swapped", [(target, source) for source, target in pairs[150:]])
    report = examine(Prepare(output="unused", train=(straight, swapped), valid=(more,)))
    assert [findings(report, number).get("swapped") for number in range(3)] == [None, ("warning", 50), None]
    assert report.corpora[1].kept == 50
    fine = examine(Prepare(output="unused", train=(straight,), valid=(more,)))
    assert fine.count("swapped") == 0
    other = ParallelText(swapped.source, swapped.target, tag="<2en>")
    tagged = examine(Prepare(output="unused", train=(straight, other), valid=(more,)))
    assert tagged.count("swapped") == 0  # another direction, not a mistake


def test_unknown_characters_of_a_given_tokenizer(tmp_path: Path) -> None:
    lines = [f"plain words {n}" for n in range(50)]
    tokenizer = SentencePiece(vocabulary=60, byte_fallback=False, character_coverage=1.0)
    tokenizer.train(lines, lines).tokenizers.save(tmp_path)
    text = write_pairs(tmp_path, "train", [("plain 漢", "words"), ("plain 漢字", "plain words")])
    given = GivenTokenizer(shared=str(tmp_path / "shared.model"))
    finding = examine(Prepare(output="unused", train=(text,), tokenizer=given)).corpora[0].findings[0]
    assert (finding.check, finding.outcome, finding.count) == ("unknown_characters_in_source", "kept", 3)
    assert finding.note == "20.0000% of the characters, written as the unknown token; such as '漢字'"


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=3)))
@settings(max_examples=50, deadline=None)
def test_hash_stores_against_plain_sets(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], second: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("hashes")
    stores = [HashStore(folder / "a"), HashStore(folder / "b")]
    for store, texts in zip(stores, (first, second), strict=True):
        store.add(np.array([hash_text(text) for text in texts], np.uint64))
    keys = [[" ".join(text.split()) for text in texts] for texts in (first, second)]
    same = repeats(stores[0], lambda positions: np.zeros(len(positions), np.int64))
    found = sorted((int(p), int(f)) for here, there in same for p, f in zip(here, there, strict=True))
    assert found == [(n, keys[0].index(key)) for n, key in enumerate(keys[0]) if key in keys[0][:n]]
    common = sorted((int(p), int(f)) for here, there in shared(*stores) for p, f in zip(here, there, strict=True))
    assert common == [(n, keys[1].index(key)) for n, key in enumerate(keys[0]) if key in keys[1]]


def test_report_renders(tmp_path: Path) -> None:
    finding = DataIssue("control", "refused", 2, ("a.en:7: '[/red] [bold]x'",), "a note")
    report = DoctorReport((CorpusReport("train", "news [red]", 10, 8, (finding,)),), ("something was lowered",))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.render())
    shown = console.export_text()
    assert "'[/red] [bold]x'" in shown
    assert "news [red]" in shown
    assert report.as_text() == (
        "train, news [red]: 8 of 10 pairs kept\n  control: 2 refused (a note)\n"
        "    a.en:7: '[/red] [bold]x'\nsomething was lowered\n"
    )
    assert report.as_dict()["corpora"][0]["findings"][0]["count"] == 2
    assert report.refused == ("train, news [red]: control: 2 refused\n  a.en:7: '[/red] [bold]x'",)


def test_structural_faults_are_refused_at_once(tmp_path: Path) -> None:
    text = write_pairs(tmp_path, "train", GOOD)
    Path(text.target).write_bytes(b"only one\n")
    with pytest.raises(DataError, match=r"has 3 lines but .* has 1"):
        examine(Prepare(output="unused", train=(text,)))
    empty = write_pairs(tmp_path, "valid", [])
    with pytest.raises(DataError, match="valid, valid: no lines; leave this corpus out"):
        examine(Prepare(output="unused", train=(write_pairs(tmp_path, "train", GOOD),), valid=(empty,)))


def test_settings_messages() -> None:
    with pytest.raises(ConfigError, match="longest_characters: expected at least 1, got 0"):
        Doctor(longest_characters=0)
    with pytest.raises(ConfigError, match=r"largest_ratio: expected at least 1, got 0\.5"):
        Doctor(largest_ratio=0.5)
