"""Reports of experiments: tables, a picture, and findings computed from the numbers, some of which were expected.

A finding that was expected says whether it held. Nothing here decides what is true; it only presents it in four forms:
on a terminal, as Markdown, as CSV, as PNG.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from transduce.core.durable import disk_errors, write_text
from transduce.core.errors import UserError
from transduce.evaluation.plot import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READING = Path(__file__).with_name("reading")
_COLOURS = 64  # in a picture, which makes it a quarter as large: it lies in the repository


@dataclass(frozen=True)
class LabTable:
    """Rows under headings; `name` is that of its CSV, after the experiment's."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]  # text, numbers, or None for nothing


@dataclass(frozen=True)
class Claim:
    """A sentence about the numbers; `held` says whether it is what was expected, None where nothing was."""

    text: str
    held: bool | None = None

    @property
    def mark(self) -> str:
        return {True: "as expected", False: "NOT as expected", None: "seen"}[self.held]


@dataclass(frozen=True)
class LabReport:
    """The report of an experiment: a question, a setup, tables, findings, and a picture.

    `question` is one sentence, `setup` says on what and how it was measured; `draw` fills a figure of `size` inches.
    How to read it beside the paper lies in reading/NAME.md.
    """

    name: str
    title: str
    question: str
    setup: str
    tables: tuple[LabTable, ...]
    findings: tuple[Claim, ...]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (9.0, 5.0)


class Result(Protocol):
    """The result of an experiment: frozen numbers that can report on themselves."""

    def report(self) -> LabReport:
        """Tables, picture and findings."""
        ...


def shown(cell: object) -> str:
    """Format a cell: three digits of a float, integers in full."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


# -- on a terminal ----------------------------------------------------------------------------------------------------


def show(report: LabReport, console: Console) -> None:
    """Print ruled tables on a terminal, aligned columns elsewhere, then the findings."""
    console.print(Text(f"{report.title}: {report.question}", style="bold"), soft_wrap=True)
    for table in report.tables:
        console.print()
        console.print(Text(table.title), soft_wrap=True)
        console.print(_rich(table, ruled=console.is_terminal))
    console.print()
    console.print(Text(report.setup), soft_wrap=True)
    for finding in report.findings:
        style = {True: "green", False: "bold red", None: ""}[finding.held]
        console.print(Text.assemble((f"{finding.mark}: ", style), finding.text), soft_wrap=True)


def _rich(table: LabTable, ruled: bool) -> RichTable:
    rich = RichTable(box=box.SIMPLE_HEAD if ruled else None, pad_edge=ruled, header_style="bold")
    for number, heading in enumerate(table.headings):
        rich.add_column(heading, justify="right" if number else "left", no_wrap=not ruled)
    for row in table.rows:
        rich.add_row(*(Text(shown(cell)) for cell in row))
    return rich


# -- as files ---------------------------------------------------------------------------------------------------------


def write(report: LabReport, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.png and a CSV a table; return their paths. Without matplotlib there is no picture."""
    with disk_errors(folder, "making the folder of the report", needed=4096):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in report.tables:
        written.append(folder / csv_name(report, table))
        write_text(written[-1], as_csv(table))
    picture = folder / f"{report.name}.png"
    try:
        figure = new_figure(*report.size)
        report.draw(figure)
        save(figure, picture)
        _shrink(picture)
        written.append(picture)
    except UserError as error:
        print(f"no picture: {error}")
    written.append(folder / f"{report.name}.md")
    write_text(written[-1], as_markdown(report, picture in written))
    return written


def _shrink(picture: Path) -> None:
    from PIL import Image  # which matplotlib brings

    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(_COLOURS)
    small.save(picture, optimize=True)


def csv_name(report: LabReport, table: LabTable) -> str:
    """The CSV's name: `speed.csv`, or `speed-curves.csv` for a table of another name."""
    return f"{report.name}.csv" if table.name == report.name else f"{report.name}-{table.name}.csv"


def as_csv(table: LabTable) -> str:
    """The table as CSV, numbers unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.headings)
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return text.getvalue()


def as_markdown(report: LabReport, pictured: bool) -> str:
    """The report as a page of its own."""
    parts = [f"# {report.title}", report.question]
    if pictured:
        parts.append(f"![{report.title}]({report.name}.png)")
    parts.append("## What it shows")
    parts.append("\n".join(f"- **{finding.mark}**: {finding.text}" for finding in report.findings))
    for table in report.tables:
        parts += [f"## {table.title}", markdown_table(table), f"Unrounded: `{csv_name(report, table)}`."]
    parts += ["## How to read it", (READING / f"{report.name}.md").read_text(encoding="utf-8").strip(), report.setup]
    return "\n\n".join(parts) + f"\n\nMade by `transduce lab {report.name}`.\n"


def markdown_table(table: LabTable) -> str:
    """The table in Markdown."""
    rows = [[shown(cell).replace("|", "\\|") for cell in row] for row in (table.headings, *table.rows)]
    rule = ["---", *("--:" for _ in rows[0][1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


# -- sentences --------------------------------------------------------------------------------------------------------


def listed(words: Sequence[str]) -> str:
    """Join words as 'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
