"""Commands that run many others: pipelines from raw text to a model to give away, experiments, and config."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.arguments import Words, split_words
from transduce.core import config as configs
from transduce.core.progress import say


def pipeline(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file: stages, in order.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="folder=, paths.NAME=, or STAGE.SETTING=.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="STAGE", help="Begin here; the output of earlier stages is taken as it is.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="STAGE", help="End with this stage.")] = "",
    show: Annotated[bool, typer.Option("--list", help="Only show which stages are done, stale or left.")] = False,
) -> None:
    """Run the stages of a pipeline that are not done: gather, prepare, train, distill, convert, evaluate, card.

    The same command resumes after a kill. A stage is done again only if its settings, or what it reads, have changed.

    Examples:

        transduce pipeline recipes/everyday.toml --list

        transduce pipeline recipes/everyday.toml paths.data=texts folder=runs/mine --until corpus

        transduce pipeline recipes/everyday.toml student.settings.training.steps=50000 --from student
    """
    from transduce.core.progress import seconds_as_text
    from transduce.workflows.pipeline.run import pipeline as run
    from transduce.workflows.pipeline.run import pipeline_states

    if show:
        for stage in pipeline_states(file, words or []):
            took = seconds_as_text(stage.seconds) if stage.state == "done" else ""
            print(f"{stage.name}\t{stage.kind}\t{stage.state}\t{stage.why or took}")
        return
    piped = run(file, words or [], start, until)
    if piped.signal:
        say(f"{piped.signal.name}: stopped; the same command resumes from there")
        raise typer.Exit(128 + piped.signal)
    print(f"{piped.folder}: {len(piped.done)} stages done now, {len(piped.skipped)} done before")


def lab(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="An experiment, or all; none lists them.")] = "",
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the experiment.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for page, picture and CSV.")] = Path(
        "runs/lab"
    ),
) -> None:
    """Measure the paper's arguments, one experiment each.

    They are complexity, speed, scaling-factor, norms, positions, length, exposure, teacher-forcing, decoding, table3.
    Each takes a minute or two on a CPU and uses a GPU where there is one (device=cpu keeps it off). Nothing is needed
    from outside; those that train also take a prepared corpus (corpus=FOLDER), settings for every run
    (overrides=["training.steps=2000"]) and a folder to store the runs in (work=FOLDER).

    Examples:

        transduce lab

        transduce lab complexity --output runs/lab

        transduce lab speed steps=500 device=cuda

        transduce lab table3 corpus=data/mine base=small small=false steps=6000 rows=["all"] work=runs/table3

        transduce lab all --output docs/lab
    """
    from rich.console import Console

    from transduce.lab.catalogue import EXPERIMENTS, NAMES, Clock, index, perform, record
    from transduce.lab.report import show, write

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


config = typer.Typer(no_args_is_help=True, help="Look at configurations.")


@config.command()
def show(words: Words = None) -> None:
    """Print the whole config that a file or preset and overrides give, with the origin of each value.

    Examples:

        transduce config show base model.decoder.layers=2
    """
    from transduce.experiment import Config

    layers = configs.layers(Config, *split_words(words))
    print(configs.dump(configs.resolve(Config, layers), layers.origins), end="")


@config.command()
def schema() -> None:
    """Print the JSON schema of config files, by which an editor completes and checks them.

    Examples:

        transduce config schema > transduce.schema.json
    """
    from transduce.core.schema import json_schema
    from transduce.experiment import Config

    print(json.dumps(json_schema(Config), indent=2, ensure_ascii=False))
