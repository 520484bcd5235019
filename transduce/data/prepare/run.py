"""`prepare`: from the user's parallel text to a folder of tokens that training maps into memory.

The doctor examines every corpus, the tokenizer is trained on what stays (or given), all splits are tokenized. The
result depends on text and settings alone, never on the number of workers or shards, nor on how often it was killed:
what is finished is kept in parts (work_folder.py), and the same command goes on.

An even sample of the training lines that stay, for training tokenizers: the same whoever draws it.

Tokenized stretches end to end: the files of a corpus, its report and its manifest.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from transduce.core.config import own_parts
from transduce.core.durable import check_free, mend_replaced, whole_folder
from transduce.core.errors import ConfigError, DataError, RunError
from transduce.data.corpus import (
    ALIGNMENT,
    FORMAT,
    MANIFEST,
    REPORT,
    SIDES,
    TOKENIZER,
    VERSION,
    Corpus,
    Side,
    Span,
    file_facts,
    items_of,
)
from transduce.data.doctor.checks import Doctor
from transduce.data.doctor.examine import (
    Examination,
    ExaminedSplit,
    examine_stretches,
    join,
    open_examined,
    open_joined,
)
from transduce.data.doctor.report import DoctorReport, Tally
from transduce.data.formats.inventory import LineRange, Shard, cut, index_splits
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.tokenize import (
    LENGTH,
    Tokenizing,
    UnknownCharacters,
    add_unknown_characters,
    report_unknown,
    text_chunks,
    token_dtypes,
)
from transduce.data.prepare.work_folder import (
    PLAN,
    FinishedPart,
    PartWriter,
    PreparationPlan,
    WorkFolder,
    begin,
    discard,
    hold_work,
    is_done,
    mark_done,
    one_at_a_time,
    say,
)
from transduce.data.readers import FileReader, Text
from transduce.data.sources import Sources, reader_of
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece, TrainedTokenizers


def draw_lines(examination: Examination, settings: SentencePiece) -> dict[Side, list[str]]:
    """Of each side those lines whose mixed position is small enough."""
    lines = examination.splits["train"].count * (2 if settings.shared else 1)
    share = min(1.0, settings.sentences / max(lines, 1))
    drawn: dict[Side, list[str]] = {side: [] for side in SIDES}
    for chunk in text_chunks(examination, examination.splits["train"]):
        positions = np.array(chunk.positions, np.uint64)
        for number, (side, texts) in enumerate(zip(SIDES, (chunk.source, chunk.target), strict=True)):
            chosen = np.flatnonzero(_mixed(positions, number) < share)
            drawn[side] += [texts[index].decode() for index in chosen.tolist()]
    return drawn


def _mixed(positions: npt.NDArray[np.uint64], side: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each position that looks random and is always the same (splitmix64)."""
    mixed = (positions * np.uint64(2) + np.uint64(side + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64


_COPIED = 8 << 20  # bytes held while files are copied


def final_report(work: WorkFolder, examination: Examination, trained: TrainedTokenizers) -> DoctorReport:
    """All findings, those of tokenizing included."""
    sums: list[dict[Side, UnknownCharacters]] = [
        {side: UnknownCharacters() for side in SIDES} for _ in examination.sections
    ]
    for split in examination.splits.values():
        for stretch in split.stretches:
            facts, number = FinishedPart(work.tokenized(stretch.stretch.number)).facts, stretch.stretch.section
            examination.sections[number].tally.merge(Tally.from_list(facts["tally"]))
            for side in SIDES:
                sums[number][side] += UnknownCharacters(**facts["unknown"][side])
    for section, unknown in zip(examination.sections, sums, strict=True):
        report_unknown(section.tally, unknown, trained.tokenizers)
    return examination.report(trained.notes)


def assemble(
    folder: Path,
    work: WorkFolder,
    examination: Examination,
    tokenizers: Tokenizers,
    report: DoctorReport,
    reader: FileReader | None = None,
) -> None:
    """Fill an empty folder with the whole corpus; with a `reader` its sources are frames."""
    tokenizers.save(folder / TOKENIZER)
    spans = {}
    for name, split in examination.splits.items():
        parts = [FinishedPart(work.tokenized(stretch.stretch.number)) for stretch in split.stretches]
        for side in SIDES:
            _write_items(parts, side, "tokens", folder / f"{name}.{side}", items_of(side, reader is not None))
        if split.aligned:
            _write_items(parts, ALIGNMENT, "links", folder / f"{name}.{ALIGNMENT}", "links")
        if name != "train":
            _write_text(split, folder)
        spans[name] = _spans(examination, split, parts)
    (folder / REPORT).write_text(report.as_text(), encoding="utf-8", newline="\n")
    _write_manifest(folder, spans, tokenizers, report, reader)


def _write_items(parts: Sequence[FinishedPart], name: str, items: str, stem: Path, called: str) -> None:
    """Items end to end in one file (tokens or frames of a side, or links), and where each sentence's begin in another.

    They are `called` so in the corpus.
    """
    end = 0
    with open(f"{stem}.{called}", "wb") as file, open(f"{stem}.offsets", "wb") as offsets:
        offsets.write(np.zeros(1, "<u8").tobytes())
        for part in parts:
            _copy(part.path / f"{name}.{items}", file)
            ends = end + np.cumsum(part.array(f"{name}.lengths", LENGTH), dtype=np.uint64)
            offsets.write(ends.astype("<u8").tobytes())
            end = int(ends[-1]) if len(ends) else end


def _write_text(split: ExaminedSplit, folder: Path) -> None:
    """Held-out text as it was, for scoring."""
    for side in SIDES:
        with open(folder / f"{split.name}.{side}.txt", "wb") as file:
            for stretch in split.stretches:
                _copy(stretch.part.path / f"{side}.txt", file)


def _copy(path: Path, file: IO[bytes]) -> None:
    with open(path, "rb") as other:
        shutil.copyfileobj(other, file, _COPIED)


def _spans(examination: Examination, split: ExaminedSplit, parts: Sequence[FinishedPart]) -> list[Span]:
    numbers = [number for number, section in enumerate(examination.sections) if section.split == split.name]
    counts = dict.fromkeys(numbers, 0)
    for stretch, part in zip(split.stretches, parts, strict=True):
        counts[stretch.stretch.section] += part.facts["pairs"]
    bounds = np.cumsum([0, *counts.values()]).tolist()
    texts = [examination.sections[number].text for number in numbers]
    return [
        Span(text.label, start, stop, text.weight, text.tag)
        for text, (start, stop) in zip(texts, pairwise(bounds), strict=True)
    ]


def _write_manifest(
    work: Path, spans: dict[str, list[Span]], tokenizers: Tokenizers, report: DoctorReport, reader: FileReader | None
) -> None:
    dtypes = token_dtypes(tokenizers, reader)
    splits = {
        split: {
            "pairs": parts[-1].stop,
            **{
                f"{side}_{items_of(side, reader is not None)}": int(
                    np.memmap(work / f"{split}.{side}.offsets", "<u8")[-1]
                )
                for side in SIDES
            },
            **_count_links(work / f"{split}.{ALIGNMENT}"),
            "spans": [asdict(span) for span in parts],
        }
        for split, parts in spans.items()
    }
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "splits": splits,
        "dtypes": dtypes,
        **({"reader": reader.facts()} if reader is not None else {}),
        "tokenizer": {
            "digest": tokenizers.digest(),
            "shared": tokenizers.shared,
            "source_size": tokenizers.source.size,
            "target_size": tokenizers.target.size,
        },
        "files": file_facts(work),
        "report": report.as_dict(),
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (work / MANIFEST).write_text(text, encoding="utf-8", newline="\n")


def _count_links(stem: Path) -> dict[str, int]:
    """Pairs with links and links in all; nothing where no corpus of the split has alignments."""
    path = Path(f"{stem}.offsets")
    if not path.exists():
        return {}
    offsets = np.memmap(path, "<u8", "r")
    return {"aligned": int(np.count_nonzero(offsets[1:] != offsets[:-1])), "links": int(offsets[-1])}


SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_WORDS = 1.0, 60.0  # while a shard waits for others


@dataclass(frozen=True)
class Prepare:
    """What to prepare, and how."""

    output: str
    train: tuple[ParallelText, ...]
    valid: tuple[ParallelText, ...] = ()
    test: tuple[ParallelText, ...] = ()
    tokenizer: SentencePiece | GivenTokenizer = field(default_factory=SentencePiece)
    sources: Sources | FileReader = field(
        default_factory=Text
    )  # what lines of the source side are: text, or paths of files
    doctor: Doctor = field(default_factory=Doctor)
    longest: int = 256  # tokens on either side, a tag included; longer training pairs are dropped and counted
    workers: int = 0  # processes; 0: one for each core
    overwrite: bool = False  # replace a corpus that is already there

    def __post_init__(self) -> None:
        if not self.output:
            raise ConfigError("output: expected the folder to write")
        if not self.train:
            raise ConfigError("train: expected at least one corpus")
        if self.longest < 1 or self.workers < 0:
            raise ConfigError(f"longest={self.longest}, workers={self.workers}: expected at least 1 and at least 0")
        if self.reader is not None:
            for split, texts in self.splits.items():
                for text in texts:
                    if text.tag or text.alignment:
                        raise ConfigError(
                            f"{split}, {text.label}: a tag or word alignments belong to sources of text, and these are"
                            f" {self.reader.kind}; leave them out"
                        )

    @property
    def splits(self) -> dict[str, tuple[ParallelText, ...]]:
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def reader(self) -> FileReader | None:
        """Of the files that sources name; None where they are text."""
        return reader_of(self.sources)

    @property
    def tags(self) -> list[str]:
        """Each tag once, in the order of the corpora."""
        return list(dict.fromkeys(text.tag for texts in self.splits.values() for text in texts if text.tag))

    def settings(self) -> dict[str, Any]:
        """What the result depends on besides the files, as JSON has it."""
        left_out = ("output", "workers", "overwrite", "sources")
        facts = {k: v for k, v in asdict(self).items() if k not in left_out}
        if self.reader is not None:
            facts["sources"] = self.reader.facts()
        kind = type(self.tokenizer).__name__
        digest = self.tokenizer.load().digest() if isinstance(self.tokenizer, GivenTokenizer) else ""
        facts = {**facts, "tokenizer": {"kind": kind, **facts["tokenizer"], "digest": digest}}
        return dict(json.loads(json.dumps(facts)))


def examine(config: Prepare) -> DoctorReport:
    """The doctor alone: nothing is written or trained; with a given tokenizer unknown characters are counted too."""
    given = config.tokenizer.load() if isinstance(config.tokenizer, GivenTokenizer) else None
    with tempfile.TemporaryDirectory(prefix="transduce-doctor-") as folder:
        work, corpora = WorkFolder(Path(folder)), index_splits(config.splits)
        stretches = cut(corpora, 1)
        keep = given is not None
        examine_stretches(work, corpora, stretches, config.doctor, config.workers, keep, config.reader)
        examination = open_examined(work, corpora, stretches, config.doctor)
        join(work, examination)
        examination = open_joined(work, examination)
        if given is not None:
            add_unknown_characters(examination, given, text=config.reader is None)
        return examination.report()


def prepare(config: Prepare) -> Corpus:
    """Write the corpus; refused if one is there already and `overwrite` is not set. Goes on where it was killed."""
    with _at_work(config, None, 1) as plan:
        if plan is None:
            return _written(config)
        _examine(config, plan, plan.stretches)
        return _finish(config, plan)


@dataclass(frozen=True)
class ShardReport:
    """How far a shard is: what is done of it, and which other shards it found behind."""

    shard: Shard
    examined: bool
    tokenized: bool
    behind: tuple[int, ...]  # not examined yet, or once that is done, not tokenized yet

    def __str__(self) -> str:
        what = "tokenized" if self.tokenized else "examined"
        others = f"; {_named(self.behind, self.shard.count)} not {what} yet" if self.behind else ""
        if not self.tokenized:
            then = "; then give this command again to tokenize this share, or merge"
        else:
            then = f"; now: transduce prepare ... --merge {self.shard.count}" if not self.behind else ""
        return f"shard {self.shard}: {what}{others}{then}"


def prepare_shard(config: Prepare, shard: Shard, wait: bool = False) -> ShardReport:
    """Do what can be done of one share: examine it, and tokenize it once all shards are examined.

    The first that finds all examined compares them and trains the tokenizer. `wait` for the others if they run now;
    else call again, or leave the rest to `merge_shards`.
    """
    with _at_work(config, shard, shard.count) as plan:
        if plan is None:
            return ShardReport(shard, True, True, ())
        _examine(config, plan, plan.share(shard))
        _wait(plan, wait)
        if behind := plan.behind(plan.work.examined):
            return ShardReport(shard, True, False, tuple(behind))
        examination = _joined(config, plan)
        _tokenize(config, plan, examination, _tokenizers(config, plan, examination), plan.share(shard))
        return ShardReport(shard, True, True, tuple(plan.behind(plan.work.tokenized)))


def _written(config: Prepare) -> Corpus:
    """The corpus that is there now; the class of the user's own that read its files is one that the config names."""
    return Corpus.open(config.output, trust="sources" in dict(own_parts(config)))


def merge_shards(config: Prepare, shards: int) -> Corpus:
    """Join examined shards to the corpus that `prepare` alone would write; does what they have left undone."""
    with _at_work(config, None, Shard(shards, shards).count) as plan:
        if plan is None:
            return _written(config)
        plan.unfinished(plan.work.examined, plan.stretches)  # removes what is damaged
        if behind := plan.behind(plan.work.examined):
            raise RunError(
                f"{config.output}: {_named(behind, shards)} not examined yet: run prepare with "
                f"--shard {behind[0]}/{shards} first"
            )
        return _finish(config, plan)


# -- steps -------------------------------------------------------------------------------------------------------------


@contextmanager
def _at_work(config: Prepare, shard: Shard | None, shards: int) -> Iterator[PreparationPlan | None]:
    """The plan, held by this process; None where the corpus was finished by a process that was killed right then."""
    _check_tags(config)
    output = Path(config.output).absolute()
    with hold_work(output, shard) as work:
        mend_replaced(output)
        if is_done(work, output / MANIFEST):
            say(f"{output}: nothing to do: it is complete")
            discard(work)
            yield None
            return
        try:
            check_free(output, MANIFEST, config.overwrite)
            plan = begin(work, config.splits, config.settings(), shards)
        finally:
            if shard is None and not (work.folder / PLAN).exists():
                discard(work)
        try:
            yield plan
        except DataError:
            if shards == 1:  # the text must be mended, and is another then
                discard(work)
            raise


def _examine(config: Prepare, plan: PreparationPlan, stretches: list[LineRange]) -> None:
    left = plan.unfinished(plan.work.examined, stretches)
    examine_stretches(plan.work, plan.corpora, left, config.doctor, config.workers, reader=config.reader)


def _wait(plan: PreparationPlan, wait: bool) -> None:
    next_word = time.monotonic()
    while wait and (behind := plan.behind(plan.work.examined)):
        if time.monotonic() >= next_word:
            say(f"{plan.work.folder}: waiting: {_named(behind, plan.shards)} not examined yet")
            next_word = time.monotonic() + SECONDS_BETWEEN_WORDS
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _named(shards: Sequence[int], count: int) -> str:
    one = len(shards) == 1
    return f"shard{'' if one else 's'} {', '.join(map(str, shards))} of {count} {'is' if one else 'are'}"


def _joined(config: Prepare, plan: PreparationPlan) -> Examination:
    examination = open_examined(plan.work, plan.corpora, plan.stretches, config.doctor)
    with one_at_a_time(plan.work):
        if plan.lacks(plan.work.joined):
            plan.check_inputs()
            join(plan.work, examination)
    examination = open_joined(plan.work, examination)
    _refuse(examination)
    return examination


def _tokenizers(config: Prepare, plan: PreparationPlan, examination: Examination) -> TrainedTokenizers:
    path = plan.work.tokenizer
    with one_at_a_time(plan.work):
        if plan.lacks(path):
            trained = _train(config, examination)
            writer = PartWriter(path)
            trained.tokenizers.save(writer.folder)
            writer.finish({"notes": trained.notes})
    return TrainedTokenizers(Tokenizers.load(path), tuple(FinishedPart(path).facts["notes"]))


def _train(config: Prepare, examination: Examination) -> TrainedTokenizers:
    if isinstance(config.tokenizer, GivenTokenizer):
        return TrainedTokenizers(config.tokenizer.load())
    symbols = config.tokenizer.symbols
    settings = replace(config.tokenizer, symbols=(*symbols, *(tag for tag in config.tags if tag not in symbols)))
    drawn = draw_lines(examination, settings)
    if config.reader is not None:  # the sources are no text: there is one vocabulary, that of the target
        return replace(settings, shared=True).train([], drawn["target"])
    return settings.train(drawn["source"], drawn["target"])


def _tokenize(
    config: Prepare,
    plan: PreparationPlan,
    examination: Examination,
    trained: TrainedTokenizers,
    stretches: list[LineRange],
) -> None:
    left = plan.unfinished(plan.work.tokenized, stretches)
    where = plan.work, trained.tokenizers, plan.work.tokenizer
    tokenizing = Tokenizing(*where, config.longest, config.workers, config.reader)
    tokenizing.write_parts(examination, {stretch.number for stretch in left})


def _finish(config: Prepare, plan: PreparationPlan) -> Corpus:
    """All that comes after examining, then the corpus; the parts go."""
    work, output = plan.work, Path(config.output).absolute()
    examination = _joined(config, plan)
    trained = _tokenizers(config, plan, examination)
    _tokenize(config, plan, examination, trained, plan.stretches)
    report = final_report(work, examination, trained)
    check_not_empty(report)
    plan.check_inputs()
    with whole_folder(output, MANIFEST, config.overwrite) as folder:
        assemble(folder, work, examination, trained.tokenizers, report, config.reader)
        mark_done(work, folder / MANIFEST)
    discard(work)
    return _written(config)


def _check_tags(config: Prepare) -> None:
    """That a given tokenizer can be read and knows every tag is checked before any work."""
    if isinstance(config.tokenizer, GivenTokenizer):
        source = config.tokenizer.load().source
        for tag in config.tags:
            source.token(tag)


def _refuse(examination: Examination) -> None:
    report = examination.report()
    if report.refused:
        raise DataError(
            "The data doctor refuses this text:\n"
            + "\n".join(report.refused)
            + "\nMend the lines, or set what the doctor does with them (such as doctor.invalid_utf8 = 'drop'; "
            "in valid and test, lines cannot be dropped)"
        )
    check_not_empty(report)


def check_not_empty(report: DoctorReport) -> None:
    """Refuse text of which nothing is left to train on."""
    train = [corpus for corpus in report.corpora if corpus.split == "train"]
    if sum(corpus.kept for corpus in train) == 0:
        read = sum(corpus.pairs for corpus in train)
        dropped = ", ".join(f"{check} {count:,}" for check, count in report.dropped().items()) or "none by the doctor"
        empty = f"{', '.join(dict.fromkeys(corpus.name for corpus in train))}: no lines; give text"
        then = "give other text, or keep more of it by `doctor` and `longest`" if read else empty
        raise DataError(f"No training pair is left of {read:,} read; dropped: {dropped}; {then}")
