"""The capacity of a packed batch: how many tokens it holds end to end."""

from __future__ import annotations

from pathlib import Path

import toys

from transduce.data.batching import Batches
from transduce.data.corpus import Corpus


def made(folder: Path, packed: bool) -> list[tuple[int, int, tuple[int, int]]]:
    """Real tokens, places and packing capacity of every batch."""
    corpus = Corpus.open(toys.corpus(folder, toys.reversals(60), toys.reversals(5), "bpe", 30))
    stream = Batches(corpus.split("train"), corpus.tokenizers, 60, 8, seed=1, packed=packed)
    plan = stream.plan(0)
    found = []
    for number in range(len(plan)):
        batch = stream.make(plan, 0, number)
        masks = batch.source_mask, batch.target_mask
        found.append((sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks), batch.capacity))
    return found


def test_capacities_are_as_large_as_what_they_hold_and_full_batches_have_none(tmp_path: Path) -> None:
    batches = made(tmp_path, packed=True)
    assert any(room != (0, 0) for _, _, room in batches)
    for real, places, room in batches:
        assert sum(room) == (real if real < 0.95 * places else 0)
    assert all(room == (0, 0) for _, _, room in made(tmp_path / "again", packed=False))
