"""Commands that turn a model into another form of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.extras import needed_by


def convert(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; the run folder itself is allowed.")],
    quantize: Annotated[str, typer.Option(help="int8, or none to keep 32-bit weights.")] = "int8",
) -> None:
    """Make of a trained model a folder for the native engine, which translates on CPUs, fast and without torch.

    Examples:

        transduce convert runs/demo models/demo

        transduce translate models/demo "Guten Morgen"
    """
    with needed_by("transduce convert"):
        from transduce.conversion import convert as write

    folder = write(run, output, quantize)
    size = sum(path.stat().st_size for path in folder.glob("model.native"))
    print(f"{folder}: {size / 1e6:.1f} MB of weights ({quantize})")
