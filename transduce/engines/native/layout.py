"""Tensors of a native weight file: the integers that describe a model, and every tensor's name and shape.

lowering.py writes these; it and model.cpp read them. Names and shapes follow from the config alone, so that a file can
be compared with it before a model is built: both are untrusted.
Shapes: D d_model, H heads, G heads of keys and values, K a head's width, W the padded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from transduce.engines.native.weight_format import padded
from transduce.model.attention import Attention
from transduce.model.blocks import GATED, Activation, PreNorm
from transduce.model.norms import BatchNorm, LayerNorm, RMSNorm
from transduce.model.positions import Learned
from transduce.model.scores import Cosine, Dot, Relu
from transduce.model.seq2seq import Model
from transduce.model.transformer import StackConfig, Top, TransformerDecoder

LONGEST = 2048  # positions in tables, where the model itself has no limit
TABLES = ("positions", "rotary", "bias")  # of a stack, each with a number that says whether it is present
NORMS = (LayerNorm, RMSNorm, BatchNorm)  # in the order of the core's enum
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "silu", "swiglu", "geglu")  # in the order of the core's enum
_VECTOR = 16  # floats that a head's width must be a multiple of


@dataclass(frozen=True)
class Entry:
    """A tensor of the file: a matrix with its bias, or plain numbers."""

    name: str
    rows: int
    columns: int
    is_matrix: bool = False


def is_wired(config: Model) -> bool:
    """Whether decoder layers attend to other encoder layers than the last."""
    return not isinstance(cast("TransformerDecoder", config.decoder).wiring, Top)


def model_facts(config: Model, source: int, target: int) -> dict[str, int]:
    """The integers of the tensor 'sizes', for vocabularies of these sizes."""
    return {
        "d_model": config.d_model,
        "source vocabulary": source,
        "target vocabulary": target,
        "wiring": int(is_wired(config)),
    }


def entries(config: Model, source: int, target: int, tables: Mapping[str, Sequence[int]]) -> Iterator[Entry]:
    """List every tensor except integer ones; `tables` says which of TABLES each stack has."""
    d_model = config.d_model
    yield Entry("embedding_scale", 1, 1)
    for name, rows in (("source", source), ("target", target), ("output", target)):
        yield Entry(name, rows, d_model, is_matrix=True)
    encoder, decoder = cast("StackConfig", config.encoder), cast("TransformerDecoder", config.decoder)
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        yield from Sizes(name, stack, d_model).entries(tables[name])
    if is_wired(config):
        yield Entry("shares", decoder.layers, encoder.layers)
        for layer in range(encoder.layers):
            yield from _norm(f"wiring.{layer}", d_model)


def _norm(name: str, d_model: int) -> Iterator[Entry]:
    for part in ("gain", "shift"):
        yield Entry(f"{name}.{part}", 1, padded(d_model))


@dataclass(frozen=True)
class Sizes:
    """One stack of a model, with the sizes of its tensors in the file."""

    name: str
    stack: StackConfig
    d_model: int

    @property
    def attention(self) -> Attention:
        return self.stack.attention

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def groups(self) -> int:
        return self.attention.key_heads or self.attention.heads

    @property
    def width(self) -> int:
        """Width of queries and keys in a head."""
        return self.attention.widths(self.d_model)[0]

    @property
    def value_width(self) -> int:
        return self.attention.widths(self.d_model)[1]

    @property
    def padded_width(self) -> int:
        """Padded width of all heads in the core."""
        return -(-max(self.width, self.value_width) // _VECTOR) * _VECTOR

    @property
    def longest(self) -> int:
        return self.stack.positions.longest if isinstance(self.stack.positions, Learned) else LONGEST

    @property
    def scale(self) -> np.float32:
        """The factor of queries before the dot product."""
        unscaled = isinstance(self.attention.score, (Dot, Cosine))
        return np.float32(1.0 if unscaled else self.width**-0.5)

    def facts(self) -> dict[str, int]:
        """The integers of the tensor named like the stack, except those of TABLES."""
        stack, attention = self.stack, self.attention
        unnormed_past = isinstance(stack, TransformerDecoder) and stack.unnormed_past
        return {
            "layers": stack.layers,
            "heads": attention.heads,
            "key_heads": self.groups,
            "width": self.padded_width,
            "real_width": self.width,
            "d_ff": stack.d_ff,
            "longest": self.longest,
            "activation": ACTIVATIONS.index(cast("Activation", stack.activation)),
            "norm": NORMS.index(type(stack.norm)),
            "pre_norm": int(isinstance(stack.residual, PreNorm)) + int(unnormed_past),  # 2: keys of unnormed states
            "query_key_norm": int(attention.query_key_norm),
            "cosine": int(isinstance(attention.score, Cosine)),
            "rectified": int(isinstance(attention.weights, Relu)),
        }

    def entries(self, tables: Sequence[int]) -> Iterator[Entry]:
        """List the tensors of this stack."""
        shapes = ((self.longest, padded(self.d_model)), (self.longest, self.width), (self.heads, 2 * self.longest - 1))
        for table, shape, present in zip(TABLES, shapes, tables, strict=True):
            if present:
                yield Entry(f"{self.name}.{table}", *shape)
        for layer in range(self.stack.layers):
            yield from self._layer_entries(f"{self.name}.{layer}")
        if isinstance(self.stack.residual, PreNorm):
            yield from _norm(f"{self.name}.final", self.d_model)

    def _layer_entries(self, name: str) -> Iterator[Entry]:
        keys, d_ff = 2 * self.groups * self.padded_width, self.stack.d_ff
        yield from self._attention_entries(f"{name}.self", keys)
        yield from _norm(f"{name}.around_self", self.d_model)
        if self.name == "decoder":
            yield from self._attention_entries(f"{name}.cross", 0)
            yield from _norm(f"{name}.around_cross", self.d_model)
            yield Entry(f"{name}.source", keys, self.d_model, is_matrix=True)
        inner = 2 * padded(d_ff) if self.stack.activation in GATED else d_ff
        yield Entry(f"{name}.inner", inner, self.d_model, is_matrix=True)
        yield Entry(f"{name}.outer", self.d_model, d_ff, is_matrix=True)
        yield from _norm(f"{name}.around_feed_forward", self.d_model)

    def _attention_entries(self, name: str, keys: int) -> Iterator[Entry]:
        """List the tensors of an attention; `keys` rows after the queries' project keys and values."""
        queries = self.heads * self.padded_width
        yield Entry(f"{name}.project", queries + keys, self.d_model, is_matrix=True)
        yield Entry(f"{name}.output", self.d_model, queries, is_matrix=True)
        if self.attention.query_key_norm:
            for side in ("query", "key"):
                yield Entry(f"{name}.{side}_norm", 1, self.padded_width)
        if isinstance(self.attention.score, Cosine):
            yield Entry(f"{name}.sharpness", 1, self.heads)
