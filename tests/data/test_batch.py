"""A batch: padding to the right, masks, and the one shift by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.batch import Batch, collate, pad_sources
from transduce.text.vocabulary import Symbols

SOURCE = Symbols(pad=0, bos=2, eos=3, unk=1)
TARGET = Symbols(pad=9, bos=7, eos=8, unk=6)
sentences = st.lists(st.lists(st.integers(10, 50), max_size=12), min_size=1, max_size=8)


def test_a_batch_spelled_out() -> None:
    batch = collate([[11, 12], []], [[21], [22, 23, 24]], SOURCE, TARGET)
    assert batch.source.tolist() == [[11, 12, 3], [3, 0, 0]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.target.tolist() == [[7, 21, 8, 9, 9], [7, 22, 23, 24, 8]]
    assert batch.inputs.tolist() == [[7, 21, 8, 9], [7, 22, 23, 24]]
    assert batch.gold.tolist() == [[21, 8, 9, 9], [22, 23, 24, 8]]
    assert batch.target_mask.tolist() == [[True, True, False, False], [True, True, True, True]]
    assert {tensor.dtype for tensor in (batch.source, batch.target)} == {torch.int64}
    assert {tensor.dtype for tensor in (batch.source_mask, batch.target_mask)} == {torch.bool}


@given(sentences, st.integers(0, 20), st.integers(0, 20))
def test_every_token_is_where_it_belongs(texts: list[list[int]], source_length: int, target_length: int) -> None:
    backwards = [text[::-1] for text in reversed(texts)]
    batch = collate(texts, backwards, SOURCE, TARGET, source_length, target_length)
    longest = max(map(len, texts)) + 1
    assert batch.source.shape == batch.source_mask.shape == (len(texts), max(longest, source_length))
    assert (
        batch.gold.shape == batch.inputs.shape == batch.target_mask.shape == (len(texts), max(longest, target_length))
    )
    for row, (source, target) in enumerate(zip(texts, backwards, strict=True)):
        assert batch.source[row][batch.source_mask[row]].tolist() == [*source, SOURCE.eos]
        assert batch.gold[row][batch.target_mask[row]].tolist() == [*target, TARGET.eos]
        assert batch.inputs[row][batch.target_mask[row]].tolist() == [TARGET.bos, *target]
        assert set(batch.source[row][~batch.source_mask[row]].tolist()) <= {SOURCE.pad}
        assert set(batch.gold[row][~batch.target_mask[row]].tolist()) <= {TARGET.pad}
    for mask in (batch.source_mask, batch.target_mask):  # real tokens first: padding lies to the right
        assert not (mask[:, 1:] & ~mask[:, :-1]).any()


def test_tokens_may_come_from_a_file() -> None:
    stored = [np.array([40_000, 65_535], dtype=np.uint16), np.array([], dtype=np.uint16)]
    source, mask = pad_sources(stored, SOURCE)
    assert source.tolist() == [[40_000, 65_535, 3], [3, 0, 0]]
    assert mask.sum().item() == 4


def test_padding_that_is_the_end_symbol_is_masked_all_the_same() -> None:
    """A tokenizer without padding fills with the end symbol: only the first of them is real."""
    symbols = dataclasses.replace(SOURCE, pad=3)
    source, mask = pad_sources([[11], [12, 13]], symbols, length=5)
    assert source.tolist() == [[11, 3, 3, 3, 3], [12, 13, 3, 3, 3]]
    assert mask.sum(1).tolist() == [2, 3]


def test_to_a_device_keeps_everything() -> None:
    batch = collate([[11]], [[21, 22]], SOURCE, TARGET)
    moved = batch.to(torch.device("meta"))
    assert [tensor.shape for tensor in moved.tensors()] == [tensor.shape for tensor in batch.tensors()]
    assert moved.source.device.type == "meta"
    again = batch.to(torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(again.tensors(), batch.tensors(), strict=True))
    assert Batch(*batch.tensors()) == Batch(*batch.tensors())
