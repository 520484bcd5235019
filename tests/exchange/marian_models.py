"""Random small Marian models in Hugging Face's format, with sentencepiece models of generated text: nothing is fetched.

`folder` writes one; `SHAPES` are the kinds that must go through the doors.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from random_runs import lines
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece

TAGS = (">>fra<<", ">>deu<<")
# What the published models are, and what differs from that.
USUAL: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "activation_function": "swish",
    "scale_embedding": True,
    "max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "usual": {},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "unscaled": {"scale_embedding": False},
    "separate": {"share_encoder_decoder_embeddings": False},
    "separate-unscaled": {"share_encoder_decoder_embeddings": False, "scale_embedding": False},
    "untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "scale_embedding": False},
    "odd": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1, "encoder_ffn_dim": 20, "decoder_attention_heads": 2},
    "no-bias": {},
    "pickled": {},
    "renormalized": {},
}


SOURCE, TARGET = lines("abcdefghij", 1, 1000), lines("hijklmnopqß", 2, 1000)


@cache
def pieces() -> Tokenizers:
    return SentencePiece(vocabulary=90, shared=False, byte_fallback=False).train(SOURCE, TARGET).tokenizers


def vocabulary(*sides: int) -> dict[str, int]:
    """Numbers as Marian gives them: the end, the unknown, pieces in an order of their own, tags, padding last."""
    tokenizers = [(pieces().source, pieces().target)[side] for side in sides]
    found = {piece for one in tokenizers for piece in one.pieces(range(one.size))}
    plain = sorted(found - {"<pad>", "<unk>", "<s>", "</s>"})
    random.Random(3).shuffle(plain)
    names = ("</s>", "<unk>", *plain, *TAGS)
    while len(sides) == 1 and len(names) < 95:  # both of separate ones must have the same number for padding
        names = (*names, f"filler{len(names)}")
    return {piece: number for number, piece in enumerate((*names, "<pad>"))}


def folder(path: Path, shape: str, seed: int = 1) -> Path:
    """Write a random model of a shape, with everything that a published one has."""
    path.mkdir(parents=True)
    separate = not SHAPES[shape].get("share_encoder_decoder_embeddings", True)
    numbers = vocabulary(0) if separate else vocabulary(0, 1)
    pad = len(numbers) - 1
    (path / "source.spm").write_bytes(pieces().source.model)
    (path / "target.spm").write_bytes(pieces().target.model)
    (path / "vocab.json").write_text(json.dumps(numbers))
    if separate:
        (path / "target_vocab.json").write_text(json.dumps(vocabulary(1)))
        assert len(vocabulary(1)) == len(numbers)
    facts = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate, "model_max_length": 64}
    (path / "tokenizer_config.json").write_text(json.dumps(facts))
    settings = {**USUAL, **SHAPES[shape]}
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(vocab_size=len(numbers), **special, **settings)
    if separate:
        config.decoder_vocab_size = len(vocabulary(1))
    model = randomised(MarianMTModel(config), pad, seed, biased=shape != "no-bias")
    model.generation_config.update(
        bad_words_ids=[[pad]], max_length=60, num_beams=4, renormalize_logits=shape == "renormalized"
    )
    model.save_pretrained(path)
    if shape == "no-bias":
        drop(path, "final_logits_bias")
    if shape == "pickled":
        torch.save(model.state_dict(), path / "pytorch_model.bin")
        (path / "model.safetensors").unlink()
    return path


def randomised(model: MarianMTModel, pad: int, seed: int, biased: bool) -> MarianMTModel:
    """Weights as large as trained ones, so that logits differ, and translations that end."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_positions" in name:  # computed
                continue
            wide = tensor.dim() > 1 and "embed" not in name and "shared" not in name and "lm_head" not in name
            scale = 1.5 * tensor.shape[-1] ** -0.5 if wide else 0.15
            noise = scale * torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + noise if name.endswith("norm.weight") else noise)
        for table in {model.get_input_embeddings().weight, model.model.decoder.embed_tokens.weight}:
            table[pad] = 0
        if biased:
            model.final_logits_bias.copy_(0.5 * torch.randn(model.final_logits_bias.shape, generator=generator))
            model.final_logits_bias[:, 0] += 4
            model.final_logits_bias[:, pad] = 0
    return model.eval()


def drop(path: Path, name: str) -> None:
    import safetensors.torch

    tensors = safetensors.torch.load_file(path / "model.safetensors")
    safetensors.torch.save_file({k: v for k, v in tensors.items() if k != name}, path / "model.safetensors")


def opened(path: Path) -> tuple[MarianMTModel, MarianTokenizer]:
    """As a user of theirs opens it."""
    return MarianMTModel.from_pretrained(path).eval(), MarianTokenizer.from_pretrained(path)
