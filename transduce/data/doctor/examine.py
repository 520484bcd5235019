"""The doctor over all corpora: checks of single pairs by line range, and comparisons across all pairs.

Memory stays flat whatever the size of the corpora: chunks stream through worker processes, and hashes, positions and
marks of pairs are in files.

`join` finds what only all corpora together show: pairs that are also in held-out text, repeats, corpora with swapped
sides. Hashes are spread over files on disk and compared file by file; each training pair has a mark of one byte.

Swapped sides are found by the frequencies of character trigrams on each side, which distinguish languages and scripts.
A corpus looks swapped if its source is more like the other corpora's targets and its target more like their sources.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.core.processes import ordered_map
from transduce.core.progress import Progress
from transduce.data.doctor.checks import Checked, Doctor, Examiner, HashStore, Positions, repeats, shared
from transduce.data.doctor.report import PLACES, CorpusReport, DoctorReport, Outcome, Tally
from transduce.data.formats.inventory import IndexedCorpus, LineRange, read_line_ranges
from transduce.data.formats.parallel import Chunk, ParallelText
from transduce.data.prepare.work_folder import FinishedPart, PartWriter, WorkFolder, gather
from transduce.data.readers import FileReader

CLEARLY = 0.1  # the margin by which the crossed likeness must exceed the straight one
FEWEST_TEXTS = 20
SAMPLE = 1000  # texts of each corpus, enough to judge
_SPREAD, _AT_ONCE = 20_000, 2_000  # from the first lines of each file, a twentieth of so many at a time
_LONGEST = 500  # characters of a text that are counted


@dataclass
class Profile:
    """Trigram counts of both sides of one corpus."""

    source: Counter[str] = field(default_factory=Counter)
    target: Counter[str] = field(default_factory=Counter)
    texts: int = 0

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Count the trigrams of pairs, up to SAMPLE texts."""
        for left, right in islice(pairs, SAMPLE - self.texts):
            _count(self.source, left)
            _count(self.target, right)
            self.texts += 1

    def include(self, other: Profile) -> None:
        """Add the counts of another corpus."""
        self.source.update(other.source)
        self.target.update(other.target)
        self.texts += other.texts

    def without(self, other: Profile) -> Profile:
        """The rest, where `other` was included."""
        rest = Profile(self.source.copy(), self.target.copy(), self.texts - other.texts)
        rest.source.subtract(other.source)
        rest.target.subtract(other.target)
        return rest


def sample(source: Sequence[str], target: Sequence[str], lines: Sequence[int]) -> list[tuple[str, str]]:
    """Sample pairs for a profile by line number: from ten regions of each file."""
    return [
        (left[:_LONGEST], right[:_LONGEST])
        for left, right, line in zip(source, target, lines, strict=True)
        if line <= _SPREAD and (line - 1) % _AT_ONCE < SAMPLE // 10
    ]


def crossed_likeness(profile: Profile, others: Sequence[Profile]) -> tuple[float, float] | None:
    """Likeness of the same sides and of the crossed sides, from 0 to 1; None if there is too little text."""
    rest = Profile()
    for other in others:
        rest.include(other)
    if min(profile.texts, rest.texts) < FEWEST_TEXTS:
        return None
    straight = _likeness(profile.source, rest.source) + _likeness(profile.target, rest.target)
    crossed = _likeness(profile.source, rest.target) + _likeness(profile.target, rest.source)
    return straight / 2, crossed / 2


def look_swapped(profile: Profile, others: Sequence[Profile]) -> bool:
    """Whether the crossed sides are clearly more alike."""
    likeness = crossed_likeness(profile, others)
    return likeness is not None and likeness[1] > likeness[0] + CLEARLY


def _count(counts: Counter[str], text: str) -> None:
    padded = f" {text.lower()} "
    counts.update(padded[start : start + 3] for start in range(len(padded) - 2))


def _likeness(left: Counter[str], right: Counter[str]) -> float:
    """Bhattacharyya coefficient of two distributions: 1 for equal ones, 0 for disjoint ones."""
    scale = math.sqrt(left.total() * right.total())
    return (
        sum(math.sqrt(count * right[gram]) for gram, count in left.items() if gram in right) / scale if scale else 0.0
    )


OVERLAPS, REPEATS = 1, 2  # bits of a pair's mark
LINE, HASH = "<u4", "<u8"


@dataclass
class Section:
    """The findings in one corpus of one split."""

    split: str
    text: ParallelText
    read: int = 0
    stayed: int = 0  # pairs left by the checks of single pairs; they are in the parts
    tally: Tally = field(default_factory=Tally)
    profile: Profile = field(default_factory=Profile)


# -- examining ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkToExamine:
    """One chunk and the line range it belongs to."""

    line_range: int
    held_out: bool
    chunk: Chunk


def check_chunk(task: ChunkToExamine, doctor: Doctor, reader: FileReader | None = None) -> tuple[int, Checked]:
    """Check a chunk, in a worker process."""
    return task.line_range, Examiner(doctor, task.chunk, task.held_out, reader).check()


class _ExaminedPart:
    """The part of one line range: text and links (if wanted), line numbers, hashes of sources and of pairs."""

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


def examine_line_ranges(
    work: WorkFolder,
    corpora: Sequence[IndexedCorpus],
    line_ranges: Sequence[LineRange],
    doctor: Doctor,
    workers: int,
    keep_text: bool = True,
    reader: FileReader | None = None,
) -> None:
    """Read and check the pairs of line ranges; the result is a part for each. `reader` reads sources that are files."""
    aligned = {contents.split for contents in corpora if contents.text.alignment}
    splits = {line_range.number: corpora[line_range.section].split for line_range in line_ranges}

    def tasks() -> Iterator[ChunkToExamine]:
        for line_range, chunk in read_line_ranges(corpora, line_ranges):
            yield ChunkToExamine(line_range.number, splits[line_range.number] != "train", chunk)

    with Progress("Examining", sum(line_range.count for line_range in line_ranges), "pairs") as progress:

        def begin(number: int) -> _ExaminedPart:
            return _ExaminedPart(number, work, keep_text, splits[number] in aligned, progress)

        check = partial(check_chunk, doctor=doctor, reader=reader)
        gather(ordered_map(check, tasks(), workers), begin)


# -- what all line_ranges gave
# -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExaminedRange:
    """A line range and its examined part."""

    lines: LineRange
    file: str  # named in locations
    part: FinishedPart
    start: int  # pairs of the split that stay before it

    @property
    def stayed(self) -> int:
        return int(self.part.facts["stayed"])


class ExaminedSplit:
    """The pairs of one split that stay, over its line ranges in order."""

    def __init__(self, name: str, aligned: bool) -> None:
        self.name = name
        self.aligned = aligned  # whether some corpus of the split has alignments
        self.line_ranges: list[ExaminedRange] = []
        self.count = 0

    def add(self, line_range: LineRange, file: str, part: FinishedPart) -> None:
        self.line_ranges.append(ExaminedRange(line_range, file, part, self.count))
        self.count += self.line_ranges[-1].stayed

    def place(self, position: int) -> str:
        """File and line of a pair."""
        starts = [line_range.start for line_range in self.line_ranges]
        line_range = self.line_ranges[int(np.searchsorted(starts, position, side="right")) - 1]
        line = np.fromfile(line_range.part.path / "lines", LINE, 1, offset=(position - line_range.start) * 4)[0]
        return f"{line_range.file}:{line}"


@dataclass(frozen=True)
class Examination:
    """Findings of all corpora, the pairs that stay, and their marks once joined."""

    sections: list[Section]
    splits: dict[str, ExaminedSplit]
    doctor: Doctor
    marks: npt.NDArray[np.uint8]  # one for each training pair left by the checks of single pairs

    def leaves(self, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Which marks mean that a training pair is dropped."""
        bits = (OVERLAPS if self.doctor.overlap != "keep" else 0) | (REPEATS if self.doctor.duplicates == "drop" else 0)
        return np.asarray(marks & np.uint8(bits), np.bool_)

    def stays(self, split: ExaminedSplit, line_range: ExaminedRange) -> npt.NDArray[np.bool_]:
        """Which pairs of a line range are not marked to be dropped; held-out text has no marks."""
        if split.name != "train":
            return np.ones(line_range.stayed, np.bool_)
        return ~self.leaves(self.marks[line_range.start : line_range.start + line_range.stayed])

    def report(self, notes: Sequence[str] = ()) -> DoctorReport:
        """Report the findings so far."""
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
    work: WorkFolder, corpora: Sequence[IndexedCorpus], line_ranges: Sequence[LineRange], doctor: Doctor
) -> Examination:
    """Open the parts of all line ranges, before `join`: no pair is marked."""
    sections = [Section(contents.split, contents.text) for contents in corpora]
    aligned = {contents.split for contents in corpora if contents.text.alignment}
    splits = {contents.split: ExaminedSplit(contents.split, contents.split in aligned) for contents in corpora}
    for line_range in line_ranges:
        part, section = FinishedPart(work.examined(line_range.number)), sections[line_range.section]
        splits[section.split].add(line_range, corpora[line_range.section].files[line_range.file].names[0], part)
        section.read += part.facts["read"]
        section.stayed += part.facts["stayed"]
        section.tally.merge(Tally.from_list(part.facts["tally"]))
        section.profile.add(part.facts["sample"])
    return Examination(sections, splits, doctor, np.zeros(0, np.uint8))


MARKS = "marks"


def join(work: WorkFolder, examination: Examination) -> None:
    """Compare all pairs with all others; marks and findings become a part."""
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
    """Add the marks and findings that `join` wrote."""
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
    """The hashes of one split, collected from its parts."""

    def __init__(self, folder: Path, split: ExaminedSplit) -> None:
        self.sources, self.pairs = (
            HashStore(folder / f"{split.name}.sources"),
            HashStore(folder / f"{split.name}.pairs"),
        )
        for line_range in split.line_ranges:
            self.sources.add(line_range.part.array("sources", HASH))
            self.pairs.add(line_range.part.array("pairs", HASH))


class _Matches:
    """Counts matches of training pairs per corpus, with the first locations of each."""

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
    """Find training pairs that are also in valid or test, and those whose source alone is."""
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
    """Find training pairs that occurred before, under the same tag."""
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
    totals = defaultdict[str, Profile](Profile)
    for section in sections:
        totals[section.text.tag].include(section.profile)
    for section in sections:
        if look_swapped(section.profile, [totals[section.text.tag].without(section.profile)]):
            note = "its source looks like the targets of the other corpora, its target like their sources"
            section.tally.add("swapped", "warning", section.read, note=note)
