"""The [model] config: source, encoder, decoder, tied embeddings (section 3.4), and extra output heads.

Heads are outputs beside the decoder's that objectives train, saved with the model. A head reads the encoder's top
states: `model.heads["ctc"](memory)`. Its weights are initialised after all others, so that a head changes no other
weight of a new model.
Shapes: B batch, S source length, D d_model, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from transduce.core.bounds import FEW, PLACES, WIDTH, BelowOne, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.model.contract import Memory
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.encoder_decoder import Embedding, EncoderDecoder, Parts, initialise
from transduce.model.encoder_decoder import Seq2Seq as Seq2Seq
from transduce.model.parallel import ParallelDecoder
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.sources import Source, SourceConfig, Tokens
from transduce.model.transformer import TransformerDecoder, TransformerEncoder


class HeadConfig(Protocol):
    """Config of an output head on the encoder; `kind` is its name in the model."""

    @property
    def kind(self) -> str:
        """Name of the head; a model has at most one of each."""
        ...

    def build(self, d_model: int, vocabulary: int) -> nn.Module:
        """Build a module from the encoder's `Memory` to the input of a loss term; `vocabulary` is the target's."""
        ...


@dataclass(frozen=True)
class CTCHead:
    """CTC head: each source state is split into `upsample` frames (Libovicky and Helcl, 2018), each a token or blank.

    CTC needs a frame for every target token, and one more between two equal ones.
    """

    kind: ClassVar[str] = "ctc"
    upsample: Annotated[int, Bounds(1, FEW)] = 2

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int, vocabulary: int) -> nn.Module:
        return CTCHeadOutput(d_model, vocabulary, self.upsample)


@dataclass(frozen=True)
class LengthHead:
    """Length head: classifies the target length by a linear map of the mean source state.

    Class n means n tokens, without the end symbol; the last class, `longest`, means that many or more.
    """

    kind: ClassVar[str] = "length"
    longest: Annotated[int, Bounds(1, PLACES)] = 256

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, d_model: int, vocabulary: int) -> nn.Module:
        return LengthHeadOutput(d_model, self.longest)


Head = CTCHead | LengthHead


def check_heads(heads: tuple[Head | HeadConfig, ...]) -> None:
    """Refuse two heads of one kind, since a head is named by its kind."""
    kinds = [head.kind for head in heads]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"heads: expected each kind at most once, got {', '.join(kinds)}")


class CTCHeadOutput(nn.Module):
    """Logits (B, S * upsample, V + 1) of the memory; class V, after the last token, is CTC's blank."""

    def __init__(self, d_model: int, vocabulary: int, upsample: int) -> None:
        super().__init__()
        self.upsample = upsample
        self.split = nn.Linear(d_model, upsample * d_model)
        self.output = nn.Linear(d_model, vocabulary + 1)

    def stacked(self) -> dict[Tensor, int]:
        """The map to the frames of a state, which stacks one map per frame."""
        return {self.split.weight: self.upsample}

    def forward(self, memory: Memory) -> Tensor:
        states = memory.layers[-1]
        frames = self.split(states).view(states.size(0), -1, states.size(2))  # (B, S * upsample, D)
        logits: Tensor = self.output(frames)
        return logits


class LengthHeadOutput(nn.Module):
    """Logits (B, longest + 1) of the target's length."""

    def __init__(self, d_model: int, longest: int) -> None:
        super().__init__()
        self.output = nn.Linear(d_model, longest + 1)

    def forward(self, memory: Memory) -> Tensor:
        states, real = memory.layers[-1], memory.mask.unsqueeze(-1)
        mean = states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp_min(1)  # (B, D)
        logits: Tensor = self.output(mean)
        return logits


Tying = Literal["all", "target", "none"]
Encoder = TransformerEncoder | RecurrentEncoder | ConvolutionalEncoder
Decoder = TransformerDecoder | RecurrentDecoder | ConvolutionalDecoder | ParallelDecoder


class EncoderConfig(Protocol):
    """Config of an encoder."""

    @property
    def layers(self) -> int:
        """Number of layers, each of which gives states to the memory."""
        ...

    def check_width(self, d_model: int) -> None:
        """Raise ConfigError for an unsupported width."""
        ...

    def build(self, d_model: int, dropout: float) -> nn.Module:
        """Build a module with `forward(x, mask, trace, layout)` from x (B, S, D) and mask (B, S) to a `Memory`."""
        ...


class DecoderConfig(Protocol):
    """Config of a decoder; autoregressive ones derive from `StepwiseDecoder`, which defines `assemble`."""

    @property
    def layers(self) -> int: ...

    def check_width(self, d_model: int) -> None:
        """Raise ConfigError for an unsupported width."""
        ...

    def check_depth(self, encoder_layers: int) -> None:
        """Raise ConfigError for an encoder with an unsupported number of layers."""
        ...

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> nn.Module:
        """Build a module with `start(memory)`, which returns a DecoderState, and `forward(x, state, trace, mask)`.

        From x (B, t, D), the next tokens, `forward` returns vectors (B, t, D) that predict the tokens after, and the
        new state.
        """
        ...

    def assemble(self, parts: Parts) -> EncoderDecoder:
        """Assemble the model of these parts, which include this decoder."""
        ...


@dataclass(frozen=True)
class Model:
    """The [model] section; the defaults are the paper's base model.

    `source` is the input: tokens, frames of speech or patches of pictures (sources.py). `tie`: "all" shares one matrix
    between source, target and output (section 3.4; needs one shared vocabulary; frames and patches have no matrix to
    share), "target" between target and output, "none" keeps three. `output_bias` adds a learned bias per token to the
    logits, which the paper does not have and Marian's models do. `heads` are extra outputs for objectives.
    """

    d_model: Annotated[int, Bounds(1, WIDTH)] = 512
    dropout: BelowOne = 0.1
    tie: Tying = "all"
    encoder: Encoder | EncoderConfig = TransformerEncoder()
    decoder: Decoder | DecoderConfig = TransformerDecoder()
    output_bias: bool = False
    heads: tuple[Head | HeadConfig, ...] = ()
    source: Source | SourceConfig = Tokens()

    def __post_init__(self) -> None:
        check_bounds(self)
        check_heads(self.heads)
        for name in ("encoder", "decoder"):
            with _named(name):
                getattr(self, name).check_width(self.d_model)
        with _named("decoder"):
            self.decoder.check_depth(self.encoder.layers)

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> EncoderDecoder:
        """Build and initialise a model for vocabularies of these sizes; `shared` says they are the same."""
        if self.tie == "all" and not shared and isinstance(self.source, Tokens):
            raise ConfigError(
                "model.tie: 'all' needs one vocabulary for both sides, and the corpus has two;"
                " use model.tie=target, or prepare with tokenizer.shared=true"
            )
        target = Embedding(target_vocabulary, self.d_model)
        source = self.source.build(self.d_model, source_vocabulary, target if self.tie == "all" else None)
        output = target if self.tie != "none" else Embedding(target_vocabulary, self.d_model)
        encoder = self.encoder.build(self.d_model, self.dropout)
        decoder = self.decoder.build(self.d_model, self.dropout, self.encoder.layers)
        bias = nn.Parameter(torch.zeros(target_vocabulary)) if self.output_bias else None
        model = self.decoder.assemble(Parts(source, target, output, encoder, decoder, bias))
        model.apply(initialise)
        for head in self.heads:  # last, so that all other weights are drawn as without heads
            model.heads[head.kind] = head.build(self.d_model, target_vocabulary).apply(initialise)
        return model


@contextmanager
def _named(section: str) -> Iterator[None]:
    """Prefix errors raised inside with their section."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{section}.{error}") from None
