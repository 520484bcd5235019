"""The doctor over all corpora, stretch by stretch: the checks of single pairs, and the pairs that stay kept as parts.

Memory stays flat whatever the size of the corpora: chunks stream through worker processes, and hashes, places and marks
of pairs live in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from transduce.data.doctor import Checked, Doctor, Examiner
from transduce.data.parts import FinishedPart, PartWriter, WorkFolder, gather
from transduce.data.reader import FileReader
from transduce.data.report import CorpusReport, DoctorReport, Tally
from transduce.data.stretches import Contents, LineRange, read_stretches
from transduce.data.swapped import Profile, sample
from transduce.data.text import Chunk, ParallelText
from transduce.data.workers import ordered_map
from transduce.progress import Progress

OVERLAPS, REPEATS = 1, 2  # bits of a pair's mark
LINE, HASH = "<u4", "<u8"


@dataclass
class Section:
    """One corpus of one split: what was found in it."""

    split: str
    text: ParallelText
    read: int = 0
    stayed: int = 0  # pairs left by the checks of single pairs: they are in the parts
    tally: Tally = field(default_factory=Tally)
    profile: Profile = field(default_factory=Profile)


# -- examining ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkToExamine:
    """One chunk and the stretch it belongs to."""

    stretch: int
    held_out: bool
    chunk: Chunk


def check_chunk(task: ChunkToExamine, doctor: Doctor, reader: FileReader | None = None) -> tuple[int, Checked]:
    """What a worker does."""
    return task.stretch, Examiner(doctor, task.chunk, task.held_out, reader).check()


class _ExaminedPart:
    """The part of one stretch: text and links (if wanted), the line of each pair, hashes of sources and of pairs."""

    def __init__(self, number: int, work: WorkFolder, keep_text: bool, aligned: bool, progress: Progress) -> None:
        self.number, self.keep_text, self.aligned, self.progress = number, keep_text, aligned, progress
        self.writer = PartWriter(work.examined(number))
        self.read = self.stayed = 0
        self.tally = Tally()
        self.sample: list[tuple[str, str]] = []

    def add(self, checked: Checked) -> None:
        add = self.writer.add
        add("lines", np.array(checked.lines, LINE).tobytes())
        add("sources", checked.source_hashes.astype(HASH).tobytes())
        add("pairs", checked.pair_hashes.astype(HASH).tobytes())
        if self.keep_text:
            add("source.txt", "".join(f"{text}\n" for text in checked.source).encode())
            add("target.txt", "".join(f"{text}\n" for text in checked.target).encode())
            if self.aligned:
                add("alignment.txt", b"\n".join([*(checked.links or [b""] * len(checked.lines)), b""]))
        self.read += checked.read
        self.stayed += len(checked.lines)
        self.tally.merge(checked.tally)
        self.sample += sample(checked.source, checked.target, checked.lines)
        self.progress.advance(checked.read)

    def finish(self) -> None:
        facts = {"read": self.read, "stayed": self.stayed, "tally": self.tally.as_list(), "sample": self.sample}
        self.writer.finish(facts)


def examine_stretches(
    work: WorkFolder,
    corpora: Sequence[Contents],
    stretches: Sequence[LineRange],
    doctor: Doctor,
    workers: int,
    keep_text: bool = True,
    reader: FileReader | None = None,
) -> None:
    """Read and check the pairs of some stretches; what stays becomes a part of each. `reader`: of files, if any."""
    aligned = {contents.split for contents in corpora if contents.text.alignment}
    splits = {stretch.number: corpora[stretch.section].split for stretch in stretches}

    def tasks() -> Iterator[ChunkToExamine]:
        for stretch, chunk in read_stretches(corpora, stretches):
            yield ChunkToExamine(stretch.number, splits[stretch.number] != "train", chunk)

    with Progress("Examining", sum(stretch.count for stretch in stretches), "pairs") as progress:

        def begin(number: int) -> _ExaminedPart:
            return _ExaminedPart(number, work, keep_text, splits[number] in aligned, progress)

        check = partial(check_chunk, doctor=doctor, reader=reader)
        gather(ordered_map(check, tasks(), workers), begin)


# -- what all stretches gave -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExaminedStretch:
    """A stretch with the part it became."""

    stretch: LineRange
    file: str  # that places speak of
    part: FinishedPart
    start: int  # pairs of the split that stay before it

    @property
    def stayed(self) -> int:
        return int(self.part.facts["stayed"])


class ExaminedSplit:
    """The pairs of one split that stay, over its stretches in order."""

    def __init__(self, name: str, aligned: bool) -> None:
        self.name = name
        self.aligned = aligned  # whether some corpus of the split has alignments
        self.stretches: list[ExaminedStretch] = []
        self.count = 0

    def add(self, stretch: LineRange, file: str, part: FinishedPart) -> None:
        self.stretches.append(ExaminedStretch(stretch, file, part, self.count))
        self.count += self.stretches[-1].stayed

    def place(self, position: int) -> str:
        """File and line of a pair."""
        starts = [stretch.start for stretch in self.stretches]
        found = self.stretches[int(np.searchsorted(starts, position, side="right")) - 1]
        line = np.fromfile(found.part.path / "lines", LINE, 1, offset=(position - found.start) * 4)[0]
        return f"{found.file}:{line}"


@dataclass(frozen=True)
class Examination:
    """What is known of all corpora: findings for each, the pairs that stay, and their marks once they are joined."""

    sections: list[Section]
    splits: dict[str, ExaminedSplit]
    doctor: Doctor
    marks: npt.NDArray[np.uint8]  # one for each training pair that the checks of single pairs left

    def leaves(self, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Which marks mean that a training pair is left out."""
        bits = (OVERLAPS if self.doctor.overlap != "keep" else 0) | (REPEATS if self.doctor.duplicates == "drop" else 0)
        return np.asarray(marks & np.uint8(bits), np.bool_)

    def stays(self, split: ExaminedSplit, stretch: ExaminedStretch) -> npt.NDArray[np.bool_]:
        """Which pairs of a stretch's part are not marked to leave; of held-out text none is."""
        if split.name != "train":
            return np.ones(stretch.stayed, np.bool_)
        return ~self.leaves(self.marks[stretch.start : stretch.start + stretch.stayed])

    def report(self, notes: Sequence[str] = ()) -> DoctorReport:
        """The findings as they stand."""
        return DoctorReport(
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


def open_examined(
    work: WorkFolder, corpora: Sequence[Contents], stretches: Sequence[LineRange], doctor: Doctor
) -> Examination:
    """The parts of all stretches put together, not yet joined: no pair is marked."""
    sections = [Section(contents.split, contents.text) for contents in corpora]
    aligned = {contents.split for contents in corpora if contents.text.alignment}
    splits = {contents.split: ExaminedSplit(contents.split, contents.split in aligned) for contents in corpora}
    for stretch in stretches:
        part, section = FinishedPart(work.examined(stretch.number)), sections[stretch.section]
        splits[section.split].add(stretch, corpora[stretch.section].files[stretch.file].names[0], part)
        section.read += part.facts["read"]
        section.stayed += part.facts["stayed"]
        section.tally.merge(Tally.from_list(part.facts["tally"]))
        section.profile.add(part.facts["sample"])
    return Examination(sections, splits, doctor, np.zeros(0, np.uint8))
