"""A comparison file: variants of one base config, each trained with the same seeds, on one budget.

    base = "small"                            # a preset, or a config file beside this one
    seeds = [1, 2, 3]
    baseline = "post"                         # the variant that the others are tested against
    settings.training.steps = 6000            # for all

    [[variant]]
    name = "pre"
    settings.model.encoder.residual = "pre_norm"
    scaled.model.encoder.d_ff = 0.5           # times what the base has

    [[variant]]
    name = "longer"
    settings.training.start_from = "{pre}"    # the run folder of that variant with the same seed; it is trained first

Layers, the later over the earlier: the base, the common settings, the command line, the variant's own. So the command
line changes the base that all variants share, and not what distinguishes them. Each of these is one layer: another
`kind` in it drops the settings that the layers beneath gave the old kind (transduce/core/config.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.core.overrides import combine, read_overrides
from transduce.experiment import Config
from transduce.text.languages import check_language

_OWN = ("base", "seeds", "baseline", "language")  # keys of the command line that are the comparison's, not a run's
_BUDGET = ("training.steps", "training.minutes")
_NAMED = re.compile(r"\{(.*)\}")  # a text that matches fully is the run folder of another variant


@dataclass(frozen=True)
class Variant:
    """One variant: settings laid over the base, and numbers of the base to multiply (integers are rounded)."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    scaled: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.+-]*", self.name):
            raise ConfigError(f"name: expected letters, digits and . + - _, for it names a folder, got {self.name!r}")


@dataclass(frozen=True)
class Comparison:
    """The content of a comparison file; `language` is the target's and picks sacreBLEU's tokenizer.

    Without it the base's `validation.language`, the tags of the texts or the script of the references determine it.
    """

    variant: tuple[Variant, ...]
    base: str = "base"
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1, 2, 3)
    baseline: str = ""
    language: str = ""

    def __post_init__(self) -> None:
        check_language(self.language)
        names = [variant.name for variant in self.variant]
        if not names:
            raise ConfigError("variant: expected at least one [[variant]], got none")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"variant: two are called {twice[0]!r}; give each a name of its own")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds: expected one or more, each once, got {list(self.seeds)}")
        if self.baseline and self.baseline not in names:
            raise ConfigError(f"baseline: {self.baseline!r} is no variant; variants are {', '.join(names)}")


def label(variant: str, seed: int) -> str:
    """The name of a run in reports."""
    return f"{variant}, seed {seed}"


def run_folder(output: Path, variant: str, seed: int) -> Path:
    """The run's folder in the folder of its comparison."""
    return output / variant / f"seed-{seed}"


@dataclass(frozen=True)
class PlannedRun:
    """One variant with one seed; an ordinary run in a folder of its own.

    `after` are the variants whose runs with this seed its config names, so that they must be trained before it.
    """

    variant: str
    seed: int
    config: Config
    after: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return label(self.variant, self.seed)

    def folder(self, output: Path) -> Path:
        """The run folder; files about the run lie beside it, as `seed-1.log`."""
        return run_folder(output, self.variant, self.seed)

    def beside(self, output: Path, ending: str) -> Path:
        """The path `seed-1.log` for "log"."""
        return output / self.variant / f"seed-{self.seed}.{ending}"


@dataclass(frozen=True)
class ComparisonPlan:
    """Every run of a comparison, checked; variants in the order of the file."""

    name: str
    variants: tuple[str, ...]
    baseline: str
    language: str
    runs: tuple[PlannedRun, ...]


def output_of(file: str | Path) -> Path:
    """The default folder of a comparison."""
    return Path(f"runs/compare/{Path(file).stem}")


def read_plan(
    file: str | Path,
    overrides: Sequence[str] = (),
    output: Path | None = None,
    defaults: Sequence[Sequence[str]] = (),
) -> ComparisonPlan:
    """Read the plan in a comparison file; a ConfigError names the file, the variant and the dotted key.

    `output` is the folder it will run in, in which a variant finds the run of another. `defaults` are layers of
    `key=value` words for the runs, beneath the overrides.
    """
    if not Path(file).is_file():
        raise ConfigError(
            f"{file}: no such file; give a comparison file, a .toml file with a [[variant]] for each thing to compare"
            " (a preset is the base of one, not one itself)"
        )
    of_file = [text for text in overrides if text.partition("=")[0].strip() in _OWN]
    common = [text for text in overrides if text not in of_file]
    written = configs.layers(Comparison, file, of_file)
    comparison = configs.resolve(Comparison, written)
    ground = _ground(comparison, written.origins.get("base", ""), [*defaults, common], str(file))
    names = tuple(variant.name for variant in comparison.variant)
    runs = []
    for number, variant in enumerate(comparison.variant):
        try:
            for seed in comparison.seeds:
                folders = {name: str(run_folder(output or output_of(file), name, seed)) for name in names[:number]}
                placed, after = _placed(variant, folders)
                merged = _laid(placed, ground)
                configs.merge(Config, merged, {"seed": seed}, origin="seeds")
                runs.append(PlannedRun(variant.name, seed, configs.resolve(Config, merged), after))
        except ConfigError as error:
            raise ConfigError(f"{file}: variant '{variant.name}': {error}") from None
    return ComparisonPlan(Path(file).stem, names, comparison.baseline, comparison.language, tuple(runs))


def _ground(comparison: Comparison, origin_of_base: str, words: Sequence[Sequence[str]], file: str) -> configs.Layers:
    """The config layers that all variants share; a base that is a file lies beside the naming file."""
    base: str | Path = comparison.base
    if comparison.base.endswith(".toml") and origin_of_base != "command line":
        base = Path(origin_of_base).parent / comparison.base
    merged = configs.layers(Config, base)
    trees = [(f"{file}: settings", comparison.settings)]
    trees += [("command line", read_overrides(layer)) for layer in words]
    for origin, tree in trees:
        if "seed" in tree:
            raise ConfigError("seed: every variant is trained with each seed of the comparison; set seeds=[1, 2, 3]")
        configs.merge(Config, merged, tree, origin)
    return merged


def _placed(variant: Variant, folders: Mapping[str, str]) -> tuple[Variant, tuple[str, ...]]:
    """Fill in the folders of the earlier variants that a variant names; return it and their names."""
    named: list[str] = []

    def put_in(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: put_in(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [put_in(inner) for inner in value]
        found = _NAMED.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return value
        if found[1] not in folders:
            raise ConfigError(
                f"settings: {value!r} is the run of no variant that stands before it in the file;"
                f" these are {', '.join(folders) or 'none'}"
            )
        named.append(found[1])
        return folders[found[1]]

    return replace(variant, settings=put_in(variant.settings)), tuple(dict.fromkeys(named))


def _laid(variant: Variant, ground: configs.Layers) -> configs.Layers:
    merged = configs.Layers(dict(ground.tree), dict(ground.origins))
    given = {**dict(_leaves(variant.settings)), **dict(_leaves(variant.scaled))}
    for key in ("seed", *_BUDGET):
        if key in given:
            raise ConfigError(f"{key}: is the same for all variants; set it for all, under 'settings' or as {key}=...")
    flat = configs.flatten(configs.resolve(Config, ground)) if variant.scaled else {}
    scaled = [_nested(key, _product(key, flat, factor)) for key, factor in _leaves(variant.scaled)]
    configs.merge(Config, merged, combine([*scaled, variant.settings]), origin="settings")
    return merged


def _product(key: str, flat: Mapping[str, Any], factor: Any) -> int | float:
    """The base's number times the factor; an integer stays an integer, at least 1, and 0 (off) stays 0."""
    old = flat.get(key)
    if isinstance(old, bool) or not isinstance(old, int | float):
        raise ConfigError(f"scaled.{key}: the base has no number to multiply there, but {old!r}")
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise ConfigError(f"scaled.{key}: expected a number to multiply {old} by, got {factor!r}")
    if not isinstance(old, int):
        return old * factor
    return max(1, round(old * factor)) if old else 0


def _leaves(tree: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested tables by its dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _nested(key: str, value: Any) -> dict[str, Any]:
    tree: Any = value
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return {**tree}
