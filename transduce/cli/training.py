"""Commands that train models, compare them, and plot how training went."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from transduce.cli.arguments import Words, split_words
from transduce.core import config as configs
from transduce.core.progress import say


def train(
    words: Words = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Run folder; an existing run resumes.")] = Path(
        "runs/model"
    ),
) -> None:
    """Train a model on a prepared corpus, or resume a run that was stopped.

    Ctrl-C or SIGTERM saves and leaves (exit code 130 or 143); the same command resumes, with the same result.

    Examples:

        transduce train tiny data.folder=data/mine --output runs/mine

        transduce train configs/multi30k-en-de.toml training.steps=5000 -o runs/multi30k

        torchrun --nproc-per-node 4 -m transduce train base data.folder=data/mine -o runs/mine
    """
    from transduce.experiment import Config
    from transduce.training.loop import train as run

    outcome = run(configs.load(Config, *split_words(words)), output)
    if outcome.reason in signal.Signals.__members__:
        raise typer.Exit(128 + signal.Signals[outcome.reason])


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    last: Annotated[int, typer.Option(help="Average the last N checkpoints.")] = 0,
    best: Annotated[int, typer.Option(help="Average the best N by validation.")] = 0,
) -> None:
    """Average checkpoints of a run and make the result the model that the folder offers.

    Examples:

        transduce average runs/demo --last 5
    """
    from transduce.training.averages import average_run

    print(average_run(run, last, best))


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG file to write.")] = Path("plot.png"),
) -> None:
    """Plot loss, learning rate and BLEU of one or several runs to a PNG.

    Examples:

        transduce plot runs/first runs/second -o compared.png
    """
    from transduce.evaluation.plot import plot as draw

    draw(runs, output)
    print(output)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for corpus and model.")] = Path("runs/demo"),
    train: Annotated[bool, typer.Option("--train", help="Train a small model first, even if one is shipped.")] = False,
) -> None:
    """Show what a model does: translations, attention, alternatives, scores, and commands to try next.

    With the shipped model. With --train, or where none is shipped, a small one first learns generated number words:
    about two minutes.

    Examples:

        transduce demo

        transduce demo --train --output runs/demo
    """
    from transduce.translate.model_folder import is_shipped, shipped

    if train or not is_shipped():
        from transduce.workflows.demo import demo as run

        run(output)
        return
    from rich.console import Console

    from transduce.cli.output import written
    from transduce.translate.loading import load
    from transduce.workflows.tour import EVERYDAY, tour

    with written(None) as file:  # UTF-8 on any system
        tour(load(shipped()), shipped(), EVERYDAY, Console(file=file), named=False)


def compare(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Comparison file: variants, seeds, a base config.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings for all variants; also base=, seeds=.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default runs/compare/NAME.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Trainings at a time; 0 = what suits the machine.")] = 0,
) -> None:
    """Train variants of one config on the same data, budget and seeds, and show how they compare, in one table.

    The same command resumes what was stopped, and only shows the table where all is done.

    Examples:

        transduce compare configs/compare/positions.toml data.folder=data/mine --output runs/compare/positions

        transduce compare configs/compare/norms.toml data.folder=data/mine base=tiny seeds=1 training.steps=500
    """
    from transduce.workflows.compare.run import compare as run
    from transduce.workflows.compare.table import render

    compared = run(file, words or [], output, jobs)
    if compared.signal:
        say(f"{compared.signal.name}: stopped; the same command resumes from there")
        raise typer.Exit(128 + compared.signal)
    assert compared.results is not None
    render(compared.results, Console(soft_wrap=True, width=None if sys.stdout.isatty() else 400))
    print("", *compared.notes, sep="\n")
    if compared.results.failed:
        raise typer.Exit(1)
