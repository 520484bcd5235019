"""User-facing errors, each saying where, what was found, what was expected and what to do.

The command line prints them without a traceback and exits with code 2. Any other exception is a bug of ours.

Also words for messages (counts, types of values, the nearest known name), and the hint which extra installs a
package that translating does not need.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class UserError(Exception):
    """An error that the user can fix; its text says how."""


class ConfigError(UserError):
    """A setting that does not exist, has the wrong type or value, or contradicts another."""


class Unfit(ConfigError):
    """Settings of a class that contradict each other, whatever the origin of each."""


class DataError(UserError):
    """Text, a tokenizer or a prepared corpus that cannot be used."""


class RunError(UserError):
    """A run folder that is locked, damaged, full, or does not fit the request."""


class EngineRefusal(UserError):
    """An engine does not support a search or constraint that another may, or was not built in this installation.

    An engine raises it before it does any work, naming itself and what was requested: "native engine: it has no ...".
    With engine="auto" the torch engine then takes over, where the folder holds weights for it.
    """


_SHORTAGES = "out of memory|allocate memory|(calculation|multiplication) overflow"  # as torch words them


@contextmanager
def explaining_shortage(advice: Callable[[], str]) -> Iterator[None]:
    """Turn running out of memory in the block into a RunError; `advice` says where it happened and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError, on a CPU a plain one
        if not isinstance(error, MemoryError) and not re.search(_SHORTAGES, str(error)):
            raise
        raise RunError(f"out of memory {advice()}") from error


TYPES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


DOTTED = r"""(?:[\w.-]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")*"""  # matches the results of `dotted_key`


def dotted_key(where: str, key: str) -> str:
    """Append a key to a dotted path; a key that is not a plain name is quoted, safe for a terminal."""
    plain = key if re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{where}.{plain}" if where else plain


def printable(text: str) -> str:
    """Escape control and bidirectional characters of a text for a terminal; newlines stay."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", _escaped, text)


def is_plain(text: str) -> bool:
    """Whether a text is one printable line: no control characters, no lone surrogates."""
    return "\n" not in text and printable(text) == text and not re.search("[\ud800-\udfff]", text)


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def counted(count: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun: `1 line`, `2,000 lines`; `plural` for nouns without a plain s."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def type_in_words(kind: type[Any]) -> str:
    """Name the type that a setting expects."""
    return TYPES.get(kind, kind.__name__)


def value_in_words(value: Any) -> str:
    """Name the type of a value from a file."""
    if isinstance(value, (Mapping, list)):
        return "a table" if isinstance(value, Mapping) else "an array"
    return type_in_words(type(value))


def nearest(word: Any, words: Iterable[Any]) -> str:
    """Suggest the nearest known word: `; did you mean 'steps'?`, or nothing."""
    near = near_words(word, words)
    return f"; did you mean '{near[0]}'?" if near else ""


def near_words(word: Any, words: Iterable[Any], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most `most` similar words, the nearest first; `cutoff` is the share that must agree."""
    return difflib.get_close_matches(str(word), [str(item) for item in words], n=most, cutoff=cutoff)


# The extra `train` installs the first three and protobuf (`google`), `evaluate` the third of them.
_EXPORTING = ("ctranslate2", "onnx", "onnxscript")
_SERVING = ("starlette", "uvicorn", "httptools", "pydantic", "prometheus_client", "python_multipart", "py3langid")
OPTIONAL = ("torch", "safetensors", "sacrebleu", "google", "yaml", *_EXPORTING, *_SERVING)


@contextmanager
def needed_by(what: str, extra: str = "train") -> Iterator[None]:
    """Turn a missing optional package in the block into an error that says who needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        package = {"google": "protobuf"}.get(package, package)
        raise UserError(f"{what} needs {package}: pip install 'transduce[{extra}]'") from None
