"""`gather`: many raw corpora to clean text for one model of many directions, divided by the sentences of one language.

The result depends on text and settings alone. What is finished is kept in parts beside the output, as `prepare` does,
and the same call goes on after a kill.
"""

from __future__ import annotations

import gzip
import lzma
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from transduce.data.corpus import file_digest
from transduce.data.folders import check_free, mend_replaced, whole_folder
from transduce.data.resuming import PLAN, PreparationPlan, begin, discard, hold_work, is_done, mark_done, say
from transduce.durable import write_text
from transduce.errors import DataError
from transduce.gathering.cleaned import CleanStretch, clean_all, open_cleaned
from transduce.gathering.dividing import REASONS, STAYS, TEST, VALID, Marks, chosen_lines, divide
from transduce.gathering.gathered import GATHERED, Gathered, Source, TextFiles, weights
from transduce.gathering.settings import Gather, RawText, Variants
from transduce.gathering.variants import vary

Add = Callable[[Iterator[tuple[bytes, bytes]]], None]  # writes pairs of lines
BLOCK = 4096  # lines


def gather(config: Gather) -> Gathered:
    """Write the folder; refused if one is there already and `overwrite` is not set. Goes on where it was killed."""
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
        stretches = open_cleaned(plan, config)
        marks = divide(plan, config, stretches)
        plan.check_inputs()
        with whole_folder(output, GATHERED, config.overwrite) as folder:
            _write(folder, plan, config, stretches, marks)
            mark_done(work, folder / GATHERED)
        discard(work)
    return Gathered.open(config.output)


def _write(
    folder: Path,
    plan: PreparationPlan,
    config: Gather,
    stretches: dict[str, list[CleanStretch]],
    marks: dict[str, Marks],
) -> None:
    writer = _Writer(folder, config)
    ends = {"train": {STAYS: "train", VALID: "valid", TEST: "test"}, "test": {STAYS: "test"}}
    for corpus in config.ordered():
        own = [stretch for stretch in stretches[corpus.use] if stretch.corpus is corpus]
        for mark, split in ends[corpus.use].items():
            wanted = [stretch for stretch in own if (stretch.marks(marks[corpus.use]) == mark).any()]
            if wanted:
                with writer.opened(corpus, split) as add:
                    lines = chain.from_iterable(chosen_lines(one, marks[corpus.use], mark) for one in wanted)
                    add(_varied(lines, config, corpus) if split == "train" else lines)
    sources = tuple(_source(corpus, stretches[corpus.use], marks[corpus.use], writer) for corpus in config.ordered())
    texts = writer.texts()
    if not any(text.split == "train" and text.pairs for text in texts):
        told = ", ".join(f"{source.name}: {source.dropped}" for source in sources)
        raise DataError(f"{config.output}: no training pair is left of those read; dropped of {told}")
    gathered = Gathered(folder, config.pivot, texts, sources, config.digest())
    write_text(folder / GATHERED, gathered.as_json())


def _varied(lines: Iterator[tuple[bytes, bytes]], config: Gather, corpus: RawText) -> Iterator[tuple[bytes, bytes]]:
    """Lines of training text, some as variants of themselves (variants.py)."""
    if config.variants == Variants() and not corpus.joined:
        return lines
    pairs = ((pivot.decode().rstrip("\n"), other.decode().rstrip("\n")) for pivot, other in lines)
    varied = vary(pairs, config.variants, corpus.joined, config.longest)
    return ((f"{pivot}\n".encode(), f"{other}\n".encode()) for pivot, other in varied)


def _source(corpus: RawText, stretches: list[CleanStretch], marks: Marks, writer: _Writer) -> Source:
    dropped: Counter[str] = Counter()
    read = 0
    for stretch in stretches:
        if stretch.corpus is corpus:
            dropped += Counter(stretch.part.facts["dropped"])
            read += stretch.part.facts["read"]
            dropped += Counter({reason: int((stretch.marks(marks) == mark).sum()) for mark, reason in REASONS.items()})
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
                    pivot.write(b"".join(one for one, _ in some))
                    other.write(b"".join(two for _, two in some))
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
                same = [one.name for one in config.ordered() if config.pair(one) == config.pair(corpus)]
                pairs = sum(self.counts[name, split] for name in same)
                if pairs:
                    languages, files = (config.pivot, config.other(corpus)), self.names(corpus, split)
                    found.append(TextFiles(split, languages, files, pairs, self._hashes(files)))
        return tuple(found)

    def _hashes(self, files: tuple[str, str]) -> tuple[str, str]:
        return file_digest(self.folder / files[0]), file_digest(self.folder / files[1])


@contextmanager
def _append(path: Path) -> Iterator[BinaryIO | gzip.GzipFile | lzma.LZMAFile]:
    """A file to add lines to, packed as its name says; packed text says nothing of when it was written."""
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
