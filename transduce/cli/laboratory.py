"""The command that runs experiments: tables on the terminal, a page with a picture and CSV files in a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def lab(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="An experiment, or all; none lists them.")] = "",
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the experiment.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for page, picture and CSV.")] = Path(
        "runs/lab"
    ),
) -> None:
    """Measure what the paper argues: complexity, speed, scaling-factor, norms, positions, length, exposure,
    teacher-forcing, decoding, table3.

    Each takes a minute or two on a CPU and uses a GPU where there is one (device=cpu keeps it off). Nothing is needed
    from outside; those that train also take a prepared corpus (corpus=FOLDER), settings for every run
    (overrides=["training.steps=2000"]) and a folder to keep the runs in (work=FOLDER).

    Examples:

        transduce lab

        transduce lab complexity --output runs/lab

        transduce lab speed steps=500 device=cuda

        transduce lab table3 corpus=data/mine base=small small=false steps=6000 rows=["all"] work=runs/table3

        transduce lab all --output docs/lab
    """
    from rich.console import Console

    from transduce.lab.catalogue import EXPERIMENTS, NAMES, perform
    from transduce.lab.index import index
    from transduce.lab.report import show, write
    from transduce.lab.times import Clock, record

    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 400)
    if not name:
        for experiment in EXPERIMENTS:
            print(f"{experiment.name:16}{experiment.shows}")
        return
    for chosen in NAMES if name == "all" else [name]:
        clock = Clock()
        report = perform(chosen, words or [])
        show(report, console)
        files = write(report, output)
        took = clock.took(report.name, words or [])
        files += [record(output, took), index(output, NAMES)]
        print(f"\n{output}: {', '.join(file.name for file in files)}")
        print(f"{took}\n")
