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
`model.settings.training.steps=500` a setting of the stage `model`. Such words are one layer over the file, whatever
their order: another `kind` among them drops the settings that the file gave the old kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transduce.core import config as configs
from transduce.core.errors import DOTTED, ConfigError, near_words, nearest
from transduce.core.overrides import UnreadList, lay_over, read_overrides
from transduce.core.untrusted import read_small
from transduce.workflows.pipeline.stages import StageChoice, stage_class

_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
_OWN = ("folder", "paths", "stage")


@dataclass(frozen=True)
class Pipeline:
    """The content of a pipeline file; stages are tables here, their {names} not filled in yet."""

    stage: tuple[dict[str, Any], ...] = ()
    folder: str = "runs/pipeline"
    paths: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stage:
            raise ConfigError("stage: expected one or more [[stage]] tables, got none")


@dataclass(frozen=True)
class PlannedStage:
    """A stage with all names filled in, the words it was written with, and the stages it reads."""

    stage: StageChoice
    written: StageChoice
    settings: dict[str, Any]  # as written: with names in place of paths, so that nothing changes when these do
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.stage.name


@dataclass(frozen=True)
class PipelinePlan:
    """All stages, in order, and the folder that they write in."""

    folder: Path
    stages: tuple[PlannedStage, ...]
    paths: Mapping[str, Any] = field(default_factory=dict)

    def path_hints(self, name: str) -> str:
        """Hints on the paths that a stage's settings begin with, which the command line can change."""
        named = sorted(_named(self.stages[self.find(name)].settings) & set(self.paths))
        return "".join(f"; {{{name}}} is {self.paths[name]}: say paths.{name}=FOLDER for another" for name in named)

    def output(self, name: str) -> Path:
        """The output folder of a stage."""
        return self.folder / name

    def find(self, name: str) -> int:
        """The number of a stage, from 0."""
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise ConfigError(f"no stage is called {name!r}; stages are {', '.join(names)}{nearest(name, names)}")
        return names.index(name)


def read_pipeline(file: str | Path, overrides: Sequence[str] = ()) -> PipelinePlan:
    """Read the plan in a pipeline file; a ConfigError names the file and the dotted key."""
    if not Path(file).is_file():
        found = "is a folder" if Path(file).is_dir() else "no such file"
        raise ConfigError(f"{file}: {found}; give a pipeline file, a .toml file of [[stage]] tables{_known(file)}")
    of_file = [text for text in overrides if re.split(r"[.=]", text)[0].strip() in _OWN]
    written = configs.resolve(Pipeline, configs.layers(Pipeline, file, of_file))
    names = [str(table.get("name", "")) for table in written.stage]
    _check_names(names)
    words_of_stages = [text for text in overrides if text not in of_file]
    changes = _changes(words_of_stages, names)
    folder = written.folder
    known = {"here": str(Path(file).parent), "folder": folder, **written.paths}
    planned = []
    for number, (name, table) in enumerate(zip(names, written.stage, strict=True)):
        places = {**known, **{earlier: f"{folder}/{earlier}" for earlier in names[:number]}}
        try:
            table = _changed(table, changes.get(name, {}), places)
            filled = _filled(table, places)
            needs = tuple(sorted(_named(table) & set(names[:number])))
            words = {key: value for key, value in table.items() if key not in ("kind", "name")}
            planned.append(
                (_parse(filled), _parse(_filled(table, {"here": places["here"]}, all_known=False)), words, needs)
            )
        except ConfigError as error:
            raise ConfigError(_blamed(str(error), str(file), name, words_of_stages)) from None
    return PipelinePlan(Path(folder), tuple(PlannedStage(*stage) for stage in planned), dict(written.paths))


def _blamed(error: str, file: str, name: str, words: Sequence[str]) -> str:
    """Attribute a stage's error to the command-line word that causes it, else to the file."""
    of_stage = [word for word in words if re.split(r"[.=]", word)[0].strip() == name]
    found = re.match(rf"stage\.({DOTTED})", error)
    key = f"{name}.{found[1].rstrip('.')}" if found else ""
    for word in of_stage:
        key_of_word = word.partition("=")[0].strip()
        if key and f"{key}.".startswith(f"{key_of_word}."):  # the word itself, or a table that it gives
            return f"command line: {name}.{error.removeprefix('stage.')}"
    laid = f", with {', '.join(word.partition('=')[0].strip() for word in of_stage)} of the command line laid over"
    return f"{file}: stage '{name}'{laid if of_stage else ''}: {error}"


def _known(file: str | Path) -> str:
    """Suggest the pipeline files at hand: those beside the named file, and recipes."""
    found = sorted({*Path(file).parent.glob("*.toml"), *Path("recipes").glob("*.toml")})
    names = [str(path) for path in found if _has_stages(path)]
    near = near_words(Path(file).stem, [Path(name).stem for name in names])
    meant = next((f"; did you mean '{name}'?" for name in names if [Path(name).stem] == near), "")
    return f", such as {', '.join(names)}{meant}" if names else " (docs/pipeline.md)"


def _has_stages(path: Path) -> bool:
    try:
        return b"[[stage]]" in read_small(path)
    except (OSError, ValueError):  # a hint names no file that cannot be read
        return False


def _check_names(names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not re.fullmatch(r"[a-z]\w*", name) or name in (*_OWN, "here"):
            raise ConfigError(
                f"stage[{number}].name: expected a word of its own in small letters, for it names a folder,"
                f" got {name!r}"
            )
        if name in names[:number]:
            raise ConfigError(f"stage[{number}].name: two stages are called {name!r}; give each a name of its own")


def _changes(words: Sequence[str], names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The command line's settings by stage."""
    tree = read_overrides(words)
    for name, settings in tree.items():
        if name not in names or not isinstance(settings, Mapping):
            word = next(text for text in sorted(words) if re.split(r"[.=]", text)[0].strip() == name)
            raise ConfigError(
                f"'{word}': expected folder=..., paths.NAME=... or STAGE.SETTING=..., where stages are"
                f" {', '.join(names)}{nearest(name, [*_OWN[:2], *names])}"
            )
    return tree


def _changed(table: Mapping[str, Any], new: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings of the command line over a stage's table."""
    plain = {key: value for key, value in new.items() if key != "settings"}
    laid: dict[str, Any] = {"name": table["name"], **lay_over(table, plain)}
    if "settings" not in new:
        return laid
    schema, beneath = stage_class(laid.get("kind")).schema(_filled(laid, places))
    layers = configs.Layers(dict(laid.get("settings", {})))
    configs.merge(schema, layers, new["settings"], "command line", beneath)
    return {**laid, "settings": layers.tree}


def _parse(table: dict[str, Any]) -> StageChoice:
    pipeline = configs.parse(_One, {"stage": table})
    return pipeline.stage


@dataclass(frozen=True)
class _One:
    stage: StageChoice


def _filled(tree: Any, places: Mapping[str, Any], all_known: bool = True) -> Any:
    """Fill in places for the {names} in a tree."""
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
                f"{nearest(found[1], places)}"
            )
        return str(places[found[1]])

    made = _NAME.sub(place, tree)
    return UnreadList(made) if isinstance(tree, UnreadList) else made


def _named(tree: Any) -> set[str]:
    """Every {name} in a table."""
    if isinstance(tree, Mapping):
        return {name for value in tree.values() for name in _named(value)}
    if isinstance(tree, list):
        return {name for value in tree for name in _named(value)}
    return set(_NAME.findall(tree)) if isinstance(tree, str) else set()
