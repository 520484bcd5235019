"""A batch of sentence pairs, padded to a rectangle; the one place where the target is shifted by one.

Shapes: B pairs, S source length, T target length. Padding lies to the right; a mask is True at real tokens. The last
rows may hold no pair: all padding, they add nothing to any sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.readers import Array as Frames
from transduce.text.subword_sampling import Tokens
from transduce.text.vocabulary import Symbols

PACKED_BELOW = 0.95  # of the places holding tokens; moving them to and fro takes a few percent of a CPU's step


@dataclass(frozen=True)
class Batch:
    """source (B, S) ends each sentence with eos, or is frames (B, S, F); target (B, T + 1) has bos first and eos last.

    source_mask (B, S) and target_mask (B, T), the latter over `gold`. alignment (B, T, S), where the corpus has word
    alignments: where each gold piece should look, rows that sum to 1, or to 0 where nothing is known. `room` is how
    many places the real tokens of source and target need at most when packed end to end; 0 = leave them padded.
    """

    source: Tensor
    source_mask: Tensor
    target: Tensor
    target_mask: Tensor
    alignment: Tensor | None = None
    room: tuple[int, int] = (0, 0)

    @property
    def inputs(self) -> Tensor:
        """What the decoder reads under teacher forcing, (B, T): bos and all but the last token."""
        return self.target[:, :-1]

    @property
    def gold(self) -> Tensor:
        """What it should say after each input, (B, T): the same shifted by one."""
        return self.target[:, 1:]

    def packed(self, source: int, target: int) -> Batch:
        """The same with room for so many real tokens, unless packing would cost more than padding does."""
        places = self.source_mask.numel() + self.target_mask.numel()
        return replace(self, room=(source, target)) if source + target < PACKED_BELOW * places else self

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return self.with_tensors(*(t.to(device, non_blocking=True) for t in self.tensors()))

    def pinned(self) -> Batch:
        """The same in memory that a GPU copies from without anyone waiting."""
        return self.with_tensors(*(t.pin_memory() for t in self.tensors()))

    def with_tensors(self, *tensors: Tensor) -> Batch:
        """The same with other tensors in place of `tensors()`."""
        source, source_mask, target, target_mask, *alignment = tensors
        return Batch(source, source_mask, target, target_mask, alignment[0] if alignment else None, self.room)

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the fields; each is batch first."""
        always = self.source, self.source_mask, self.target, self.target_mask
        return always if self.alignment is None else (*always, self.alignment)


def pad_sources(sources: Sequence[Tokens], symbols: Symbols, length: int = 0, rows: int = 0) -> tuple[Tensor, Tensor]:
    """Source sentences with eos as (B, S) tokens and mask; S is the longest, or `length` if that is more, B alike."""
    lengths = np.zeros(max(rows, len(sources)), dtype=np.int64)
    lengths[: len(sources)] = [len(tokens) + 1 for tokens in sources]
    padded = np.full((len(lengths), max(length, lengths.max(initial=0))), symbols.pad, dtype=np.int64)
    places = np.arange(padded.shape[1])
    if sources:  # all rows in one go: a loop over a thousand takes as many milliseconds as a fifth of a GPU's step
        padded[places < lengths[:, None] - 1] = _end_to_end(sources)
    padded[np.arange(len(sources)), lengths[: len(sources)] - 1] = symbols.eos
    mask = places < lengths[:, None]
    return torch.from_numpy(padded), torch.from_numpy(mask)


def _end_to_end(sources: Sequence[Tokens]) -> NDArray[np.int64]:
    """All their tokens. Made an array each, a few hundred lists take as long as a GPU's step of decoding."""
    if any(isinstance(tokens, np.ndarray) for tokens in sources):
        return np.concatenate([np.asarray(tokens, np.int64) for tokens in sources])
    return np.fromiter(itertools.chain.from_iterable(sources), np.int64)


def pad_any(
    sources: Sequence[Tokens] | Sequence[Frames], symbols: Symbols, length: int = 0, rows: int = 0
) -> tuple[Tensor, Tensor]:
    """`pad_sources` of tokens, `pad_frames` of frames."""
    if len(sources) and np.ndim(sources[0]) == 2:
        return pad_frames(cast("Sequence[Frames]", sources), length, rows)
    return pad_sources(cast("Sequence[Tokens]", sources), symbols, length, rows)


def pad_frames(sources: Sequence[Frames], length: int = 0, rows: int = 0) -> tuple[Tensor, Tensor]:
    """Frames of recordings or pictures as (B, S, F) and mask (B, S). Bytes become numbers from 0 to 1. No eos."""
    lengths = np.zeros(max(rows, len(sources)), dtype=np.int64)
    lengths[: len(sources)] = [len(frames) for frames in sources]
    padded = np.zeros((len(lengths), max(length, lengths.max(initial=0)), sources[0].shape[1]), dtype=np.float32)
    for row, frames in zip(padded, sources, strict=False):
        row[: len(frames)] = frames
    if sources[0].dtype == np.uint8:
        padded /= 255
    mask = np.arange(padded.shape[1]) < lengths[:, None]
    return torch.from_numpy(padded), torch.from_numpy(mask)


def collate(
    sources: Sequence[Tokens] | Sequence[Frames],
    targets: Sequence[Tokens],
    source_symbols: Symbols,
    target_symbols: Symbols,
    source_length: int = 0,
    target_length: int = 0,
    rows: int = 0,
) -> Batch:
    """Pad pairs of token sequences (without bos and eos) to the longest, or to the given lengths if those are more.

    Sources may be frames instead. Empty rows come last where there are to be more `rows` than pairs.
    """
    source, source_mask = pad_any(sources, source_symbols, source_length, rows)
    gold, target_mask = pad_sources(targets, target_symbols, target_length, rows)
    start = torch.full((len(gold), 1), target_symbols.bos, dtype=torch.int64)
    return Batch(source, source_mask, torch.cat((start, gold), dim=1), target_mask)
