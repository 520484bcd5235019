"""What is wrong with a body of JSON, in our words: the field, what was expected there, and what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from transduce.wording import counted

SHOWN = 40  # characters of a value
TYPES = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
}
PATTERNS = {  # of shapes.py
    r"^[A-Za-z0-9_-]+$": "a code of letters, digits, _ and -, such as de",
    r"^[A-Za-z0-9._-]*$": "a name of letters, digits, dots, _ and -",
    r"\S": "a word that can be seen",
}


def validation_message(error: ValidationError) -> str:
    """The first thing that is wrong."""
    every = error.errors(include_url=False)
    field = every[0]["loc"][:1]
    chosen = [one for one in every if one["loc"][:1] == field]
    one = next((one for one in chosen if one["type"] not in TYPES or isinstance(one["loc"][-1], int)), chosen[0])
    place, found = _place(one["loc"]), _in_words(one["input"])
    if one["type"] == "missing":
        return f"{place}: expected this field, which has no default, and found none"
    if one["type"] in TYPES and one is chosen[0]:  # each kind that a field may have was tried
        kinds = dict.fromkeys(TYPES[other["type"]] for other in chosen if other["type"] in TYPES)
        return f"{place}: expected {' or '.join(kinds)}, got {found}"
    return f"{place}: expected {_expected(one['type'], one.get('ctx', {}))}, got {found}"


def _place(parts: Sequence[int | str]) -> str:
    """`include[0]`; of a field that may be of several kinds, without the name of the kind."""
    if not parts:
        return "the body"
    return str(parts[0]) + "".join(f"[{part}]" for part in parts[1:] if isinstance(part, int))


def _expected(kind: str, bounds: Mapping[str, Any]) -> str:
    match kind:
        case "model_type":
            return "a JSON object"
        case "literal_error":
            return str(bounds["expected"])
        case "greater_than_equal":
            return f"a number of at least {bounds['ge']}"
        case "less_than_equal":
            return f"a number of at most {bounds['le']}"
        case "string_too_short":
            return f"a text of at least {counted(bounds['min_length'], 'character')}"
        case "string_too_long":
            return f"a text of at most {counted(bounds['max_length'], 'character')}"
        case "too_short":
            return f"a list of at least {counted(bounds['min_length'], 'item')}"
        case "too_long":
            return f"a list of at most {counted(bounds['max_length'], 'item')}"
        case "string_pattern_mismatch":
            return PATTERNS.get(bounds["pattern"], "another text")
    return TYPES.get(kind, "another value")


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {counted(len(value), 'item')}"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
