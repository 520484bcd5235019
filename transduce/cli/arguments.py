"""Arguments and options of the command line that commands share, or that would make them long."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained or converted model.")]
ModelAndTexts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [TEXT]...",
        help="Folder of a model, if not the one that comes with transduce; texts, standard input if none.",
    ),
]
InputFiles = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="File to translate, a line at a time; repeatable.")
]
Ensemble = Annotated[
    list[Path] | None, typer.Option("--ensemble", metavar="MODEL", help="A further model to average with; repeatable.")
]
Pieces = Annotated[bool, typer.Option("--pieces", help="Align subword pieces instead of words.")]
SourceText = Annotated[Path, typer.Argument(metavar="SOURCE", help="Source text, a sentence a line.")]
TargetText = Annotated[Path, typer.Argument(metavar="TARGET", help="Its translation, line by line.")]
Language = Annotated[str, typer.Option("--to", help="Target language of a model trained with tags such as <2de>.")]
SourceLanguage = Annotated[
    str,
    typer.Option(
        "--from", help="Source language, if it is not to be found out; with a model that tells which it knows."
    ),
]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="CONFIG|KEY=VALUE", help="A .toml file or preset, then overrides.")
]

ReferenceText = Annotated[
    Path, typer.Argument(help="Reference translations, a sentence a line; or a .tsv of files and their texts.")
]
MosesBLEU = Annotated[bool, typer.Option("--moses", help="Also BLEU as in older papers: lower-cased, Moses tokens.")]
ErrorRates = Annotated[
    bool, typer.Option("--errors", help="Also word, character and line error rates; always for a .tsv.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of standard output.")]
BeamSize = Annotated[int, typer.Option(help="Beam size; 0 = the model's own search.")]
SearchOfCall = Annotated[
    str | None, typer.Option("--search", help="A search in place of the model's own: kind=sample,top_p=0.9.")
]
Included = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="A word that must appear; may be given again.")
]
Excluded = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="A word that must not appear; may be given again.")
]
JsonLines = Annotated[
    bool, typer.Option("--json", help="One JSON object a text: text, score, tokens, alternatives, alignment.")
]
AlignmentsFile = Annotated[
    Path | None, typer.Option(help="File for word alignments, a line a text: 0-0 1-2, source first.")
]


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """A config file or preset, if the first word is one, and the overrides."""
    words = list(words or [])
    file = words.pop(0) if words and "=" not in words[0] else None
    return file, words
