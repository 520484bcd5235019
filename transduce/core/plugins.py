"""Classes of the user's own, which a config names as "package.module:Class": imported, and looked at before use.

What their code raises is told in words, with the place in it where that happened.
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

# Beginnings of the names of files that are not the user's: what Python makes up, calls on the way, and ours.
NOT_THEIRS = ("<", importlib.__file__, typing.__file__, dataclasses.__file__, str(Path(__file__).parents[1]))

_added: list[str] = []  # folders put first on sys.path, for modules of the user's own


def own_class(kind: str, where: str, others: Iterable[type[Any]], trust: bool) -> Any:
    """The user's dataclass named "package.module:Class", importable from the current folder too.

    It stands in the place of `others`, and needs the methods that all of these have.
    """
    if not trust:
        raise ConfigError(
            f"{where}.kind: {kind!r} would import code; if you trust where this folder came from,"
            " say trust=True (--trust)"
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
    except Exception as error:  # an annotation is any expression
        raise ConfigError(
            f"{where}.kind: the types of the settings of {kind!r} cannot be read: {error_in_words(error)}; write"
            " types that its module defines or imports"
        ) from None
    return cls


def name_of(cls: type[Any]) -> str:
    """The word that names a class in a config: "package.module:Class"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def import_path() -> list[str]:
    """`sys.path` for a process of ours: as it is here, without what stands there for the user's own modules.

    Such a process adds that folder when it needs it, as this one did, and has imported what is ours by then.
    """
    return [folder for folder in sys.path if folder not in _added]


def error_in_words(error: BaseException) -> str:
    """The type and text of what the user's code raised, and the file and line of it where there is one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(NOT_THEIRS)]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text + place


def _imported(kind: str, where: str) -> Any:
    module_name, _, class_name = kind.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        _added.append(str(Path.cwd()))
        sys.path.insert(0, _added[-1])
    try:
        return operator.attrgetter(class_name)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # whatever the module does
        raise ConfigError(
            f"{where}.kind: cannot import {kind!r}: {error_in_words(error)}; expected package.module:Class, of a module"
            " that Python imports without an error"
        ) from None


def _shared_methods(classes: Iterable[type[Any]]) -> list[str]:
    public = [{name for name in dir(cls) if name[0] != "_" and callable(getattr(cls, name))} for cls in classes]
    return sorted(set.intersection(*public))


def _named(methods: Collection[str], last: str = "and") -> str:
    """`a method 'build'`, `methods 'build' and 'check_width'`."""
    *others, final = (f"'{name}'" for name in methods)
    return f"methods {', '.join(others)} {last} {final}" if others else f"method {final}"
