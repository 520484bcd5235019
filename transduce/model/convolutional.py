"""Convolutional encoders and decoders with gated linear units (ConvS2S, Gehring et al. 2017).

A layer sees k neighbouring positions, all in parallel in training: words n apart meet after n / (k - 1) layers.
Differences from the paper: d_model is the width throughout; no weight norm, but an initialisation that keeps the
variance (their section 3.5); keys and values are the encoder's top alone, where they add its input to the values;
gradients are not scaled.
Shapes: B batch, S source length, T target length, t tokens read in one call, D d_model, k kernel, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.core.bounds import FEW, LAYERS, WIDTH, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.kernels.packing import PADDED, PaddedLayout
from transduce.model.attention import Attention, AttentionMask, Trace
from transduce.model.contract import DecoderState, Memory
from transduce.model.encoder_decoder import TopDecoder
from transduce.model.layers import Dropout
from transduce.model.positions import Learned, PositionsConfig, Sinusoidal, Unordered

AddedPositions = Learned | Sinusoidal | Unordered  # the other schemes act inside self-attention
HALF = math.sqrt(0.5)  # keeps the variance of a sum of two
SMALL = 0.1  # scale of their word embeddings; gates and dot products start well only for small inputs


@dataclass(frozen=True)
class OneHead(Attention):
    """A single head, as in the paper; the dot product is scaled, unlike theirs: equal after 350 steps on Multi30k."""

    heads: Annotated[int, Bounds(1, WIDTH)] = 1


@dataclass(frozen=True)
class Convolutions:
    """Common config of convolutional encoders and decoders."""

    layers: Annotated[int, Bounds(1, LAYERS)] = 4
    kernel: Annotated[int, Bounds(1, FEW)] = 3
    positions: AddedPositions | PositionsConfig = Learned()
    separable: bool = False  # depthwise over k positions, then pointwise: O(k n d + n d^2) (section 4)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class ConvolutionalEncoder(Convolutions):
    """Config of an encoder of gated convolutions centred on each position."""

    kind: ClassVar[str] = "convolutional"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel: expected an odd number, so that the kernel is symmetric, got {self.kernel}")

    def check_width(self, d_model: int) -> None:
        """Accept any width."""

    def build(self, d_model: int, dropout: float) -> ConvolutionalEncoderStack:
        return ConvolutionalEncoderStack(self, d_model, dropout)


@dataclass(frozen=True)
class ConvolutionalDecoder(TopDecoder, Convolutions):
    """Config of a decoder of causal gated convolutions, each layer with cross-attention to the encoder's top."""

    kind: ClassVar[str] = "convolutional"
    attention: OneHead = OneHead()

    @property
    def cross_heads(self) -> tuple[int, ...]:
        """The number of cross-attention heads in each layer."""
        return (self.attention.heads,) * self.layers

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> ConvolutionalDecoderStack:
        return ConvolutionalDecoderStack(self, d_model, dropout)


class GatedConvolution(nn.Module):
    """Gated convolution a * sigmoid(b), where [a; b] is a convolution of width k (GLU, Dauphin et al. 2017).

    The separable one (Chollet 2016) first convolves each channel over k positions; [a; b] is then computed per
    position.
    """

    def __init__(self, d_model: int, kernel: int, dropout: float, separable: bool = False) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(d_model, d_model, kernel, groups=d_model, bias=False) if separable else nn.Identity()
        width = 1 if separable else kernel
        self.convolution = nn.Conv1d(d_model, 2 * d_model, width)
        # A gate passes a quarter of small variances: hence 4; dropout raised the input's variance: hence 1 - dropout.
        nn.init.normal_(self.convolution.weight, std=math.sqrt(4 * (1 - dropout) / (width * d_model)))
        nn.init.zeros_(cast("Tensor", self.convolution.bias))
        for weight in self.depthwise.parameters():
            nn.init.normal_(weight, std=math.sqrt(1 / kernel))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, T + k - 1, D) to (B, T, D)."""
        return F.glu(self.convolution(self.depthwise(x.transpose(1, 2))), dim=1).transpose(1, 2)


class ConvolutionalEncoderStack(nn.Module):
    """A stack of gated convolutions: source vectors in, the memory of every layer out."""

    def __init__(self, config: ConvolutionalEncoder, d_model: int, dropout: float) -> None:
        super().__init__()
        self.margin = config.kernel // 2
        self.positions = config.positions.build(d_model, 1, d_model, causal=False)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            GatedConvolution(d_model, config.kernel, dropout, config.separable) for _ in range(config.layers)
        )

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None = None, layout: PaddedLayout = PADDED) -> Memory:
        """Encode x (B, S, D), mask (B, S) True at real tokens; padding is zeroed, like positions beyond the ends."""
        x = self.dropout(SMALL * self.positions.add(x, 0))
        outputs: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            padded = self.dropout(x).masked_fill(~mask.unsqueeze(-1), 0.0)
            x = (layer(F.pad(padded, (0, 0, self.margin, self.margin))) + x) * HALF
            outputs.append(x)
            if trace is not None:
                trace[f"encoder.{number}.out"] = x
        return Memory(tuple(outputs), mask)


@dataclass(frozen=True)
class ConvSource:
    """Cross-attention keys and values (B, G, S, K) of each layer, mask (B, 1, 1, S), sqrt(length) (B, 1, 1)."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    mask: Tensor
    scale: Tensor


class ConvolutionalBlock(nn.Module):
    """A decoder layer: convolution, cross-attention from its output and the word itself, residual."""

    def __init__(self, config: ConvolutionalDecoder, d_model: int, dropout: float) -> None:
        super().__init__()
        self.convolution = GatedConvolution(d_model, config.kernel, dropout, config.separable)
        self.attention = config.attention.build(d_model)

    def project_kv(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project the encoder's top (B, S, D) to keys and values, once per sentence."""
        return self.attention.project_kv(memory)

    def forward(
        self, read: Tensor, word: Tensor, source: ConvSource, number: int, trace: Trace | None, name: str
    ) -> Tensor:
        """Apply the layer to `read` (B, t + k - 1, D), its last t new, and word vectors (B, t, D): (B, t, D)."""
        x: Tensor = self.convolution(read)
        key, value = source.layers[number]
        query = (x + word) * HALF  # theirs projects x before the sum; ours projects the sum
        attended: Tensor = self.attention(
            query, key, value, AttentionMask(source.mask, trace=trace, name=f"{name}.cross")
        )
        # A mean of m vectors has 1/m of their variance: their factor m sqrt(1 / m).
        return (x + attended * source.scale.to(attended.dtype)) * HALF


class ConvolutionalDecoderStack(nn.Module):
    """A stack of convolutional decoder layers: target vectors in, vectors that predict the next token out."""

    def __init__(self, config: ConvolutionalDecoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        self.history = config.kernel - 1  # positions that a layer caches
        self.positions = config.positions.build(d_model, 1, d_model, causal=True)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(ConvolutionalBlock(config, d_model, dropout) for _ in range(config.layers))

    def blocks(self) -> Iterator[ConvolutionalBlock]:
        return (cast("ConvolutionalBlock", layer) for layer in self.layers)

    def start(self, memory: Memory) -> DecoderState:
        """Project keys and values for each layer; the cache starts with zeros."""
        top = memory.layers[-1]
        layers = tuple(layer.project_kv(top) for layer in self.blocks())
        scale = memory.mask.sum(1).to(top.dtype).sqrt().view(-1, 1, 1)
        before = tuple(top.new_zeros(top.size(0), self.history, top.size(2)) for _ in self.layers)  # (B, k - 1, D)
        return DecoderState(ConvSource(layers, memory.mask[:, None, None, :], scale), before, 0)

    def forward(
        self, x: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D) after `state`; padding comes last, so no mask is needed."""
        x = word = self.dropout(SMALL * self.positions.add(x, state.length))
        cache: list[Tensor] = []
        for number, layer in enumerate(self.blocks()):
            name = f"decoder.{number}"
            read = torch.cat((state.cache[number], self.dropout(x)), dim=1)  # (B, k - 1 + t, D)
            cache.append(read[:, read.size(1) - self.history :])
            x = (layer(read, word, state.static, number, trace, name) + x) * HALF
            if trace is not None:
                trace[f"{name}.out"] = x
        return self.dropout(x), replace(state, cache=tuple(cache), length=state.length + x.size(1))
