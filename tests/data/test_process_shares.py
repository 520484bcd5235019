"""Shares of processes: together they are the batches of one, whatever their number."""

from __future__ import annotations

import itertools

import pytest
import torch
import toys

from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.data.stream import Portion, Share

COUNT = 12  # micro-batches looked at: three epochs of four


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(toys.corpus(tmp_path_factory.mktemp("toy"), toys.reversals(60), (), "unigram", 30))


def made(corpus: Corpus, tokens: int = 160, sampling: float = 0.0) -> Batches:
    return Batches(corpus.split("train"), corpus.tokenizers, tokens, 4, 1, sampling)


def portions(batches: Batches, share: Share) -> list[Portion]:
    return list(itertools.islice(share.portions(batches, 0, 2), COUNT))


@pytest.mark.parametrize("sampling", [0.0, 0.3])
@pytest.mark.parametrize(("size", "accumulate"), [(1, 1), (2, 1), (3, 1), (2, 3), (7, 2)])
def test_rows_of_all_are_the_rows_of_one(corpus: Corpus, size: int, accumulate: int, sampling: float) -> None:
    batches = made(corpus, sampling=sampling)
    whole = list(itertools.islice(batches.stream(0, 2), COUNT))
    shares = [portions(batches, Share(rank, size, accumulate)) for rank in range(size)]
    for count, (epoch, position, batch) in enumerate(whole):
        for rank, share in enumerate(shares):
            portion = share[count]
            assert (portion.epoch, portion.position, portion.number) == (epoch, position, count % accumulate)
            assert portion.piece == rank
            assert portion.batch is not None
            own = slice(rank, None, size) if portion.counted else slice(0, 1)
            for mine, all_rows in zip(portion.batch.tensors(), batch.tensors(), strict=True):
                assert torch.equal(mine, all_rows[own])


@pytest.mark.parametrize(("size", "accumulate"), [(2, 2), (2, 4), (3, 3)])
def test_whole_micro_batches_are_dealt_out(corpus: Corpus, size: int, accumulate: int) -> None:
    batches = made(corpus)
    whole = list(itertools.islice(batches.stream(0, 2), COUNT))
    shares = [portions(batches, Share(rank, size, accumulate)) for rank in range(size)]
    for count, (epoch, position, batch) in enumerate(whole):
        found = [share[count] for share in shares]
        assert {(one.epoch, one.position, one.number, one.piece) for one in found} == {
            (epoch, position, count % accumulate, 0)
        }
        holders = [one.batch for one in found if one.batch is not None]
        assert len(holders) == 1
        assert torch.equal(holders[0].target, batch.target)
    held = [sum(one.batch is not None for one in share[:accumulate]) for share in shares]
    assert held == [accumulate // size] * size  # in each step all have as many to do


def test_a_model_with_statistics_has_rows_of_each(corpus: Corpus) -> None:
    share = portions(made(corpus), Share(1, 2, 2, entire=False))
    assert all(one.batch is not None and one.piece == 1 for one in share)


def test_who_has_no_row_takes_part_uncounted(corpus: Corpus) -> None:
    batches = made(corpus, tokens=8)
    sizes = [len(batch.source) for _, _, batch in itertools.islice(batches.stream(0, 2), COUNT)]
    assert min(sizes) == 1
    for rank in range(3):
        for size, portion in zip(sizes, portions(batches, Share(rank, 3)), strict=True):
            assert portion.counted == (rank < size)
            assert portion.batch is not None
            assert len(portion.batch.source) >= 1
