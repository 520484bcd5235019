"""The command line: each command a few lines over a function of the package.

Everything about a run is a key of its config (`key=value`); flags are few, and a test freezes their list.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated

import typer

# Where each command lives, and its function's name where that is another. Only the one that is called is imported: the
# others would take longer than translating.
COMMANDS = {
    "prepare": "corpora",
    "doctor": "corpora",
    "train": "training",
    "translate": "translating",
    "transcribe": "translating",
    "score": "translating",
    "align": "translating",
    "confidence": "translating",
    "evaluate": "translating",
    "serve": "serving",
    "inspect": "inspecting",
    "average": "training",
    "convert": "exchanging",
    "distill": "corpora",
    "compare": "training",
    "pipeline": "workflows",
    "plot": "training",
    "demo": "training",
    "import": "exchanging.import_model",
    "export": "exchanging",
    "lab": "workflows",
    "config": "workflows",
}


def program(words: Sequence[str]) -> typer.Typer:
    """Build the program with the command that the words call; with all of them for help or a misspelling."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        help="Learn to turn one sequence into another: prepare text, train a Transformer, translate, score.",
    )
    app.callback(invoke_without_command=True)(_version)
    called = [name for name in words[:1] if name in COMMANDS]
    for name in called or COMMANDS:
        module, _, function = COMMANDS[name].partition(".")
        command = getattr(importlib.import_module(f"transduce.cli.{module}"), function or name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from transduce import __version__

        print(__version__)
        raise typer.Exit
