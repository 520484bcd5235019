"""From figures to tables: fake results whose means, deviations and p-values are recomputed by hand."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from transduce.core.errors import UserError
from transduce.core.reports import last_reported
from transduce.evaluation.report import LengthRow
from transduce.experiment import Config
from transduce.metrics.corpus import bleu_by_language, bleu_of_targets, target_languages
from transduce.text.number_words import chinese, german
from transduce.workflows.compare.measure import (
    DecodingSpeed,
    Measured,
    TrainingRecord,
    has_ended,
    read_history,
)
from transduce.workflows.compare.plan import ComparisonPlan, PlannedRun
from transduce.workflows.compare.results import (
    Figure,
    Results,
    RunResult,
    compare_with_baseline,
    figure,
    score_variants,
    summarise,
)
from transduce.workflows.compare.table import as_csv, as_markdown, draw_pictures, length_cells, render, table_cells

TRAIN = [
    {"kind": "train", "step": 10, "loss": 5.0, "tokens_per_second": 10.0, "seconds": 20.0, "memory": 1 << 30},
    {"kind": "train", "step": 20, "loss": 4.0, "tokens_per_second": 100.0, "seconds": 24.0, "memory": 2 << 30},
    {"kind": "valid", "step": 25, "loss": 3.0, "bleu": 12.0, "chrf": 30.0, "perplexity": 20.0},
    {"kind": "train", "step": 30, "loss": 3.5, "tokens_per_second": 200.0, "seconds": 30.0, "memory": 2 << 30},
    {"kind": "valid", "step": 30, "loss": 2.9, "bleu": 11.0, "chrf": 31.0, "perplexity": 18.0},
    {"kind": "finished", "step": 30, "loss": 3.0, "bleu": 12.0, "chrf": 30.0, "memory": 3 << 30},
]


def write(path: Path, lines: list[dict[str, object]], end: str = "") -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + end, encoding="utf-8")
    return path


def test_history(tmp_path: Path) -> None:
    found = read_history(write(tmp_path / "metrics.jsonl", TRAIN))
    assert (found.steps, found.seconds, found.memory) == (30, 30.0, 3 << 30)
    assert found.tokens_per_second == pytest.approx((4 * 100 + 6 * 200) / 10)  # the first report is warming up
    assert found.best == {"loss": 3.0, "bleu": 12.0, "chrf": 30.0}
    assert found.final == {"loss": 2.9, "bleu": 11.0, "chrf": 31.0}
    assert [(point.step, point.seconds, point.bleu) for point in found.curve] == [(25, 27.0, 12.0), (30, 30.0, 11.0)]


def test_history_of_a_run_that_has_hardly_begun(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert (last_reported(path, "step"), has_ended(path)) == (0, False)
    assert read_history(path) == TrainingRecord(0, 0.0, None, 0)
    write(path, TRAIN[:1], end='{"kind": "train", "st')
    assert (last_reported(path, "step"), has_ended(path)) == (10, False)
    assert read_history(path).tokens_per_second == 10.0
    write(path, TRAIN)
    assert (last_reported(path, "step"), has_ended(path)) == (30, True)
    assert last_reported(path, "seconds") == 30


def test_a_run_shorter_than_its_first_report_took_the_time_that_its_end_has(tmp_path: Path) -> None:
    valid = {"kind": "valid", "step": 10, "loss": 2.9, "bleu": 11.0, "chrf": 31.0}
    end = {"kind": "finished", "step": 20, "loss": 2.9, "seconds": 8.0, "memory": 1}
    found = read_history(write(tmp_path / "metrics.jsonl", [valid, end]))
    assert (found.steps, found.seconds) == (20, 8.0)
    assert [(point.step, point.seconds) for point in found.curve] == [(10, 4.0)]
    assert last_reported(tmp_path / "metrics.jsonl", "seconds") == 8
    went_on = [*TRAIN[:2], {**end, "seconds": 24.5}, *TRAIN[2:]]  # the end of its first life stays in the file
    assert read_history(write(tmp_path / "metrics.jsonl", went_on)).seconds == 30.0


def test_mean_and_deviation() -> None:
    assert figure([30.0, 32.0, 34.0]) == Figure(32.0, 2.0)
    assert figure([30.0]) == Figure(30.0, None)


def measured(bleu: float, short: float, long: float) -> Measured:
    lengths = (LengthRow(1, 9, 40, short, 50.0, 1.0), LengthRow(10, 19, 20, long, 50.0, 1.0))
    speeds = DecodingSpeed(50.0, 5.0), DecodingSpeed(1600.0, 160.0)
    return Measured("f", 60, bleu, "tok:13a", 55.5, lengths, 1_234_567, *speeds, 1 << 30, "cpu")


def trained(bleu: float) -> TrainingRecord:
    (run,) = [read_history_of(TRAIN)]
    return replace(run, best={**run.best, "bleu": bleu})


def read_history_of(lines: list[dict[str, object]]) -> TrainingRecord:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_history(write(Path(folder) / "metrics.jsonl", lines))


@pytest.fixture
def results() -> Results:
    runs = [
        RunResult("rnn", 1, "", 1, trained(20.0), measured(21.0, 30.0, 10.0)),
        RunResult("rnn", 2, "", 1, trained(22.0), measured(24.0, 32.0, 12.0)),
        RunResult("big|one", 1, "", 1, trained(30.0), measured(33.0, 34.0, 32.0)),
        RunResult("big|one", 2, "error: out of memory", 1),
        RunResult("bad", 1, "killed by SIGKILL", 1),
        RunResult("bad", 2, "ValueError: no", 1),
    ]
    runs[4:4] = [RunResult("wide", seed, "", 1, trained(23.0), measured(25.0, 32.0, 12.0)) for seed in (1, 2)]
    runs[4:4] = [RunResult("deep", seed, "", 1, trained(23.0), measured(25.0, 32.0, 12.0)) for seed in (1, 2)]
    plan = ComparisonPlan("family", ("rnn", "big|one", "deep", "wide", "bad"), "rnn", "", ())
    return summarise(plan, runs, "test", {"deep": 0.02, "wide": 0.03})


def test_table(results: Results) -> None:
    head, rnn, big, deep, wide, bad = table_cells(results)
    assert head[:5] == ["variant", "BLEU", "p", "chrF", "valid BLEU"]
    assert rnn[:5] == ["rnn", "22.50 ± 2.12", "baseline", "55.50 ± 0.00", "21.00 ± 1.41"]
    assert rnn[5:] == ["1,234,567", "160", "30 s", "50", "1,600", "3.00"]
    assert big[:5] == ["big|one", "33.00", "one seed", "55.50", "30.00"]
    assert (deep[2], wide[2]) == ("0.040 *", "0.040 *")  # Holm: twice the least, and no less for the next
    assert [row.p_value for row in results.rows] == [None, None, 0.02, 0.03, None]
    assert bad == ["bad", "failed", *[""] * 9]
    assert length_cells(results) == [
        ["BLEU by source words", "1-9", "10-19"],
        ["rnn", "31.00", "11.00"],
        ["big|one", "34.00", "32.00"],
        ["deep", "32.00", "12.00"],
        ["wide", "32.00", "12.00"],
        ["bad", "", ""],
    ]


def test_no_baseline_no_p(results: Results) -> None:
    assert "p" not in table_cells(replace(results, baseline=""))[0]


def test_markdown_and_notes(results: Results) -> None:
    text = as_markdown(results)
    assert "| big\\|one | 33.00 | one seed |" in text
    assert "Measured on the test split (60 sentences) with each run's own search, on cpu" in text
    assert (
        "p: difference of mean BLEU from rnn, two-sided, over the choice of seeds and of sentences; Holm's correction"
        " for the 2 variants tested; * below 0.05."
    ) in text
    assert "one seed: no test of training noise (big|one); differences are tested with several" in text
    assert "big|one: 1 of 2 runs failed; the figures are those of the others." in text
    assert "big|one, seed 2: failed: error: out of memory" in text
    assert "bad, seed 1: failed: killed by SIGKILL" in text
    assert "side by side" not in text
    runs = tuple(replace(run, side_by_side=2) for run in results.runs)
    assert "side by side" in as_markdown(summarise(ComparisonPlan("f", ("rnn",), "", "", ()), runs, "test", {}))


def planned(folder: Path, texts: Mapping[tuple[str, int], list[str]]) -> ComparisonPlan:
    """Runs by variant and seed, the first variant being the baseline, with their translations in the folder."""
    runs = tuple(PlannedRun(variant, seed, Config()) for variant, seed in texts)
    for run in runs:
        (folder / run.variant).mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{text}\n" for text in texts[run.variant, run.seed])
        run.beside(folder, "translated.txt").write_text(lines, encoding="utf-8")
    variants = tuple(dict.fromkeys(variant for variant, _ in texts))
    return ComparisonPlan("f", variants, variants[0], "", runs)


def test_one_seed_gets_no_test_and_no_star(tmp_path: Path) -> None:
    chooser = random.Random(1)
    references = [" ".join(chooser.choices("abcdefgh", k=8)) for _ in range(60)]
    texts = {"base": [" ".join(["x", *text.split()[1:5], "y"]) for text in references], "good": references}
    plan = planned(tmp_path, {(name, 1): lines for name, lines in texts.items()})
    p_values = compare_with_baseline(plan, tmp_path, {}, references, target_languages(references))
    made = [RunResult(name, 1, "", 1, trained(20.0), measured(21.0, 30.0, 10.0)) for name in texts]
    text = as_markdown(summarise(plan, made, "test", p_values))
    assert p_values == {}
    assert "one seed: no test of training noise; differences are tested with several, such as seeds=[1,2,3]." in text
    assert "*" not in text


def test_what_is_built_on_other_runs_is_said_once(results: Results) -> None:
    assert "Built on" not in as_markdown(results)
    runs = tuple(PlannedRun(name, 1, Config(), ("rnn",)) for name in ("big|one", "bad"))
    built = summarise(ComparisonPlan("f", ("rnn", "big|one", "bad"), "", "", runs), results.runs, "test", {})
    assert as_markdown(built).count("Built on") == 1
    said = "Built on the runs of rnn, whose training is not in their time and budget: big|one, bad."
    assert said in as_markdown(built)


def test_csv_and_json(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert [row["variant"] for row in rows] == [
        "rnn",
        "rnn",
        "big|one",
        "big|one",
        "deep",
        "deep",
        "wide",
        "wide",
        "bad",
        "bad",
    ]
    assert (rows[1]["seed"], float(rows[1]["bleu"]), rows[1]["training_memory"]) == ("2", 24.0, str(3 << 30))
    assert (rows[3]["failure"], rows[3]["bleu"]) == ("error: out of memory", "")
    tree = json.loads(results.as_json())
    assert tree["rows"][0]["figures"]["bleu"] == {"mean": 22.5, "deviation": pytest.approx(2.1213203)}
    assert tree["runs"][0]["measured"]["lengths"][1]["bleu"] == 10.0
    assert results.failed


@pytest.mark.parametrize("terminal", [False, True])
def test_render(results: Results, terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=240, color_system=None)
    render(results, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "22.50 ± 2.12" in text
    assert ("─" in text) is terminal


def test_pictures(results: Results, tmp_path: Path) -> None:
    for path in draw_pictures(results, tmp_path):
        with Image.open(path) as image:
            assert (image.format, image.size) == ("PNG", (1350, 825))
    nothing = summarise(ComparisonPlan("f", ("bad",), "", "", ()), results.runs[-1:], "test", {})
    assert all(path.is_file() for path in draw_pictures(nothing, tmp_path))


def test_curves_are_means_over_seeds_where_all_have_a_point(results: Results) -> None:
    one, two = results.runs[:2]
    assert one.trained is not None
    later = tuple(replace(point, seconds=point.seconds + 2, bleu=point.bleu + 4) for point in one.trained.curve[:1])
    runs = [one, replace(two, trained=replace(one.trained, curve=later))]
    (row,) = summarise(ComparisonPlan("f", ("rnn",), "", "", ()), runs, "test", {}).rows
    assert [(point.step, point.seconds, point.bleu) for point in row.curve] == [(25, 28.0, 14.0)]


def test_pictures_need_matplotlib(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="Plotting needs the package matplotlib"):
        draw_pictures(results, tmp_path)


def test_p_values_are_of_the_good_runs_against_the_baseline(tmp_path: Path) -> None:
    chooser = random.Random(1)
    references = [" ".join(chooser.choices("abcdefgh", k=8)) for _ in range(60)]
    spoiled = [" ".join(["x", *text.split()[1:5], "y", "z"]) for text in references]
    other = [" ".join(["x", *text.split()[1:6], "y"]) for text in references]
    texts = {("base", 1): spoiled, ("base", 2): other, ("good", 1): references, ("good", 2): references}
    texts |= {("same", 1): other, ("same", 2): spoiled, ("single", 1): references}
    plan = planned(tmp_path, texts)
    plan = replace(plan, runs=(*plan.runs, PlannedRun("single", 2, Config())))
    found = compare_with_baseline(
        plan, tmp_path, {"single, seed 2": "failed"}, references, target_languages(references)
    )
    assert set(found) == {"good", "same"}
    assert found["good"] == pytest.approx(0.1, abs=0.01)  # two seeds: clear as it is, not enough for a claim
    assert found["same"] == 1.0
    assert (
        compare_with_baseline(
            plan, tmp_path, {"single, seed 2": "", "base, seed 1": "failed"}, references, target_languages(references)
        )
        == {}
    )


def test_chinese_is_tested_by_its_own_tokenizer(tmp_path: Path) -> None:
    """By sacreBLEU's standard tokenizer a sentence is one word, and all variants are worth 0."""
    references = [chinese(number) for number in range(100_000, 200_000, 2_003)]
    nearly = [f"{text[:-1]}零" for text in references]
    plan = planned(tmp_path, {("base", 1): nearly, ("base", 2): nearly, ("good", 1): references, ("good", 2): nearly})
    targets = target_languages(references)
    scores = score_variants(plan, tmp_path, {}, references, targets)
    assert scores["base"].whole[0] == pytest.approx(bleu_of_targets(nearly, references, targets).mean)
    assert 30 < scores["base"].whole[0] < scores["good"].whole[0] == pytest.approx(100)
    text = as_markdown(summarise(plan, [], "test", {}, targets))
    assert "BLEU tokenizer: zh (Chinese, by the script of the references)." in text


def test_of_several_languages_the_mean_is_tested(tmp_path: Path) -> None:
    german_texts = [f"{german(number)} und {german(number + 1)} und drei" for number in range(1_000, 1_040)]
    references = [*german_texts, *map(chinese, range(100_000, 100_040))]
    made = [text.replace("drei", "vier") for text in references]
    tags = ["<2de>"] * 40 + ["<2zh>"] * 40
    plan = planned(tmp_path, {("base", 1): made, ("base", 2): references})
    scores = score_variants(plan, tmp_path, {}, references, target_languages(references, tags))["base"]
    assert scores.whole == pytest.approx([bleu_by_language(made, references, tags).mean, 100.0])
    assert scores.redrawn[:, 1] == pytest.approx(100.0)


@pytest.mark.slow
def test_equal_variants_are_seldom_starred(tmp_path: Path) -> None:
    """From translations in files to the star: seeds of one config, each with an error rate of its own, 3 against 3."""
    chooser, starred, tables = random.Random(5), 0, 60
    references = [" ".join(chooser.choices("abcdefgh", k=chooser.randint(5, 12))) for _ in range(40)]

    def translated() -> list[str]:
        rate = min(0.5, max(0.02, chooser.gauss(0.2, 0.03)))
        return [" ".join("x" if chooser.random() < rate else word for word in text.split()) for text in references]

    for table in range(tables):
        folder = tmp_path / str(table)
        plan = planned(folder, {run: translated() for run in itertools.product(("base", "same"), (1, 2, 3))})
        p_values = compare_with_baseline(plan, folder, {}, references, target_languages(references))
        assert p_values.keys() == {"same"}
        starred += "*" in table_cells(summarise(plan, [], "test", p_values))[2][2]
    assert starred <= 0.07 * tables
