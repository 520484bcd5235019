"""Source readers: tokens, frames of speech or patches of pictures to encoder vectors, with augmentation.

Each choice builds a module with `read(source, mask) -> (x, mask)`: x (B, S, D) for any encoder, and its mask.
Shapes: B batch, L frames or patches, S encoder positions, F numbers a frame, D d_model.

Augmentation changes sources in training, so that few recordings or pictures suffice. Its draws come from torch's global
generator, which the loop seeds for each micro-batch: resumed runs are bit-identical.
Shapes: C channels, H and W a picture's height and width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.core.bounds import FEW, PLACES, Bounds, NonNegativeFloat, check_bounds
from transduce.kernels.dispatch import Kernels
from transduce.model.encoder_decoder import Embedding, SourceReader


class AugmentConfig(Protocol):
    """Config of data augmentation of sources in training."""

    def build(self) -> nn.Module | None:
        """Build a module from frames and their mask, or from images, to the same shape; None for no augmentation."""
        ...


@dataclass(frozen=True)
class Plain:
    """No augmentation."""

    def build(self) -> None:
        return None


@dataclass(frozen=True)
class SpecAugment:
    """SpecAugment: mask bands of frequency and spans of time (Park et al., 2019), without time warping.

    `frequency_masks` bands of up to `frequency_width` features, `time_masks` spans of up to `time_width` frames, but
    never more than `time_share` of a recording. Masked values become 0, the mean of normalised frames.
    """

    frequency_masks: Annotated[int, Bounds(0, FEW)] = 2
    frequency_width: Annotated[int, Bounds(0, PLACES)] = 15
    time_masks: Annotated[int, Bounds(0, FEW)] = 2
    time_width: Annotated[int, Bounds(0, PLACES)] = 40
    time_share: Annotated[float, Bounds(0, 1, expected="a number from 0 to 1")] = 0.2

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self) -> SpectrumMasks:
        return SpectrumMasks(self)


class SpectrumMasks(nn.Module):
    """Masks bands and spans of frames (B, L, F)."""

    def __init__(self, config: SpecAugment) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        config, lengths = self.config, mask.sum(1)
        features = torch.full_like(lengths, x.size(2))
        widest = (lengths * config.time_share).floor().clamp(max=config.time_width)
        for _ in range(config.frequency_masks):
            masked = _random_span(features.clamp(max=config.frequency_width).float(), features, x.size(2))  # (B, F)
            x = x.masked_fill(masked.unsqueeze(1), 0)
        for _ in range(config.time_masks):
            x = x.masked_fill(_random_span(widest, lengths, x.size(1)).unsqueeze(2), 0)
        return x


def _random_span(widest: Tensor, lengths: Tensor, size: int) -> Tensor:
    """A random span of at most `widest` (B,) positions within each row's length (B,): mask (B, size)."""
    width = (torch.rand(len(lengths), device=lengths.device) * (widest + 1)).floor().clamp(max=widest)
    start = (torch.rand(len(lengths), device=lengths.device) * (lengths - width + 1)).floor()
    position = torch.arange(size, device=lengths.device)
    return (position >= start.unsqueeze(1)) & (position < (start + width).unsqueeze(1))


@dataclass(frozen=True)
class Distortion:
    """Rotate, shear, scale and shift each picture slightly, drawn uniformly up to the given limits, either way.

    A picture wider than high rotates by less, in proportion, so that its ends stay inside.
    """

    rotation: NonNegativeFloat = 12.0  # degrees, for a square
    shear: NonNegativeFloat = 0.2  # pixels along per pixel down
    scale: NonNegativeFloat = 0.1  # share of the size, for height and width separately
    shift: NonNegativeFloat = 2.0  # pixels

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self) -> Distorted:
        return Distorted(self)


class Distorted(nn.Module):
    """Applies a random affine map about the middle to each picture (B, C, H, W); outside is 0."""

    def __init__(self, config: Distortion) -> None:
        super().__init__()
        self.config = config

    def forward(self, picture: Tensor) -> Tensor:
        config = self.config
        height, width = picture.shape[2:]
        draws = torch.rand(6, len(picture), device=picture.device) * 2 - 1  # (6, B)
        angle = draws[0] * math.radians(config.rotation) * min(1.0, height / width)
        shear = draws[1] * config.shear
        down, along = 1 + draws[2] * config.scale, 1 + draws[3] * config.scale
        # From positions in the new picture to positions in the old, in pixels from the middle, both in units of half
        # the picture, as in grid_sample.
        cos, sin, tall = angle.cos(), angle.sin(), height / width
        across = (cos * along, (shear * cos - sin) * along * tall, draws[4] * config.shift * 2 / width)
        below = (sin * down / tall, (shear * sin + cos) * down, draws[5] * config.shift * 2 / height)
        matrix = torch.stack([torch.stack(row, dim=1) for row in (across, below)], dim=1)  # (B, 2, 3)
        grid = F.affine_grid(matrix, list(picture.shape), align_corners=False)
        return F.grid_sample(picture.float(), grid, align_corners=False).to(picture.dtype)


class SourceConfig(Protocol):
    """Config of a model's source side."""

    @property
    def width(self) -> int:
        """Numbers per frame, as in the corpus; 0 for text."""
        ...

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        """Build the module that embeds a source; `tied` is the target's embedding, if shared."""
        ...

    def places(self, length: int) -> list[tuple[int, int]]:
        """Return the range of tokens or frames behind each encoder position, for a source of this length."""
        ...


@dataclass(frozen=True)
class Tokens:
    """Text: an embedding vector per token (section 3.4)."""

    width: ClassVar[int] = 0  # numbers per frame; tokens have none

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        return tied if tied is not None else Embedding(vocabulary, d_model)

    def places(self, length: int) -> list[tuple[int, int]]:
        """The tokens (from, up to) behind each encoder position, the end symbol last."""
        return [(position, position + 1) for position in range(length + 1)]


@dataclass(frozen=True)
class Frames:
    """Speech: `convolutions` over time and frequency, each halving both; then one vector per position in time.

    As in Dong et al. (2018, "Speech-Transformer"), 3 x 3 with stride 2 and ReLU, by default two: an encoder position
    for four frames. `augment` masks spans of time and frequency in training.
    """

    features: Annotated[int, Bounds(1, FEW)] = 80  # per frame, as the corpus was prepared
    convolutions: Annotated[int, Bounds(0, 16)] = 2  # each halves the number of frames
    channels: Annotated[int, Bounds(1, FEW)] = 32
    augment: Plain | SpecAugment | AugmentConfig = Plain()

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def width(self) -> int:
        return self.features

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        return FrameReader(self, d_model)

    def places(self, length: int) -> list[tuple[int, int]]:
        """The frames (from, up to) behind each encoder position; it also sees a few on either side."""
        step = 2**self.convolutions
        return [(start, min(start + step, length)) for start in range(0, length, step)]


@dataclass(frozen=True)
class Patches:
    """Pictures: patches of `patch` x `patch` pixels, column by column from the left, `rows` in each column.

    A linear map makes a vector of each (Dosovitskiy et al., 2021), which is normed (Kumar et al., 2023); a learned
    vector marks its row, since the encoder's own positions count along the sequence. `stem` > 0 puts two 3 x 3
    convolutions of so many channels before it (Xiao et al., 2021, "Early Convolutions"), which learn from fewer
    pictures. `columns` makes one vector of all patches of a column, so that a line of writing has an encoder position
    for each step along it. `augment` distorts pictures in training.
    """

    patch: Annotated[int, Bounds(1, FEW)] = 7
    rows: Annotated[int, Bounds(1, FEW)] = 4
    channels: Annotated[int, Bounds(1, FEW)] = 1  # numbers per pixel: 1 for grey, 3 for colour
    stem: Annotated[int, Bounds(0, FEW)] = 0
    columns: bool = False
    augment: Plain | Distortion | AugmentConfig = Plain()

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def width(self) -> int:
        return self.patch * self.patch * self.channels

    def build(self, d_model: int, vocabulary: int, tied: Embedding | None) -> SourceReader:
        return PatchReader(self, d_model)

    def places(self, length: int) -> list[tuple[int, int]]:
        """The patches (from, up to) behind each encoder position: one, or a column of them."""
        step = self.rows if self.columns else 1
        return [(start, min(start + step, length)) for start in range(0, length, step)]


Source = Tokens | Frames | Patches


class FrameReader(SourceReader):
    """Reads log-mel frames (B, L, F). Padding is zeroed before each convolution, like frames beyond the end."""

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
            mask = mask[:, ::2]  # a position takes the mask of its middle frame
        x = self.output(x.transpose(1, 2).flatten(2))
        return x, mask


class PatchReader(SourceReader):
    """Reads patches (B, L, F); for augmentation or the stem the picture is assembled first."""

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
        self.joined = config.rows if config.columns else 1  # patches per encoder position
        self.output = nn.Linear(self.joined * config.patch**2 * channels, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.row = nn.Parameter(torch.empty(config.rows // self.joined, d_model).normal_(std=0.02))

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        x = source.to(self.output.weight.dtype)
        augmented = self.training and self.augment is not None
        if augmented or self.stem:
            picture, real = self._picture(x, mask)
            if augmented and self.augment is not None:
                picture = self.augment(picture)
            for convolution in self.stem:
                picture = convolution(picture.masked_fill(~real, 0)).relu()
            x = self._patches(picture, x.size(1))
        x = F.pad(x, (0, 0, 0, -x.size(1) % self.joined))
        x = x.reshape(len(x), -1, self.joined * x.size(2))
        rows = self.row.repeat(-(-x.size(1) // len(self.row)), 1)[: x.size(1)]
        return self.norm(self.output(x)) + rows, mask[:, :: self.joined]

    def _picture(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Assemble patches (B, L, F) to pictures (B, C, height, width), with their mask (B, 1, 1, width)."""
        short = -x.size(1) % self.rows  # batches are padded to any length, columns must be complete
        x, mask = F.pad(x, (0, 0, 0, short)), F.pad(mask, (0, short))
        x = x.view(len(x), -1, self.rows, self.patch, self.patch, self.channels)  # columns, rows, down, along
        picture = x.permute(0, 5, 2, 3, 1, 4).flatten(4, 5).flatten(2, 3)
        real = mask[:, :: self.rows].repeat_interleave(self.patch, dim=1)
        return picture, real[:, None, None, :]

    def _patches(self, picture: Tensor, count: int) -> Tensor:
        """Cut pictures into patches, the inverse of `_picture`."""
        batch, channels, _, width = picture.shape
        x = picture.view(batch, channels, self.rows, self.patch, width // self.patch, self.patch)
        return x.permute(0, 4, 2, 3, 5, 1).reshape(batch, -1, self.patch**2 * channels)[:, :count]
