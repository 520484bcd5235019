"""Read small untrusted files (settings and facts) with bounds on size, depth and numbers.

Python's own readers end in RecursionError or MemoryError on some texts, and accept integers too long to be printed
later. Here each of these is a ValueError, like any other malformed text.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

LARGEST = 16 << 20  # bytes of a file of facts
LARGEST_TOML = 1 << 20  # bytes of a file of settings
DEEPEST = 64  # nested tables or lists
_PART = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[\w-]++)"""  # a part of a dotted key; possessive, so no backtracking
_LONG_KEY = re.compile(rf"(?:\.[ \t]*+{_PART}[ \t]*+){{{4 * DEEPEST}}}")
_LEAST, _MOST = -(2**63), 2**63 - 1  # TOML's range of integers


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading without blocking; OSError for a pipe or device, which may never end.

    The check is on the open file: a name could point to something else by then.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _open_at_once(name: str, flags: int) -> int:
    """Open without blocking, also where a pipe has no writer."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def read_small(path: Path, largest: int = LARGEST) -> bytes:
    """Read a file; OSError where it cannot be read, ValueError where it is larger than `largest` bytes."""
    with open_regular(path) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"larger than {largest:,} bytes")
    return data


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """Read a JSON file; OSError or ValueError where it cannot be read or parsed."""
    return parse_json(read_small(path, largest))


def parse_json(data: bytes | str) -> Any:
    """Parse a JSON text; ValueError where it is malformed or repeats a name."""
    try:
        tree = json.loads(data, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_tree(tree)
    return tree


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text; ValueError where it is malformed."""
    if _LONG_KEY.search(text):
        raise ValueError("nested too deeply")  # the parser takes endless time on a key of so many parts
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_tree(tree)
    return tree


def check_tree(tree: Any) -> None:
    """Refuse values nested deeper than DEEPEST tables or lists, and integers that do not fit into 64 bits."""
    level = [tree]
    for _ in range(DEEPEST + 1):
        if not level:
            return
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
            elif type(value) is int and not _LEAST <= value <= _MOST:
                raise ValueError("a number of more than 64 bits")
        level = inner
    raise ValueError("nested too deeply")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is given twice")
    return table
