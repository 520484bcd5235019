"""The command that looks inside a model: inspect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transduce.cli.arguments import BeamSize, Language, Opening, opens_models
from transduce.core.durable import unwritable
from transduce.core.errors import DataError, UserError
from transduce.core.progress import say

if TYPE_CHECKING:
    from transduce.inspection.record import Inspection
    from transduce.inspection.terminal import View


@opens_models
def inspect(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="A sentence, or several to compare.")],
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="Folder of a model; repeat to compare. Default: the shipped one."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="page.html, or .png, .svg, .json; else the terminal.")
    ] = None,
    to: Language = "",
    beam: BeamSize = 0,
    target: Annotated[str | None, typer.Option(help="A given translation to look at instead of the model's.")] = None,
    prefix: Annotated[str, typer.Option(help="How the translation must begin: what if it had said this?")] = "",
    part: Annotated[Literal["encoder", "decoder", "cross"], typer.Option(help="Which attention to draw.")] = "cross",
    layer: Annotated[int | None, typer.Option(help="Its layer, from 0; default: the mean of all.")] = None,
    head: Annotated[int | None, typer.Option(help="Its head, from 0; default: the mean of all.")] = None,
    *,
    opening: Opening,
) -> None:
    """Look inside a model: attention of every head, the beam's tree, candidates of each step, the logit lens.

    Examples:

        transduce inspect "Cats like to sleep." --to de

        transduce inspect "four thousand and twelve" --model runs/mine --to de --beam 4 --output page.html

        transduce inspect "Guten Morgen" -m runs/a -m runs/b --part encoder --layer 0 --head 2 -o head.png
    """
    from transduce.cli.arguments import ParsedArgs, pick_direction
    from transduce.inspection.inspect import inspect as look
    from transduce.inspection.inspect import tags_for
    from transduce.inspection.terminal import View
    from transduce.translate.model_folder import shipped

    view = View(part, layer, head)
    if output is not None and output.suffix not in (".html", ".png", ".svg", ".json"):
        raise UserError(f"--output {output}: expected a name that ends in .html, .png, .svg or .json")
    parsed = [ParsedArgs(folder, False, texts) for folder in model or ()] or [ParsedArgs(shipped(), True, texts)]
    opened = [(args, opening.load(args.folder)) for args in parsed]
    languages = tags_for([translator for _, translator in opened], to)
    tags = [
        pick_direction(translator, args, "", language).tags
        for (args, translator), language in zip(opened, languages, strict=True)
    ]
    seen = [
        look(translator, text, to=tag, target=target, prefix=prefix, beam=beam, model=args.name)
        for number, text in enumerate(texts)
        for (args, translator), tag in zip(opened, [tags_of_model[number] for tags_of_model in tags], strict=True)
    ]
    _write(seen, view, output)


def _write(seen: list[Inspection], view: View, output: Path | None) -> None:
    """Write to the terminal, or to a file in the format of its suffix."""
    if output is None:
        from rich.console import Console

        from transduce.inspection.terminal import show

        for inspection in seen:
            show(Console(), inspection, view)
    elif output.suffix in (".png", ".svg"):
        from transduce.inspection.picture import save

        save(seen, view, output)
    else:
        _write_text(seen, output)
    if output is not None:
        say(f"wrote {output}")


def _write_text(seen: list[Inspection], output: Path) -> None:
    """Write a page, or JSON."""
    from transduce.inspection.page import page

    try:
        found = (
            page(seen) if output.suffix == ".html" else json.dumps([inspection.as_json() for inspection in seen]) + "\n"
        )
        output.write_text(found, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {unwritable(output, error)}") from None
