"""Training and preparing speak to the person who watches; in an experiment of ten runs they speak to a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def quiet(file: Path) -> Iterator[None]:
    """What is said inside goes to the end of a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield
