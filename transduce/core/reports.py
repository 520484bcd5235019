"""Read `metrics.jsonl`, the training reports of a run: one JSON object per line, each with a `kind` and a `step`.

A run may still be writing it, and a run that was killed may have left half a line.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.core.errors import DataError, RunError
from transduce.core.untrusted import parse_json, read_small

METRICS_FILE = "metrics.jsonl"
_TAIL = 8192  # bytes at the end of the file, more than its last lines take


@dataclass(frozen=True)
class Report:
    """One line of the file: its number from 1, its text, and its values."""

    number: int
    line: str
    values: dict[str, Any]


def read_reports(path: Path, largest: int = 0, skip_damaged: bool = False) -> list[Report]:
    """Read the reports so far; none without the file. A last line that is still being written is left out.

    A file of more than `largest` bytes (0: any) is an error. So is a line that is no report, unless `skip_damaged`
    leaves it out.
    """
    try:
        content = read_small(path, largest) if largest else path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(
            f"{path}: cannot be read: {error.strerror}. Give the folder that `transduce train` wrote."
        ) from error
    except ValueError as error:
        raise RunError(f"{path}: {error}, more than a run reports. Remove what does not belong there.") from None
    reports: list[Report] = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            reports.append(Report(number, line.decode(errors="replace"), _parsed(line, f"{path}:{number}")))
        except DataError:
            if not skip_damaged and number < len(lines):
                raise
    return reports


def _parsed(line: bytes, location: str) -> dict[str, Any]:
    try:
        values = parse_json(line)
    except ValueError as error:
        raise DataError(f"{location}: not JSON ({error}). {_expected(line)}") from error
    if not isinstance(values, dict):
        raise DataError(f"{location}: not a JSON object. {_expected(line)}")
    return values


def _expected(line: bytes) -> str:
    found = line[:60].decode("utf-8", errors="replace")
    return (
        f"Found {found!r}; expected one object a line, such as "
        '{"kind": "train", "step": 100, "loss": 3.21}. Remove the line, or restore the file from a copy.'
    )


def last_reported(path: Path, key: str) -> int:
    """The last `step` or integer `seconds` reported, 0 if none; reads only the end of the file, as it is polled."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)[key])
    return 0
