"""Tables and pictures of a comparison: on a terminal, as Markdown, run by run as CSV; one colour a variant.

The pictures show quality against training time, and by length of the source.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transduce.core.errors import counted
from transduce.core.progress import seconds_as_text
from transduce.evaluation.plot import INK, colours, dress, new_figure, save
from transduce.workflows.compare.results import CLAIM, FIGURES, Results, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB = 1 << 30
Show = Callable[[float], str]


@dataclass(frozen=True)
class _Column:
    heading: str
    figure: str
    show: Show
    deviation: bool = False  # whether it is shown too


_COLUMNS = (
    _Column("BLEU", "bleu", "{:.2f}".format, deviation=True),
    _Column("chrF", "chrf", "{:.2f}".format, deviation=True),
    _Column("valid BLEU", "validation_bleu", "{:.2f}".format, deviation=True),
    _Column("parameters", "parameters", "{:,.0f}".format),
    _Column("training tokens/s", "training_tokens_per_second", "{:,.0f}".format),
    _Column("training time", "training_seconds", seconds_as_text),
    _Column("decoding tokens/s, batch 1", "decoding_tokens_per_second_1", "{:,.0f}".format),
    _Column("batch 32", "decoding_tokens_per_second_32", "{:,.0f}".format),
    _Column("memory GiB", "training_memory", lambda value: f"{value / GIB:.2f}"),
)


def table_cells(results: Results) -> list[list[str]]:
    """The cells of the main table: headings, then a row a variant."""
    tested = ["p"] if results.baseline else []
    headings = [column.heading for column in _COLUMNS]
    cells = [["variant", headings[0], *tested, *headings[1:]]]
    for row in results.rows:
        quality, *others = (_cell(row, column) for column in _COLUMNS)
        cells.append([row.variant, quality, *([_p_cell(row, results.baseline)] if tested else []), *others])
    return cells


def _cell(row: Row, column: _Column) -> str:
    figure = row.figures.get(column.figure)
    if figure is None:
        return "failed" if column is _COLUMNS[0] and row.failed else ""
    text = column.show(figure.mean)
    if column.deviation and figure.deviation is not None:
        text += f" ± {column.show(figure.deviation)}"
    return text


def _p_cell(row: Row, baseline: str) -> str:
    if row.variant == baseline:
        return "baseline"
    if row.adjusted is None:
        return "one seed" if row.measured == 1 else ""
    return f"{row.adjusted:.3f}{' *' if row.claimed else ''}"


def length_cells(results: Results) -> list[list[str]]:
    """BLEU by source length: headings, then a row a variant; empty where nothing was measured."""
    found = {name for row in results.rows for name in row.lengths}
    ranges = sorted(found, key=lambda name: int(name.rstrip("+").split("-")[0]))
    if not ranges:
        return []
    cells = [["BLEU by source words", *ranges]]
    for row in results.rows:
        shown = [f"{row.lengths[name].mean:.2f}" if name in row.lengths else "" for name in ranges]
        cells.append([row.variant, *shown])
    return cells


def notes(results: Results) -> Iterator[str]:
    """Yield notes on how to read the table."""
    if results.sentences:
        yield (
            f"Measured on the {results.split} split ({results.sentences:,} sentences) with each run's own search, on"
            f" {results.device}; mean ± standard deviation over seeds. BLEU: {results.signature}"
        )
    if results.tokenizer:
        yield f"{results.tokenizer}."
    yield from _tested(results)
    if results.side_by_side:
        yield "Training tokens/s and time were measured with several runs side by side, decoding one run at a time."
    for ground in dict.fromkeys(row.after for row in results.rows if row.after):
        built = ", ".join(row.variant for row in results.rows if row.after == ground)
        yield f"Built on the runs of {' and '.join(ground)}, whose training is not in their time and budget: {built}."
    for row in results.rows:
        if 0 < row.failed < row.seeds:
            yield f"{row.variant}: {row.failed} of {row.seeds} runs failed; the figures are those of the others."
    for run in results.runs:
        if run.failure:
            yield f"{run.variant}, seed {run.seed}: failed: {run.failure}"


def _tested(results: Results) -> Iterator[str]:
    """Yield notes on how differences were tested, and where they could not be."""
    tested = [row for row in results.rows if row.adjusted is not None]
    if tested:
        yield (
            f"p: difference of mean BLEU from {results.baseline}, two-sided, over the choice of seeds and of sentences;"
            f" Holm's correction for the {counted(len(tested), 'variant')} tested; * below {CLAIM}."
        )
    single = [row.variant for row in results.rows if row.measured == 1]
    if results.baseline and single:
        every = all(row.measured <= 1 for row in results.rows)
        where = "" if every else f" ({', '.join(single)})"
        yield f"one seed: no test of training noise{where}; differences are tested with several, such as seeds=[1,2,3]."


def as_markdown(results: Results) -> str:
    """The tables and notes as a Markdown document."""
    parts = [f"# {results.name}", _markdown_table(table_cells(results))]
    if lengths := length_cells(results):
        parts.append(_markdown_table(lengths))
    return "\n\n".join([*parts, *notes(results)]) + "\n"


def _markdown_table(cells: list[list[str]]) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    rule = ["---", *("--:" for _ in rows[0][1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def as_csv(results: Results) -> str:
    """One line a run, its figures unrounded, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", "seed", "failure", *FIGURES])
    for run in results.runs:
        figures = [take(run) for take in FIGURES.values()]
        writer.writerow([run.variant, run.seed, run.failure, *("" if value is None else value for value in figures)])
    return text.getvalue()


def render(results: Results, console: Console) -> None:
    """Print ruled tables on a terminal, aligned columns elsewhere, and the notes."""
    for cells in (table_cells(results), length_cells(results)):
        if cells:
            console.print(_rich_table(cells, console))
            console.print()
    for note in notes(results):
        console.print(Text(note), soft_wrap=not console.is_terminal)


def _rich_table(cells: list[list[str]], console: Console) -> Table:
    ruled = console.is_terminal
    table = Table(box=box.SIMPLE_HEAD if ruled else None, pad_edge=ruled, header_style="bold")
    for number, heading in enumerate(cells[0]):
        table.add_column(heading, justify="right" if number else "left", no_wrap=not ruled)
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    return table


def draw_pictures(results: Results, folder: Path) -> list[Path]:
    """Write `quality.png` and `lengths.png`, without variants that have no good run; return their paths."""
    rows = [row for row in results.rows if row.figures]
    figures = {"quality.png": _quality(rows), "lengths.png": _lengths(results, rows)}
    for name, figure in figures.items():
        save(figure, folder / name)
    return [folder / name for name in figures]


def _quality(rows: Sequence[Row]) -> Figure:
    """Plot validation BLEU over minutes of training, the mean of the seeds."""
    figure = new_figure(9, 5.5)
    axes = figure.subplots()
    longest = max((row.curve[-1].seconds for row in rows if row.curve), default=0.0)
    unit, divisor = ("minutes", 60.0) if longest >= 120 else ("seconds", 1.0)
    for row, colour in zip(rows, colours(len(rows)), strict=True):
        times, values = [point.seconds / divisor for point in row.curve], [point.bleu for point in row.curve]
        if times:
            axes.plot(times, values, color=colour, linewidth=1.6, marker="o", markersize=4)
    dress(axes, "BLEU on validation, mean of seeds")
    axes.set_xlabel(f"{unit} of training", color=INK)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    _name_rows(figure, axes, rows)
    return figure


def _lengths(results: Results, rows: Sequence[Row]) -> Figure:
    """Plot BLEU in each range of source length, with the deviation over seeds as a bar."""
    figure = new_figure(9, 5.5)
    axes = figure.subplots()
    ranges = length_cells(results)[0][1:] if rows else []
    for row, colour in zip(rows, colours(len(rows)), strict=True):
        columns = [column for column, name in enumerate(ranges) if name in row.lengths]
        found = [row.lengths[ranges[column]] for column in columns]
        means, bars = [figure.mean for figure in found], [figure.deviation or 0.0 for figure in found]
        axes.errorbar(columns, means, yerr=bars, color=colour, linewidth=1.6, marker="o", markersize=4, capsize=3)
    dress(axes, f"BLEU on {results.split}, mean of seeds")
    axes.set_xlabel("words of the source", color=INK)
    axes.set_xticks(range(len(ranges)), ranges)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    _name_rows(figure, axes, rows)
    return figure


def _name_rows(figure: Figure, axes: Axes, rows: Sequence[Row]) -> None:
    """List the variants and their colours above the panel."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=3, label="variant") for colour in colours(len(rows))]
    columns = max(1, 110 // (max((len(row.variant) for row in rows), default=1) + 6))
    legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK)
    for text, row in zip(legend.get_texts(), rows, strict=True):
        text.set_parse_math(False)
        text.set_text(row.variant)
