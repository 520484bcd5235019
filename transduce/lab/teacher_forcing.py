"""Teacher forcing: what reading the reference instead of its own output gains, in time and in learning.

All target positions can be computed at once, because none waits for what the model would have said; and every position
is trained on from the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import TRANSFORMER, Bench, TrainingExperiment
from transduce.lab.pace import least_seconds, random_batch
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import number_words
from transduce.objectives import teacher_force

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VOCABULARY = 100
_SAME = 1e-4  # two sums of the same numbers in another order


@dataclass(frozen=True)
class TeacherForcing(TrainingExperiment):
    """Settings; `lengths` are those of the targets whose training pass is timed, `rows` sentences at a time."""

    steps: int = 250
    lengths: tuple[int, ...] = (8, 32, 128)
    rows: int = 16
    repeats: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 2 or self.rows < 1:
            raise ConfigError(f"lengths: expected targets of 2 tokens or more in rows, got {list(self.lengths)}")

    def ways(self) -> dict[str, list[str]]:
        """Config words for what the decoder reads in training."""
        ramp = f"{{kind='scheduled_sampling',schedule={{kind='linear',end=0.5,steps={self.steps}}}}}"
        own = "{kind='scheduled_sampling',schedule={kind='constant',probability=1.0}}"
        return {
            "right answers": [],
            "its own more and more (to half)": [f"objective.inputs={ramp}"],
            "its own always": [f"objective.inputs={own}"],
        }


@dataclass(frozen=True)
class Passes:
    """A training pass over targets of a length, all positions at once and one by one; and how far the losses differ."""

    length: int
    together: float
    one_by_one: float
    difference: float


@dataclass(frozen=True)
class ChrfCurve:
    """Held-out chrF over the steps."""

    way: str
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TeacherForcingResult:
    """Times and learning curves."""

    settings: TeacherForcing
    place: str
    passes: tuple[Passes, ...]
    learned: tuple[ChrfCurve, ...]

    def report(self) -> LabReport:
        steps = [step for step, _ in self.learned[0].curve]
        curves = tuple((row.way, *(value for _, value in row.curve)) for row in self.learned)
        times = tuple(
            (row.length, 1000 * row.together, 1000 * row.one_by_one, row.one_by_one / row.together, row.difference)
            for row in self.passes
        )
        headings = "target tokens", "all at once, ms", "one by one, ms", "ratio", "relative difference of the loss"
        return LabReport(
            name="teacher-forcing",
            title="Teacher forcing",
            question="What is won by letting the decoder read the right answer while it learns?",
            setup=f"{self.place}; passes forward and back over {self.settings.rows} sentences.",
            tables=(
                LabTable("teacher-forcing", "chrF on held-out text", ("reads", *(f"step {n}" for n in steps)), curves),
                LabTable("passes", "A training pass, all places at once or one by one", headings, times),
            ),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(10.0, 4.0),
        )

    def _findings(self) -> list[Claim]:
        short, long = self.passes[0], self.passes[-1]
        worst = max(row.difference for row in self.passes)
        ends = {row.way: row.curve[-1][1] for row in self.learned}
        listed = ", ".join(f"{way} {value:.1f}" for way, value in ends.items())
        first = self.learned[0].way
        ratios = short.one_by_one / short.together, long.one_by_one / long.together
        return [
            Claim(f"Both ways give the same loss: they differ by {worst:.1e} of it at most.", held=worst < _SAME),
            Claim(
                f"One by one takes {ratios[0]:.1f} times as long at {short.length} tokens and {ratios[1]:.1f} times at"
                f" {long.length}.",
                held=ratios[1] > ratios[0] > 1,
            ),
            Claim(
                f"chrF after {self.settings.steps} steps, reading: {listed}.",
                held=ends[first] > ends[self.learned[-1].way],
            ),
        ]

    def _draw(self, figure: Figure) -> None:
        learning, time = figure.subplots(1, 2)
        for row, colour in zip(self.learned, colours(len(self.learned)), strict=True):
            learning.plot(*zip(*row.curve, strict=True), "o-", color=colour, label=row.way)
        dress(learning, "chrF on held-out text")
        learning.set_xlabel("step", color=INK)
        learning.legend(frameon=False, fontsize=8, labelcolor=INK)
        lengths = [row.length for row in self.passes]
        for field, colour in zip(("together", "one_by_one"), colours(2), strict=True):
            label = {"together": "all places at once", "one_by_one": "one by one"}[field]
            time.plot(lengths, [1000 * getattr(row, field) for row in self.passes], "o-", color=colour, label=label)
        time.set_xscale("log", base=2)
        time.set_yscale("log")
        dress(time, "ms a training pass")
        time.set_xticks(lengths, [str(n) for n in lengths])
        time.set_xlabel("target tokens", color=INK)
        time.legend(frameon=False, fontsize=8, labelcolor=INK)


def teacher_forcing(settings: TeacherForcing | None = None) -> TeacherForcingResult:
    """Time both kinds of pass, then train with right and with own inputs."""
    settings = settings or TeacherForcing()
    with settings.bench(number_words(6000, 200, settings.seed)) as bench:
        learned = []
        for way, words in settings.ways().items():
            run = bench.train(way, *TRANSFORMER, *words, validations=5)
            learned.append(ChrfCurve(way, tuple((step, value) for step, _, value in run.curve("chrf"))))
            config = run.config.model
        torch.manual_seed(settings.seed)
        model = config.build(_VOCABULARY, _VOCABULARY, shared=True).to(bench.device)
        return TeacherForcingResult(settings, bench.place, tuple(_passes(settings, bench, model)), tuple(learned))


def _passes(settings: TeacherForcing, bench: Bench, model: Any) -> list[Passes]:
    batches = {n: random_batch(n, settings.rows, _VOCABULARY).to(bench.device) for n in settings.lengths}

    def task(loss: Callable[[Any, Batch], Tensor], batch: Batch) -> Callable[[], None]:
        def run() -> None:
            torch.autograd.backward(loss(model, batch))
            model.zero_grad()

        return run

    tasks = {(n, loss): task(loss, batches[n]) for n in settings.lengths for loss in (together, one_by_one)}
    seconds = least_seconds(tasks, settings.repeats, bench.device)
    found = []
    for n in settings.lengths:
        with torch.no_grad():
            parallel, stepwise = (float(loss(model, batches[n])) for loss in (together, one_by_one))
        difference = abs(parallel - stepwise) / abs(parallel)
        found.append(Passes(n, seconds[n, together], seconds[n, one_by_one], difference))
    return found


def together(model: Any, batch: Batch) -> Tensor:
    """The loss with all positions at once, as in training."""
    return F.cross_entropy(teacher_force(model, batch).flatten(0, 1), batch.gold.flatten(), reduction="sum")


def one_by_one(model: Any, batch: Batch) -> Tensor:
    """The loss by reading one token after another, as a decoder that must wait for itself would."""
    state = model.start(model.encode(batch.source, batch.source_mask))
    total = torch.zeros((), device=batch.source.device)
    for position in range(batch.inputs.size(1)):
        logits, state = model.advance(batch.inputs[:, position : position + 1], state)
        total = total + F.cross_entropy(logits[:, 0], batch.gold[:, position], reduction="sum")
    return total
