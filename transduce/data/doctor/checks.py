"""The data doctor's checks of parallel text, and what happens to a pair that fails one.

Sources that are files (recordings, pictures) are opened, and compared by their content.

Training pairs are kept, cleaned, dropped or refused as `Doctor` says. Validation and test lines are never dropped or
changed, since scores must stay comparable: there "drop" and "clean" only report, but what cannot be kept at all
(invalid UTF-8, a line above 1 MiB) is refused. Checks run in a fixed order; a dropped pair counts once.

`HashStore` finds repeated texts among any number in flat memory: 64-bit hashes are spread over files on disk by their
top bits. Equal hashes are in the same file, and each file is small enough to sort. Two different texts share a hash
once in 1.8e19 pairs of texts: among a billion, one false alarm is expected in 37 corpora.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from transduce.core.bounds import Bounds, PositiveInt, check_bounds
from transduce.data.doctor.report import Outcome, Tally, excerpt
from transduce.data.formats.lines import LINE_BYTES
from transduce.data.formats.parallel import Chunk, RawPairs
from transduce.data.readers import FileReader, Unreadable, beside
from transduce.data.word_links import check_links, parse_links

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.uint64]
RECORD = np.dtype([("hash", "<u8"), ("position", "<u8")])
_PARTS = 256
_HELD_BACK = 1 << 18  # records in memory before they are spread over the files (4 MiB)


def hash_text(text: str) -> int:
    """Hash a text to 64 bits, ignoring differences in white space."""
    return int.from_bytes(blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "little")


class HashStore:
    """Stores hashes with the position of their text; small numbers need no files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[npt.NDArray[np.void]] = []
        self._waiting_count = 0
        self._is_sorted = False  # whether the waiting records are one sorted array
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
        records = self._in_memory()
        bounds = _bounds(records)
        for index in range(_PARTS):
            chosen = records[bounds[index] : bounds[index + 1]]
            if len(chosen):
                with open(self._folder / str(index), "ab") as file:
                    file.write(chosen.tobytes())
        self._waiting, self._waiting_count, self._is_sorted = [], 0, False

    def _in_memory(self) -> npt.NDArray[np.void]:
        """Records in memory, sorted by hash and then by position."""
        if not self._is_sorted:
            records = np.concatenate([np.empty(0, RECORD), *self._waiting])
            self._waiting, self._is_sorted = [records[np.argsort(records["hash"], kind="stable")]], True
        return self._waiting[0]

    def parts(self) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """Yield each non-empty part, sorted by hash and then by position."""
        records_in_memory = self._in_memory()
        bounds = _bounds(records_in_memory)
        for index in range(_PARTS):
            records = self._part(index, records_in_memory[bounds[index] : bounds[index + 1]])
            if len(records):
                yield index, records

    def part(self, index: int) -> npt.NDArray[np.void]:
        """Return one part, sorted; empty if it has no records."""
        records_in_memory = self._in_memory()
        return self._part(index, records_in_memory[slice(*_bounds(records_in_memory)[index : index + 2])])

    def _part(self, index: int, records_in_memory: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        path = self._folder / str(index)
        if not path.exists():
            return records_in_memory
        records = np.concatenate([np.fromfile(path, RECORD), records_in_memory])
        return records[np.argsort(records["hash"], kind="stable")]


def _bounds(records: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Where each part begins among sorted records."""
    edges = np.arange(_PARTS, dtype=np.uint64) << np.uint64(56)
    return np.append(np.searchsorted(records["hash"], edges), len(records))


def repeats(
    store: HashStore, kind: Callable[[Positions], npt.NDArray[np.int64]]
) -> Iterator[tuple[Positions, Positions]]:
    """Yield, part by part, positions whose text occurred before in the same `kind`, and its first position."""
    for _, records in store.parts():
        kinds = kind(records["position"])
        order = np.lexsort((records["position"], kinds, records["hash"]))
        hashes, kinds, positions = records["hash"][order], kinds[order], records["position"][order]
        new = np.concatenate([[True], (hashes[1:] != hashes[:-1]) | (kinds[1:] != kinds[:-1])])
        first = np.flatnonzero(new)[np.cumsum(new) - 1]
        yield positions[~new], positions[first[~new]]


def shared(store: HashStore, other: HashStore) -> Iterator[tuple[Positions, Positions]]:
    """Yield, part by part, positions in `store` whose text is also in `other`, and its first position there."""
    for index, records in store.parts():
        others = other.part(index)
        if not len(others):
            continue
        slots = np.searchsorted(others["hash"], records["hash"])
        is_shared = others["hash"][np.minimum(slots, len(others) - 1)] == records["hash"]
        yield records["position"][is_shared], others["position"][slots[is_shared]]


Action = Literal["keep", "clean", "drop", "refuse"]
RATIO_SLACK = 10  # characters added to both lengths before they are compared, so that short lines may differ
# NUL and the other C0 and C1 controls and DEL; tab and U+0085 (next line) are white space that text does use.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x84\x86-\x9f]")
_OUTCOMES: dict[Action, Outcome] = {"keep": "kept", "clean": "cleaned", "drop": "dropped", "refuse": "refused"}


@dataclass(frozen=True)
class Doctor:
    """The doctor's settings: what happens to a pair that fails a check.

    Only reported: training pairs whose source alone is in valid or test, corpora whose sides look swapped (examine.py),
    characters without a piece in the tokenizer. Always refused: files of different line counts.
    """

    invalid_utf8: Literal["refuse", "drop"] = "refuse"
    unreadable: Literal["refuse", "drop"] = "refuse"  # a recording or picture that is missing, damaged or too long
    control: Literal["clean", "drop", "refuse", "keep"] = "clean"  # control characters; clean: each becomes a space
    empty: Literal["drop", "refuse", "keep"] = "drop"  # a side that is empty or only white space
    too_long: Literal["drop", "refuse"] = "drop"  # a side of more than longest_characters
    longest_characters: PositiveInt = 5000
    ratio: Literal["drop", "keep", "refuse"] = "drop"  # one side over largest_ratio times as long as the other
    # in characters, 10 added to both; Chinese to English is seldom above 6
    largest_ratio: Annotated[float, Bounds(1)] = 9.0
    copied: Literal["keep", "drop", "refuse"] = "keep"  # the target is the source
    overlap: Literal["drop", "keep", "refuse"] = "drop"  # a training pair that is also in valid or test
    duplicates: Literal["drop", "keep"] = "drop"  # a training pair that occurred before

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Checked:
    """A checked chunk: the pairs that stay, their line numbers, and the findings."""

    source: list[str]
    target: list[str]
    lines: list[int]
    links: list[bytes]  # as `SentenceLinks.as_line` writes them; empty for a corpus without alignments
    source_hashes: Hashes
    pair_hashes: Hashes
    read: int
    tally: Tally


@dataclass(frozen=True)
class Examiner:
    """The checks of single pairs, over the pairs of one chunk."""

    doctor: Doctor
    chunk: Chunk
    held_out: bool
    reader: FileReader | None = None  # for sources that are files; None for text
    tally: Tally = field(default_factory=Tally)

    def check(self) -> Checked:
        """Check every pair."""
        raw = self.chunk.pairs()
        for repair, count in raw.repairs.items():
            if count:
                self.tally.add(repair, "cleaned", count)
        source, target, lines, stayed, digests = [], [], [], [], []
        for index, (left, right) in enumerate(zip(raw.source, raw.target, strict=True)):
            pair = self._check_pair(self.chunk.first_line + index, left, right)
            digest = self._digest(self.chunk.first_line + index, pair[0]) if pair is not None else None
            if pair is not None and digest is not None:
                source.append(pair[0])
                target.append(pair[1])
                lines.append(self.chunk.first_line + index)
                stayed.append(index)
                digests.append(digest)
        source_hashes = np.array(digests, np.uint64)
        target_hashes = np.array([hash_text(clean(text)) for text in target], np.uint64)
        # An odd multiplier distinguishes (a, b) from (b, a), and keeps a copied pair from being zero.
        pair_hashes = source_hashes * np.uint64(0x9E3779B97F4A7C15) ^ target_hashes
        links = self._check_links(raw, stayed)
        return Checked(source, target, lines, links, source_hashes, pair_hashes, len(raw.source), self.tally)

    def _digest(self, line: int, source: str) -> int | None:
        """Hash of a source, for comparison; None for an unreadable file."""
        if self.reader is None:
            return int(hash_text(clean(source)))
        try:
            return self.reader.examine(source)
        except Unreadable as error:
            self._found("unreadable", line, 0, f"{source}: {error}", readable=False)
            return None

    def _check_links(self, raw: RawPairs, stayed: list[int]) -> list[bytes]:
        """Check all links, and return those of the pairs that stay."""
        if not self.chunk.links:
            return []
        locations = [
            f"{self.chunk.links_file}:{self.chunk.first_line + index}" for index in range(len(self.chunk.links))
        ]
        parsed = [parse_links(line, place) for line, place in zip(self.chunk.links, locations, strict=True)]
        links = [check_links(parsed[i], raw.source[i], raw.target[i], locations[i]).as_line() for i in stayed]
        self.tally.add("aligned", "kept", sum(line != b"" for line in links))
        return links

    def _check_pair(self, line: int, left: bytes, right: bytes) -> tuple[str, str] | None:
        """Return the cleaned pair, or None if it is dropped."""
        sides: list[str] = []
        for side, raw in enumerate((left, right)):
            if len(raw) > LINE_BYTES:
                self._found("too_long", line, side, excerpt(raw[:100]), readable=False)
                return None
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                self._found("invalid_utf8", line, side, excerpt(raw, error.start), readable=False)
                return None
            control = _CONTROL.search(text)
            if control is not None:
                action = self._found("control", line, side, excerpt(text, control.start()))
                if action in ("drop", "refuse"):
                    return None
                text = clean(text) if action == "clean" else text
            sides.append(text)
        if self.reader is not None and sides[0].strip():
            sides[0] = beside(sides[0], self.chunk.files[0])
        return None if self._is_dropped(line, *sides) else (sides[0], sides[1])

    def _is_dropped(self, line: int, source: str, target: str) -> bool:
        """Whether a check of the pair's texts drops or refuses it."""
        doctor, failed = self.doctor, []
        longer = int(len(target) > len(source)) if self.reader is None else 1
        if not source.strip() or not target.strip():
            failed.append(("empty", int(bool(source.strip()))))
        if max(len(source), len(target)) > doctor.longest_characters:
            failed.append(("too_long", longer))
        if self.reader is None:  # a path and a text cannot be compared
            short, long = sorted((len(source) + RATIO_SLACK, len(target) + RATIO_SLACK))
            if long > doctor.largest_ratio * short and not failed:
                failed.append(("ratio", longer))
            if source == target and not failed:
                failed.append(("copied", 0))
        return any(
            self._found(check, line, side, excerpt((source, target)[side])) in ("drop", "refuse")
            for check, side in failed
        )

    def _found(self, check: str, line: int, side: int, what: str, readable: bool = True) -> Action:
        """Count a finding, and return the action for its pair."""
        action: Action = getattr(self.doctor, check)
        if self.held_out and action != "refuse":
            action = "keep" if readable else "refuse"
        self.tally.add(check, _OUTCOMES[action], 1, [f"{self.chunk.files[side]}:{line}: {what}"])
        return action


def clean(text: str) -> str:
    """Replace each control character by a space."""
    return _CONTROL.sub(" ", text)
