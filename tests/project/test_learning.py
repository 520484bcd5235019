"""Toys are learned to at least 98 % on held-out data, each under a minute of one core, by prepare, train and load."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import toys

import transduce

pytestmark = pytest.mark.slow

HELD_OUT = 200
SETTINGS = (
    "data.tokens=512 model.d_model=64 model.dropout=0.0"
    " model.encoder.layers=2 model.encoder.attention.heads=4 model.encoder.d_ff=256"
    " model.decoder.layers=2 model.decoder.attention.heads=4 model.decoder.d_ff=256"
    " training.report_every=100 training.save_every=1000 training.learning_rate.kind=cosine"
    " training.learning_rate.peak=3e-3 training.learning_rate.warmup=50"
    " validation.every=1000 validation.metric=chrf validation.sentences=50"
).split()


def learned(folder: Path, pairs: toys.Pairs, steps: int, **tokenizer: int) -> float:
    """The share of held-out pairs that a model trained on the others gets right to the letter."""
    started = time.process_time()
    held_out, rest = pairs[:HELD_OUT], pairs[HELD_OUT:]
    assert not {source for source, _ in held_out} & {source for source, _ in rest}
    corpus = toys.corpus(folder, rest, held_out, "bpe" if tokenizer else "char", **tokenizer)
    toys.run(corpus, folder / "run", *SETTINGS, f"training.steps={steps}")
    share = toys.exact(transduce.load(folder / "run", "cpu"), held_out)
    assert time.process_time() - started < 60
    return share


def test_copying(tmp_path: Path) -> None:
    assert learned(tmp_path, toys.copies(4200), steps=250) >= 0.98


def test_reversing(tmp_path: Path) -> None:
    assert learned(tmp_path, toys.reversals(4200), steps=300) >= 0.98


def test_numbers_from_english_to_german(tmp_path: Path) -> None:
    assert learned(tmp_path, toys.numbers(6300), steps=550, vocabulary=100) >= 0.98
