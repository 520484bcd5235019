"""A Transformer as the native engine wants it: what can be folded into weights is, so that the core knows few cases.

Scales of scores and bilinear matrices go into the queries' projection, running statistics into an affine map, positions
into tables. Heads are padded to multiples of 16 with zeros, which change nothing. What cannot be run is refused, all
reasons at once. Letters: D d_model, H heads, G heads of keys and values, K a head's width, W the padded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from transduce.config import kind_of
from transduce.errors import ConfigError
from transduce.model.norms import BatchNorm
from transduce.model.positions import PositionScheme, Rotary
from transduce.model.scores import Additive, Bilinear, Cosine
from transduce.model.seq2seq import Model
from transduce.model.sources import Tokens
from transduce.model.sublayers import GATED, PreNorm
from transduce.model.transformer import StackConfig, TransformerDecoder, TransformerEncoder
from transduce.model.whole import EncoderDecoder
from transduce.model.wiring import Matched
from transduce.native.layout import Sizes, is_wired, whole_facts
from transduce.native.weight_file import Floats, PackedTensor, floats, integers, matrix
from transduce.native.weight_format import padded


def reasons_against(config: Model) -> list[str]:
    """Why the native engine cannot run such a model; nothing where it can."""
    found = []
    if not isinstance(config.source, Tokens):
        found.append(f"model.source is '{kind_of(type(config.source))}', and only 'tokens' are read")
    for name, stack, known in (
        ("encoder", config.encoder, TransformerEncoder),
        ("decoder", config.decoder, TransformerDecoder),
    ):
        if not isinstance(stack, known):
            found.append(f"model.{name} is '{kind_of(type(stack))}', and only 'transformer' is run")
            continue
        if stack.window:
            found.append(f"model.{name}.window is {stack.window}, and only attention to all places is run")
        where = f"model.{name}.attention"
        if isinstance(stack.attention.score, Additive):
            found.append(f"{where}.score is 'additive', which is no dot product")
        if isinstance(stack.attention.score, Bilinear):
            if isinstance(stack.positions, Rotary):
                found.append(f"{where}.score is 'bilinear' after rotary positions, between which nothing can be folded")
            if stack.attention.query_key_norm:
                found.append(f"{where}.score is 'bilinear' after query_key_norm, between which nothing can be folded")
    return found


def lower(config: Model, model: EncoderDecoder, quantize: bool) -> dict[str, PackedTensor]:
    """Every tensor of the weight file."""
    reasons = reasons_against(config)
    if reasons:
        raise ConfigError("the native engine cannot run this model: " + "; ".join(reasons) + ". Use the torch engine")
    weights = _Weights({name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()})
    source, target = weights["source_embedding.weight"], weights["target_embedding.weight"]
    encoder, decoder = cast("StackConfig", config.encoder), cast("TransformerDecoder", config.decoder)
    wired = is_wired(config)
    found = {
        "sizes": integers(list(whole_facts(config, len(source), len(target)).values())),
        "embedding_scale": floats(np.array([math.sqrt(config.d_model)])),
        **matrix("source", source, None, quantize),
        **matrix("target", target, None, quantize),
        # An output that only pads is never chosen, and nothing beside the others in a softmax.
        **matrix("output", weights["output_embedding.weight"], weights.optional("output_bias"), quantize, -math.inf),
    }
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        scheme = cast("PositionScheme", getattr(model, name).positions)
        found.update(_Lowered(name, stack, config.d_model, weights, quantize).tensors(scheme))
    if wired:
        found.update(_wiring(config, weights))
    weights.check_all_taken()
    return found


class _Weights(dict[str, Floats]):
    """The weights of a model, which knows those that were asked for: one that is left out would change what it says."""

    def __init__(self, tensors: dict[str, Floats]) -> None:
        super().__init__(tensors)
        self.taken: set[str] = set()

    def __getitem__(self, name: str) -> Floats:
        self.taken.add(name)
        return super().__getitem__(name)

    def optional(self, name: str) -> Floats | None:
        """Nothing where the model has none of this name."""
        self.taken.add(name)
        return self.get(name)

    def check_all_taken(self) -> None:
        """Heads beside the output are for training, and positions are read off the schemes themselves."""
        free = ("heads.", "encoder.positions.", "decoder.positions.")
        left = [name for name in self if name not in self.taken and not name.startswith(free)]
        if left:
            raise ConfigError(f"the native engine does not know these weights of the model: {', '.join(left)}")


def _wiring(config: Model, weights: _Weights) -> Iterator[tuple[str, PackedTensor]]:
    """For each decoder layer its share of each encoder layer, normed."""
    encoder, decoder = config.encoder.layers, cast("TransformerDecoder", config.decoder)
    if isinstance(decoder.wiring, Matched):
        shares = np.eye(decoder.layers, dtype=np.float32)
    else:
        shares = torch.from_numpy(weights["decoder.wiring.shares"]).softmax(-1).numpy()
    yield "shares", floats(shares)
    for layer in range(encoder):
        own = f"decoder.wiring.norms.{layer}"
        yield from _affine(f"wiring.{layer}", weights[f"{own}.weight"], weights[f"{own}.bias"])


def _affine(name: str, gain: Floats, shift: Floats) -> Iterator[tuple[str, PackedTensor]]:
    for kind, values in (("gain", gain), ("shift", shift)):
        yield f"{name}.{kind}", floats(np.pad(values, (0, padded(len(values)) - len(values))))


@dataclass(frozen=True)
class _Lowered(Sizes):
    """The stack with its weights."""

    weights: _Weights
    quantize: bool

    def tensors(self, scheme: PositionScheme) -> Iterator[tuple[str, PackedTensor]]:
        stack = self.stack
        tables = dict(self._positions(scheme))
        yield from tables.items()
        present = [int(f"{self.name}.{table}" in tables) for table in ("positions", "rotary", "bias")]
        yield self.name, integers([*self.facts().values(), *present])
        for layer in range(stack.layers):
            yield from self._layer(f"{self.name}.layers.{layer}", f"{self.name}.{layer}")
        if isinstance(stack.residual, PreNorm):
            yield from self._norm(f"{self.name}.final", f"{self.name}.final")

    def _positions(self, scheme: PositionScheme) -> Iterator[tuple[str, PackedTensor]]:
        """What the scheme does, read off what it does to zeros and ones."""
        longest, heads = self.longest, self.attention.heads
        with torch.no_grad():
            added = scheme.add(torch.zeros(1, longest, self.d_model), 0)[0]
            turned = scheme.rotate(torch.tensor([1.0, 0.0]).repeat(1, 1, longest, self.width // 2), 0)[0, 0]
            behind = scheme.bias(1, longest)
            bias = None if behind is None else torch.cat((behind[0, :, 0], self._ahead(scheme)), dim=1)
        if added.any():
            table = np.zeros((longest, padded(self.d_model)), dtype=np.float32)
            table[:, : self.d_model] = added.numpy()
            yield f"{self.name}.positions", floats(table)
        if self.width > 1 and turned[:, 1::2].any():
            yield f"{self.name}.rotary", floats(turned.numpy())
        if bias is not None:
            yield f"{self.name}.bias", floats(bias.float().reshape(heads, 2 * longest - 1).numpy())

    def _ahead(self, scheme: PositionScheme) -> torch.Tensor:
        """Bias (H, longest - 1) of keys ahead of the query, which a decoder does not see."""
        if self.name == "decoder":
            return torch.zeros(self.attention.heads, self.longest - 1)
        first = scheme.bias_at(torch.tensor([0]), self.longest)
        assert first is not None
        return first[0, :, 0, 1:]

    def _layer(self, own: str, name: str) -> Iterator[tuple[str, PackedTensor]]:
        yield from self._attention(f"{own}.attention", f"{name}.self", with_keys=True)
        yield from self._norm(f"{own}.around_attention.norm", f"{name}.around_self")
        if self.name == "decoder":
            yield from self._attention(f"{own}.cross", f"{name}.cross", with_keys=False)
            yield from self._norm(f"{own}.around_cross.norm", f"{name}.around_cross")
            yield from self._matrix(f"{name}.source", *self._keys_and_values(f"{own}.cross"))
        inner, bias = self._linear(f"{own}.feed_forward.inner")
        if self.stack.activation in GATED:
            gate, gate_bias = self._linear(f"{own}.feed_forward.gate")
            inner, bias = (
                np.concatenate((self._to_panels(a), self._to_panels(b))) for a, b in ((inner, gate), (bias, gate_bias))
            )
        yield from self._matrix(f"{name}.inner", inner, bias)
        yield from self._matrix(f"{name}.outer", *self._linear(f"{own}.feed_forward.outer"))
        yield from self._norm(f"{own}.around_feed_forward.norm", f"{name}.around_feed_forward")

    def _attention(self, own: str, name: str, with_keys: bool) -> Iterator[tuple[str, PackedTensor]]:
        weight, bias = self._query(own)
        if with_keys:
            parts = self._keys_and_values(own)
            weight, bias = (np.concatenate(pair) for pair in zip((weight, bias), parts, strict=True))
        yield from self._matrix(f"{name}.project", weight, bias)
        joined, shift = self._linear(f"{own}.output")  # (D, D)
        heads = joined.reshape(self.d_model, self.attention.heads, self.value_width)
        heads = np.pad(heads, ((0, 0), (0, 0), (0, self.wide - self.value_width)))
        yield from self._matrix(f"{name}.output", heads.reshape(self.d_model, -1), shift)
        if self.attention.query_key_norm:
            room = (0, self.wide - self.width)
            query, key = (self.weights[f"{own}.{side}_norm.weight"] for side in ("query", "key"))
            yield f"{name}.query_norm", floats(np.pad(query * self.scale, room))
            yield f"{name}.key_norm", floats(np.pad(key, room))
        if isinstance(self.attention.score, Cosine):
            yield f"{name}.sharpness", floats(np.exp(self.weights[f"{own}.score.log_scale"]).reshape(1, -1))

    def _query(self, own: str) -> tuple[Floats, Floats]:
        weight, bias = self._linear(f"{own}.query")
        weight = weight.reshape(self.attention.heads, self.width, -1)
        bias = bias.reshape(self.attention.heads, self.width, 1)
        if isinstance(self.attention.score, Bilinear):
            turned = self.weights[f"{own}.score.matrix"].transpose(0, 2, 1).astype(np.float64)
            weight, bias = (turned @ weight).astype(np.float32), (turned @ bias).astype(np.float32)
        if not self.attention.query_key_norm:  # a norm would undo it: then it is in the norm's weights
            weight, bias = weight * self.scale, bias * self.scale
        return self._wider(weight), self._wider(bias).reshape(-1)

    def _keys_and_values(self, own: str) -> tuple[Floats, Floats]:
        sides = [self._linear(f"{own}.{side}") for side in ("key", "value")]
        weights = [self._wider(weight.reshape(self.groups, -1, self.d_model)) for weight, _ in sides]
        biases = [self._wider(bias.reshape(self.groups, -1, 1)).reshape(-1) for _, bias in sides]
        return np.concatenate(weights), np.concatenate(biases)

    def _wider(self, heads: Floats) -> Floats:
        """(H, K, D) -> (H * W, D)"""
        return np.pad(heads, ((0, 0), (0, self.wide - heads.shape[1]), (0, 0))).reshape(-1, heads.shape[2])

    def _to_panels(self, values: Floats) -> Floats:
        room: Any = ((0, padded(len(values)) - len(values)), *((0, 0),) * (values.ndim - 1))
        return np.pad(values, room)

    def _linear(self, name: str) -> tuple[Floats, Floats]:
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]

    def _matrix(self, name: str, weight: Floats, bias: Floats) -> Iterator[tuple[str, PackedTensor]]:
        yield from matrix(name, weight, bias, self.quantize).items()

    def _norm(self, own: str, name: str) -> Iterator[tuple[str, PackedTensor]]:
        gain = self.weights[f"{own}.weight"]
        if isinstance(self.stack.norm, BatchNorm):
            gain = gain / np.sqrt(self.weights[f"{own}.running_variance"] + np.float32(1e-5))
            shift = self.weights[f"{own}.bias"] - self.weights[f"{own}.running_mean"] * gain
        else:
            found = self.weights.optional(f"{own}.bias")
            shift = np.zeros_like(gain) if found is None else found
        yield from _affine(name, gain, shift)
