"""The encoder and decoder stacks of the Transformer (section 3.1, figure 1).

The decoder reads any number of tokens at a time and remembers the keys and values of those it has read, so that
teacher forcing, decoding step by step and reading a forced prefix are one path.
Shapes: B batch, S source length, T target length, D d_model, H heads, K = D / H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from transduce.errors import ConfigError
from transduce.model.attention import MultiHeadAttention, Trace
from transduce.model.contract import Memory, State
from transduce.model.dropout import Dropout
from transduce.model.positions import Positions, Sinusoidal
from transduce.model.sublayers import Activation, FeedForward, PostNorm, Residual


@dataclass(frozen=True)
class Stack:
    """What an encoder and a decoder stack have in common; the defaults are the paper's base model."""

    layers: int = 6
    heads: int = 8
    d_ff: int = 2048
    activation: Activation = "relu"
    positions: Positions = Sinusoidal()
    residual: Residual = PostNorm()
    attention_dropout: float = 0.0  # on attention weights: not in section 5.4
    activation_dropout: float = 0.0  # inside the feed-forward network: not in section 5.4

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "d_ff"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected a number from 0 up to 1, got {getattr(self, name)}")

    def check_width(self, d_model: int) -> None:
        if d_model % self.heads:
            raise ConfigError(f"heads: {self.heads} heads do not divide d_model = {d_model}; choose a divisor")


@dataclass(frozen=True)
class TransformerEncoder(Stack):
    """N blocks of self-attention and feed-forward."""

    kind: ClassVar[str] = "transformer"

    def build(self, d_model: int, dropout: float) -> EncoderStack:
        return EncoderStack(self, d_model, dropout)


@dataclass(frozen=True)
class TransformerDecoder(Stack):
    """N blocks of masked self-attention, attention to the encoder, and feed-forward."""

    kind: ClassVar[str] = "transformer"

    def build(self, d_model: int, dropout: float) -> DecoderStack:
        return DecoderStack(self, d_model, dropout)


class EncoderBlock(nn.Module):
    """Figure 1, left."""

    def __init__(self, config: Stack, d_model: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, config.heads, config.attention_dropout)
        self.feed_forward = FeedForward(d_model, config.d_ff, config.activation, config.activation_dropout)
        self.around_attention = config.residual.build(d_model, dropout)
        self.around_feed_forward = config.residual.build(d_model, dropout)

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None, name: str) -> Tensor:
        def attention(y: Tensor) -> Tensor:
            out: Tensor = self.attention(y, *self.attention.remember(y), mask, trace=trace, name=f"{name}.self")
            return out

        x = self.around_attention(x, attention)
        x = self.around_feed_forward(x, self.feed_forward)
        return x


class EncoderStack(nn.Module):
    """Source vectors in, the memory of every layer out."""

    def __init__(self, config: TransformerEncoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        self.positions = config.positions.build(d_model)
        self.dropout = Dropout(dropout)  # on the sum of embedding and position (section 5.4)
        self.layers = nn.ModuleList(EncoderBlock(config, d_model, dropout) for _ in range(config.layers))
        self.final = config.residual.final(d_model)

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None = None) -> Memory:
        """x (B, S, D), mask (B, S) True at real tokens."""
        x = self.dropout(self.positions(x, 0))
        looking = mask[:, None, None, :]  # (B, 1, 1, S): every head and query may look at real tokens only
        outputs: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x = layer(x, looking, trace, f"encoder.{number}")
            outputs.append(x)
            if trace is not None:
                trace[f"encoder.{number}.out"] = x
        outputs[-1] = self.final(x)
        return Memory(tuple(outputs), mask)


@dataclass(frozen=True)
class Remembered:
    """Keys and values (B, H, L, K) of one attention."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class SourceView:
    """What the decoder knows of the source: keys and values for each of its layers, and where they are real."""

    layers: tuple[Remembered, ...]
    mask: Tensor  # (B, 1, 1, S)


class DecoderBlock(nn.Module):
    """Figure 1, right."""

    def __init__(self, config: Stack, d_model: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, config.heads, config.attention_dropout)
        self.cross = MultiHeadAttention(d_model, config.heads, config.attention_dropout)
        self.feed_forward = FeedForward(d_model, config.d_ff, config.activation, config.activation_dropout)
        self.around_attention = config.residual.build(d_model, dropout)
        self.around_cross = config.residual.build(d_model, dropout)
        self.around_feed_forward = config.residual.build(d_model, dropout)

    def remember_source(self, memory: Tensor) -> Remembered:
        """Keys and values of the encoder's output (B, S, D), projected once a sentence."""
        return Remembered(*self.cross.remember(memory))

    def forward(
        self,
        x: Tensor,
        past: Remembered | None,
        source: Remembered,
        source_mask: Tensor,
        trace: Trace | None,
        name: str,
    ) -> tuple[Tensor, Remembered]:
        """x (B, t, D) after `past`; gives the block's output and all it now remembers of the target."""
        grown: list[Remembered] = []

        def attention(y: Tensor) -> Tensor:
            key, value = self.attention.remember(y)
            if past is not None:
                key = torch.cat((past.key, key), dim=2)  # (B, H, L + t, K)
                value = torch.cat((past.value, value), dim=2)
            grown.append(Remembered(key, value))
            out: Tensor = self.attention(y, key, value, causal=True, trace=trace, name=f"{name}.self")
            return out

        def cross(y: Tensor) -> Tensor:
            out: Tensor = self.cross(y, source.key, source.value, source_mask, trace=trace, name=f"{name}.cross")
            return out

        x = self.around_attention(x, attention)
        x = self.around_cross(x, cross)
        x = self.around_feed_forward(x, self.feed_forward)
        return x, grown[0]


class DecoderStack(nn.Module):
    """Target vectors in, step by step or all at once; vectors that predict the next token out."""

    def __init__(self, config: TransformerDecoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        self.positions = config.positions.build(d_model)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(DecoderBlock(config, d_model, dropout) for _ in range(config.layers))
        self.final = config.residual.final(d_model)

    def blocks(self) -> Iterator[DecoderBlock]:
        return (cast("DecoderBlock", layer) for layer in self.layers)

    def start(self, memory: Memory) -> State:
        """Every layer looks at the top of the encoder (section 3.2.3), whose keys and values are projected once."""
        top = memory.layers[-1]
        layers = tuple(layer.remember_source(top) for layer in self.blocks())
        return State(fixed=SourceView(layers, memory.mask[:, None, None, :]), grown=None, length=0)

    def forward(
        self, x: Tensor, state: State, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read x (B, t, D) further from `state`."""
        x = self.dropout(self.positions(x, state.length))
        source: SourceView = state.fixed
        past = state.grown or (None,) * len(self.layers)
        grown: list[Remembered] = []
        for number, layer in enumerate(self.layers):
            x, remembered = layer(x, past[number], source.layers[number], source.mask, trace, f"decoder.{number}")
            grown.append(remembered)
            if trace is not None:
                trace[f"decoder.{number}.out"] = x
        return self.final(x), replace(state, grown=tuple(grown), length=state.length + x.size(1))
