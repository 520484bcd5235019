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
            "--model", "-m", metavar="MODEL", help="Folder of a model; again to compare. If none: the one that we ship."
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
    """Look inside: attention of every head, the beam's tree, what was nearly said at each step, the logit lens.

    Examples:

        transduce inspect "Cats like to sleep." --to de

        transduce inspect "four thousand and twelve" --model runs/mine --to de --beam 4 --output page.html

        transduce inspect "Guten Morgen" -m runs/a -m runs/b --part encoder --layer 0 --head 2 -o head.png
    """
    from transduce.cli.arguments import ParsedArgs, pick_targets
    from transduce.inspection.inspect import inspect as look
    from transduce.inspection.inspect import told_to
    from transduce.inspection.terminal import View
    from transduce.translate.model_folder import shipped

    view = View(part, layer, head)
    if output is not None and output.suffix not in (".html", ".png", ".svg", ".json"):
        raise UserError(f"--output {output}: expected a name that ends in .html, .png, .svg or .json")
    asked = [ParsedArgs(one, False, texts) for one in model or ()] or [ParsedArgs(shipped(), True, texts)]
    opened = [(one, opening.load(one.folder)) for one in asked]
    told = told_to([translator for _, translator in opened], to)
    tags = [pick_targets(translator, one, "", own) for (one, translator), own in zip(opened, told, strict=True)]
    seen = [
        look(translator, text, to=tag, target=target, prefix=prefix, beam=beam, model=one.name)
        for number, text in enumerate(texts)
        for (one, translator), tag in zip(opened, [own[number] for own in tags], strict=True)
    ]
    _write(seen, view, output)


def _write(seen: list[Inspection], view: View, output: Path | None) -> None:
    """To the terminal, or as the file's name ends."""
    if output is None:
        from rich.console import Console

        from transduce.inspection.terminal import show

        for one in seen:
            show(Console(), one, view)
    elif output.suffix in (".png", ".svg"):
        from transduce.inspection.picture import save

        save(seen, view, output)
    else:
        _write_text(seen, output)
    if output is not None:
        say(f"wrote {output}")


def _write_text(seen: list[Inspection], output: Path) -> None:
    """A page, or JSON."""
    from transduce.inspection.page import page

    try:
        found = page(seen) if output.suffix == ".html" else json.dumps([one.as_json() for one in seen]) + "\n"
        output.write_text(found, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {unwritable(output, error)}") from None
