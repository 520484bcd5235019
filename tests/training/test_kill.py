"""Real processes, really killed: every run comes back, and ends as if nothing had happened.

The harness is benchmarks/crashes.py, which also runs by itself with as many kills as one likes.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from crashes import Damages, Kills, Trainer, damage_checkpoints, kill_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("crashes"))


def test_ten_kills_at_random_moments(trainer: Trainer) -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")  # pytest shows it if the test fails
    tally = kill_runs(trainer, 10, seed)
    assert tally == Kills(kills=10, inside=tally.inside, runs=tally.runs, unusable=0, identical=tally.runs)
    assert tally.inside >= 3


def test_damaged_checkpoints_are_skipped_and_training_resumes(trainer: Trainer) -> None:
    """A thousand of them are tested in test_checkpoint.py, without training."""
    tally = damage_checkpoints(trainer, 100, seed=5, resumes=3)
    assert tally == Damages(flips=75, truncations=25, detected=100, fallbacks=100, resumed=3, identical=3)
