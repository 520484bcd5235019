"""SIGTERM and Ctrl-C to a real `transduce train`: it saves, exits and resumes bit-identically; twice aborts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import toys
from snapshots import same, same_tensors

import transduce
from transduce.core.errors import RunError
from transduce.core.processes import StopRequest
from transduce.engines.torch.engine import TorchEngine
from transduce.exchange.convert import convert
from transduce.training import loop
from transduce.training.checkpoint import Snapshot, read_tensors, save_checkpoint, step_folders
from transduce.training.weights import load_weights

pytestmark = pytest.mark.slow

STEPS = 60
SLOW = "slowly:Slowly"  # an objective that takes its time, so that a signal finds the run still going
OBJECTIVE = """
import sys
import time
from dataclasses import dataclass
from transduce.objectives.cross_entropy import CrossEntropy

@dataclass(frozen=True)
class Slowly(CrossEntropy):
    seconds: float = 0.1

    def build(self, context):
        loss = super().build()
        def slow(model, batch, step):
            if step >= 3:
                print("a slow step begins", file=sys.stderr, flush=True)
                time.sleep(self.seconds)
            return loss(model, batch, step)
        return slow
"""


class Child:
    """`transduce train` in a process of its own, run in a folder that holds the slow objective."""

    def __init__(self, python: str, place: Path, *overrides: str) -> None:
        own = ("data.folder=corpus", f"training.steps={STEPS}", "training.save_every=1000")
        settings = toys.latest(*toys.TINY, *own, *overrides)
        command = [python, "-m", "transduce", "train", "tiny", *settings, "--output", "run"]
        self.process = subprocess.Popen(
            command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "200"}
        )
        self.said = ""

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        while text not in self.said:
            line = self.process.stderr.readline().decode()
            assert line, f"the child ended without saying {text!r}: {self.said}"
            self.said += line

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; gives its exit code."""
        assert self.process.stderr is not None
        self.said += self.process.stderr.read().decode()
        self.process.stderr.close()
        return self.process.wait(60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pairs = toys.reversals(70)
    toys.corpus(tmp_path, pairs[:60], pairs[60:], "bpe", 30)
    (tmp_path / "slowly.py").write_text(OBJECTIVE)
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_and_the_run_resumes(
    place: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, warm: str
) -> None:
    child = Child(warm, place, f"objective={SLOW}")
    child.wait_for("step 5 of 60")
    child.send(number)
    assert child.end() == 128 + number
    assert f"{number.name}: saving after this step; once more aborts\n" in child.said
    saved = re.search(
        rf"{number.name}: saved step (\d+) in run; the same command resumes from there, and the folder is a model with"
        r" the weights of step (\d+)\n",
        child.said,
    )
    assert saved is not None
    step = int(saved[1])
    assert int(saved[2]) == (step if step < 10 else step // 10 * 10)  # the first validation is after ten
    assert 5 <= step < STEPS
    assert list(step_folders(place / "run")) == [step]
    assert "Traceback" not in child.said

    # The rest, and the whole, in this process: other processes, the same bits.
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rest = (f"objective={SLOW}", f"training.steps={STEPS}", "training.save_every=1000")
    for folder in ("run", "whole"):
        assert toys.run(Path("corpus"), Path(folder), *rest).reason == "finished"
    assert same(toys.final(place / "run"), toys.final(place / "whole"))
    assert toys.untimed(place / "run") == toys.untimed(place / "whole")
    models = [(place / folder / "model.safetensors").read_bytes() for folder in ("run", "whole")]
    assert models[0] == models[1]
    assert step_folders(place / "run").keys() == step_folders(place / "whole").keys()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_aborts_at_once(place: Path, number: signal.Signals, warm: str) -> None:
    child = Child(warm, place, f"objective={SLOW}", "objective.seconds=1000")
    child.wait_for("a slow step begins")  # a signal before it would be heard at once, and the run saved
    child.send(number)
    child.wait_for("once more aborts")
    child.send(number)
    code = child.end()
    assert code == {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}[number]
    assert "saved step" not in child.said
    assert not step_folders(place / "run")


@pytest.mark.parametrize("ema", ["0", "0.5"])
def test_a_run_that_is_stopped_early_translates(
    place: Path, monkeypatch: pytest.MonkeyPatch, warm: str, ema: str
) -> None:
    """Before the first validation, with the weights it was stopped at; gone on with, it ends as if never stopped."""
    never = ("validation.every=1000", f"training.ema={ema}", f"objective={SLOW}")
    monkeypatch.syspath_prepend(place)
    child = Child(warm, place, *never)
    child.wait_for("step 5 of 60")
    child.send(signal.SIGINT)
    assert child.end() == 130
    (step,) = step_folders(place / "run")
    translator = transduce.load(place / "run", "cpu", trust=True)
    tensors, metadata = load_weights(place / "run" / "model.safetensors")
    which = "" if ema == "0" else f", moving average of weights (decay {ema})"
    assert metadata["weights"] == f"last, step {step}, where training was stopped{which}"
    assert same_tensors(tensors, read_tensors(step_folders(place / "run")[step], "average" if ema != "0" else "model"))
    assert len(translator(["abc", "de"])) == 2
    assert (
        f"Weights: last, step {step}, where training was stopped{which}.\n" in (place / "run" / "README.md").read_text()
    )
    monkeypatch.chdir(place)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for folder in ("run", "whole"):
        assert toys.run(Path("corpus"), Path(folder), *never, f"training.steps={STEPS}").reason == "finished"
    assert (place / "run" / "model.safetensors").read_bytes() == (place / "whole" / "model.safetensors").read_bytes()


def test_a_run_that_is_killed_translates_with_its_newest_checkpoint(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, warm: str
) -> None:
    monkeypatch.syspath_prepend(place)
    child = Child(warm, place, "validation.every=1000", "training.save_every=2", f"objective={SLOW}")
    child.wait_for("step 5 of 60")
    child.send(signal.SIGKILL)
    assert child.end() != 0
    run = place / "run"
    assert not (run / "model.safetensors").exists()
    step = max(step_folders(run))
    capfd.readouterr()
    translator = transduce.load(run, "cpu", trust=True)
    assert isinstance(translator.engine, TorchEngine)
    assert capfd.readouterr().err == (
        f"{run}: training has not written model.safetensors yet; using its newest checkpoint, step {step}\n"
    )
    model: Any = translator.engine.model
    assert same_tensors(model.weights(), read_tensors(step_folders(run)[step], "model"))
    assert len(translator(["abc", "de"])) == 2
    with pytest.raises(RunError) as caught:  # a file made of it would outlive the note
        convert(run, place / "converted", trust=True)
    assert str(caught.value) == (
        f"{run}: has no model.safetensors yet; training writes it at the first validation, when it is stopped and at"
        " the end. Resume training with the same command, or make one of checkpoints:"
        f" `transduce average {run} --last 1`"
    )
    for path in step_folders(run).values():
        shutil.rmtree(path)
    with pytest.raises(RunError) as caught:
        transduce.load(run, "cpu", trust=True)
    assert str(caught.value) == (
        f"{run}: has no model.safetensors yet, nor a checkpoint: training ended before it wrote the first. It does so"
        " every 2 steps (training.save_every, validation.every) and when it is stopped by Ctrl-C. Resume training with"
        " the same command"
    )


def test_two_runs_on_one_folder(place: Path, warm: str) -> None:
    first = Child(warm, place, f"objective={SLOW}", "objective.seconds=2")  # or it has ended when the second has begun
    first.wait_for("step 3 of 60")
    second = Child(warm, place)
    assert second.end() == 2
    holder = int((place / "run" / ".lock").read_text().split()[1])
    os.kill(holder, 0)  # it lives
    assert re.search(
        rf"error: run is being trained by process {holder} since [-\d]+ [:\d]+ on \S+; wait for it, or"
        " choose another folder\n",
        second.said,
    )
    first.send(signal.SIGTERM)
    assert first.end() == 143


def test_a_signal_while_the_last_step_is_saved_does_not_undo_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = toys.copies(40)
    corpus = toys.corpus(tmp_path, pairs)

    def interrupted(folder: Path, snapshot: Snapshot) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        return save_checkpoint(folder, snapshot)

    monkeypatch.setattr(loop, "save_checkpoint", interrupted)
    assert toys.run(corpus, tmp_path / "run", "training.steps=2").reason == "finished"
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C as a terminal's program has it; a script's shell leaves it ignored to what it starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_handlers_are_put_back(heard: None) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGTERM) != before[0]
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGINT
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_second_signal_aborts_what_was_started_in_the_background(heard: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    def handler_inside() -> object:
        with StopRequest():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(handler_inside).result() == signal.getsignal(signal.SIGTERM)
