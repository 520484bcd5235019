"""Convolutional encoders and decoders with gates (ConvS2S, Gehring et al. 2017).

A layer sees k neighbours, all places at once in training: words n apart meet after n / (k - 1) layers. Differences:
d_model is the width throughout; no weight norm, but weights drawn so that variance is kept (their section 3.5); keys
and values are the encoder's top alone, where they add its input to the values; gradients are not scaled.
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
from transduce.model.positions import Learned, Sinusoidal, Unordered

AddedPositions = Learned | Sinusoidal | Unordered  # the others are matters of self-attention
HALF = math.sqrt(0.5)  # a sum of two keeps the variance of one
SMALL = 0.1  # what their vectors of words are drawn with; a gate and a dot product start right for small numbers only


@dataclass(frozen=True)
class OneHead(Attention):
    """One head, as in the paper; the dot product is scaled, where theirs is not: 350 steps on Multi30k were alike."""

    heads: Annotated[int, Bounds(1, WIDTH)] = 1


@dataclass(frozen=True)
class Convolutions:
    """What a convolutional encoder and decoder have in common."""

    layers: Annotated[int, Bounds(1, LAYERS)] = 4
    kernel: Annotated[int, Bounds(1, FEW)] = 3
    positions: AddedPositions = Learned()
    separable: bool = False  # each number over k places, then all numbers of a place: O(k n d + n d^2) (section 4)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class ConvolutionalEncoder(Convolutions):
    """Layers of gated convolution, each place in the middle of what it sees."""

    kind: ClassVar[str] = "convolutional"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel: expected an odd number, as many places left as right, got {self.kernel}")

    def check_width(self, d_model: int) -> None:
        """Any width will do."""

    def build(self, d_model: int, dropout: float) -> ConvolutionalEncoderStack:
        return ConvolutionalEncoderStack(self, d_model, dropout)


@dataclass(frozen=True)
class ConvolutionalDecoder(TopDecoder, Convolutions):
    """Layers of gated convolution over the words so far, each with its own attention to the encoder's top."""

    kind: ClassVar[str] = "convolutional"
    attention: OneHead = OneHead()

    @property
    def cross_heads(self) -> tuple[int, ...]:
        """How many heads of each layer look at the source."""
        return (self.attention.heads,) * self.layers

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> ConvolutionalDecoderStack:
        return ConvolutionalDecoderStack(self, d_model, dropout)


class GatedConvolution(nn.Module):
    """a * sigmoid(b), where [a; b] is a convolution of width k (gated linear units, Dauphin et al. 2017).

    A separable one (Chollet 2016) reads k places for each number alone before; [a; b] is then made place by place.
    """

    def __init__(self, d_model: int, kernel: int, dropout: float, separable: bool = False) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(d_model, d_model, kernel, groups=d_model, bias=False) if separable else nn.Identity()
        seen = 1 if separable else kernel
        self.convolution = nn.Conv1d(d_model, 2 * d_model, seen)
        # A gate lets a quarter of small variances pass: hence 4; dropout raised what comes in: hence 1 - dropout.
        nn.init.normal_(self.convolution.weight, std=math.sqrt(4 * (1 - dropout) / (seen * d_model)))
        nn.init.zeros_(cast("Tensor", self.convolution.bias))
        for weight in self.depthwise.parameters():
            nn.init.normal_(weight, std=math.sqrt(1 / kernel))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T + k - 1, D) in, (B, T, D) out."""
        return F.glu(self.convolution(self.depthwise(x.transpose(1, 2))), dim=1).transpose(1, 2)


class ConvolutionalEncoderStack(nn.Module):
    """Source vectors in, the memory of every layer out."""

    def __init__(self, config: ConvolutionalEncoder, d_model: int, dropout: float) -> None:
        super().__init__()
        self.beside = config.kernel // 2
        self.positions = config.positions.build(d_model, 1, d_model, causal=False)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            GatedConvolution(d_model, config.kernel, dropout, config.separable) for _ in range(config.layers)
        )

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None = None, layout: PaddedLayout = PADDED) -> Memory:
        """x (B, S, D), mask (B, S) True at real tokens; padding is as what lies beyond the ends, 0."""
        x = self.dropout(SMALL * self.positions.add(x, 0))
        outputs: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            read = self.dropout(x).masked_fill(~mask.unsqueeze(-1), 0.0)
            x = (layer(F.pad(read, (0, 0, self.beside, self.beside))) + x) * HALF
            outputs.append(x)
            if trace is not None:
                trace[f"encoder.{number}.out"] = x
        return Memory(tuple(outputs), mask)


@dataclass(frozen=True)
class ConvSource:
    """Keys and values (B, G, S, K) for each layer, where they are real (B, 1, 1, S), and sqrt(how many) (B, 1, 1)."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    mask: Tensor
    scale: Tensor


class ConvolutionalBlock(nn.Module):
    """Convolution, attention from its output and the word itself, residual."""

    def __init__(self, config: ConvolutionalDecoder, d_model: int, dropout: float) -> None:
        super().__init__()
        self.convolution = GatedConvolution(d_model, config.kernel, dropout, config.separable)
        self.attention = config.attention.build(d_model)

    def project_kv(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's top (B, S, D), projected once a sentence."""
        return self.attention.project_kv(memory)

    def forward(
        self, read: Tensor, word: Tensor, source: ConvSource, number: int, trace: Trace | None, name: str
    ) -> Tensor:
        """read (B, t + k - 1, D), of which the last t are new, and the words' own vectors (B, t, D); (B, t, D)."""
        x: Tensor = self.convolution(read)
        key, value = source.layers[number]
        query = (x + word) * HALF  # theirs projects x before the sum; ours projects the sum
        looked: Tensor = self.attention(
            query, key, value, AttentionMask(source.mask, trace=trace, name=f"{name}.cross")
        )
        # A mean of m vectors has an m-th of their variance: their factor m sqrt(1 / m).
        return (x + looked * source.scale.to(looked.dtype)) * HALF


class ConvolutionalDecoderStack(nn.Module):
    """Target vectors in, step by step or all at once; vectors that predict the next token out."""

    def __init__(self, config: ConvolutionalDecoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        self.kept = config.kernel - 1  # places that a layer must remember
        self.positions = config.positions.build(d_model, 1, d_model, causal=True)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(ConvolutionalBlock(config, d_model, dropout) for _ in range(config.layers))

    def blocks(self) -> Iterator[ConvolutionalBlock]:
        return (cast("ConvolutionalBlock", layer) for layer in self.layers)

    def start(self, memory: Memory) -> DecoderState:
        """Keys and values for each layer, and zeros before the first word."""
        top = memory.layers[-1]
        layers = tuple(layer.project_kv(top) for layer in self.blocks())
        scale = memory.mask.sum(1).to(top.dtype).sqrt().view(-1, 1, 1)
        before = tuple(top.new_zeros(top.size(0), self.kept, top.size(2)) for _ in self.layers)  # (B, k - 1, D)
        return DecoderState(ConvSource(layers, memory.mask[:, None, None, :], scale), before, 0)

    def forward(
        self, x: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D) further from `state`; padding comes last, so that no mask is needed."""
        x = word = self.dropout(SMALL * self.positions.add(x, state.length))
        cache: list[Tensor] = []
        for number, layer in enumerate(self.blocks()):
            name = f"decoder.{number}"
            read = torch.cat((state.cache[number], self.dropout(x)), dim=1)  # (B, k - 1 + t, D)
            cache.append(read[:, read.size(1) - self.kept :])
            x = (layer(read, word, state.static, number, trace, name) + x) * HALF
            if trace is not None:
                trace[f"{name}.out"] = x
        return self.dropout(x), replace(state, cache=tuple(cache), length=state.length + x.size(1))
