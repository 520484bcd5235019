"""Build frozen dataclasses from TOML files, and write them back.

Types are the schema: a dataclass is a table, a union of dataclasses is a choice named by `kind` (the class name in
snake case, or the class's own `kind`), `Literal` is a word from a list, `tuple[X, ...]` is an array. A file may say
`extends = "other.toml"` (or the name of a preset), and `key=value` overrides are laid over it. If the union (or the
`Literal`) includes a `Protocol`, `kind = "package.module:Class"` chooses a class of the user's own.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import reprlib
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from transduce.core.errors import DOTTED, ConfigError, Unfit, dotted_key, nearest, type_in_words, value_in_words
from transduce.core.overrides import UnreadList, lay_over, read_overrides
from transduce.core.plugins import error_in_words, is_protocol, name_of, own_class
from transduce.core.progress import say
from transduce.core.untrusted import LARGEST_TOML, parse_toml, read_small

T = TypeVar("T")
PRESETS = Path(__file__).parents[1] / "presets"
COMMAND_LINE = "command line"  # as an origin
# Settings that were renamed: class, old name, new name. Files, folders and command lines of users have the old one.
RENAMED: dict[str, dict[str, str]] = {
    "transduce.lab.decoding:Decoding": {"patience": "training_factor"},
    "transduce.lab.norms:Norms": {"companies": "batch_sizes"},
    "transduce.model.sources:Distortion": {"turn": "rotation"},
    "transduce.server.settings:Settings": {"gather": "batch_seconds", "patience": "queue_seconds"},
}
OWN = "; a class of your own is named as package.module:Class"


@dataclass
class Layers:
    """Merged settings of files and overrides, with the origin of each value."""

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
    """Load a config of class `cls` from a TOML file or preset, with `key=value` overrides in any order.

    `defaults` are layers of such words between the file and the overrides. `trust` is as in `parse`.
    """
    return resolve(cls, layers(cls, path, overrides, defaults=defaults), trust)


def resolve(cls: type[T], merged: Layers, trust: bool = True) -> T:
    """Check merged settings and build the config; an error also names the file (or command line) of the value."""
    try:
        return parse(cls, merged.tree, trust=trust)
    except ConfigError as error:
        key = re.match(DOTTED, str(error))
        origin = _origin_of(key[0], merged.origins) if key else None
        words = [name for name, where in merged.origins.items() if where == COMMAND_LINE]
        if origin != COMMAND_LINE and words and isinstance(error, Unfit):
            origin = f"{origin or 'defaults'}, with {', '.join(words)} of the command line laid over"
        raise ConfigError(f"{origin}: {error}" if origin else str(error)) from None


def _origin_of(key: str, origins: Mapping[str, str]) -> str | None:
    """Return the origin of a setting; that of a choice which was given as a word is noted without its `kind`."""
    return origins.get(key, origins.get(key.removesuffix(".kind")))


def layers(
    cls: type[Any],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    defaults: Sequence[Sequence[str]] = (),
) -> Layers:
    """Merge the settings of `path`, of the files it extends and of the overrides over `base`, unchecked.

    The words of `overrides` are one layer, whatever their order, and so is each of `defaults`, which lie beneath.
    """
    merged = Layers(dict(base or {}))
    for name, tree in _files(path) if path is not None else []:
        merge(cls, merged, tree, origin=name)
    for words in (*defaults, overrides):
        merge(cls, merged, read_overrides(words), origin=COMMAND_LINE)
    return merged


def presets() -> list[str]:
    """List the preset names that `extends` and the command line accept in place of a file."""
    return sorted(file.stem for file in PRESETS.glob("*.toml"))


def _files(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """Read a file and all files it extends, the most general first."""
    layers_found: list[tuple[str, dict[str, Any]]] = []
    seen: list[Path] = []
    current: Path | None = _locate(path, Path())
    while current is not None:
        if current.resolve() in seen:
            raise ConfigError(
                f"{current}: extends itself through {' -> '.join(str(file) for file in seen)}; remove one 'extends'"
            )
        seen.append(current.resolve())
        tree = read_toml(current)
        parent = tree.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise ConfigError(f"{current}: extends: expected a file or preset name, got {parent!r}")
        layers_found.append((f"preset {current.stem}" if current.parent == PRESETS else str(current), tree))
        current = _locate(parent, current.parent) if parent is not None else None
    return layers_found[::-1]


def _locate(name: str | Path, folder: Path) -> Path:
    text = str(name)
    if not text.endswith(".toml") and "/" not in text:
        if (PRESETS / f"{text}.toml").is_file():
            return PRESETS / f"{text}.toml"
        hint = f"presets are {', '.join(presets())}{nearest(text, presets())}"
        raise ConfigError(f"{text!r} is neither a .toml file nor a preset; {hint}")
    path = folder / text
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a .toml file or one of the presets {', '.join(presets())}")
    return path


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file, unchecked."""
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
    """Merge settings of class `cls` over those merged so far; `origin` is what errors name as their source.

    A table that names another `kind` than before drops the settings of the old kind: only the settings of the new layer
    and the defaults of the new kind count. `beneath` are settings that the merged ones will be laid over later; a table
    takes its kind from them where the merged ones name none.
    """
    merged.tree = _merged(cls, merged.tree, new, "", (origin, merged.origins), beneath)


def _merged(cls: Any, old: Any, new: Any, where: str, source: tuple[str, dict[str, str]], beneath: Any = None) -> Any:
    """Merge `new` over `old`, both settings of type `cls`; `source` is the origin and the mapping to note it in."""
    origin, origins = source
    if typing.get_origin(cls) is tuple and isinstance(new, Mapping):  # a single table for an array of tables
        cls, old, beneath = typing.get_args(cls)[0], _only_one(old, where), None
    choices = _kinds(cls) if isinstance(new, Mapping) or isinstance(old, Mapping) else choices_of(cls)
    if choices:
        old, new, beneath = map(_named_kind, (old, new, beneath))
    if not isinstance(new, Mapping) or not (choices or dataclasses.is_dataclass(cls)):
        origins[where] = origin
        return lay_over(old, new)
    old, beneath = (dict(value) if isinstance(value, Mapping) else {} for value in (old, beneath))
    if choices:
        default = _default_kind(cls, {**beneath, **old})
        kind = new.get("kind", default)
        if kind != default:
            _forget(origins, where)
            old, beneath = {}, {}
        cls = choices.get(kind) if isinstance(kind, str) else None
    new = _renewed(cls, new, where, origin)
    return _merged_tables(hints_of(cls) if cls is not None else {}, (old, new, beneath), where, source)


def _merged_tables(
    hints: Mapping[str, Any],
    tables: tuple[dict[str, Any], Mapping[str, Any], Mapping[str, Any]],
    where: str,
    source: tuple[str, dict[str, str]],
) -> dict[str, Any]:
    """Merge each setting of the new table over the old one's; `tables` are old, new and beneath."""
    old, new, beneath = tables
    for key, value in new.items():
        dotted = dotted_key(where, key)
        old[key] = _merged(hints.get(key, Any), old.get(key), value, dotted, source, beneath.get(key))
    return old


def old_names(cls: Any) -> Mapping[str, str]:
    """Map the old names of settings of a class to their new ones."""
    return RENAMED.get(name_of(cls), {}) if isinstance(cls, type) else {}


def _renewed(cls: Any, settings: Mapping[str, Any], where: str = "", origin: str = "") -> Mapping[str, Any]:
    """Replace the old names of settings of class `cls` by the new ones, with a warning for each on standard error."""
    names = old_names(cls)
    for old in [key for key in settings if key in names]:
        dotted, prefix = dotted_key(where, old), f"{origin}: " if origin else ""
        if names[old] in settings:
            raise ConfigError(f"{prefix}{dotted}: the old name of '{names[old]}', which is given too; remove one")
        _warn(f"{prefix}{dotted}: this setting is now called '{names[old]}'; the old name is still read")
        settings = {names[old] if key == old else key: value for key, value in settings.items()}
    return settings


@functools.cache
def _warn(text: str) -> None:
    """Print a warning once per process: a folder's config is read several times."""
    say(text)


def _named_kind(settings: Any) -> Any:
    """Convert a choice given by its kind alone to a table."""
    return {"kind": settings} if isinstance(settings, str) else settings


def _forget(origins: dict[str, str], where: str) -> None:
    """Delete the origins of the settings of a table."""
    for key in [key for key in origins if key.startswith(f"{where}.")]:
        del origins[key]


def _only_one(old: Any, where: str) -> Any:
    """Return the table that a single table is merged over where an array is expected."""
    if not isinstance(old, list):
        return old
    if len(old) > 1:
        raise ConfigError(
            f"{where}: {len(old)} tables are already set, and it is not clear which of them to change;"
            f" give the whole array, {where}=[{{...}}, {{...}}]"
        )
    return old[0] if old else None


def _default_kind(cls: Any, old: Mapping[str, Any]) -> Any:
    """Return the kind of a table without `kind`: the one chosen before, else the first of the union."""
    return old.get("kind", next(iter(_kinds(cls))))


# -- checking --------------------------------------------------------------------------------------------------------


def parse(cls: type[T], tree: Mapping[str, Any], where: str = "", trust: bool = True) -> T:
    """Build a `cls` from plain tables, lists and words; a ConfigError names the dotted key.

    `trust=False` refuses `kind = "package.module:Class"`, which imports code: for folders from other people.
    """
    return typing.cast("T", _parse_table(cls, tree, where, trust))


def _parse_table(cls: Any, tree: Any, where: str, trust: bool, kind: str = "", union: Any = None) -> Any:
    """Build a `cls` from the settings in `tree`; `kind` is the word that chose this class from a union, if any."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}: expected a table of settings, got {tree!r} ({value_in_words(tree)})")
    hints = hints_of(cls)
    values: dict[str, Any] = {}
    for key, value in _renewed(cls, tree, where).items():
        dotted = dotted_key(where, key)
        if key not in hints:
            here = f"settings of kind '{kind}'" if kind else "settings here"
            available = f"{here}: {', '.join(hints) or 'none'}{_having(key, union)}"
            raise ConfigError(f"{dotted}: no such setting{nearest(key, hints)}; {available}")
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
    """Name the kinds of a union that have the setting `key`, as the end of an error message."""
    kinds = [kind for kind, cls in choices_of(union).items() if key in hints_of(cls)]
    return f"; kinds with '{key}': {', '.join(kinds)}" if kinds else ""


def _parse_value(kind: Any, value: Any, where: str, trust: bool) -> Any:
    named = isinstance(value, Mapping) or (isinstance(value, str) and ":" in value)
    if choices_of(kind) or (slot_of(kind) and named):
        return _parse_choice(kind, value, where, trust)
    if dataclasses.is_dataclass(kind):
        return _parse_table(kind, value, where, trust)
    origin = typing.get_origin(kind)
    if isinstance(value, UnreadList):
        if origin is tuple:
            raise ConfigError(
                f"{where}: {str(value)!r} begins as a list and is no TOML; write a list as"
                """ '["a", "b"]', and a text that begins so with quotes, '"[a"'"""
            )
        value = str(value)
    if words_of(kind):
        return _parse_word(kind, value, where)
    if origin is tuple:
        return _parse_array(kind, value, where, trust)
    if origin is dict and isinstance(value, Mapping):  # settings of another class, checked where they are used
        return dict(value)
    if kind is float and type(value) in (int, float):
        return _finite(value, where)
    if type(value) is not kind:
        wanted = "a table of settings" if origin is dict else type_in_words(kind)
        raise ConfigError(f"{where}: expected {wanted}, got {value!r} ({value_in_words(value)})")
    return value


def _parse_word(kind: Any, value: Any, where: str) -> Any:
    words = words_of(kind)
    if value not in words:
        listed = ", ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in words)  # as in TOML
        known = f"{listed}{nearest(value, words)}{OWN if slot_of(kind) else ''}"
        raise ConfigError(f"{where}: {value!r} is not one of {known}")
    return value


def _finite(value: int | float, where: str) -> float:
    """Convert a number to a float; refuse nan, inf and integers beyond the largest float."""
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ConfigError(f"{where}: expected a finite number, got {reprlib.repr(value)}")
    return float(value)


def _parse_array(kind: Any, value: Any, where: str, trust: bool) -> tuple[Any, ...]:
    items = typing.get_args(kind)
    values = list(value) if isinstance(value, (list, tuple)) else [value]  # a single item needs no brackets
    if isinstance(value, str) and "," in value and items[0] in (int, float):
        raise ConfigError(
            f"{where}: expected a list, each of it {type_in_words(items[0])}, got {value!r} (text); write"
            f" {where}=[{value}]"
        )
    if items[-1] is not Ellipsis:
        if len(values) != len(items):
            raise ConfigError(f"{where}: expected {len(items)} values, got {len(values)}: {value!r}")
        return tuple(
            _parse_value(item, element, f"{where}[{i}]", trust)
            for i, (item, element) in enumerate(zip(items, values, strict=True))
        )
    if not isinstance(value, (list, tuple)):
        return (_parse_value(items[0], value, where, trust),)
    return tuple(_parse_value(items[0], element, f"{where}[{i}]", trust) for i, element in enumerate(values))


def _parse_choice(union: Any, value: Any, where: str, trust: bool) -> Any:
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a kind or a table, got {value!r} ({value_in_words(value)})")
    kinds, slot = _kinds(union), slot_of(union)
    kind = _default_kind(union, table)
    settings = {key: item for key, item in table.items() if key != "kind"}
    if slot is not None and isinstance(kind, str) and ":" in kind:
        return _parse_table(own_class(kind, where, slot, trust), settings, where, trust, kind)
    if not isinstance(kind, str) or kind not in kinds:
        accepted = f"{', '.join(kinds)}{nearest(kind, kinds)}{OWN if slot else ''}"
        raise ConfigError(f"{where}.kind: {kind!r} is not one of {accepted}")
    if kinds[kind] is not None:
        return _parse_table(kinds[kind], settings, where, trust, kind, union)
    for key in settings:
        raise ConfigError(f"{dotted_key(where, key)}: no such setting; '{kind}' has none")
    return kind


# -- types -----------------------------------------------------------------------------------------------------------


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the settings of a config class and their types."""
    hints = typing.get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}


def _kinds(kind: Any) -> dict[str, Any]:
    """Map each `kind` of a union to its class, and each of its words to None: a word has no settings.

    Not cached: `A | B` and `B | A` compare equal in Python, and the first member matters here.
    """
    found: dict[str, Any] = {}
    for member in _members(kind):
        if typing.get_origin(member) is typing.Literal:
            found |= dict.fromkeys(typing.get_args(member))
        elif not is_protocol(member):
            found[kind_of(member)] = member
    return found


def choices_of(kind: Any) -> dict[str, Any]:
    """Map each `kind` of a union to its class; empty when the type is not a union of classes."""
    return {word: member for word, member in _kinds(kind).items() if member is not None}


def words_of(kind: Any) -> tuple[Any, ...]:
    """Return the words that a setting accepts, whether or not it also accepts classes of the user's own."""
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)
    return tuple(word for word, member in _kinds(kind).items() if member is None)


def slot_of(kind: Any) -> Any:
    """Return the protocol in a union that a class of the user's own must follow; None if it accepts none."""
    return next((member for member in _members(kind) if is_protocol(member)), None)


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else ()


def kind_of(cls: type[Any]) -> str:
    """Return the name of a class in a config file: its own `kind`, else the class name in snake case."""
    kind = cls.__dict__.get("kind")
    return kind if isinstance(kind, str) else re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# -- writing ---------------------------------------------------------------------------------------------------------


def tree_of(config: Any) -> dict[str, Any]:
    """Convert a config to plain tables, lists and words, which `parse` reads back."""
    return {name: _plain(hint, getattr(config, name)) for name, hint in hints_of(config.__class__).items()}


def _plain(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {"kind": written_kind(hint, value), **tree_of(value)} if _members(hint) else tree_of(value)
    if isinstance(value, tuple):
        inner = typing.get_args(hint)[:1]
        return [_plain(inner[0] if inner else Any, item) for item in value]
    return value


def flatten(config: Any) -> dict[str, Any]:
    """Return every setting by its dotted key, as it would be written."""
    flat: dict[str, Any] = {}

    def walk(tree: Mapping[str, Any], where: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{where}{key}.")
            else:
                flat[f"{where}{key}"] = value

    walk(tree_of(config), "")
    return flat


def own_parts(config: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the class name of every part of a config that is of the user's own class."""
    for name, hint in hints_of(config.__class__).items():
        value, dotted = getattr(config, name), dotted_key(where, name)
        if dataclasses.is_dataclass(value):
            if slot_of(hint) and type(value) not in choices_of(hint).values():
                yield dotted, name_of(type(value))
            else:
                yield from own_parts(value, dotted)


def dump(config: Any, origins: Mapping[str, str] | None = None) -> str:
    """Write a config as TOML that `parse` reads back; with `origins`, a comment names the origin of each value."""
    import tomlkit  # slow to import, and only writing needs it

    def table(tree: Mapping[str, Any], where: str, made: Any) -> Any:
        for key in sorted(tree, key=lambda key: _is_nested(tree[key])):  # plain values first, as TOML wants
            value, dotted = tree[key], dotted_key(where, key)
            if isinstance(value, Mapping):
                made.add(key, table(value, dotted, tomlkit.table()))
            elif _is_nested(value):
                array = tomlkit.aot()
                for element in value:
                    array.append(table(element, dotted, tomlkit.table()))
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


def written_kind(union: Any, value: Any) -> str:
    """Return the `kind` of a value of a union: "package.module:Class" for a class of the user's own."""
    cls = type(value)
    return kind_of(cls) if cls in choices_of(union).values() else name_of(cls)
