"""The command that reads recordings and pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.arguments import BeamSize, Ensemble, JsonLines, ModelFolder, Output, SearchOfCall
from transduce.cli.opening import Opening, opens_models
from transduce.errors import DataError, UserError

if TYPE_CHECKING:
    from transduce.data.reader import FileReader

WINDOW = 100  # files that are read at once


@opens_models
def transcribe(
    model: ModelFolder,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Recordings or pictures.")] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="List of files: a path a line, or a .tsv manifest.")
    ] = None,
    output: Output = None,
    beam: BeamSize = 0,
    n_best: Annotated[int, typer.Option(help="Transcripts a file: file number, score, text, tab-separated.")] = 1,
    search: SearchOfCall = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out files that cannot be read: named on stderr, an empty line each.")
    ] = False,
    json_lines: JsonLines = False,
    ensemble: Ensemble = None,
    *,
    opening: Opening,
) -> None:
    """Write down what recordings say or pictures show: one line out for each file in, in order.

    All files are opened before the first is transcribed. If some cannot be read each is named with its reason and
    nothing is written, or with --skip an empty line for each of them.

    Examples:

        transduce transcribe runs/digits one.wav two.flac

        transduce transcribe runs/digits --input test.tsv --beam 4 > transcripts.txt

        transduce transcribe runs/digits --input all.txt --skip > transcripts.txt
    """
    from transduce.output import chosen_search, read_list, translations_of, with_progress, write_translations, written

    if bool(files) == (input is not None):
        raise UserError("transcribe: expected files, or a list of them with --input FILE, and not both")
    translator = opening.load([model, *(ensemble or [])])
    if translator.reading is None:
        raise UserError(f"{model}: reads text, not recordings or pictures; use `transduce translate`")
    chosen = None if search is None else chosen_search(translator, search)
    named = list(files or []) if input is None else read_list(input)
    paths = _readable(translator.reading.reader, named, skip)
    stream = translator.stream(paths, beam=beam, n_best=n_best, search=chosen, window=WINDOW)
    with written(output, [input] if input else []) as file:
        shown = with_progress(stream, "Reading", len(paths), output is None, WINDOW)
        write_translations(shown, file, None, json_lines, n_best if search is None else translations_of(search))


def _readable(reader: FileReader, paths: list[str], skip: bool) -> list[str]:
    """The paths, each opened once; of those that cannot be read, if they may be skipped, nothing stays but a place."""
    faults = {path: fault for path in dict.fromkeys(paths) if path.strip() and (fault := reader.fault(path))}
    if not faults:
        return paths
    told = "\n".join(f"{path}: cannot be read: {fault}" for path, fault in faults.items())
    count = f"{len(faults):,} of {len(set(paths)):,} files cannot be read"
    if not skip:
        raise DataError(f"{told}\n{count}, and nothing was transcribed; {reader.expected}, or leave them out by --skip")
    if len(faults) == len(set(paths)):
        raise DataError(f"{told}\nnone of the files can be read; {reader.expected}")
    print(f"{told}\n{count} and were skipped: an empty line each", file=sys.stderr, flush=True)
    return ["" if path in faults else path for path in paths]
