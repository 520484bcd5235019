"""Objectives that draw, through the real loop: chosen by a word in the config, and resumed to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys
from snapshots import same

OBJECTIVES = {
    "scheduled sampling": (
        "objective.inputs.kind=scheduled_sampling",
        "objective.inputs.schedule={kind='inverse_sigmoid',end=0.9,steps=6}",
        "objective.inputs.temperature=1",
    ),
    "noise": ("objective.inputs={kind='input_noise',replace=0.3,drop=0.1}",),
    "reinforce": ("objective={kind='reinforce',samples=3}", "objective.cross_entropy.inputs=input_noise"),
    "self-critical": ("objective={kind='reinforce',samples=1,baseline='greedy',mixing=0}",),
    "minimum risk": ("objective={kind='minimum_risk',samples=3,longest_extra=2}",),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.corpus(tmp_path_factory.mktemp("copies"), toys.copies(60))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_resumed_run_draws_the_same(corpus: Path, tmp_path: Path, name: str) -> None:
    settings = (*OBJECTIVES[name], "training.accumulate=2", "training.save_every=3")
    toys.run(corpus, tmp_path / "whole", *settings, "training.steps=6")
    toys.run(corpus, tmp_path / "parts", *settings, "training.steps=3")
    toys.run(corpus, tmp_path / "parts", *settings, "training.steps=6")
    lines = [toys.reports(tmp_path / folder) for folder in ("whole", "parts")]
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]
    assert same(toys.final(tmp_path / "whole"), toys.final(tmp_path / "parts"))
    if not name.startswith(("scheduled", "noise")):
        assert all(0 <= line["reward"] <= 1 for line in lines[0])
        assert len({line["reward"] for line in lines[0]}) > 1
