"""Table 3 of the paper, its ablations, on any prepared corpus, through `compare`: finished runs are found again.

Rows are those of table3.toml, in proportion to any base; the default is a small base and one variant of each letter.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.core.errors import ConfigError, RunError
from transduce.engines.torch.engine import pick_device
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import BASE
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import number_words
from transduce.workflows.compare.plan import ComparisonPlan, read_plan
from transduce.workflows.compare.results import Results, Row
from transduce.workflows.compare.run import run_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = Path(__file__).with_name("table3.toml")
SMALL = (
    "data.tokens=512 model.dropout=0.1 objective.label_smoothing=0.1"
    " model.encoder.layers=2 model.encoder.attention.heads=2 model.encoder.d_ff=128"
    " model.decoder.layers=2 model.decoder.attention.heads=2 model.decoder.d_ff=128"
).split()
FEW = (
    "base",
    "A-heads-1",
    "B-keys-16",
    "C-layers-third",
    "C-width-half",
    "C-feed-forward-double",
    "D-dropout-none",
    "E-learned-positions",
)


@dataclass(frozen=True)
class Table3:
    """Settings: `rows` are names of variants, or "all"; `corpus` a prepared one ("" = number words, generated).

    For the generated corpus `small` = false takes `base` as it is. With a `work` folder a stopped comparison resumes.
    """

    steps: int = 120
    seeds: tuple[int, ...] = (1,)
    rows: tuple[str, ...] = FEW
    base: str = "tiny"
    small: bool = True
    corpus: str = ""
    overrides: tuple[str, ...] = ()
    work: str = ""
    jobs: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps: a comparison needs at least 1, got {self.steps}")
        if "base" not in self.rows and "all" not in self.rows:
            raise ConfigError(
                f"rows: expected 'base' among them, which the others are compared with, got {list(self.rows)}"
            )

    def plan(self, corpus: Path) -> ComparisonPlan:
        """The plan of all rows, with their common settings."""
        common = [
            f"data.folder={corpus}",
            f"training.steps={self.steps}",
            f"training.device={pick_device(self.device)}",
            f"validation.every={max(1, self.steps // 2)}",
        ]
        of_plan = [f"base={self.base}", f"seeds={list(self.seeds)}"]
        return read_plan(ROWS, [*of_plan, *self.overrides], defaults=[*([BASE, SMALL] if self.small else []), common])


@dataclass(frozen=True)
class Ablation:
    """One row: perplexity on held-out text, quality of its translations, and size of the model."""

    name: str
    perplexity: float
    chrf: float
    bleu: float
    parameters: int


@dataclass(frozen=True)
class Table3Result:
    """The rows that were trained, `base` among them."""

    settings: Table3
    place: str
    rows: tuple[Ablation, ...]

    @property
    def base(self) -> Ablation:
        return next(row for row in self.rows if row.name == "base")

    def report(self) -> LabReport:
        return LabReport(
            name="table3",
            title="Table 3: what each part is worth",
            question="What happens when one thing about the model is changed?",
            setup=(
                f"{self.place}, {self.settings.steps:,} steps, seeds {list(self.settings.seeds)}, through"
                " `transduce compare`."
            ),
            tables=(self._table(),),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(9.0, 0.9 + 0.42 * len(self.rows)),
        )

    def _table(self) -> LabTable:
        """The table, with BLEU only where it is informative: texts of fewer than four words have 0."""
        with_bleu = any(row.bleu for row in self.rows)
        headings = "variant", "perplexity", "over base's", "chrF", *(["BLEU"] if with_bleu else []), "parameters"
        cells: list[tuple[object, ...]] = []
        for row in self.rows:
            quality = (row.chrf, row.bleu) if with_bleu else (row.chrf,)
            cells.append((row.name, row.perplexity, row.perplexity / self.base.perplexity, *quality, row.parameters))
        return LabTable("table3", "Ablations", headings, tuple(cells))

    def _findings(self) -> list[Claim]:
        changes = {row.name: row.perplexity / self.base.perplexity - 1 for row in self.rows if row.name != "base"}
        order = sorted(changes, key=lambda name: changes[name])
        listed = ", ".join(f"{name} {100 * changes[name]:+.0f} %" for name in order)
        found = [Claim(f"Perplexity against base, the best first: {listed}.")]
        smaller = [name for name in ("C-width-half", "C-layers-third", "C-feed-forward-half") if name in changes]
        if smaller:
            listed = ", ".join(f"{name} {100 * changes[name]:+.0f} %" for name in smaller)
            text = f'Row (C): "bigger models are better". Here smaller ones have perplexities of {listed} against base.'
            found.append(Claim(text, held=all(changes[name] > 0 for name in smaller)))
        for name, text in CLAIMS.items():
            if name in changes:
                found.append(
                    Claim(
                        f"{text} Here {name} has {100 * changes[name]:+.0f} % perplexity.",
                        EXPECTED[name](changes[name]),
                    )
                )
        return found

    def _draw(self, figure: Figure) -> None:
        axes = figure.subplots()
        names = [row.name for row in self.rows][::-1]
        values = [row.perplexity for row in self.rows][::-1]
        axes.barh(names, values, color=[colours(2)[name == "base"] for name in names], height=0.6)
        axes.axvline(self.base.perplexity, color=INK, linewidth=0.8, linestyle=":")
        axes.plot([], [])
        dress(axes, "")
        axes.set_xlabel("perplexity of held-out text (less is better)", color=INK)


CLAIMS = {
    "A-heads-1": 'Row (A): "single-head attention is 0.9 BLEU worse than the best setting".',
    "B-keys-16": 'Row (B): "reducing the attention key size d_k hurts model quality".',
    "D-dropout-none": 'Row (D): "dropout is very helpful in avoiding over-fitting".',
    "E-learned-positions": 'Row (E): learned positions give "nearly identical results to the base model".',
}
EXPECTED = {
    "A-heads-1": lambda change: change > 0,
    "B-keys-16": lambda change: change > 0,
    "D-dropout-none": lambda change: change > 0,
    "E-learned-positions": lambda change: abs(change) < 0.05,
}


def table3(settings: Table3 | None = None) -> Table3Result:
    """Train and measure the rows."""
    settings = settings or Table3()
    with contextlib.ExitStack() as stack:
        folder = Path(settings.work or stack.enter_context(tempfile.TemporaryDirectory(prefix="transduce-lab-")))
        corpus = Path(settings.corpus) if settings.corpus else number_words(6000, 200, 1).prepare(folder)
        plan = _chosen(settings.plan(corpus), settings)
        compared = run_plan(plan, folder / "runs", settings.jobs)
        if compared.results is None:
            raise RunError(
                "lab table3: stopped before all rows were trained; with work=FOLDER the same command resumes"
            )
        place = f"Corpus {corpus.name}" if settings.corpus else "Number words, English to German, generated"
        return Table3Result(settings, place, tuple(_ablations(compared.results)))


def _chosen(plan: ComparisonPlan, settings: Table3) -> ComparisonPlan:
    if "all" in settings.rows:
        return plan
    unknown = [name for name in settings.rows if name not in plan.variants]
    if unknown:
        raise ConfigError(f"rows: no row is called {unknown[0]!r}; there are {', '.join(plan.variants)}, and all")
    names = tuple(name for name in plan.variants if name in settings.rows)
    return replace(plan, variants=names, runs=tuple(run for run in plan.runs if run.variant in names))


def _ablations(results: Results) -> list[Ablation]:
    def take(row: Row, figure: str) -> float:
        return row.figures[figure].mean

    failed = [row.variant for row in results.rows if not row.figures]
    if failed:
        raise RunError(f"lab table3: {', '.join(failed)} could not be trained; look at the logs in the work folder")
    return [
        Ablation(
            row.variant,
            math.exp(take(row, "validation_loss")),
            take(row, "chrf"),
            take(row, "bleu"),
            round(take(row, "parameters")),
        )
        for row in results.rows
    ]
