"""Write our Transformer's weights as a CTranslate2 model, through its specification and its quantization.

It covers what the benchmark decodes: softmax attention of equal heads, ReLU, LayerNorm before or after, sinusoids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from transduce.model.blocks import PreNorm
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.model.positions import sinusoids
from transduce.model.seq2seq import Model


def words(vocabulary: int) -> list[str]:
    """Names of tokens: a letter and the token id."""
    return ["<pad>", "<unk>", "<s>", "</s>", *(f"t{number}" for number in range(4, vocabulary))]


def write_ctranslate2(config: Model, model: EncoderDecoder, folder: Path, quantization: str | None) -> None:
    """Write a model folder for `ctranslate2.Translator`."""
    from ctranslate2.specs import common_spec, transformer_spec  # type: ignore[import-not-found]

    weights = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    encoder: Any = config.encoder
    before = isinstance(encoder.residual, PreNorm)
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers),
        encoder.attention.heads,
        pre_norm=before,
        activation=common_spec.Activation.RELU,
    )
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        table = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        table.weight = weights[f"{'source' if side == 'encoder' else 'target'}_embedding.weight"]
        stack.scale_embeddings = True
        stack.position_encodings.encodings = sinusoids(1024, config.d_model).numpy()
        if before:
            _norm(stack.layer_norm, weights, f"{side}.final")
        for number, layer in enumerate(stack.layer):
            _fill_layer(layer, weights, f"{side}.layers.{number}", side == "decoder")
    output = weights["output_embedding.weight"]
    spec.decoder.projection.weight, spec.decoder.projection.bias = output, np.zeros(len(output), np.float32)
    spec.register_source_vocabulary(words(len(weights["source_embedding.weight"])))
    spec.register_target_vocabulary(words(len(output)))
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _fill_layer(layer: Any, weights: dict[str, Any], name: str, decoder: bool) -> None:
    own = f"{name}.attention"
    _linear(layer.self_attention.linear[0], weights, f"{own}.query", f"{own}.key", f"{own}.value")
    _linear(layer.self_attention.linear[1], weights, f"{own}.output")
    _norm(layer.self_attention.layer_norm, weights, f"{name}.around_attention.norm")
    if decoder:
        cross = f"{name}.cross"
        _linear(layer.attention.linear[0], weights, f"{cross}.query")
        _linear(layer.attention.linear[1], weights, f"{cross}.key", f"{cross}.value")
        _linear(layer.attention.linear[2], weights, f"{cross}.output")
        _norm(layer.attention.layer_norm, weights, f"{name}.around_cross.norm")
    _linear(layer.ffn.linear_0, weights, f"{name}.feed_forward.inner")
    _linear(layer.ffn.linear_1, weights, f"{name}.feed_forward.outer")
    _norm(layer.ffn.layer_norm, weights, f"{name}.around_feed_forward.norm")


def _linear(spec: Any, weights: dict[str, Any], *names: str) -> None:
    spec.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
    spec.bias = np.concatenate([weights[f"{name}.bias"] for name in names])


def _norm(spec: Any, weights: dict[str, Any], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]
