"""Exposure bias: a model that was only trained on references must read its own output when it translates.

Measured on trained models: accuracy after right inputs, after its own, and after inputs of which a share is wrong; with
plain teacher forcing, with scheduled sampling (Bengio et al. 2015) and with noise on the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate
from transduce.data.corpus import Corpus
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import TRANSFORMER, Bench, TrainingExperiment, network
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import copying
from transduce.model.contract import evaluating
from transduce.objectives import ObjectiveContext
from transduce.objectives.inputs import InputNoise
from transduce.search.constraints import UNCONSTRAINED
from transduce.search.settings import Greedy
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = 4  # of a sentence: its first quarter to its last


@dataclass(frozen=True)
class Exposure(TrainingExperiment):
    """Settings of the exposure experiment: shares of inputs that are `wrong`, `sampled` or `noise`.

    `wrong` are the shares of inputs replaced by random tokens; `sampled` of them are the model's own in training by
    scheduled sampling, `noise` are random in training by noise.
    """

    steps: int = 250
    wrong: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    sampled: float = 0.3
    noise: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("wrong", "sampled", "noise"):
            shares = getattr(self, name) if name == "wrong" else (getattr(self, name),)
            if not shares or not all(0 <= share <= 1 for share in shares):
                raise ConfigError(f"{name}: expected shares from 0 to 1, got {list(shares)}")

    def ways(self) -> dict[str, list[str]]:
        """Config words for what the decoder reads in training."""
        sampled = f"{{kind='scheduled_sampling',schedule={{kind='linear',end={self.sampled},steps={self.steps}}}}}"
        return {
            "teacher forcing": [],
            "scheduled sampling": [f"objective.inputs={sampled}"],
            "noise": [f"objective.inputs={{kind='input_noise',replace={self.noise}}}"],
        }


@dataclass(frozen=True)
class ExposureAccuracies:
    """Accuracies of one model: `forced` and `free` by part of the sentence, `after_wrong` by share of wrong inputs."""

    way: str
    forced: tuple[float, ...]
    free: tuple[float, ...]
    after_wrong: tuple[float, ...]

    @property
    def gap(self) -> float:
        """The accuracy lost, over the whole sentence, by reading its own words."""
        return (sum(self.forced) - sum(self.free)) / len(self.forced)


@dataclass(frozen=True)
class ExposureResult:
    """The results of every way to train."""

    settings: Exposure
    place: str
    rows: tuple[ExposureAccuracies, ...]

    def report(self) -> LabReport:
        shares = [f"{share:.0%} wrong" for share in self.settings.wrong]
        wrong = tuple((row.way, *(100 * value for value in row.after_wrong)) for row in self.rows)
        kinds = (("right inputs", "forced"), ("its own", "free"))
        parts = tuple(
            (f"{row.way}, reading {label}", *(100 * value for value in getattr(row, field)))
            for row in self.rows
            for label, field in kinds
        )
        quarters = [f"quarter {number + 1}" for number in range(PARTS)]
        return LabReport(
            name="exposure",
            title="Exposure: what reading one's own mistakes does",
            question="How much worse does a model get when what it reads is not the right answer?",
            setup=f"{self.place}. Share of held-out target tokens that are right at their place.",
            tables=(
                LabTable("exposure", "Right tokens, %, by share of wrong inputs", ("trained with", *shares), wrong),
                LabTable("quarters", "Right tokens, %, by part of the sentence", ("trained with", *quarters), parts),
            ),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(10.0, 4.2),
        )

    def _findings(self) -> list[Claim]:
        plain, *others = self.rows
        share = self.settings.wrong[-1]
        last = {row.way: row.after_wrong[0] - row.after_wrong[-1] for row in self.rows}
        listed = ", ".join(f"{way} {100 * lost:.1f}" for way, lost in last.items())
        gaps = ", ".join(f"{row.way} {100 * row.gap:.1f}" for row in self.rows)
        late, early = plain.forced[-1] - plain.free[-1], plain.forced[0] - plain.free[0]
        return [
            Claim(
                f"With {share:.0%} of the inputs wrong these points of accuracy are lost: {listed}.",
                held=all(last[row.way] < last[plain.way] for row in others),
            ),
            Claim(f"Reading its own words instead of right ones costs these points: {gaps}.", held=plain.gap > 0),
            Claim(
                f"Mistakes add up along a sentence: with {plain.way} the cost is {100 * early:.1f} points in the first"
                f" quarter and {100 * late:.1f} in the last.",
                held=late > early,
            ),
        ]

    def _draw(self, figure: Figure) -> None:
        wrong, parts = figure.subplots(1, 2)
        for row, colour in zip(self.rows, colours(len(self.rows)), strict=True):
            shares = [100 * share for share in self.settings.wrong]
            wrong.plot(shares, [100 * v for v in row.after_wrong], "o-", color=colour, label=row.way)
            parts.plot(
                range(1, PARTS + 1), [100 * v for v in row.forced], "o-", color=colour, label=f"{row.way}: right inputs"
            )
            parts.plot(
                range(1, PARTS + 1), [100 * v for v in row.free], "o--", color=colour, label=f"{row.way}: its own"
            )
        for axes, label in ((wrong, "% of inputs wrong"), (parts, "quarter of the sentence")):
            dress(axes, "right tokens, %")
            axes.set_xlabel(label, color=INK)
            axes.set_ylim(top=102)
        parts.set_xticks(range(1, PARTS + 1))
        wrong.legend(frameon=False, fontsize=8, labelcolor=INK)
        parts.legend(frameon=False, fontsize=7, labelcolor=INK)


def exposure(settings: Exposure | None = None) -> ExposureResult:
    """Train with each kind of inputs, then measure with right, own and wrong ones."""
    settings = settings or Exposure()
    with settings.bench(copying(6000, range(4, 13), 200, settings.seed)) as bench:
        rows = []
        for way, words in settings.ways().items():
            translator = bench.train(way, *TRANSFORMER, *words).open()
            rows.append(_exposed(way, settings, bench, translator))
        return ExposureResult(settings, bench.place, tuple(rows))


@torch.no_grad()
def _exposed(way: str, settings: Exposure, bench: Bench, translator: Translator) -> ExposureAccuracies:
    corpus = Corpus.open(bench.corpus)
    split, target = corpus.split("valid"), corpus.tokenizers.target
    pairs = [split.pair(number) for number in range(min(200, len(split)))]
    sources, targets = [source.tolist() for source, _ in pairs], [target.tolist() for _, target in pairs]
    batch = collate(sources, targets, corpus.tokenizers.source.symbols, target.symbols).to(bench.device)
    model = network(translator)
    context = ObjectiveContext(target.symbols, vocabulary=target.size)
    after_wrong = [_accuracy(model, batch, share, context) for share in settings.wrong]
    right = _right(model, batch, batch.inputs)
    forced = by_part([row[: len(answer)] for row, answer in zip(right.tolist(), targets, strict=True)])
    found = translator.engine.search(sources, Greedy(), [UNCONSTRAINED] * len(sources), range(len(sources)))
    free = by_part([hits(list(best[0].tokens), answer) for best, answer in zip(found, targets, strict=True)])
    return ExposureAccuracies(way, forced, free, tuple(after_wrong))


def _accuracy(model: Any, batch: Batch, share: float, context: ObjectiveContext) -> float:
    """The accuracy with a share of the inputs replaced by random tokens."""
    torch.manual_seed(1)
    memory = model.encode(batch.source, batch.source_mask)
    inputs = InputNoise(replace=share).build(context)(model, batch, memory, 0)
    right = _right(model, batch, inputs)
    return float(right[batch.target_mask].float().mean())


def _right(model: Any, batch: Batch, inputs: Tensor) -> Tensor:
    """Where the most probable token is the right one (B, T)."""
    with evaluating(model):
        logits, _ = model.advance(
            inputs, model.start(model.encode(batch.source, batch.source_mask)), mask=batch.target_mask
        )
    return logits.argmax(-1) == batch.gold  # type: ignore[no-any-return]


def hits(written: Sequence[int], right: Sequence[int]) -> list[bool]:
    """For each token of the answer whether it was written at its position."""
    return [index < len(written) and written[index] == token for index, token in enumerate(right)]


def by_part(rows: Sequence[Sequence[bool]]) -> tuple[float, ...]:
    """The mean in each quarter of the sentences."""
    sums, counts = [0.0] * PARTS, [0] * PARTS
    for row in rows:
        for position, hit in enumerate(row):
            part = position * PARTS // len(row)
            sums[part] += hit
            counts[part] += 1
    return tuple(total / max(1, count) for total, count in zip(sums, counts, strict=True))
