"""A torch model out of the native engine's weight file: the inverse of lowering.py, so that it can be looked into.

Weights that were stored as whole numbers come back rounded. What was folded away comes back in another form that does
the same: a bilinear matrix is in the queries and is itself the identity, running statistics are in a norm's gain.
Letters: D d_model, H heads, G heads of keys and values, K a head's width, W the padded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from transduce.model.norms import BatchNorm, RMSNorm
from transduce.model.positions import Learned, PositionScheme, RelativeBias
from transduce.model.scores import Bilinear, Cosine
from transduce.model.seq2seq import Model
from transduce.model.sublayers import GATED, PreNorm
from transduce.model.transformer import Stack, TransformerDecoder
from transduce.model.whole import EncoderDecoder
from transduce.model.wiring import Matched, Top
from transduce.native.lowering import Sizes
from transduce.native.weight_file import Floats, Packed, numbers, padded, read, unpacked

_NOTHING = np.float32(1e-30)  # a share of nothing, whose logarithm can be taken


def raised(config: Model, path: Path, source_vocabulary: int, target_vocabulary: int, shared: bool) -> EncoderDecoder:
    """The model in a weight file; heads beside the output are not in it, and so not in the model."""
    model = replace(config, heads=()).build(source_vocabulary, target_vocabulary, shared)
    weights = dict(_weights(config, model, read(path)))
    model.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in weights.items()})
    return model


def _weights(config: Model, model: EncoderDecoder, tensors: Mapping[str, Packed]) -> Iterator[tuple[str, Floats]]:
    for name in ("source", "target", "output"):
        weight, bias = unpacked(tensors, name)
        yield f"{name}_embedding.weight", weight
        if name == "output" and config.output_bias:
            yield "output_bias", bias
    encoder, decoder = cast("Stack", config.encoder), cast("TransformerDecoder", config.decoder)
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        scheme = cast("PositionScheme", getattr(model, side).positions)
        yield from _Raised(side, stack, config.d_model, tensors).weights(scheme)
    if isinstance(decoder.wiring, Top):
        return
    if not isinstance(decoder.wiring, Matched):
        yield "decoder.wiring.shares", np.log(np.maximum(numbers(tensors["shares"]), _NOTHING))
    for layer in range(encoder.layers):
        for kind, own in (("gain", "weight"), ("shift", "bias")):
            yield f"decoder.wiring.norms.{layer}.{own}", numbers(tensors[f"wiring.{layer}.{kind}"])[0, : config.d_model]


@dataclass(frozen=True)
class _Raised(Sizes):
    """The stack with its tensors in the file."""

    tensors: Mapping[str, Packed]

    def weights(self, scheme: PositionScheme) -> Iterator[tuple[str, Floats]]:
        yield from self._positions(scheme)
        for layer in range(self.stack.layers):
            yield from self._layer(f"{self.name}.layers.{layer}", f"{self.name}.{layer}")
        if isinstance(self.stack.residual, PreNorm):
            yield from self._norm(f"{self.name}.final", f"{self.name}.final")

    def _positions(self, scheme: PositionScheme) -> Iterator[tuple[str, Floats]]:
        """Of the schemes only these two learn; a table that is missing was nothing but zeros."""
        if isinstance(self.stack.positions, Learned):
            table = self.tensors.get(f"{self.name}.positions")
            empty = np.zeros((self.longest, self.d_model), dtype=np.float32)
            yield f"{self.name}.positions.vectors", empty if table is None else numbers(table)[:, : self.d_model]
        if isinstance(self.stack.positions, RelativeBias):
            yield f"{self.name}.positions.table", self._buckets(cast("Any", scheme))

    def _buckets(self, scheme: Any) -> Floats:
        """(buckets, H): which bucket a distance falls into is read off a table that holds its own row numbers."""
        bias = numbers(self.tensors[f"{self.name}.bias"])  # (H, 2 * longest - 1), the farthest behind first
        with torch.no_grad():
            scheme.table.copy_(torch.arange(len(scheme.table))[:, None].expand_as(scheme.table))
            behind = scheme.bias(1, self.longest)[0, 0, 0]
            ahead = scheme.bias_at(torch.tensor([0]), self.longest)[0, 0, 0, 1:]
        every = behind if self.name == "decoder" else torch.cat((behind, ahead))
        table = np.zeros(tuple(scheme.table.shape), dtype=np.float32)
        table[every.long().numpy()] = bias.T[: len(every)]
        return table

    def _layer(self, own: str, name: str) -> Iterator[tuple[str, Floats]]:
        yield from self._attention(f"{own}.attention", f"{name}.self", f"{name}.self.project")
        yield from self._norm(f"{own}.around_attention.norm", f"{name}.around_self")
        if self.name == "decoder":
            yield from self._attention(f"{own}.cross", f"{name}.cross", f"{name}.source")
            yield from self._norm(f"{own}.around_cross.norm", f"{name}.around_cross")
        inner, bias = unpacked(self.tensors, f"{name}.inner")
        d_ff, begin = self.stack.d_ff, padded(self.stack.d_ff)
        yield from _linear(f"{own}.feed_forward.inner", inner[:d_ff], bias[:d_ff])
        if self.stack.activation in GATED:
            gate = slice(begin, begin + d_ff)
            yield from _linear(f"{own}.feed_forward.gate", inner[gate], bias[gate])
        yield from _linear(f"{own}.feed_forward.outer", *unpacked(self.tensors, f"{name}.outer"))
        yield from self._norm(f"{own}.around_feed_forward.norm", f"{name}.around_feed_forward")

    def _attention(self, own: str, name: str, keyed: str) -> Iterator[tuple[str, Floats]]:
        """`keyed` is the matrix whose last rows make keys and values: of itself the one that makes queries too."""
        heads, normed = self.attention.heads, self.attention.query_key_norm
        weight, bias = (part[: heads * self.wide] for part in unpacked(self.tensors, f"{name}.project"))
        scale = np.float32(1) if normed else self.scale
        yield from _linear(f"{own}.query", *(self._narrower(part, self.width) / scale for part in (weight, bias)))
        sides = unpacked(self.tensors, keyed)
        end, rows = len(sides[0]), self.groups * self.wide
        for side, begin, width in (("key", end - 2 * rows, self.width), ("value", end - rows, self.value_width)):
            parts = (self._narrower(part[begin : begin + rows], width) for part in sides)
            yield from _linear(f"{own}.{side}", *parts)
        joined, shift = unpacked(self.tensors, f"{name}.output")  # (D, H * W)
        parted = joined.reshape(self.d_model, heads, self.wide)[:, :, : self.value_width]
        yield from _linear(f"{own}.output", parted.reshape(self.d_model, -1), shift)
        yield from self._scoring(own, name)

    def _scoring(self, own: str, name: str) -> Iterator[tuple[str, Floats]]:
        if self.attention.query_key_norm:
            for side, scale in (("query", self.scale), ("key", np.float32(1))):
                norm = numbers(self.tensors[f"{name}.{side}_norm"])[0, : self.width]
                yield f"{own}.{side}_norm.weight", norm / scale
        if isinstance(self.attention.score, Cosine):
            yield f"{own}.score.log_scale", np.log(numbers(self.tensors[f"{name}.sharpness"])).reshape(-1, 1, 1)
        if isinstance(self.attention.score, Bilinear):
            one = np.eye(self.width, dtype=np.float32)
            yield f"{own}.score.matrix", np.broadcast_to(one, (self.attention.heads, *one.shape))

    def _narrower(self, heads: Floats, width: int) -> Floats:
        """(H * W, ...) -> (H * K, ...)"""
        parted = heads.reshape(-1, self.wide, *heads.shape[1:])[:, :width]
        return parted.reshape(-1, *heads.shape[1:])

    def _norm(self, own: str, name: str) -> Iterator[tuple[str, Floats]]:
        gain, shift = (numbers(self.tensors[f"{name}.{kind}"])[0, : self.d_model] for kind in ("gain", "shift"))
        if isinstance(self.stack.norm, BatchNorm):
            gain = gain * np.sqrt(np.float32(1 + 1e-5))
            yield f"{own}.running_mean", np.zeros_like(gain)
            yield f"{own}.running_variance", np.ones_like(gain)
        yield f"{own}.weight", gain
        if not isinstance(self.stack.norm, RMSNorm):
            yield f"{own}.bias", shift


def _linear(name: str, weight: Floats, bias: Floats) -> Iterator[tuple[str, Floats]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", bias
