"""Where Marian's tensors, as Hugging Face names and orders them, stand in our models.

Marian puts the sines of positions into the first half of a vector and the cosines into the second; the paper, and we,
take turns. Nothing else tells one place of a vector from another, so that the same places of all weights change seats
and the model says the same. Shapes: D d_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.model.sublayers import Activation

# relu first: of two names for one function the first is written.
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
BIAS = "final_logits_bias"
SHARED, LM_HEAD = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
FINAL = {side: f"model.{side}.layer_norm" for side in ("encoder", "decoder")}  # of pre-norm stacks
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")  # computed, not learned


@dataclass(frozen=True)
class Name:
    """A tensor's name there and here, and which of its dimensions, if any, is a vector of the model's width."""

    theirs: str
    ours: str
    along: int | None


def layer_names(encoder_layers: int, decoder_layers: int, pre_norm: bool = False) -> Iterator[Name]:
    """All tensors of the two stacks; those of pre-norm models have a norm at the top besides."""
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        attentions = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if side == "decoder" else {})
        for number in range(layers):
            theirs, ours = f"model.{side}.layers.{number}", f"{side}.layers.{number}"
            for their, our in attentions.items():
                yield from _attention(f"{theirs}.{their}", f"{ours}.{our}")
                yield from _norm(f"{theirs}.{their}_layer_norm", f"{ours}.around_{our}.norm")
            yield Name(f"{theirs}.fc1.weight", f"{ours}.feed_forward.inner.weight", 1)
            yield Name(f"{theirs}.fc1.bias", f"{ours}.feed_forward.inner.bias", None)
            yield Name(f"{theirs}.fc2.weight", f"{ours}.feed_forward.outer.weight", 0)
            yield Name(f"{theirs}.fc2.bias", f"{ours}.feed_forward.outer.bias", 0)
            yield from _norm(f"{theirs}.final_layer_norm", f"{ours}.around_feed_forward.norm")
        if pre_norm:
            yield from _norm(FINAL[side], f"{side}.final")


def _attention(theirs: str, ours: str) -> Iterator[Name]:
    for their, our in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        yield Name(f"{theirs}.{their}.weight", f"{ours}.{our}.weight", 1)
        yield Name(f"{theirs}.{their}.bias", f"{ours}.{our}.bias", None)
    yield Name(f"{theirs}.out_proj.weight", f"{ours}.output.weight", 0)
    yield Name(f"{theirs}.out_proj.bias", f"{ours}.output.bias", 0)


def _norm(theirs: str, ours: str) -> Iterator[Name]:
    for kind in ("weight", "bias"):
        yield Name(f"{theirs}.{kind}", f"{ours}.{kind}", 0)


def take_turns(d_model: int) -> Tensor:
    """For each place of our vectors the one of theirs (D,): first sine, first cosine, second sine and so on."""
    sines = (d_model + 1) // 2
    order = torch.empty(d_model, dtype=torch.int64)
    order[0::2], order[1::2] = torch.arange(sines), torch.arange(sines, d_model)
    return order


def sines_first(d_model: int) -> Tensor:
    """For each place of their vectors the one of ours (D,)."""
    return take_turns(d_model).argsort()


def reordered(tensors: Mapping[str, Tensor], names: Mapping[str, int | None], order: Tensor) -> dict[str, Tensor]:
    """Tensors with new order along the dimension given for each."""
    return {
        name: tensors[name].clone() if along is None else tensors[name].index_select(along, order)
        for name, along in names.items()
    }
