"""What a model reads, and how it becomes vectors for the encoder: tokens, frames of speech, patches of a picture.

Each choice builds a module with `read(source, mask) -> (x, mask)`: x (B, S, D) for any encoder, and where it is real.
Shapes: B batch, L frames or patches, S places of the encoder, F numbers a frame, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import ConfigError
from transduce.kernels.dispatch import Kernels
from transduce.model.augmentation import Distortion, Plain, SpecAugment
from transduce.model.whole import Embedding, SourceReader
from transduce.sizes import FEW, check_most


@dataclass(frozen=True)
class Tokens:
    """Text: a vector for each token of the vocabulary (section 3.4)."""

    width: ClassVar[int] = 0  # numbers a frame; tokens have none

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        return tied if tied is not None else Embedding(vocabulary, d_model)

    def places(self, length: int) -> list[tuple[int, int]]:
        """Which tokens, from and up to, each place of the encoder has read, the end symbol last."""
        return [(place, place + 1) for place in range(length + 1)]


@dataclass(frozen=True)
class Frames:
    """Speech: `convolutions` over time and frequency halve both, as often; then one vector for each place in time.

    As in Dong et al. (2018, "Speech-Transformer"), 3 x 3 with stride 2 and ReLU, two of them by default: a place of the
    encoder for four frames. `augment` hides stretches of time and frequency while the model learns.
    """

    features: int = 80  # of a frame, as the corpus was prepared with
    convolutions: int = 2
    channels: int = 32
    augment: Plain | SpecAugment = Plain()

    def __post_init__(self) -> None:
        for name, least in (("features", 1), ("convolutions", 0), ("channels", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        check_most(self, 16, "convolutions")  # each halves the frames
        check_most(self, FEW, "features", "channels")

    @property
    def width(self) -> int:
        return self.features

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        return FrameReader(self, d_model)

    def places(self, length: int) -> list[tuple[int, int]]:
        """Which frames, from and up to, each place of the encoder stands for; it also sees a few on either side."""
        step = 2**self.convolutions
        return [(start, min(start + step, length)) for start in range(0, length, step)]


@dataclass(frozen=True)
class Patches:
    """Pictures: patches of `patch` x `patch` pixels, column by column from the left, `rows` in each column.

    A linear map makes a vector of each (Dosovitskiy et al., 2021), which is normed (Kumar et al., 2023); a learned one
    tells its row, for the encoder's own positions count along the line. `stem` > 0 puts two 3 x 3 convolutions of so
    many channels before it (Xiao et al., 2021, "Early Convolutions"), which learn from fewer pictures. `columns` makes
    one vector of all patches of a column, so that a line of writing has a place of the encoder for each step along it.
    `augment` turns and shifts pictures in training.
    """

    patch: int = 7
    rows: int = 4
    channels: int = 1  # numbers a pixel: 1 for grey, 3 for colour
    stem: int = 0
    columns: bool = False
    augment: Plain | Distortion = Plain()

    def __post_init__(self) -> None:
        for name, least in (("patch", 1), ("rows", 1), ("channels", 1), ("stem", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        check_most(self, FEW, "patch", "rows", "channels", "stem")

    @property
    def width(self) -> int:
        return self.patch * self.patch * self.channels

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        return PatchReader(self, d_model)

    def places(self, length: int) -> list[tuple[int, int]]:
        """Each place of the encoder is one patch, or one column of them."""
        step = self.rows if self.columns else 1
        return [(start, min(start + step, length)) for start in range(0, length, step)]


Source = Tokens | Frames | Patches


class FrameReader(SourceReader):
    """Log-mel frames (B, L, F) to vectors. Padding is set to zero before each convolution, as beyond the last frame."""

    def __init__(self, config: Frames, d_model: int) -> None:
        super().__init__()
        self.augment = config.augment.build()
        height, channels = config.features, 1
        self.convolutions = nn.ModuleList()
        for _ in range(config.convolutions):
            self.convolutions.append(nn.Conv2d(channels, config.channels, 3, stride=2, padding=1))
            height, channels = -(-height // 2), config.channels
        self.output = nn.Linear(height * channels, d_model)

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        x = source.to(self.output.weight.dtype)
        if self.training and self.augment is not None:
            x = self.augment(x, mask)
        x = x.unsqueeze(1)  # (B, 1, L, F)
        for convolution in self.convolutions:
            x = convolution(x.masked_fill(~mask[:, None, :, None], 0)).relu()  # (B, C, L / 2, F / 2)
            mask = mask[:, ::2]  # a place stands where its middle frame does
        x = self.output(x.transpose(1, 2).flatten(2))
        return x, mask


class PatchReader(SourceReader):
    """Patches (B, L, F) to vectors; to turn the picture, or for the stem, they are put together first."""

    looked_up: ClassVar[tuple[str, ...]] = ("row",)

    def __init__(self, config: Patches, d_model: int) -> None:
        super().__init__()
        self.patch, self.rows, self.channels = config.patch, config.rows, config.channels
        self.augment = config.augment.build()
        self.stem = nn.ModuleList()
        channels = config.channels
        for _ in range(2 if config.stem else 0):
            self.stem.append(nn.Conv2d(channels, config.stem, 3, padding=1))
            channels = config.stem
        self.joined = config.rows if config.columns else 1  # patches a place
        self.output = nn.Linear(self.joined * config.patch**2 * channels, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.row = nn.Parameter(torch.empty(config.rows // self.joined, d_model).normal_(std=0.02))

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        x = source.to(self.output.weight.dtype)
        turned = self.training and self.augment is not None
        if turned or self.stem:
            picture, real = self._picture(x, mask)
            if turned and self.augment is not None:
                picture = self.augment(picture)
            for convolution in self.stem:
                picture = convolution(picture.masked_fill(~real, 0)).relu()
            x = self._patches(picture, x.size(1))
        x = F.pad(x, (0, 0, 0, -x.size(1) % self.joined))
        x = x.reshape(len(x), -1, self.joined * x.size(2))
        rows = self.row.repeat(-(-x.size(1) // len(self.row)), 1)[: x.size(1)]
        return self.norm(self.output(x)) + rows, mask[:, :: self.joined]

    def _picture(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, height, width) of the patches (B, L, F), and (B, 1, 1, width) where it is real."""
        short = -x.size(1) % self.rows  # rows of a batch are padded to any length, columns are whole
        x, mask = F.pad(x, (0, 0, 0, short)), F.pad(mask, (0, short))
        x = x.view(len(x), -1, self.rows, self.patch, self.patch, self.channels)  # columns, rows, down, along
        picture = x.permute(0, 5, 2, 3, 1, 4).flatten(4, 5).flatten(2, 3)
        real = mask[:, :: self.rows].repeat_interleave(self.patch, dim=1)
        return picture, real[:, None, None, :]

    def _patches(self, picture: Tensor, count: int) -> Tensor:
        """What `_picture` put together, taken apart."""
        batch, channels, _, width = picture.shape
        x = picture.view(batch, channels, self.rows, self.patch, width // self.patch, self.patch)
        return x.permute(0, 4, 2, 3, 5, 1).reshape(batch, -1, self.patch**2 * channels)[:, :count]
