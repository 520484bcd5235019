"""The encoder and decoder stacks of the Transformer (section 3.1, figure 1).

The decoder reads any number of tokens at a time and remembers the keys and values of those it has read, so that
teacher forcing, decoding step by step and reading a forced prefix are one path.
Shapes: B batch, S source length, T target length, D d_model, H heads, K = D / H.

Which encoder layer each decoder layer looks at.

The paper gives every decoder layer the top of the encoder (section 3.2.3). The others read layers that a pre-norm stack
leaves as raw sums, so that they norm what they take. Shapes: B batch, S source length, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn

from transduce.core.bounds import LAYERS, PLACES, WIDTH, BelowOne, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.kernels.dispatch import KernelSupport
from transduce.kernels.packing import PADDED, PaddedLayout
from transduce.model.attention import Attention, AttentionMask, MultiHeadAttention, RotaryFn, Trace, additive_mask
from transduce.model.blocks import Activation, FeedForward, PostNorm, PreNorm, Residual
from transduce.model.contract import CacheShape, DecoderState, Memory, StaticDecoderState
from transduce.model.encoder_decoder import Parts, Seq2Seq, StackLayer, StepwiseDecoder
from transduce.model.kv_cache import CrossKV, EmptyKVCache, KVCache, StaticKVCache
from transduce.model.layers import Dropout
from transduce.model.norms import LayerNorm, Norm
from transduce.model.positions import Positions, PositionScheme, Sinusoidal
from transduce.model.scores import Softmax


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


@dataclass(frozen=True)
class StackConfig:
    """What an encoder and a decoder stack have in common; the defaults are the paper's base model."""

    layers: Annotated[int, Bounds(1, LAYERS)] = 6
    attention: Attention = Attention()
    d_ff: Annotated[int, Bounds(1, WIDTH)] = 2048
    activation: Activation = "relu"
    activation_dropout: BelowOne = 0.0  # inside the feed-forward network: not in section 5.4
    positions: Positions = Sinusoidal()
    norm: Norm = LayerNorm()
    residual: Residual = PostNorm()
    # self-attention sees so many places to either side (Table 1, "restricted"); 0 = all of them
    window: Annotated[
        int, Bounds(0, PLACES, expected="1 place or more, or 0 for all of them", too_large=f"at most {PLACES:,}")
    ] = 0

    def __post_init__(self) -> None:
        check_bounds(self)

    def check_width(self, d_model: int) -> None:
        try:
            self.attention.check_width(d_model)
        except ConfigError as error:
            raise ConfigError(f"attention.{error}") from None
        self.positions.check_width(self.attention.widths(d_model)[0])

    def build_positions(self, d_model: int, causal: bool) -> PositionScheme:
        return self.positions.build(d_model, self.attention.heads, self.attention.widths(d_model)[0], causal)


@dataclass(frozen=True)
class TransformerEncoder(StackConfig):
    """N blocks of self-attention and feed-forward."""

    kind: ClassVar[str] = "transformer"

    def build(self, d_model: int, dropout: float) -> EncoderStack:
        return EncoderStack(self, d_model, dropout)


@dataclass(frozen=True)
class WiredStack(StackConfig):
    """What decoder stacks have besides: which encoder layers they look at."""

    wiring: Wiring = Top()

    @property
    def cross_heads(self) -> tuple[int, ...]:
        """How many heads of each layer look at the source."""
        return (self.attention.heads,) * self.layers

    def check_depth(self, encoder_layers: int) -> None:
        self.wiring.check_depth(encoder_layers, self.layers)


@dataclass(frozen=True)
class TransformerDecoder(StepwiseDecoder, WiredStack):
    """N blocks of masked self-attention, attention to the encoder, and feed-forward.

    With `unnormed_past` self-attention makes keys and values of states before the norm, save at the first place. So
    Marian decodes pre-norm models, though it trains them with normed ones as everybody does; other models leave it off.
    """

    kind: ClassVar[str] = "transformer"

    unnormed_past: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = isinstance(self.residual, PreNorm) and isinstance(self.attention.weights, Softmax)
        if self.unnormed_past and not plain:
            raise ConfigError("unnormed_past: expected false, for it needs residual 'pre_norm' and weights 'softmax'")

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> DecoderStack:
        return DecoderStack(self, d_model, dropout, encoder_layers)

    def assemble(self, parts: Parts) -> Seq2Seq:
        return StaticCacheSeq2Seq(parts)


@dataclass(frozen=True)
class PositionContext:
    """What a stack's positions, the layout of its tokens and its window mean for the attention of all its layers.

    `seen` is where each of several paths may look, (B, 1, K, L); None where that is what stands before.
    """

    rotate: RotaryFn
    bias: Tensor | None
    layout: PaddedLayout
    window: int = 0
    seen: Tensor | None = None


class EncoderBlock(StackLayer):
    """Figure 1, left."""

    def __init__(self, config: StackConfig, d_model: int, dropout: float) -> None:
        super().__init__()
        self.attention = config.attention.build(d_model)
        self.feed_forward = FeedForward(d_model, config.d_ff, config.activation, config.activation_dropout)
        self.around_attention = config.residual.build(d_model, dropout, config.norm)
        self.around_feed_forward = config.residual.build(d_model, dropout, config.norm)

    def forward(
        self, x: Tensor, mask: Tensor | None, looking: Tensor, places: PositionContext, trace: Trace | None, name: str
    ) -> Tensor:
        """x (B, S, D), mask (B, S); looking as the layout's `sight` gives it."""

        def attention(y: Tensor) -> Tensor:
            asked = self.attention.project_qkv(y, places.rotate, places.layout)
            sight = AttentionMask(looking, False, places.bias, places.window, trace, f"{name}.self")
            return self.attention.attend(*asked, sight, places.layout)

        kernels = places.layout.kernels
        x = self.around_attention(x, attention, mask, kernels)
        x = self.around_feed_forward(x, lambda y: self.feed_forward(y, kernels), mask, kernels)
        return x


class Stack(nn.Module):
    """What both stacks say of themselves to kernels (kernels/dispatch.py)."""

    positions: PositionScheme
    window: int

    def kernel_support(self) -> KernelSupport:
        """Of all attentions, with the positions and the window that they have here."""
        own = reduce(and_, (module.support for module in self.modules() if isinstance(module, MultiHeadAttention)))
        scheme = type(self.positions)
        plain, still = scheme.bias is PositionScheme.bias and not self.window, scheme.rotate is PositionScheme.rotate
        return replace(
            own, tiles=own.tiles and plain, whole_rows=own.whole_rows and plain, unchanged=own.unchanged and still
        )


class EncoderStack(Stack):
    """Source vectors in, the memory of every layer out."""

    def __init__(self, config: TransformerEncoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        self.positions, self.window = config.build_positions(d_model, causal=False), config.window
        self.dropout = Dropout(dropout)  # on the sum of embedding and position (section 5.4)
        self.layers = nn.ModuleList(EncoderBlock(config, d_model, dropout) for _ in range(config.layers))
        self.final = config.residual.final(d_model, config.norm)
        self.support = self.kernel_support()

    def blocks(self) -> Iterator[EncoderBlock]:
        return (cast("EncoderBlock", layer) for layer in self.layers)

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None = None, layout: PaddedLayout = PADDED) -> Memory:
        """x (B, S, D), mask (B, S) True at real tokens. In a packed layout the memory's layers are (1, N, D)."""
        where, bias, looking = layout.within(0), self.positions.bias(x.size(1), x.size(1)), layout.sight(mask)
        places = PositionContext(lambda heads: self.positions.rotate(heads, where), bias, layout, self.window)
        x, real = self.dropout(layout.collect(self.positions.add(x, 0))), layout.real(mask)
        outputs: list[Tensor] = []
        for number, layer in enumerate(self.blocks()):
            # A name of its own for each layer would have the compiler make code for each.
            x = layer.run(x, real, looking, places, trace, "" if trace is None else f"encoder.{number}")
            outputs.append(x)
            if trace is not None:
                trace[f"encoder.{number}.out"] = x
        outputs[-1] = self.final(x, real)
        return Memory(tuple(outputs), mask)


class DecoderBlock(StackLayer):
    """Figure 1, right; not `causal`, each place sees those after it too."""

    entrances = ("project_source",)

    def __init__(self, config: StackConfig, d_model: int, dropout: float, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.unnormed_past = isinstance(config, TransformerDecoder) and config.unnormed_past
        self.attention = config.attention.build(d_model)
        self.cross = config.attention.build(d_model)
        self.feed_forward = FeedForward(d_model, config.d_ff, config.activation, config.activation_dropout)
        self.around_attention = config.residual.build(d_model, dropout, config.norm)
        self.around_cross = config.residual.build(d_model, dropout, config.norm)
        self.around_feed_forward = config.residual.build(d_model, dropout, config.norm)

    def project_source(self, memory: Tensor, layout: PaddedLayout = PADDED) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output (B, S, D), projected once a sentence."""
        remembered: tuple[Tensor, Tensor] = self.cross.project_kv(memory, layout=layout)
        return remembered

    def forward(
        self,
        x: Tensor,
        past: KVCache | EmptyKVCache,
        source: KVCache,
        source_mask: Tensor,
        mask: Tensor | None,
        places: PositionContext,
        trace: Trace | None,
        name: str,
    ) -> tuple[Tensor, KVCache]:
        """x (B, t, D) after `past`; gives the block's output and all it now remembers of the target."""
        cache: list[KVCache] = []
        causal = self.causal and places.seen is None
        # A causal place sees no padding, which comes last; any other must be kept from it.
        looking = places.seen if self.causal or mask is None else mask[:, None, None, :]  # (B, 1, 1, t)
        layout = places.layout

        def attention(y: Tensor) -> Tensor:
            query, key, value = own = self.attention.project_qkv(y, places.rotate, layout)
            if self.unnormed_past:
                key, value = self.attention.project_kv(x, places.rotate, layout)
            sight = AttentionMask(looking, causal, places.bias, places.window, trace, f"{name}.self")
            found, known = self.attention.attend_past(query, key, value, past, sight, layout)
            cache.append(known)
            if self.unnormed_past and past.empty:  # the first place sees its own normed value alone
                alone = self.attention.attend(own[0][:, :, :1], own[1][:, :, :1], own[2][:, :, :1], layout=layout)
                found = torch.cat((alone, found[:, 1:]), dim=1)
            return found

        def cross(y: Tensor) -> Tensor:
            sight = AttentionMask(source_mask, trace=trace, name=f"{name}.cross")
            out: Tensor = self.cross(y, source.key, source.value, sight, layout)
            return out

        x = self.around_attention(x, attention, mask, layout.kernels)
        x = self.around_cross(x, cross, mask, layout.kernels)
        x = self.around_feed_forward(x, lambda y: self.feed_forward(y, layout.kernels), mask, layout.kernels)
        return x, cache[0]


class DecoderStack(Stack):
    """Target vectors in, step by step or all at once; vectors that predict the next token out."""

    def __init__(
        self, config: WiredStack, d_model: int, dropout: float, encoder_layers: int, causal: bool = True
    ) -> None:
        super().__init__()
        config.check_width(d_model)
        self.wiring = config.wiring.build(d_model, encoder_layers, config.layers)
        self.positions, self.window = config.build_positions(d_model, causal), config.window
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(DecoderBlock(config, d_model, dropout, causal) for _ in range(config.layers))
        self.final = config.residual.final(d_model, config.norm)
        self.support = self.kernel_support()

    def blocks(self) -> Iterator[DecoderBlock]:
        return (cast("DecoderBlock", layer) for layer in self.layers)

    def start(self, memory: Memory, layout: PaddedLayout = PADDED) -> DecoderState:
        """Keys and values of what each layer will look at, projected once a sentence."""
        looked_at = zip(self.blocks(), self.wiring(memory.layers), strict=True)
        layers = tuple(KVCache(*layer.project_source(x, layout)) for layer, x in looked_at)
        return DecoderState(CrossKV(layers, layout.sight(memory.mask)), (EmptyKVCache(),) * len(layers), length=0)

    def allocate_cache(self, room: CacheShape) -> StaticDecoderState | None:
        """None where learned positions end before the room does. Weights of self-attention are joined."""
        if not self.positions.reaches(room.length) or any(block.unnormed_past for block in self.blocks()):
            return None
        source = CrossKV.of(room, [block.cross for block in self.blocks()], additive=self.support.dot_product)
        for block in self.blocks():
            block.attention.join()
        cache = tuple(StaticKVCache.of(room, block.attention) for block in self.blocks())
        nothing = torch.zeros(room.sentences, dtype=torch.int64, device=source.mask.device)
        ancestors = nothing.new_zeros(room.sentences, room.paths, room.length)
        return StaticDecoderState(source, cache, room.length, nothing, ancestors)

    def prefill(self, held: StaticDecoderState, slots: Tensor, memory: Memory) -> None:
        """Put keys and values of the memory of b sentences in the places slots (b,) of the B there are."""
        source: CrossKV = held.static
        source.put(slots, self.start(memory, PaddedLayout(held.kernels)).static)

    def forward(
        self,
        x: Tensor,
        state: DecoderState,
        trace: Trace | None = None,
        mask: Tensor | None = None,
        layout: PaddedLayout = PADDED,
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D), real where mask (B, t) is True, further from `state`; (1, N, D) in a packed layout."""
        read, source = x.size(1), state.static
        layout = state.layout(layout, self.support, trace is not None)
        x, mask = self.dropout(layout.collect(self.positions.add(x, state.start))), layout.real(mask)
        places, cache = self._context(state, read, layout, x.dtype), []
        for number, (layer, past) in enumerate(zip(self.blocks(), state.layer_caches(), strict=True)):
            name = "" if trace is None else f"decoder.{number}"
            x, known = layer.run(x, past, source.layers[number], source.mask, mask, places, trace, name)
            cache.append(known)
            if trace is not None:
                trace[f"decoder.{number}.out"] = x
        return self.final(x, mask), state.advanced(tuple(cache), read)

    def _context(self, state: DecoderState, read: int, layout: PaddedLayout, dtype: torch.dtype) -> PositionContext:
        """Of the next tokens; a mask of paths and a bias are one tensor where all kernels take that."""
        where = layout.within(state.start)

        def rotate(heads: Tensor) -> Tensor:
            return self.positions.rotate(heads, where)

        if layout.sees_ancestors:
            return PositionContext(rotate, None, layout)
        seen, bias = state.visible(self.window), state.bias(self.positions, read)
        if seen is None:
            return PositionContext(rotate, bias, layout, self.window)
        if self.support.dot_product:
            seen = additive_mask(seen, dtype)
            seen, bias = seen if bias is None else bias.to(dtype) + seen, None
        return PositionContext(rotate, bias, layout, seen=seen)


class StaticCacheSeq2Seq(Seq2Seq):
    """The model of a Transformer decoder, which can work in memory set aside once."""

    def static_cache_model(self) -> StaticCacheSeq2Seq:
        return self

    @property
    def vocabulary(self) -> int:
        return self.output.size(0)

    def allocate_cache(self, room: CacheShape) -> StaticDecoderState | None:
        held: StaticDecoderState | None = self.decoder.allocate_cache(room)  # type: ignore[operator]
        return held

    def prefill(self, held: StaticDecoderState, slots: Tensor, source: Tensor, mask: Tensor) -> None:
        """See contract.py."""
        memory = self.encode(source, mask, layout=PaddedLayout(held.kernels))
        self.decoder.prefill(held, slots, memory)  # type: ignore[operator]
