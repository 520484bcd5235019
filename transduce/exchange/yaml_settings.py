"""YAML that others wrote: one flat mapping of words, read from the parser's events so that nothing can grow in it.

Marian's configs map names to scalars or to flat lists of scalars, its vocabularies map pieces to numbers. A loader
would first build whatever the text describes: thousands of nested lists end in a stack overflow, aliases of aliases in
a tree of any size. Here anything but that flat mapping is refused at the event that begins it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transduce.errors import RunError
from transduce.extras import needed_by

Value = str | list[str]
LARGEST = 64 << 20  # characters of a text
MOST_ENTRIES = 1 << 22  # of the mapping and its lists together: as many as the largest vocabulary
_SHOWN = 60  # characters of a value in a message
_AGAIN = "copy the model again"


def read_settings(text: str, where: Path) -> dict[str, Value]:
    """The names and values of a YAML text, each a string or a list of strings; `where` is named in errors."""
    with needed_by(f"{where}: reading Marian's own files", "marian"):
        import yaml  # type: ignore[import-untyped]
    if len(text) > LARGEST:
        raise RunError(f"{where}: YAML of {len(text):,} characters, {LARGEST:,} at most are read; {_AGAIN}")
    try:
        return _mapping(yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)), where)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two: an escape that is no character
        first = str(error).partition("\n")[0]
        raise RunError(f"{where}: not YAML ({first[: 2 * _SHOWN]}); {_AGAIN}") from None


def shown(value: object) -> str:
    """A stranger's value as it stands in a message: cut where it is long."""
    text = repr(value[: _SHOWN + 1] if isinstance(value, (str, list)) else value)
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}..."


def _mapping(events: Iterator[Any], where: Path) -> dict[str, Value]:
    found: dict[str, Value] = {}
    kinds = [_kind(next(events, None)) for _ in range(3)]  # stream, document, and what it holds
    if kinds[-1] != "MappingStart":
        raise RunError(f"{where}: expected YAML with names and values; {_AGAIN}")
    entries = 0
    for event in events:
        if _kind(event) == "MappingEnd":
            break
        name = _scalar(event, where, "a name")
        value = _value(next(events), events, where, name)
        if name in found:
            raise RunError(f"{where}: {shown(name)} stands there twice; {_AGAIN}")
        entries += 1 + (len(value) if isinstance(value, list) else 0)
        if entries > MOST_ENTRIES:
            raise RunError(f"{where}: more than {MOST_ENTRIES:,} entries; expected settings or a vocabulary")
        found[name] = value
    if [_kind(event) for event in (next(events), next(events))] != ["DocumentEnd", "StreamEnd"]:
        raise RunError(f"{where}: expected one YAML document, found several; {_AGAIN}")
    return found


def _value(event: Any, events: Iterator[Any], where: Path, name: str) -> Value:
    if _kind(event) != "SequenceStart":
        return _scalar(event, where, f"the value of {shown(name)}")
    _refuse_anchor(event, where)
    items: list[str] = []
    for item in events:
        if _kind(item) == "SequenceEnd":
            break
        items.append(_scalar(item, where, f"an item of {shown(name)}"))
        if len(items) > MOST_ENTRIES:
            raise RunError(f"{where}: {shown(name)} has more than {MOST_ENTRIES:,} items; expected a setting")
    return items


def _scalar(event: Any, where: Path, what: str) -> str:
    _refuse_anchor(event, where)
    if _kind(event) != "Scalar":
        raise RunError(
            f"{where}: {what} is a list or a mapping, in line {event.start_mark.line + 1}; expected names with a word,"
            f" a number or a flat list of them each; {_AGAIN}"
        )
    value: str = event.value
    value.encode()  # half of a surrogate pair, escaped, is no text
    return value


def _refuse_anchor(event: Any, where: Path) -> None:
    if getattr(event, "anchor", None) is not None:
        raise RunError(
            f"{where}: has an anchor or an alias (& or *), in line {event.start_mark.line + 1}; expected plain values,"
            f" as Marian writes them; {_AGAIN}"
        )


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")
