"""Export a run folder for Hugging Face's MarianMTModel and MarianTokenizer.

Weights change names and the order of their vectors (marian_config.py). Tokens keep their numbers, whatever these are:
config.json names start, padding and end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from transduce.core.durable import whole_folder
from transduce.exchange.exported_run import Capabilities, ExportedRun
from transduce.exchange.marian_config import (
    ACTIVATIONS,
    BIAS,
    CONFIG,
    GENERATION,
    LM_HEAD,
    SHARED,
    SOURCE,
    SOURCE_PIECES,
    TARGET,
    TARGET_PIECES,
    Name,
    layer_names,
    reordered,
    sines_first,
)
from transduce.exchange.marian_import import TARGET_VOCABULARY, VOCABULARY
from transduce.model.blocks import Activation, PostNorm
from transduce.model.norms import LayerNorm
from transduce.model.positions import Sinusoidal
from transduce.search.settings import Beam, Limits
from transduce.text.tokenizer import Tokenizer

_BASE = Sinusoidal().base
MARIAN = Capabilities("Marian", ("relu", "gelu", "silu"), (LayerNorm,), (PostNorm,), (Sinusoidal,))


def export_marian(trained: ExportedRun, output: Path) -> None:
    """Write the Marian folder."""
    MARIAN.check(trained.config.model, _more(trained))
    settings = _settings(trained)
    with whole_folder(output, CONFIG) as work:
        write_json(work / CONFIG, settings)
        write_json(work / GENERATION, generation_settings(trained))
        write_tokenizers(trained, work)
        safetensors.torch.save_file(_weights(trained), work / "model.safetensors", {"format": "pt"})


def _more(trained: ExportedRun) -> list[str]:
    """Reasons against an export: what Marian has only once, for both sides."""
    model, source, target = trained.config.model, trained.tokenizers.source.symbols, trained.tokenizers.target.symbols
    both = [getattr(stack, "activation", None) for stack in (model.encoder, model.decoder)]
    reasons = [] if both[0] == both[1] else [f"encoder and decoder have different activations, {both[0]} and {both[1]}"]
    if (source.pad, source.eos, source.unk) != (target.pad, target.eos, target.unk):
        reasons.append("padding, end and unknown have other numbers in the source's vocabulary than in the target's")
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        base = getattr(getattr(stack, "positions", None), "base", _BASE)
        if base != _BASE:
            reasons.append(f"{side}.positions.base is {base:g}, expected {_BASE:g}: positions are computed there")
    return reasons


def _settings(trained: ExportedRun) -> dict[str, Any]:
    model, symbols = trained.config.model, trained.tokenizers.target.symbols
    encoder, decoder = trained.stacks
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    positions = max(512, trained.longest, _limits(trained).longest + 1)
    sides = {
        f"{side}_{name}": value
        for side, stack in (("encoder", encoder), ("decoder", decoder))
        for name, value in (
            ("layers", stack.layers),
            ("attention_heads", stack.attention.heads),
            ("ffn_dim", stack.d_ff),
            ("layerdrop", 0.0),
        )
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        **sides,
        "activation_function": names[cast("Activation", encoder.activation)],
        "dropout": model.dropout,
        "attention_dropout": encoder.attention.dropout,
        "activation_dropout": encoder.activation_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "max_position_embeddings": positions,
        "vocab_size": trained.tokenizers.source.size,
        "decoder_vocab_size": trained.tokenizers.target.size,
        "share_encoder_decoder_embeddings": model.tie == "all",
        "tie_word_embeddings": model.tie != "none",
        "pad_token_id": symbols.pad,
        "eos_token_id": symbols.eos,
        "decoder_start_token_id": symbols.bos,
        "forced_eos_token_id": symbols.eos,
        "torch_dtype": "float32",
    }


def _limits(trained: ExportedRun) -> Limits:
    found: Limits = getattr(trained.config.search, "limits", Limits())
    return found


def generation_settings(trained: ExportedRun) -> dict[str, Any]:
    """Settings for generation_config.json; of a penalty of ((5 + length) / 6)^p the exponent is kept.

    They divide by length^p.
    """
    search, symbols, limits = trained.config.search, trained.tokenizers.target.symbols, _limits(trained)
    beam = {"num_beams": search.size, "length_penalty": search.length_penalty} if isinstance(search, Beam) else {}
    return {
        **({"num_beams": 1} | beam),
        "bad_words_ids": [[token] for token in (*symbols.never, *limits.forbid)],
        "max_length": limits.longest + 1,  # theirs counts the start symbol
        "min_length": limits.shortest + 1 if limits.shortest else 0,
        "no_repeat_ngram_size": limits.no_repeat,
        "pad_token_id": symbols.pad,
        "eos_token_id": symbols.eos,
        "decoder_start_token_id": symbols.bos,
        "forced_eos_token_id": symbols.eos,
    }


def _weights(trained: ExportedRun) -> dict[str, Tensor]:
    weights, model = trained.model.weights(), trained.config.model
    encoder, decoder = trained.stacks
    layers = layer_names(encoder.layers, decoder.layers)
    embeddings = {
        "all": (Name(SHARED, "source_embedding.weight", 1),),
        "target": (Name(SOURCE, "source_embedding.weight", 1), Name(TARGET, "target_embedding.weight", 1)),
        "none": (
            Name(SOURCE, "source_embedding.weight", 1),
            Name(TARGET, "target_embedding.weight", 1),
            Name(LM_HEAD, "output_embedding.weight", 1),
        ),
    }[model.tie]
    names = [*layers, *embeddings]
    ordered = reordered(weights, {name.ours: name.along for name in names}, sines_first(model.d_model))
    bias = weights.get("output_bias", torch.zeros(trained.tokenizers.target.size))
    return {**{name.theirs: ordered[name.ours] for name in names}, BIAS: bias.clone().unsqueeze(0)}


# -- tokenizers ------------------------------------------------------------------------------------------------------


def write_tokenizers(trained: ExportedRun, work: Path) -> None:
    """Write the files that MarianTokenizer reads."""
    source, target = trained.tokenizers.source, trained.tokenizers.target
    (work / SOURCE_PIECES).write_bytes(source.model)
    (work / TARGET_PIECES).write_bytes(target.model)
    separate = not trained.tokenizers.shared
    write_json(work / VOCABULARY, numbers_of(source))
    if separate:
        write_json(work / TARGET_VOCABULARY, numbers_of(target))
    unknown, end, pad = source.pieces([source.symbols.unk, source.symbols.eos, source.symbols.pad])
    facts = {
        "tokenizer_class": "MarianTokenizer",
        "unk_token": unknown,
        "eos_token": end,
        "pad_token": pad,
        "separate_vocabs": separate,
        "model_max_length": trained.longest,
    }
    write_json(work / "tokenizer_config.json", facts)


def numbers_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The piece numbers for vocab.json; a tag `<2de>` is also known as `>>de<<`, which they look up."""
    pieces = tokenizer.pieces(range(tokenizer.size))
    tags = {
        f">>{piece[2:-1]}<<": number
        for number, piece in enumerate(pieces)
        if piece.startswith("<2") and piece.endswith(">")
    }
    return {**tags, **{piece: number for number, piece in enumerate(pieces)}}  # of two names the later is shown


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Write facts as indented JSON."""
    path.write_bytes(json.dumps(facts, ensure_ascii=False, indent=1).encode())
