"""Pictures as frames: resized to one height, cut into square patches, column by column from the left.

PNG, JPEG and others are opened by pillow; a picture of an idx file (such as MNIST's) is named `file#number`, from 0,
and the file may be gzipped. A line of writing keeps its proportions: the longer it is, the more patches.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from transduce.core.errors import ConfigError
from transduce.data.readers import Array, Dtype, FileReader, Unreadable, missing

Pixels = npt.NDArray[np.uint8]
LARGEST_IDX = 1 << 30  # bytes of an idx file when decompressed
MOST_PIXELS = 50_000_000


@dataclass(frozen=True)
class Images(FileReader):
    """Reads sources that are paths of pictures, or of pictures within idx files (`digits.idx3.gz#17`).

    Pictures become `height` pixels high; `width_pixels` 0 keeps their proportions. The right edge is padded to whole
    patches with `background`.
    """

    kind: ClassVar[str] = "images"
    dtype: ClassVar[Dtype] = "uint8"
    unit: ClassVar[str] = "patches"
    expected: ClassVar[str] = "expected a picture that pillow reads (PNG, JPEG ...), or FILE#NUMBER of an idx file"
    height: int = 28
    width_pixels: int = 0
    patch: int = 7  # pixels, in both directions
    colour: bool = False  # three numbers per pixel instead of one
    background: int = 0  # 0 is black, 255 white
    longest_patches: int = 2048

    def __post_init__(self) -> None:
        if self.patch < 1 or self.height < 1 or self.height % self.patch:
            raise ConfigError(f"height={self.height}, patch={self.patch}: expected a height of whole patches")
        if self.width_pixels < 0:
            raise ConfigError(f"width_pixels={self.width_pixels}: expected 0, for each its own, or more")
        if not 0 <= self.background <= 255:
            raise ConfigError(f"background={self.background}: expected from 0, black, to 255, white")

    @property
    def channels(self) -> int:
        return 3 if self.colour else 1

    @property
    def width(self) -> int:
        return self.patch * self.patch * self.channels

    @property
    def rows(self) -> int:
        """Patches per column."""
        return self.height // self.patch

    def load(self, path: str) -> Array:
        """Load pixels (H, W, channels)."""
        file, _, number = path.rpartition("#")
        pixels = read_idx(file, number) if number.isdecimal() and file else read_picture(path, self.colour)
        return self._sized(pixels)

    def _sized(self, pixels: Pixels) -> Pixels:
        """Resize pixels to the reader's height and channels."""
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.shape[2] != self.channels:
            pixels = np.repeat(pixels[:, :, :1], self.channels, axis=2)  # idx pictures are grey
        height, width = pixels.shape[:2]
        new_width = self.width_pixels or max(1, round(width * self.height / height))
        if self.rows * -(-new_width // self.patch) > self.longest_patches:
            raise Unreadable(
                f"{width} x {height} pixels are {self.rows * -(-new_width // self.patch):,} patches; expected at most"
                f" {self.longest_patches:,} (sources.longest_patches)"
            )
        return pixels if (height, width) == (self.height, new_width) else resize(pixels, new_width, self.height)

    def frames(self, content: Array) -> Array:
        try:
            pixels = self._sized(np.asarray(content, np.uint8))
        except Unreadable as error:
            raise ConfigError(f"the picture: {error}") from None
        padding = -pixels.shape[1] % self.patch
        padded = np.pad(pixels, ((0, 0), (0, padding), (0, 0)), constant_values=self.background)
        rows, columns, side = self.rows, padded.shape[1] // self.patch, self.patch
        cut = padded.reshape(rows, side, columns, side, self.channels).transpose(2, 0, 1, 3, 4)
        return np.ascontiguousarray(cut.reshape(rows * columns, self.width))

    def sight(self, frames: Array) -> Array:
        cut = np.asarray(frames, np.float32).reshape(-1, self.rows, self.patch, self.patch, self.channels)
        pixels = cut.transpose(1, 2, 0, 3, 4).reshape(self.height, -1, self.channels)
        return np.asarray(pixels.mean(2) / 255, np.float32)

    def box(self, frame: int, stop: int) -> tuple[float, float, float, float]:
        left, top, width, height = self.place(frame, stop).values()
        return left, top, width, height

    def place(self, frame: int, stop: int) -> dict[str, float]:
        """The box of a patch, or of several in one column, in pixels of the resized picture."""
        column, row = divmod(frame, self.rows)
        return {
            "left": float(column * self.patch),
            "top": float(row * self.patch),
            "width": float(self.patch),
            "height": float(self.patch * (stop - frame)),
        }


def read_picture(path: str, colour: bool) -> Pixels:
    """Read pixels (H, W) in grey, or (H, W, 3)."""
    try:
        from PIL import Image
    except ImportError:
        raise missing("pillow") from None
    if not Path(path).is_file():
        raise Unreadable("no such file")
    try:
        with Image.open(path) as picture:
            if math.prod(picture.size) > MOST_PIXELS:
                raise Unreadable(f"{picture.size[0]:,} x {picture.size[1]:,} pixels; expected at most {MOST_PIXELS:,}")
            return np.asarray(picture.convert("RGB" if colour else "L"), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Unreadable(f"{error}") from None


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """Resize a picture (H, W, channels)."""
    try:
        from PIL import Image
    except ImportError:
        raise missing("pillow") from None
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), np.uint8).reshape(height, width, -1)


def read_idx(path: str, number: str) -> Pixels:
    """Read one picture (H, W) of an idx file."""
    pictures = idx_items(path)
    if pictures.ndim != 3:
        raise Unreadable(f"an idx file of {pictures.ndim} dimensions; expected 3: number, height, width")
    if int(number) >= len(pictures):
        raise Unreadable(f"there are {len(pictures):,} pictures, counted from 0")
    return np.asarray(pictures[int(number)])


@lru_cache(maxsize=4)
def idx_items(path: str) -> Pixels:
    """Read all items of an idx file of bytes, the format of LeCun et al. (1998) for pictures and labels."""
    if not Path(path).is_file():
        raise Unreadable("no such file")
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08":
                raise Unreadable("not an idx file of bytes; expected it to begin with 00 00 08")
            shape = tuple(np.frombuffer(file.read(4 * head[3]), ">u4").tolist())
            if len(shape) < head[3] or math.prod(shape) > LARGEST_IDX:
                raise Unreadable(f"an idx file of {shape} is damaged, or too large")
            content = file.read(math.prod(shape))
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"{error}") from None
    if len(content) < math.prod(shape):
        raise Unreadable(f"it ends after {len(content):,} of {math.prod(shape):,} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape)
