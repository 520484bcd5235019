"""Write our weights for Hugging Face's MarianMTModel: names and order as in the export, without a tokenizer.

It covers what the benchmark decodes: one shared vocabulary and embedding, post-norm LayerNorm, sinusoids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from workload import BOS, EOS, PAD, UNK

from transduce.exchange.marian_config import BIAS, SHARED, Name, layer_names, reordered, sines_first
from transduce.model.blocks import PostNorm
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.model.seq2seq import Model


def write_huggingface(config: Model, model: EncoderDecoder, folder: Path) -> None:
    """Write a folder for `MarianMTModel.from_pretrained`."""
    encoder: Any = config.encoder
    decoder: Any = config.decoder
    if config.tie != "all" or not isinstance(encoder.residual, PostNorm):
        raise SystemExit("Marian has one embedding for all and post-norm layers; leave huggingface out of --peers")
    weights = model.weights()
    names = [*layer_names(encoder.layers, decoder.layers), Name(SHARED, "source_embedding.weight", 1)]
    ordered = reordered(weights, {name.ours: name.along for name in names}, sines_first(config.d_model))
    vocabulary = len(weights["source_embedding.weight"])
    tensors = {name.theirs: ordered[name.ours].contiguous() for name in names}
    tensors[BIAS] = weights.get("output_bias", torch.zeros(vocabulary)).unsqueeze(0)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    facts = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": config.d_model,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "encoder_attention_heads": encoder.attention.heads,
        "decoder_attention_heads": decoder.attention.heads,
        "encoder_ffn_dim": encoder.d_ff,
        "decoder_ffn_dim": decoder.d_ff,
        "activation_function": encoder.activation,
        "max_position_embeddings": 1024,
        "vocab_size": vocabulary,
        "scale_embedding": True,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "bad_words_ids": [[PAD], [UNK], [BOS]],
    }
    generation = {name: facts.pop(name) for name in ("bad_words_ids", "forced_eos_token_id")}
    (folder / "config.json").write_text(json.dumps(facts, indent=1))
    tokens = {name: number for name, number in facts.items() if name.endswith("_token_id")}
    (folder / "generation_config.json").write_text(json.dumps({**generation, **tokens}, indent=1))
