"""Small files that anybody may have written: settings and facts, read with bounds on size, depth and numbers.

Python's own readers end in RecursionError or MemoryError for some texts, and read numbers of any length that later
cannot be printed. Here each of these is a ValueError, as for any other text that is not in the format.
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
LARGEST_TOML = 1 << 20  # and of settings
DEEPEST = 64  # tables or lists within each other
_PART = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[\w-]++)"""  # of a dotted key; nothing is read twice
_LONG_KEY = re.compile(rf"(?:\.[ \t]*+{_PART}[ \t]*+){{{4 * DEEPEST}}}")
_LEAST, _MOST = -(2**63), 2**63 - 1  # as TOML has them


def open_regular(path: Path) -> io.BufferedReader:
    """A file to read from, opened at once; OSError for a pipe or a device, whose content may never come or never end.

    What is asked of an open file cannot be another one by then, as it can with a name.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _open_at_once(name: str, flags: int) -> int:
    """Without waiting for somebody who writes to it, where it is a pipe."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def read_small(path: Path, largest: int = LARGEST) -> bytes:
    """The content of a file; OSError where it cannot be read, ValueError where it is larger than it can honestly be."""
    with open_regular(path) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"larger than {largest:,} bytes")
    return data


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """What a JSON file holds; OSError or ValueError where that cannot be told."""
    return parse_json(read_small(path, largest))


def parse_json(data: bytes | str) -> Any:
    """What a JSON text says; ValueError where it says nothing sensible. Names may stand only once."""
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_tree(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; ValueError where it is none."""
    if _LONG_KEY.search(text):
        raise ValueError("nested too deeply")  # a key of so many parts takes the parser time without end
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_tree(found)
    return found


def check_tree(tree: Any) -> None:
    """Refuse values within more than DEEPEST tables or lists, and numbers that do not fit into 64 bits."""
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
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found
