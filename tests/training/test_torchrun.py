"""The real torchrun: a rank that is killed, and a signal to torchrun itself. Many kills: benchmarks/ranks.py."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import toys

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from crashes import make_corpus
from ranks import TorchGroup, kill_ranks

from transduce.training.checkpoint import step_folders

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch, warm: str) -> None:
    """Start torchrun and its ranks by a Python that has torch loaded."""
    monkeypatch.setattr(sys, "executable", warm)


def test_a_killed_rank_brings_the_group_back_to_the_same_end(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # pytest shows it if the test fails
    tally = kill_ranks(tmp_path / "toy", size=2, kills=2, seed=seed)
    assert tally.kills == 2
    assert tally.ended == tally.identical == tally.groups


def test_a_signal_to_torchrun_saves_once(tmp_path: Path) -> None:
    """Its own exit code is always 1; that of the ranks is tested in test_distributed.py."""
    corpus = make_corpus(tmp_path)
    group = TorchGroup(2, corpus, tmp_path / "run", 0, "training.steps=100000", "validation.every=100000")
    limit = time.monotonic() + 100
    while group.step() < 5 and time.monotonic() < limit:
        time.sleep(0.05)
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == 1
    said = (tmp_path / "run.log").read_text()
    saved = re.findall(r"SIGTERM: saved step (\d+) in ", said)
    assert len(saved) == 1
    assert max(step_folders(tmp_path / "run")) == int(saved[0]) >= 5
    assert said.count("SIGTERM: saving after this step\n") == 1
    assert "error: " not in said
    last = toys.reports(tmp_path / "run")[-1]["step"]
    assert last == int(saved[0])
