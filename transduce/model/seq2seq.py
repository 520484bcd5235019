"""A whole model: embeddings (section 3.4), an encoder, a decoder and the output, behind the contract of contract.py.

Shapes: B batch, S source length, t target tokens read in one call, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import ConfigError
from transduce.model.attention import Trace
from transduce.model.contract import Memory, State
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.heads import Head, check_heads
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.transformer import TransformerDecoder, TransformerEncoder

Tying = Literal["all", "target", "none"]
Encoder = TransformerEncoder | RecurrentEncoder | ConvolutionalEncoder
Decoder = TransformerDecoder | RecurrentDecoder | ConvolutionalDecoder


@dataclass(frozen=True)
class Model:
    """The [model] section; the defaults are the paper's base model.

    `tie`: "all" shares one matrix between source, target and output (section 3.4; needs one shared vocabulary),
    "target" between target and output, "none" keeps three. `heads` are what objectives train besides (heads.py).
    """

    d_model: int = 512
    dropout: float = 0.1
    tie: Tying = "all"
    encoder: Encoder = TransformerEncoder()
    decoder: Decoder = TransformerDecoder()
    heads: tuple[Head, ...] = ()

    def __post_init__(self) -> None:
        if self.d_model < 1:
            raise ConfigError(f"d_model: expected at least 1, got {self.d_model}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected a number from 0 up to 1, got {self.dropout}")
        check_heads(self.heads)
        for name in ("encoder", "decoder"):
            with _named(name):
                getattr(self, name).check_width(self.d_model)
        with _named("decoder"):
            self.decoder.check_depth(self.encoder.layers)

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Seq2Seq:
        """A freshly initialised model for vocabularies of these sizes; `shared` says they are one and the same."""
        if self.tie == "all" and not shared:
            raise ConfigError(
                "model.tie: 'all' needs one vocabulary for both sides, and the corpus has two;"
                " use model.tie=target, or prepare with tokenizer.shared=true"
            )
        target = Embedding(target_vocabulary, self.d_model)
        source = target if self.tie == "all" else Embedding(source_vocabulary, self.d_model)
        output = target if self.tie != "none" else Embedding(target_vocabulary, self.d_model)
        encoder = self.encoder.build(self.d_model, self.dropout)
        decoder = self.decoder.build(self.d_model, self.dropout, self.encoder.layers)
        model = Seq2Seq(source, target, output, encoder, decoder)
        model.apply(initialise)
        for head in self.heads:  # last, so that every other weight is drawn as without
            model.heads[head.kind] = head.build(self.d_model, target_vocabulary).apply(initialise)
        return model


@contextmanager
def _named(section: str) -> Iterator[None]:
    """A complaint from inside names its section."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{section}.{error}") from None


class Embedding(nn.Module):
    """One vector a token, multiplied by sqrt(d_model) when read and used as it is to score outputs (section 3.4)."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight) * math.sqrt(self.weight.size(1))

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def initialise(module: nn.Module) -> None:
    """Glorot for linear maps, d_model^-0.5 for embeddings: the paper is silent; tensor2tensor did the like."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, Embedding):
        nn.init.normal_(module.weight, std=module.weight.size(1) ** -0.5)


class Seq2Seq(nn.Module):
    """Source tokens in, logits over the next target token out. Modules given twice share their weights."""

    def __init__(
        self,
        source_embedding: Embedding,
        target_embedding: Embedding,
        output_embedding: Embedding,
        encoder: nn.Module,
        decoder: nn.Module,
    ) -> None:
        super().__init__()
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.output_embedding = output_embedding
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleDict()

    def encode(self, source: Tensor, mask: Tensor, trace: Trace | None = None) -> Memory:
        """source (B, S) tokens, mask (B, S) True at real ones; a trace dict is filled with named tensors."""
        memory: Memory = self.encoder(self.source_embedding(source), mask, trace)
        return memory

    def start(self, memory: Memory) -> State:
        """The decoder before its first token."""
        state: State = self.decoder.start(memory)  # type: ignore[operator]
        return state

    def advance(
        self, tokens: Tensor, state: State, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read tokens (B, t), real where mask is True; logits (B, t, V) for what follows each, and the state after."""
        x, state = self.decoder(self.target_embedding(tokens), state, trace, mask)
        return self.output_embedding.logits(x), state

    def tables(self) -> list[nn.Parameter]:
        """Matrices whose rows are looked up rather than multiplied; some optimizers treat them apart."""
        return [module.weight for module in self.modules() if isinstance(module, Embedding)]

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
