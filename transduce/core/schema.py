"""A JSON schema of a config class, for editors that complete and check TOML files as they are written.

It says what types, words and bounds say. What only holds for several settings together is checked when a config is
read.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from typing import Any

from transduce.core.bounds import Bounds, bounds_of
from transduce.core.config import choices_of, hints_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
_OWN = {"type": "string", "pattern": ":"}  # package.module:Class
Schema = dict[str, Any]


def json_schema(cls: type[Any]) -> Schema:
    """The schema of a file that `config.load` reads, with all classes that its settings can choose."""
    definitions: dict[str, Schema] = {}
    top = _table(cls, definitions)
    extends = {"type": "string", "description": "A file or preset that this one is laid over."}
    top["properties"] = {"extends": extends, **top["properties"]}
    return {"$schema": DIALECT, **top, "$defs": dict(sorted(definitions.items()))}


def _table(cls: Any, definitions: dict[str, Schema], kind: str = "") -> Schema:
    """A class as a table; in a union its `kind` is one more setting.

    Nothing is required: what a file leaves out, the one that it extends may have.
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
    if choices := choices_of(hint):
        return _choice(choices, definitions)
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


def _choice(choices: dict[str, type[Any]], definitions: dict[str, Schema]) -> Schema:
    """One of several classes: a kind by its name, or a table; or a class of the user's own."""
    tables = [{"$ref": _defined(cls, definitions, kind)} for kind, cls in choices.items()]
    own = {"type": "object", "properties": {"kind": _OWN}, "required": ["kind"]}
    return {"anyOf": [{"enum": list(choices)}, _OWN, *tables, own]}


def _defined(cls: type[Any], definitions: dict[str, Schema], kind: str = "") -> str:
    """Where the schema of a class is, made when it is first needed."""
    name = f"{cls.__module__}.{cls.__qualname__}{f'.{kind}' if kind else ''}"
    if name not in definitions:
        definitions[name] = {}  # its place, should it hold itself
        definitions[name] = _table(cls, definitions, kind)
    return f"#/$defs/{name}"


def _array(parts: tuple[Any, ...], definitions: dict[str, Schema]) -> Schema:
    """A list; where it may have any length, its only item may stand without brackets."""
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
