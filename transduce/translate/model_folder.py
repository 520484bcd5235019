"""The files of a model's folder, read without torch: a run, a converted model, or both.

config.toml, tokenizer/ and README.md are in both, reader.json where a model reads recordings or pictures.
model.safetensors has weights for torch, as `transduce train` writes them, model.native (with native.json) those for the
native engine, as `transduce convert` does; scores.json comes with models to give away. One such folder may lie in the
package itself: SHIPPED, which is used where no model is named.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transduce.core import config as configs
from transduce.core.durable import write_text
from transduce.core.errors import RunError, UserError
from transduce.core.untrusted import read_json, read_small
from transduce.search.settings import SearchOption
from transduce.text.languages import is_language
from transduce.text.tokenizer import Tokenizers

CONFIG, TOKENIZER, CARD, READER = "config.toml", "tokenizer", "README.md", "reader.json"
MODEL, NATIVE, NATIVE_FACTS = "model.safetensors", "model.native", "native.json"
SCORES = "scores.json"  # measured scores, by name of the model, this one last
SHIPPED = Path(__file__).parents[1] / "everyday"
# JSON escapes quotes inside strings, so these bytes can only be the key itself, never part of a name or a value.
SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')
LARGEST_HEADER = 4 << 20  # bytes, of 40,000 tensors


@dataclass(frozen=True)
class Converted:
    """Facts about converted weights, stored beside them in native.json.

    The digests of the `tokenizer` they were trained with and the `weights` they were made of (by `seal_of`),
    the `longest` source in training, and how they are stored.
    """

    tokenizer: str
    weights: str
    longest: int
    quantize: str

    def write(self, folder: Path) -> None:
        """Write the facts beside the weights."""
        write_text(folder / NATIVE_FACTS, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Converted:
        """Read what `write` wrote; raise RunError if it is damaged."""
        path = folder / NATIVE_FACTS
        try:
            found = cls(**read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path}: cannot be read ({error}); convert the model again") from None
        if [type(value) for value in vars(found).values()] != [str, str, int, str] or found.longest < 1:
            raise RunError(f"{path}: these are no facts about a model ({found}); convert the model again")
        return found


def open_converted(folder: Path) -> tuple[Tokenizers, Converted]:
    """The tokenizers that converted weights belong to, and the facts about the weights."""
    tokenizers, facts = Tokenizers.load(folder / TOKENIZER), Converted.read(folder)
    if facts.tokenizer != tokenizers.digest():
        raise RunError(
            f"{folder}: {NATIVE} was converted with another tokenizer than {TOKENIZER}/ holds; convert it again"
        )
    return tokenizers, facts


@dataclass(frozen=True)
class ConvertedDecoder:
    """The decoder config of a converted model: all that is known is that it writes token by token."""

    offers: ClassVar[str] = "stepwise"  # to a search (search/settings.py)


def seal_of(weights: Path) -> str:
    """The digest in the header of weights for torch; "" if there is none."""
    with weights.open("rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER))
    found = SEAL.search(header)
    return found[1].decode() if found else ""


def read_card(folder: Path) -> str:
    """The text of the folder's model card; "" if it has none."""
    path = folder / CARD
    try:
        return read_small(path).decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path}: cannot be read ({error}); expected text in UTF-8; mend the file, or delete it"
        ) from None


def check_is_model(folder: Path) -> None:
    """Raise RunError for a folder that holds no model."""
    if not (folder / CONFIG).is_file():
        what = "no such folder" if not folder.exists() else f"no {CONFIG} in it"
        raise RunError(
            f"{folder}: not a trained model ({what}); expected a run folder written by `transduce train`, or a folder"
            " written by `transduce convert`"
        )


def is_shipped() -> bool:
    """Whether this build of the package carries a model."""
    return (SHIPPED / CONFIG).is_file()


def shipped(word: str = "") -> Path:
    """The folder of the shipped model; `word` is the argument that could have named another, for the error text."""
    if not is_shipped():
        what = f"{word[:60]!r} is no folder of a model" if word else "no model is named"
        raise UserError(
            f"{what}, and this build of transduce carries none to use instead; give the folder of a trained or"
            " converted model, or train a small one with `transduce demo` (it will be in runs/demo/model)"
        )
    return SHIPPED


def read_validation_language(folder: Path) -> str:
    """`validation.language` of a run's config; "" where it has none, or a value that would be refused."""
    validation = configs.read_toml(folder / CONFIG).get("validation")
    found = validation.get("language") if isinstance(validation, dict) else None
    return found if isinstance(found, str) and is_language(found) else ""


def read_search(folder: Path, trust: bool) -> Any:
    """The model's default search: only this section of its config is read."""
    path, merged = folder / CONFIG, configs.Layers()
    tree = {key: value for key, value in configs.read_toml(path).items() if key == "search"}
    configs.merge(SearchOption, merged, tree, origin=str(path))
    return configs.resolve(SearchOption, merged, trust).search
