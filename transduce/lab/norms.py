"""BatchNorm against LayerNorm: which numbers a word's vector depends on, in training and in use.

LayerNorm (the paper) norms each token over its own width. BatchNorm norms each number over all tokens of a batch, so
that in training a sentence's vectors depend on the rest of the batch, and afterwards on running statistics instead.
Shapes: B batch, S source length, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate, pad_sources
from transduce.data.corpus import Corpus
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import TRANSFORMER, Bench, TrainingExperiment, exact, network
from transduce.lab.pace import SYMBOLS, fitted
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import copying
from transduce.model.attention import Attention
from transduce.model.norms import BatchNorm, LayerNorm, Norm
from transduce.model.transformer import TransformerEncoder
from transduce.objectives import teacher_force
from transduce.text.segment import group_by_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORMS: dict[str, Norm] = {"LayerNorm": LayerNorm(), "BatchNorm": BatchNorm()}
WORKED = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (7.0, 8.0, 9.0))  # three tokens of three numbers
_D, _WORDS, _DRAWS = 32, 50, 8


@dataclass(frozen=True)
class Norms(TrainingExperiment):
    """Settings: `batch_sizes` are those in which one sentence is measured; `tokens` those of trained models."""

    steps: int = 200
    batch_sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    tokens: tuple[int, ...] = (64, 1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.batch_sizes or min(self.batch_sizes) < 2 or not self.tokens or min(self.tokens) < 16:
            raise ConfigError(
                f"batch_sizes: expected batches of 2 sentences or more, and tokens of 16 or more, got"
                f" {list(self.batch_sizes)} and {list(self.tokens)}"
            )


@dataclass(frozen=True)
class BatchEffect:
    """How much one sentence's vectors vary with the other sentences of its batch: deviation over their size."""

    norm: str
    sentences: int
    change: float


@dataclass(frozen=True)
class NormRun:
    """A model trained with batches of so many tokens: its losses, and its share of exact strings.

    The held-out loss is measured by the batch's own statistics and by those the model is used with.
    """

    norm: str
    tokens: int
    training_loss: float
    using_loss: float
    exact: float


@dataclass(frozen=True)
class NormsResult:
    """The results; `worked` is the example of three tokens, normed.

    `drift` is how far batches of short and of long sentences are from the running statistics, in running deviations.
    """

    settings: Norms
    place: str
    worked: dict[str, tuple[tuple[float, ...], ...]]
    effects: tuple[BatchEffect, ...]
    trained: tuple[NormRun, ...]
    drift: tuple[float, float]

    def report(self) -> LabReport:
        example = tuple(
            (f"token {number + 1}", str(WORKED[number]), *(_two_decimals(self.worked[name][number]) for name in NORMS))
            for number in range(3)
        )
        sizes = self.settings.batch_sizes
        moved = tuple((name, *(row.change for row in self.effects if row.norm == name)) for name in NORMS)
        models = tuple(
            (row.norm, row.tokens, row.training_loss, row.using_loss, 100 * row.exact) for row in self.trained
        )
        return LabReport(
            name="norms",
            title="Norms: LayerNorm against BatchNorm",
            question="Whose numbers does a word's vector depend on, and does it matter?",
            setup=f"{self.place}; the encoder whose vectors are watched has two layers of width {_D}.",
            tables=(
                LabTable(
                    "norms",
                    "Trained models",
                    ("norm", "tokens a batch", "loss as trained", "loss as used", "exact, %"),
                    models,
                ),
                LabTable(
                    "batch",
                    "Relative change of a sentence's vectors with its batch",
                    ("norm", *(f"{n} sentences" for n in sizes)),
                    moved,
                ),
                LabTable("worked", "Three tokens of three numbers", ("token", "before", *NORMS), example),
            ),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(10.0, 4.0),
        )

    def _findings(self) -> list[Claim]:
        batch = [row.change for row in self.effects if row.norm == "BatchNorm"]
        layer = [row.change for row in self.effects if row.norm == "LayerNorm"]
        sizes = self.settings.batch_sizes
        power = fitted(sizes, batch) if len(batch) > 1 else None
        gaps = {(row.norm, row.tokens): row.using_loss - row.training_loss for row in self.trained}
        small = min(self.settings.tokens)
        listed = "; ".join(
            f"{row.norm}, {row.tokens} tokens: {row.training_loss:.3f} as trained, {row.using_loss:.3f} as used,"
            f" {row.exact:.0%} exact"
            for row in self.trained
        )
        return [
            Claim(
                f"With LayerNorm the rest of the batch changes a sentence's vectors by {max(layer):.1e}.",
                held=max(layer) < 1e-5,
            ),
            Claim(
                f"With BatchNorm by {batch[0]:.2f} of their size among {sizes[0]} and {batch[-1]:.2f} among {sizes[-1]}"
                " sentences" + (f"; it shrinks as sentences^({power}), noise would as -0.5." if power else "."),
                held=batch[-1] < batch[0] and min(batch) > 1e-3,
            ),
            Claim(
                f"Held-out loss: {listed}.",
                held=abs(gaps["LayerNorm", small]) < 1e-4 < abs(gaps["BatchNorm", small]),
            ),
            Claim(
                f"Batches of short sentences lie {self.drift[0]:.2f} running deviations from BatchNorm's running means,"
                f" batches of long ones {self.drift[1]:.2f}: what one number stands for depends on the length.",
            ),
        ]

    def _draw(self, figure: Figure) -> None:
        effect, loss = figure.subplots(1, 2)
        for name, colour in zip(NORMS, colours(len(NORMS)), strict=True):
            rows = [row for row in self.effects if row.norm == name]
            effect.plot([row.sentences for row in rows], [row.change for row in rows], "o-", color=colour, label=name)
            models = [row for row in self.trained if row.norm == name]
            sizes = [row.tokens for row in models]
            loss.plot(sizes, [row.training_loss for row in models], "o-", color=colour, label=f"{name}, as trained")
            loss.plot(sizes, [row.using_loss for row in models], "s--", color=colour, label=f"{name}, as used")
        effect.set_xscale("log", base=2)
        dress(effect, "relative change of a sentence's vectors")
        effect.set_xlabel("sentences in its batch", color=INK)
        effect.legend(frameon=False, fontsize=8, labelcolor=INK)
        loss.set_xscale("log", base=2)
        dress(loss, "held-out loss")
        loss.set_xlabel("tokens a batch in training", color=INK)
        loss.set_xticks(self.settings.tokens, [f"{n:,}" for n in self.settings.tokens])
        loss.legend(frameon=False, fontsize=8, labelcolor=INK)


def _two_decimals(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.2f}" for number in numbers)


def norms(settings: Norms | None = None) -> NormsResult:
    """Run the worked example, one sentence in varying batches, and train models with both norms."""
    settings = settings or Norms()
    torch.manual_seed(settings.seed)
    worked = {name: worked_example(norm) for name, norm in NORMS.items()}
    sizes = settings.batch_sizes
    effects = tuple(BatchEffect(name, n, batch_effect(norm, n)) for name, norm in NORMS.items() for n in sizes)
    with settings.bench(copying(6000, range(2, 13), 200, settings.seed)) as bench:
        rows, drift = [], (0.0, 0.0)
        for name in NORMS:
            kind = "layer_norm" if name == "LayerNorm" else "batch_norm"
            for tokens in settings.tokens:
                words = [f"model.{side}.norm={kind}" for side in ("encoder", "decoder")]
                translator = bench.train(f"{name} {tokens}", *TRANSFORMER, *words, f"data.tokens={tokens}").open()
                model = network(translator)
                sources, references = bench.held_out()
                losses = [_loss(model, bench, tokens, training) for training in (True, False)]
                right = exact(translator(sources), references)
                rows.append(NormRun(name, tokens, losses[0], losses[1], right))
                if kind == "batch_norm":
                    drift = _drift(model, bench)
        return NormsResult(settings, bench.place, worked, effects, tuple(rows), drift)


def worked_example(norm: Norm) -> tuple[tuple[float, ...], ...]:
    """Three tokens of one batch through a fresh norm, as in training."""
    module = norm.build(3).train()
    with torch.no_grad():
        normed: Tensor = module(torch.tensor(WORKED).unsqueeze(1))
    return tuple(tuple(row) for row in normed.squeeze(1).tolist())


@torch.no_grad()
def batch_effect(norm: Norm, sentences: int) -> float:
    """The variation of one sentence's encoder states over random batches of `sentences`, as in training.

    There is no dropout.
    """
    generator = torch.Generator().manual_seed(1)

    def sentence(length: int) -> list[int]:
        return torch.randint(4, _WORDS, (length,), generator=generator).tolist()

    torch.manual_seed(1)
    encoder = TransformerEncoder(2, Attention(4), 2 * _D, norm=norm).build(_D, 0.0).train()
    embedding, watched = torch.randn(_WORDS, _D), sentence(10)
    found = []
    for _ in range(_DRAWS):
        others = [sentence(int(n)) for n in torch.randint(2, 30, (sentences - 1,), generator=generator)]
        tokens, mask = pad_sources([watched, *others], SYMBOLS)
        found.append(encoder(embedding[tokens], mask).layers[-1][0, : len(watched)])
    states = torch.stack(found)  # (draws, S, D)
    return float((states - states.mean(0)).norm(dim=-1).mean() / states.norm(dim=-1).mean())


def _held_out_batches(bench: Bench, tokens: int) -> list[Batch]:
    """The held-out pairs in batches of so many padded tokens, the shortest first."""
    corpus = Corpus.open(bench.corpus)
    split, symbols = corpus.split("valid"), (corpus.tokenizers.source.symbols, corpus.tokenizers.target.symbols)
    lengths = [int(length) + 1 for length in np.maximum(split.source_lengths, split.target_lengths)]
    groups = [[split.pair(number) for number in group] for group in group_by_length(lengths, tokens)]
    batches = [collate([s for s, _ in pairs], [t for _, t in pairs], *symbols).to(bench.device) for pairs in groups]
    return sorted(batches, key=lambda batch: batch.source.size(1))


@torch.no_grad()
def _loss(model: Any, bench: Bench, tokens: int, training: bool) -> float:
    """Held-out loss a token in batches as in training, by their own statistics or by those the model is used with."""
    saved = {name: tensor.clone() for name, tensor in model.weights().items()}
    model.train(training)
    total, count = 0.0, 0
    for batch in _held_out_batches(bench, tokens):
        log_probs = teacher_force(model, batch).log_softmax(-1).gather(-1, batch.gold.unsqueeze(-1)).squeeze(-1)
        total -= float(log_probs[batch.target_mask].sum())
        count += int(batch.target_mask.sum())
    model.eval()
    model.load_weights(saved)  # a pass in training moves running statistics
    return total / max(1, count)


@torch.no_grad()
def _drift(model: Any, bench: Bench) -> tuple[float, float]:
    """The drift at the encoder's first norm, for batches of the shortest and of the longest sentences."""
    norm: nn.Module = next(module for module in model.encoder.modules() if hasattr(module, "running_mean"))
    found: list[float] = []

    def watch(module: Any, inputs: tuple[Tensor, Tensor | None]) -> None:
        x, mask = inputs
        real = x if mask is None else x[mask]
        mean = real.reshape(-1, x.size(-1)).mean(0)
        found.append(float(((mean - module.running_mean) / module.running_variance.sqrt()).abs().mean()))

    handle = norm.register_forward_pre_hook(watch)
    batches = _held_out_batches(bench, tokens=512)
    for batch in (batches[0], batches[-1]):
        model.encode(batch.source, batch.source_mask)
    handle.remove()
    return found[0], found[1]
