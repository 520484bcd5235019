"""A model around its stacks: embeddings (section 3.4), encoder, decoder and output projection.

`EncoderDecoder` is the base of every model; `Seq2Seq` adds the contract of contract.py for autoregressive decoders.
A decoder's config chooses the model class: `assemble`.
Shapes: B batch, S source length, t target tokens read in one call, T target length, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transduce.core.errors import ConfigError
from transduce.kernels import dispatch
from transduce.kernels.dispatch import Kernels
from transduce.kernels.packing import PADDED, PackedLayout, PaddedLayout, VarlenLayout
from transduce.model.attention import Trace
from transduce.model.contract import DecoderState, Memory, SupportsStaticCache, teacher_forced_log_probs


class SourceReader(nn.Module):
    """Base of modules that turn a source into vectors: an embedding of tokens, or a reader of frames or patches."""

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        """Read a source (B, L) or (B, L, F) with mask (B, L): vectors (B, S, D), and their mask (B, S)."""
        raise NotImplementedError


class Embedding(SourceReader):
    """Token embedding, scaled by sqrt(d_model) as input and unscaled as output projection (section 3.4)."""

    looked_up: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, d_model))

    def forward(self, tokens: Tensor, kernels: Kernels = None) -> Tensor:
        factor = math.sqrt(self.weight.size(1))
        if kernels is None:
            return F.embedding(tokens, self.weight) * factor
        vectors: Tensor = kernels.lookup(self.weight, tokens, factor)
        return vectors

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        return self(source, kernels), mask

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def initialise(module: nn.Module) -> None:
    """Initialise: Glorot for linear maps, d_model^-0.5 for embeddings, as in tensor2tensor; the paper does not say.

    He initialisation for readers of frames and patches, whose vectors would else be small beside the positions added.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    elif isinstance(module, Embedding) and not module.weight.is_meta:
        nn.init.normal_(module.weight, std=module.weight.size(1) ** -0.5)


@dataclass(frozen=True)
class Parts:
    """The modules of a model. Embeddings passed twice share their weights. `bias` (V,) is added to the logits."""

    source: SourceReader
    target: Embedding
    output: Embedding
    encoder: nn.Module
    decoder: nn.Module
    bias: nn.Parameter | None = None


class StackLayer(nn.Module):
    """A layer of a stack: the unit that several processes may shard (FSDP) and that checkpointing may recompute.

    `entrances` are the methods besides `forward` through which a stack uses its weights. With `recomputes` (activation
    checkpointing, Chen et al. 2016) training keeps only the layer's inputs, and the backward pass recomputes the rest,
    with the same dropout masks: less memory for a second forward pass.
    """

    entrances: ClassVar[tuple[str, ...]] = ()
    recomputes: bool = False

    def run(self, *inputs: Any) -> Any:
        """Call `self(*inputs)`, with activation checkpointing where enabled and gradients are wanted."""
        if self.recomputes and self.training and torch.is_grad_enabled():
            return checkpoint(self, *inputs, use_reentrant=False)
        return self(*inputs)


class EncoderDecoder(nn.Module):
    """Base of every model, for loading, saving, training and scoring."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.source_embedding = parts.source
        self.target_embedding = parts.target
        self.output_embedding = parts.output
        self.output_bias = parts.bias
        self.encoder = parts.encoder
        self.decoder = parts.decoder
        self.heads = nn.ModuleDict()

    def encode(self, source: Tensor, mask: Tensor, trace: Trace | None = None, layout: PaddedLayout = PADDED) -> Memory:
        """Encode source tokens (B, S), or frames (B, L, F), of which there may be more than encoder positions.

        mask (B, S) or (B, L) is True at real ones; a trace dict is filled with named tensors.
        """
        x, mask = self.source_embedding.read(source, mask, layout.kernels)
        memory: Memory = self.encoder(x, mask, trace, layout)
        return memory

    def logits(self, x: Tensor) -> Tensor:
        """Project decoder vectors (..., D) to logits over the target vocabulary: (..., V)."""
        return F.linear(x, self.output_embedding.weight, self.output_bias)

    def layer_logits(self, x: Tensor) -> Tensor:
        """Logits (B, T, V) of the output x (B, T, D) of any decoder layer, as if it were the last (logit lens).

        The final norm of a pre-norm stack is its `final`.
        """
        final = getattr(self.decoder, "final", None)
        return self.logits(x if final is None else final(x, None))

    def static_cache_model(self) -> SupportsStaticCache | None:
        """Return the model itself if it supports a static KV cache, else None."""
        return None

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """Log p (B, T) of each token of a given translation; their sum is that of the translation.

        target (B, T + 1) begins with the start symbol and ends with the end symbol; mask (B, T) is True at the real
        tokens after the first; the result is arbitrary where it is False. In a trace `decoder.N.cross` has a row per
        token.
        """
        raise NotImplementedError

    def tables(self) -> list[nn.Parameter]:
        """List matrices that are lookup tables, not linear maps, such as embeddings; some optimizers treat them apart.

        A module names its own in `looked_up`.
        """
        return [getattr(module, name) for module in self.modules() for name in getattr(module, "looked_up", ())]

    def stacks(self) -> dict[Tensor, int]:
        """Matrices that stack several maps of one input, with how many: the gates of a recurrent cell, say.

        A module lists its own, or those of torch's modules inside it, in `stacked()`.
        """
        stacked: dict[Tensor, int] = {}
        for module in self.modules():
            stacked |= getattr(module, "stacked", dict)()
        return stacked

    def blocks(self) -> list[StackLayer]:
        """List the layers that several processes may shard; a stack without any is not sharded."""
        return [module for module in self.modules() if isinstance(module, StackLayer)]

    def weights(self) -> dict[str, Tensor]:
        """Every parameter and saved buffer by name, shared ones once under their first name: a checkpoint's content."""
        named = self.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in reversed(named.items())}
        return {name: tensor.detach() for name, tensor in named.items() if first[id(tensor)] == name}

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Load what `weights` returned; names and shapes must match."""
        weights = self.weights()
        if weights.keys() != tensors.keys():
            raise ValueError(f"weights do not fit the model: {sorted(weights.keys() ^ tensors.keys())}")
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(tensors[name])


class Seq2Seq(EncoderDecoder):
    """An autoregressive model: source tokens in, logits over the next target token out."""

    def start(self, memory: Memory) -> DecoderState:
        """Start decoding: the state before the first token."""
        state: DecoderState = self.decoder.start(memory)  # type: ignore[operator]
        return state

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read tokens (B, t), real where mask is True: logits (B, t, V) for the token after each, and the new state."""
        x, state = self.states(tokens, state, trace, mask)
        return self.logits(x), state

    def states(
        self, tokens: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Decoder outputs (B, t, D) before the projection by `output`, and the new state."""
        x, state = self.decoder(self.target_embedding(tokens, state.kernels), state, trace, mask)
        return x, state

    def packed(
        self, source: Tensor, source_mask: Tensor, tokens: Tensor, mask: Tensor, capacity: tuple[int, int]
    ) -> tuple[Tensor, PackedLayout]:
        """Compute `states` of tokens (B, T) given sources (B, S) without padding; for stacks that support packing.

        Returns (1, N, D), and the layout that packs other target tensors in the same order. `capacity` (source, target)
        is the maximum number of real tokens.
        """
        longest = max(source.size(1), tokens.size(1))
        support: dispatch.KernelSupport = self.encoder.support & self.decoder.support  # type: ignore[operator,assignment]
        kernels = dispatch.varlen_kernels(source, longest) if support.whole_rows else None
        # Compiled, a product of joined weights is cheap; in eager mode, joining them costs more than it saves.
        packed_qkv = torch.compiler.is_compiling() and support.unchanged
        layouts = [
            PackedLayout(real, count) if kernels is None else VarlenLayout(real, count, longest, kernels, packed_qkv)
            for real, count in zip((source_mask, mask), capacity, strict=True)
        ]
        memory = self.encoder(self.source_embedding(source), source_mask, None, layouts[0])
        state = self.decoder.start(memory, layouts[0])  # type: ignore[operator]
        x, _ = self.decoder(self.target_embedding(tokens), state, None, mask, layouts[1])
        return x, layouts[1]

    @property
    def output(self) -> Tensor:
        """The output matrix (V, D), a row per token of the target vocabulary."""
        return self.output_embedding.weight

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        return teacher_forced_log_probs(self, memory, target, mask, trace)


class StepwiseDecoder:
    """Base config of autoregressive decoders."""

    offers: ClassVar[str] = "stepwise"  # to search: it decodes token by token

    def assemble(self, parts: Parts) -> Seq2Seq:
        return Seq2Seq(parts)


class AttentionConfig(Protocol):
    """The config of a decoder's cross-attention."""

    def check_width(self, d_model: int) -> None:
        """Refuse, with ConfigError, a width that it cannot serve."""
        ...


class TopDecoder(StepwiseDecoder):
    """Base config of decoders that attend to the encoder's top layer only."""

    @property
    def attention(self) -> AttentionConfig:
        """The cross-attention config, a field of each subclass."""
        raise NotImplementedError

    def check_width(self, d_model: int) -> None:
        try:
            self.attention.check_width(d_model)
        except ConfigError as error:
            raise ConfigError(f"attention.{error}") from None

    def check_depth(self, encoder_layers: int) -> None:
        """Accept any depth."""
