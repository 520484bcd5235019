"""The page that leads to all pages of the laboratory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transduce.durable import write_text
from transduce.lab.report import Report

OPENING = """# The laboratory

The arguments of "Attention Is All You Need" as measurements: each page is one experiment, its picture, its tables, what
they show (computed from the numbers, and said where it was not as expected) and how to read it beside the paper. One
command makes one page,

    transduce lab complexity --output runs/lab

and `transduce lab all --output docs/lab` (or `make lab`) makes all of them again. Models are small and data is
generated, so that each takes a minute or two on a CPU; figures of time differ from machine to machine, powers, paths
and qualities should not. `transduce lab` lists the experiments, `transduce lab --help` says how to give them a corpus
of your own or a GPU. From Python:

    import transduce
    result = transduce.lab.scaling_factor(transduce.lab.ScalingFactor(keys=64))
    [finding.text for finding in result.report().findings]
"""


def index(reports: Sequence[Report], folder: Path) -> Path:
    """Write README.md in the folder: every experiment, its question, and how many of its expectations held."""
    rows = ["| experiment | question | as expected |", "| --- | --- | --- |"]
    for report in reports:
        expected = [finding.held for finding in report.findings if finding.held is not None]
        rows.append(f"| [{report.title}]({report.name}.md) | {report.question} | {sum(expected)} of {len(expected)} |")
    missed = [
        f"- {report.name}: {finding.text}" for report in reports for finding in report.findings if finding.held is False
    ]
    parts = [OPENING, "\n".join(rows)]
    if missed:
        parts += ["\n## Not as expected", "\n".join(missed)]
    path = folder / "README.md"
    write_text(path, "\n".join(parts) + "\n")
    return path
