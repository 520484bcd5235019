"""What a model is made of besides its stacks: embeddings (section 3.4), the encoder, the decoder and the output.

`EncoderDecoder` is what every model is; `Seq2Seq` adds the contract of contract.py for decoders that go step by step.
A decoder's config says which of the models it belongs to: `assemble`.
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
    """What makes vectors of a source: an embedding of tokens, or what reads frames or patches (sources.py)."""

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        """Vectors (B, S, D) and where they are real (B, S), of a source (B, L) or (B, L, F) and its mask (B, L)."""
        raise NotImplementedError


class Embedding(SourceReader):
    """One vector a token, multiplied by sqrt(d_model) when read and used as it is to score outputs (section 3.4)."""

    looked_up: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, d_model))

    def forward(self, tokens: Tensor, kernels: Kernels = None) -> Tensor:
        factor = math.sqrt(self.weight.size(1))
        if kernels is None:
            return F.embedding(tokens, self.weight) * factor
        found: Tensor = kernels.looked_up(self.weight, tokens, factor)
        return found

    def read(self, source: Tensor, mask: Tensor, kernels: Kernels = None) -> tuple[Tensor, Tensor]:
        return self(source, kernels), mask

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def initialise(module: nn.Module) -> None:
    """Glorot for linear maps, d_model^-0.5 for embeddings: the paper is silent; tensor2tensor did the like.

    He's for what reads frames and patches, whose vectors would else drown in the positions added to them.
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
    """The modules of a model. Embeddings given twice share their weights. `bias` (V,) is added to the logits."""

    source: SourceReader
    target: Embedding
    output: Embedding
    encoder: nn.Module
    decoder: nn.Module
    bias: nn.Parameter | None = None


class StackLayer(nn.Module):
    """A layer of a stack, large enough to be held in pieces by several processes and put together while it works.

    `entrances` are the methods besides `forward` by which a stack uses its weights. With `recomputes` (activation
    checkpointing, Chen et al. 2016) a training pass keeps the inputs of the block alone, and the backward pass works
    the rest out again, with the same draws of dropout: less memory for a second forward pass.
    """

    entrances: ClassVar[tuple[str, ...]] = ()
    recomputes: bool = False

    def run(self, *inputs: Any) -> Any:
        """`self(*inputs)`, by activation checkpointing where that is asked for and gradients are wanted."""
        if self.recomputes and self.training and torch.is_grad_enabled():
            return checkpoint(self, *inputs, use_reentrant=False)
        return self(*inputs)


class EncoderDecoder(nn.Module):
    """What loading, saving, training and scoring know of any model."""

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
        """source (B, S) tokens, or (B, L, F) frames, of which there may be more than places of the memory.

        mask (B, S) or (B, L) is True at real ones; a trace dict is filled with named tensors.
        """
        x, mask = self.source_embedding.read(source, mask, layout.kernels)
        memory: Memory = self.encoder(x, mask, trace, layout)
        return memory

    def logits(self, x: Tensor) -> Tensor:
        """What a decoder's vectors (..., D) say of each token of the target's vocabulary: (..., V)."""
        return F.linear(x, self.output_embedding.weight, self.output_bias)

    def layer_logits(self, x: Tensor) -> Tensor:
        """What the output x (B, T, D) of any decoder layer would say if it were the last: (B, T, V).

        A stack that norms what leaves it has that norm as `final`.
        """
        final = getattr(self.decoder, "final", None)
        return self.logits(x if final is None else final(x, None))

    def static_cache_model(self) -> SupportsStaticCache | None:
        """This model, if it can work in memory set aside once."""
        return None

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """log p of each token of a given translation; their sum is that of the whole.

        target (B, T + 1) begins with the start symbol and ends with the end symbol, mask (B, T) is True at the real
        ones of those after the first; (B, T), anything where the mask is False. In a trace `decoder.N.cross` has a row
        for every token.
        """
        raise NotImplementedError

    def tables(self) -> list[nn.Parameter]:
        """Matrices that are no linear maps, such as embeddings; some optimizers treat them apart.

        A module names its own in `looked_up`.
        """
        return [getattr(module, name) for module in self.modules() for name in getattr(module, "looked_up", ())]

    def stacks(self) -> dict[Tensor, int]:
        """Matrices that are several maps of one input, one below the other, and how many: the gates of a cell, say.

        A module names its own, or those of torch's modules inside it, in `stacked()`.
        """
        found: dict[Tensor, int] = {}
        for module in self.modules():
            found |= getattr(module, "stacked", dict)()
        return found

    def blocks(self) -> list[StackLayer]:
        """The layers that several processes may hold in pieces; a stack that has none is held whole."""
        return [module for module in self.modules() if isinstance(module, StackLayer)]

    def weights(self) -> dict[str, Tensor]:
        """Every parameter and saved buffer by name, a shared one once, by its first name: what a checkpoint holds."""
        named = self.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in reversed(named.items())}
        return {name: tensor.detach() for name, tensor in named.items() if first[id(tensor)] == name}

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `weights` gave; names and shapes must fit."""
        own = self.weights()
        if own.keys() != tensors.keys():
            raise ValueError(f"weights do not fit the model: {sorted(own.keys() ^ tensors.keys())}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])


class Seq2Seq(EncoderDecoder):
    """Source tokens in, logits over the next target token out."""

    def start(self, memory: Memory) -> DecoderState:
        """The decoder before its first token."""
        state: DecoderState = self.decoder.start(memory)  # type: ignore[operator]
        return state

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read tokens (B, t), real where mask is True; logits (B, t, V) for what follows each, and the state after."""
        x, state = self.states(tokens, state, trace, mask)
        return self.logits(x), state

    def states(
        self, tokens: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """The same before the projection by `output`: (B, t, D)."""
        x, state = self.decoder(self.target_embedding(tokens, state.kernels), state, trace, mask)
        return x, state

    def packed(
        self, source: Tensor, source_mask: Tensor, tokens: Tensor, mask: Tensor, room: tuple[int, int]
    ) -> tuple[Tensor, PackedLayout]:
        """`states` of tokens (B, T) after their sources (B, S), without work on padding; for stacks that can pack.

        (1, N, D), and the layout that brings anything else of the target into the same order. `room` (source, target)
        is how many real tokens there are at most.
        """
        longest = max(source.size(1), tokens.size(1))
        support: dispatch.KernelSupport = self.encoder.support & self.decoder.support  # type: ignore[operator,assignment]
        kernels = dispatch.varlen_kernels(source, longest) if support.whole_rows else None
        # Compiled, a product of joined weights costs little; as it is written, joining them costs more than it saves.
        beside = torch.compiler.is_compiling() and support.unchanged
        layouts = [
            PackedLayout(real, count) if kernels is None else VarlenLayout(real, count, longest, kernels, beside)
            for real, count in zip((source_mask, mask), room, strict=True)
        ]
        memory = self.encoder(self.source_embedding(source), source_mask, None, layouts[0])
        state = self.decoder.start(memory, layouts[0])  # type: ignore[operator]
        x, _ = self.decoder(self.target_embedding(tokens), state, None, mask, layouts[1])
        return x, layouts[1]

    @property
    def output(self) -> Tensor:
        """A row (D,) for each token of the target's vocabulary (V, D)."""
        return self.output_embedding.weight

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        return teacher_forced_log_probs(self, memory, target, mask, trace)


class StepwiseDecoder:
    """What the configs of all decoders that write token by token have in common."""

    offers: ClassVar[str] = "stepwise"  # to a search: it writes token by token

    def assemble(self, parts: Parts) -> Seq2Seq:
        return Seq2Seq(parts)


class AttentionConfig(Protocol):
    """The config of how a decoder looks at the source."""

    def check_width(self, d_model: int) -> None:
        """Refuse, with ConfigError, a width that it cannot serve."""
        ...


class TopDecoder(StepwiseDecoder):
    """Those of them that look at the encoder's top alone."""

    @property
    def attention(self) -> AttentionConfig:
        """A field of each config."""
        raise NotImplementedError

    def check_width(self, d_model: int) -> None:
        try:
            self.attention.check_width(d_model)
        except ConfigError as error:
            raise ConfigError(f"attention.{error}") from None

    def check_depth(self, encoder_layers: int) -> None:
        """Any depth will do."""
