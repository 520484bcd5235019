"""Lower a Transformer to the native engine's tensors, folding what can be folded; and raise it back to torch.

Scales of scores and bilinear matrices are folded into the query projection, running statistics into an affine map,
positions into tables. Heads are padded with zeros to multiples of 16. Unsupported models are refused with all reasons.
`raised` is the inverse: a torch model from a weight file. Weights stored as integers come back rounded, and folded ones
in an equivalent form: a bilinear matrix is in the queries and itself the identity, running statistics are in a norm's
gain.
Shapes: D d_model, H heads, G heads of keys and values, K a head's width, W the padded one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from transduce.core.config import kind_of, own_parts
from transduce.core.errors import ConfigError, RunError, explaining_shortage
from transduce.engines.native.layout import ACTIVATIONS, NORMS, TABLES, Sizes, entries, is_wired, model_facts
from transduce.engines.native.weight_file import Floats, PackedTensor, WeightReader, floats, integers, matrix
from transduce.engines.native.weight_format import padded
from transduce.model.blocks import GATED, PositionWise, PostNorm, PreNorm
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.model.norms import BatchNorm, RMSNorm
from transduce.model.positions import Learned, PositionScheme, RelativeBias, Rotary
from transduce.model.scores import Bilinear, Cosine, Dot, Relu, ScaledDot, Softmax
from transduce.model.seq2seq import Model
from transduce.model.sources import Tokens
from transduce.model.transformer import Matched, Mixed, StackConfig, Top, TransformerDecoder, TransformerEncoder

# Kinds that the core runs, by part of a stack; every other kind is refused. Positions are read off any scheme.
RUNS: dict[str, tuple[Any, ...]] = {
    "attention.score": (ScaledDot, Dot, Bilinear, Cosine),
    "attention.weights": (Softmax, Relu),
    "activation": ACTIVATIONS,
    "feed_forward": (PositionWise,),
    "norm": NORMS,
    "residual": (PostNorm, PreNorm),
    "wiring": (Top, Matched, Mixed),
}


def reasons_against(config: Model) -> list[str]:
    """Why the native engine cannot run a model; empty if it can."""
    reasons = []
    if not isinstance(config.source, Tokens):
        reasons.append(f"model.source is '{kind_of(type(config.source))}', and only 'tokens' are read")
    for name, stack, known in (
        ("encoder", config.encoder, TransformerEncoder),
        ("decoder", config.decoder, TransformerDecoder),
    ):
        if not isinstance(stack, known):
            reasons.append(f"model.{name} is '{kind_of(type(stack))}', and only 'transformer' is run")
            continue
        if stack.window:
            reasons.append(f"model.{name}.window is {stack.window}, and only attention to all places is run")
        reasons += [f"{part} is '{kind}', a class of your own" for part, kind in own_parts(stack, f"model.{name}")]
        reasons += _kinds_not_run(stack, f"model.{name}")
        where = f"model.{name}.attention"
        if isinstance(stack.attention.score, Bilinear):
            if isinstance(stack.positions, Rotary):
                reasons.append(
                    f"{where}.score is 'bilinear' after rotary positions, between which nothing can be folded"
                )
            if stack.attention.query_key_norm:
                reasons.append(f"{where}.score is 'bilinear' after query_key_norm, between which nothing can be folded")
    return reasons


def _kinds_not_run(stack: StackConfig, where: str) -> Iterator[str]:
    """Reasons against kinds that are not in `RUNS`; `own_parts` tells of the user's own classes."""
    own = {part for part, _ in own_parts(stack, where)}
    for part, kinds in RUNS.items():
        value: Any = stack
        for name in part.split("."):
            value = getattr(value, name, None)
        if value is None or f"{where}.{part}" in own:
            continue  # an encoder has no wiring
        if (value if isinstance(value, str) else type(value)) not in kinds:
            known = ", ".join(f"'{_word(kind)}'" for kind in kinds)
            yield f"{where}.{part} is '{_word(value)}', and only {known} are run"


def _word(kind: Any) -> str:
    """A kind as configs write it."""
    return kind if isinstance(kind, str) else kind_of(kind if isinstance(kind, type) else type(kind))


def lower(config: Model, model: EncoderDecoder, quantize: bool) -> dict[str, PackedTensor]:
    """Build every tensor of the weight file."""
    reasons = reasons_against(config)
    if reasons:
        raise ConfigError("the native engine cannot run this model: " + "; ".join(reasons) + ". Use the torch engine")
    weights = _Weights({name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()})
    source, target = weights["source_embedding.weight"], weights["target_embedding.weight"]
    encoder, decoder = cast("StackConfig", config.encoder), cast("TransformerDecoder", config.decoder)
    wired = is_wired(config)
    tensors = {
        "sizes": integers(list(model_facts(config, len(source), len(target)).values())),
        "embedding_scale": floats(np.array([math.sqrt(config.d_model)])),
        **matrix("source", source, None, quantize),
        **matrix("target", target, None, quantize),
        # A padding output is never chosen, and adds nothing to a softmax.
        **matrix("output", weights["output_embedding.weight"], weights.optional("output_bias"), quantize, -math.inf),
    }
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        scheme = cast("PositionScheme", getattr(model, name).positions)
        tensors.update(_Lowered(name, stack, config.d_model, weights, quantize).tensors(scheme))
    if wired:
        tensors.update(_wiring(config, weights))
    weights.check_all_taken()
    return tensors


class _Weights(dict[str, Floats]):
    """The weights of a model, which records those that were read: a forgotten one would change the model's output."""

    def __init__(self, tensors: dict[str, Floats]) -> None:
        super().__init__(tensors)
        self.taken: set[str] = set()

    def __getitem__(self, name: str) -> Floats:
        self.taken.add(name)
        return super().__getitem__(name)

    def optional(self, name: str) -> Floats | None:
        """Return a weight, or None if the model has none of this name."""
        self.taken.add(name)
        return self.get(name)

    def check_all_taken(self) -> None:
        """Refuse weights that were not read, except those of training heads and positions, which schemes compute."""
        free = ("heads.", "encoder.positions.", "decoder.positions.")
        left = [name for name in self if name not in self.taken and not name.startswith(free)]
        if left:
            raise ConfigError(f"the native engine does not know these weights of the model: {', '.join(left)}")


def _wiring(config: Model, weights: _Weights) -> Iterator[tuple[str, PackedTensor]]:
    """Each decoder layer's share of each encoder layer, and the norms."""
    encoder, decoder = config.encoder.layers, cast("TransformerDecoder", config.decoder)
    if isinstance(decoder.wiring, Matched):
        shares = np.eye(decoder.layers, dtype=np.float32)
    else:
        shares = torch.from_numpy(weights["decoder.wiring.shares"]).softmax(-1).numpy()
    yield "shares", floats(shares)
    for layer in range(encoder):
        norm = f"decoder.wiring.norms.{layer}"
        yield from _affine(f"wiring.{layer}", weights[f"{norm}.weight"], weights[f"{norm}.bias"])


def _affine(name: str, gain: Floats, shift: Floats) -> Iterator[tuple[str, PackedTensor]]:
    for kind, values in (("gain", gain), ("shift", shift)):
        yield f"{name}.{kind}", floats(np.pad(values, (0, padded(len(values)) - len(values))))


@dataclass(frozen=True)
class _Lowered(Sizes):
    """A stack with its weights, to be lowered."""

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
        """Tables of a position scheme, from its effect on zeros and ones."""
        longest, heads = self.longest, self.attention.heads
        with torch.no_grad():
            added = scheme.add(torch.zeros(1, longest, self.d_model), 0)[0]
            rotations = scheme.rotate(torch.tensor([1.0, 0.0]).repeat(1, 1, longest, self.width // 2), 0)[0, 0]
            behind = scheme.bias(1, longest)
            bias = None if behind is None else torch.cat((behind[0, :, 0], self._ahead(scheme)), dim=1)
        if added.any():
            table = np.zeros((longest, padded(self.d_model)), dtype=np.float32)
            table[:, : self.d_model] = added.numpy()
            yield f"{self.name}.positions", floats(table)
        if self.width > 1 and rotations[:, 1::2].any():
            yield f"{self.name}.rotary", floats(rotations.numpy())
        if bias is not None:
            yield f"{self.name}.bias", floats(bias.float().reshape(heads, 2 * longest - 1).numpy())

    def _ahead(self, scheme: PositionScheme) -> torch.Tensor:
        """Bias (H, longest - 1) of keys ahead of the query, which a decoder masks."""
        if self.name == "decoder":
            return torch.zeros(self.attention.heads, self.longest - 1)
        first = scheme.bias_at(torch.tensor([0]), self.longest)
        assert first is not None
        return first[0, :, 0, 1:]

    def _layer(self, prefix: str, name: str) -> Iterator[tuple[str, PackedTensor]]:
        yield from self._attention(f"{prefix}.attention", f"{name}.self", with_keys=True)
        yield from self._norm(f"{prefix}.around_attention.norm", f"{name}.around_self")
        if self.name == "decoder":
            yield from self._attention(f"{prefix}.cross", f"{name}.cross", with_keys=False)
            yield from self._norm(f"{prefix}.around_cross.norm", f"{name}.around_cross")
            yield from self._matrix(f"{name}.source", *self._keys_and_values(f"{prefix}.cross"))
        inner, bias = self._linear(f"{prefix}.feed_forward.inner")
        if self.stack.activation in GATED:
            gate, gate_bias = self._linear(f"{prefix}.feed_forward.gate")
            inner, bias = (
                np.concatenate((self._to_panels(a), self._to_panels(b))) for a, b in ((inner, gate), (bias, gate_bias))
            )
        yield from self._matrix(f"{name}.inner", inner, bias)
        yield from self._matrix(f"{name}.outer", *self._linear(f"{prefix}.feed_forward.outer"))
        yield from self._norm(f"{prefix}.around_feed_forward.norm", f"{name}.around_feed_forward")

    def _attention(self, prefix: str, name: str, with_keys: bool) -> Iterator[tuple[str, PackedTensor]]:
        weight, bias = self._query(prefix)
        if with_keys:
            parts = self._keys_and_values(prefix)
            weight, bias = (np.concatenate(pair) for pair in zip((weight, bias), parts, strict=True))
        yield from self._matrix(f"{name}.project", weight, bias)
        joined, shift = self._linear(f"{prefix}.output")  # (D, D)
        heads = joined.reshape(self.d_model, self.attention.heads, self.value_width)
        heads = np.pad(heads, ((0, 0), (0, 0), (0, self.padded_width - self.value_width)))
        yield from self._matrix(f"{name}.output", heads.reshape(self.d_model, -1), shift)
        if self.attention.query_key_norm:
            padding = (0, self.padded_width - self.width)
            query, key = (self.weights[f"{prefix}.{side}_norm.weight"] for side in ("query", "key"))
            yield f"{name}.query_norm", floats(np.pad(query * self.scale, padding))
            yield f"{name}.key_norm", floats(np.pad(key, padding))
        if isinstance(self.attention.score, Cosine):
            yield f"{name}.sharpness", floats(np.exp(self.weights[f"{prefix}.score.log_scale"]).reshape(1, -1))

    def _query(self, prefix: str) -> tuple[Floats, Floats]:
        weight, bias = self._linear(f"{prefix}.query")
        weight = weight.reshape(self.attention.heads, self.width, -1)
        bias = bias.reshape(self.attention.heads, self.width, 1)
        if isinstance(self.attention.score, Bilinear):
            transposed = self.weights[f"{prefix}.score.matrix"].transpose(0, 2, 1).astype(np.float64)
            weight, bias = (transposed @ weight).astype(np.float32), (transposed @ bias).astype(np.float32)
        if not self.attention.query_key_norm:  # else the norm would undo it, and it goes into the norm's weights
            weight, bias = weight * self.scale, bias * self.scale
        return self._padded_heads(weight), self._padded_heads(bias).reshape(-1)

    def _keys_and_values(self, prefix: str) -> tuple[Floats, Floats]:
        sides = [self._linear(f"{prefix}.{side}") for side in ("key", "value")]
        weights = [self._padded_heads(weight.reshape(self.groups, -1, self.d_model)) for weight, _ in sides]
        biases = [self._padded_heads(bias.reshape(self.groups, -1, 1)).reshape(-1) for _, bias in sides]
        return np.concatenate(weights), np.concatenate(biases)

    def _padded_heads(self, heads: Floats) -> Floats:
        """Pad heads: (H, K, D) -> (H * W, D)."""
        return np.pad(heads, ((0, 0), (0, self.padded_width - heads.shape[1]), (0, 0))).reshape(-1, heads.shape[2])

    def _to_panels(self, values: Floats) -> Floats:
        padding: Any = ((0, padded(len(values)) - len(values)), *((0, 0),) * (values.ndim - 1))
        return np.pad(values, padding)

    def _linear(self, name: str) -> tuple[Floats, Floats]:
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]

    def _matrix(self, name: str, weight: Floats, bias: Floats) -> Iterator[tuple[str, PackedTensor]]:
        yield from matrix(name, weight, bias, self.quantize).items()

    def _norm(self, prefix: str, name: str) -> Iterator[tuple[str, PackedTensor]]:
        gain = self.weights[f"{prefix}.weight"]
        if isinstance(self.stack.norm, BatchNorm):
            gain = gain / np.sqrt(self.weights[f"{prefix}.running_variance"] + np.float32(1e-5))
            shift = self.weights[f"{prefix}.bias"] - self.weights[f"{prefix}.running_mean"] * gain
        else:
            bias = self.weights.optional(f"{prefix}.bias")
            shift = np.zeros_like(gain) if bias is None else bias
        yield from _affine(name, gain, shift)


_TINY = np.float32(1e-30)  # a share of zero, with a finite logarithm
# The largest allowed ratio of a model's size to its file's, where bytes become floats of four. Tensors of a file may
# share their bytes, so a small file could describe a model of any size.
_MOST_TIMES, _MOST_TIMES_ROUNDED, _SPARE = 2, 6, 1 << 20


def raised(config: Model, path: Path, source_vocabulary: int, target_vocabulary: int, shared: bool) -> EncoderDecoder:
    """Build the torch model of a weight file, without heads beside the output, which are not in it.

    Both the file and the config are untrusted: they are compared before a model is built.
    """
    sizes = source_vocabulary, target_vocabulary
    config = replace(config, heads=())
    file = WeightReader(path)
    _check_fit(config, file, *sizes, shared)
    with explaining_shortage(lambda: f"while opening {path}: free memory, or use a smaller model"):
        model = config.build(*sizes, shared)
        with torch.no_grad(), np.errstate(over="ignore"):  # weights near the largest float
            state = model.state_dict()
            for name, values in _weights(config, model, file):
                state.pop(name).copy_(torch.from_numpy(np.array(values)))
    assert not state, f"weights that were not read: {', '.join(state)}"
    return model


def _check_fit(config: Model, file: WeightReader, source: int, target: int, shared: bool) -> None:
    """Refuse a file that does not match the config: by its integers, then by the shape of every tensor.

    Last by the size of the torch model: parts of it need not be in the file, or may share their bytes.
    """
    reasons = reasons_against(config)
    if reasons:
        raise _another_model(file.path, "; ".join(reasons))
    stacks = {"encoder": cast("StackConfig", config.encoder), "decoder": cast("StackConfig", config.decoder)}
    facts_of_stacks = {name: Sizes(name, stack, config.d_model).facts() for name, stack in stacks.items()}
    tables = {}
    for tensor, facts in ({"sizes": model_facts(config, source, target)} | facts_of_stacks).items():
        stored = file.integers(tensor, len(facts) + (len(TABLES) if tensor in stacks else 0))
        tables[tensor] = stored[len(facts) :]
        for (name, value), stored_value in zip(facts.items(), stored, strict=False):
            if value != stored_value:
                raise _another_model(
                    file.path, f"{tensor}: {name} is {value:,} there, and {stored_value:,} in the weights"
                )
    layers = sum(stack.layers for stack in stacks.values())
    if layers > len(file):
        raise _another_model(file.path, f"{layers:,} layers, and only {len(file):,} tensors")
    file.require(entries(config, source, target, tables))
    try:
        with torch.device("meta"):  # shapes without numbers
            model = config.build(source, target, shared)
        needed = sum(4 * parameter.numel() for parameter in model.parameters())
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:  # sizes beyond counting
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
        yield "decoder.wiring.shares", np.log(np.maximum(shares, _TINY))
    for layer in range(encoder.layers):
        for kind, parameter in (("gain", "weight"), ("shift", "bias")):
            values = file.floats(f"wiring.{layer}.{kind}", 1, padded(config.d_model))
            yield f"decoder.wiring.norms.{layer}.{parameter}", values[0, : config.d_model]


@dataclass(frozen=True)
class _Raised(Sizes):
    """A stack with its tensors in the file, to be raised."""

    file: WeightReader

    def weights(self, scheme: PositionScheme) -> Iterator[tuple[str, Floats]]:
        yield from self._positions(scheme)
        for layer in range(self.stack.layers):
            yield from self._layer(f"{self.name}.layers.{layer}", f"{self.name}.{layer}")
        if isinstance(self.stack.residual, PreNorm):
            yield from self._norm(f"{self.name}.final", f"{self.name}.final")

    def _positions(self, scheme: PositionScheme) -> Iterator[tuple[str, Floats]]:
        """Weights of the two schemes that learn; a missing table was all zeros."""
        if isinstance(self.stack.positions, Learned):
            present = self.file.integers(self.name, len(self.facts()) + len(TABLES))[-len(TABLES)]
            table = (
                self.file.floats(f"{self.name}.positions", self.longest, padded(self.d_model))
                if present
                else np.zeros((self.longest, self.d_model), np.float32)
            )
            yield f"{self.name}.positions.vectors", table[:, : self.d_model]
        if isinstance(self.stack.positions, RelativeBias):
            yield f"{self.name}.positions.table", self._buckets(cast("Any", scheme))

    def _buckets(self, scheme: Any) -> Floats:
        """Table (buckets, H) of relative positions; a table of row numbers shows the bucket of each distance."""
        # (H, 2 * longest - 1), the farthest behind first
        bias = self.file.floats(f"{self.name}.bias", self.heads, 2 * self.longest - 1)
        with torch.no_grad():
            scheme.table.copy_(torch.arange(len(scheme.table))[:, None].expand_as(scheme.table))
            behind = scheme.bias(1, self.longest)[0, 0, 0]
            ahead = scheme.bias_at(torch.tensor([0]), self.longest)[0, 0, 0, 1:]
        buckets = behind if self.name == "decoder" else torch.cat((behind, ahead))
        table = np.zeros(tuple(scheme.table.shape), dtype=np.float32)
        table[buckets.long().numpy()] = bias.T[: len(buckets)]
        return table

    def _layer(self, prefix: str, name: str) -> Iterator[tuple[str, Floats]]:
        yield from self._attention(f"{prefix}.attention", f"{name}.self", f"{name}.self.project")
        yield from self._norm(f"{prefix}.around_attention.norm", f"{name}.around_self")
        if self.name == "decoder":
            yield from self._attention(f"{prefix}.cross", f"{name}.cross", f"{name}.source")
            yield from self._norm(f"{prefix}.around_cross.norm", f"{name}.around_cross")
        d_ff, begin = self.stack.d_ff, padded(self.stack.d_ff)
        inner, bias = self.file.matrix(
            f"{name}.inner", 2 * begin if self.stack.activation in GATED else d_ff, self.d_model
        )
        yield from _linear(f"{prefix}.feed_forward.inner", inner[:d_ff], bias[:d_ff])
        if self.stack.activation in GATED:
            gate = slice(begin, begin + d_ff)
            yield from _linear(f"{prefix}.feed_forward.gate", inner[gate], bias[gate])
        yield from _linear(f"{prefix}.feed_forward.outer", *self.file.matrix(f"{name}.outer", self.d_model, d_ff))
        yield from self._norm(f"{prefix}.around_feed_forward.norm", f"{name}.around_feed_forward")

    def _attention(self, prefix: str, name: str, keyed: str) -> Iterator[tuple[str, Floats]]:
        """Weights of an attention; the last rows of the matrix `keyed` project keys and values."""
        heads, rows, queries = self.heads, self.groups * self.padded_width, self.heads * self.padded_width
        scale = np.float32(1) if self.attention.query_key_norm else self.scale
        joint = keyed == f"{name}.project"
        project = self.file.matrix(f"{name}.project", queries + (2 * rows if joint else 0), self.d_model)
        parts = (self._unpadded_heads(part[:queries], self.width) / scale for part in project)
        yield from _linear(f"{prefix}.query", *parts)
        sides = [part[queries:] for part in project] if joint else self.file.matrix(keyed, 2 * rows, self.d_model)
        for side, begin, width in (("key", 0, self.width), ("value", rows, self.value_width)):
            parts = (self._unpadded_heads(part[begin : begin + rows], width) for part in sides)
            yield from _linear(f"{prefix}.{side}", *parts)
        joined, shift = self.file.matrix(f"{name}.output", self.d_model, queries)  # (D, H * W)
        parted = joined.reshape(self.d_model, heads, self.padded_width)[:, :, : self.value_width]
        yield from _linear(f"{prefix}.output", parted.reshape(self.d_model, -1), shift)
        yield from self._scoring(prefix, name)

    def _scoring(self, prefix: str, name: str) -> Iterator[tuple[str, Floats]]:
        if self.attention.query_key_norm:
            for side, scale in (("query", self.scale), ("key", np.float32(1))):
                norm = self.file.floats(f"{name}.{side}_norm", 1, self.padded_width)[0, : self.width]
                yield f"{prefix}.{side}_norm.weight", norm / scale
        if isinstance(self.attention.score, Cosine):
            sharpness = self.file.floats(f"{name}.sharpness", 1, self.heads)
            if not (sharpness > 0).all():
                raise RunError(f"{self.file.path}: '{name}.sharpness' is not above zero. Convert the model again")
            yield f"{prefix}.score.log_scale", np.log(sharpness).reshape(-1, 1, 1)
        if isinstance(self.attention.score, Bilinear):
            identity = np.eye(self.width, dtype=np.float32)
            yield f"{prefix}.score.matrix", np.broadcast_to(identity, (self.heads, *identity.shape))

    def _unpadded_heads(self, heads: Floats, width: int) -> Floats:
        """Remove the padding of heads: (H * W, ...) -> (H * K, ...)."""
        parted = heads.reshape(-1, self.padded_width, *heads.shape[1:])[:, :width]
        return parted.reshape(-1, *heads.shape[1:])

    def _norm(self, prefix: str, name: str) -> Iterator[tuple[str, Floats]]:
        sides = (self.file.floats(f"{name}.{kind}", 1, padded(self.d_model)) for kind in ("gain", "shift"))
        gain, shift = (side[0, : self.d_model] for side in sides)
        if isinstance(self.stack.norm, BatchNorm):
            gain = gain * np.sqrt(np.float32(1 + 1e-5))
            yield f"{prefix}.running_mean", np.zeros_like(gain)
            yield f"{prefix}.running_variance", np.ones_like(gain)
        yield f"{prefix}.weight", gain
        if not isinstance(self.stack.norm, RMSNorm):
            yield f"{prefix}.bias", shift


def _linear(name: str, weight: Floats, bias: Floats) -> Iterator[tuple[str, Floats]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", bias
