"""A prepared corpus: a folder of memory-mapped tokens with a manifest, as `prepare` wrote it.

For each split and side, `train.source.tokens` holds all tokens end to end (no start or end symbols; a corpus's tag
comes before each source) and `train.source.offsets` where each sentence starts. Of recordings and pictures it is
`train.source.frames`, rows of numbers, and the manifest says how they were made. Validation and test keep their text
(of files their paths), for scoring. Where some corpus of a split has word alignments, `train.alignment.links` and
`.offsets` hold them (see word_links.py).

A prepared corpus again, with other targets in one split: what distillation writes.

Tokenizer, sources and the other splits are copied as they are. Targets come chunk by chunk in any order and are put in
their places in a mapped file, so that memory holds a few numbers a pair and no tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transduce.core.errors import ConfigError, DataError, is_plain
from transduce.core.untrusted import parse_json, read_small
from transduce.data.formats.parallel import MOST_WEIGHT
from transduce.data.readers import FileReader, PreparedFrames
from transduce.data.sources import from_facts
from transduce.text.tokenizer import Tokenizers

FORMAT, VERSION = "transduce corpus", 1
MANIFEST, TOKENIZER, REPORT = "manifest.json", "tokenizer", "report.txt"
ALIGNMENT, LINKS_DTYPE = "alignment", "uint16"
_TOKEN_DTYPES = ("uint16", "uint32")
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
_AGAIN = "prepare the corpus again"
_BLOCK = 1 << 22  # tokens that are looked at together
_LONGEST = np.iinfo(np.int32).max  # that a sentence can be
Source = npt.NDArray[Any]  # tokens (n,), or frames (n, width)


@dataclass(frozen=True)
class Span:
    """The pairs of a split that come from one corpus."""

    name: str
    start: int
    stop: int
    weight: float
    tag: str


class Split:
    """The pairs of one split, in the order of its corpora.

    Files come from anywhere: offsets are checked when lengths or pairs are first asked for, and tokens against the size
    of the `vocabulary` of their side when pairs are.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        spans: list[Span],
        dtypes: dict[str, str],
        aligned: bool = False,
        width: int = 0,
        vocabulary: Callable[[Side], int] | None = None,
    ) -> None:
        self.name, self.spans, self.aligned = name, spans, aligned
        self._vocabulary = vocabulary
        self.width = width  # numbers a frame of the sources; 0: they are tokens
        self._folder = folder
        self._offsets = {side: _map(folder / f"{name}.{side}.offsets", "uint64") for side in SIDES}
        self._tokens = {
            side: _map(folder / f"{name}.{side}.{items_of(side, width > 0)}", dtypes[side]) for side in SIDES
        }
        for side in SIDES:
            wide = width if side == "source" else 0
            self._tokens[side] = self._belonging(
                self._offsets[side], self._tokens[side], side, items_of(side, wide > 0), wide
            )
        if aligned:
            self._link_offsets = _map(folder / f"{name}.{ALIGNMENT}.offsets", "uint64")
            links = _map(folder / f"{name}.{ALIGNMENT}.links", LINKS_DTYPE)
            self._links = self._belonging(self._link_offsets, links, ALIGNMENT, "links", 2)

    def __len__(self) -> int:
        return self.spans[-1].stop if self.spans else 0

    def tags(self) -> list[str]:
        """The tag of each pair, such as `<2de>`; "" where its sources have none."""
        return [span.tag for span in self.spans for _ in range(span.start, span.stop)]

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each source, its tag included, or its frames."""
        return self._lengths(self._offsets["source"], "source")

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each target, without start and end."""
        return self._lengths(self._offsets["target"], "target")

    def _belonging(
        self, offsets: npt.NDArray[Any], items: npt.NDArray[Any], part: str, called: str, width: int
    ) -> npt.NDArray[Any]:
        """Items in rows of a width (0: they are none), as many as their offsets say."""
        whole = width == 0 or len(items) % width == 0
        rows = items.reshape(-1, width) if width and whole else items
        if not whole or len(offsets) != len(self) + 1 or offsets[-1] != len(rows):
            raise DataError(
                f"{self._folder}: {self.name}.{part}.offsets and .{called} do not belong together; {_AGAIN}"
            )
        return rows

    def _lengths(self, offsets: npt.NDArray[Any], part: str) -> npt.NDArray[np.int32]:
        """From one offset to the next: that they rise from 0 to the end of the file is known then."""
        lengths = np.diff(offsets)  # unsigned: where they fall it is very large
        if offsets[0] != 0 or lengths.max(initial=0) > _LONGEST:
            raise DataError(f"{self._folder}: {self.name}.{part}.offsets do not rise from 0; damaged; {_AGAIN}")
        return lengths.astype(np.int32)

    @cached_property
    def _checked(self) -> dict[Side, npt.NDArray[Any]]:
        """Tokens of both sides, each of them below the size of its vocabulary; their offsets are sound too."""
        for side in SIDES:
            lengths = self.source_lengths if side == "source" else self.target_lengths
            tokens, frames = self._tokens[side], side == "source" and self.width > 0
            if self._vocabulary is None or frames or not len(lengths):
                continue
            size = self._vocabulary(side)
            for begin in range(0, len(tokens) if size <= np.iinfo(tokens.dtype).max else 0, _BLOCK):
                largest = int(tokens[begin : begin + _BLOCK].max())
                if largest >= size:
                    raise DataError(
                        f"{self._folder}: {self.name}.{side}.tokens has a token {largest:,}, and its tokenizer knows"
                        f" those below {size:,}; damaged; {_AGAIN}"
                    )
        return self._tokens

    @cached_property
    def _checked_links(self) -> npt.NDArray[Any]:
        self._lengths(self._link_offsets, ALIGNMENT)
        return self._links

    @property
    def longest(self) -> tuple[int, int]:
        """Places that the longest source and the longest target take, with the end symbol that frames have not."""
        source, target = (int(side.max(initial=0)) for side in (self.source_lengths, self.target_lengths))
        return source + (self.width == 0), target + 1

    def pair(self, index: int) -> tuple[Source, npt.NDArray[np.unsignedinteger[Any]]]:
        """Source and target tokens of one pair: views into the files. A source may be frames (n, width)."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return self._sentence("source", index), self._sentence("target", index)

    def links(self, index: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Word links of one pair, (links, 2): source word, target word. None in a split that is not `aligned`."""
        if not self.aligned:
            return np.empty((0, 2), LINKS_DTYPE)
        start, stop = self._link_offsets[index : index + 2]
        return self._checked_links[int(start) : int(stop)]

    def _sentence(self, side: Side, index: int) -> npt.NDArray[Any]:
        start, stop = self._offsets[side][index : index + 2]
        return self._checked[side][int(start) : int(stop)]

    def to_translate(self) -> tuple[list[Any], list[str]]:
        """What a translator reads, the text of each source or its frames, and the text of each target."""
        sources, targets = self.texts()
        frames = [PreparedFrames(self._sentence("source", index)) for index in range(len(self))] if self.width else []
        return frames or list[Any](sources), targets

    def texts(self) -> tuple[list[str], list[str]]:
        """Both sides as they were given, line for line; training text is not kept."""
        source, target = (self._read_text(side) for side in SIDES)
        return source, target

    def _read_text(self, side: Side) -> list[str]:
        path = self._folder / f"{self.name}.{side}.txt"
        if not path.exists():
            raise DataError(f"{path}: the {self.name} split keeps tokens only; valid and test keep their text")
        try:
            *lines, rest = path.read_bytes().decode().split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: damaged (not UTF-8 at byte {error.start:,}); {_AGAIN}") from None
        if len(lines) != len(self) or rest:
            raise DataError(
                f"{path}: damaged ({len(lines):,} whole lines, and the split has {len(self):,} pairs); {_AGAIN}"
            )
        return lines


@dataclass(frozen=True)
class Corpus:
    """`Corpus.open(folder)`: the splits and tokenizers of a prepared folder."""

    folder: Path
    manifest: dict[str, Any]
    digest: str  # SHA-256 of the manifest, and so of every file it lists
    trust: bool = False  # whether a class of the user's own, which read the files, may be imported

    @classmethod
    def open(cls, folder: str | Path, trust: bool = False) -> Corpus:
        """Check the manifest and the size of every file (`verify` also checks the content)."""
        path = Path(folder) / MANIFEST
        if not path.is_file():
            what = "no such folder" if not Path(folder).exists() else f"no {MANIFEST} in it"
            raise DataError(f"{folder}: not a prepared corpus ({what}); make one with `transduce prepare`")
        try:
            content = read_small(path)
            manifest = parse_json(content)
            if manifest["format"] != FORMAT:
                raise ValueError(f"format is {manifest['format']!r}, expected {FORMAT!r}")
            if manifest["version"] == VERSION:
                _check_manifest(manifest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: damaged ({error!r}); {_AGAIN}") from None
        if manifest["version"] != VERSION:
            raise DataError(f"{path}: version {manifest['version']}; this program reads version {VERSION}; {_AGAIN}")
        corpus = cls(Path(folder), manifest, hashlib.sha256(content).hexdigest(), trust)
        corpus._check_sizes()
        return corpus

    def _check_sizes(self) -> None:
        for name, facts in self.manifest["files"].items():
            path = self.folder / name
            if not path.is_file():
                raise DataError(f"{path}: missing, though {MANIFEST} lists it; {_AGAIN}")
            if path.stat().st_size != facts["bytes"]:
                raise DataError(f"{path}: {path.stat().st_size:,} bytes, expected {facts['bytes']:,}; {_AGAIN}")

    def verify(self) -> None:
        """Read every file and compare it with its SHA-256 in the manifest."""
        for name, facts in self.manifest["files"].items():
            if file_digest(self.folder / name) != facts["sha256"]:
                raise DataError(f"{self.folder / name}: its SHA-256 is not the one in {MANIFEST}; {_AGAIN}")

    @cached_property
    def tokenizers(self) -> Tokenizers:
        return Tokenizers.load(self.folder / TOKENIZER)

    @cached_property
    def reader(self) -> FileReader | None:
        """What made frames of the files that sources were; None where they were text."""
        facts, kind = self.manifest.get("reader"), str((self.manifest.get("reader") or {}).get("kind"))
        if ":" in kind and not self.trust:
            raise ConfigError(
                f"{self.folder / MANIFEST}: its files were read by {kind!r}, and to read more would import code; if you"
                " trust where this corpus came from, set data.trust=true"
            )
        return from_facts(facts, f"{self.folder / MANIFEST}", self.trust) if facts is not None else None

    @property
    def splits(self) -> list[str]:
        """Names of the splits there are."""
        return list(self.manifest["splits"])

    def split(self, name: str) -> Split:
        """One split by name."""
        if name not in self.manifest["splits"]:
            raise DataError(f"{self.folder}: no split {name!r}; there are {', '.join(self.splits)}")
        spans = [Span(**span) for span in self.manifest["splits"][name]["spans"]]
        width = self.reader.width if self.reader is not None else 0
        aligned = "links" in self.manifest["splits"][name]
        return Split(self.folder, name, spans, self.manifest["dtypes"], aligned, width, self._vocabulary)

    def _vocabulary(self, side: Side) -> int:
        """How many tokens the tokenizer of a side knows."""
        return (self.tokenizers.source if side == "source" else self.tokenizers.target).size


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError where the manifest is not as `prepare` writes it."""
    for name, facts in manifest["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} lies outside the folder")
        if not isinstance(facts["bytes"], int) or not isinstance(facts["sha256"], str):
            raise ValueError(f"no size and hash for {name!r}")
    for name, split in manifest["splits"].items():
        if not is_plain(name):
            raise ValueError(f"a split called {name!r:.60}")
        stop = 0
        for span in (Span(**span) for span in split["spans"]):
            _check_span(span)
            if span.start != stop or span.stop < span.start:
                raise ValueError(f"the spans of {span.name!r} do not join")
            stop = span.stop
    known = {"source": ("float16", "uint8") if "reader" in manifest else _TOKEN_DTYPES, "target": _TOKEN_DTYPES}
    if set(manifest["dtypes"]) != set(SIDES) or any(manifest["dtypes"][side] not in known[side] for side in SIDES):
        raise ValueError(f"dtypes {manifest['dtypes']}")


def _check_span(span: Span) -> None:
    for key, text in (("name", span.name), ("tag", span.tag)):
        if not isinstance(text, str) or not is_plain(text):
            raise ValueError(f"a span whose {key} is {text!r:.60}, expected one line of text")
    for key, number in (("start", span.start), ("stop", span.stop)):
        if type(number) is not int:
            raise ValueError(f"{key} of {span.name!r:.60} is {number!r:.60}, expected a whole number")
    weight = span.weight
    if type(weight) not in (int, float) or not math.isfinite(weight) or not 0 < weight <= MOST_WEIGHT:
        raise ValueError(
            f"weight of {span.name!r:.60} is {weight!r:.60}, expected a number above 0, up to {MOST_WEIGHT:,.0f}"
        )


def items_of(side: Side, frames: bool) -> str:
    """What a side's file holds, which is its extension."""
    return "frames" if frames and side == "source" else "tokens"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_facts(folder: Path) -> dict[str, dict[str, int | str]]:
    """Size and SHA-256 of every file in a folder, for its manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files
    }


def _map(path: Path, dtype: str) -> npt.NDArray[Any]:
    try:
        if path.stat().st_size == 0:
            return np.empty(0, dtype)  # nothing cannot be mapped
        # A plain view: slices of the memmap class itself are ten times slower to make.
        return np.asarray(np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be mapped ({error}); {_AGAIN}") from None


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
