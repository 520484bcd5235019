"""A torch model out of the native engine's weight file: the inverse of lowering.py, so that it can be looked into.

Weights that were stored as whole numbers come back rounded. What was folded away comes back in another form that does
the same: a bilinear matrix is in the queries and is itself the identity, running statistics are in a norm's gain.
Letters: D d_model, H heads, G heads of keys and values, K a head's width, W the padded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from transduce.errors import RunError, explaining_shortage
from transduce.model.norms import BatchNorm, RMSNorm
from transduce.model.positions import Learned, PositionScheme, RelativeBias
from transduce.model.scores import Bilinear, Cosine
from transduce.model.seq2seq import Model
from transduce.model.sublayers import GATED, PreNorm
from transduce.model.transformer import StackConfig, TransformerDecoder
from transduce.model.whole import EncoderDecoder
from transduce.model.wiring import Matched
from transduce.native.layout import TABLES, Sizes, entries, is_wired, whole_facts
from transduce.native.lowering import reasons_against
from transduce.native.weight_file import Floats
from transduce.native.weight_format import padded
from transduce.native.weight_reader import WeightReader

_NOTHING = np.float32(1e-30)  # a share of nothing, whose logarithm can be taken
# How many times its file's size a model's weights may have, in which bytes become floats of four. Tensors of a file may
# share their bytes, so that a small file could describe a model of any size.
_MOST_TIMES, _MOST_TIMES_ROUNDED, _SPARE = 2, 6, 1 << 20


def raised(config: Model, path: Path, source_vocabulary: int, target_vocabulary: int, shared: bool) -> EncoderDecoder:
    """The model in a weight file; heads beside the output are not in it, and so not in the model.

    Both the file and the config may come from anywhere: they are compared before a model is built.
    """
    sizes = source_vocabulary, target_vocabulary
    config = replace(config, heads=())
    file = WeightReader(path)
    _check_fit(config, file, *sizes, shared)
    with explaining_shortage(lambda: f"while opening {path}: free memory, or use a smaller model"):
        model = config.build(*sizes, shared)
        with torch.no_grad(), np.errstate(over="ignore"):  # weights near the end of the floats
            own = model.state_dict()
            for name, values in _weights(config, model, file):
                own.pop(name).copy_(torch.from_numpy(np.array(values)))
    assert not own, f"weights that were not read: {', '.join(own)}"
    return model


def _check_fit(config: Model, file: WeightReader, source: int, target: int, shared: bool) -> None:
    """Refuse a file that is not of the model in the config: by its numbers, then by the shape of every tensor.

    Last by the size of the model as torch would build it: parts of it need not be in the file, or share their bytes.
    """
    reasons = reasons_against(config)
    if reasons:
        raise _another_model(file.path, "; ".join(reasons))
    stacks = {"encoder": cast("StackConfig", config.encoder), "decoder": cast("StackConfig", config.decoder)}
    every = {name: Sizes(name, stack, config.d_model).facts() for name, stack in stacks.items()}
    tables = {}
    for tensor, facts in ({"sizes": whole_facts(config, source, target)} | every).items():
        stored = file.integers(tensor, len(facts) + (len(TABLES) if tensor in stacks else 0))
        tables[tensor] = stored[len(facts) :]
        for (name, value), found in zip(facts.items(), stored, strict=False):
            if value != found:
                raise _another_model(file.path, f"{tensor}: {name} is {value:,} there, and {found:,} in the weights")
    layers = sum(stack.layers for stack in stacks.values())
    if layers > len(file):
        raise _another_model(file.path, f"{layers:,} layers, and only {len(file):,} tensors")
    file.require(entries(config, source, target, tables))
    try:
        with torch.device("meta"):  # shapes without numbers
            model = config.build(source, target, shared)
        needed = sum(4 * parameter.numel() for parameter in model.parameters())
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:  # more than can be counted
        raise _another_model(file.path, f"it cannot be built: {error!s:.120}") from None
    if needed > (_MOST_TIMES_ROUNDED if file.rounded("output") else _MOST_TIMES) * file.size + _SPARE:
        raise _another_model(file.path, f"it would have {needed:,} bytes, and the file has {file.size:,}")


def _another_model(path: Path, why: str) -> RunError:
    return RunError(
        f"{path}: config.toml beside it describes another model than these weights are: {why}. Convert the model again,"
        " or copy the whole folder again from where it came"
    )


def _weights(config: Model, model: EncoderDecoder, file: WeightReader) -> Iterator[tuple[str, Floats]]:
    for name in ("source", "target", "output"):
        rows = cast("Any", getattr(model, f"{name}_embedding")).weight.shape[0]
        weight, bias = file.matrix(name, rows, config.d_model, -math.inf if name == "output" else 0.0)
        yield f"{name}_embedding.weight", weight
        if name == "output" and config.output_bias:
            yield "output_bias", bias
    encoder, decoder = cast("StackConfig", config.encoder), cast("TransformerDecoder", config.decoder)
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        scheme = cast("PositionScheme", getattr(model, side).positions)
        yield from _Raised(side, stack, config.d_model, file).weights(scheme)
    if not is_wired(config):
        return
    shares = file.floats("shares", decoder.layers, encoder.layers)
    if not isinstance(decoder.wiring, Matched):
        yield "decoder.wiring.shares", np.log(np.maximum(shares, _NOTHING))
    for layer in range(encoder.layers):
        for kind, own in (("gain", "weight"), ("shift", "bias")):
            values = file.floats(f"wiring.{layer}.{kind}", 1, padded(config.d_model))
            yield f"decoder.wiring.norms.{layer}.{own}", values[0, : config.d_model]


@dataclass(frozen=True)
class _Raised(Sizes):
    """The stack with its tensors in the file."""

    file: WeightReader

    def weights(self, scheme: PositionScheme) -> Iterator[tuple[str, Floats]]:
        yield from self._positions(scheme)
        for layer in range(self.stack.layers):
            yield from self._layer(f"{self.name}.layers.{layer}", f"{self.name}.{layer}")
        if isinstance(self.stack.residual, PreNorm):
            yield from self._norm(f"{self.name}.final", f"{self.name}.final")

    def _positions(self, scheme: PositionScheme) -> Iterator[tuple[str, Floats]]:
        """Of the schemes only these two learn; a table that is missing was nothing but zeros."""
        if isinstance(self.stack.positions, Learned):
            there = self.file.integers(self.name, len(self.facts()) + len(TABLES))[-len(TABLES)]
            table = (
                self.file.floats(f"{self.name}.positions", self.longest, padded(self.d_model))
                if there
                else np.zeros((self.longest, self.d_model), np.float32)
            )
            yield f"{self.name}.positions.vectors", table[:, : self.d_model]
        if isinstance(self.stack.positions, RelativeBias):
            yield f"{self.name}.positions.table", self._buckets(cast("Any", scheme))

    def _buckets(self, scheme: Any) -> Floats:
        """(buckets, H): which bucket a distance falls into is read off a table that holds its own row numbers."""
        # (H, 2 * longest - 1), the farthest behind first
        bias = self.file.floats(f"{self.name}.bias", self.heads, 2 * self.longest - 1)
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
        d_ff, begin = self.stack.d_ff, padded(self.stack.d_ff)
        inner, bias = self.file.matrix(
            f"{name}.inner", 2 * begin if self.stack.activation in GATED else d_ff, self.d_model
        )
        yield from _linear(f"{own}.feed_forward.inner", inner[:d_ff], bias[:d_ff])
        if self.stack.activation in GATED:
            gate = slice(begin, begin + d_ff)
            yield from _linear(f"{own}.feed_forward.gate", inner[gate], bias[gate])
        yield from _linear(f"{own}.feed_forward.outer", *self.file.matrix(f"{name}.outer", self.d_model, d_ff))
        yield from self._norm(f"{own}.around_feed_forward.norm", f"{name}.around_feed_forward")

    def _attention(self, own: str, name: str, keyed: str) -> Iterator[tuple[str, Floats]]:
        """`keyed` is the matrix whose last rows make keys and values: of itself the one that makes queries too."""
        heads, rows, queries = self.heads, self.groups * self.wide, self.heads * self.wide
        scale = np.float32(1) if self.attention.query_key_norm else self.scale
        itself = keyed == f"{name}.project"
        project = self.file.matrix(f"{name}.project", queries + (2 * rows if itself else 0), self.d_model)
        parts = (self._narrower(part[:queries], self.width) / scale for part in project)
        yield from _linear(f"{own}.query", *parts)
        sides = [part[queries:] for part in project] if itself else self.file.matrix(keyed, 2 * rows, self.d_model)
        for side, begin, width in (("key", 0, self.width), ("value", rows, self.value_width)):
            parts = (self._narrower(part[begin : begin + rows], width) for part in sides)
            yield from _linear(f"{own}.{side}", *parts)
        joined, shift = self.file.matrix(f"{name}.output", self.d_model, queries)  # (D, H * W)
        parted = joined.reshape(self.d_model, heads, self.wide)[:, :, : self.value_width]
        yield from _linear(f"{own}.output", parted.reshape(self.d_model, -1), shift)
        yield from self._scoring(own, name)

    def _scoring(self, own: str, name: str) -> Iterator[tuple[str, Floats]]:
        if self.attention.query_key_norm:
            for side, scale in (("query", self.scale), ("key", np.float32(1))):
                norm = self.file.floats(f"{name}.{side}_norm", 1, self.wide)[0, : self.width]
                yield f"{own}.{side}_norm.weight", norm / scale
        if isinstance(self.attention.score, Cosine):
            sharpness = self.file.floats(f"{name}.sharpness", 1, self.heads)
            if not (sharpness > 0).all():
                raise RunError(f"{self.file.path}: '{name}.sharpness' is not above zero. Convert the model again")
            yield f"{own}.score.log_scale", np.log(sharpness).reshape(-1, 1, 1)
        if isinstance(self.attention.score, Bilinear):
            one = np.eye(self.width, dtype=np.float32)
            yield f"{own}.score.matrix", np.broadcast_to(one, (self.heads, *one.shape))

    def _narrower(self, heads: Floats, width: int) -> Floats:
        """(H * W, ...) -> (H * K, ...)"""
        parted = heads.reshape(-1, self.wide, *heads.shape[1:])[:, :width]
        return parted.reshape(-1, *heads.shape[1:])

    def _norm(self, own: str, name: str) -> Iterator[tuple[str, Floats]]:
        sides = (self.file.floats(f"{name}.{kind}", 1, padded(self.d_model)) for kind in ("gain", "shift"))
        gain, shift = (side[0, : self.d_model] for side in sides)
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
