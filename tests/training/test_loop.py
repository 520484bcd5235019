"""The loop when things go wrong: numbers that are not finite, full disks, memory that runs out; and what it reports.

Faults come from an objective of the user's own, plugged in by its name from a file.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
import toys
from snapshots import same_tensors
from torch import Tensor

from transduce.core.errors import ConfigError, RunError, UserError
from transduce.data.batch import Batch
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.training import loop
from transduce.training.checkpoint import read_checkpoint, read_tensors, step_folders

ALL = ("training.save_every=1", "training.keep_last=100")
OBJECTIVE = """
from dataclasses import dataclass, replace
import torch
from transduce.objectives.cross_entropy import CrossEntropy

@dataclass(frozen=True)
class Faulty(CrossEntropy):
    fault: str = "loss"
    value: str = "nan"
    first: int = 3
    last: int = 3

    def build(self, context):
        loss = super().build()
        def faulty(model, batch, step):
            found = loss(model, batch, step)
            if not self.first <= step <= self.last:
                return found
            if self.fault == "loss":
                return replace(found, total=found.total * float(self.value))
            if self.fault == "gradient":  # of one weight, while the loss stays finite
                weight = next(iter(model.parameters()))[0, 0]
                nothing = weight * 0 if self.value == "nan" else weight - weight.detach()
                return replace(found, total=found.total + nothing.sqrt())
            if self.fault == "cuda":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            if self.fault == "cpu":
                torch.empty(1 << 50)
            if self.fault == "python":
                raise MemoryError
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return faulty
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:])


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "faulty.py").write_text(OBJECTIVE)
    monkeypatch.syspath_prepend(tmp_path)
    return "objective=faulty:Faulty"


def weights(folder: Path, step: int, stem: str = "model") -> dict[str, Tensor]:
    return read_tensors(step_folders(folder)[step], stem)


# -- numbers that are not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_one_bad_step_is_skipped_and_counted(
    corpus: Path, tmp_path: Path, faulty: str, fault: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    settings = (faulty, f"objective.fault={fault}", f"objective.value='{value}'", "training.ema=0.5", *ALL)
    toys.run(corpus, run, *settings, "training.steps=8", "training.report_every=2", "training.accumulate=2")
    for step in step_folders(run):
        for stem in ("model", "average", "optimizer"):
            assert all(tensor.isfinite().all() for tensor in weights(run, step, stem).values())
    assert same_tensors(weights(run, 4), weights(run, 3))  # the fourth step is the bad one
    assert same_tensors(weights(run, 4, "optimizer"), weights(run, 3, "optimizer"))
    assert not same_tensors(weights(run, 5), weights(run, 4))
    lines = toys.reports(run)
    assert [line["skipped"] for line in lines] == [0, 1, 0, 0]
    assert all(0.5 < line["loss"] < 10 and line["loss"] > line["nll"] / 2 for line in lines)
    assert (
        "step 4: 1 of the last 2 updates were skipped, because the gradient was not finite; the weights are untouched"
        " by them\n"
    ) in capfd.readouterr().err


def test_a_bad_micro_batch_is_left_out_of_the_mean(corpus: Path, tmp_path: Path, faulty: str) -> None:
    """Two steps, the first lost: the report is the mean of the second, not half of it."""
    quiet = ("training.steps=2", "training.report_every=2", "model.dropout=0")
    toys.run(corpus, tmp_path / "run", faulty, "objective.first=0", "objective.last=0", *quiet)
    # Nothing was learned from the first step, so the second sees the first weights.
    model = toys.config(corpus).model
    opened = Corpus.open(corpus)
    torch.manual_seed(1)
    fresh = model.build(opened.tokenizers.source.size, opened.tokenizers.target.size, shared=True)
    fresh.eval()
    expected = toys.config(corpus).objective.build()(fresh, batch(corpus, 1), 0)
    (line,) = toys.reports(tmp_path / "run")
    assert line["loss"] == pytest.approx((expected.total / expected.count).item(), rel=1e-5)
    assert line["nll"] == pytest.approx((expected.metrics["nll"] / expected.count).item(), rel=1e-5)


def test_twenty_in_a_row_stop_the_run(corpus: Path, tmp_path: Path, faulty: str) -> None:
    run = tmp_path / "run"
    with pytest.raises(RunError) as caught:
        toys.run(
            corpus, run, faulty, "objective.last=99", "training.steps=60", "training.report_every=5", "data.valid=none"
        )
    assert str(caught.value) == (
        f"{run}: the gradient has not been finite for 22 steps, up to step 25. The weights and the last checkpoint are"
        " sound. Lower training.learning_rate, set training.clip=1, or train with training.precision=fp32"
    )
    assert all(tensor.isfinite().all() for tensor in weights(run, 20).values())


def test_nineteen_in_a_row_do_not(corpus: Path, tmp_path: Path, faulty: str) -> None:
    settings = (faulty, "objective.last=21", "training.steps=24")  # steps 3 to 21
    assert toys.run(corpus, tmp_path / "run", *settings).reason == "finished"
    assert sum(line["skipped"] for line in toys.reports(tmp_path / "run")) == 19


# -- room -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_last_checkpoint(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = tmp_path / "run", ("training.save_every=4", "data.valid=none")
    toys.run(corpus, tmp_path / "whole", *settings)
    toys.run(corpus, run, *settings, "training.steps=4")
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage(tmp_path)
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1234))
        with pytest.raises(RunError) as caught:
            toys.run(corpus, run, *settings)
    size = sum(file.stat().st_size for file in step_folders(run)[4].glob("*.safetensors"))
    text = str(caught.value)
    assert text.startswith(f"{run}: the disk is full (saving the checkpoint of step 8): ")
    assert (
        "bytes needed, 1,234 free. Earlier checkpoints are untouched. Free some space there, then run the same" in text
    )
    assert int(text.split("): ")[1].split(" bytes")[0].replace(",", "")) > size
    assert list(step_folders(run)) == [4]
    toys.run(corpus, run, *settings)
    assert same_tensors(weights(run, 20), weights(tmp_path / "whole", 20))


@pytest.mark.parametrize("fault", ["cuda", "cpu", "python"])
def test_out_of_memory_names_the_settings(corpus: Path, tmp_path: Path, faulty: str, fault: str) -> None:
    with pytest.raises(RunError) as caught:
        toys.run(corpus, tmp_path / "run", faulty, f"objective.fault={fault}", "training.accumulate=2")
    assert str(caught.value) == (
        "out of memory at step 4: lower data.tokens (now 160), for example data.tokens=80 training.accumulate=4, which"
        " keeps the size of an update"
    )


def test_other_errors_are_not_taken_for_it(corpus: Path, tmp_path: Path, faulty: str) -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        toys.run(corpus, tmp_path / "run", faulty, "objective.fault=other")


def test_a_run_folder_that_cannot_be_made(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"file/run: making the run folder failed: Not a directory"):
        toys.run(corpus, tmp_path / "file" / "run")


def test_no_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loop.train(toys.config(Path("x"), "data.folder=''"), tmp_path / "run")
    assert str(caught.value) == (
        "data.folder: no prepared corpus is named; make one with `transduce prepare`, then data.folder=FOLDER"
    )
    assert not (tmp_path / "run").exists()


def test_tensorboard_that_is_not_installed(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError) as caught:
        toys.run(corpus, tmp_path / "run", "training.tensorboard=true")
    assert str(caught.value) == (
        "training.tensorboard: TensorBoard is not installed; pip install 'transduce[tensorboard]', or leave"
        " training.tensorboard=false"
    )
    assert not (tmp_path / "run").exists()  # nothing was begun


# -- reports --------------------------------------------------------------------------------------------------------


def batch(corpus: Path, number: int) -> Batch:
    opened, data = Corpus.open(corpus), toys.config(corpus).data
    batches = Batches(opened.split("train"), opened.tokenizers, data.tokens, data.bucket, seed=1)
    return next(batches.stream(0, number))[2]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_first_report_is_the_loss_and_gradient_of_the_first_batches(
    corpus: Path, tmp_path: Path, accumulate: int
) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=1", "model.dropout=0", f"training.accumulate={accumulate}")
    config, opened = toys.config(corpus, "model.dropout=0"), Corpus.open(corpus)
    torch.manual_seed(1)
    model = config.model.build(opened.tokenizers.source.size, opened.tokenizers.target.size, shared=True)
    losses = [config.objective.build()(model, batch(corpus, number), 0) for number in range(accumulate)]
    count = sum(loss.count.item() for loss in losses)
    mean = sum((loss.total for loss in losses), torch.zeros(())) / count
    torch.autograd.backward(mean)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    (line,) = toys.reports(tmp_path / "run")
    assert line["loss"] == pytest.approx(mean.item(), rel=1e-5)
    assert line["gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert line["nll"] < line["loss"] * 1.2
    assert line["learning_rate"] == 3e-3
    assert toys.final(tmp_path / "run").state["target_tokens"] == count


def test_the_fields_of_a_report(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "run", "training.learning_rate.kind=cosine", "training.learning_rate.warmup=10")
    lines = toys.reports(tmp_path / "run")
    fields = "kind step loss nll learning_rate gradient_norm skipped epoch tokens_per_second seconds memory"
    assert set(lines[0]) == set(fields.split())
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [line["epoch"] for line in lines] == sorted(line["epoch"] for line in lines)
    assert lines[-1]["epoch"] >= 1
    assert lines[-1]["loss"] < lines[0]["loss"]
    rates = [line["learning_rate"] for line in lines]
    assert rates[9] == max(rates) == 5e-4
    assert rates[19] == pytest.approx(0, abs=1e-12)
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)
    assert lines[0]["memory"] > 50e6  # python and torch alone are more
    assert [line["memory"] for line in lines] == sorted(line["memory"] for line in lines)
    assert all(line["tokens_per_second"] > 0 and line["gradient_norm"] > 0 for line in lines)
    assert set(toys.reports(tmp_path / "run", "valid")[0]) == {"kind", "step", "loss", "perplexity", "bleu", "chrf"}


def test_the_end_has_the_seconds_of_a_run_without_reports(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=2", "training.report_every=100")
    assert not toys.reports(tmp_path / "run")
    (end,) = toys.reports(tmp_path / "run", "finished")
    state = read_checkpoint(step_folders(tmp_path / "run")[2]).state
    assert end["seconds"] == state["seconds"] > 0


def test_counts_without_measure_are_any_number(corpus: Path, tmp_path: Path) -> None:
    names = "steps report_every save_every keep_last keep_best average".split()
    counts = [f"training.{name}={(1 << 63) - 1}" for name in names]
    counts += [f"validation.{name}={(1 << 63) - 1}" for name in ("every", "patience", "sentences", "samples")]
    outcome = toys.run(corpus, tmp_path / "run", *counts, "training.minutes=1e-9", f"data.tokens={1 << 31}")
    assert (outcome.step, outcome.reason) == (1, "minutes")


def test_a_large_seed(corpus: Path, tmp_path: Path) -> None:
    assert toys.run(corpus, tmp_path / "run", f"seed={(1 << 63) - 1}", "training.steps=1").step == 1
