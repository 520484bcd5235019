"""Measure a model on held-out text: loss per token, and BLEU, chrF and error rates of its own translations."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduce.core.errors import ConfigError, DataError
from transduce.core.plugins import name_of
from transduce.data.batch import collate
from transduce.data.corpus import Corpus
from transduce.data.readers import Reading
from transduce.engines.torch.engine import TorchEngine
from transduce.experiment import Config
from transduce.metrics import MetricConfig
from transduce.metrics.corpus import accuracy, bleu_by_language, chrf, error_rates, first_empty, jiwer_or_refusal
from transduce.model.contract import evaluating
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.text.segment import group_by_length
from transduce.training.distributed import Group, filled
from transduce.translate.translator import Translator

WORST = 100.0  # for a target that a model cannot write: one too long for its frames


@dataclass(frozen=True)
class Example:
    """One held-out sentence with its reference and its translation."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class ValidationResult:
    """Validation metrics: loss (unsmoothed, per token), perplexity, bleu with sacreBLEU's `signature`, chrf.

    Of several target languages bleu is the mean, and `bleu_de` and so on are those of each. Of recordings and pictures,
    or where the metric is one of them, also wer, cer and accuracy.
    """

    values: dict[str, float]
    signature: str
    samples: list[Example]

    def broadcast(self, group: Group) -> ValidationResult:
        """Broadcast what the first process of a group has measured; the others' content is ignored."""
        values, signature, samples = group.broadcast(
            (self.values, self.signature, [asdict(sample) for sample in self.samples])
        )
        return ValidationResult(values, signature, [Example(**sample) for sample in samples])


@contextmanager
def swapped_weights(
    model: EncoderDecoder, weights: dict[str, Tensor], without: EncoderDecoder | None
) -> Iterator[EncoderDecoder]:
    """Yield an unsharded model with these weights: the model itself, which gets its own back afterwards.

    For a sharded model it is a copy of `without`, the model as it was without weights (distributed.py).
    """
    if without is not None:
        yield filled(without, weights)
        return
    before = {name: tensor.clone() for name, tensor in model.weights().items()}
    model.load_weights(weights)
    try:
        yield model
    finally:
        model.load_weights(before)


def check_metric(config: Config, corpus: Corpus) -> None:
    """Raise, before any step, for a metric that cannot be measured here."""
    metric = config.validation.metric
    if metric not in ("wer", "cer"):
        return
    jiwer_or_refusal()
    empty = first_empty(corpus.split(config.data.valid).texts()[1])
    if empty:
        raise DataError(
            f"validation.metric: {metric} counts edits against the words of each reference, and reference {empty} of"
            f" split '{config.data.valid}' in {corpus.folder} is empty; remove the pair, or set validation.metric=chrf"
        )


def validate(
    model: EncoderDecoder, corpus: Corpus, config: Config, device: torch.device, group: Group | None = None
) -> ValidationResult:
    """Loss and translations of the validation split; the model is not changed.

    The processes of a group share the texts: each measures its part with the same weights, and all get the figures of
    the whole.
    """
    loss = held_out_loss(model, corpus, config, device, group)
    values = {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}
    wanted = config.validation
    split = corpus.split(config.data.valid)
    sources, references = split.to_translate()
    names, _ = split.texts()
    tags = split.tags()
    chosen = spread(len(sources), wanted.sentences)
    read, names = [sources[n] for n in chosen], [names[n] for n in chosen]
    references, tags = [references[n] for n in chosen], [tags[n] for n in chosen]
    translations = _translations(model, corpus, config, device, read, tags, group)
    if group is not None and not group.first:
        return ValidationResult({}, "", []).broadcast(group)
    quality = bleu_by_language(translations, references, tags, wanted.language)
    values |= {"bleu": quality.mean, "chrf": chrf(translations, references).value}
    if len(quality.languages) > 1:
        values |= {f"bleu_{code or 'other'}": score.value for code, score in quality.languages.items()}
    if corpus.reader is not None or wanted.metric in ("wer", "cer", "accuracy"):
        values |= _errors(translations, references)
    if not isinstance(wanted.metric, str):
        values[wanted.judged_by] = _own_measure(wanted.metric, translations, references)
    shown = spread(len(names), wanted.samples) if wanted.samples else []
    samples = [Example(names[n], references[n], translations[n]) for n in shown]
    measured = ValidationResult(values, quality.signature, samples)
    return measured if group is None else measured.broadcast(group)


def _translations(
    model: EncoderDecoder,
    corpus: Corpus,
    config: Config,
    device: torch.device,
    read: list[Any],
    tags: list[str],
    group: Group | None,
) -> list[str]:
    """Translate the sources; of several processes each translates its share."""
    tokenizers = corpus.tokenizers
    engine = TorchEngine(model, tokenizers.source.symbols, tokenizers.target.symbols, device)
    budget = config.data.tokens if device.type == "cpu" else 4 * config.data.tokens
    reading = Reading(corpus.reader, config.model.source.places) if corpus.reader is not None else None
    longest = max(map(len, read), default=1) if reading is not None else 256  # files are never cut here
    translator = Translator(engine, tokenizers, config.validation.search, longest, budget, reading=reading)
    if group is None or group.size == 1:
        return translator(read, to=tags)
    order = sorted(range(len(read)), key=lambda n: -len(read[n]))  # so that all have long ones and short ones
    share = order[group.rank :: group.size]
    made = group.gathered(translator([read[n] for n in share], to=[tags[n] for n in share]))
    found = dict(zip(order, made, strict=True))
    return [found[n] for n in range(len(read))]


def _errors(translations: list[str], references: list[str]) -> dict[str, float]:
    """Accuracy, and error rates where they can be counted."""
    found = {"accuracy": accuracy(translations, references)}
    if importlib.util.find_spec("jiwer") and not first_empty(references):
        wer, cer, _ = error_rates(translations, references)
        found |= {"wer": wer.value, "cer": cer.value}
    return found


def _own_measure(metric: MetricConfig, translations: list[str], references: list[str]) -> float:
    """What a metric of the user's own gives, if that is a number."""
    found = metric.measure(list(translations), list(references))
    if not isinstance(found, (int, float)) or not math.isfinite(found):
        raise ConfigError(
            f"validation.metric: measure of '{name_of(type(metric))}' gave {found!r}; expected a finite number"
        )
    return float(found)


def spread(count: int, wanted: int) -> list[int]:
    """Choose `wanted` of the numbers below `count`, evenly spread, so that every corpus has its share; 0: all."""
    taken = min(wanted or count, count)
    return [number * count // taken for number in range(taken)]


def held_out_loss(
    model: EncoderDecoder, corpus: Corpus, config: Config, device: torch.device, group: Group | None = None
) -> float:
    """Mean negative log-probability of a held-out target token, unsmoothed; `WORST` for an impossible one.

    Of several processes each takes its share of the batches; sums and counts are added up in the order of the batches,
    so that the mean is bit-identical however many there are.
    """
    split = corpus.split(config.data.valid)
    symbols = corpus.tokenizers.source.symbols, corpus.tokenizers.target.symbols
    lengths = (np.maximum(split.source_lengths, split.target_lengths) + 1).tolist()
    batches = list(group_by_length(lengths, config.data.tokens))
    sums: list[tuple[float, int]] = []
    with evaluating(model), torch.inference_mode():
        for members in batches if group is None else batches[group.rank :: group.size]:
            pairs = [split.pair(i) for i in members]
            batch = collate([s for s, _ in pairs], [t for _, t in pairs], *symbols).to(device)
            memory = model.encode(batch.source, batch.source_mask)
            log_probs = model.token_log_probs(memory, batch.target, batch.target_mask).clamp(min=-WORST)
            total = log_probs.where(batch.target_mask, log_probs.new_zeros(())).sum().item()
            sums.append((-total, int(batch.target_mask.sum().item())))
    every = sums if group is None else group.gathered(sums)
    return sum(total for total, _ in every) / max(1, sum(count for _, count in every))
