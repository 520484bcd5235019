"""Repeated texts among any number of them, in flat memory: 64-bit hashes, spread over files on disk by their top bits.

Equal hashes fall into the same file, and each file is small enough to sort. Two different texts share a hash once in
1.8e19 pairs of texts: among a billion, one false alarm is expected in 37 corpora.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.uint64]
RECORD = np.dtype([("hash", "<u8"), ("position", "<u8")])
_PARTS = 256
_HELD_BACK = 1 << 18  # records in memory before they are spread over the files (4 MiB)


def hash_text(text: str) -> int:
    """64 bits of the text, blind to differences in white space."""
    return int.from_bytes(blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "little")


class HashStore:
    """Hashes with the position of the text each belongs to; few of them need no files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[npt.NDArray[np.void]] = []
        self._waiting_count = 0
        self._is_sorted = False  # whether what is waiting is one sorted array
        self.count = 0

    def add(self, hashes: Hashes) -> None:
        """Append the hashes of the next positions."""
        records = np.empty(len(hashes), RECORD)
        records["hash"] = hashes
        records["position"] = np.arange(self.count, self.count + len(hashes), dtype=np.uint64)
        self.count += len(hashes)
        self._waiting.append(records)
        self._is_sorted = False
        self._waiting_count += len(records)
        if self._waiting_count >= _HELD_BACK:
            self._spread()

    def _spread(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        records = self._held()
        bounds = _bounds(records)
        for index in range(_PARTS):
            chosen = records[bounds[index] : bounds[index + 1]]
            if len(chosen):
                with open(self._folder / str(index), "ab") as file:
                    file.write(chosen.tobytes())
        self._waiting, self._waiting_count, self._is_sorted = [], 0, False

    def _held(self) -> npt.NDArray[np.void]:
        """What is in memory, sorted by hash and within a hash by position."""
        if not self._is_sorted:
            records = np.concatenate([np.empty(0, RECORD), *self._waiting])
            self._waiting, self._is_sorted = [records[np.argsort(records["hash"], kind="stable")]], True
        return self._waiting[0]

    def parts(self) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """Each part that has records, sorted by hash and within a hash by position."""
        held = self._held()
        bounds = _bounds(held)
        for index in range(_PARTS):
            records = self._part(index, held[bounds[index] : bounds[index + 1]])
            if len(records):
                yield index, records

    def part(self, index: int) -> npt.NDArray[np.void]:
        """One part, sorted; empty if there is nothing in it."""
        held = self._held()
        return self._part(index, held[slice(*_bounds(held)[index : index + 2])])

    def _part(self, index: int, held: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        path = self._folder / str(index)
        if not path.exists():
            return held
        records = np.concatenate([np.fromfile(path, RECORD), held])
        return records[np.argsort(records["hash"], kind="stable")]


def _bounds(records: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Where each part begins among sorted records."""
    edges = np.arange(_PARTS, dtype=np.uint64) << np.uint64(56)
    return np.append(np.searchsorted(records["hash"], edges), len(records))


def repeats(
    store: HashStore, kind: Callable[[Positions], npt.NDArray[np.int64]]
) -> Iterator[tuple[Positions, Positions]]:
    """Part by part: positions whose text was there before among those of its `kind`, and the first position of it."""
    for _, records in store.parts():
        kinds = kind(records["position"])
        order = np.lexsort((records["position"], kinds, records["hash"]))
        hashes, kinds, positions = records["hash"][order], kinds[order], records["position"][order]
        new = np.concatenate([[True], (hashes[1:] != hashes[:-1]) | (kinds[1:] != kinds[:-1])])
        first = np.flatnonzero(new)[np.cumsum(new) - 1]
        yield positions[~new], positions[first[~new]]


def shared(store: HashStore, other: HashStore) -> Iterator[tuple[Positions, Positions]]:
    """Part by part: positions in `store` whose text is also in `other`, and the first position of it there."""
    for index, records in store.parts():
        others = other.part(index)
        if not len(others):
            continue
        at = np.searchsorted(others["hash"], records["hash"])
        found = others["hash"][np.minimum(at, len(others) - 1)] == records["hash"]
        yield records["position"][found], others["position"][at[found]]
