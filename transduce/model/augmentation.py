"""Changes that sources undergo while a model learns, so that few recordings or pictures do for many.

Draws come from torch's global generator, which the loop seeds for each micro-batch: runs resume to the same bits.
Shapes: B batch, L frames, F numbers a frame, C channels, H and W a picture's height and width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import ConfigError
from transduce.sizes import FEW, PLACES, check_most


@dataclass(frozen=True)
class Plain:
    """Sources stay as they are."""

    def build(self) -> None:
        return None


@dataclass(frozen=True)
class SpecAugment:
    """Hide bands of frequency and stretches of time (Park et al., 2019); without their time warping.

    `frequency_masks` bands of up to `frequency_width` features, `time_masks` stretches of up to `time_width` frames,
    though never of more than `time_share` of a recording. What is hidden becomes 0, the mean of normalised frames.
    """

    frequency_masks: int = 2
    frequency_width: int = 15
    time_masks: int = 2
    time_width: int = 40
    time_share: float = 0.2

    def __post_init__(self) -> None:
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        check_most(self, FEW, "frequency_masks", "time_masks")
        check_most(self, PLACES, "frequency_width", "time_width")
        if not 0 <= self.time_share <= 1:
            raise ConfigError(f"time_share: expected a number from 0 to 1, got {self.time_share}")

    def build(self) -> SpectrumMasks:
        return SpectrumMasks(self)


class SpectrumMasks(nn.Module):
    """Frames (B, L, F) with bands and stretches of them hidden."""

    def __init__(self, config: SpecAugment) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        config, lengths = self.config, mask.sum(1)
        features = torch.full_like(lengths, x.size(2))
        widest = (lengths * config.time_share).floor().clamp(max=config.time_width)
        for _ in range(config.frequency_masks):
            hidden = _stretch(features.clamp(max=config.frequency_width).float(), features, x.size(2))  # (B, F)
            x = x.masked_fill(hidden.unsqueeze(1), 0)
        for _ in range(config.time_masks):
            x = x.masked_fill(_stretch(widest, lengths, x.size(1)).unsqueeze(2), 0)
        return x


def _stretch(widest: Tensor, lengths: Tensor, size: int) -> Tensor:
    """For each row a random stretch of at most `widest` (B,) places, within its length (B,): (B, size)."""
    width = (torch.rand(len(lengths), device=lengths.device) * (widest + 1)).floor().clamp(max=widest)
    start = (torch.rand(len(lengths), device=lengths.device) * (lengths - width + 1)).floor()
    place = torch.arange(size, device=lengths.device)
    return (place >= start.unsqueeze(1)) & (place < (start + width).unsqueeze(1))


@dataclass(frozen=True)
class Distortion:
    """Turn, shear, scale and shift each picture by a little, drawn evenly up to the numbers given, either way.

    A picture wider than high turns by less, as much as that is, so that its ends stay in it.
    """

    turn: float = 12.0  # degrees, of a square
    shear: float = 0.2  # pixels along for a pixel down
    scale: float = 0.1  # share of the size, for height and width apart
    shift: float = 2.0  # pixels

    def __post_init__(self) -> None:
        for name in ("turn", "shear", "scale", "shift"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}")

    def build(self) -> Distorted:
        return Distorted(self)


class Distorted(nn.Module):
    """Pictures (B, C, H, W), each through a random affine map about its middle; what lies outside is 0."""

    def __init__(self, config: Distortion) -> None:
        super().__init__()
        self.config = config

    def forward(self, picture: Tensor) -> Tensor:
        config = self.config
        height, width = picture.shape[2:]
        draws = torch.rand(6, len(picture), device=picture.device) * 2 - 1  # (6, B)
        angle = draws[0] * math.radians(config.turn) * min(1.0, height / width)
        shear = draws[1] * config.shear
        down, along = 1 + draws[2] * config.scale, 1 + draws[3] * config.scale
        # From places in the new picture to places in the old: in pixels from the middle, but both counted in halves of
        # the picture, as grid_sample does.
        cos, sin, tall = angle.cos(), angle.sin(), height / width
        across = (cos * along, (shear * cos - sin) * along * tall, draws[4] * config.shift * 2 / width)
        below = (sin * down / tall, (shear * sin + cos) * down, draws[5] * config.shift * 2 / height)
        matrix = torch.stack([torch.stack(row, dim=1) for row in (across, below)], dim=1)  # (B, 2, 3)
        grid = F.affine_grid(matrix, list(picture.shape), align_corners=False)
        return F.grid_sample(picture.float(), grid, align_corners=False).to(picture.dtype)
