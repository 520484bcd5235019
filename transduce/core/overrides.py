"""Combine `key=value` words, as on a command line, into one tree of settings.

All words are one layer: they are combined before any of them is laid over a file, so their order does not matter.
A key that two words set differently is an error.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from transduce.core.errors import ConfigError
from transduce.core.untrusted import parse_toml


class UnreadList(str):
    """A value that starts like a TOML list but is not one: text, unless a list is expected."""


def read_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Combine all words into one tree; the result, or the error, does not depend on their order."""
    return combine(_read(word) for word in sorted(words))


def combine(trees: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine several trees of equal rank into one; a contradiction is an error.

    Where one gives a word and another a table, as `model.decoder=parallel` and `model.decoder.layers=2` do, the word
    becomes the table's `kind`.
    """
    made: dict[str, Any] = {}
    for tree in trees:
        made = _combined(made, tree, "")
    return made


def lay_over(old: Any, new: Any) -> Any:
    """Merge settings of an unknown type over others; a table that names another `kind` replaces the old one."""
    if isinstance(old, str) and isinstance(new, Mapping):
        old = {"kind": old}
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    if "kind" in new and new["kind"] != old.get("kind", new["kind"]):
        return new
    return {**old, **{key: lay_over(old.get(key), value) for key, value in new.items()}}


def _combined(old: Any, new: Any, where: str) -> Any:
    if isinstance(old, Mapping) and isinstance(new, str):
        new = {"kind": new}
    if isinstance(old, str) and isinstance(new, Mapping):
        old = {"kind": old}
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        made = dict(old)
        for key, value in new.items():
            dotted = f"{where}.{key}" if where else key
            made[key] = _combined(old[key], value, dotted) if key in old else value
        return made
    if repr(old) == repr(new):  # 1, 1.0 and true compare equal in Python, and nan does not equal itself
        return old
    raise ConfigError(f"{where}: given twice, as {old!r} and as {new!r}; give it once")


def _read(word: str) -> dict[str, Any]:
    """Parse `a.b=1` as the table {a: {b: 1}}; the value is read as TOML, else as a word."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{word!r}: is not UTF-8; give settings as text in UTF-8") from None
    key, sign, value = word.partition("=")
    key = key.strip()
    if not sign or not key:
        raise ConfigError(f"'{word}': expected key=value, such as training.steps=500")
    parts = key.split(".")
    wrong = next((number for number, part in enumerate(parts) if not re.fullmatch(r"[A-Za-z_]\w*", part)), None)
    if wrong is not None:
        raise ConfigError(f"'{word}': {_wrong_part(parts, wrong)}")
    try:
        table = parse_toml(f"value = {value}")
    except ValueError:
        table = {}
    if table.keys() == {"value"}:
        parsed = table["value"]
    else:  # a value of several lines is read as a word
        parsed = UnreadList(value.strip()) if value.strip().startswith("[") else value.strip()
    for part in reversed(parts):
        parsed = {part: parsed}
    return typing.cast("dict[str, Any]", parsed)


def _wrong_part(parts: list[str], wrong: int) -> str:
    """Describe what is wrong with a part of a key, and what to write."""
    part, before = parts[wrong], ".".join(parts[:wrong])
    if not part:
        return (
            "the key has a dot with no name beside it; expected names with one dot between them, as in training.steps"
        )
    if part.isdigit() and before:
        return (
            f"{part!r} in the key is a number, and items of a list cannot be set one by one; give the whole list,"
            f" {before}=[...]"
        )
    return (
        f"{part!r} in the key is no name of a setting; expected letters, digits and underscores, as in training.steps"
    )
