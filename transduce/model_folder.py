"""What lies in the folder of a model, told without torch: a run, a converted model, or both.

config.toml  tokenizer/  README.md    of either
model.safetensors                     weights for torch, which `transduce train` writes
model.native                          weights for the native engine, which `transduce convert` writes
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transduce import config as configs
from transduce.errors import RunError
from transduce.search.choice import Chosen

CONFIG, TOKENIZER, CARD = "config.toml", "tokenizer", "README.md"
MODEL, NATIVE = "model.safetensors", "model.native"


@dataclass(frozen=True)
class ConvertedDecoder:
    """All that is known of a decoder that was converted: it writes token by token."""

    offers: ClassVar[str] = "stepwise"  # to a search (search/fit.py)


def check_is_model(folder: Path) -> None:
    """Refuse a folder that no model was ever put in."""
    if not (folder / CONFIG).is_file():
        what = "no such folder" if not folder.exists() else f"no {CONFIG} in it"
        raise RunError(
            f"{folder}: not a trained model ({what}); expected a run folder written by `transduce train`, or a folder"
            " written by `transduce convert`"
        )


def read_search(folder: Path, trust: bool) -> Any:
    """The search that the model translates with when nothing is said: of its config only this section is read."""
    path, merged = folder / CONFIG, configs.Layers()
    tree = {key: value for key, value in configs.read_toml(path).items() if key == "search"}
    configs.merge(Chosen, merged, tree, origin=str(path))
    return configs.resolve(Chosen, merged, trust).search
