"""Padded batches of sentence pairs; the only place where the target is shifted by one.

Shapes: B pairs, S source length, T target length. Padding is on the right; a mask is True at real tokens. The last rows
may be empty: all padding, they add nothing to any sum.
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

PACKED_BELOW = 0.95  # share of positions with tokens; packing and unpacking takes a few percent of a CPU's step


@dataclass(frozen=True)
class Batch:
    """A batch of pairs: source (B, S) ends with eos, or is frames (B, S, F); target (B, T + 1) has bos first, eos last.

    source_mask (B, S) and target_mask (B, T), the latter over `gold`. alignment (B, T, S), where the corpus has word
    alignments: the attention each gold piece should have, rows that sum to 1, or to 0 where unknown. `capacity` is the
    maximum number of real source and target tokens when packed end to end; 0 = leave them padded.
    """

    source: Tensor
    source_mask: Tensor
    target: Tensor
    target_mask: Tensor
    alignment: Tensor | None = None
    capacity: tuple[int, int] = (0, 0)

    @property
    def inputs(self) -> Tensor:
        """Decoder inputs (B, T) under teacher forcing: bos and all but the last token."""
        return self.target[:, :-1]

    @property
    def gold(self) -> Tensor:
        """Target tokens (B, T) after each input: the target shifted by one."""
        return self.target[:, 1:]

    def packed(self, source: int, target: int) -> Batch:
        """Set the capacity for so many real tokens, unless packing would cost more than padding does."""
        positions = self.source_mask.numel() + self.target_mask.numel()
        return replace(self, capacity=(source, target)) if source + target < PACKED_BELOW * positions else self

    def to(self, device: torch.device) -> Batch:
        """Copy to another device."""
        return self.with_tensors(*(t.to(device, non_blocking=True) for t in self.tensors()))

    def pinned(self) -> Batch:
        """Copy to pinned memory, from which a GPU copies asynchronously."""
        return self.with_tensors(*(t.pin_memory() for t in self.tensors()))

    def with_tensors(self, *tensors: Tensor) -> Batch:
        """Replace the tensors returned by `tensors()`."""
        source, source_mask, target, target_mask, *alignment = tensors
        return Batch(source, source_mask, target, target_mask, alignment[0] if alignment else None, self.capacity)

    def tensors(self) -> tuple[Tensor, ...]:
        """List the tensors in the order of the fields; each is batch first."""
        always = self.source, self.source_mask, self.target, self.target_mask
        return always if self.alignment is None else (*always, self.alignment)


def pad_sources(sources: Sequence[Tokens], symbols: Symbols, length: int = 0, rows: int = 0) -> tuple[Tensor, Tensor]:
    """Pad source sentences with eos to (B, S) tokens and mask; S is at least `length`, B at least `rows`."""
    lengths = np.zeros(max(rows, len(sources)), dtype=np.int64)
    lengths[: len(sources)] = [len(tokens) + 1 for tokens in sources]
    padded = np.full((len(lengths), max(length, lengths.max(initial=0))), symbols.pad, dtype=np.int64)
    columns = np.arange(padded.shape[1])
    if sources:  # all rows at once: a loop over a thousand takes milliseconds, a fifth of a GPU's step
        padded[columns < lengths[:, None] - 1] = _end_to_end(sources)
    padded[np.arange(len(sources)), lengths[: len(sources)] - 1] = symbols.eos
    mask = columns < lengths[:, None]
    return torch.from_numpy(padded), torch.from_numpy(mask)


def _end_to_end(sources: Sequence[Tokens]) -> NDArray[np.int64]:
    """Concatenate all tokens. Converting a few hundred lists one by one takes as long as a GPU's decoding step."""
    if any(isinstance(tokens, np.ndarray) for tokens in sources):
        return np.concatenate([np.asarray(tokens, np.int64) for tokens in sources])
    return np.fromiter(itertools.chain.from_iterable(sources), np.int64)


def pad_any(
    sources: Sequence[Tokens] | Sequence[Frames], symbols: Symbols, length: int = 0, rows: int = 0
) -> tuple[Tensor, Tensor]:
    """Apply `pad_sources` to tokens, or `pad_frames` to frames."""
    if len(sources) and np.ndim(sources[0]) == 2:
        return pad_frames(cast("Sequence[Frames]", sources), length, rows)
    return pad_sources(cast("Sequence[Tokens]", sources), symbols, length, rows)


def pad_frames(sources: Sequence[Frames], length: int = 0, rows: int = 0) -> tuple[Tensor, Tensor]:
    """Pad frames of recordings or pictures to (B, S, F) with mask (B, S); bytes become numbers from 0 to 1. No eos."""
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

    Sources may be frames instead. Empty rows come last if there are more `rows` than pairs.
    """
    source, source_mask = pad_any(sources, source_symbols, source_length, rows)
    gold, target_mask = pad_sources(targets, target_symbols, target_length, rows)
    start = torch.full((len(gold), 1), target_symbols.bos, dtype=torch.int64)
    return Batch(source, source_mask, torch.cat((start, gold), dim=1), target_mask)
