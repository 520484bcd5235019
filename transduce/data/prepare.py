"""`prepare`: from the user's parallel text to a folder of tokens that training maps into memory.

The doctor examines every corpus, the tokenizer is trained on what stays (or given), all splits are tokenized. The
result depends on text and settings alone, never on the number of workers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

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
)
from transduce.data.doctor import Doctor
from transduce.data.examination import Examination, examine_splits
from transduce.data.folders import whole_folder
from transduce.data.report import Report
from transduce.data.text import ParallelText
from transduce.data.tokenizer import Tokenizers
from transduce.data.tokenizing import Tokenizing, add_unknown_characters, text_chunks, token_dtypes
from transduce.data.vocabulary import GivenTokenizer, SentencePiece, TrainedTokenizers
from transduce.errors import ConfigError, DataError


@dataclass(frozen=True)
class Prepare:
    """What to prepare, and how."""

    output: str
    train: tuple[ParallelText, ...]
    valid: tuple[ParallelText, ...] = ()
    test: tuple[ParallelText, ...] = ()
    tokenizer: SentencePiece | GivenTokenizer = field(default_factory=SentencePiece)
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

    @property
    def splits(self) -> dict[str, tuple[ParallelText, ...]]:
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def tags(self) -> list[str]:
        """Each tag once, in the order of the corpora."""
        return list(dict.fromkeys(text.tag for texts in self.splits.values() for text in texts if text.tag))


def examine(config: Prepare) -> Report:
    """The doctor alone: nothing is written or trained; with a given tokenizer unknown characters are counted too."""
    given = config.tokenizer.load() if isinstance(config.tokenizer, GivenTokenizer) else None
    with tempfile.TemporaryDirectory(prefix="transduce-doctor-") as folder:
        examination = examine_splits(config.splits, config.doctor, Path(folder), config.workers, given is not None)
        if given is not None:
            add_unknown_characters(examination, given)
        return examination.report()


def prepare(config: Prepare) -> Corpus:
    """Write the corpus; refused if one is there already and `overwrite` is not set."""
    _check_tags(config)
    output = Path(config.output)
    with whole_folder(output, MANIFEST, config.overwrite) as work:
        scratch = work / "scratch"
        scratch.mkdir()
        examination = examine_splits(config.splits, config.doctor, scratch, config.workers, keep_text=True)
        _refuse(examination)
        trained = _tokenizers(config, examination)
        trained.tokenizers.save(work / TOKENIZER)
        tokenizing = Tokenizing(trained.tokenizers, work / TOKENIZER, config.longest, config.workers)
        spans = {split: tokenizing.write_split(examination, split, work) for split in examination.scratches}
        report = examination.report(trained.notes)
        _check_not_empty(report)
        for split in spans.keys() - {"train"}:
            for side in SIDES:
                os.replace(scratch / f"{split}.{side}.txt", work / f"{split}.{side}.txt")
        shutil.rmtree(scratch)
        (work / REPORT).write_text(report.as_text(), encoding="utf-8", newline="\n")
        _write_manifest(work, spans, trained.tokenizers, report)
    return Corpus.open(output)


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
    _check_not_empty(report)


def _check_not_empty(report: Report) -> None:
    train = [corpus for corpus in report.corpora if corpus.split == "train"]
    if sum(corpus.kept for corpus in train) == 0:
        read = sum(corpus.pairs for corpus in train)
        dropped = ", ".join(f"{check} {count:,}" for check, count in report.dropped().items()) or "none by the doctor"
        raise DataError(f"No training pair is left of {read:,} read; dropped: {dropped}")


def _tokenizers(config: Prepare, examination: Examination) -> TrainedTokenizers:
    if isinstance(config.tokenizer, GivenTokenizer):
        return TrainedTokenizers(config.tokenizer.load())
    symbols = config.tokenizer.symbols
    settings = replace(config.tokenizer, symbols=(*symbols, *(tag for tag in config.tags if tag not in symbols)))
    samples = {side: _sample(examination, side, settings) for side in SIDES}
    return settings.train(samples["source"], samples["target"])


def _sample(examination: Examination, side: Side, settings: SentencePiece) -> Iterator[str]:
    """An even sample of the training lines that stay: those whose mixed position is small enough."""
    sections = [section for section in examination.sections if section.split == "train"]
    lines = sum(section.stayed for section in sections) * (2 if settings.shared else 1)
    share = min(1.0, settings.sentences / max(lines, 1))
    for chunk in text_chunks(examination, examination.scratches["train"], sections, 0):
        chosen = np.flatnonzero(_mixed(np.array(chunk.positions, np.uint64), SIDES.index(side)) < share)
        texts = chunk.source if side == "source" else chunk.target
        for index in chosen.tolist():
            yield texts[index].decode()


def _mixed(positions: npt.NDArray[np.uint64], side: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each position that looks random and is always the same (splitmix64)."""
    mixed = (positions * np.uint64(2) + np.uint64(side + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64


def _write_manifest(work: Path, spans: dict[str, list[Span]], tokenizers: Tokenizers, report: Report) -> None:
    dtypes = token_dtypes(tokenizers)
    splits = {
        split: {
            "pairs": parts[-1].stop,
            **{
                f"{side}_tokens": (work / f"{split}.{side}.tokens").stat().st_size // np.dtype(dtypes[side]).itemsize
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
