"""Stopped and resumed is as if never stopped, to the bit: weights, optimizer, average, losses, exported model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import toys
from snapshots import same

from transduce.errors import RunError
from transduce.training.checkpoint import prune, step_folders

STEPS = 20


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four batches an epoch, so that twenty steps are several epochs."""
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:], "bpe", 30)


def batches_an_epoch(corpus: Path, tmp_path: Path) -> int:
    toys.run(corpus, tmp_path / "one", "training.steps=1")
    config = toys.config(corpus)
    from transduce.data.batching import Batches
    from transduce.data.corpus import Corpus

    opened = Corpus.open(corpus)
    split = opened.split("train")
    batches = Batches(split, opened.tokenizers, config.data.tokens, config.data.bucket, config.seed)
    return len(batches.plan(0))


def expect_same(whole: Path, resumed: Path) -> None:
    assert toys.untimed(resumed) == toys.untimed(whole)
    assert same(toys.final(resumed), toys.final(whole))
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def stopped_at(folder: Path, step: int) -> None:
    """Take the run back to the moment after `step` was saved, as a kill at any later time leaves it."""
    prune_after(folder, step)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "step": 99, "loss"')  # a line that the kill cut short


def prune_after(folder: Path, step: int) -> None:
    (folder / "checkpoints" / "latest").write_text(f"step-{step:08d}\n")
    prune(folder, [kept for kept in step_folders(folder) if kept <= step])
