"""What only all corpora together can tell: pairs that are also in held-out text, repeats, corpora with swapped sides.

Hashes are spread over files on disk and compared file by file, so that memory stays flat; each training pair gets a
mark of one byte.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.data.duplicates import HashStore, Positions, repeats, shared
from transduce.data.examination import HASH, OVERLAPS, REPEATS, Examination, ExaminedSplit, Section
from transduce.data.parts import FinishedPart, PartWriter, WorkFolder
from transduce.data.report import PLACES, Outcome, Tally
from transduce.data.swapped import look_swapped

MARKS = "marks"


def join(work: WorkFolder, examination: Examination) -> None:
    """Compare all pairs with all others; the marks and findings become a part."""
    writer = PartWriter(work.joined)
    examination = replace(examination, marks=_new_marks(writer.folder / MARKS, examination.splits["train"].count))
    with tempfile.TemporaryDirectory(prefix="hashes-", dir=work.folder) as folder:
        stores = {name: _Hashes(Path(folder), split) for name, split in examination.splits.items()}
        _find_overlap(examination, stores)
        _find_repeats(examination, stores["train"])
    _find_swapped(examination.sections)
    if isinstance(examination.marks, np.memmap):
        examination.marks.flush()
    writer.finish({"tallies": [section.tally.as_list() for section in examination.sections]})


def open_joined(work: WorkFolder, examination: Examination) -> Examination:
    """The same examination with the marks and findings that `join` left."""
    part = FinishedPart(work.joined)
    sections = [
        replace(section, tally=Tally.from_list(tally))
        for section, tally in zip(examination.sections, part.facts["tallies"], strict=True)
    ]
    path = part.path / MARKS
    marks = np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.zeros(0, np.uint8)
    return replace(examination, sections=sections, marks=marks)


def _new_marks(path: Path, count: int) -> npt.NDArray[np.uint8]:
    path.touch()
    return np.memmap(path, np.uint8, "w+", shape=(count,)) if count else np.zeros(0, np.uint8)


class _Hashes:
    """The hashes of one split, gathered from its parts."""

    def __init__(self, folder: Path, split: ExaminedSplit) -> None:
        self.sources, self.pairs = (
            HashStore(folder / f"{split.name}.sources"),
            HashStore(folder / f"{split.name}.pairs"),
        )
        for stretch in split.stretches:
            self.sources.add(stretch.part.array("sources", HASH))
            self.pairs.add(stretch.part.array("pairs", HASH))


class _Matches:
    """Counts matches of training pairs corpus by corpus, with the first places of each."""

    def __init__(self, examination: Examination, others: ExaminedSplit) -> None:
        self.sections = [section for section in examination.sections if section.split == "train"]
        self.bounds = np.cumsum([0, *(section.stayed for section in self.sections)])
        self.train, self.others = examination.splits["train"], others
        self.counts = [0] * len(self.sections)
        self.first: list[list[tuple[int, int]]] = [[] for _ in self.sections]

    def add(self, positions: Positions, partners: Positions) -> None:
        order = np.argsort(positions)
        cuts = np.searchsorted(positions[order], self.bounds)
        for index, (start, stop) in enumerate(pairwise(cuts)):
            self.counts[index] += int(stop - start)
            chosen = order[start : min(stop, start + PLACES)]
            known = self.first[index]
            known.extend(zip(positions[chosen].tolist(), partners[chosen].tolist(), strict=True))
            known[:] = sorted(known)[:PLACES]

    def report(self, check: str, outcome: Outcome) -> None:
        for section, count, first in zip(self.sections, self.counts, self.first, strict=True):
            if count:
                places = [f"{self.train.place(here)}: as in {self.others.place(there)}" for here, there in first]
                section.tally.add(check, outcome, count, places)


def _find_overlap(examination: Examination, stores: dict[str, _Hashes]) -> None:
    """Training pairs that are also in valid or test, and those of which only the source is."""
    train, marks = stores["train"], examination.marks
    action: dict[str, Outcome] = {"drop": "dropped", "keep": "kept", "refuse": "refused"}
    for split, held_out in stores.items():
        if split == "train":
            continue
        pairs, sources = (_Matches(examination, examination.splits[split]) for _ in range(2))
        for positions, partners in shared(train.pairs, held_out.pairs):
            fresh = (marks[positions] & OVERLAPS) == 0  # not counted before, for the other held-out split
            marks[positions] |= OVERLAPS
            pairs.add(positions[fresh], partners[fresh])
        for positions, partners in shared(train.sources, held_out.sources):
            only = (marks[positions] & OVERLAPS) == 0
            sources.add(positions[only], partners[only])
        pairs.report(f"overlap_with_{split}", action[examination.doctor.overlap])
        sources.report(f"source_overlap_with_{split}", "kept")


def _find_repeats(examination: Examination, train: _Hashes) -> None:
    """Training pairs that were there before, under the same tag."""
    marks = examination.marks
    matches = _Matches(examination, examination.splits["train"])
    tags = [section.text.tag for section in matches.sections]
    tag_numbers = np.array([tags.index(tag) for tag in tags])

    def tag_of(positions: Positions) -> npt.NDArray[np.int64]:
        return tag_numbers[np.searchsorted(matches.bounds, positions, side="right") - 1]

    for positions, firsts in repeats(train.pairs, tag_of):
        fresh = ~examination.leaves(marks[positions])  # a pair dropped as overlap counts only there
        marks[positions] |= REPEATS
        matches.add(positions[fresh], firsts[fresh])
    matches.report("duplicates", "dropped" if examination.doctor.duplicates == "drop" else "kept")


def _find_swapped(sections: list[Section]) -> None:
    """Warn of corpora whose sides look swapped; only those with the same tag are comparable."""
    for section in sections:
        others = [o.profile for o in sections if o is not section and o.text.tag == section.text.tag]
        if look_swapped(section.profile, others):
            note = "its source looks like the targets of the other corpora, its target like their sources"
            section.tally.add("swapped", "warning", section.read, note=note)
