"""Two fields of the JSON object on each line."""

from __future__ import annotations

import json

from transduce.core.errors import DataError
from transduce.data.formats.reader import FileFormat


def pair_of_line(line: bytes, columns: tuple[str, str], place: str) -> tuple[bytes, bytes]:
    """Both sides of a line; `place` is its file and number."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        return line, line  # the doctor finds the invalid UTF-8
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error}); expected one object on each line") from None
    if not isinstance(record, dict):
        raise DataError(f"{place}: a JSON {type(record).__name__}; expected an object with the fields {list(columns)}")
    left, right = (_text(record, column, place) for column in columns)
    return left, right


def _text(record: dict[str, object], column: str, place: str) -> bytes:
    if column not in record:
        raise DataError(f"{place}: no field {column!r}; there are {sorted(record)}. Set columns to two of them")
    value = record[column]
    if not isinstance(value, str):
        raise DataError(f"{place}: field {column!r} holds {value!r:.40} ({type(value).__name__}); expected a string")
    return value.encode("utf-8", "surrogatepass")  # a lone surrogate thus becomes invalid UTF-8, which the doctor finds


FORMAT = FileFormat((".jsonl", ".ndjson"), ("source", "target"), pair=pair_of_line)
