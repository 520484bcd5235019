"""One pass of the doctor over all corpora: every check, the pairs that stay written to a scratch folder.

Memory stays flat whatever the size of the corpora: chunks stream through worker processes, and hashes, places and marks
of pairs live in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.data.doctor import Checked, Doctor, Examiner
from transduce.data.duplicates import HashStore, Positions, repeats, shared
from transduce.data.report import PLACES, CorpusReport, Outcome, Report, Tally
from transduce.data.swapped import Profile, look_swapped
from transduce.data.text import Chunk, ParallelText
from transduce.data.workers import ordered_map
from transduce.errors import DataError
from transduce.progress import Progress

OVERLAPS, REPEATS = 1, 2  # bits of a pair's mark
PLACE = np.dtype([("file", "<u4"), ("line", "<u4")])


@dataclass
class Section:
    """One corpus of one split while it is being examined."""

    split: str
    text: ParallelText
    read: int = 0
    stayed: int = 0  # pairs left by the checks of single pairs: they are in the scratch folder
    tally: Tally = field(default_factory=Tally)
    profile: Profile = field(default_factory=Profile)


@dataclass(frozen=True)
class Task:
    """One chunk and the section it belongs to."""

    section: int
    held_out: bool
    chunk: Chunk


class Scratch:
    """Files of one split: text and links (if wanted), the place of each pair, hashes of sources and of pairs."""

    def __init__(self, folder: Path, split: str, keep_text: bool, aligned: bool) -> None:
        self.folder, self.split, self.keep_text = folder, split, keep_text
        self.aligned = aligned  # whether some corpus of the split has alignments
        self.names: list[tuple[str, str]] = []  # the files that places speak of
        self.sources, self.pairs = HashStore(folder / f"{split}.sources"), HashStore(folder / f"{split}.pairs")
        if keep_text:
            for side in ("source", "target", "alignment")[: 3 if aligned else 2]:
                self.text(side).touch()  # a corpus of no pairs has text files too

    def text(self, side: str) -> Path:
        """The file with one side's text, or with the links ("alignment"), a line a pair."""
        return self.folder / f"{self.split}.{side}.txt"

    def add(self, checked: Checked, files: tuple[str, str]) -> None:
        """Append the pairs of a chunk."""
        if not self.names or self.names[-1] != files:
            self.names.append(files)
        places = np.empty(len(checked.lines), PLACE)
        places["file"], places["line"] = len(self.names) - 1, checked.lines
        _append(self.folder / f"{self.split}.places", places.tobytes())
        self.sources.add(checked.source_hashes)
        self.pairs.add(checked.pair_hashes)
        if self.keep_text:
            _append(self.text("source"), "".join(f"{text}\n" for text in checked.source).encode())
            _append(self.text("target"), "".join(f"{text}\n" for text in checked.target).encode())
            if self.aligned:
                _append(self.text("alignment"), b"\n".join([*(checked.links or [b""] * len(checked.lines)), b""]))

    def place(self, position: int) -> str:
        """File and line of a pair."""
        file, line = np.fromfile(self.folder / f"{self.split}.places", PLACE, 1, offset=position * PLACE.itemsize)[0]
        return f"{self.names[file][0]}:{line}"


def _append(path: Path, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)


@dataclass(frozen=True)
class Examination:
    """What the pass left: findings for each corpus, and in the scratch folder the pairs and their marks."""

    sections: list[Section]
    scratches: dict[str, Scratch]
    marks: npt.NDArray[np.uint8]  # one for each training pair in the scratch folder
    doctor: Doctor

    def leaves(self, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Which marks mean that a training pair is left out."""
        bits = (OVERLAPS if self.doctor.overlap != "keep" else 0) | (REPEATS if self.doctor.duplicates == "drop" else 0)
        return np.asarray(marks & np.uint8(bits), np.bool_)

    def report(self, notes: Sequence[str] = ()) -> Report:
        """The findings as they stand."""
        return Report(
            tuple(
                CorpusReport(
                    section.split,
                    section.text.label,
                    section.read,
                    section.read - section.tally.dropped(),
                    section.tally.findings(),
                )
                for section in self.sections
            ),
            tuple(notes),
        )


def check_chunk(task: Task, doctor: Doctor) -> tuple[Task, Checked]:
    """What a worker does."""
    checked = Examiner(doctor, task.chunk, task.held_out).check()
    return Task(task.section, task.held_out, _without_lines(task.chunk)), checked


def _without_lines(chunk: Chunk) -> Chunk:
    """The chunk's place alone: its lines need not travel back from the worker."""
    return Chunk(chunk.files, chunk.first_line, chunk.format, [], [])


def examine_splits(
    splits: dict[str, tuple[ParallelText, ...]], doctor: Doctor, folder: Path, workers: int, keep_text: bool
) -> Examination:
    """Read and check all corpora; `folder` must exist and takes the scratch files."""
    sections = [Section(split, text) for split, texts in splits.items() for text in texts]
    for section in sections:
        section.text.files(), section.text.alignment_files()  # a missing file is told before hours of work
    with Progress("Examining", None, "pairs") as progress:
        scratches = {
            split: Scratch(folder, split, keep_text, any(text.alignment for text in texts))
            for split, texts in splits.items()
            if texts
        }
        for task, checked in ordered_map(partial(check_chunk, doctor=doctor), _tasks(sections), workers):
            section = sections[task.section]
            section.read += checked.read
            section.stayed += len(checked.lines)
            section.tally.merge(checked.tally)
            section.profile.add(checked.source, checked.target)
            scratches[section.split].add(checked, task.chunk.files)
            progress.advance(checked.read)
    for section in sections:
        if section.split != "train" and section.read == 0:
            raise DataError(f"{section.split}, {section.text.label}: no lines; leave this corpus out")
    marks = _marks(folder, sum(section.stayed for section in sections if section.split == "train"))
    examination = Examination(sections, scratches, marks, doctor)
    _find_overlap(examination)
    _find_repeats(examination)
    _find_swapped(sections)
    return examination


def _tasks(sections: list[Section]) -> Iterator[Task]:
    for index, section in enumerate(sections):
        for chunk in section.text.read_chunks():
            yield Task(index, section.split != "train", chunk)


def _marks(folder: Path, count: int) -> npt.NDArray[np.uint8]:
    if count == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(folder / "train.marks", np.uint8, "w+", shape=(count,))


class _Matches:
    """Counts matches of training pairs corpus by corpus, with the first places of each."""

    def __init__(self, examination: Examination, others: Scratch) -> None:
        self.sections = [section for section in examination.sections if section.split == "train"]
        self.bounds = np.cumsum([0, *(section.stayed for section in self.sections)])
        self.scratch, self.others = examination.scratches["train"], others
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
                places = [f"{self.scratch.place(here)}: as in {self.others.place(there)}" for here, there in first]
                section.tally.add(check, outcome, count, places)


def _find_overlap(examination: Examination) -> None:
    """Training pairs that are also in valid or test, and those of which only the source is."""
    if "train" not in examination.scratches:
        return
    train, marks = examination.scratches["train"], examination.marks
    action: dict[str, Outcome] = {"drop": "dropped", "keep": "kept", "refuse": "refused"}
    for split, held_out in examination.scratches.items():
        if split == "train":
            continue
        pairs, sources = _Matches(examination, held_out), _Matches(examination, held_out)
        for positions, partners in shared(train.pairs, held_out.pairs):
            fresh = (marks[positions] & OVERLAPS) == 0  # not counted before, for the other held-out split
            marks[positions] |= OVERLAPS
            pairs.add(positions[fresh], partners[fresh])
        for positions, partners in shared(train.sources, held_out.sources):
            only = (marks[positions] & OVERLAPS) == 0
            sources.add(positions[only], partners[only])
        pairs.report(f"overlap_with_{split}", action[examination.doctor.overlap])
        sources.report(f"source_overlap_with_{split}", "kept")


def _find_repeats(examination: Examination) -> None:
    """Training pairs that were there before, under the same tag."""
    if "train" not in examination.scratches:
        return
    train, marks = examination.scratches["train"], examination.marks
    matches = _Matches(examination, train)
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
