"""Classes of the user's own, named in a config as "package.module:Class": imported and checked before use.

A setting that takes one has a `typing.Protocol` in its type, beside the builtin classes: `score: Score | ScoreConfig`.
The protocol is the contract: a class that lacks one of its methods, or has it with other parameters, is refused.
Exceptions of the user's code are reported with the file and line where they were raised.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import operator
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from transduce.core.errors import ConfigError

# File name prefixes of frames that are not the user's: generated code, the import machinery, and this package.
NOT_THEIRS = ("<", importlib.__file__, typing.__file__, dataclasses.__file__, str(Path(__file__).parents[1]))

EXAMPLES = "docs/extending.md"

_added: list[str] = []  # folders put first on sys.path, for the user's own modules


def own_class(kind: str, where: str, protocol: Any, trust: bool) -> Any:
    """Import the user's dataclass named "package.module:Class", from the current folder too.

    `where` is the dotted key of the setting; `protocol` is the contract that the class must follow.
    """
    if not trust:
        raise ConfigError(
            f"{where}.kind: {kind!r} would import code; if you trust where this folder came from,"
            " pass trust=True (--trust)"
        )
    cls = _imported(kind, where)
    slot = re.split(r"[. ]", where)[-1].partition("[")[0]
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        methods = [name for name in members(protocol) if callable(getattr(protocol, name, None))]
        wanted = [name for name in methods if _is_abstract(protocol, name)] or methods
        told = " and ".join(map(repr, wanted))
        raise ConfigError(
            f"{where}.kind: {kind!r} is not a dataclass; {slot!r} needs one with {told}; {EXAMPLES} shows one"
        )
    fault = next(_faults(cls, protocol), None)
    if fault is not None:
        raise ConfigError(f"{where}.kind: {kind!r} {fault}, which {slot!r} needs; {EXAMPLES} shows one")
    try:
        typing.get_type_hints(cls)
    except Exception as error:  # an annotation may be any expression
        raise ConfigError(
            f"{where}.kind: the types of the settings of {kind!r} cannot be read: {error_in_words(error)}; write"
            " types that its module defines or imports"
        ) from None
    return cls


def is_protocol(cls: Any) -> bool:
    """Whether a class is a `typing.Protocol` itself, not one that follows one."""
    return isinstance(cls, type) and bool(cls.__dict__.get("_is_protocol", False))


def members(protocol: Any) -> list[str]:
    """Public methods and attributes of a protocol, in the order it states them; those left abstract come first."""
    stated = [base for base in protocol.__mro__[::-1] if is_protocol(base) and base is not Protocol]
    names = dict.fromkeys(name for base in stated for name in (*vars(base), *inspect.get_annotations(base)))
    public = [name for name in names if not name.startswith("_") or name == "__call__"]
    return sorted(public, key=lambda name: not _is_abstract(protocol, name))


def _faults(cls: type[Any], protocol: Any) -> Iterator[str]:
    """What a class lacks of a protocol, and what it has with other parameters or results."""
    fields = {item.name for item in dataclasses.fields(cls)}
    for name in members(protocol):
        wanted = inspect.getattr_static(protocol, name, None)
        missing = name not in fields and (not hasattr(cls, name) or _is_abstract(cls, name))
        if not inspect.isfunction(wanted):
            if missing:
                yield f"has no attribute {_attribute(protocol, name, wanted)!r}"
            continue
        signature = _signature(wanted)
        if missing or not callable(getattr(cls, name, None)):
            yield f"has no method {signature!r}"
        elif not (_serves(inspect.getattr_static(cls, name), wanted) and _gives(getattr(cls, name), wanted)):
            yield f"has {_signature(getattr(cls, name))!r} in place of {signature!r}"


def _is_abstract(cls: Any, name: str) -> bool:
    return bool(getattr(inspect.getattr_static(cls, name, None), "__isabstractmethod__", False))


def _attribute(protocol: Any, name: str, wanted: Any) -> str:
    """`layers: int`."""
    if isinstance(wanted, property):
        return f"{name}: {inspect.signature(wanted.fget).return_annotation}"  # type: ignore[arg-type]
    return f"{name}: {protocol.__annotations__[name]}"


def _signature(function: Any) -> str:
    """`build(self, d_model: int) -> nn.Module`."""
    try:
        return f"{function.__name__}{inspect.signature(function)}".replace("'", "")
    except (ValueError, TypeError, AttributeError):
        return repr(function)


def _serves(own: Any, wanted: Any) -> bool:
    """Whether a method can be called as the protocol's is: with its parameters, by place and by name."""
    bound = isinstance(own, staticmethod)
    function = own.__func__ if isinstance(own, (staticmethod, classmethod)) else own
    try:
        given = list(inspect.signature(function).parameters.values())[0 if bound else 1 :]
    except (ValueError, TypeError):  # of a callable without a signature nothing is known
        return True
    asked = list(inspect.signature(wanted).parameters.values())[1:]
    kinds = {parameter.kind for parameter in given}
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        by_place = [one.name for one in given if one.kind is not one.KEYWORD_ONLY][: len(asked)]
        if by_place != [one.name for one in asked]:
            return False
    return all(
        one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in given[len(asked) :]
    )


def _gives(own: Any, wanted: Any) -> bool:
    """Whether a method may give what the protocol's does: by its annotation, a function of as many arguments."""
    try:
        results = [typing.get_type_hints(function)["return"] for function in (own, wanted)]
    except Exception:  # there is none, or one that cannot be read
        return True
    (least, most), (fewest, many) = (_arguments(result) for result in results)
    return least <= many and fewest <= most


def _arguments(kind: Any) -> tuple[int, float]:
    """How many arguments values of a type are called with, at least and at most; any number where that is not known."""
    if typing.get_origin(kind) is Callable:
        given = typing.get_args(kind)[0]
        return (len(given), len(given)) if isinstance(given, list) else (0, math.inf)
    call = inspect.getattr_static(kind, "__call__", None) if isinstance(kind, type) else None
    if not inspect.isfunction(call):
        return 0, math.inf
    given = list(inspect.signature(call).parameters.values())[1:]
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in given):
        return 0, math.inf
    return sum(one.default is one.empty for one in given), len(given)


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
