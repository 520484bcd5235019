"""An even sample of the training lines that stay, for training tokenizers: the same whoever draws it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from transduce.data.corpus import SIDES, Side
from transduce.data.examination import Examination
from transduce.data.tokenizing import text_chunks
from transduce.data.vocabulary import SentencePiece


def draw_lines(examination: Examination, settings: SentencePiece) -> dict[Side, list[str]]:
    """Of each side those lines whose mixed position is small enough."""
    lines = examination.splits["train"].count * (2 if settings.shared else 1)
    share = min(1.0, settings.sentences / max(lines, 1))
    drawn: dict[Side, list[str]] = {side: [] for side in SIDES}
    for chunk in text_chunks(examination, examination.splits["train"]):
        positions = np.array(chunk.positions, np.uint64)
        for number, (side, texts) in enumerate(zip(SIDES, (chunk.source, chunk.target), strict=True)):
            chosen = np.flatnonzero(_mixed(positions, number) < share)
            drawn[side] += [texts[index].decode() for index in chosen.tolist()]
    return drawn


def _mixed(positions: npt.NDArray[np.uint64], side: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each position that looks random and is always the same (splitmix64)."""
    mixed = (positions * np.uint64(2) + np.uint64(side + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64
