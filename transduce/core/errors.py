"""Errors a user can cause, each saying where, what was found, what was expected and what to do.

The command line prints them without a traceback and exits with code 2. Anything else that is raised is a fault of ours.

Words for messages: of a number of things, of the type of a value, and of the name that was perhaps meant.

Packages that translating does not need: who misses one is told which extra of ours installs it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class UserError(Exception):
    """Something the user can put right; its text is all they need to do so."""


class ConfigError(UserError):
    """A setting that does not exist, has the wrong type or value, or contradicts another."""


class Unfit(ConfigError):
    """What a class of settings finds wrong with them taken together, wherever each came from."""


class DataError(UserError):
    """Text, a tokenizer or a prepared corpus that cannot be used as it is."""


class RunError(UserError):
    """A run folder that is locked, damaged, full, or does not fit what was asked of it."""


class EngineRefusal(UserError):
    """What an engine cannot do and another may: a search or constraint it does not have, or that it was not built here.

    An engine raises it before it does any work, naming itself and what was asked: "native engine: it has no ...".
    With engine="auto" the torch engine then takes over, where the folder holds weights for it.
    """


_SHORTAGES = "out of memory|allocate memory|(calculation|multiplication) overflow"  # in torch's words


@contextmanager
def explaining_shortage(advice: Callable[[], str]) -> Iterator[None]:
    """Where memory runs out inside, say so, followed by where that was and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError; on a CPU it is no more than that
        if not isinstance(error, MemoryError) and not re.search(_SHORTAGES, str(error)):
            raise
        raise RunError(f"out of memory {advice()}") from error


TYPES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


DOTTED = r"""(?:[\w.-]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")*"""  # what `dotted_key` gives


def dotted_key(where: str, key: str) -> str:
    """The name of a setting in a table; one that is no plain name is quoted, safe for a terminal."""
    plain = key if re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{where}.{plain}" if where else plain


def printable(text: str) -> str:
    """A text for a terminal: what would move its cursor or colour it is written out, but for the ends of lines."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", _escaped, text)


def is_plain(text: str) -> bool:
    """Whether any file and terminal takes it as one line: no control characters, no halves of surrogate pairs."""
    return "\n" not in text and printable(text) == text and not re.search("[\ud800-\udfff]", text)


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def counted(count: int, one: str, many: str = "") -> str:
    """`1 line`, `2,000 lines`; `many` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def type_in_words(kind: type[Any]) -> str:
    """What a setting of a type holds."""
    return TYPES.get(kind, kind.__name__)


def value_in_words(value: Any) -> str:
    """What a value from a file is."""
    if isinstance(value, (Mapping, list)):
        return "a table" if isinstance(value, Mapping) else "an array"
    return type_in_words(type(value))


def nearest(word: Any, words: Iterable[Any]) -> str:
    """`; did you mean 'steps'?` where one of the words is near."""
    near = near_words(word, words)
    return f"; did you mean '{near[0]}'?" if near else ""


def near_words(word: Any, words: Iterable[Any], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The words that are near one, at most so many, the nearest first; `cutoff` is the share that must agree."""
    return difflib.get_close_matches(str(word), [str(item) for item in words], n=most, cutoff=cutoff)


# The extra `train` has the first three and protobuf (`google`), `evaluate` the third of them.
_EXPORTING = ("ctranslate2", "onnx", "onnxscript")
_SERVING = ("starlette", "uvicorn", "httptools", "pydantic", "prometheus_client", "python_multipart", "py3langid")
OPTIONAL = ("torch", "safetensors", "sacrebleu", "google", "yaml", *_EXPORTING, *_SERVING)


@contextmanager
def needed_by(what: str, extra: str = "train") -> Iterator[None]:
    """Where one of these packages is missing inside, say who needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        package = {"google": "protobuf"}.get(package, package)
        raise UserError(f"{what} needs {package}: pip install 'transduce[{extra}]'") from None
