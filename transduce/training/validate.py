"""Measure a model on held-out text: loss per token, and BLEU and chrF of its own translations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from transduce.data.batch import collate
from transduce.data.corpus import Corpus
from transduce.data.grouping import group_by_length
from transduce.data.reader import Reading
from transduce.engines.torch_engine import TorchEngine
from transduce.evaluation.metrics import bleu, chrf
from transduce.experiment import Config
from transduce.model.contract import evaluating
from transduce.model.whole import EncoderDecoder
from transduce.training.distributed import Group
from transduce.translator import Translator

WORST = 100.0  # for a target that a model has no way to write: one too long for its frames


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

    def told(self, group: Group) -> Measured:
        """What the first process of a group has measured; the others give what they have not."""
        values, signature, samples = group.told((self.values, self.signature, [asdict(one) for one in self.samples]))
        return Measured(values, signature, [Example(**one) for one in samples])


@contextmanager
def wearing(model: EncoderDecoder, weights: dict[str, Tensor]) -> Iterator[None]:
    """The model has these weights for a while, then its own again."""
    own = {name: tensor.clone() for name, tensor in model.weights().items()}
    model.load_weights(weights)
    try:
        yield
    finally:
        model.load_weights(own)


def validate(model: EncoderDecoder, corpus: Corpus, config: Config, device: torch.device) -> Measured:
    """Loss and translations of the validation split. Changes nothing in the model."""
    loss = held_out_loss(model, corpus, config, device)
    values = {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}
    wanted = config.validation
    split = corpus.split(config.data.valid)
    sources, references = split.to_translate()
    names, _ = split.texts()
    tags = [span.tag for span in split.spans for _ in range(span.start, span.stop)]
    chosen = spread(len(sources), wanted.sentences)
    read, names = [sources[n] for n in chosen], [names[n] for n in chosen]
    references = [references[n] for n in chosen]
    tokenizers = corpus.tokenizers
    engine = TorchEngine(model, tokenizers.source.symbols, tokenizers.target.symbols, device)
    budget = config.data.tokens if device.type == "cpu" else 4 * config.data.tokens
    reading = Reading(corpus.reader, config.model.source.places) if corpus.reader is not None else None
    longest = max(map(len, read), default=1) if reading is not None else 256  # files are never cut here
    translator = Translator(engine, tokenizers, wanted.search, longest, budget, reading=reading)
    translations = translator(read, to=[tags[n] for n in chosen])
    quality = bleu(translations, references)
    values |= {"bleu": quality.value, "chrf": chrf(translations, references).value}
    shown = spread(len(names), wanted.samples) if wanted.samples else []
    samples = [Example(names[n], references[n], translations[n]) for n in shown]
    return Measured(values, quality.signature, samples)


def spread(count: int, wanted: int) -> list[int]:
    """So many of the numbers from 0 to `count`, evenly: every corpus has its share. All of them if 0 are wanted."""
    taken = min(wanted or count, count)
    return [number * count // taken for number in range(taken)]


def held_out_loss(model: EncoderDecoder, corpus: Corpus, config: Config, device: torch.device) -> float:
    """Mean negative log-probability of a held-out target token, unsmoothed; of one that cannot be, `WORST`."""
    split = corpus.split(config.data.valid)
    symbols = corpus.tokenizers.source.symbols, corpus.tokenizers.target.symbols
    lengths = (np.maximum(split.source_lengths, split.target_lengths) + 1).tolist()
    total, count = 0.0, 0
    with evaluating(model), torch.inference_mode():
        for members in group_by_length(lengths, config.data.tokens):
            pairs = [split.pair(i) for i in members]
            batch = collate([s for s, _ in pairs], [t for _, t in pairs], *symbols).to(device)
            memory = model.encode(batch.source, batch.source_mask)
            log_probs = model.token_log_probs(memory, batch.target, batch.target_mask).clamp(min=-WORST)
            total -= log_probs.where(batch.target_mask, log_probs.new_zeros(())).sum().item()
            count += int(batch.target_mask.sum().item())
    return total / max(1, count)
