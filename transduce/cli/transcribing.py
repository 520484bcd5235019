"""The command that reads recordings and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.arguments import BeamSize, Device, Ensemble, JsonLines, ModelFolder, Output, Trust
from transduce.errors import UserError


def transcribe(
    model: ModelFolder,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Recordings or pictures.")] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="List of files: a path a line, or a .tsv manifest.")
    ] = None,
    output: Output = None,
    beam: BeamSize = 0,
    n_best: Annotated[int, typer.Option(help="Transcripts a file: file number, score, text, tab-separated.")] = 1,
    search: Annotated[str, typer.Option(help="A search in place of the model's own: kind=sample,top_p=0.9.")] = "",
    json_lines: JsonLines = False,
    ensemble: Ensemble = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Write down what recordings say or pictures show: one line out for each file in, in order.

    Examples:

        transduce transcribe runs/digits one.wav two.flac

        transduce transcribe runs/digits --input test.tsv --beam 4 > transcripts.txt
    """
    from transduce.loading import load
    from transduce.output import as_json, as_lines, chosen_search, read_list, with_progress, written

    if bool(files) == (input is not None):
        raise UserError("transcribe: expected files, or a list of them with --input FILE, and not both")
    translator = load([model, *(ensemble or [])], device, trust, engine="torch")
    if translator.reading is None:
        raise UserError(f"{model}: reads text, not recordings or pictures; use `transduce translate`")
    paths = list(files or []) if input is None else read_list(input)
    chosen = chosen_search(translator, search) if search else None
    stream = translator.stream(paths, beam=beam, n_best=n_best, search=chosen, window=100)
    with written(output, input) as file:
        for number, one in enumerate(with_progress(stream, "Reading", len(paths), printed=output is None), start=1):
            file.write(as_json(one) if json_lines else as_lines(one, number, n_best))
