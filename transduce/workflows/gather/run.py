"""Gather raw corpora into clean text for one model of many directions, divided by the sentences of one language.

The result depends on text and settings alone. What is finished is stored in parts beside the output, as `prepare` does,
and the same call resumes after a kill.

Each clean pair goes to training, validation, test, or nowhere. Hashes are compared in files, part by part.

1. A sentence of the pivot belongs to training, validation or test by its hash alone, in every pair of languages.
2. A pair leaves training if either of its sentences is in any test. For sentences of at most `common` letters it is the
   test that gives way: a model that never saw "Good morning!" is of no use, and no test needs it.
3. Of equal pairs the first stays.

A sentence is its letters: case and punctuation make no other one. Memory: a byte a pair.
"""

from __future__ import annotations

import gzip
import lzma
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from transduce.core.durable import check_free, mend_replaced, whole_folder, write_text
from transduce.core.errors import DataError
from transduce.core.progress import say
from transduce.data.corpus import file_digest
from transduce.data.doctor.checks import HashStore, Positions, repeats, shared
from transduce.data.prepare.work_folder import (
    PLAN,
    FinishedPart,
    PartWriter,
    PreparationPlan,
    begin,
    discard,
    hold_work,
    is_done,
    mark_done,
)
from transduce.workflows.gather.clean import (
    OTHER,
    OTHER_COMMON,
    PIVOT,
    PIVOT_COMMON,
    CleanedRange,
    clean_all,
    open_cleaned,
    vary,
)
from transduce.workflows.gather.settings import (
    GATHERED,
    Gather,
    Gathered,
    RawText,
    Source,
    TextFiles,
    Variants,
    weights,
)

Marks = npt.NDArray[np.uint8]
# What becomes of a pair. Those read as tests are only ever STAYS, REPEATED, COMMON or SURPLUS.
STAYS, REPEATED, IN_TEST, VALID, TEST, HELD_OUT, COMMON, SURPLUS = range(8)
REASONS = {REPEATED: "repeated", IN_TEST: "in_test", HELD_OUT: "held_out", COMMON: "common", SURPLUS: "surplus"}
_SIDES = ((PIVOT, PIVOT_COMMON), (OTHER, OTHER_COMMON))


def divide(plan: PreparationPlan, config: Gather, ranges: dict[str, list[CleanedRange]]) -> dict[str, Marks]:
    """Mark every clean pair of each use with its destination; stored as a part."""
    path = plan.work.joined
    if plan.lacks(path):
        plan.check_inputs()
        with tempfile.TemporaryDirectory(prefix="hashes-", dir=plan.work.folder) as folder:
            marks = _Division(Path(folder), config, ranges).marks()
        writer = PartWriter(path)
        for use, found in marks.items():
            writer.add(use, found.tobytes())
        writer.finish({})
    return {use: FinishedPart(path).array(use, "u1") for use in ranges}


class _Division:
    def __init__(self, folder: Path, config: Gather, ranges: dict[str, list[CleanedRange]]) -> None:
        self.folder, self.config, self.ranges = folder, config, ranges
        self.train, self.test = (
            _Stores(folder / "train", ranges["train"]),
            _Stores(folder / "test", ranges["test"]),
        )

    def marks(self) -> dict[str, Marks]:
        test = self._test()
        return {"train": self._train(test), "test": test}

    def _test(self) -> Marks:
        marks = np.zeros(self.test.count, np.uint8)
        flags = np.concatenate([np.empty(0, np.uint8), *(cleaned.flags() for cleaned in self.ranges["test"])])
        for side, common in _SIDES:
            for positions, _ in shared(self.test.of[side], self.train.of[side]):
                marks[positions[(flags[positions] & common) > 0]] = COMMON
        self._mark_repeats(self.test, marks)
        if self.config.test_most:
            self._mark_surplus(marks)
        return marks

    def _mark_surplus(self, marks: Marks) -> None:
        """Limit the tests of each pair of languages to sentences with the smallest hashes: the same in all pairs."""
        of_pair: dict[str, list[CleanedRange]] = {}
        for cleaned in self.ranges["test"]:
            of_pair.setdefault(self.config.pair(cleaned.corpus), []).append(cleaned)
        for members in of_pair.values():
            positions = np.concatenate([np.arange(part.start, part.start + part.count) for part in members])
            hashes = np.concatenate([part.hashes(PIVOT) for part in members])
            staying = marks[positions] == STAYS
            if staying.sum() > self.config.test_most:
                last = np.sort(hashes[staying])[self.config.test_most - 1]
                marks[positions[staying & (hashes > last)]] = SURPLUS

    def _train(self, test: Marks) -> Marks:
        marks = np.zeros(self.train.count, np.uint8)
        for cleaned in self.ranges["train"]:
            cleaned.marks(marks)[:] = self._by_hash(cleaned)
        banned = self._banned(test, marks)
        for side, _ in _SIDES:
            for positions, _ in shared(self.train.of[side], banned.of[side]):
                marks[positions[marks[positions] != TEST]] = IN_TEST
        self._mark_repeats(self.train, marks)
        return marks

    def _by_hash(self, cleaned: CleanedRange) -> Marks:
        """Assign training, validation or test by the sentence of the pivot."""
        draw = (cleaned.hashes(PIVOT) >> np.uint64(11)).astype(np.float64) / 2.0**53
        test, valid = self.config.test_share, self.config.test_share + self.config.valid_share
        held_out = (VALID, TEST) if cleaned.corpus.held_out else (HELD_OUT, HELD_OUT)
        return np.select([draw < test, draw < valid], [held_out[1], held_out[0]], STAYS).astype(np.uint8)

    def _banned(self, test: Marks, train: Marks) -> _Stores:
        """The sentences of all pairs that are test pairs now."""
        banned = _Stores(self.folder / "banned", [])
        for marks, wanted, ranges in (
            (test, STAYS, self.ranges["test"]),
            (train, TEST, self.ranges["train"]),
        ):
            for cleaned in ranges:
                chosen = cleaned.marks(marks) == wanted
                for side, _ in _SIDES:
                    banned.of[side].add(cleaned.hashes(side)[chosen])
        return banned

    def _mark_repeats(self, stores: _Stores, marks: Marks) -> None:
        def one_kind(positions: Positions) -> npt.NDArray[np.int64]:
            return np.zeros(len(positions), np.int64)

        for positions, _ in repeats(stores.of["pairs"], one_kind):
            marks[positions[np.isin(marks[positions], (STAYS, VALID, TEST))]] = REPEATED


class _Stores:
    """Hashes of the sentences of both sides and of the pairs, by their position."""

    def __init__(self, folder: Path, ranges: list[CleanedRange]) -> None:
        self.of = {name: HashStore(folder / name) for name in (PIVOT, OTHER, "pairs")}
        self.count = sum(cleaned.count for cleaned in ranges)
        for cleaned in ranges:
            for name, store in self.of.items():
                store.add(cleaned.hashes(name))


def chosen_lines(cleaned: CleanedRange, marks: Marks, mark: int) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a range with one mark."""
    chosen = cleaned.marks(marks) == mark
    return (lines for lines, wanted in zip(cleaned.lines(), chosen, strict=True) if wanted)


Add = Callable[[Iterator[tuple[bytes, bytes]]], None]  # writes pairs of lines
BLOCK = 4096  # lines


def gather(config: Gather) -> Gathered:
    """Write the folder, resuming where it was killed; raise if one exists already and `overwrite` is not set."""
    output = Path(config.output).absolute()
    with hold_work(output, None) as work:
        mend_replaced(output)
        if is_done(work, output / GATHERED):
            say(f"{output}: nothing to do: it is complete")
            discard(work)
            return Gathered.open(config.output)
        try:
            check_free(output, GATHERED, config.overwrite)
            plan = begin(work, config.splits(), config.settings(), 1)
        finally:
            if not (work.folder / PLAN).exists():
                discard(work)
        clean_all(plan, config)
        ranges = open_cleaned(plan, config)
        marks = divide(plan, config, ranges)
        plan.check_inputs()
        with whole_folder(output, GATHERED, config.overwrite) as folder:
            _write(folder, plan, config, ranges, marks)
            mark_done(work, folder / GATHERED)
        discard(work)
    return Gathered.open(config.output)


def _write(
    folder: Path,
    plan: PreparationPlan,
    config: Gather,
    ranges: dict[str, list[CleanedRange]],
    marks: dict[str, Marks],
) -> None:
    writer = _Writer(folder, config)
    for corpus in config.ordered():
        of_corpus = [cleaned for cleaned in ranges[corpus.use] if cleaned.corpus is corpus]
        _write_corpus(writer, config, corpus, of_corpus, marks[corpus.use])
    sources = tuple(_source(corpus, ranges[corpus.use], marks[corpus.use], writer) for corpus in config.ordered())
    texts = writer.texts()
    if not any(text.split == "train" and text.pairs for text in texts):
        dropped = ", ".join(f"{source.name}: {source.dropped}" for source in sources)
        raise DataError(f"{config.output}: no training pair is left of those read; dropped of {dropped}")
    gathered = Gathered(folder, config.pivot, texts, sources, config.digest())
    write_text(folder / GATHERED, gathered.as_json())


def _write_corpus(writer: _Writer, config: Gather, corpus: RawText, ranges: list[CleanedRange], marks: Marks) -> None:
    """Write each line of a corpus to the split of its mark."""
    ends = {"train": {STAYS: "train", VALID: "valid", TEST: "test"}, "test": {STAYS: "test"}}
    for mark, split in ends[corpus.use].items():
        wanted = [cleaned for cleaned in ranges if (cleaned.marks(marks) == mark).any()]
        if wanted:
            with writer.opened(corpus, split) as add:
                lines = chain.from_iterable(chosen_lines(part, marks, mark) for part in wanted)
                add(_varied(lines, config, corpus) if split == "train" else lines)


def _varied(lines: Iterator[tuple[bytes, bytes]], config: Gather, corpus: RawText) -> Iterator[tuple[bytes, bytes]]:
    """Lines of training text, some replaced by variants (clean.py)."""
    if config.variants == Variants() and not corpus.joined:
        return lines
    pairs = ((pivot.decode().rstrip("\n"), other.decode().rstrip("\n")) for pivot, other in lines)
    varied = vary(pairs, config.variants, corpus.joined, config.longest)
    return ((f"{pivot}\n".encode(), f"{other}\n".encode()) for pivot, other in varied)


def _source(corpus: RawText, ranges: list[CleanedRange], marks: Marks, writer: _Writer) -> Source:
    dropped: Counter[str] = Counter()
    read = 0
    for cleaned in ranges:
        if cleaned.corpus is corpus:
            dropped += Counter(cleaned.part.facts["dropped"])
            read += cleaned.part.facts["read"]
            dropped += Counter({reason: int((cleaned.marks(marks) == mark).sum()) for mark, reason in REASONS.items()})
    used = {split: count for (name, split), count in writer.counts.items() if name == corpus.name and count}
    about = {"license": corpus.license, "origin": corpus.origin, "note": corpus.note}
    return Source(corpus.name, corpus.use, corpus.languages, read, used, dict(sorted(dropped.items())), **about)


class _Writer:
    """Writes text of each split: in `train` a file a corpus, else one for a pair of languages, corpus after corpus."""

    def __init__(self, folder: Path, config: Gather) -> None:
        self.folder, self.config = folder, config
        self.counts: Counter[tuple[str, str]] = Counter()  # by corpus and split
        for split in ("train", "valid", "test"):
            (folder / split).mkdir()

    def names(self, corpus: RawText, split: str) -> tuple[str, str]:
        """The files, the pivot's first."""
        ending = f".{self.config.packed}" if self.config.packed else ""
        middle = f".{corpus.name}" if split == "train" else ""
        stem = f"{split}/{self.config.pair(corpus)}{middle}"
        return f"{stem}.{self.config.pivot}{ending}", f"{stem}.{self.config.other(corpus)}{ending}"

    @contextmanager
    def opened(self, corpus: RawText, split: str) -> Iterator[Add]:
        with ExitStack() as stack:
            pivot, other = (stack.enter_context(_append(self.folder / name)) for name in self.names(corpus, split))

            def add(lines: Iterator[tuple[bytes, bytes]]) -> None:
                while some := list(islice(lines, BLOCK)):  # packing line by line takes several times as long
                    pivot.write(b"".join(first for first, _ in some))
                    other.write(b"".join(second for _, second in some))
                    self.counts[corpus.name, split] += len(some)

            yield add

    def texts(self) -> tuple[TextFiles, ...]:
        """All files, with the weights that the temperature gives them."""
        config, found = self.config, list[TextFiles]()
        training = [corpus for corpus in config.ordered() if self.counts[corpus.name, "train"]]
        seen: dict[str, float] = {}
        for corpus in training:
            weighted = corpus.weight * self.counts[corpus.name, "train"]
            seen[config.pair(corpus)] = seen.get(config.pair(corpus), 0.0) + weighted
        factors = weights(seen, config.temperature)
        for corpus in training:
            languages = (config.pivot, config.other(corpus))
            weight = round(corpus.weight * factors[config.pair(corpus)], 4)
            count, files = self.counts[corpus.name, "train"], self.names(corpus, "train")
            found.append(TextFiles("train", languages, files, count, self._hashes(files), weight, corpus.name))
        for split in ("valid", "test"):
            for corpus in {config.pair(corpus): corpus for corpus in config.ordered()}.values():
                same = [other.name for other in config.ordered() if config.pair(other) == config.pair(corpus)]
                pairs = sum(self.counts[name, split] for name in same)
                if pairs:
                    languages, files = (config.pivot, config.other(corpus)), self.names(corpus, split)
                    found.append(TextFiles(split, languages, files, pairs, self._hashes(files)))
        return tuple(found)

    def _hashes(self, files: tuple[str, str]) -> tuple[str, str]:
        return file_digest(self.folder / files[0]), file_digest(self.folder / files[1])


@contextmanager
def _append(path: Path) -> Iterator[BinaryIO | gzip.GzipFile | lzma.LZMAFile]:
    """Open a file to append lines, compressed by its suffix, without a time stamp."""
    with open(path, "ab") as file:
        match path.suffix:
            case ".gz":
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    yield packed
            case ".xz":
                with lzma.open(file, "wb") as packed:
                    yield packed
            case _:
                yield file
