"""The command line: each command a few lines over a function of the package.

Everything about a run is a key of its config (`key=value`); flags are few, and a test holds their list.
"""

from __future__ import annotations

from typing import Annotated

import typer

from transduce.cli.corpora import distill, doctor, prepare
from transduce.cli.training import average, compare, config_show, demo, plot, train
from transduce.cli.translating import align, evaluate, score, translate

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Learn to turn one sequence into another: prepare text, train a Transformer, translate, score.",
)
for command in (
    prepare,
    doctor,
    train,
    translate,
    score,
    align,
    evaluate,
    average,
    distill,
    compare,
    plot,
    demo,
):
    app.command()(command)

config_app = typer.Typer(no_args_is_help=True, help="Look at configurations.")
config_app.command("show")(config_show)
app.add_typer(config_app, name="config")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from transduce import __version__

        print(__version__)
        raise typer.Exit
