"""The data doctor: what it looks for in parallel text, and what becomes of a pair that has it.

Where sources are files (recordings, pictures), each is opened, and told from others by its content.

Training pairs are kept, cleaned, dropped or refused as `Doctor` says. Validation and test lines are never dropped or
changed, for scores must stay comparable: there "drop" and "clean" only report, but what cannot be kept at all (invalid
UTF-8, a line above 1 MiB) is refused. Checks stand in the order they are made; a dropped pair counts once.

Repeated texts among any number of them, in flat memory: 64-bit hashes, spread over files on disk by their top bits.

Equal hashes fall into the same file, and each file is small enough to sort. Two different texts share a hash once in
1.8e19 pairs of texts: among a billion, one false alarm is expected in 37 corpora.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from transduce.core.errors import ConfigError
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


Action = Literal["keep", "clean", "drop", "refuse"]
RATIO_SLACK = 10  # characters added to both sides before they are compared, so that short lines may differ
# NUL and the other C0 and C1 controls and DEL; tab and U+0085 (next line) are white space that text does use.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x84\x86-\x9f]")
_OUTCOMES: dict[Action, Outcome] = {"keep": "kept", "clean": "cleaned", "drop": "dropped", "refuse": "refused"}


@dataclass(frozen=True)
class Doctor:
    """What to do with a pair that has the fault.

    Only reported: training pairs of which just the source is in valid or test, corpora whose sides look swapped (see
    examine.py), characters the tokenizer has no piece for. Always refused: files of different line counts.
    """

    invalid_utf8: Literal["refuse", "drop"] = "refuse"
    unreadable: Literal["refuse", "drop"] = "refuse"  # a recording or picture that is missing, damaged or too long
    control: Literal["clean", "drop", "refuse", "keep"] = "clean"  # control characters; clean: each becomes a space
    empty: Literal["drop", "refuse", "keep"] = "drop"  # a side that is empty or only white space
    too_long: Literal["drop", "refuse"] = "drop"  # a side of more than longest_characters
    longest_characters: int = 5000
    ratio: Literal["drop", "keep", "refuse"] = "drop"  # one side over largest_ratio times as long as the other
    largest_ratio: float = 9.0  # in characters, 10 added to both; Chinese to English is seldom above 6
    copied: Literal["keep", "drop", "refuse"] = "keep"  # the target is the source
    overlap: Literal["drop", "keep", "refuse"] = "drop"  # a training pair that is also in valid or test
    duplicates: Literal["drop", "keep"] = "drop"  # a training pair that was there before

    def __post_init__(self) -> None:
        if self.longest_characters < 1:
            raise ConfigError(f"longest_characters={self.longest_characters}: expected at least 1")
        if not self.largest_ratio >= 1:
            raise ConfigError(f"largest_ratio={self.largest_ratio}: expected at least 1")


@dataclass(frozen=True)
class Checked:
    """A chunk after the checks: the pairs that stay, where each was, and what was found."""

    source: list[str]
    target: list[str]
    lines: list[int]
    links: list[bytes]  # as `SentenceLinks.as_line` writes them; none for a corpus without alignments
    source_hashes: Hashes
    pair_hashes: Hashes
    read: int
    tally: Tally


@dataclass(frozen=True)
class Examiner:
    """The checks that need only one pair, over the pairs of one chunk."""

    doctor: Doctor
    chunk: Chunk
    held_out: bool
    reader: FileReader | None = None  # of the files that sources name; None: they are text
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
        # An odd multiplier keeps (a, b) and (b, a) apart, and a copied pair from being zero.
        pair_hashes = source_hashes * np.uint64(0x9E3779B97F4A7C15) ^ target_hashes
        links = self._check_links(raw, stayed)
        return Checked(source, target, lines, links, source_hashes, pair_hashes, len(raw.source), self.tally)

    def _digest(self, line: int, source: str) -> int | None:
        """What tells one source from another; None where it is a file that cannot be read."""
        if self.reader is None:
            return int(hash_text(clean(source)))
        try:
            return self.reader.examine(source)
        except Unreadable as error:
            self._found("unreadable", line, 0, f"{source}: {error}", readable=False)
            return None

    def _check_links(self, raw: RawPairs, stayed: list[int]) -> list[bytes]:
        """The links of the pairs that stay; those of the others must be links all the same."""
        if not self.chunk.links:
            return []
        places = [f"{self.chunk.links_file}:{self.chunk.first_line + index}" for index in range(len(self.chunk.links))]
        found = [parse_links(line, place) for line, place in zip(self.chunk.links, places, strict=True)]
        links = [check_links(found[i], raw.source[i], raw.target[i], places[i]).as_line() for i in stayed]
        self.tally.add("aligned", "kept", sum(line != b"" for line in links))
        return links

    def _check_pair(self, line: int, left: bytes, right: bytes) -> tuple[str, str] | None:
        """The pair as it stays, or None."""
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
        return None if self._leaves(line, *sides) else (sides[0], sides[1])

    def _leaves(self, line: int, source: str, target: str) -> bool:
        """Whether a check of the pair's texts drops or refuses it."""
        doctor, found = self.doctor, []
        longer = int(len(target) > len(source)) if self.reader is None else 1
        if not source.strip() or not target.strip():
            found.append(("empty", int(bool(source.strip()))))
        if max(len(source), len(target)) > doctor.longest_characters:
            found.append(("too_long", longer))
        if self.reader is None:  # else a path and a text, which have nothing to be compared by
            short, long = sorted((len(source) + RATIO_SLACK, len(target) + RATIO_SLACK))
            if long > doctor.largest_ratio * short and not found:
                found.append(("ratio", longer))
            if source == target and not found:
                found.append(("copied", 0))
        return any(
            self._found(check, line, side, excerpt((source, target)[side])) in ("drop", "refuse")
            for check, side in found
        )

    def _found(self, check: str, line: int, side: int, what: str, readable: bool = True) -> Action:
        """Count a finding; what is to be done with the pair."""
        action: Action = getattr(self.doctor, check)
        if self.held_out and action != "refuse":
            action = "keep" if readable else "refuse"
        self.tally.add(check, _OUTCOMES[action], 1, [f"{self.chunk.files[side]}:{line}: {what}"])
        return action


def clean(text: str) -> str:
    """The text with each control character replaced by a space."""
    return _CONTROL.sub(" ", text)
