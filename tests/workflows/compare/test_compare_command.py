"""`transduce compare` end to end on a toy corpus: real processes, a stop, a kill, a variant that breaks."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toys
from cli_runner import Ran, Run, refused
from PIL import Image
from safetensors.torch import load_file

from transduce.core.errors import ConfigError, DataError, RunError
from transduce.metrics.corpus import bleu
from transduce.workflows.compare import run as comparing
from transduce.workflows.compare.plan import read_plan
from transduce.workflows.compare.run import compare, default_jobs

COMMON = """
base = "tiny"
seeds = [1, 2]
baseline = "post"
settings.data.tokens = 160
settings.model = { d_model = 16, encoder.layers = 1, decoder.layers = 1 }
settings.search = { kind = "greedy", limits.longest = 12 }
settings.validation.search = { kind = "greedy", limits.longest = 12 }
settings.training = { steps = 20, report_every = 2, device = "cpu" }
settings.validation.every = 10
settings.validation.samples = 0
"""
POST = '[[variant]]\nname = "post"\n'
PRE = """
[[variant]]
name = "pre"
settings.model.encoder.residual = "pre_norm"
settings.model.decoder.residual = "pre_norm"
"""
BROKEN = '[[variant]]\nname = "broken"\nsettings.objective.kind = "breaking:Breaking"\n'
MODULE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Breaking:
    def build(self, context):
        raise RuntimeError("the objective broke")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and a comparison of two variants with two seeds, done by the program itself."""
    folder = tmp_path_factory.mktemp("compared")
    pairs = toys.numbers(150)
    toys.corpus(folder, pairs[12:], pairs[:12])
    (folder / "two.toml").write_text(COMMON + POST + PRE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def compared(folder: Path, warm: str) -> subprocess.CompletedProcess[str]:
    words = [warm, "-m", "transduce", "compare", "two.toml", "data.folder=corpus", "--output", "out", "--jobs", "2"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_two_variants_with_two_seeds(folder: Path, compared: subprocess.CompletedProcess[str]) -> None:
    assert compared.returncode == 0, compared.stderr
    head, post, pre = compared.stdout.split("\n")[:3]
    assert head.startswith("variant ")
    assert (post.split()[0], pre.split()[0]) == ("post", "pre")
    assert "baseline" in post
    assert "Measured on the valid split (12 sentences)" in compared.stdout
    assert "side by side" in compared.stdout
    assert compared.stdout.endswith("out: results.json, results.csv, table.md, quality.png, lengths.png\n")
    assert "pre, seed 2: training took" in compared.stderr
    assert "pre, seed 2: measuring took" in compared.stderr


@pytest.mark.slow
def test_what_is_left_in_the_folder(folder: Path, compared: subprocess.CompletedProcess[str]) -> None:
    out = folder / "out"
    rows = list(csv.DictReader((out / "results.csv").open(encoding="utf-8")))
    assert [(row["variant"], row["seed"]) for row in rows] == [("post", "1"), ("post", "2"), ("pre", "1"), ("pre", "2")]
    references = (folder / "valid.target").read_text(encoding="utf-8").split("\n")[:-1]
    for row in rows:
        stem = out / row["variant"] / f"seed-{row['seed']}"
        translations = stem.with_name(f"{stem.name}.translated.txt").read_text(encoding="utf-8").split("\n")[:-1]
        assert float(row["bleu"]) == pytest.approx(bleu(translations, references).value)
        assert float(row["parameters"]) > 1000
        assert all(float(row[name]) > 0 for name in row if name.endswith(("_1", "_32", "memory", "per_second")))
        assert float(row["training_steps"]) == 20
        said = json.loads((stem / "metrics.jsonl").read_bytes().split(b"\n")[-2])
        assert (said["kind"], float(row["validation_loss"])) == ("finished", said["loss"])
    results = json.loads((out / "results.json").read_bytes())
    assert [row["variant"] for row in results["rows"]] == ["post", "pre"]
    assert 0 < results["rows"][1]["p_value"] <= 1
    assert results["side_by_side"]
    assert (out / "table.md").read_text(encoding="utf-8").startswith("# two\n\n| variant | BLEU | p |")
    for name in ("quality.png", "lengths.png"):
        with Image.open(out / name) as image:
            assert image.format == "PNG"


@pytest.mark.slow
def test_again_only_shows_the_table(
    folder: Path, compared: subprocess.CompletedProcess[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(comparing, "run_tasks", None)  # nothing is to be started
    (folder / "out" / "table.md").unlink()
    ran = run("compare", "two.toml", "data.folder=corpus", "-o", "out")
    assert ran.code == 0, ran.err
    assert ran.out.decode().split() == compared.stdout.split()
    assert (folder / "out" / "table.md").is_file()


@pytest.mark.slow
def test_settings_of_another_run_are_refused_before_anything_starts(
    folder: Path, compared: subprocess.CompletedProcess[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = refused(run("compare", "two.toml", "data.folder=corpus", "model.d_model=32", "-o", "out"))
    assert "out/post/seed-1: was trained with model.d_model = 16, and now 32 is requested; choose another" in text


@pytest.mark.slow
@pytest.mark.parametrize(("word", "told"), [("training.steps=8", "20 steps"), ("training.minutes=0.0001", "2 seconds")])
def test_less_training_than_there_was_is_refused(
    word: str,
    told: str,
    folder: Path,
    compared: subprocess.CompletedProcess[str],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs of more steps are none of fewer, and were shown as such."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(comparing, "last_reported", lambda path, key: {"step": 20, "seconds": 2}[key])
    text = refused(run("compare", "two.toml", "data.folder=corpus", word, "-o", "out"))
    assert text.startswith("variant 'post': out/post/seed-1 was trained for ")
    assert f"{told} already, and {'8' if 'steps' in word else '0'} are requested; request as many at least" in text
    assert text.endswith("or choose another folder with --output")


@pytest.mark.slow
def test_a_variant_that_breaks_harms_no_other(
    folder: Path, compared: subprocess.CompletedProcess[str], run: Run, monkeypatch: pytest.MonkeyPatch, warm: str
) -> None:
    """What is there already is used; only the broken variant is run."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", warm)
    shutil.copytree("out/post", "broken/post")
    Path("breaking.py").write_text(MODULE, encoding="utf-8")
    Path("broken.toml").write_text(COMMON + BROKEN + POST, encoding="utf-8")
    ran = run("compare", "broken.toml", "data.folder=corpus", "seeds=[1]", "--output", "broken")
    assert ran.code == 1, ran.err
    assert "broken, seed 1: failed: RuntimeError: the objective broke" in ran.out.decode()
    assert ran.lines[1].split() == ["broken", "failed"]
    assert "post, seed 1" not in ran.err
    results = json.loads(Path("broken/results.json").read_bytes())
    assert results["runs"][0]["failure"] == "RuntimeError: the objective broke"
    assert results["rows"][1]["figures"]["bleu"]["deviation"] is None


@pytest.mark.slow
def test_a_variant_that_continues_another(
    folder: Path, compared: subprocess.CompletedProcess[str], run: Run, monkeypatch: pytest.MonkeyPatch, warm: str
) -> None:
    """What it continues is there already and is used; a rate of next to nothing leaves its weights as they were."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", warm)
    shutil.copytree("out/post", "longer/post")
    longer = (
        '[[variant]]\nname = "longer"\nsettings.training.start_from = "{post}"\n'
        'settings.training.learning_rate = { kind = "constant", rate = 1e-12 }\n'
    )
    Path("longer.toml").write_text(COMMON + POST + longer, encoding="utf-8")
    ran = run("compare", "longer.toml", "data.folder=corpus", "seeds=[2]", "--output", "longer")
    assert ran.code == 0, ran.err
    assert "post, seed 2" not in ran.err
    assert "Built on the runs of post, whose training is not in their time and budget: longer." in ran.out.decode()
    first, second = (load_file(f"longer/{name}/seed-2/model.safetensors") for name in ("post", "longer"))
    assert all(torch.allclose(first[name], second[name], atol=1e-9, rtol=0) for name in first)
    other = load_file("out/post/seed-1/model.safetensors")
    assert not all(torch.allclose(first[name], other[name], atol=1e-9, rtol=0) for name in first)


@pytest.mark.slow
def test_a_stop_a_kill_and_resuming(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, warm: str) -> None:
    """SIGTERM saves and says so; a trainer killed outright is a failure; the same command then ends what is left."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", warm)
    Path("one.toml").write_text(COMMON + POST, encoding="utf-8")
    words = ["compare", "one.toml", "data.folder=corpus", "seeds=[5]", "--output", "stopped"]
    place = Path("stopped/post/seed-5")
    metrics = folder / place / "metrics.jsonl"

    def ran_until(strike: Callable[[], None]) -> Ran:
        """The command on an endless run, struck when it has reported."""
        size = metrics.stat().st_size if metrics.exists() else 0

        def wait() -> None:
            while not metrics.exists() or metrics.stat().st_size <= size:
                time.sleep(0.05)
            strike()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        ran = run(*words, "training.steps=100000")
        thread.join()
        return ran

    def kill() -> None:
        holder = (folder / place / ".lock").read_text(encoding="utf-8")
        os.kill(int(holder.split()[1]), signal.SIGKILL)

    stopped = ran_until(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert stopped.code == 143
    assert stopped.err.endswith("SIGTERM: stopped; the same command resumes from there\n")
    assert len(list((place / "checkpoints").glob("step-*"))) >= 1
    killed = ran_until(kill)
    assert killed.code == 1
    assert "post, seed 5: failed: killed by SIGKILL" in killed.out.decode()
    step = max(line["step"] for line in toys.reports(place))
    ended = run(*words, f"training.steps={step + 3}")
    assert ended.code == 0, ended.err
    assert [line["step"] for line in toys.reports(place, "finished")] == [step + 3]


def test_what_is_refused_before_anything_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"variant 'post': data.folder: no prepared corpus is named; make one with"):
        compare("two.toml", output=tmp_path)
    with pytest.raises(DataError, match=r"variant 'post': nowhere: not a prepared corpus \(no such folder\)"):
        compare("two.toml", ["data.folder=nowhere"], tmp_path)
    elsewhere = toys.corpus(tmp_path / "other", toys.numbers(130)[9:], toys.numbers(130)[:9])
    mixed = POST + f'[[variant]]\nname = "other"\nsettings.data.folder = "{elsewhere}"\n'
    (tmp_path / "mixed.toml").write_text(COMMON + mixed, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        compare(tmp_path / "mixed.toml", ["data.folder=corpus"], tmp_path)
    assert "holds another text to measure on than that of 'post'; quality can be compared on one" in str(caught.value)
    assert not (tmp_path / "post").exists()


def test_one_comparison_a_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transduce.core.processes import RunLock

    monkeypatch.chdir(folder)
    with RunLock(tmp_path), pytest.raises(RunError, match=f"is being trained by process {os.getpid()}"):
        compare("two.toml", ["data.folder=corpus"], tmp_path)


def test_jobs_where_nobody_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on a CPU; on a GPU what memory and cores carry."""
    monkeypatch.chdir(folder)
    plan = read_plan("two.toml", ["data.folder=corpus", "training.device=cuda"])
    assert default_jobs(read_plan("two.toml", ["data.folder=corpus"]), {"post": 9, "pre": 9}) == 1

    class Properties:
        total_memory = 40 << 30

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: Properties)
    monkeypatch.setattr(comparing, "usable_cores", lambda: 64)
    assert default_jobs(plan, {"post": 1000, "pre": 1000}) == 8
    assert default_jobs(plan, {"post": 1000, "pre": 1 << 29}) == 2  # 8 GiB and 3 of 32
    assert default_jobs(plan, {"post": 1000, "pre": 1 << 33}) == 1
    monkeypatch.setattr(comparing, "usable_cores", lambda: 6)
    assert default_jobs(plan, {"post": 1000, "pre": 1000}) == 3


@pytest.mark.slow
def test_without_matplotlib_there_is_a_table_all_the_same(
    folder: Path, compared: subprocess.CompletedProcess[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = run("compare", "two.toml", "data.folder=corpus", "-o", "out")
    assert ran.code == 0, ran.err
    assert "no pictures: Plotting needs the package matplotlib" in ran.out.decode()
