"""Lines in and lines out for the command line: read as they come, written as they are made."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from transduce import config as configs
from transduce.errors import DataError
from transduce.translator import Translation, Translator


def read_lines(path: Path | None) -> Iterator[str]:
    """Lines of a file, or of standard input; they end at \\n only, and bytes that are no UTF-8 are an error."""
    name = str(path) if path is not None else "standard input"
    try:
        file = open(path, "rb") if path is not None else sys.stdin.buffer  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name}:{number}: not UTF-8 at byte {error.start + 1} of the line; convert the text to UTF-8 first"
                ) from None


@contextmanager
def written(path: Path | None) -> Iterator[TextIO]:
    """A file to write text to, standard output if none is named; \\n stays \\n."""
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n", line_buffering=sys.stdout.isatty())
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    with file:
        yield file


def as_lines(translation: Translation, n_best: int) -> str:
    """The text on a line; with several, a line each with its score before it."""
    if n_best == 1:
        return f"{translation.text}\n"
    return "".join(f"{one.score:.4f}\t{one.text}\n" for one in (translation, *translation.alternatives))


def as_json(translation: Translation) -> str:
    return json.dumps(dataclasses.asdict(translation), ensure_ascii=False) + "\n"


def chosen_search(translator: Translator, text: str) -> Any:
    """A search config from settings such as `kind="beam",size=8`; what is not named is as in the model's config."""
    from transduce.search.choice import Chosen

    own = configs.dump(Chosen(translator.search))
    merged = configs.layers(Chosen, None, [f"search={{{text}}}"], base=tomllib.loads(own))
    return configs.parse(Chosen, merged.tree).search
