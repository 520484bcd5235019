"""The moving average of weights: its decay warms up, and the better of it and the raw weights is offered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import toys
from snapshots import same_tensors
from torch import Tensor

from transduce.core.durable import remove
from transduce.training import loop
from transduce.training.averages import average, average_run
from transduce.training.checkpoint import read_checkpoint, read_tensors, save_checkpoint, step_folders
from transduce.training.validate import ValidationResult
from transduce.training.weights import load_weights

EVERY_STEP = ("training.save_every=1", "training.keep_last=100")
LEARNING = ("training.steps=60", "training.report_every=60", "training.learning_rate.rate=5e-3", "validation.every=10")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:])


def weights(folder: Path, step: int, stem: str) -> dict[str, Tensor]:
    return read_tensors(step_folders(folder)[step], stem)


def exported(folder: Path) -> tuple[dict[str, Tensor], str]:
    tensors, metadata = load_weights(folder / "model.safetensors")
    return tensors, metadata["weights"]


@pytest.mark.parametrize("ema", [0.5, 0.999])
def test_the_decay_warms_up(corpus: Path, tmp_path: Path, ema: float) -> None:
    """Before step t + 1 it is min(ema, (1 + t) / (10 + t)): 0.5 is reached at t = 8, 0.999 not for 9,000 steps."""
    run = tmp_path / "run"
    toys.run(corpus, run, f"training.ema={ema}", "data.valid=none", "training.steps=12", *EVERY_STEP)
    for step in range(2, 13):
        decay = min(ema, step / (9 + step))
        before, new = weights(run, step - 1, "average"), weights(run, step, "model")
        for name, tensor in weights(run, step, "average").items():
            torch.testing.assert_close(tensor, decay * before[name] + (1 - decay) * new[name], atol=1e-6, rtol=1e-5)


def test_a_short_run_with_a_slow_average_offers_what_it_learned(corpus: Path, tmp_path: Path) -> None:
    """Without warm-up the average of 60 steps would be nine tenths of the initial weights, and stop the run early."""
    plain = toys.run(corpus, tmp_path / "plain", *LEARNING)
    averaged = toys.run(corpus, tmp_path / "averaged", *LEARNING, "training.ema=0.999", "validation.patience=2")
    assert (averaged.step, averaged.reason) == (60, "finished")
    first = toys.reports(tmp_path / "plain", "valid")[0]["loss"]
    assert plain.validation["loss"] < 0.9 * first
    assert averaged.validation["loss"] <= plain.validation["loss"]  # the raw weights are those of the plain run
    for report, raw in zip(*(toys.reports(tmp_path / name, "valid") for name in ("averaged", "plain")), strict=True):
        assert report["raw_loss"] == raw["loss"]
        assert report["loss"] == min(report["raw_loss"], report["ema_loss"])


# -- the better of both ------------------------------------------------------------------------------------------------


@dataclass
class Script:
    """Validations of given results, of the average and of the raw weights; `asked` says who was measured how."""

    average: dict[str, float]
    raw: dict[str, float]
    asked: list[str] = field(default_factory=list)

    def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def validate(*_: object) -> ValidationResult:
            who = "raw" if self.asked and self.asked[-1] == "loss" else "average"
            self.asked.append(who)
            return ValidationResult(dict(getattr(self, who)), "signature", [])

        def loss(*_: object) -> float:
            self.asked.append("loss")
            return self.raw["loss"]

        monkeypatch.setattr(loop, "validate", validate)
        monkeypatch.setattr(loop, "held_out_loss", loss)


def measures(loss: float, bleu: float) -> dict[str, float]:
    return {"loss": loss, "bleu": bleu, "chrf": 1.0}


CASES = {
    "average has the lower loss": (measures(1.0, 20.0), measures(2.0, 30.0), ["average", "loss"], False),
    "raw is better by both": (measures(2.0, 20.0), measures(1.0, 30.0), ["average", "loss", "raw"], True),
    "raw has the lower loss only": (measures(2.0, 20.0), measures(1.0, 10.0), ["average", "loss", "raw"], False),
    "equal": (measures(1.0, 20.0), measures(1.0, 20.0), ["average", "loss"], False),
}


@pytest.mark.parametrize("case", CASES)
def test_the_better_ones_are_offered_and_the_card_says_which(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    averaged, raw, asked, raw_is_better = CASES[case]
    script = Script(averaged, raw)
    script.play(monkeypatch)
    run = tmp_path / "run"
    outcome = toys.run(corpus, run, "training.ema=0.9", "validation.every=20", "validation.metric=bleu")
    assert script.asked == asked
    tensors, name = exported(run)
    assert same_tensors(tensors, weights(run, 20, "model" if raw_is_better else "average"))
    assert not same_tensors(weights(run, 20, "model"), weights(run, 20, "average"))
    kind = "raw weights" if raw_is_better else "moving average of weights (decay 0.9)"
    assert name == f"best by validation bleu, step 20, {kind}"
    assert f"Weights: {name}.\n" in (run / "README.md").read_text()
    both = {"raw_loss": raw["loss"], "ema_loss": averaged["loss"]}
    assert outcome.validation == {**(raw if raw_is_better else averaged), **both}
    kept = "the raw weights count" if raw_is_better else "the average counts"
    judge = "BLEU" if raw["loss"] < averaged["loss"] else "loss"
    losses = f"loss of the raw weights {raw['loss']:.3f}, of their moving average {averaged['loss']:.3f}"
    assert f"    {losses}; {kept}, by {judge}\n" in capfd.readouterr().err
    assert toys.final(run).state["raw_best"] is raw_is_better


def test_without_validation_the_average_is_offered(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    toys.run(corpus, run, "training.ema=0.9", "data.valid=none")
    assert same_tensors(exported(run)[0], weights(run, 20, "average"))
    assert exported(run)[1] == "last, step 20, moving average of weights (decay 0.9)"


@pytest.mark.parametrize("raw_is_better", [True, False])
def test_checkpoints_are_averaged_of_the_weights_that_were_better(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_is_better: bool
) -> None:
    low, high = measures(1.0, 30.0), measures(2.0, 20.0)
    Script(*((high, low) if raw_is_better else (low, high))).play(monkeypatch)
    run, stem = tmp_path / "run", "model" if raw_is_better else "average"
    kind = "raw weights" if raw_is_better else "moving average of weights (decay 0.9)"
    settings = ("training.ema=0.9", "validation.every=10", "validation.metric=bleu", "training.average=2")
    toys.run(corpus, run, *settings)
    kept = step_folders(run)
    assert average_run(run, last=2, best=0).endswith(f"average of 2 checkpoints (steps 10, 20), {kind}")
    assert same_tensors(exported(run)[0], average([kept[10], kept[20]], stem))
    assert f"Weights: average of 2 checkpoints (steps 10, 20), {kind}.\n" in (run / "README.md").read_text()


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_run_of_an_earlier_version_resumes(corpus: Path, tmp_path: Path) -> None:
    """Its checkpoints do not say whose weights were best: there were only those of the average."""
    run = tmp_path / "run"
    settings = ("training.ema=0.9", "validation.every=5")
    toys.run(corpus, run, *settings, "training.steps=10")
    for folder in step_folders(run).values():
        snapshot = read_checkpoint(folder)
        remove(folder)
        state = {key: value for key, value in snapshot.state.items() if key != "raw_best"}
        save_checkpoint(run, replace(snapshot, state=state))
    assert average_run(run, last=2, best=0).endswith("(steps 5, 10), moving average of weights (decay 0.9)")
    assert toys.run(corpus, run, *settings).step == 20
    new = toys.run(corpus, tmp_path / "new", *settings, f"training.start_from={run}", "training.steps=3")
    assert new.step == 3
