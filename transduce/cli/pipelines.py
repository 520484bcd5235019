"""The command that runs many others: a pipeline from raw text to a model to give away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def pipeline(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file: stages, in order.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="folder=, paths.NAME=, or STAGE.SETTING=.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="STAGE", help="Begin here; what lies before is taken as it is.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="STAGE", help="End with this stage.")] = "",
    show: Annotated[bool, typer.Option("--list", help="Only show which stages are done, stale or left.")] = False,
) -> None:
    """Run the stages of a pipeline that are not done: gather, prepare, train, distill, convert, evaluate, card.

    The same command goes on after a kill. A stage is done again only if its settings, or what it reads, have changed.

    Examples:

        transduce pipeline recipes/everyday.toml --list

        transduce pipeline recipes/everyday.toml paths.data=texts folder=runs/mine --until corpus

        transduce pipeline recipes/everyday.toml student.settings.training.steps=50000 --from student
    """
    from transduce.pipelines.run import pipeline as run
    from transduce.pipelines.run import pipeline_states
    from transduce.progress import seconds_as_text

    if show:
        for one in pipeline_states(file, words or []):
            took = seconds_as_text(one.seconds) if one.state == "done" else ""
            print(f"{one.name}\t{one.kind}\t{one.state}\t{one.why or took}")
        return
    piped = run(file, words or [], start, until)
    if piped.signal:
        print(f"{piped.signal.name}: stopped; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(128 + piped.signal)
    print(f"{piped.folder}: {len(piped.done)} stages done now, {len(piped.skipped)} done before")
