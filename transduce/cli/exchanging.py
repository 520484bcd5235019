"""Commands that convert a model for the native engine, import those of other systems and export ours to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.core.errors import needed_by
from transduce.exchange import System


def convert(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; the run folder itself is allowed.")],
    quantize: Annotated[str, typer.Option(help="int8, or none to keep 32-bit weights.")] = "int8",
) -> None:
    """Convert a trained model for the native engine, which translates on CPUs, fast and without torch.

    Examples:

        transduce convert runs/demo models/demo

        transduce translate models/demo "Guten Morgen"
    """
    with needed_by("transduce convert"):
        from transduce.exchange.convert import convert as write

    folder = write(run, output, quantize)
    size = sum(path.stat().st_size for path in folder.glob("model.native"))
    print(f"{folder}: {size / 1e6:.1f} MB of weights ({quantize})")


def import_model(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Marian model (OPUS-MT): Hugging Face's folder, or Marian's own.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Run folder to write.")],
    as_trained: Annotated[
        bool,
        typer.Option(
            "--as-trained", help="Decode Marian's own pre-norm models as they were trained, not as Marian decodes them."
        ),
    ] = False,
) -> None:
    """Import a Marian or OPUS-MT model as a run folder, which translates, scores, aligns and can be trained further.

    Its file of weights may be named instead of the folder (.safetensors, .bin, .pt, or Marian's .npz or .bin).

    Examples:

        transduce import opus-mt-en-de runs/opus-en-de

        transduce import student/model.intgemm8.bin runs/student
    """
    from transduce.exchange.marian_import import import_model as run

    print(run(folder, output, as_trained))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a trained model.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    to: Annotated[System, typer.Option(help="The system to export to.")],
) -> None:
    """Export a model to another system's format: Hugging Face's Marian classes, CTranslate2, ONNX.

    A model that the system cannot compute is an error, with every reason.

    Examples:

        transduce export runs/demo demo-marian --to marian

        transduce export runs/demo demo-ct2 --to ctranslate2

        transduce export runs/demo demo-onnx --to onnx
    """
    from transduce.exchange import export as write

    print(write(run, output, to))
