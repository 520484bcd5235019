"""Classes of the user's own, named in a config as "package.module:Class": imported and checked before use.

Exceptions of their code are reported with the file and line where they were raised.
"""

from __future__ import annotations

import dataclasses
import importlib
import operator
import sys
import traceback
import typing
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from transduce.core.errors import ConfigError

# File name prefixes of frames that are not the user's: generated code, the import machinery, and this package.
NOT_THEIRS = ("<", importlib.__file__, typing.__file__, dataclasses.__file__, str(Path(__file__).parents[1]))

_added: list[str] = []  # folders put first on sys.path, for the user's own modules


def own_class(kind: str, where: str, others: Iterable[type[Any]], trust: bool) -> Any:
    """Import the user's dataclass named "package.module:Class", from the current folder too.

    It takes the place of `others`, and needs the methods that all of these have.
    """
    if not trust:
        raise ConfigError(
            f"{where}.kind: {kind!r} would import code; if you trust where this folder came from,"
            " pass trust=True (--trust)"
        )
    methods = _shared_methods(others)
    cls = _imported(kind, where)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(
            f"{where}.kind: {kind!r} is not a dataclass; one with {_named(methods)} is needed here;"
            " docs/training.md shows one (Optimizers)"
        )
    missing = [name for name in methods if not callable(getattr(cls, name, None))]
    if missing:
        raise ConfigError(
            f"{where}.kind: {kind!r} has no {_named(missing, 'or')}; a dataclass with {_named(methods)} is needed here"
        )
    try:
        typing.get_type_hints(cls)
    except Exception as error:  # an annotation may be any expression
        raise ConfigError(
            f"{where}.kind: the types of the settings of {kind!r} cannot be read: {error_in_words(error)}; write"
            " types that its module defines or imports"
        ) from None
    return cls


def name_of(cls: type[Any]) -> str:
    """Return the name of a class in a config: "package.module:Class"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def import_path() -> list[str]:
    """Return `sys.path` for a child process, without the entries added for the user's own modules.

    The child adds that folder when it needs it, as this process did, after our own modules are imported.
    """
    return [folder for folder in sys.path if folder not in _added]


def error_in_words(error: BaseException) -> str:
    """Describe an exception of the user's code: its type and text, and the file and line if known."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(NOT_THEIRS)]
    location = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text + location


def _imported(kind: str, where: str) -> Any:
    module_name, _, class_name = kind.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        _added.append(str(Path.cwd()))
        sys.path.insert(0, _added[-1])
    try:
        return operator.attrgetter(class_name)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # the module may raise anything
        raise ConfigError(
            f"{where}.kind: cannot import {kind!r}: {error_in_words(error)}; expected package.module:Class, of a module"
            " that Python imports without an error"
        ) from None


def _shared_methods(classes: Iterable[type[Any]]) -> list[str]:
    public = [{name for name in dir(cls) if name[0] != "_" and callable(getattr(cls, name))} for cls in classes]
    return sorted(set.intersection(*public))


def _named(methods: Collection[str], last: str = "and") -> str:
    """Join method names: `method 'build'`, `methods 'build' and 'check_width'`."""
    *others, final = (f"'{name}'" for name in methods)
    return f"methods {', '.join(others)} {last} {final}" if others else f"method {final}"
