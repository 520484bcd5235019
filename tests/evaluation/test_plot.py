"""Reading `metrics.jsonl` and drawing it: every run in every panel, a PNG of the promised size, every error text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from transduce.core.errors import DataError, RunError, UserError
from transduce.evaluation.plot import Curve, History, draw, plot, read_history

VALID = [
    {"kind": "valid", "step": step, "loss": 9 - step / 100, "bleu": bleu} for step, bleu in ((200, 7.0), (400, 21.34))
]
TRAIN = [
    {"kind": "train", "step": step, "loss": 9.5 - step / 100, "learning_rate": step * 1e-6}
    for step in range(100, 500, 100)
]


def write_run(folder: Path, reports: list[dict[str, object]], ending: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports) + ending)
    return folder


def history(name: str, bleu: tuple[float, ...] = (7.0, 21.34)) -> History:
    steps = (200, 400)
    loss, rate = Curve((100, 200, 300, 400), (9.0, 8.0, 7.0, 6.0)), Curve((100, 400), (1e-4, 4e-4))
    return History(name, loss, Curve(steps, (8.2, 6.3)), rate, Curve(steps[: len(bleu)], bleu))


def test_reading(tmp_path: Path) -> None:
    other: dict[str, object] = {"kind": "note", "step": "whatever", "loss": "?"}
    found = read_history(write_run(tmp_path, [*TRAIN, other, *VALID], ending='\n{"kind": "train", "st'), "run")
    assert found.training_loss == Curve((100, 200, 300, 400), (8.5, 7.5, 6.5, 5.5))
    assert found.validation_loss == Curve((200, 400), (7.0, 5.0))
    assert found.learning_rate.values == pytest.approx((1e-4, 2e-4, 3e-4, 4e-4))
    assert found.quality == Curve((200, 400), (7.0, 21.34))


def test_absent_keys_are_left_out(tmp_path: Path) -> None:
    reports: list[dict[str, object]] = [
        {"kind": "train", "step": 1, "loss": 2},
        {"kind": "valid", "step": 1, "bleu": None},
    ]
    found = read_history(write_run(tmp_path, reports), "run")
    assert found.training_loss == Curve((1,), (2.0,))
    assert found.learning_rate == found.quality == found.validation_loss == Curve((), ())


def test_steps_trained_again_after_a_resume_count_once(tmp_path: Path) -> None:
    again = [{"kind": "train", "step": 300, "loss": 1.0}, {"kind": "train", "step": 400, "loss": 0.5}]
    found = read_history(write_run(tmp_path, [*TRAIN, *again]), "run")
    assert found.training_loss == Curve((100, 200, 300, 400), (8.5, 7.5, 1.0, 0.5))


def test_every_run_is_in_every_panel_in_its_own_colour() -> None:
    figure = draw([history("base"), history("_odd $name$"), history("rotary")])
    loss, bleu, rate = figure.axes
    colours = {to_hex(str(line.get_color())) for line in rate.lines}
    assert len(colours) == 3
    assert {to_hex(str(line.get_color())) for line in loss.lines} == colours
    assert {to_hex(str(line.get_color())) for line in bleu.lines} == colours
    assert len(loss.lines) == 6  # training and validation
    assert [line.get_linestyle() for line in loss.lines] == ["-", "--"] * 3
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [f"{name}: best BLEU 21.3 at step 400" for name in ("base", "_odd $name$", "rotary")]
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "loss (nats per target token)",
        "BLEU on validation",
        "learning rate",
    ]
    assert rate.get_xlabel() == "step"


def test_the_best_bleu_is_marked_at_its_first_place() -> None:
    bleu = draw([history("base", (21.0, 21.0))]).axes[1]
    (star,) = [line for line in bleu.lines if line.get_marker() == "*"]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([200], [21.0])  # type: ignore[arg-type]
    assert [text.get_text() for text in bleu.texts] == ["21.0"]


def test_not_a_number_is_never_the_best() -> None:
    figure = draw([history("base", (7.0, float("nan")))])
    assert figure.legends[0].get_texts()[0].get_text() == "base: best BLEU 7.0 at step 200"


def test_a_panel_without_reports_says_so() -> None:
    figure = draw([history("base", ())])
    assert [text.get_text() for text in figure.axes[1].texts] == ["nothing reported"]
    assert figure.legends[0].get_texts()[0].get_text() == "base"


def test_more_runs_than_colours_in_the_palette() -> None:
    rate = draw([history(f"run {n}") for n in range(12)]).axes[2]
    assert len({str(line.get_color()) for line in rate.lines}) == 12


def test_png(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [*TRAIN, *VALID]) for name in ("a/run", "b/run", "other")]
    output = tmp_path / "curves.png"
    plot([*runs, runs[0]], output)
    with Image.open(output) as image:
        assert (image.format, image.size) == ("PNG", (1350, 1350))
        assert len(image.convert("RGB").getcolors(maxcolors=1_000_000) or []) > 50


def test_nothing_global_is_touched(tmp_path: Path) -> None:
    import matplotlib

    before = (dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules)
    plot([write_run(tmp_path, TRAIN)], tmp_path / "curves.png")
    assert (dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules) == before


def test_no_runs_no_folder_no_file_no_reports(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        plot([], tmp_path / "x.png")
    assert "There is nothing to plot: no run folder was given." in str(caught.value)
    with pytest.raises(RunError) as caught:
        plot([tmp_path / "none"], tmp_path / "x.png")
    assert f"{tmp_path / 'none'}: the run folder does not exist. Give the folder" in str(caught.value)
    with pytest.raises(RunError) as caught:
        plot([tmp_path], tmp_path / "x.png")
    assert f"{tmp_path}: the run folder has no metrics.jsonl" in str(caught.value)
    with pytest.raises(RunError) as caught:
        plot([write_run(tmp_path / "empty", [])], tmp_path / "x.png")
    assert "empty/metrics.jsonl: holds no reports of training yet." in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as caught:
        plot([tmp_path / "file"], tmp_path / "x.png")
    assert "file/metrics.jsonl: cannot be read: Not a directory." in str(caught.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "loss 3.2",
            "metrics.jsonl:5: not JSON (Expecting value: line 1 column 1 (char 0)). Found 'loss 3.2'; expected",
        ),
        ("[1, 2]", "metrics.jsonl:5: not a JSON object. Found '[1, 2]'; expected one object a line, such as {"),
        ('{"kind": "train", "step": "x", "loss": 1}', "metrics.jsonl:5: 'step' is 'x'; expected an integer."),
        ('{"kind": "train", "loss": 1}', "metrics.jsonl:5: 'step' is None; expected an integer."),
        ('{"kind": "train", "step": 5, "loss": "low"}', "metrics.jsonl:5: 'loss' is 'low'; expected a number."),
    ],
)
def test_broken_lines(tmp_path: Path, line: str, text: str) -> None:
    run = write_run(tmp_path, TRAIN, ending=line + "\n")
    with pytest.raises(DataError) as caught:
        read_history(run, "run")
    assert text in str(caught.value)


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", TRAIN)
    with pytest.raises(RunError) as caught:
        plot([run], tmp_path)
    assert f"{tmp_path}: the picture cannot be written: Is a directory; choose another path" in str(caught.value)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError) as caught:
        draw([history("base")])
    assert "pip install 'transduce[plot]'" in str(caught.value)


def test_error_rates_are_drawn_where_runs_are_judged_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best is the lowest, and the panel says so."""
    points = ((5, 30.0), (9, 12.5), (13, 20.0))
    reports: list[dict[str, object]] = [
        {"kind": "valid", "step": step, "loss": 1.0, "bleu": 0.0, "wer": wer} for step, wer in points
    ]
    runs = [write_run(tmp_path / name, reports) for name in ("one", "other")]
    for run in runs:
        (run / "config.toml").write_text('[validation]\nmetric = "wer"\n')
    drawn: list[Figure] = []
    monkeypatch.setattr("transduce.evaluation.plot.save", lambda figure, output: drawn.append(figure))
    plot(runs, tmp_path / "plot.png")
    panel = drawn[0].axes[1]
    assert panel.get_ylabel() == "WER on validation (lower is better)"
    assert [text.get_text() for text in panel.texts] == ["12.5", "12.5"]
    assert drawn[0].legends[0].get_texts()[0].get_text() == "one: best WER 12.5 at step 9"
    (runs[1] / "config.toml").write_text('[validation]\nmetric = "loss"\n')
    plot(runs, tmp_path / "plot.png")
    assert drawn[1].axes[1].get_ylabel() == "BLEU on validation"
