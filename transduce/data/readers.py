"""What turns a file that is no text into frames: a sequence of vectors, of which a corpus holds many end to end.

A reader is one of the choices of `prepare`'s setting `sources`; it is kept in the corpus and in every model trained on
it, so that a new file is read as those were. Imports nothing but numpy until a file is opened.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from transduce.core.config import written_kind
from transduce.core.errors import DataError, UserError

Array = npt.NDArray[Any]
Dtype = Literal["float16", "uint8"]


class Unreadable(Exception):
    """Why a file cannot be used, for the doctor to report with its place."""


@dataclass(frozen=True)
class Text:
    """The source side is text, as it stands in the files."""


@dataclass(frozen=True)
class PreparedFrames:
    """Frames (L, width) as a corpus holds them, where a translator would be given a file."""

    frames: Array

    def __len__(self) -> int:
        return len(self.frames)


class FileReader(Protocol):
    """What all readers have in common: a source line is the path of a file, seen from the manifest's folder.

    One that derives from this has all but `width`, `load` and `frames`; what it overrides besides is its own.
    """

    kind: ClassVar[str] = "files"  # what it reads, for people
    dtype: ClassVar[Dtype] = "float16"  # that frames are kept in
    unit: ClassVar[str] = "frames"

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers a frame."""
        raise NotImplementedError

    @abstractmethod
    def load(self, path: str) -> Array:
        """The content of a file before frames are made of it; raises Unreadable."""
        raise NotImplementedError

    @abstractmethod
    def frames(self, content: Array) -> Array:
        """Frames (L, width) of what `load` gave."""
        raise NotImplementedError

    def varied(self, content: Array) -> list[Array]:
        """The frames of training pairs that are made of one file."""
        return [self.frames(content)]

    def parts(self, frames: Array, longest: int) -> list[Array]:
        """Frames that are more than a model has learned to read, in parts that are not, where they can be cut."""
        return [frames]

    def check(self, path: str) -> None:
        """Raise Unreadable for a file that is not for training, as one that is too long, before all of it is read."""

    def examine(self, path: str) -> int:
        """A 64-bit digest of the content of a file: what tells that two files are the same; raises Unreadable."""
        self.check(path)
        content = self.load(path)
        if len(content) == 0:
            raise Unreadable("it holds nothing")
        digest = hashlib.blake2b(np.ascontiguousarray(content).tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def read(self, source: str | PathLike[str] | Array | PreparedFrames) -> Array:
        """The frames of a file, of its content (samples, pixels), or those that were prepared."""
        if isinstance(source, PreparedFrames):
            return source.frames
        if not isinstance(source, (str, PathLike)):
            return self.frames(np.asarray(source))
        try:
            return self.frames(self.load(fspath(source)))
        except Unreadable as error:
            raise DataError(f"{fspath(source)}: cannot be read: {error}; {self.expected}") from None

    def fault(self, path: str) -> str:
        """Why a file cannot be read; nothing where it can."""
        try:
            self.load(path)
        except Unreadable as error:
            return str(error)
        return ""

    expected: ClassVar[str] = ""  # what a user should give instead

    def place(self, frame: int, stop: int) -> dict[str, float]:
        """Where in the file the frames from `frame` up to `stop` are: for who shows what a model looks at."""
        return {"frame": float(frame), "until": float(stop)}

    def sight(self, frames: Array) -> Array:
        """The file as people look at it, (height, width) from 0 to 1: frames side by side, first numbers below."""
        across = np.asarray(frames, np.float32).T[::-1]
        low, high = across.min(initial=0), across.max(initial=0)
        return np.asarray((across - low) / max(high - low, 1e-6), np.float32)

    def box(self, frame: int, stop: int) -> tuple[float, float, float, float]:
        """Where the frames from `frame` up to `stop` are in its sight: left, top, width, height."""
        return float(frame), 0.0, float(stop - frame), float(self.width)

    def facts(self) -> dict[str, Any]:
        """The word for its class and its settings, for JSON."""
        from transduce.data.sources import Sources  # made of readers

        return {"kind": written_kind(Sources, self), **json.loads(json.dumps(asdict(cast("Any", self))))}


@dataclass(frozen=True)
class Reading:
    """How a model reads files: their frames, and which of these, from and up to, each place of its memory is about."""

    reader: FileReader
    places: Callable[[int], list[tuple[int, int]]]

    def parts(self, source: str | PathLike[str] | Array | PreparedFrames, longest: int) -> list[Array]:
        """The frames of a file or of its content, in parts that the model can read; nothing where there are none."""
        frames = self.reader.read(source)
        return self.reader.parts(frames, longest) if len(frames) else []

    def units(self, frames: Array) -> tuple[str, ...]:
        """A name for each place of the memory: where in the file it is."""
        found = [self.reader.place(*place) for place in self.places(len(frames))]
        return tuple(",".join(f"{value:g}" for value in place.values()) for place in found)


def beside(path: str, manifest: str) -> str:
    """A path of a manifest as it is seen from here."""
    return str(Path(manifest).parent / path)


def missing(package: str) -> UserError:
    """What is told to someone who lacks a package that opens files."""
    return UserError(f"reading this file needs {package}: pip install 'transduce[senses]'")
