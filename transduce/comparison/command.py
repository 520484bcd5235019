"""`transduce compare`, as the command line calls it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def compare(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Comparison file: variants, seeds, a base config.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings for all variants; also base=, seeds=.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; runs/compare/NAME if none.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Trainings at a time; 0 = what suits the machine.")] = 0,
) -> None:
    """Train variants of one config on the same data, budget and seeds, and show how they compare, in one table.

    The same command goes on with what was stopped, and only shows the table where all is done.

    Examples:

        transduce compare configs/compare/positions.toml data.folder=data/mine --output runs/compare/positions

        transduce compare configs/compare/norms.toml data.folder=data/mine base=tiny seeds=1 training.steps=500
    """
    from transduce.comparison.compare import compare as run
    from transduce.comparison.table import render

    compared = run(file, words or [], output, jobs)
    if compared.signal:
        print(f"{compared.signal.name}: stopped; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(128 + compared.signal)
    assert compared.results is not None
    render(compared.results, Console(soft_wrap=True, width=None if sys.stdout.isatty() else 400))
    print("", *compared.notes, sep="\n")
    if compared.results.failed:
        raise typer.Exit(1)
