"""A prepared corpus: a folder of memory-mapped tokens with a manifest, as `prepare` wrote it.

For each split and side, `train.source.tokens` holds all tokens end to end (no start or end symbols; a corpus's tag
comes before each source) and `train.source.offsets` where each sentence starts. Of recordings and pictures it is
`train.source.frames`, rows of numbers, and the manifest says how they were made. Validation and test keep their text
(of files their paths), for scoring. Where some corpus of a split has word alignments, `train.alignment.links` and
`.offsets` hold them (see links.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transduce.data.reader import FileReader, PreparedFrames
from transduce.data.sources import from_facts
from transduce.data.tokenizer import Tokenizers
from transduce.errors import DataError
from transduce.untrusted import parse_json, read_small

FORMAT, VERSION = "transduce corpus", 1
MANIFEST, TOKENIZER, REPORT = "manifest.json", "tokenizer", "report.txt"
ALIGNMENT, LINKS_DTYPE = "alignment", "uint16"
_TOKEN_DTYPES = ("uint16", "uint32")
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
_AGAIN = "prepare the corpus again"
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
    """The pairs of one split, in the order of its corpora."""

    def __init__(
        self,
        folder: Path,
        name: str,
        spans: list[Span],
        dtypes: dict[str, str],
        aligned: bool = False,
        width: int = 0,
    ) -> None:
        self.name, self.spans, self.aligned = name, spans, aligned
        self.width = width  # numbers a frame of the sources; 0: they are tokens
        self._folder = folder
        self._offsets = {side: _map(folder / f"{name}.{side}.offsets", "uint64") for side in SIDES}
        self._tokens = {
            side: _map(folder / f"{name}.{side}.{items_of(side, width > 0)}", dtypes[side]) for side in SIDES
        }
        if width:
            self._tokens["source"] = self._tokens["source"].reshape(-1, width)
        for side in SIDES:
            offsets, tokens = self._offsets[side], self._tokens[side]
            if len(offsets) != len(self) + 1 or offsets[-1] != len(tokens):
                items = items_of(side, width > 0)
                raise DataError(f"{folder}: {name}.{side}.offsets and .{items} do not belong together; {_AGAIN}")
        if aligned:
            self._link_offsets = _map(folder / f"{name}.{ALIGNMENT}.offsets", "uint64")
            self._links = _map(folder / f"{name}.{ALIGNMENT}.links", LINKS_DTYPE).reshape(-1, 2)
            if len(self._link_offsets) != len(self) + 1 or self._link_offsets[-1] != len(self._links):
                raise DataError(f"{folder}: {name}.{ALIGNMENT}.offsets and .links do not belong together; {_AGAIN}")

    def __len__(self) -> int:
        return self.spans[-1].stop if self.spans else 0

    def tags(self) -> list[str]:
        """The tag of each pair, such as `<2de>`; "" where its sources have none."""
        return [span.tag for span in self.spans for _ in range(span.start, span.stop)]

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each source, its tag included, or its frames."""
        return np.diff(self._offsets["source"]).astype(np.int32)

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each target, without start and end."""
        return np.diff(self._offsets["target"]).astype(np.int32)

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
        return self._links[int(start) : int(stop)]

    def _sentence(self, side: Side, index: int) -> npt.NDArray[Any]:
        start, stop = self._offsets[side][index : index + 2]
        return self._tokens[side][int(start) : int(stop)]

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
        return path.read_bytes().decode().split("\n")[:-1]


@dataclass(frozen=True)
class Corpus:
    """`Corpus.open(folder)`: the splits and tokenizers of a prepared folder."""

    folder: Path
    manifest: dict[str, Any]
    digest: str  # SHA-256 of the manifest, and so of every file it lists

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
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
        corpus = cls(Path(folder), manifest, hashlib.sha256(content).hexdigest())
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
        facts = self.manifest.get("reader")
        return from_facts(facts, f"{self.folder / MANIFEST}") if facts is not None else None

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
        return Split(self.folder, name, spans, self.manifest["dtypes"], "links" in self.manifest["splits"][name], width)


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError where the manifest is not as `prepare` writes it."""
    for name, facts in manifest["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} lies outside the folder")
        if not isinstance(facts["bytes"], int) or not isinstance(facts["sha256"], str):
            raise ValueError(f"no size and hash for {name!r}")
    for split in manifest["splits"].values():
        stop = 0
        for span in (Span(**span) for span in split["spans"]):
            if span.start != stop or span.stop < span.start:
                raise ValueError(f"the spans of {span.name!r} do not join")
            stop = span.stop
    known = {"source": ("float16", "uint8") if "reader" in manifest else _TOKEN_DTYPES, "target": _TOKEN_DTYPES}
    if set(manifest["dtypes"]) != set(SIDES) or any(manifest["dtypes"][side] not in known[side] for side in SIDES):
        raise ValueError(f"dtypes {manifest['dtypes']}")


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
