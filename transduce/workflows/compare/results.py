"""The results of a comparison: every run's figures, and each variant's mean and deviation over its seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from transduce.core.reports import METRICS_FILE
from transduce.evaluation.significance import SeedScores, against_baseline, holm, score_seeds
from transduce.metrics.corpus import Target, bleu_metric, in_words
from transduce.workflows.compare.measure import (
    Measured,
    Point,
    TrainingRecord,
    read_history,
    read_measured,
    translations_file,
)
from transduce.workflows.compare.plan import ComparisonPlan, PlannedRun

CLAIM = 0.05  # a difference with a smaller adjusted p-value is marked


@dataclass(frozen=True)
class RunResult:
    """One run; `failure` says why it has no figures. `side_by_side`: how many runs were trained at once with it."""

    variant: str
    seed: int
    failure: str = ""
    side_by_side: int = 1
    trained: TrainingRecord | None = None
    measured: Measured | None = None


@dataclass(frozen=True)
class Figure:
    """Mean over seeds, and their standard deviation (with n - 1; None for a single seed)."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Row:
    """The figures of one variant.

    `figures` and `lengths` (BLEU by range of source words) are empty if no run of it ended well. `p_value` is that of
    its mean BLEU against the baseline's (evaluation/significance.py), `adjusted` after Holm's correction for all
    variants of the table. Both are None where nothing was tested: without a baseline, and where the variant or the
    baseline has one seed. `after` are the variants whose training it builds on.
    """

    variant: str
    seeds: int
    failed: int
    figures: dict[str, Figure]
    lengths: dict[str, Figure]
    p_value: float | None
    adjusted: float | None
    curve: tuple[Point, ...]
    after: tuple[str, ...] = ()

    @property
    def measured(self) -> int:
        """The number of seeds that have figures."""
        return self.seeds - self.failed

    @property
    def claimed(self) -> bool:
        """Whether its difference from the baseline is marked as significant."""
        return self.adjusted is not None and self.adjusted < CLAIM


@dataclass(frozen=True)
class Results:
    """A whole comparison: `split` is what quality was measured on, `tokenizer` BLEU's and its reason."""

    name: str
    baseline: str
    split: str
    sentences: int
    signature: str
    tokenizer: str
    device: str
    side_by_side: bool
    rows: tuple[Row, ...]
    runs: tuple[RunResult, ...]

    @property
    def failed(self) -> bool:
        return any(run.failure for run in self.runs)

    def as_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


Take = Callable[[RunResult], float | None]  # None where the run has no such figure


def _trained(take: Callable[[TrainingRecord], float | None]) -> Take:
    return lambda run: take(run.trained) if run.trained is not None else None


def _measured(take: Callable[[Measured], float]) -> Take:
    return lambda run: take(run.measured) if run.measured is not None else None


FIGURES: Mapping[str, Take] = {
    "bleu": _measured(lambda measured: measured.bleu),
    "chrf": _measured(lambda measured: measured.chrf),
    "validation_bleu": _trained(lambda trained: trained.best.get("bleu")),
    "validation_chrf": _trained(lambda trained: trained.best.get("chrf")),
    "validation_loss": _trained(lambda trained: trained.best.get("loss")),
    "final_validation_bleu": _trained(lambda trained: trained.final.get("bleu")),
    "final_validation_chrf": _trained(lambda trained: trained.final.get("chrf")),
    "parameters": _measured(lambda measured: measured.parameters),
    "training_tokens_per_second": _trained(lambda trained: trained.tokens_per_second),
    "training_seconds": _trained(lambda trained: trained.seconds),
    "training_steps": _trained(lambda trained: trained.steps),
    "training_memory": _trained(lambda trained: trained.memory),
    "decoding_tokens_per_second_1": _measured(lambda measured: measured.alone.tokens_per_second),
    "decoding_tokens_per_second_32": _measured(lambda measured: measured.batched.tokens_per_second),
    "decoding_sentences_per_second_1": _measured(lambda measured: measured.alone.sentences_per_second),
    "decoding_sentences_per_second_32": _measured(lambda measured: measured.batched.sentences_per_second),
    "decoding_memory": _measured(lambda measured: measured.memory),
}


def figure(values: Sequence[float]) -> Figure:
    """Mean and deviation of at least one value."""
    return Figure(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def read_run(run: PlannedRun, output: Path, failure: str, side_by_side: int) -> RunResult:
    """Read one run's figures from its files."""
    if failure:
        return RunResult(run.variant, run.seed, failure, side_by_side)
    trained = read_history(run.folder(output) / METRICS_FILE)
    measured = read_measured(run.beside(output, "measured.json"))
    return RunResult(run.variant, run.seed, "", side_by_side, trained, measured)


def summarise(
    plan: ComparisonPlan,
    runs: Sequence[RunResult],
    split: str,
    p_values: Mapping[str, float],
    targets: Sequence[Target] = (),
) -> Results:
    """Summarise runs to rows in the order of the plan."""
    adjusted = holm(p_values)
    measured = [run.measured for run in runs if run.measured]
    after = {run.variant: run.after for run in plan.runs}
    rows = tuple(
        replace(
            _row(variant, [run for run in runs if run.variant == variant]),
            p_value=p_values.get(variant),
            adjusted=adjusted.get(variant),
            after=after.get(variant, ()),
        )
        for variant in plan.variants
    )
    return Results(
        name=plan.name,
        baseline=plan.baseline,
        split=split,
        sentences=measured[0].sentences if measured else 0,
        signature=measured[0].bleu_signature if measured else "",
        tokenizer=in_words(targets) if targets else "",
        device=measured[0].device if measured else "",
        side_by_side=any(run.side_by_side > 1 for run in runs),
        rows=rows,
        runs=tuple(runs),
    )


def _row(variant: str, runs: Sequence[RunResult]) -> Row:
    """The figures of a variant, not yet tested."""
    good = [run for run in runs if not run.failure]
    figures = {}
    for name, take in FIGURES.items():
        values = [value for value in map(take, good) if value is not None]
        if values:
            figures[name] = figure(values)
    ranges: dict[str, list[float]] = {}
    for run in good:
        for length in run.measured.lengths if run.measured else ():
            ranges.setdefault(length.range, []).append(length.bleu)
    lengths = {name: figure(values) for name, values in ranges.items()}
    return Row(variant, len(runs), len(runs) - len(good), figures, lengths, None, None, mean_curve(good))


def mean_curve(runs: Sequence[RunResult]) -> tuple[Point, ...]:
    """Mean time and quality at each step at which every run was validated."""
    by_step: dict[int, list[Point]] = {}
    for run in runs:
        for point in run.trained.curve if run.trained else ():
            by_step.setdefault(point.step, []).append(point)
    return tuple(
        Point(step, statistics.fmean(p.seconds for p in points), statistics.fmean(p.bleu for p in points))
        for step, points in sorted(by_step.items())
        if len(points) == len(runs)
    )


def compare_with_baseline(
    plan: ComparisonPlan, output: Path, failures: Mapping[str, str], references: list[str], targets: Sequence[Target]
) -> dict[str, float]:
    """The p-value of each variant's mean BLEU against the baseline's, over the seeds that ended well.

    A variant is left out where it or the baseline has one such seed: training noise cannot be told from a difference.
    """
    return against_baseline(score_variants(plan, output, failures, references, targets), plan.baseline)


def score_variants(
    plan: ComparisonPlan, output: Path, failures: Mapping[str, str], references: list[str], targets: Sequence[Target]
) -> dict[str, SeedScores]:
    """BLEU of each variant with several seeds that ended well, from the translations beside their runs."""
    translations: dict[str, list[list[str]]] = {}
    for run in plan.runs:
        if run.label not in failures:
            text = translations_file(run.beside(output, "measured.json")).read_bytes().decode()
            translations.setdefault(run.variant, []).append(text.split("\n")[:-1])
    parts = [(bleu_metric(tokenize=target.tokenizer), list(target.texts)) for target in targets]
    return {name: score_seeds(texts, references, parts) for name, texts in translations.items() if len(texts) > 1}
