"""The config of a whole model: what it reads, an encoder, a decoder, and how embeddings are shared (section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from transduce.errors import ConfigError
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.heads import Head, check_heads
from transduce.model.parallel import ParallelDecoder
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.sources import Source, Tokens
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.model.whole import Embedding, EncoderDecoder, Parts, initialise
from transduce.model.whole import Seq2Seq as Seq2Seq
from transduce.sizes import WIDTH, check_most

Tying = Literal["all", "target", "none"]
Encoder = TransformerEncoder | RecurrentEncoder | ConvolutionalEncoder
Decoder = TransformerDecoder | RecurrentDecoder | ConvolutionalDecoder | ParallelDecoder


@dataclass(frozen=True)
class Model:
    """The [model] section; the defaults are the paper's base model.

    `source` is what it reads: tokens, frames of speech or patches of pictures (sources.py). `tie`: "all" shares one
    matrix between source, target and output (section 3.4; needs one shared vocabulary, and of frames and patches there
    is no matrix to share), "target" between target and output, "none" keeps three. `output_bias` adds a learned number
    for each token to the logits, which the paper does not have and Marian's models do. `heads` are what objectives
    train besides (heads.py).
    """

    d_model: int = 512
    dropout: float = 0.1
    tie: Tying = "all"
    encoder: Encoder = TransformerEncoder()
    decoder: Decoder = TransformerDecoder()
    output_bias: bool = False
    heads: tuple[Head, ...] = ()
    source: Source = Tokens()

    def __post_init__(self) -> None:
        if self.d_model < 1:
            raise ConfigError(f"d_model: expected at least 1, got {self.d_model}")
        check_most(self, WIDTH, "d_model")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected at least 0 and below 1, got {self.dropout}")
        check_heads(self.heads)
        for name in ("encoder", "decoder"):
            with _named(name):
                getattr(self, name).check_width(self.d_model)
        with _named("decoder"):
            self.decoder.check_depth(self.encoder.layers)

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> EncoderDecoder:
        """A freshly initialised model for vocabularies of these sizes; `shared` says they are one and the same."""
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
