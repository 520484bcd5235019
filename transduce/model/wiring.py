"""Which encoder layer each decoder layer looks at.

The paper gives every decoder layer the top of the encoder (section 3.2.3). The others read layers that a pre-norm stack
leaves as raw sums, so that they norm what they take. Shapes: B batch, S source length, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from transduce.errors import ConfigError


class TopOfEncoder(nn.Module):
    """The last layer for all."""

    def __init__(self, decoder_layers: int) -> None:
        super().__init__()
        self.decoder_layers = decoder_layers

    def forward(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Encoder layers (B, S, D) in, one memory (B, S, D) a decoder layer out."""
        return (layers[-1],) * self.decoder_layers


class LayerByLayer(nn.Module):
    """Layer i for layer i."""

    def __init__(self, d_model: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(layers))

    def forward(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(norm(layer) for norm, layer in zip(self.norms, layers, strict=True))


class MixtureOfLayers(nn.Module):
    """For each decoder layer its own learned average of all encoder layers, equal shares at first."""

    looked_up: ClassVar[tuple[str, ...]] = ("shares",)  # a row is a softmax of its own, not part of a linear map

    def __init__(self, d_model: int, encoder_layers: int, decoder_layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(encoder_layers))
        self.shares = nn.Parameter(torch.zeros(decoder_layers, encoder_layers))  # before softmax

    def forward(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        normed = torch.stack([norm(layer) for norm, layer in zip(self.norms, layers, strict=True)])  # (N, B, S, D)
        return torch.einsum("dn,nbsw->dbsw", self.shares.softmax(-1).to(normed.dtype), normed).unbind(0)


@dataclass(frozen=True)
class Top:
    """The last encoder layer for every decoder layer (the paper)."""

    def check_depth(self, encoder_layers: int, decoder_layers: int) -> None:
        """Any depths go together."""

    def build(self, d_model: int, encoder_layers: int, decoder_layers: int) -> nn.Module:
        return TopOfEncoder(decoder_layers)


@dataclass(frozen=True)
class Matched:
    """Encoder layer i for decoder layer i."""

    def check_depth(self, encoder_layers: int, decoder_layers: int) -> None:
        if encoder_layers != decoder_layers:
            raise ConfigError(
                f"wiring: 'matched' needs as many encoder layers as decoder layers, got {encoder_layers} and"
                f" {decoder_layers}; use top or mixed, or make them equal"
            )

    def build(self, d_model: int, encoder_layers: int, decoder_layers: int) -> nn.Module:
        return LayerByLayer(d_model, decoder_layers)


@dataclass(frozen=True)
class Mixed:
    """A learned mixture of all encoder layers for each decoder layer."""

    def check_depth(self, encoder_layers: int, decoder_layers: int) -> None:
        """Any depths go together."""

    def build(self, d_model: int, encoder_layers: int, decoder_layers: int) -> nn.Module:
        return MixtureOfLayers(d_model, encoder_layers, decoder_layers)


Wiring = Top | Matched | Mixed
