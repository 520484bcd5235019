"""Tokenized stretches end to end: the files of a corpus, its report and its manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from transduce.data.corpus import (
    ALIGNMENT,
    FORMAT,
    MANIFEST,
    REPORT,
    SIDES,
    TOKENIZER,
    VERSION,
    Side,
    Span,
    file_facts,
    items_of,
)
from transduce.data.examination import Examination, ExaminedSplit
from transduce.data.parts import FinishedPart, WorkFolder
from transduce.data.reader import FileReader
from transduce.data.report import DoctorReport, Tally
from transduce.data.tokenizer import Tokenizers
from transduce.data.tokenizing import LENGTH, UnknownCharacters, report_unknown, token_dtypes
from transduce.data.vocabulary import TrainedTokenizers

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
