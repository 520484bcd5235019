"""Experiments that train, made so small that only their working is seen: every number there, every sentence said."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import transduce
from transduce.core.errors import ConfigError, RunError
from transduce.lab import table3
from transduce.lab.exposure import by_part, hits
from transduce.lab.learning import TRANSFORMER, TrainingExperiment
from transduce.lab.norms import batch_effect, worked_example
from transduce.lab.positions import letters_right, products, shift_error
from transduce.lab.report import LabReport, write
from transduce.lab.tasks import copying, number_words, strings
from transduce.lab.teacher_forcing import one_by_one, together
from transduce.model.norms import BatchNorm, LayerNorm
from transduce.training.loop import Outcome
from transduce.workflows.compare.plan import ComparisonPlan
from transduce.workflows.compare.results import Figure, Results, Row
from transduce.workflows.compare.run import ComparisonOutcome

TINY = (
    "data.tokens=96",
    "model.d_model=16",
    "validation.sentences=4",
)


@pytest.fixture(scope="module")
def strings_to_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copying(150, range(4, 9), 24, 1).prepare(tmp_path_factory.mktemp("strings"))


def checked(report: LabReport, folder: Path, name: str) -> None:
    """All of it can be written, and every cell of a number is one."""
    assert report.name == name
    write(report, folder)
    for table in report.tables:
        assert table.rows
        for row in table.rows:
            assert len(row) == len(table.headings)
            assert all(not isinstance(cell, float) or math.isfinite(cell) for cell in row), row
    assert all(finding.text.endswith(".") for finding in report.findings)
    assert (folder / f"{name}.png").stat().st_size < 100_000


def told(corpus: Path, kind: Callable[..., TrainingExperiment], **more: object) -> TrainingExperiment:
    return kind(corpus=str(corpus), overrides=TINY, device="cpu", **{"steps": 2, **more})


def test_speed(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.speed(told(strings_to_copy, lab.Speed, lengths=(4, 8), repeats=1, quality=1.0))
    assert result.families[0].name == "Transformer"
    assert [one.waits for one in result.families] == [False, True, True, True, False]
    assert result.families[1].name == "RNN without attention"
    assert result.families[1].parameters < result.families[2].parameters  # what attends has weights for it
    checked(result.report(), tmp_path, "speed")
    slow = replace(result.families[1], pace=(100.0, 1.0))
    gained = replace(result, families=(replace(result.families[0], pace=(100.0, 100.0)), slow)).report().findings[0]
    assert "1.00 at 4, 100.00 at 8" in gained.text
    assert gained.held is True
    never = replace(result, families=tuple(replace(one, reached=0) for one in result.families)).report()
    assert "None reached chrF 1 in 2 steps." in [finding.text for finding in never.findings]


def test_norms(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.norms(told(strings_to_copy, lab.Norms, batch_sizes=(2, 8), tokens=(64,)))
    checked(result.report(), tmp_path, "norms")
    layer, batch = result.trained
    assert layer.training_loss == pytest.approx(layer.using_loss, abs=1e-5)
    assert batch.training_loss != pytest.approx(batch.using_loss, abs=1e-3)


def test_the_worked_example_of_both_norms() -> None:
    unit = 1.5**0.5  # of three numbers a step apart, the outer ones in deviations
    assert worked_example(LayerNorm()) == tuple(pytest.approx((-unit, 0, unit), abs=1e-4) for _ in range(3))
    assert worked_example(BatchNorm()) == tuple(pytest.approx((x, x, x), abs=1e-4) for x in (-unit, 0, unit))


def test_the_batch_matters_to_one_norm_alone() -> None:
    assert batch_effect(LayerNorm(), 4) < 1e-5
    assert batch_effect(BatchNorm(), 4) > 2 * batch_effect(BatchNorm(), 64) > 0.01


def test_positions(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.positions(told(strings_to_copy, lab.Positions, longest=8, schemes=("sinusoidal", "alibi")))
    assert [(row.scheme, row.shortest, row.longest) for row in result.rows[:3]] == [
        ("sinusoidal", 1, 8),
        ("sinusoidal", 9, 12),
        ("sinusoidal", 13, 16),
    ]
    checked(result.report(), tmp_path, "positions")


def test_sinusoids_turn_and_their_products_fall_with_distance() -> None:
    assert shift_error() < 1e-6
    near = products()
    assert near[0] == 1
    assert near[1] > near[4] > near[40]
    assert letters_right(["abc", "x"], (("", "abd"), ("", "xy"))) == 3 / 5


def test_length(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.length(told(strings_to_copy, lab.Length, ranges=2))
    assert len(result.rows) == 6
    checked(result.report(), tmp_path, "length")


def test_exposure(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.exposure(told(strings_to_copy, lab.Exposure, wrong=(0.0, 0.5)))
    assert [row.way for row in result.rows] == ["teacher forcing", "scheduled sampling", "noise"]
    checked(result.report(), tmp_path, "exposure")


def test_tokens_at_their_place_by_quarter() -> None:
    assert hits([5, 6], [5, 7, 8]) == [True, False, False]
    assert by_part([[True, True, False, False], [True, False, False, True]]) == (1.0, 0.5, 0.0, 0.5)


def test_teacher_forcing(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.teacher_forcing(told(strings_to_copy, lab.TeacherForcing, lengths=(4, 8), rows=2, repeats=1))
    assert max(one.difference for one in result.passes) < 1e-5
    checked(result.report(), tmp_path, "teacher-forcing")
    assert together is not one_by_one


def test_decoding(strings_to_copy: Path, tmp_path: Path) -> None:
    lab = transduce.lab
    result = lab.decoding(told(strings_to_copy, lab.Decoding, iterations=(1, 2), repeats=1))
    assert [way.parallel for way in result.ways] == [False, False, True, True, True]
    assert result.faster(result.ways[0], 1) == 1
    checked(result.report(), tmp_path, "decoding")


def results(plan: ComparisonPlan, loss: dict[str, float]) -> Results:
    rows = []
    for name in plan.variants:
        values = {"validation_loss": loss.get(name, 1.0), "chrf": 50.0, "bleu": 20.0, "parameters": 1000.0}
        figures = {} if name in loss and loss[name] < 0 else {key: Figure(value, None) for key, value in values.items()}
        rows.append(Row(name, 1, 0, figures, {}, None, None, ()))
    return Results("table3", "base", "valid", 24, "", "13a", "cpu", False, tuple(rows), ())


def test_table3_says_what_the_rows_show(strings_to_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = __import__("sys").modules[table3.__module__]
    loss = {"A-heads-1": 1.2, "C-width-half": 0.9, "E-learned-positions": 1.01}
    monkeypatch.setattr(module, "run_plan", lambda plan, folder, jobs: ComparisonOutcome(results(plan, loss)))
    settings = transduce.lab.Table3(corpus=str(strings_to_copy), device="cpu")
    report = table3(settings).report()
    checked(report, tmp_path, "table3")
    assert "BLEU" in report.tables[0].headings
    short = replace(table3(settings), rows=tuple(replace(row, bleu=0.0) for row in table3(settings).rows)).report()
    assert short.tables[0].headings == ("variant", "perplexity", "over base's", "chrF", "parameters")
    checked(short, tmp_path, "table3")
    held = {finding.text.split(":")[0]: finding.held for finding in report.findings}
    assert held["Row (A)"] is True
    assert held["Row (E)"] is True
    assert held["Row (C)"] is False
    assert len(table3(replace(settings, rows=("all",))).rows) == 20
    with pytest.raises(ConfigError, match="rows: no row is called 'A-haeds'; there are base, A-heads-1"):
        table3(replace(settings, rows=("base", "A-haeds")))
    monkeypatch.setattr(
        module, "run_plan", lambda plan, folder, jobs: ComparisonOutcome(results(plan, {"B-keys-16": -1.0}))
    )
    with pytest.raises(RunError, match="lab table3: B-keys-16 could not be trained; look at the logs"):
        table3(settings)
    monkeypatch.setattr(module, "run_plan", lambda plan, folder, jobs: ComparisonOutcome(None))
    with pytest.raises(RunError, match="lab table3: stopped before all rows were trained; with work=FOLDER"):
        table3(settings)


@pytest.mark.slow
def test_table3_through_compare(strings_to_copy: Path, tmp_path: Path) -> None:
    settings = transduce.lab.Table3(corpus=str(strings_to_copy), device="cpu", rows=("base",), overrides=TINY, steps=2)
    (base,) = table3(replace(settings, work=str(tmp_path))).rows
    assert (tmp_path / "runs" / "results.json").exists()
    assert base.perplexity > 1
    assert base.parameters > 1000


def test_a_run_that_was_made_is_found_again(tmp_path: Path) -> None:
    settings = TrainingExperiment(steps=2, overrides=TINY, device="cpu", work=str(tmp_path))
    for _ in range(2):
        with settings.bench(number_words(150, 20, 1)) as bench:
            run = bench.train("one model", *TRANSFORMER)
    assert [point[0] for point in run.curve("chrf")] == [2]
    assert "nothing to do" in (tmp_path / "runs" / "one-model.log").read_text(encoding="utf-8")


def test_a_signal_ends_the_experiment_and_not_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Outcome(tmp_path, 1, "SIGINT", {})
    monkeypatch.setattr("transduce.lab.learning.train", lambda config, folder: stopped)
    settings = TrainingExperiment(steps=2, overrides=TINY, device="cpu", work=str(tmp_path))
    with (
        settings.bench(number_words(150, 20, 1)) as bench,
        pytest.raises(RunError, match="lab: SIGINT while training one; with work=FOLDER what is trained is kept"),
    ):
        bench.train("one", *TRANSFORMER)


def test_strings_are_distinct_and_of_the_given_length() -> None:
    pairs = strings(160, (2, 5), 1, lambda text: text[::-1])
    assert len(set(pairs)) == 160
    assert {len(source) for source, _ in pairs} == {2, 5}
    assert all(target == source[::-1] for source, target in pairs)
    with pytest.raises(ValueError, match="there are not 150 strings of lengths"):
        strings(150, (2,), 1)  # of twelve letters there are 144
