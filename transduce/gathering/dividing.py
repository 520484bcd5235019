"""Which clean pair goes where: training, validation, test, or nowhere. Hashes are compared in files, part by part.

1. A sentence of the pivot belongs to training, validation or test by its hash alone, in every pair of languages.
2. A pair leaves training if either of its sentences is in any test. For sentences of at most `common` letters it is the
   test that gives way: a model that never saw "Good morning!" is of no use, and no test needs it.
3. Of equal pairs the first stays.

A sentence is its letters: case and punctuation make no other one. Memory: a byte a pair.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.data.duplicates import HashStore, Positions, repeats, shared
from transduce.data.parts import FinishedPart, PartWriter
from transduce.data.resuming import PreparationPlan
from transduce.gathering.cleaned import OTHER, PIVOT, CleanStretch
from transduce.gathering.cleaning import OTHER_COMMON, PIVOT_COMMON
from transduce.gathering.settings import Gather

Marks = npt.NDArray[np.uint8]
# What becomes of a pair. Those read as tests are only ever STAYS, REPEATED, COMMON or SURPLUS.
STAYS, REPEATED, IN_TEST, VALID, TEST, HELD_OUT, COMMON, SURPLUS = range(8)
REASONS = {REPEATED: "repeated", IN_TEST: "in_test", HELD_OUT: "held_out", COMMON: "common", SURPLUS: "surplus"}
_SIDES = ((PIVOT, PIVOT_COMMON), (OTHER, OTHER_COMMON))


def divide(plan: PreparationPlan, config: Gather, stretches: dict[str, list[CleanStretch]]) -> dict[str, Marks]:
    """The mark of every clean pair of each use; kept as a part."""
    path = plan.work.joined
    if plan.lacks(path):
        plan.check_inputs()
        with tempfile.TemporaryDirectory(prefix="hashes-", dir=plan.work.folder) as folder:
            marks = _Division(Path(folder), config, stretches).marks()
        writer = PartWriter(path)
        for use, found in marks.items():
            writer.add(use, found.tobytes())
        writer.finish({})
    return {use: FinishedPart(path).array(use, "u1") for use in stretches}


class _Division:
    def __init__(self, folder: Path, config: Gather, stretches: dict[str, list[CleanStretch]]) -> None:
        self.folder, self.config, self.stretches = folder, config, stretches
        self.train, self.test = (
            _Stores(folder / "train", stretches["train"]),
            _Stores(folder / "test", stretches["test"]),
        )

    def marks(self) -> dict[str, Marks]:
        test = self._test()
        return {"train": self._train(test), "test": test}

    def _test(self) -> Marks:
        marks = np.zeros(self.test.count, np.uint8)
        flags = np.concatenate([np.empty(0, np.uint8), *(one.flags() for one in self.stretches["test"])])
        for side, common in _SIDES:
            for positions, _ in shared(self.test.of[side], self.train.of[side]):
                marks[positions[(flags[positions] & common) > 0]] = COMMON
        self._mark_repeats(self.test, marks)
        if self.config.test_most:
            self._mark_surplus(marks)
        return marks

    def _mark_surplus(self, marks: Marks) -> None:
        """Of each pair of languages those sentences stay whose hashes are smallest: the same ones in all pairs."""
        of_pair: dict[str, list[CleanStretch]] = {}
        for stretch in self.stretches["test"]:
            of_pair.setdefault(self.config.pair(stretch.corpus), []).append(stretch)
        for members in of_pair.values():
            positions = np.concatenate([np.arange(one.start, one.start + one.count) for one in members])
            hashes = np.concatenate([one.hashes(PIVOT) for one in members])
            staying = marks[positions] == STAYS
            if staying.sum() > self.config.test_most:
                last = np.sort(hashes[staying])[self.config.test_most - 1]
                marks[positions[staying & (hashes > last)]] = SURPLUS

    def _train(self, test: Marks) -> Marks:
        marks = np.zeros(self.train.count, np.uint8)
        for stretch in self.stretches["train"]:
            stretch.marks(marks)[:] = self._by_hash(stretch)
        banned = self._banned(test, marks)
        for side, _ in _SIDES:
            for positions, _ in shared(self.train.of[side], banned.of[side]):
                marks[positions[marks[positions] != TEST]] = IN_TEST
        self._mark_repeats(self.train, marks)
        return marks

    def _by_hash(self, stretch: CleanStretch) -> Marks:
        """Training, validation or test, by the sentence of the pivot."""
        place = (stretch.hashes(PIVOT) >> np.uint64(11)).astype(np.float64) / 2.0**53
        test, valid = self.config.test_share, self.config.test_share + self.config.valid_share
        held_out = (VALID, TEST) if stretch.corpus.held_out else (HELD_OUT, HELD_OUT)
        return np.select([place < test, place < valid], [held_out[1], held_out[0]], STAYS).astype(np.uint8)

    def _banned(self, test: Marks, train: Marks) -> _Stores:
        """The sentences of all pairs that are test pairs now."""
        banned = _Stores(self.folder / "banned", [])
        for marks, wanted, stretches in (
            (test, STAYS, self.stretches["test"]),
            (train, TEST, self.stretches["train"]),
        ):
            for stretch in stretches:
                chosen = stretch.marks(marks) == wanted
                for side, _ in _SIDES:
                    banned.of[side].add(stretch.hashes(side)[chosen])
        return banned

    def _mark_repeats(self, stores: _Stores, marks: Marks) -> None:
        def one_kind(positions: Positions) -> npt.NDArray[np.int64]:
            return np.zeros(len(positions), np.int64)

        for positions, _ in repeats(stores.of["pairs"], one_kind):
            marks[positions[np.isin(marks[positions], (STAYS, VALID, TEST))]] = REPEATED


class _Stores:
    """Hashes of the sentences of both sides and of the pairs, by their position."""

    def __init__(self, folder: Path, stretches: list[CleanStretch]) -> None:
        self.of = {name: HashStore(folder / name) for name in (PIVOT, OTHER, "pairs")}
        self.count = sum(stretch.count for stretch in stretches)
        for stretch in stretches:
            for name, store in self.of.items():
                store.add(stretch.hashes(name))


def chosen_lines(stretch: CleanStretch, marks: Marks, mark: int) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a stretch with one mark."""
    own = stretch.marks(marks) == mark
    return (lines for lines, wanted in zip(stretch.lines(), own, strict=True) if wanted)
