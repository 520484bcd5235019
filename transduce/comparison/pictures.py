"""Pictures of a comparison, one colour a variant: quality against training time, and by length of the source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.comparison.results import Results, Row
from transduce.comparison.table import length_cells
from transduce.plot import INK, colours, dress, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_pictures(results: Results, folder: Path) -> list[Path]:
    """Write `quality.png` and `lengths.png`; gives their paths. Variants without a good run are left out."""
    rows = [row for row in results.rows if row.figures]
    figures = {"quality.png": _quality(rows), "lengths.png": _lengths(results, rows)}
    for name, figure in figures.items():
        save(figure, folder / name)
    return [folder / name for name in figures]


def _quality(rows: Sequence[Row]) -> Figure:
    """Validation BLEU over minutes of training, the mean of the seeds."""
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
    """BLEU in each range of source length, with the deviation over seeds as a bar."""
    figure = new_figure(9, 5.5)
    axes = figure.subplots()
    ranges = length_cells(results)[0][1:] if rows else []
    for row, colour in zip(rows, colours(len(rows)), strict=True):
        places = [place for place, name in enumerate(ranges) if name in row.lengths]
        found = [row.lengths[ranges[place]] for place in places]
        means, bars = [one.mean for one in found], [one.deviation or 0.0 for one in found]
        axes.errorbar(places, means, yerr=bars, color=colour, linewidth=1.6, marker="o", markersize=4, capsize=3)
    dress(axes, f"BLEU on {results.split}, mean of seeds")
    axes.set_xlabel("words of the source", color=INK)
    axes.set_xticks(range(len(ranges)), ranges)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    _name_rows(figure, axes, rows)
    return figure


def _name_rows(figure: Figure, axes: Axes, rows: Sequence[Row]) -> None:
    """The variants and their colours, above the panel."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=3, label="variant") for colour in colours(len(rows))]
    columns = max(1, 110 // (max((len(row.variant) for row in rows), default=1) + 6))
    legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK)
    for text, row in zip(legend.get_texts(), rows, strict=True):
        text.set_parse_math(False)
        text.set_text(row.variant)
