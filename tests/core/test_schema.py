"""The JSON schema of configs: files that load fit it, and what editors could find wrong does not."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from transduce.core import config as configs
from transduce.core.schema import json_schema
from transduce.experiment import Config

if TYPE_CHECKING:
    from cli_runner import Run

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema(Config)
FILES = [
    path
    for folder in (ROOT / "transduce" / "presets", ROOT / "configs")
    for path in sorted(folder.glob("*.toml"))
    if not path.name.endswith(".prepare.toml")
]
TYPES: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def faults(schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """Validate, by as much of the standard as our schemas use."""
    schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema
    if "anyOf" in schema and all(list(faults(one, value, where)) for one in schema["anyOf"]):
        yield f"{where}: fits none"
    if "type" in schema and not TYPES[schema["type"]](value):
        yield f"{where}: not {schema['type']}"
        return
    known = {"const": lambda given: value == given, "enum": lambda given: value in given}
    known |= {"minimum": lambda given: value >= given, "maximum": lambda given: value <= given}
    known |= {"exclusiveMinimum": lambda given: value > given, "exclusiveMaximum": lambda given: value < given}
    known |= {"pattern": lambda given: re.search(given, str(value)) is not None}
    known |= {"required": lambda given: set(given) <= set(value)}
    yield from (f"{where}: {word}" for word, holds in known.items() if word in schema and not holds(schema[word]))
    for key, one in value.items() if isinstance(value, dict) else ():
        if key in schema.get("properties", {}):
            yield from faults(schema["properties"][key], one, f"{where}.{key}")
        elif schema.get("additionalProperties") is False:
            yield f"{where}.{key}: unknown"
    for one in value if isinstance(value, list) and "items" in schema else ():
        yield from faults(schema["items"], one, where)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_our_own_files_fit(path: Path) -> None:
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    assert list(faults(SCHEMA, tree)) == []
    whole = configs.tree_of(configs.load(Config, path))
    assert list(faults(SCHEMA, json.loads(json.dumps(whole)))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("seed = -1", ".seed: minimum"),
        ("sed = 1", ".sed: unknown"),
        ("training.steps = 1.5", ".training.steps: not integer"),
        ("training.ema = 1", ".training.ema: exclusiveMaximum"),
        ("training.threads = 5000", ".training.threads: maximum"),
        ("training.parallel = 'both'", ".training.parallel: enum"),
        ("search = 'bem'", ".search: fits none"),
        ("search.size = 0", ".search: fits none"),
        ("model.decoder = {kind = 'transformer', layers = 0}", ".model.decoder: fits none"),
    ],
)
def test_what_is_refused_when_read_does_not_fit(text: str, fault: str) -> None:
    tree = tomllib.loads(text)
    assert list(faults(SCHEMA, tree)) == [fault]
    with pytest.raises(configs.ConfigError):
        configs.parse(Config, tree)


@pytest.mark.parametrize(
    "text",
    [
        "search = 'greedy'",
        "search = 'mine.beams:Wide'",
        "objective = {kind = 'a:B', x = 1}",
        "model.encoder = {kind = 'transformer', activation = 'gelu'}",
        "model.encoder = {kind = 'transformer', activation = {kind = 'a:B', x = 1}}",
    ],
)
def test_kinds_and_classes_of_ones_own_fit(text: str) -> None:
    assert list(faults(SCHEMA, tomllib.loads(text))) == []


def test_the_command_prints_it(run: Run) -> None:
    assert json.loads(run("config", "schema").out) == SCHEMA
