"""The options of every command that opens models: said once here, and passed to `transduce.load`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from transduce.translator import Translator


@dataclass(frozen=True)
class Opening:
    """How models are opened; each field is an option."""

    engine: Annotated[str, typer.Option(help="auto, torch or native (for converted models).")] = "auto"
    precision: Annotated[str, typer.Option(help="With torch: fp32, or bf16 (weights of 16 bits, faster on a GPU).")] = (
        "fp32"
    )
    graphs: Annotated[
        str, typer.Option(help="Steps of torch on a GPU, recorded and replayed: auto, on, off or compiled.")
    ] = "auto"
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.")] = "auto"
    trust: Annotated[bool, typer.Option("--trust", help="Let the model's config import classes of your own.")] = False

    def load(self, folders: Path | Sequence[Path]) -> Translator:
        """The model in a folder, or an ensemble of those in several."""
        from transduce.loading import load

        return load(folders, self.device, self.trust, engine=self.engine, precision=self.precision, graphs=self.graphs)


def opens_models(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of an `Opening` in place of its parameter `opening`."""
    types, options = get_type_hints(command, include_extras=True), get_type_hints(Opening, include_extras=True)
    own = inspect.signature(command).parameters.values()
    parameters = [
        *(one.replace(annotation=types[one.name]) for one in own if one.name != "opening"),
        *(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=options[field.name]
            )
            for field in dataclasses.fields(Opening)
        ),
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        opening = Opening(**{name: given.pop(name) for name in options})
        command(**given, opening=opening)

    # What typer reads: the signature for the options, and the annotations for types that it finds in neither.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
