"""Run folders with random weights, and the greedy and beam searches that other systems' results are held against."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from transduce.core import config as configs
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Beam, Limits
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.weights import save_weights
from transduce.translate.model_folder import CONFIG, MODEL, TOKENIZER


def lines(letters: str, seed: int, count: int = 400) -> list[str]:
    chooser = random.Random(seed)
    return [
        " ".join("".join(chooser.choices(letters, k=chooser.randint(1, 7))) for _ in range(chooser.randint(1, 9)))
        for _ in range(count)
    ]


SOURCE, TARGET = lines("abcdefghij", 1), lines("hijklmnopqß", 2)


@cache
def tokenizers(shared: bool = True, byte_fallback: bool = False) -> Tokenizers:
    settings = SentencePiece(
        vocabulary=400 if byte_fallback else 100, shared=shared, byte_fallback=byte_fallback, symbols=("<2de>", "<2fr>")
    )
    return settings.train(SOURCE, TARGET).tokenizers


def transformer(d_model: int = 32, heads: int = 4, **parts: Any) -> Model:
    """Parts that are the same on both sides."""
    attention = parts.pop("attention", Attention(heads))
    own = {name: parts.pop(name) for name in ("tie", "output_bias") if name in parts}
    return Model(
        d_model=d_model,
        dropout=0.0,
        encoder=TransformerEncoder(layers=2, attention=attention, d_ff=48, **parts),
        decoder=TransformerDecoder(layers=2, attention=attention, d_ff=48, **parts),
        **own,
    )


def run(path: Path, model: Model, own: Tokenizers | None = None, seed: int = 1, longest: int = 128) -> Path:
    """A folder as training leaves it, but that nothing was learned: logits differ, and translations end."""
    own = own or tokenizers(shared=model.tie == "all")
    config = replace(
        Config(model=model), search=Beam(3, 1.0, limits=Limits(longest_ratio=0, longest_extra=30, longest=30))
    )
    torch.manual_seed(seed)
    built = model.build(own.source.size, own.target.size, own.shared)
    end = own.target.symbols.eos
    with torch.no_grad():
        for name, tensor in built.weights().items():
            small = 0.2 if tensor.dim() == 1 else 0.15 if "embedding" in name else 1.3 * tensor.shape[-1] ** -0.5
            noise = small * torch.randn(tensor.shape)
            tensor.copy_(1 + noise if "norm.weight" in name or name.endswith("final.weight") else noise)
        if built.output_bias is not None:
            built.output_bias[end] += 2
            built.output_bias[list(own.target.symbols.never)] -= (
                1000  # as if learned; where they are struck is then one
            )
    path.mkdir(parents=True)
    own.save(path / TOKENIZER)
    (path / CONFIG).write_text(configs.dump(config), encoding="utf-8")
    facts = {"tokenizer": own.digest(), "longest": str(longest), "weights": "random"}
    save_weights(path / MODEL, built.weights(), facts)
    return path
