"""A pipeline file: stages in order, each reading what others before it wrote.

    folder = "runs/mine"                 # every stage writes a folder of its name in it
    paths.data = "texts"                 # {data} below
    [[stage]]
    kind = "prepare"
    name = "corpus"
    settings.train = { source = "{data}/train.en", target = "{data}/train.de" }
    [[stage]]
    kind = "train"
    name = "model"
    settings.data.folder = "{corpus}"    # the folder of that stage: so the model depends on the corpus

`{here}` is the folder of the file itself. On the command line, `paths.data=...` and `folder=...` change these, and
`model.settings.training.steps=500` a setting of the stage `model`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transduce import config as configs
from transduce.errors import ConfigError
from transduce.pipelines.stages import StageChoice

_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
_OWN = ("folder", "paths", "stage")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file as it is written."""

    stage: tuple[StageChoice, ...]
    folder: str = "runs/pipeline"
    paths: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedStage:
    """A stage with all names put in, the words it was written with, and the stages it reads."""

    stage: StageChoice
    written: StageChoice
    settings: dict[str, Any]  # as written: with names in place of paths, so that nothing changes when these do
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.stage.name


@dataclass(frozen=True)
class Plan:
    """All stages, in order, and the folder that they write in."""

    folder: Path
    stages: tuple[PlannedStage, ...]

    def output(self, name: str) -> Path:
        """What the stage of this name writes."""
        return self.folder / name

    def find(self, name: str) -> int:
        """The number of a stage, from 0."""
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise ConfigError(f"no stage is called {name!r}; stages are {', '.join(names)}{_nearest(name, names)}")
        return names.index(name)


def read_pipeline(file: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """The plan in a pipeline file; a ConfigError names the file and the dotted key."""
    own = [text for text in overrides if re.split(r"[.=]", text)[0].strip() in _OWN]
    merged = configs.layers(Pipeline, file, own)
    tables = [dict(table) for table in _tables(merged.tree.get("stage"), file)]
    names = [str(table.get("name", "")) for table in tables]
    _check_names(names)
    for text in overrides:
        if text not in own:
            _lay_over(tables, names, text)
    folder = merged.tree.get("folder", Pipeline.folder)
    known = {"here": str(Path(file).parent), "folder": str(folder), **merged.tree.get("paths", {})}
    planned = []
    for number, (name, table) in enumerate(zip(names, tables, strict=True)):
        places = {**known, **{earlier: f"{folder}/{earlier}" for earlier in names[:number]}}
        try:
            filled = _filled(table, places)
            needs = tuple(sorted(_named(table) & set(names[:number])))
            written = {key: value for key, value in table.items() if key not in ("kind", "name")}
            planned.append(
                (_parse(filled), _parse(_filled(table, {"here": places["here"]}, all_known=False)), written, needs)
            )
        except ConfigError as error:
            raise ConfigError(f"{file}: stage '{name}': {error}") from None
    return Plan(Path(folder), tuple(PlannedStage(*one) for one in planned))


def _tables(found: Any, file: str | Path) -> list[Mapping[str, Any]]:
    tables = found if isinstance(found, list) else [found]
    if not tables or not all(isinstance(table, Mapping) for table in tables):
        raise ConfigError(f"{file}: stage: expected one or more [[stage]] tables, got {found!r}")
    return tables


def _check_names(names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not re.fullmatch(r"[a-z]\w*", name) or name in (*_OWN, "here"):
            raise ConfigError(
                f"stage[{number}].name: expected a word of its own in small letters, for it names a folder,"
                f" got {name!r}"
            )
        if name in names[:number]:
            raise ConfigError(f"stage[{number}].name: two stages are called {name!r}; give each a name of its own")


def _lay_over(tables: list[dict[str, Any]], names: Sequence[str], text: str) -> None:
    """One setting of one stage from the command line."""
    tree = configs.layers(Pipeline, None, [text]).tree
    name, settings = next(iter(tree.items()))
    if name not in names or not isinstance(settings, Mapping):
        choices = [*_OWN[:2], *names]
        raise ConfigError(
            f"'{text}': expected folder=..., paths.NAME=... or STAGE.SETTING=..., where stages are {', '.join(names)}"
            f"{_nearest(name, choices)}"
        )
    number = names.index(name)
    tables[number] = _laid(tables[number], settings)


def _laid(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _laid(old.get(key), value) for key, value in new.items()}}


def _parse(table: dict[str, Any]) -> StageChoice:
    pipeline = configs.parse(_One, {"stage": table})
    return pipeline.stage


@dataclass(frozen=True)
class _One:
    stage: StageChoice


def _filled(tree: Any, places: Mapping[str, Any], all_known: bool = True) -> Any:
    """The same with places put in for their {names}."""
    if isinstance(tree, Mapping):
        return {key: _filled(value, places, all_known) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_filled(value, places, all_known) for value in tree]
    if not isinstance(tree, str):
        return tree

    def place(found: re.Match[str]) -> str:
        if found[1] not in places:
            if not all_known:
                return found[0]
            raise ConfigError(
                f"{tree!r}: {found[0]} is no path and no earlier stage; known are {', '.join(sorted(places))}"
                f"{_nearest(found[1], places)}"
            )
        return str(places[found[1]])

    return _NAME.sub(place, tree)


def _named(tree: Any) -> set[str]:
    """Every {name} in a table."""
    if isinstance(tree, Mapping):
        return {name for value in tree.values() for name in _named(value)}
    if isinstance(tree, list):
        return {name for value in tree for name in _named(value)}
    return set(_NAME.findall(tree)) if isinstance(tree, str) else set()


def _nearest(word: str, words: Any) -> str:
    near = difflib.get_close_matches(word, [str(one) for one in words], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
