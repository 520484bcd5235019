"""The Transformer against what it replaced: training speed, time to a quality on the same data, decoding.

Section 1 of the paper: recurrence "precludes parallelization within training examples, which becomes critical at longer
sequence lengths".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError
from transduce.data.corpus import Corpus
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import (
    BAHDANAU,
    CONVOLUTIONAL,
    FIXED_VECTOR,
    RECURRENT,
    Bench,
    LabRun,
    TrainingExperiment,
    parameters,
    stack,
)
from transduce.lab.pace import DecodingPace, decoding_speeds, some_sources, training_tokens_per_second
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import number_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (1, 32)
TRANSFORMER_NAME = "Transformer"


@dataclass(frozen=True)
class Speed(TrainingExperiment):
    """Settings; `width` and `tokens` (a batch) 0 are what suits the device.

    That is 64 and 1,024 on a CPU, 512 and 16,384 on a GPU. Layers are as many in all models (2 + 2, or 4 + 4 from a
    width of 256 on), and one more with convolution.
    """

    steps: int = 300
    quality: float = 90.0  # chrF on held-out text that counts as learned
    width: int = 0
    tokens: int = 0
    lengths: tuple[int, ...] = (16, 64, 256)  # of random sentences, to show what length does to training speed
    repeats: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.quality <= 100:
            raise ConfigError(f"quality: expected a chrF above 0 and at most 100, got {self.quality}")
        if self.width % 8:
            raise ConfigError(f"width: expected a multiple of 8, for as many heads, got {self.width}")
        if not self.lengths or min(self.lengths) < 2:
            raise ConfigError(
                f"lengths: expected lengths of sentences, at least 2 tokens each, got {list(self.lengths)}"
            )


@dataclass(frozen=True)
class Family:
    """The measurements of one model; `waits`: whether words wait for one another.

    `reached` is the step at which the quality was first seen, 0 if never; `pace` the tokens a second for each length;
    `curve` holds (step, chrF).
    """

    name: str
    waits: bool
    parameters: int
    tokens_per_second: float
    step_seconds: float
    reached: int
    final: float
    curve: tuple[tuple[int, float], ...]
    pace: tuple[float, ...]
    decoding: tuple[DecodingPace, ...]

    @property
    def seconds(self) -> float | None:
        """Seconds of training to the quality; None if it was never reached."""
        return self.reached * self.step_seconds if self.reached else None


@dataclass(frozen=True)
class SpeedResult:
    """All families on one task and device."""

    settings: Speed
    place: str
    on_gpu: bool
    families: tuple[Family, ...]

    def report(self) -> LabReport:
        timed = "the loop's own, its fastest stretch" if self.on_gpu else "of passes in turn, the least of some tries"
        return LabReport(
            name="speed",
            title="Speed: the Transformer against recurrence and convolution",
            question="On the same data, which model trains fastest, learns soonest, and translates fastest?",
            setup=(
                f"{self.place}. Training speed is {timed}; time to quality is the steps to chrF"
                f" {self.settings.quality:g} times the time of a step. Decoding is greedy search alone."
            ),
            tables=(self._table(), self._paces()),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(10.0, 4.2),
        )

    def _table(self) -> LabTable:
        rows: list[tuple[object, ...]] = []
        for family in self.families:
            speeds = [1000 * decoding.seconds_a_sentence for decoding in family.decoding]
            rows.append(
                (
                    family.name,
                    family.parameters,
                    family.tokens_per_second,
                    1000 * family.step_seconds,
                    family.reached or "never",
                    family.seconds,
                    family.final,
                    *speeds,
                )
            )
        headings = (
            "model",
            "parameters",
            "training tokens/s",
            "ms a step",
            f"steps to chrF {self.settings.quality:g}",
            "seconds to it",
            "chrF at the end",
            *(f"decoding, ms a sentence, batch {batch}" for batch in BATCHES),
        )
        return LabTable("speed", "Training and decoding", headings, tuple(rows))

    def _paces(self) -> LabTable:
        headings = ("model", *(f"{length} tokens" for length in self.settings.lengths))
        rows = tuple((family.name, *family.pace) for family in self.families)
        return LabTable("lengths", "Training tokens/s by length of sentence, as many tokens a batch", headings, rows)

    def _findings(self) -> list[Claim]:
        first, *others = self.families
        found = []
        for other in others:
            ratios = [ours / theirs for ours, theirs in zip(first.pace, other.pace, strict=True)]
            listed = ", ".join(
                f"{ratio:.2f} at {length}" for ratio, length in zip(ratios, self.settings.lengths, strict=True)
            )
            text = f"Training, {first.name} tokens/s over those of {other.name}, by length of sentence: {listed}."
            gains = ratios[-1] > ratios[0] if other.waits else None  # "critical at longer sequence lengths"
            found.append(Claim(text, gains))
        timed = {family.name: family.seconds for family in self.families if family.seconds is not None}
        if timed:
            best = min(timed, key=lambda name: timed[name])
            order = ", ".join(f"{name} {timed[name]:.1f} s" for name in sorted(timed, key=lambda name: timed[name]))
            never = [family.name for family in self.families if family.seconds is None]
            text = f"Soonest at chrF {self.settings.quality:g}: {order}" + (
                f"; never: {', '.join(never)}" if never else ""
            )
            found.append(Claim(f"{text}.", held=best == first.name))
        else:
            found.append(
                Claim(f"None reached chrF {self.settings.quality:g} in {self.settings.steps} steps.", held=False)
            )
        alone = {family.name: family.decoding[0].seconds_a_sentence for family in self.families}
        fastest = min(alone, key=lambda name: alone[name])
        ratio = alone[first.name] / alone[fastest]
        text = f"One sentence at a time {fastest} decodes fastest; the {first.name} takes {ratio:.2f} times as long."
        found.append(Claim(text + " No decoder here is parallel when it writes: each word waits for the one before."))
        return found

    def _draw(self, figure: Figure) -> None:
        quality, pace = figure.subplots(1, 2)
        for family, colour in zip(self.families, colours(len(self.families)), strict=True):
            look = {"color": colour, "markersize": 4, "label": family.name}
            seconds = [step * family.step_seconds for step, _ in family.curve]
            quality.plot(seconds, [value for _, value in family.curve], "o-", **look)
            pace.plot(self.settings.lengths, family.pace, "o-", **look)
        quality.axhline(self.settings.quality, color=INK, linewidth=0.8, linestyle=":")
        dress(quality, "chrF on held-out text")
        quality.set_xlabel("seconds of training", color=INK)
        dress(pace, "training tokens/s")
        pace.set_xscale("log", base=2)
        pace.set_xticks(self.settings.lengths, [str(length) for length in self.settings.lengths])
        pace.set_xlabel("tokens a sentence", color=INK)
        pace.set_ylim(bottom=0)
        quality.legend(frameon=False, fontsize=8, labelcolor=INK)


def speed(settings: Speed | None = None) -> SpeedResult:
    """Train one model of each family, then time them in turns."""
    settings = settings or Speed()
    with settings.bench(number_words(6000, 200, settings.seed)) as bench:
        gpu = bench.device.type == "cuda"
        width, tokens = settings.width or (512 if gpu else 64), settings.tokens or (16384 if gpu else 1024)
        runs = [bench.train(name, *words, validations=10) for name, words in _families(width, tokens).items()]
        paces = training_tokens_per_second(runs, settings.lengths, tokens, settings.repeats, bench.device)
        own_paces = {} if gpu else _own_paces(bench, runs, tokens, settings.repeats)
        return SpeedResult(settings, bench.place, gpu, tuple(_measured(settings, bench, runs, paces, own_paces)))


def _families(width: int, tokens: int) -> dict[str, list[str]]:
    rate = 3e-3 * math.sqrt(64 / width)
    common = [f"model.d_model={width}", f"data.tokens={tokens}", f"training.learning_rate.peak={rate}"]
    sides, large = ("encoder", "decoder"), width >= 256
    common += ["data.bucket=16"] if large else []  # a GPU starts slowly on every new shape
    layers = 4 if large else 2
    deep = [f"model.{side}.layers={layers}" for side in sides]
    reaching = [f"model.{side}.layers={layers + 1}" for side in sides]  # a kernel of three sees a word to each side
    blocks = [word for side in sides for word in (*stack(side, layers), f"model.{side}.d_ff={4 * width}")]
    return {
        TRANSFORMER_NAME: [*common, *blocks],
        "RNN without attention": [*common, *FIXED_VECTOR, *deep],
        "RNN with attention (Luong)": [*common, *RECURRENT, *deep],
        "RNN with attention (Bahdanau, word by word)": [*common, *BAHDANAU, *deep],
        "CNN (ConvS2S)": [*common, *CONVOLUTIONAL, *reaching],
    }


def _own_paces(bench: Bench, runs: list[LabRun], tokens: int, repeats: int) -> dict[str, float]:
    """Tokens a second at the task's own mean length, in turns: on a busy CPU the loop's figures would not compare."""
    lengths = Corpus.open(bench.corpus).split("train").target_lengths
    mean = max(2, round(float(lengths.mean())) + 1)
    found = training_tokens_per_second(runs, [mean], tokens, repeats, bench.device)
    return {run.name: found[run.name, mean] for run in runs}


def _measured(
    settings: Speed, bench: Bench, runs: list[LabRun], paces: dict[tuple[str, int], float], own_paces: dict[str, float]
) -> list[Family]:
    opened = {run.name: run.open() for run in runs}
    sources = some_sources(Corpus.open(bench.corpus), 32)
    ways = {name: (translator, translator.search) for name, translator in opened.items()}
    decoding = decoding_speeds(ways, sources, BATCHES, settings.repeats, bench.device)
    families = []
    for run in runs:
        curve = [(step, value) for step, _, value in run.curve("chrf")]
        reports = run.reports()
        rate = own_paces.get(run.name) or max(line["tokens_per_second"] for line in reports)
        tokens_a_step = sum(line["tokens_per_second"] * line["stretch"] for line in reports) / run.history.steps
        families.append(
            Family(
                name=run.name,
                waits=kind_of(type(run.config.model.encoder)) == "recurrent",
                parameters=parameters(opened[run.name]),
                tokens_per_second=rate,
                step_seconds=tokens_a_step / rate,
                reached=next((step for step, value in curve if value >= settings.quality), 0),
                final=curve[-1][1],
                curve=tuple(curve),
                pace=tuple(paces[run.name, length] for length in settings.lengths),
                decoding=tuple(decoding[run.name, batch] for batch in BATCHES),
            )
        )
    return families
