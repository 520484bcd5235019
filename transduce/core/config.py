"""TOML files and frozen dataclasses, each made from the other.

Types are the schema: a dataclass is a table, a union of dataclasses is a choice named by `kind` (the class name in
snake case, or the class's own `kind`), `Literal` is a word from a list, `tuple[X, ...]` is an array. A file may say
`extends = "other.toml"` (or the name of a preset), and `key=value` overrides are laid over it. A class of the user's
own is chosen by `kind = "package.module:Class"`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import reprlib
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from transduce.core.errors import DOTTED, ConfigError, Unfit, dotted_key, nearest, type_in_words, value_in_words
from transduce.core.overrides import Unread, lay_over, read_overrides
from transduce.core.plugins import error_in_words, name_of, own_class
from transduce.core.untrusted import LARGEST_TOML, parse_toml, read_small

T = TypeVar("T")
PRESETS = Path(__file__).parents[1] / "presets"
COMMAND_LINE = "command line"  # as an origin
OWN = "; a class of your own is named as package.module:Class"


@dataclass
class Layers:
    """Settings merged from files and overrides, with the place each value came from."""

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


# -- reading ---------------------------------------------------------------------------------------------------------


def load(
    cls: type[T],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    trust: bool = True,
    defaults: Sequence[Sequence[str]] = (),
) -> T:
    """The config of class `cls` in a TOML file (or preset), with `key=value` overrides in any order.

    `defaults` are layers of such words between the file and the overrides. `trust` is as in `parse`.
    """
    return resolve(cls, layers(cls, path, overrides, defaults=defaults), trust)


def resolve(cls: type[T], merged: Layers, trust: bool = True) -> T:
    """The checked config of merged settings; an error also names the file (or command line) the value came from."""
    try:
        return parse(cls, merged.tree, trust=trust)
    except ConfigError as error:
        key = re.match(DOTTED, str(error))
        origin = merged.origins.get(key[0]) if key else None
        words = [name for name, where in merged.origins.items() if where == COMMAND_LINE]
        if origin != COMMAND_LINE and words and isinstance(error, Unfit):
            origin = f"{origin or 'defaults'}, with {', '.join(words)} of the command line laid over"
        raise ConfigError(f"{origin}: {error}" if origin else str(error)) from None


def layers(
    cls: type[Any],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    defaults: Sequence[Sequence[str]] = (),
) -> Layers:
    """All settings that `path`, the files it extends and the overrides give, merged over `base`, not yet checked.

    The words of `overrides` are one layer, whatever their order, and so is each of `defaults`, which lie beneath.
    """
    merged = Layers(dict(base or {}))
    for name, tree in _files(path) if path is not None else []:
        merge(cls, merged, tree, origin=name)
    for words in (*defaults, overrides):
        merge(cls, merged, read_overrides(words), origin=COMMAND_LINE)
    return merged


def presets() -> list[str]:
    """Names that `extends` and the command line take in place of a file."""
    return sorted(file.stem for file in PRESETS.glob("*.toml"))


def _files(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """The file and all it extends, the most general first."""
    found: list[tuple[str, dict[str, Any]]] = []
    seen: list[Path] = []
    here: Path | None = _locate(path, Path())
    while here is not None:
        if here.resolve() in seen:
            raise ConfigError(
                f"{here}: extends itself through {' -> '.join(str(file) for file in seen)}; remove one 'extends'"
            )
        seen.append(here.resolve())
        tree = read_toml(here)
        parent = tree.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise ConfigError(f"{here}: extends: expected a file or preset name, got {parent!r}")
        found.append((f"preset {here.stem}" if here.parent == PRESETS else str(here), tree))
        here = _locate(parent, here.parent) if parent is not None else None
    return found[::-1]


def _locate(name: str | Path, folder: Path) -> Path:
    text = str(name)
    if not text.endswith(".toml") and "/" not in text:
        if (PRESETS / f"{text}.toml").is_file():
            return PRESETS / f"{text}.toml"
        told = f"presets are {', '.join(presets())}{nearest(text, presets())}"
        raise ConfigError(f"{text!r} is neither a .toml file nor a preset; {told}")
    path = folder / text
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a .toml file or one of the presets {', '.join(presets())}")
    return path


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file, not yet checked."""
    try:
        return parse_toml(read_small(path, LARGEST_TOML).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def merge(
    cls: Any, merged: Layers, new: Mapping[str, Any], origin: str, beneath: Mapping[str, Any] | None = None
) -> None:
    """Lay settings of class `cls` over those merged so far; `origin` is where errors will say they came from.

    A table that names another `kind` than it had drops the settings of the old kind: what counts is what the new layer
    says, and the defaults of the new kind. `beneath` are settings that the merged ones will be laid over later, from
    which a table has its kind where the merged ones name none.
    """
    merged.tree = _merged(cls, merged.tree, new, "", (origin, merged.origins), beneath)


def _merged(cls: Any, old: Any, new: Any, where: str, source: tuple[str, dict[str, str]], beneath: Any = None) -> Any:
    """`new` laid over `old`, where both are settings of type `cls`; `source` is their origin, and where to note it."""
    origin, origins = source
    if typing.get_origin(cls) is tuple and isinstance(new, Mapping):  # one table where an array of them may stand
        cls, old, beneath = typing.get_args(cls)[0], _only_one(old, where), None
    choices = choices_of(cls)
    if choices:
        old, new, beneath = map(_named_kind, (old, new, beneath))
    if not isinstance(new, Mapping) or not (choices or dataclasses.is_dataclass(cls)):
        origins[where] = origin
        return lay_over(old, new)
    old, beneath = (dict(one) if isinstance(one, Mapping) else {} for one in (old, beneath))
    if choices:
        default = _default_kind(cls, {**beneath, **old})
        kind = new.get("kind", default)
        if kind != default:
            _forget(origins, where)
            old, beneath = {}, {}
        cls = choices.get(kind) if isinstance(kind, str) else None
    return _merged_tables(hints_of(cls) if cls is not None else {}, (old, new, beneath), where, source)


def _merged_tables(
    hints: Mapping[str, Any],
    tables: tuple[dict[str, Any], Mapping[str, Any], Mapping[str, Any]],
    where: str,
    source: tuple[str, dict[str, str]],
) -> dict[str, Any]:
    """Of the tables old, new and beneath: each setting of the new one laid over the old one's."""
    old, new, beneath = tables
    for key, value in new.items():
        dotted = dotted_key(where, key)
        old[key] = _merged(hints.get(key, Any), old.get(key), value, dotted, source, beneath.get(key))
    return old


def _named_kind(settings: Any) -> Any:
    """A choice that is named by its kind alone, as a table."""
    return {"kind": settings} if isinstance(settings, str) else settings


def _forget(origins: dict[str, str], where: str) -> None:
    """Drop where the settings of a table came from."""
    for key in [key for key in origins if key.startswith(f"{where}.")]:
        del origins[key]


def _only_one(old: Any, where: str) -> Any:
    """The table that a single setting is laid over, where an array may stand."""
    if not isinstance(old, list):
        return old
    if len(old) > 1:
        raise ConfigError(
            f"{where}: {len(old)} tables are there already, and it is not said which of them to change;"
            f" give the whole array, {where}=[{{...}}, {{...}}]"
        )
    return old[0] if old else None


def _default_kind(cls: Any, old: Mapping[str, Any]) -> Any:
    """The kind that a table without `kind` has: what was chosen before, else the first of the union."""
    return old.get("kind", next(iter(choices_of(cls))))


# -- checking --------------------------------------------------------------------------------------------------------


def parse(cls: type[T], tree: Mapping[str, Any], where: str = "", trust: bool = True) -> T:
    """Make a `cls` of plain tables, lists and words; a ConfigError names the dotted key.

    `trust=False` refuses `kind = "package.module:Class"`, which imports code: for folders that came from others.
    """
    return typing.cast("T", _parse_table(cls, tree, where, trust))


def _parse_table(cls: Any, tree: Any, where: str, trust: bool, kind: str = "", union: Any = None) -> Any:
    """A `cls` of the settings in `tree`; `kind` is the word that chose this class of a union, where one did."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}: expected a table of settings, got {tree!r} ({value_in_words(tree)})")
    hints = hints_of(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = dotted_key(where, key)
        if key not in hints:
            here = f"settings of kind '{kind}'" if kind else "settings here"
            told = f"{here}: {', '.join(hints) or 'none'}{_having(key, union)}"
            raise ConfigError(f"{dotted}: no such setting{nearest(key, hints)}; {told}")
        values[key] = _parse_value(hints[key], value, dotted, trust)
    for item in dataclasses.fields(cls):
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and item.name not in values:
            raise ConfigError(f"{where + '.' if where else ''}{item.name}: must be given, and has no default")
    try:
        return cls(**values)
    except ConfigError as error:
        raise Unfit(f"{where}.{error}" if where else str(error)) from None
    except Exception as error:
        if ":" not in kind:
            raise
        raise Unfit(
            f"{where}: '{kind}' refuses its settings: {error_in_words(error)}; change them, or the class"
        ) from None


def _having(key: str, union: Any) -> str:
    """The kinds that do have a setting."""
    kinds = [kind for kind, cls in choices_of(union).items() if key in hints_of(cls)]
    return f"; kinds with '{key}': {', '.join(kinds)}" if kinds else ""


def _parse_value(kind: Any, value: Any, where: str, trust: bool) -> Any:
    if choices_of(kind):
        return _parse_choice(kind, value, where, trust)
    if dataclasses.is_dataclass(kind):
        return _parse_table(kind, value, where, trust)
    origin = typing.get_origin(kind)
    if isinstance(value, Unread):
        if origin is tuple:
            raise ConfigError(
                f"{where}: {str(value)!r} begins as a list and is no TOML; write a list as"
                """ '["a", "b"]', and a text that begins so with quotes, '"[a"'"""
            )
        value = str(value)
    if origin is typing.Literal:
        words = typing.get_args(kind)
        if value not in words:
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(map(str, words))}{nearest(value, words)}")
        return value
    if origin is tuple:
        return _parse_array(kind, value, where, trust)
    if origin is dict and isinstance(value, Mapping):  # settings of some other class, checked where they are used
        return dict(value)
    if kind is float and type(value) in (int, float):
        return _finite(value, where)
    if type(value) is not kind:
        wanted = "a table of settings" if origin is dict else type_in_words(kind)
        raise ConfigError(f"{where}: expected {wanted}, got {value!r} ({value_in_words(value)})")
    return value


def _finite(value: int | float, where: str) -> float:
    """A number as a float; nan, inf and whole numbers beyond the largest float are what no setting means."""
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ConfigError(f"{where}: expected a finite number, got {reprlib.repr(value)}")
    return float(value)


def _parse_array(kind: Any, value: Any, where: str, trust: bool) -> tuple[Any, ...]:
    items = typing.get_args(kind)
    values = list(value) if isinstance(value, (list, tuple)) else [value]  # one item may stand without brackets
    if isinstance(value, str) and "," in value and items[0] in (int, float):
        raise ConfigError(
            f"{where}: expected a list, each of it {type_in_words(items[0])}, got {value!r} (text); write"
            f" {where}=[{value}]"
        )
    if items[-1] is not Ellipsis:
        if len(values) != len(items):
            raise ConfigError(f"{where}: expected {len(items)} values, got {len(values)}: {value!r}")
        return tuple(
            _parse_value(item, one, f"{where}[{i}]", trust)
            for i, (item, one) in enumerate(zip(items, values, strict=True))
        )
    if not isinstance(value, (list, tuple)):
        return (_parse_value(items[0], value, where, trust),)
    return tuple(_parse_value(items[0], one, f"{where}[{i}]", trust) for i, one in enumerate(values))


def _parse_choice(union: Any, value: Any, where: str, trust: bool) -> Any:
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a kind or a table, got {value!r} ({value_in_words(value)})")
    choices = choices_of(union)
    kind = _default_kind(union, table)
    settings = {key: item for key, item in table.items() if key != "kind"}
    if isinstance(kind, str) and ":" in kind:
        return _parse_table(own_class(kind, where, choices.values(), trust), settings, where, trust, kind)
    if not isinstance(kind, str) or kind not in choices:
        raise ConfigError(f"{where}.kind: {kind!r} is not one of {', '.join(choices)}{nearest(kind, choices)}{OWN}")
    return _parse_table(choices[kind], settings, where, trust, kind, union)


# -- types -----------------------------------------------------------------------------------------------------------


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Settings of a config class and their types."""
    hints = typing.get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}


def choices_of(kind: Any) -> dict[str, Any]:
    """The classes of a union by their `kind`; empty when the type is no choice.

    Not cached: `A | B` and `B | A` are equal to Python, and the first of them matters here.
    """
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return {}
    return {kind_of(member): member for member in typing.get_args(kind)}


def kind_of(cls: type[Any]) -> str:
    """The word for a class in a config file: its own `kind`, else its name in snake case."""
    own = cls.__dict__.get("kind")
    return own if isinstance(own, str) else re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# -- writing ---------------------------------------------------------------------------------------------------------


def tree_of(config: Any) -> dict[str, Any]:
    """The config as plain tables, lists and words, which `parse` reads back."""
    return {name: _plain(hint, getattr(config, name)) for name, hint in hints_of(config.__class__).items()}


def _plain(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {"kind": _written_kind(hint, value), **tree_of(value)} if choices_of(hint) else tree_of(value)
    if isinstance(value, tuple):
        inner = typing.get_args(hint)[:1]
        return [_plain(inner[0] if inner else Any, one) for one in value]
    return value


def flatten(config: Any) -> dict[str, Any]:
    """Every setting by its dotted key, as it would be written."""
    flat: dict[str, Any] = {}

    def walk(tree: Mapping[str, Any], where: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{where}{key}.")
            else:
                flat[f"{where}{key}"] = value

    walk(tree_of(config), "")
    return flat


def dump(config: Any, origins: Mapping[str, str] | None = None) -> str:
    """The config as TOML that `parse` reads back; with `origins`, a comment says where each value came from."""
    import tomlkit  # slow to import, and only writing needs it

    def table(tree: Mapping[str, Any], where: str, made: Any) -> Any:
        for key in sorted(tree, key=lambda key: _is_nested(tree[key])):  # plain values first, as TOML wants
            value, dotted = tree[key], dotted_key(where, key)
            if isinstance(value, Mapping):
                made.add(key, table(value, dotted, tomlkit.table()))
            elif _is_nested(value):
                array = tomlkit.aot()
                for one in value:
                    array.append(table(one, dotted, tomlkit.table()))
                made.add(key, array)
            else:
                item = tomlkit.item(value)
                if origins and dotted in origins:
                    item.comment(origins[dotted])
                made.add(key, item)
        return made

    return tomlkit.dumps(table(tree_of(config), "", tomlkit.document()))


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _written_kind(union: Any, value: Any) -> str:
    cls = type(value)
    return kind_of(cls) if cls in choices_of(union).values() else name_of(cls)
