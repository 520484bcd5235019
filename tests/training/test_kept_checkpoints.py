"""When a run stops, which checkpoints it keeps, and whose weights its folder offers: best, last, averages."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import toys
from snapshots import same_tensors
from torch import Tensor

from transduce.core.errors import RunError
from transduce.training import loop
from transduce.training.averages import average, average_run
from transduce.training.checkpoint import read_tensors, step_folders
from transduce.training.validate import ValidationResult
from transduce.training.weights import load_weights


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:])


def weights(folder: Path, step: int, stem: str = "model") -> dict[str, Tensor]:
    return read_tensors(step_folders(folder)[step], stem)


def exported(folder: Path) -> tuple[dict[str, Tensor], str]:
    tensors, metadata = load_weights(folder / "model.safetensors")
    return tensors, metadata["weights"]


def test_without_a_validation_split_the_last_weights_are_offered(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = toys.corpus(tmp_path, toys.copies(40))
    run = tmp_path / "run"
    outcome = toys.run(corpus, run)
    assert (outcome.reason, outcome.validation) == ("finished", {})
    assert exported(run)[1] == "last, step 20"
    assert same_tensors(exported(run)[0], weights(run, 20))
    assert not toys.reports(run, "valid")
    assert "on cpu; not validated, for the corpus has no split 'valid'\n" in capfd.readouterr().err


def test_minutes_end_the_run_and_more_minutes_resume_it(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    for _ in range(2):  # the second time there is nothing to do
        outcome = toys.run(corpus, run, "training.minutes=1e-9", "training.average=2")
        assert (outcome.step, outcome.reason) == (1, "minutes")
        assert outcome.validation["loss"] > 0
    said = capfd.readouterr().err
    assert "training.minutes: the end follows the clock; only runs bounded by steps can be repeated\n" in said
    assert (
        "training.average: 2 checkpoints were requested and 1 is there, so that there is nothing to average; save"
        " them more often (training.save_every, validation.every), or request fewer\n"
    ) in said
    assert exported(run)[1] == "best by validation loss, step 1"
    outcome = toys.run(corpus, run, "training.minutes=10")
    assert (outcome.step, outcome.reason) == (20, "finished")


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float], metric: str) -> None:
    """Validations that give these values, one after the other."""
    script = iter(values)

    def validate(*_: object) -> ValidationResult:
        return ValidationResult({"loss": 1.0, "bleu": 1.0, "chrf": 1.0, metric: next(script)}, "signature", [])

    monkeypatch.setattr(loop, "validate", validate)


@pytest.mark.parametrize("metric", ["loss", "bleu", "chrf"])
def test_patience_and_the_best(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    """The third of these is the best; the two after it exhaust a patience of two, one equal to it not being better."""
    sign = -1 if metric == "loss" else 1
    scripted(monkeypatch, [sign * value for value in (5.0, 4.0, 7.0, 7.0, 6.0, 9.0)], metric)
    run = tmp_path / "run"
    settings = (f"validation.metric={metric}", "validation.every=2", "validation.patience=2", "training.keep_last=2")
    outcome = toys.run(corpus, run, *settings, "training.keep_best=2")
    assert (outcome.step, outcome.reason, outcome.validation[metric]) == (10, "patience", sign * 7.0)
    assert sorted(step_folders(run)) == [6, 8, 10]  # the best two (6, then 8 by age), the last two
    tensors, name = exported(run)
    assert name == f"best by validation {metric}, step 6"
    assert same_tensors(tensors, weights(run, 6))
    assert not same_tensors(tensors, weights(run, 8))


def test_between_equals_the_loss_decides(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where every target is one word, of which BLEU, which wants four, is always 0."""
    losses = iter([5.0, 4.0, 3.0, 2.0, 2.5, 2.2])
    measured = (ValidationResult({"loss": loss, "bleu": 0.0, "chrf": 9.0}, "signature", []) for loss in losses)
    monkeypatch.setattr(loop, "validate", lambda *_: next(measured))
    run = tmp_path / "run"
    settings = ("validation.metric=bleu", "validation.every=2", "validation.patience=2", "training.keep_best=2")
    outcome = toys.run(corpus, run, *settings, "training.keep_last=1")
    assert (outcome.step, outcome.reason, outcome.validation["loss"]) == (12, "patience", 2.0)
    assert exported(run)[1] == "best by validation bleu, step 8"
    assert sorted(step_folders(run)) == [8, 12]  # the best two, of which the second is also the last


def test_without_patience_a_run_goes_to_its_end(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [5.0, 1.0, 1.0, 1.0, 1.0], "bleu")
    outcome = toys.run(corpus, tmp_path / "run", "validation.metric=bleu", "validation.every=4", "training.keep_best=0")
    assert (outcome.step, outcome.reason) == (20, "finished")
    assert sorted(step_folders(tmp_path / "run")) == [8, 10, 12, 16, 20]  # the last five: every 4, and 10, 20
    assert exported(tmp_path / "run")[1] == "best by validation bleu, step 4"  # though its checkpoint is gone


def test_keep_last_and_keep_best(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [1.0, 9.0, 2.0, 8.0, 3.0], "chrf")
    keep = ("training.keep_last=1", "training.keep_best=2", "training.save_every=3")
    toys.run(corpus, tmp_path / "run", "validation.metric=chrf", "validation.every=4", *keep)
    assert sorted(step_folders(tmp_path / "run")) == [8, 16, 20]


# -- averages of checkpoints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ema", ["0.0", "0.5"])
def test_an_average_of_the_last_without_validation(corpus: Path, tmp_path: Path, ema: str) -> None:
    run = tmp_path / "run"
    toys.run(corpus, run, "data.valid=none", f"training.ema={ema}", "training.average=3", "training.save_every=6")
    tensors, name = exported(run)
    assert name == "average of 3 checkpoints (last)" + (
        ", moving average of weights (decay 0.5)" if ema == "0.5" else ""
    )
    kept = step_folders(run)
    stem = "model" if ema == "0.0" else "average"
    assert same_tensors(tensors, average([kept[12], kept[18], kept[20]], stem))
    assert f"Weights: {name}." in (run / "README.md").read_text()


@pytest.mark.parametrize(("value", "chosen"), [(8.0, True), (9.0, True), (9.5, False)])
def test_an_average_of_the_best_is_taken_if_no_worse(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    value: float,
    chosen: bool,
) -> None:
    scripted(monkeypatch, [12.0, 9.0, 11.0, 10.0, value], "loss")
    run = tmp_path / "run"
    best = ("training.average=3", "training.average_of=best", "training.keep_best=3")
    outcome = toys.run(corpus, run, "validation.every=5", *best)
    kept = step_folders(run)
    offered, name = exported(run)
    assert same_tensors(offered, average([kept[10], kept[15], kept[20]]) if chosen else weights(run, 10))
    assert name == ("average of 3 checkpoints (best)" if chosen else "best by validation loss, step 10")
    assert outcome.validation["loss"] == (value if chosen else 9.0)
    (end,) = toys.reports(run, "finished")
    assert (end["loss"], end["average_loss"]) == (outcome.validation["loss"], value)
    verdict = "the average" if chosen else "the single one"
    assert (
        f"average of 3 checkpoints (best): loss {value:.2f} against 9.00 of the best single one; {verdict} is kept"
        in capfd.readouterr().err
    )


def test_fewer_checkpoints_than_requested_are_averaged_and_that_is_said(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    toys.run(corpus, run, "data.valid=none", "training.average=5")
    assert exported(run)[1] == "average of 2 checkpoints (last)"
    assert (
        "training.average: 5 checkpoints were requested and 2 are there, which are averaged; save them more often"
        in (capfd.readouterr().err)
    )


def test_averaging_a_run_afterwards(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    toys.run(corpus, run, "validation.every=4", "training.keep_best=2", "training.save_every=100")
    kept = step_folders(run)
    assert average_run(run, last=2, best=0) == (f"{run / 'model.safetensors'}: average of 2 checkpoints (steps 16, 20)")
    assert same_tensors(exported(run)[0], average([kept[16], kept[20]]))
    ranks = toys.final(run).state["ranks"]
    best = sorted(sorted(kept, key=lambda step: ranks[str(step)])[:2])
    assert average_run(run, last=0, best=2).endswith(f"(steps {best[0]}, {best[1]})")
    card = (run / "README.md").read_text()
    assert f"Weights: average of 2 checkpoints (steps {best[0]}, {best[1]}).\n" in card
    assert "Not validated since the weights were replaced; `transduce evaluate` measures them.\n" in card
    assert "BLEU" not in card
    before = (run / "model.safetensors").read_bytes()
    toys.run(corpus, run, "validation.every=4", "training.keep_best=2", "training.save_every=100")
    assert (run / "model.safetensors").read_bytes() == before  # training again has nothing to do


def test_averaging_a_run_that_was_stopped_before_its_first_model(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    toys.run(corpus, run, "training.steps=5")
    complete = load_weights(run / "model.safetensors")[1]
    (run / "model.safetensors").unlink()
    (run / "README.md").unlink()
    average_run(run, last=1, best=0)
    made = load_weights(run / "model.safetensors")[1]
    assert made == {**complete, "weights": "average of 1 checkpoint (step 5)"}
    assert not (run / "README.md").exists()


def test_what_cannot_be_averaged(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    toys.run(corpus, run, "training.steps=2")
    for last, best in ((0, 0), (1, 1)):
        with pytest.raises(RunError, match="run: say how many checkpoints to average, either --last N or --best N"):
            average_run(run, last, best)
    for name in ("last", "best"):
        with pytest.raises(RunError) as caught:
            average_run(run, **{"last": 0, "best": 0, name: 7})
        assert str(caught.value) == (
            f"{run}: 7 checkpoints were requested and 1 are kept; request fewer, or train with training.keep_{name}=7"
        )
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        RunError, match=r"run: there are no checkpoints to average; expected .*/checkpoints/step-\.\.\."
    ):
        average_run(run, 1, 0)


class Clock:
    """Time that passes by a second each time it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def rates(folder: Path) -> list[float]:
    return [line["learning_rate"] for line in toys.reports(folder)]


def test_minutes_anneal_the_learning_rate(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that the clock ends has come to the end of its cosine, also when it was stopped in between."""
    monkeypatch.setattr(loop, "time", Clock())  # a step takes a second
    monkeypatch.setattr("transduce.training.log.time", SimpleNamespace(monotonic=lambda: 0.0))
    cosine = "training.learning_rate={kind='cosine',peak=1e-3,warmup=4}"
    settings = (cosine, "training.steps=1000", "data.valid=none", f"training.minutes={24 / 60}")
    outcome = toys.run(corpus, tmp_path / "whole", *settings)
    assert (outcome.step, outcome.reason) == (25, "minutes")
    assert "training.minutes: rates and the end follow the clock; only runs bounded by steps can be repeated\n" in (
        capfd.readouterr().err
    )
    toys.run(corpus, tmp_path / "steps", cosine, "training.steps=24", "data.valid=none")
    found, expected = rates(tmp_path / "whole"), rates(tmp_path / "steps")
    assert found[:24] == pytest.approx(expected)  # that of a run of as many steps as the time allows
    assert found[24] < 1e-5
    toys.run(corpus, tmp_path / "parts", cosine, "training.steps=10", "data.valid=none", f"training.minutes={24 / 60}")
    toys.run(corpus, tmp_path / "parts", *settings)
    assert rates(tmp_path / "parts")[10:] == pytest.approx(found[10:])  # the seconds before the stop count
