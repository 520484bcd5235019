"""Before the first step on a CPU: threads found by trying, kept by the run, and nothing else changed; memory kept."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import toys

from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.experiment import Config
from transduce.objectives import ObjectiveStep
from transduce.training import machine
from transduce.training.machine import own_threads, tune_threads
from transduce.training.session import Session
from transduce.training.step_runner import EagerRunner


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(60))


@pytest.fixture
def two_threads() -> Iterator[None]:
    with own_threads():
        torch.set_num_threads(2)
        yield


class Sleeping(EagerRunner):
    """A pass that takes as long as the test says, and counts how often it is made with how many threads."""

    def __init__(self, module: ObjectiveStep, seconds: dict[int, float]) -> None:
        super().__init__(module, torch.device("cpu"), bf16=False)
        self.seconds, self.made = seconds, dict.fromkeys(seconds, 0)

    def __call__(self, batch: object, step: int) -> None:  # type: ignore[override]
        self.made[torch.get_num_threads()] += 1
        time.sleep(self.seconds[torch.get_num_threads()])


def parts(corpus: Path, *overrides: str) -> tuple[Config, Session, Batches, ObjectiveStep]:
    config, opened = toys.config(corpus, *overrides), Corpus.open(corpus)
    size = opened.tokenizers.source.size
    session = Session(config, config.model.build(size, size, True), torch.device("cpu"))
    batches = Batches(opened.split("train"), opened.tokenizers, config.data.tokens, config.data.bucket, 1)
    return config, session, batches, ObjectiveStep(session.model, config.objective.build())


@pytest.mark.parametrize(("seconds", "chosen"), [({2: 0.03, 1: 0.001}, 1), ({2: 0.001, 1: 0.03}, 2)])
@pytest.mark.usefixtures("two_threads")
def test_the_fastest_number_of_threads_is_taken_and_named(corpus: Path, seconds: dict[int, float], chosen: int) -> None:
    config, session, batches, module = parts(corpus, "training.steps=200")
    passes, said = Sleeping(module, seconds), []
    tune_threads(config.training, session, passes, batches, True, said.append)
    assert torch.get_num_threads() == session.progress.threads == chosen
    assert passes.made == {2: 3, 1: 3}
    assert len(said) == 1
    assert said[0].startswith(f"training.threads: {chosen} of 2 (a pass on the first batch took with 1: ")


@pytest.mark.parametrize(
    ("overrides", "before", "expected"),
    [
        (("training.steps=199",), 0, 2),  # too few passes to pay
        (("training.steps=100", "training.accumulate=2", "training.threads=1"), 0, 1),  # said
        (("training.steps=400",), 1, 1),  # begun with so many
    ],
)
@pytest.mark.usefixtures("two_threads")
def test_nothing_is_tried_where_it_would_not_pay_or_is_settled(
    corpus: Path, overrides: tuple[str, ...], before: int, expected: int
) -> None:
    config, session, batches, module = parts(corpus, *overrides)
    session.progress.threads = before
    passes, said = Sleeping(module, {1: 0, 2: 0}), []
    tune_threads(config.training, session, passes, batches, True, said.append)
    assert torch.get_num_threads() == session.progress.threads == expected
    assert (passes.made, said) == ({1: 0, 2: 0}, [])


def test_one_thread_leaves_no_choice(corpus: Path) -> None:
    config, session, batches, module = parts(corpus, "training.steps=1000")
    passes = Sleeping(module, {1: 0})
    tune_threads(config.training, session, passes, batches, True, pytest.fail)
    assert (session.progress.threads, passes.made) == (1, {1: 0})


@pytest.mark.usefixtures("two_threads")
def test_several_processes_keep_what_they_were_started_with(corpus: Path) -> None:
    config, session, batches, module = parts(corpus, "training.steps=1000")
    session.progress.threads = 7  # of the run when it was alone
    passes = Sleeping(module, {1: 0, 2: 0})
    tune_threads(config.training, session, passes, batches, False, pytest.fail)
    assert (torch.get_num_threads(), passes.made) == (2, {1: 0, 2: 0})


@pytest.mark.usefixtures("two_threads")
def test_trying_changes_nothing_and_a_resumed_run_keeps_what_was_found(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a norm whose running statistics every pass moves."""
    settings = ("model.encoder.norm=batch_norm", "training.steps=8", "training.save_every=4")
    monkeypatch.setattr(machine, "WORTH", 1)
    toys.run(corpus, tmp_path / "tried", *settings, "training.steps=4")
    assert "training.threads: " in capfd.readouterr().err
    assert torch.get_num_threads() == 2  # as before the run
    threads = toys.final(tmp_path / "tried").state["threads"]
    toys.run(corpus, tmp_path / "tried", *settings)
    assert "training.threads: " not in capfd.readouterr().err
    toys.run(corpus, tmp_path / "told", *settings, f"training.threads={threads}")
    tried, told = (tmp_path / name / "model.safetensors" for name in ("tried", "told"))
    assert tried.read_bytes() == told.read_bytes()
    assert toys.untimed(tmp_path / "tried")[-1] == toys.untimed(tmp_path / "told")[-1]


TOUCH = """
import resource, sys, torch
from transduce.training.machine import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(3):
    torch.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set is glibc's")
def test_memory_that_is_freed_is_not_fetched_again() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", TOUCH, how], check=True, capture_output=True).stdout)
        for how in ("keep", "leave")
    ]
    assert faults[0] * 10 < faults[1]
