"""A prepared corpus again, with other targets in one split: what distillation writes.

Tokenizer, sources and the other splits are copied as they are. Targets come chunk by chunk in any order and are put in
their places in a mapped file, so that memory holds a few numbers a pair and no tokens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.data.corpus import ALIGNMENT, MANIFEST, REPORT, SIDES, Corpus, Split, file_facts

Lengths = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Targets:
    """New targets of some pairs: which pairs, how many tokens each has, and all of these end to end."""

    pairs: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.unsignedinteger[Any]]
    tokens: npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Retargeting:
    """What to write: `targets()` gives every pair of `split` once, each time it is called."""

    corpus: Corpus
    split: str
    targets: Callable[[], Iterable[Targets]]
    keep_original: bool  # whether the original pairs come after those with new targets
    suffix: str  # added to the names of the corpora whose targets are new
    note: str  # for the report
    facts: dict[str, Any]  # for the manifest, under "distillation"

    def write(self, work: Path) -> None:
        """Fill an empty folder with the whole corpus."""
        split = self.corpus.split(self.split)
        replaced = {f"{self.split}.{part}.{kind}" for part in (*SIDES, ALIGNMENT) for kind in _KINDS}
        for name in self.corpus.manifest["files"].keys() - replaced:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.corpus.folder / name, work / name)
        with open(work / REPORT, "ab") as report:
            report.write(f"{self.note}\n".encode())
        self._write_sources(work)
        self._write_targets(work, len(split))
        if split.aligned and self.keep_original:
            self._write_links(work, len(split))
        self._write_manifest(work, split)

    def _write_sources(self, work: Path) -> None:
        for kind in ("tokens", "offsets"):
            shutil.copyfile(self._old("source", kind), work / f"{self.split}.source.{kind}")
        if self.keep_original:
            self._append_original("source", "tokens", work)

    def _write_targets(self, work: Path, count: int) -> None:
        lengths: Lengths = np.zeros(count, np.uint64)
        for part in self.targets():
            lengths[part.pairs] = part.lengths
        offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])
        stem, dtype = f"{self.split}.target", np.dtype(self.corpus.manifest["dtypes"]["target"]).newbyteorder("<")
        (work / f"{stem}.offsets").write_bytes(offsets.astype("<u8").tobytes())
        (work / f"{stem}.tokens").touch()
        if offsets[-1]:  # nothing cannot be mapped
            tokens = np.memmap(work / f"{stem}.tokens", dtype, "w+", shape=(int(offsets[-1]),))
            for part in self.targets():
                tokens[_places(offsets[part.pairs], part.lengths)] = part.tokens
            tokens.flush()
        if self.keep_original:
            self._append_original("target", "tokens", work)

    def _write_links(self, work: Path, count: int) -> None:
        """The new targets have no links; the original pairs after them keep theirs."""
        shutil.copyfile(self._old(ALIGNMENT, "links"), work / f"{self.split}.{ALIGNMENT}.links")
        offsets = np.concatenate([np.zeros(count, "<u8"), np.fromfile(self._old(ALIGNMENT, "offsets"), "<u8")])
        (work / f"{self.split}.{ALIGNMENT}.offsets").write_bytes(offsets.tobytes())

    def _append_original(self, side: str, items: str, work: Path) -> None:
        new = work / f"{self.split}.{side}.offsets"
        end = np.fromfile(new, "<u8")[-1]
        with open(new, "ab") as offsets:
            offsets.write((np.fromfile(self._old(side, "offsets"), "<u8")[1:] + end).tobytes())
        with open(work / f"{self.split}.{side}.{items}", "ab") as file, open(self._old(side, items), "rb") as old:
            shutil.copyfileobj(old, file, 1 << 20)

    def _old(self, part: str, kind: str) -> Path:
        return self.corpus.folder / f"{self.split}.{part}.{kind}"

    def _write_manifest(self, work: Path, split: Split) -> None:
        old, count = self.corpus.manifest, len(split)
        spans = [replace(span, name=f"{span.name} {self.suffix}") for span in split.spans]
        if self.keep_original:
            spans += [replace(span, start=span.start + count, stop=span.stop + count) for span in split.spans]
        facts = {key: old["splits"][self.split][key] for key in ("aligned", "links") if split.aligned}
        changed = {
            "pairs": count * (2 if self.keep_original else 1),
            **{f"{side}_tokens": self._tokens(work, side) for side in SIDES},
            **(facts if self.keep_original else {}),
            "spans": [asdict(span) for span in spans],
        }
        manifest = {
            **old,
            "splits": {**old["splits"], self.split: changed},
            "files": file_facts(work),
            "report": {**old["report"], "notes": [*old["report"]["notes"], self.note]},
            "distillation": self.facts,
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (work / MANIFEST).write_text(text, encoding="utf-8", newline="\n")

    def _tokens(self, work: Path, side: str) -> int:
        size: int = (work / f"{self.split}.{side}.tokens").stat().st_size
        return size // int(np.dtype(self.corpus.manifest["dtypes"][side]).itemsize)


_KINDS = ("tokens", "offsets", "links")


def _places(starts: Lengths, lengths: npt.NDArray[np.unsignedinteger[Any]]) -> Lengths:
    """Where each token of several sentences lies, sentence after sentence: (2, 7) of lengths (3, 1) -> 2 3 4 7."""
    before = np.cumsum(lengths, dtype=np.uint64) - lengths.astype(np.uint64)
    return np.repeat(starts - before, lengths.astype(np.int64)) + np.arange(int(lengths.sum()), dtype=np.uint64)
