"""Quality by sentence length: a recurrent network with one fixed vector, with attention, and a Transformer.

What Bahdanau et al. (2015) showed in their figure 2, and why the paper's subject is attention at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from transduce.core.errors import ConfigError
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import FIXED_VECTOR, RECURRENT, TRANSFORMER, TrainingExperiment, exact
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import copying
from transduce.metrics.corpus import chrf

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = {
    "RNN, one vector": FIXED_VECTOR,
    "RNN with attention": RECURRENT,
    "Transformer": TRANSFORMER,
}


@dataclass(frozen=True)
class Length(TrainingExperiment):
    """Settings: strings of 1 to `longest` letters are reversed; held-out ones fall into `ranges` of equal size."""

    steps: int = 450
    longest: int = 12
    ranges: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < 4:
            raise ConfigError(f"longest: expected strings of 4 letters at least, got {self.longest}")
        if self.ranges < 2:
            raise ConfigError(f"ranges: expected at least 2 to compare, got {self.ranges}")


@dataclass(frozen=True)
class Range:
    """The quality on sentences of `shortest` to `longest` characters."""

    model: str
    shortest: int
    longest: int
    chrf: float
    exact: float

    @property
    def label(self) -> str:
        return f"{self.shortest}-{self.longest}"


@dataclass(frozen=True)
class LengthResult:
    """Every model in every range, the shortest first."""

    settings: Length
    place: str
    rows: tuple[Range, ...]

    def of(self, model: str) -> list[Range]:
        return [row for row in self.rows if row.model == model]

    def report(self) -> LabReport:
        labels = [row.label for row in self.of("Transformer")]
        quality = tuple((name, *(row.chrf for row in self.of(name))) for name in FAMILIES)
        right = tuple((name, *(100 * row.exact for row in self.of(name))) for name in FAMILIES)
        headings = ("model", *(f"{label} characters" for label in labels))
        return LabReport(
            name="length",
            title="Quality by length of sentence",
            question="Whose translations get worse when sentences get longer?",
            setup=f"{self.place}. Lengths are those of the source; greedy search.",
            tables=(
                LabTable("length", "chrF by length of the source", headings, quality),
                LabTable("exact", "Right to the letter, %", headings, right),
            ),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(9.0, 4.2),
        )

    def _findings(self) -> list[Claim]:
        losses = {name: self.of(name)[0].chrf - self.of(name)[-1].chrf for name in FAMILIES}
        listed = ", ".join(f"{name} {loss:.1f}" for name, loss in losses.items())
        fixed, attending, transformer = (self.of(name)[-1].chrf for name in FAMILIES)
        return [
            Claim(
                f"chrF lost from the shortest sentences to the longest: {listed}.",
                held=losses["RNN, one vector"] == max(losses.values()),
            ),
            Claim(
                f"On the longest, one vector gives chrF {fixed:.1f}, attention {attending:.1f} with recurrence and"
                f" {transformer:.1f} without.",
                held=fixed < min(attending, transformer),
            ),
        ]

    def _draw(self, figure: Figure) -> None:
        axes = figure.subplots()
        for name, colour in zip(FAMILIES, colours(len(FAMILIES)), strict=True):
            rows = self.of(name)
            axes.plot(range(len(rows)), [row.chrf for row in rows], "o-", color=colour, label=name)
        dress(axes, "chrF on held-out sentences")
        axes.set_xticks(range(self.settings.ranges), [row.label for row in self.of("Transformer")])
        axes.set_xlabel("characters of the source", color=INK)
        axes.set_ylim(0, 102)
        axes.legend(frameon=False, labelcolor=INK)


def length(settings: Length | None = None) -> LengthResult:
    """Train the three models and measure them by length."""
    settings = settings or Length()
    with settings.bench(copying(6000, range(1, settings.longest + 1), 240, settings.seed, turned=True)) as bench:
        sources, references = bench.held_out()
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        ends = [part * len(order) // settings.ranges for part in range(settings.ranges + 1)]
        cut = [order[begin:end] for begin, end in pairwise(ends)]
        rows: list[Range] = []
        for name, words in FAMILIES.items():
            translations = bench.train(name, *words, "data.tokens=512").open()(sources)
            rows += [_range(name, part, sources, translations, references) for part in cut]
        return LengthResult(settings, bench.place, tuple(rows))


def _range(name: str, part: Sequence[int], sources: list[str], translations: list[str], references: list[str]) -> Range:
    texts, right = [translations[number] for number in part], [references[number] for number in part]
    return Range(name, len(sources[part[0]]), len(sources[part[-1]]), chrf(texts, right).value, exact(texts, right))
