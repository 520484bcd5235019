"""A JSON schema of a config class, for editors that complete and check TOML files as they are written.

It has types, words and bounds. Rules about several settings together are checked only when a config is read.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from typing import Any

from transduce.core.bounds import Bounds, bounds_of
from transduce.core.config import choices_of, hints_of, slot_of, words_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
_OWN = {"type": "string", "pattern": ":"}  # package.module:Class
Schema = dict[str, Any]


def json_schema(cls: type[Any]) -> Schema:
    """Return the schema of a file that `config.load` reads, with all classes that its settings can choose."""
    definitions: dict[str, Schema] = {}
    top = _table(cls, definitions)
    extends = {"type": "string", "description": "A file or preset that this one is merged over."}
    top["properties"] = {"extends": extends, **top["properties"]}
    return {"$schema": DIALECT, **top, "$defs": dict(sorted(definitions.items()))}


def _table(cls: Any, definitions: dict[str, Schema], kind: str = "") -> Schema:
    """Return the schema of a class as a table; in a union its `kind` is one more setting.

    Nothing is required: a setting that a file leaves out may be in the file that it extends.
    """
    hints, bounds = hints_of(cls), dict(bounds_of(cls))
    properties: dict[str, Schema] = {"kind": {"const": kind}} if kind else {}
    for item in dataclasses.fields(cls):
        properties[item.name] = _setting(hints[item.name], definitions, bounds.get(item.name))
        if isinstance(item.default, (int, float, str)):
            properties[item.name]["default"] = item.default
    about = {"description": (inspect.getdoc(cls) or "").partition("\n")[0]}
    return {"type": "object", **about, "properties": properties, "additionalProperties": False}


def _setting(hint: Any, definitions: dict[str, Schema], bounds: Bounds | None = None) -> Schema:
    if choices_of(hint) or slot_of(hint):
        return _choice(hint, definitions)
    if dataclasses.is_dataclass(hint):
        return {"$ref": _defined(typing.cast("type[Any]", hint), definitions)}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin is tuple:
        return _array(parts, definitions)
    if origin is dict:
        return {"type": "object"}
    return {"type": _TYPES[hint], **(_range(bounds) if bounds is not None else {})}


def _choice(hint: Any, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a union: a kind by its name, a table, a word, or a class of the user's own."""
    choices = choices_of(hint)
    tables: list[Schema] = [{"$ref": _defined(cls, definitions, kind)} for kind, cls in choices.items()]
    if slot_of(hint):
        tables += [_OWN, {"type": "object", "properties": {"kind": _OWN}, "required": ["kind"]}]
    return {"anyOf": [{"enum": [*choices, *words_of(hint)]}, *tables]}


def _defined(cls: type[Any], definitions: dict[str, Schema], kind: str = "") -> str:
    """Return the reference to the schema of a class, which is made when first needed."""
    name = f"{cls.__module__}.{cls.__qualname__}{f'.{kind}' if kind else ''}"
    if name not in definitions:
        definitions[name] = {}  # reserved, as a class may contain itself
        definitions[name] = _table(cls, definitions, kind)
    return f"#/$defs/{name}"


def _array(parts: tuple[Any, ...], definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a list; a list of any length may be a single item without brackets."""
    if parts[-1] is Ellipsis:
        item = _setting(parts[0], definitions)
        return {"anyOf": [{"type": "array", "items": item}, item]}
    items = [_setting(part, definitions) for part in parts]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _range(bounds: Bounds) -> Schema:
    found: Schema = {}
    if bounds.least > -math.inf:
        found["exclusiveMinimum" if bounds.above else "minimum"] = bounds.least
    if bounds.most < math.inf:
        found["exclusiveMaximum" if bounds.below else "maximum"] = bounds.most
    return found
