"""Two fields of the JSON object on each line."""

from __future__ import annotations

import json

from transduce.core.errors import DataError
from transduce.data.formats import FileFormat


def pair_of_line(line: bytes, columns: tuple[str, str], location: str) -> tuple[bytes, bytes]:
    """Parse both sides of a line; `location` is its file and number."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        return line, line  # the doctor reports the invalid UTF-8
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: not valid JSON ({error}); expected one object on each line") from None
    if not isinstance(record, dict):
        found = f"a JSON {type(record).__name__}"
        raise DataError(f"{location}: {found}; expected an object with the fields {list(columns)}")
    left, right = (_text(record, column, location) for column in columns)
    return left, right


def _text(record: dict[str, object], column: str, location: str) -> bytes:
    if column not in record:
        raise DataError(f"{location}: no field {column!r}; there are {sorted(record)}. Set columns to two of them")
    value = record[column]
    if not isinstance(value, str):
        raise DataError(f"{location}: field {column!r} holds {value!r:.40} ({type(value).__name__}); expected a string")
    return value.encode("utf-8", "surrogatepass")  # a lone surrogate becomes invalid UTF-8, which the doctor reports


FORMAT = FileFormat((".jsonl", ".ndjson"), ("source", "target"), pair=pair_of_line)
