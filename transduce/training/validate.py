"""Measure a model on held-out text: loss per token, and BLEU and chrF of its own translations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from transduce.data.batch import collate
from transduce.data.corpus import Corpus
from transduce.data.grouping import group_by_length
from transduce.engines.torch_engine import TorchEngine
from transduce.evaluation.metrics import bleu, chrf
from transduce.experiment import Config
from transduce.model.contract import evaluating
from transduce.model.seq2seq import Seq2Seq
from transduce.objectives.base import teacher_force
from transduce.objectives.cross_entropy import smoothed_loss
from transduce.translator import Translator


@dataclass(frozen=True)
class Example:
    """One held-out sentence with its translation, for people to look at."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Measured:
    """`values`: loss (unsmoothed, per token), perplexity, bleu, chrf. `signature` is sacreBLEU's for bleu."""

    values: dict[str, float]
    signature: str
    samples: list[Example]


def validate(model: Seq2Seq, corpus: Corpus, config: Config, device: torch.device) -> Measured:
    """Loss and translations of the validation split. Changes nothing in the model."""
    loss = held_out_loss(model, corpus, config, device)
    values = {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}
    wanted = config.validation
    split = corpus.split(config.data.valid)
    sources, references = split.texts()
    tags = [span.tag for span in split.spans for _ in range(span.start, span.stop)]
    if wanted.sentences:
        sources, references = sources[: wanted.sentences], references[: wanted.sentences]
    tokenizers = corpus.tokenizers
    engine = TorchEngine(model, tokenizers.source.symbols, tokenizers.target.symbols, device)
    budget = config.data.tokens if device.type == "cpu" else 4 * config.data.tokens
    translator = Translator(engine, tokenizers, wanted.search, batch_tokens=budget)
    translations = translator(sources, to=tags[: len(sources)])
    quality = bleu(translations, references)
    values |= {"bleu": quality.value, "chrf": chrf(translations, references).value}
    shown = [Example(*texts) for texts in zip(sources, references, translations, strict=True)][: wanted.samples]
    return Measured(values, quality.signature, shown)


def held_out_loss(model: Seq2Seq, corpus: Corpus, config: Config, device: torch.device) -> float:
    """Mean negative log-probability of a held-out target token, unsmoothed."""
    split = corpus.split(config.data.valid)
    symbols = corpus.tokenizers.source.symbols, corpus.tokenizers.target.symbols
    lengths = (np.maximum(split.source_lengths, split.target_lengths) + 1).tolist()
    total, count = 0.0, 0
    with evaluating(model), torch.inference_mode():
        for members in group_by_length(lengths, config.data.tokens):
            pairs = [split.pair(i) for i in members]
            batch = collate([s for s, _ in pairs], [t for _, t in pairs], *symbols).to(device)
            log_probs = teacher_force(model, batch).float().log_softmax(-1)
            loss = smoothed_loss(log_probs, batch.gold, batch.target_mask, smoothing=0.0)
            total += loss.total.item()
            count += int(loss.count.item())
    return total / max(1, count)
