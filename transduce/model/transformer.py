"""The encoder and decoder stacks of the Transformer (section 3.1, figure 1).

The decoder reads any number of tokens at a time and caches their keys and values, so that teacher forcing, step-by-step
decoding and reading a forced prefix share one code path.

`Wiring` chooses which encoder layer each decoder layer attends to. The paper gives every decoder layer the top of the
encoder (section 3.2.3). The other choices read layers that a pre-norm stack leaves as raw sums, so they norm them
first.
Shapes: B batch, S source length, T target length, D d_model, H heads, K = D / H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Annotated, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from transduce.core.bounds import LAYERS, PLACES, WIDTH, BelowOne, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.kernels.dispatch import KernelSupport
from transduce.kernels.packing import PADDED, PaddedLayout
from transduce.model.attention import Attention, AttentionMask, MultiHeadAttention, RotaryFn, Trace, additive_mask
from transduce.model.blocks import (
    Activation,
    ActivationConfig,
    FeedForwardConfig,
    PositionWise,
    PostNorm,
    PreNorm,
    Residual,
    ResidualConfig,
)
from transduce.model.contract import CacheShape, DecoderState, Memory, StaticDecoderState
from transduce.model.encoder_decoder import Parts, Seq2Seq, StackLayer, StepwiseDecoder
from transduce.model.kv_cache import CrossKV, EmptyKVCache, KVCache, StaticKVCache
from transduce.model.layers import Dropout
from transduce.model.norms import LayerNorm, Norm, NormConfig
from transduce.model.positions import Positions, PositionScheme, PositionsConfig, Sinusoidal
from transduce.model.scores import Softmax


class TopOfEncoder(nn.Module):
    """The last encoder layer for every decoder layer."""

    def __init__(self, decoder_layers: int) -> None:
        super().__init__()
        self.decoder_layers = decoder_layers

    def forward(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Map encoder layers (B, S, D) to one memory (B, S, D) per decoder layer."""
        return (layers[-1],) * self.decoder_layers


class LayerByLayer(nn.Module):
    """Encoder layer i, normed, for decoder layer i."""

    def __init__(self, d_model: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(layers))

    def forward(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(norm(layer) for norm, layer in zip(self.norms, layers, strict=True))


class MixtureOfLayers(nn.Module):
    """A learned average of all encoder layers for each decoder layer, with equal weights at first."""

    looked_up: ClassVar[tuple[str, ...]] = ("shares",)  # each row has its own softmax; not part of a linear map

    def __init__(self, d_model: int, encoder_layers: int, decoder_layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(encoder_layers))
        self.shares = nn.Parameter(torch.zeros(decoder_layers, encoder_layers))  # logits of a softmax

    def forward(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        normed = torch.stack([norm(layer) for norm, layer in zip(self.norms, layers, strict=True)])  # (N, B, S, D)
        return torch.einsum("dn,nbsw->dbsw", self.shares.softmax(-1).to(normed.dtype), normed).unbind(0)


class WiringConfig(Protocol):
    """Config of which encoder layers each decoder layer attends to."""

    def check_depth(self, encoder_layers: int, decoder_layers: int) -> None:
        """Raise ConfigError for an unsupported pair of depths."""
        ...

    def build(self, d_model: int, encoder_layers: int, decoder_layers: int) -> nn.Module:
        """Build a module from the encoder's layers (B, S, D) to one memory (B, S, D) for each decoder layer."""
        ...


@dataclass(frozen=True)
class Top:
    """The last encoder layer for every decoder layer (the paper)."""

    def check_depth(self, encoder_layers: int, decoder_layers: int) -> None:
        """Accept any depths."""

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
        """Accept any depths."""

    def build(self, d_model: int, encoder_layers: int, decoder_layers: int) -> nn.Module:
        return MixtureOfLayers(d_model, encoder_layers, decoder_layers)


Wiring = Top | Matched | Mixed


@dataclass(frozen=True)
class StackConfig:
    """Common config of encoder and decoder stacks; the defaults are the paper's base model."""

    layers: Annotated[int, Bounds(1, LAYERS)] = 6
    attention: Attention = Attention()
    d_ff: Annotated[int, Bounds(1, WIDTH)] = 2048
    activation: Activation | ActivationConfig = "relu"
    activation_dropout: BelowOne = 0.0  # inside the feed-forward network: not in section 5.4
    positions: Positions | PositionsConfig = Sinusoidal()
    norm: Norm | NormConfig = LayerNorm()
    residual: Residual | ResidualConfig = PostNorm()
    # self-attention sees so many positions on either side (Table 1, "restricted"); 0 = all
    window: Annotated[
        int, Bounds(0, PLACES, expected="1 position or more, or 0 for all", too_large=f"at most {PLACES:,}")
    ] = 0
    feed_forward: PositionWise | FeedForwardConfig = PositionWise()

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

    def build_feed_forward(self, d_model: int) -> nn.Module:
        return self.feed_forward.build(d_model, self.d_ff, self.activation, self.activation_dropout)


@dataclass(frozen=True)
class TransformerEncoder(StackConfig):
    """Config of an encoder: N layers of self-attention and feed-forward."""

    kind: ClassVar[str] = "transformer"

    def build(self, d_model: int, dropout: float) -> EncoderStack:
        return EncoderStack(self, d_model, dropout)


@dataclass(frozen=True)
class WiredStack(StackConfig):
    """Config of a stack with cross-attention: also which encoder layers it attends to."""

    wiring: Wiring | WiringConfig = Top()

    @property
    def cross_heads(self) -> tuple[int, ...]:
        """The number of cross-attention heads in each layer."""
        return (self.attention.heads,) * self.layers

    def check_depth(self, encoder_layers: int) -> None:
        self.wiring.check_depth(encoder_layers, self.layers)


@dataclass(frozen=True)
class TransformerDecoder(StepwiseDecoder, WiredStack):
    """Config of a decoder: N layers of masked self-attention, cross-attention and feed-forward.

    With `unnormed_past` self-attention computes keys and values from states before the norm, except at the first
    position. Marian decodes pre-norm models this way, though it trains them with normed ones as usual; other models
    leave it off.
    """

    kind: ClassVar[str] = "transformer"

    unnormed_past: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = isinstance(self.residual, PreNorm) and isinstance(self.attention.weights, Softmax)
        if self.unnormed_past and not plain:
            raise ConfigError("unnormed_past: expected false, since it needs residual 'pre_norm' and weights 'softmax'")

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> DecoderStack:
        return DecoderStack(self, d_model, dropout, encoder_layers)

    def assemble(self, parts: Parts) -> Seq2Seq:
        return StaticCacheSeq2Seq(parts)


@dataclass(frozen=True)
class PositionContext:
    """Positions, token layout and window of a stack, shared by the attention of all its layers.

    `visible` (B, 1, K, L) is the ancestor mask of K paths per sentence; None where causal order decides.
    """

    rotate: RotaryFn
    bias: Tensor | None
    layout: PaddedLayout
    window: int = 0
    visible: Tensor | None = None


class EncoderLayer(StackLayer):
    """An encoder layer (figure 1, left): self-attention and feed-forward."""

    def __init__(self, config: StackConfig, d_model: int, dropout: float) -> None:
        super().__init__()
        self.attention = config.attention.build(d_model)
        self.feed_forward = config.build_feed_forward(d_model)
        self.around_attention = config.residual.build(d_model, dropout, config.norm)
        self.around_feed_forward = config.residual.build(d_model, dropout, config.norm)

    def forward(
        self, x: Tensor, mask: Tensor | None, visible: Tensor, context: PositionContext, trace: Trace | None, name: str
    ) -> Tensor:
        """Apply the layer to x (B, S, D) with mask (B, S); `visible` is the layout's attention mask."""

        def attention(y: Tensor) -> Tensor:
            projected = self.attention.project_qkv(y, context.rotate, context.layout)
            attention_mask = AttentionMask(visible, False, context.bias, context.window, trace, f"{name}.self")
            return self.attention.attend(*projected, attention_mask, context.layout)

        kernels = context.layout.kernels
        x = self.around_attention(x, attention, mask, kernels)
        x = self.around_feed_forward(x, lambda y: self.feed_forward(y, kernels), mask, kernels)
        return x


class Stack(nn.Module):
    """Common base of both stacks, with what kernels need to know of them (kernels/dispatch.py)."""

    positions: PositionScheme
    window: int

    def kernel_support(self) -> KernelSupport:
        """Combine the support of all attentions with that of the positions and the window."""
        support = reduce(and_, (module.support for module in self.modules() if isinstance(module, MultiHeadAttention)))
        scheme = type(self.positions)
        scores_only = scheme.bias is PositionScheme.bias and not self.window
        unrotated = scheme.rotate is PositionScheme.rotate
        return replace(
            support,
            tiles=support.tiles and scores_only,
            whole_rows=support.whole_rows and scores_only,
            unchanged=support.unchanged and unrotated,
        )


class EncoderStack(Stack):
    """A stack of encoder layers: source vectors in, the memory of every layer out."""

    def __init__(self, config: TransformerEncoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        self.positions, self.window = config.build_positions(d_model, causal=False), config.window
        self.dropout = Dropout(dropout)  # on the sum of embedding and position (section 5.4)
        self.layers = nn.ModuleList(EncoderLayer(config, d_model, dropout) for _ in range(config.layers))
        self.final = config.residual.final(d_model, config.norm)
        self.support = self.kernel_support()

    def blocks(self) -> Iterator[EncoderLayer]:
        return (cast("EncoderLayer", layer) for layer in self.layers)

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None = None, layout: PaddedLayout = PADDED) -> Memory:
        """Encode x (B, S, D), mask (B, S) True at real tokens; in a packed layout the memory's layers are (1, N, D)."""
        positions, visible = layout.positions(0), layout.attention_mask(mask)
        bias = self.positions.bias(x.size(1), x.size(1))
        context = PositionContext(lambda heads: self.positions.rotate(heads, positions), bias, layout, self.window)
        x, real = self.dropout(layout.pack(self.positions.add(x, 0))), layout.real(mask)
        outputs: list[Tensor] = []
        for number, layer in enumerate(self.blocks()):
            # Names only where traced: the compiler would specialise each layer on its name.
            x = layer.run(x, real, visible, context, trace, "" if trace is None else f"encoder.{number}")
            outputs.append(x)
            if trace is not None:
                trace[f"encoder.{number}.out"] = x
        outputs[-1] = self.final(x, real)
        return Memory(tuple(outputs), mask)


class DecoderLayer(StackLayer):
    """A decoder layer (figure 1, right); unless `causal`, each position also attends to later ones."""

    entrances = ("project_source",)

    def __init__(self, config: StackConfig, d_model: int, dropout: float, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.unnormed_past = isinstance(config, TransformerDecoder) and config.unnormed_past
        self.attention = config.attention.build(d_model)
        self.cross = config.attention.build(d_model)
        self.feed_forward = config.build_feed_forward(d_model)
        self.around_attention = config.residual.build(d_model, dropout, config.norm)
        self.around_cross = config.residual.build(d_model, dropout, config.norm)
        self.around_feed_forward = config.residual.build(d_model, dropout, config.norm)

    def project_source(self, memory: Tensor, layout: PaddedLayout = PADDED) -> tuple[Tensor, Tensor]:
        """Project encoder output (B, S, D) to cross-attention keys and values, once per sentence."""
        projected: tuple[Tensor, Tensor] = self.cross.project_kv(memory, layout=layout)
        return projected

    def forward(
        self,
        x: Tensor,
        past: KVCache | EmptyKVCache,
        source: KVCache,
        source_mask: Tensor,
        mask: Tensor | None,
        context: PositionContext,
        trace: Trace | None,
        name: str,
    ) -> tuple[Tensor, KVCache]:
        """Apply the layer to x (B, t, D) after `past`; returns its output and the cache after it."""
        cache: list[KVCache] = []
        causal = self.causal and context.visible is None
        # A causal position sees no padding, which comes last; other stacks must mask it.
        visible = context.visible if self.causal or mask is None else mask[:, None, None, :]  # (B, 1, 1, t)
        layout = context.layout

        def attention(y: Tensor) -> Tensor:
            query, key, value = first = self.attention.project_qkv(y, context.rotate, layout)
            if self.unnormed_past:
                key, value = self.attention.project_kv(x, context.rotate, layout)
            attention_mask = AttentionMask(visible, causal, context.bias, context.window, trace, f"{name}.self")
            output, appended = self.attention.attend_past(query, key, value, past, attention_mask, layout)
            cache.append(appended)
            if self.unnormed_past and past.empty:  # the first position attends only to its own normed value
                alone = self.attention.attend(first[0][:, :, :1], first[1][:, :, :1], first[2][:, :, :1], layout=layout)
                output = torch.cat((alone, output[:, 1:]), dim=1)
            return output

        def cross(y: Tensor) -> Tensor:
            attention_mask = AttentionMask(source_mask, trace=trace, name=f"{name}.cross")
            out: Tensor = self.cross(y, source.key, source.value, attention_mask, layout)
            return out

        x = self.around_attention(x, attention, mask, layout.kernels)
        x = self.around_cross(x, cross, mask, layout.kernels)
        x = self.around_feed_forward(x, lambda y: self.feed_forward(y, layout.kernels), mask, layout.kernels)
        return x, cache[0]


class DecoderStack(Stack):
    """A stack of decoder layers: target vectors in, one or many at a time; vectors that predict the next token out."""

    def __init__(
        self, config: WiredStack, d_model: int, dropout: float, encoder_layers: int, causal: bool = True
    ) -> None:
        super().__init__()
        config.check_width(d_model)
        self.wiring = config.wiring.build(d_model, encoder_layers, config.layers)
        self.positions, self.window = config.build_positions(d_model, causal), config.window
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, d_model, dropout, causal) for _ in range(config.layers))
        self.final = config.residual.final(d_model, config.norm)
        self.support = self.kernel_support()

    def blocks(self) -> Iterator[DecoderLayer]:
        return (cast("DecoderLayer", layer) for layer in self.layers)

    def start(self, memory: Memory, layout: PaddedLayout = PADDED) -> DecoderState:
        """Project cross-attention keys and values of every layer, once per sentence."""
        memories = zip(self.blocks(), self.wiring(memory.layers), strict=True)
        layers = tuple(KVCache(*layer.project_source(x, layout)) for layer, x in memories)
        return DecoderState(
            CrossKV(layers, layout.attention_mask(memory.mask)), (EmptyKVCache(),) * len(layers), length=0
        )

    def allocate_cache(self, cache_shape: CacheShape) -> StaticDecoderState | None:
        """Allocate a static KV cache; None where learned positions are too few. Joins the weights of self-attention."""
        if not self.positions.reaches(cache_shape.length) or any(block.unnormed_past for block in self.blocks()):
            return None
        source = CrossKV.of(cache_shape, [block.cross for block in self.blocks()], additive=self.support.dot_product)
        for block in self.blocks():
            block.attention.join()
        cache = tuple(StaticKVCache.of(cache_shape, block.attention) for block in self.blocks())
        position = torch.zeros(cache_shape.sentences, dtype=torch.int64, device=source.mask.device)
        ancestors = position.new_zeros(cache_shape.sentences, cache_shape.paths, cache_shape.length)
        return StaticDecoderState(source, cache, cache_shape.length, position, ancestors)

    def prefill(self, state: StaticDecoderState, slots: Tensor, memory: Memory) -> None:
        """Write the cross-attention keys and values of b sentences into rows `slots` (b,) of the static cache."""
        source: CrossKV = state.static
        source.put(slots, self.start(memory, PaddedLayout(state.kernels)).static)

    def forward(
        self,
        x: Tensor,
        state: DecoderState,
        trace: Trace | None = None,
        mask: Tensor | None = None,
        layout: PaddedLayout = PADDED,
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D), real where mask (B, t) is True, after `state`; (1, N, D) in a packed layout."""
        read, source = x.size(1), state.static
        layout = state.layout(layout, self.support, trace is not None)
        x, mask = self.dropout(layout.pack(self.positions.add(x, state.start))), layout.real(mask)
        context, cache = self._context(state, read, layout, x.dtype), []
        for number, (layer, past) in enumerate(zip(self.blocks(), state.layer_caches(), strict=True)):
            name = "" if trace is None else f"decoder.{number}"
            x, appended = layer.run(x, past, source.layers[number], source.mask, mask, context, trace, name)
            cache.append(appended)
            if trace is not None:
                trace[f"decoder.{number}.out"] = x
        return self.final(x, mask), state.advanced(tuple(cache), read)

    def _context(self, state: DecoderState, read: int, layout: PaddedLayout, dtype: torch.dtype) -> PositionContext:
        """Context of the next tokens; ancestor mask and bias become one tensor where all kernels take that."""
        positions = layout.positions(state.start)

        def rotate(heads: Tensor) -> Tensor:
            return self.positions.rotate(heads, positions)

        if layout.sees_ancestors:
            return PositionContext(rotate, None, layout)
        visible, bias = state.visible(self.window), state.bias(self.positions, read)
        if visible is None:
            return PositionContext(rotate, bias, layout, self.window)
        if self.support.dot_product:
            visible = additive_mask(visible, dtype)
            visible, bias = visible if bias is None else bias.to(dtype) + visible, None
        return PositionContext(rotate, bias, layout, visible=visible)


class StaticCacheSeq2Seq(Seq2Seq):
    """A Transformer model whose decoder supports a static KV cache."""

    def static_cache_model(self) -> StaticCacheSeq2Seq:
        return self

    @property
    def vocabulary(self) -> int:
        return self.output.size(0)

    def allocate_cache(self, cache_shape: CacheShape) -> StaticDecoderState | None:
        state: StaticDecoderState | None = self.decoder.allocate_cache(cache_shape)  # type: ignore[operator]
        return state

    def prefill(self, state: StaticDecoderState, slots: Tensor, source: Tensor, mask: Tensor) -> None:
        """Encode sources (b, S) into rows `slots` of the static cache; see contract.py."""
        memory = self.encode(source, mask, layout=PaddedLayout(state.kernels))
        self.decoder.prefill(state, slots, memory)  # type: ignore[operator]
