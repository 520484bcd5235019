"""A resumed run is bit-identical to one never stopped: weights, optimizer, average, losses, exported model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import toys
from snapshots import same

from transduce.core.errors import RunError
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.training.checkpoint import step_folders
from transduce.training.run_folder import FREE, TRANSLATED, read_config

EVERY_STEP = ("training.save_every=1", "training.keep_last=100")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:], "bpe", 30)


@pytest.fixture(scope="module")
def epoch(corpus: Path) -> int:
    """Batches in the first epoch: the step that is its exact end."""
    opened, data = Corpus.open(corpus), toys.config(corpus).data
    batches = Batches(opened.split("train"), opened.tokenizers, data.tokens, data.bucket, seed=1)
    assert 3 < len(batches.plan(0)) < 15
    return len(batches.plan(0))


def cut(whole: Path, folder: Path, step: int) -> Path:
    """A copy of a finished run as a kill after saving `step` leaves it, one more line of its log half written."""
    shutil.copytree(whole, folder)
    for saved, path in step_folders(folder).items():
        if saved > step:
            shutil.rmtree(path)
    if toys.final(whole).state["best_step"] > step or step == 0:
        (folder / "model.safetensors").unlink()
    lines = [line for line in (folder / "metrics.jsonl").read_bytes().split(b"\n") if b"finished" not in line]
    (folder / "metrics.jsonl").write_bytes(b"\n".join(lines) + b'{"kind": "train", "st')
    return folder


def expect_same(resumed: Path, whole: Path) -> None:
    assert toys.untimed(resumed) == toys.untimed(whole)
    assert same(toys.final(resumed), toys.final(whole))
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("ema", ["0.0", "0.9"])
def test_ten_and_ten_steps_are_twenty(corpus: Path, tmp_path: Path, ema: str) -> None:
    toys.run(corpus, tmp_path / "whole", f"training.ema={ema}")
    toys.run(corpus, tmp_path / "parts", f"training.ema={ema}", "training.steps=10")
    assert toys.final(tmp_path / "parts").step == 10
    toys.run(corpus, tmp_path / "parts", f"training.ema={ema}")
    for kind in ("train", "valid"):
        lines = [toys.reports(tmp_path / name, kind) for name in ("parts", "whole")]
        assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]
        assert len(lines[0]) == {"train": 20, "valid": 2}[kind]
    parts, whole = toys.final(tmp_path / "parts"), toys.final(tmp_path / "whole")
    assert same(parts, whole)
    assert set(whole.tensors) == {"model", "optimizer"} | ({"average"} if ema == "0.9" else set())
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("parts", "whole")]
    assert models[0] == models[1]


VARIANTS = {
    "plain": (),
    "accumulation": ("training.accumulate=3",),  # steps end in the middle of epochs, and epochs within steps
    "average": ("training.ema=0.8", "training.clip=0.5", "training.optimizer.kind=adam_w"),
    "muon": ("training.optimizer.kind=muon",),
    "sampling": ("data.sampling=0.2",),
    "validation": ("validation.every=3", "validation.patience=50", "validation.metric=chrf"),
    "reports between saves": ("training.report_every=7",),
    "two passes": ("objective=r_drop",),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_kill_after_any_save_changes_nothing(corpus: Path, tmp_path: Path, epoch: int, variant: str) -> None:
    settings = (*EVERY_STEP, *VARIANTS[variant])
    whole = tmp_path / "whole"
    toys.run(corpus, whole, *settings)
    assert toys.final(whole).state["epoch"] > 0
    for step in {0, 1, 5, epoch, 19, 20} if variant == "plain" else {epoch, 7}:
        folder = cut(whole, tmp_path / f"cut-{step}", step)
        toys.run(corpus, folder, *settings)
        expect_same(folder, whole)


def test_reports_between_saves_divide_the_same_sums(corpus: Path, tmp_path: Path) -> None:
    """A report over steps 5 to 8, of which 5 and 6 were made before the stop."""
    fine = ("training.report_every=4", "training.save_every=6", "validation.every=100")
    toys.run(corpus, tmp_path / "whole", *fine)
    folder = cut(tmp_path / "whole", tmp_path / "cut", 6)
    toys.run(corpus, folder, *fine)
    expect_same(folder, tmp_path / "whole")
    assert [line["step"] for line in toys.reports(folder)] == [4, 8, 12, 16, 20]


def test_how_often_is_saved_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "seldom", "training.ema=0.9")
    toys.run(corpus, tmp_path / "often", "training.ema=0.9", *EVERY_STEP)
    expect_same(tmp_path / "often", tmp_path / "seldom")


def test_counters_of_patience_survive(corpus: Path, tmp_path: Path) -> None:
    """A rate this high makes validations worse; the third without a better one ends the run, stopped or not."""
    bad = (*EVERY_STEP, "validation.every=2", "validation.patience=3", "training.learning_rate.rate=1.0")
    whole = tmp_path / "whole"
    outcome = toys.run(corpus, whole, *bad)
    assert outcome.reason == "patience"
    best, last = toys.final(whole).state["best_step"], outcome.step
    assert last == best + 6 < 20
    for step in (best + 1, best + 2, last - 1, last):
        folder = cut(whole, tmp_path / f"cut-{step}", step)
        assert toys.run(corpus, folder, *bad) == type(outcome)(folder, last, "patience", outcome.validation)
        expect_same(folder, whole)


def test_a_damaged_newest_checkpoint_costs_time_only(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    toys.run(corpus, whole, *EVERY_STEP)
    folder = cut(whole, tmp_path / "cut", 12)
    weights = folder / "checkpoints" / "step-00000012" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    capfd.readouterr()
    toys.run(corpus, folder, *EVERY_STEP)
    said = capfd.readouterr().err
    assert "step-00000012: model.safetensors: SHA-256 differs; falling back to step-00000011" in said
    assert f"{folder}: resuming from step 11" in said
    expect_same(folder, whole)


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns if "step-" in str(path) else 0, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("average", ["0", "2"])
def test_a_finished_run_is_left_alone_and_says_so(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], average: str
) -> None:
    settings = (f"training.average={average}", "validation.every=7")
    first = toys.run(corpus, tmp_path / "run", *settings)
    (tmp_path / "run" / "README.md").write_text("my own words\n")
    before = content(tmp_path / "run")
    capfd.readouterr()
    again = toys.run(corpus, tmp_path / "run", *settings)
    assert content(tmp_path / "run") == before
    assert (again.step, again.reason) == (first.step, first.reason) == (20, "finished")
    assert capfd.readouterr().err == (
        f"{tmp_path / 'run'}: nothing to do: it ended at step 20 (finished); raise training.steps,"
        " training.minutes or validation.patience to train further\n"
    )


def test_settings_of_a_finished_run_change_in_config_and_card_and_are_reported(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A command that leaves them out sets them back, and says so too."""
    run, written = tmp_path / "run", ("license=MIT", "search.kind=beam", "search.size=3")
    toys.run(corpus, run)
    card = (run / "README.md").read_text()
    capfd.readouterr()
    toys.run(corpus, run, *written)
    told = capfd.readouterr().err
    assert f"{run}: settings of the run that this command changes: license = 'MIT' (was ''), " in told
    assert "search.kind = 'beam' (was 'greedy'), search.size = 3, " in told
    assert "one that it does not name is that of the preset or file, or the default" in told
    assert "nothing to do: it ended at step 20" in told
    assert read_config(run).license == "MIT"
    text = (run / "README.md").read_text()
    assert text.endswith("## Licence\n\nMIT\n")
    assert "`transduce translate` and `transduce evaluate` use beam 3 (`search`).\n" in text
    toys.run(corpus, run)
    assert "license = '' (was 'MIT'), search.kind = 'greedy' (was 'beam'); one that" in capfd.readouterr().err
    assert (run / "README.md").read_text() == card
    (run / "README.md").unlink()
    toys.run(corpus, run, *written)
    assert not (run / "README.md").exists()


def test_a_run_killed_just_before_its_end_is_ended(corpus: Path, tmp_path: Path) -> None:
    """All steps are saved, but the average is not made yet, nor any model written."""
    settings = ("training.average=2", "data.valid=none", "training.save_every=5")
    toys.run(corpus, tmp_path / "whole", *settings)
    folder = cut(tmp_path / "whole", tmp_path / "cut", 20)
    (folder / "model.safetensors").unlink()
    (folder / "README.md").unlink()
    toys.run(corpus, folder, *settings)
    expect_same(folder, tmp_path / "whole")


def test_more_steps_may_be_requested(corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=3")
    assert toys.run(corpus, tmp_path / "run", "training.steps=5").step == 5
    assert f"{tmp_path / 'run'}: resuming from step 3\n" in capfd.readouterr().err
    assert "steps = 5\n" in (tmp_path / "run" / "config.toml").read_text()
    assert [line["step"] for line in toys.reports(tmp_path / "run", "finished")] == [3, 5]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.d_model=32", "model.d_model = 16, and now 32 is requested"),
        ("seed=2", "seed = 1, and now 2 is requested"),
        ("data.tokens=200", "data.tokens = 160, and now 200"),
        ("objective=r_drop", "objective.kind = 'cross_entropy', and now 'r_drop'"),
        ("training.learning_rate=paper", "training.learning_rate.kind = 'constant', and now 'paper'"),
        ("training.ema=0.5", "training.ema = 0.0, and now 0.5"),
        ("validation.metric=bleu", "validation.metric = 'loss', and now 'bleu'"),
    ],
)
def test_another_setting_is_another_run(corpus: Path, tmp_path: Path, setting: str, message: str) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=1")
    before = content(tmp_path / "run")
    with pytest.raises(RunError) as caught:
        toys.run(corpus, tmp_path / "run", "training.steps=2", setting)
    assert f"{tmp_path / 'run'}: was trained with {message}" in str(caught.value)
    assert "choose another folder, or the same settings to resume" in str(caught.value)
    assert content(tmp_path / "run") == before


@pytest.mark.parametrize("setting", ["validation.sentences=2", "validation.search=beam", "validation.language=de"])
def test_what_validation_translates_may_change_where_the_loss_decides(
    corpus: Path, tmp_path: Path, setting: str
) -> None:
    key = setting.partition("=")[0]
    toys.run(corpus, tmp_path / "loss", "training.steps=1")
    assert toys.run(corpus, tmp_path / "loss", "training.steps=2", setting).step == 2
    toys.run(corpus, tmp_path / "bleu", "training.steps=1", "validation.metric=bleu")
    with pytest.raises(RunError) as caught:
        toys.run(corpus, tmp_path / "bleu", "training.steps=2", "validation.metric=bleu", setting)
    assert f"{tmp_path / 'bleu'}: was trained with {key}" in str(caught.value)
    assert str(caught.value).endswith(
        " is requested, and scores before and after could not be compared; choose another folder, or the same settings"
        " to resume"
    )


def test_the_docs_name_what_may_change() -> None:
    """The table of docs/using.md has all of it, and nothing else."""
    using = (Path(__file__).parents[2] / "docs" / "using.md").read_text(encoding="utf-8")
    table = using.partition("| settings | that may change on resume |\n")[2].partition("\n\n")[0]
    named = re.findall(r"`([a-z_.]+)`", table)
    assert sorted(named) == sorted((*FREE, *TRANSLATED))


def test_the_corpus_may_move_but_not_change(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=1")
    moved = shutil.copytree(corpus, tmp_path / "moved")
    assert toys.run(moved, tmp_path / "run", "training.steps=2").step == 2
    manifest = (moved / "manifest.json").read_text()
    (moved / "manifest.json").write_text(manifest.replace('"report"', ' "report"'))
    with pytest.raises(RunError) as caught:
        toys.run(moved, tmp_path / "run", "training.steps=3")
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: was trained on another corpus than {moved} holds now; give data.folder the one it began"
        " with, or choose another folder for the new run"
    )


def test_another_tokenizer_is_another_run(corpus: Path, tmp_path: Path) -> None:
    toys.run(corpus, tmp_path / "run", "training.steps=1")
    pairs = toys.reversals(70)
    other = toys.corpus(tmp_path, pairs[:60], pairs[60:], "char")
    with pytest.raises(RunError, match=f"was trained with another tokenizer than the corpus {other} has now; choose"):
        toys.run(other, tmp_path / "run", "training.steps=2")
