"""Commands that bring models in from other systems and hand ours over to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Model in Hugging Face's Marian format (OPUS-MT).")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Run folder to write.")],
) -> None:
    """Make a run folder of a Marian or OPUS-MT model: then it translates, scores, aligns and trains on like our own.

    Examples:

        transduce import opus-mt-en-de runs/opus-en-de
    """
    from transduce.exchange.marian_import import import_model as run

    print(run(folder, output))
