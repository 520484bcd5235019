"""Base of readers that turn files other than text into frames: sequences of vectors, stored end to end.

A reader is one of the choices of `prepare`'s setting `sources`; it is saved with the corpus and with every model
trained on it, so that new files are read the same way. Imports only numpy until a file is opened.
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
    """Why a file cannot be used, reported by the doctor with its location."""


@dataclass(frozen=True)
class Text:
    """The source side is text, as in the files."""


@dataclass(frozen=True)
class PreparedFrames:
    """Frames (L, width) of a corpus, for a translator in place of a file."""

    frames: Array

    def __len__(self) -> int:
        return len(self.frames)


class FileReader(Protocol):
    """Base of all readers: a source line is the path of a file, relative to the manifest's folder.

    A subclass must define `width`, `load` and `frames`; the other methods have defaults.
    """

    kind: ClassVar[str] = "files"  # what it reads, for people
    dtype: ClassVar[Dtype] = "float16"  # of stored frames
    unit: ClassVar[str] = "frames"

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers per frame."""
        raise NotImplementedError

    @abstractmethod
    def load(self, path: str) -> Array:
        """Load the content of a file before framing; raises Unreadable."""
        raise NotImplementedError

    @abstractmethod
    def frames(self, content: Array) -> Array:
        """Turn the result of `load` into frames (L, width)."""
        raise NotImplementedError

    def varied(self, content: Array) -> list[Array]:
        """Frames of the training pairs made from one file."""
        return [self.frames(content)]

    def parts(self, frames: Array, longest: int) -> list[Array]:
        """Split frames longer than `longest` into parts, if the reader can."""
        return [frames]

    def check(self, path: str) -> None:
        """Raise Unreadable for a file unfit for training, such as one too long, before all of it is read."""

    def examine(self, path: str) -> int:
        """A 64-bit digest of a file's content, to find duplicates; raises Unreadable."""
        self.check(path)
        content = self.load(path)
        if len(content) == 0:
            raise Unreadable("it holds nothing")
        digest = hashlib.blake2b(np.ascontiguousarray(content).tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def read(self, source: str | PathLike[str] | Array | PreparedFrames) -> Array:
        """Return the frames of a file, of its content (samples, pixels), or prepared ones."""
        if isinstance(source, PreparedFrames):
            return source.frames
        if not isinstance(source, (str, PathLike)):
            return self.frames(np.asarray(source))
        try:
            return self.frames(self.load(fspath(source)))
        except Unreadable as error:
            raise DataError(f"{fspath(source)}: cannot be read: {error}; {self.expected}") from None

    def fault(self, path: str) -> str:
        """Why a file cannot be read; "" if it can."""
        try:
            self.load(path)
        except Unreadable as error:
            return str(error)
        return ""

    expected: ClassVar[str] = ""  # what a user should give instead

    def place(self, frame: int, stop: int) -> dict[str, float]:
        """Locate the frames from `frame` up to `stop` in the file, for displays of attention."""
        return {"frame": float(frame), "until": float(stop)}

    def sight(self, frames: Array) -> Array:
        """A picture of the file for people, (height, width) from 0 to 1: frames side by side, first numbers lowest."""
        across = np.asarray(frames, np.float32).T[::-1]
        low, high = across.min(initial=0), across.max(initial=0)
        return np.asarray((across - low) / max(high - low, 1e-6), np.float32)

    def box(self, frame: int, stop: int) -> tuple[float, float, float, float]:
        """The box of frames `frame` up to `stop` in that picture: left, top, width, height."""
        return float(frame), 0.0, float(stop - frame), float(self.width)

    def facts(self) -> dict[str, Any]:
        """Kind and settings, for JSON."""
        from transduce.data.sources import Sources  # here, since it imports this module

        return {"kind": written_kind(Sources, self), **json.loads(json.dumps(asdict(cast("Any", self))))}


@dataclass(frozen=True)
class Reading:
    """A model's file reader, and the range of frames behind each encoder position."""

    reader: FileReader
    places: Callable[[int], list[tuple[int, int]]]

    def parts(self, source: str | PathLike[str] | Array | PreparedFrames, longest: int) -> list[Array]:
        """The frames of a file or of its content, in parts that the model can read; empty if there are none."""
        frames = self.reader.read(source)
        return self.reader.parts(frames, longest) if len(frames) else []

    def units(self, frames: Array) -> tuple[str, ...]:
        """A name for each encoder position: its location in the file."""
        locations = [self.reader.place(*place) for place in self.places(len(frames))]
        return tuple(",".join(f"{value:g}" for value in location.values()) for location in locations)


def beside(path: str, manifest: str) -> str:
    """Resolve a path in a manifest relative to the manifest's folder."""
    return str(Path(manifest).parent / path)


def missing(package: str) -> UserError:
    """The error for a missing package that opens files."""
    return UserError(f"reading this file needs {package}: pip install 'transduce[senses]'")
