"""Reports in their four forms, sentences that can say no, the command, and its refusals."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import Run, refused
from rich.console import Console

import transduce
from transduce.lab.catalogue import EXPERIMENTS, NAMES, Clock, ExperimentTime, find, index, read_times, record
from transduce.lab.complexity import findings
from transduce.lab.report import READING, Claim, LabReport, LabTable, listed, show, shown, write


def report() -> LabReport:
    table = LabTable("tried", "Numbers", ("name", "value", "none"), (("a|b", 0.123456, None), ("c", 12345, "x")))
    found = Claim("It grew.", held=True), Claim("It fell.", held=False), Claim("It is blue.")

    def draw(figure: object) -> None:
        figure.subplots().plot([1, 2], [3, 4])  # type: ignore[attr-defined]

    return LabReport("length", "A title", "A question?", "On a table.", (table,), found, draw)


def test_a_report_is_written_in_all_its_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(report(), Console(width=120))
    out = capsys.readouterr().out
    assert "as expected: It grew." in out
    assert "NOT as expected: It fell." in out
    assert "seen: It is blue." in out
    assert "0.123" in out
    files = write(report(), tmp_path / "new")
    assert [file.name for file in files] == ["length-tried.csv", "length.png", "length.md"]
    rows = list(csv.reader((tmp_path / "new" / "length-tried.csv").open(encoding="utf-8")))
    assert rows == [["name", "value", "none"], ["a|b", "0.123456", ""], ["c", "12345", "x"]]
    page = (tmp_path / "new" / "length.md").read_text(encoding="utf-8")
    assert "| a\\|b | 0.123 |  |" in page
    assert "- **NOT as expected**: It fell." in page
    assert "![A title](length.png)" in page
    assert (READING / "length.md").read_text(encoding="utf-8").strip() in page
    assert (tmp_path / "new" / "length.png").stat().st_size < 100_000


def test_without_matplotlib_there_is_a_page_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert [file.name for file in write(report(), tmp_path)] == ["length-tried.csv", "length.md"]
    assert "![" not in (tmp_path / "length.md").read_text(encoding="utf-8")


def test_the_index_counts_what_held_and_tells_what_did_not(tmp_path: Path) -> None:
    write(report(), tmp_path)
    page = index(tmp_path, ["speed", "length"]).read_text(encoding="utf-8")
    assert "| [A title](length.md) | A question? | 1 of 2 |  |" in page
    assert "- length: It fell." in page
    assert "speed.md" not in page


def test_times_are_kept_one_an_experiment_and_shown_in_the_index(tmp_path: Path) -> None:
    assert read_times(tmp_path) == {}
    write(report(), tmp_path)
    record(tmp_path, ExperimentTime("length", 99.0, 50.0, 2, ""))
    record(tmp_path, ExperimentTime("decoding", 12.5, 20.0, 2, "steps=3 rows=['all', \"a,b\"]"))
    record(tmp_path, ExperimentTime("length", 61.4, 30.0, 2, ""))
    assert (tmp_path / "times.csv").read_text(encoding="utf-8").split("\n")[:2] == [
        "experiment,seconds,worked,cores,settings",
        'decoding,12.5,20.0,2,"steps=3 rows=[\'all\', ""a,b""]"',
    ]
    assert read_times(tmp_path)["decoding"].settings == "steps=3 rows=['all', \"a,b\"]"
    assert read_times(tmp_path)["length"] == ExperimentTime("length", 61.4, 30.0, 2, "")
    page = index(tmp_path, ["speed", "length"]).read_text(encoding="utf-8")
    assert "| [A title](length.md) | A question? | 1 of 2 | 61.4 |" in page
    assert "`times.csv`" in page


def test_the_clock_tells_work_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is the processor time of this process and of those that it waited for, of users and of the kernel."""
    passed, worked = iter([100.0, 161.44]), iter([(5.0, 1.0, 2.0, 0.5, 7.0), (25.0, 2.0, 11.0, 0.75, 999.0)])
    monkeypatch.setattr("transduce.lab.catalogue.time", SimpleNamespace(perf_counter=lambda: next(passed)))
    monkeypatch.setattr(os, "times", lambda: next(worked))
    took = Clock().took("length", ["steps=3"])
    assert (took.seconds, took.worked, took.settings) == (61.4, 30.2, "steps=3")
    assert took.cores >= 1


def test_numbers_are_short_and_lists_are_read_aloud() -> None:
    assert [shown(cell) for cell in (None, 3, 12345, 0.00012345, 1234.5, "a")] == [
        "",
        "3",
        "12,345",
        "0.000123",
        "1,234",
        "a",
    ]
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_every_experiment_has_a_page_to_read_and_a_function() -> None:
    assert sorted(path.stem for path in READING.glob("*.md")) == sorted(NAMES)
    for experiment in EXPERIMENTS:
        assert getattr(transduce.lab, experiment.name.replace("-", "_")) is experiment.run
        assert find(experiment.name.replace("-", "_")) is experiment


def test_complexity_small_and_what_it_says_when_numbers_are_not_so() -> None:
    small = transduce.lab.Complexity(lengths=(64, 128), widths=(64, 128), length=16, batch=1, repeats=1, device="cpu")
    result = transduce.lab.complexity(small)
    assert [layer.kind.name for layer in result.layers][:2] == ["self-attention", "recurrent"]
    powers, _, raw = result.report().tables
    assert powers.headings[-4:] == ("time: n^", "d^", "memory: n^", "d^")
    # of attention the weights are kept, n² in each head of 64; of what is kept of a convolution all is n d
    assert [row[-2:] for row in powers.rows if row[0] == "self-attention"] == [("2.00 ± 0.00", "1.00 ± 0.00")]
    assert result.power(result.layers[2], "kept_over_width").value == pytest.approx(1, abs=0.05)
    kept = {(row[0], row[1], row[2]): row[5] for row in raw.rows}
    assert kept["self-attention", 16, 128] == 2 * 16 * 16 * 4 / 2**20
    assert None not in kept.values()
    paths, waits, crossing = (finding for finding in findings(result)[2:5])
    assert (paths.held, waits.held, crossing.held) == (True, True, True)
    assert "exactly at n = d" in crossing.text
    first, *others = result.layers
    as_if = {"seconds_over_length": (1.0, 8.0), "paths": (1, 1, 1, 1, 2), "operations_over_length": (1, 2, 3, 4)}
    wrong = replace(result, layers=(replace(first, **as_if), *others))
    told = findings(wrong)
    assert "self-attention 3.00 ± 0.00 (table: 2)" in told[0].text
    assert "Off by more than 0.3: self-attention" in told[0].text
    assert told[0].held is False
    assert "Wrong: self-attention at n = 64: 2, not 1." in told[2].text
    assert "they cross elsewhere" in told[4].text
    timed = replace(first, seconds_over_length=(1.0, 4.0)), replace(others[0], seconds_over_length=(4.0, 8.0))
    assert replace(result, layers=(*timed, *others[1:])).crossing() == pytest.approx(256)


def test_the_scaling_factor_on_the_command_line(run: Run, tmp_path: Path) -> None:
    ran = run("lab", "scaling-factor", "keys=8", "widths=[1,4,64]", "device=cpu", "--output", tmp_path)
    assert ran.code == 0
    assert "footnote 4 says d_k^1" in ran.out.decode()
    assert "NOT as expected" not in ran.out.decode()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["README.md", "scaling-factor.csv", "scaling-factor.md", "scaling-factor.png", "times.csv"]
    recorded = read_times(tmp_path)["scaling-factor"]
    assert recorded.settings == "keys=8 widths=[1,4,64] device=cpu"
    assert 0 < recorded.seconds < 600
    assert f"scaling-factor: {recorded.seconds:.1f} seconds on {recorded.cores} cores, which" in ran.out.decode()
    rows = list(csv.DictReader((tmp_path / "scaling-factor.csv").open(encoding="utf-8")))
    by_width = {int(row["d_k"]): float(row["variance of scores"]) for row in rows if row["score"] == "dot product"}
    assert by_width[64] == pytest.approx(64, rel=0.15)


def test_the_command_alone_lists_the_experiments(run: Run) -> None:
    assert [line.split()[0] for line in run("lab").lines] == NAMES


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["spede"], "lab: no experiment is called 'spede'; there are complexity, speed"),
        (["speed", "stesp=3"], "stesp: no such setting; did you mean 'steps'?"),
        (["speed", "steps=0"], "steps: expected at least 1, got 0"),
        (["speed", "quality=0"], "quality: expected a chrF above 0 and at most 100, got 0"),
        (["speed", "width=12"], "width: expected a multiple of 8, for as many heads, got 12"),
        (["speed", "lengths=[1]"], "lengths: expected lengths of sentences, at least 2 tokens each, got [1]"),
        (["complexity", "lengths=[8]"], "lengths: expected at least two numbers, growing, got [8]"),
        (["complexity", "widths=[64,100]"], "widths: heads are 64 wide; expected less, or a multiple of it, got 100"),
        (["complexity", "kernel=2"], "kernel: expected an odd number of at least 3, got 2"),
        (["complexity", "repeats=0"], "repeats: a laboratory needs at least 1, got 0"),
        (["scaling-factor", "widths=[1]"], "widths: expected two values of d_k or more, each at least 1, got [1]"),
        (["scaling-factor", "keys=1"], "keys: expected at least 2 keys and queries, got 1 and 512"),
        (
            ["norms", "batch_sizes=[1]"],
            "batch_sizes: expected batches of 2 sentences or more, and tokens of 16 or more, got",
        ),
        (["positions", "schemes=['rotery']"], "schemes: expected some of sinusoidal, learned"),
        (["positions", "longest=2"], "longest: expected at least 4 letters, got 2"),
        (["length", "longest=1"], "longest: expected strings of 4 letters at least, got 1"),
        (["length", "ranges=1"], "ranges: expected at least 2 to compare, got 1"),
        (["exposure", "noise=2.0"], "noise: expected shares from 0 to 1, got [2.0]"),
        (["teacher-forcing", "lengths=[1]"], "lengths: expected targets of 2 tokens or more in rows, got [1]"),
        (["decoding", "iterations=[0]"], "iterations: expected some numbers of mask-predict's passes, got [0]"),
        (["decoding", "training_factor=0.5"], "training_factor: expected 1 or more, got 0.5"),
        (["table3", "steps=0"], "steps: a comparison needs at least 1, got 0"),
        (["table3", "rows=['A-heads-1']"], "rows: expected 'base' among them, which the others are compared with"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(
    words: list[str], expected: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refused(run("lab", *words))
    assert not list(tmp_path.iterdir())
