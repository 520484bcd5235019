"""Every key and every kind that a TOML file can say is named on the page that tells of it, with its real default.

A key is named where it stands in backticks, alone or in a dotted name, or before `=` in a block of TOML.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from transduce.core.config import choices_of, hints_of, kind_of
from transduce.data.prepare.run import Prepare
from transduce.experiment import Config
from transduce.lab.catalogue import EXPERIMENTS
from transduce.server.settings import Settings
from transduce.workflows.compare.plan import Comparison
from transduce.workflows.gather.settings import Gather
from transduce.workflows.pipeline.plan import Pipeline

DOCS = Path(__file__).parents[2] / "docs"
# Where each part of a config is told; a longer place goes before a shorter one.
PAGES: dict[tuple[type[Any], str], str] = {
    (Config, ""): "training",
    (Config, "model"): "models",
    (Config, "model.source"): "speech-and-images models",
    (Config, "model.decoder.length"): "non-autoregressive",
    (Config, "objective"): "objectives non-autoregressive",
    (Config, "search"): "decoding",
    (Config, "validation.search"): "decoding",
    (Prepare, ""): "data",
    (Prepare, "sources"): "speech-and-images",
    (Comparison, ""): "comparing",
    (Pipeline, ""): "pipeline",
    (Gather, ""): "pipeline",
    (Settings, ""): "serving",
    **{(experiment.settings, ""): "comparing" for experiment in EXPERIMENTS},
}


def fields(cls: Any, place: str = "") -> Iterator[tuple[str, str, Any]]:
    """(place, word, type) of every key and every kind below a config class; a kind's own type is its class."""
    for name, hint in hints_of(cls).items():
        here = f"{place}.{name}" if place else name
        yield here, name, hint
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        for kind, member in choices_of(inner).items():
            yield here, kind, member
            yield from fields(member, here)
        if dataclasses.is_dataclass(inner):
            yield from fields(inner, here)


def pages_of(root: type[Any], place: str) -> tuple[str, ...]:
    parts = place.split(".")
    for length in range(len(parts), -1, -1):
        found = PAGES.get((root, ".".join(parts[:length])))
        if found:
            return tuple(found.split())
    raise AssertionError(place)


@cache
def named(page: str) -> frozenset[str]:
    """All words that a page names."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    toml = re.findall(r"^```toml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    words = {word for span in re.findall(r"`([^`\n]+)`", prose) for word in re.findall(r"\w+", span)}
    for block in toml:
        for line in block.splitlines():
            code = line.partition("#")[0]
            words |= {part for key in re.findall(r"([\w.]+)\s*=", code) for part in key.split(".")}
            words |= set(re.findall(r'kind = "(\w+)"', code))
            words |= set(re.findall(r"[\w.]+", code)) if code.startswith("[") else set()
    return frozenset(words)


@pytest.mark.parametrize("root", dict.fromkeys(root for root, _ in PAGES), ids=lambda root: root.__name__)
def test_every_key_and_kind_is_named(root: type[Any]) -> None:
    missing = {
        f"docs/{pages_of(root, place)[0]}.md: {place}: `{word}`"
        for place, word, _ in fields(root)
        if not any(word in named(page) for page in pages_of(root, place))
    }
    assert not missing, "\n".join(sorted(missing))


# -- defaults ---------------------------------------------------------------------------------------------------------


def value_of(text: str) -> object:
    """What a table says a default is, as a config has it; a `kind` in backticks is the word itself."""
    text = text.strip()
    if text.startswith(('"', "`")):
        return text[1:-1]
    return {"true": True, "false": False, "none": ()}.get(text, text if text else None)


def same(said: object, default: object) -> bool:
    if dataclasses.is_dataclass(default):
        return said == kind_of(type(default))
    if isinstance(said, str) and isinstance(default, int | float) and not isinstance(default, bool):
        return float(said.replace(",", "")) == default
    return said == default


def classes(root: type[Any], page: str) -> dict[str, list[Any]]:
    """The config classes that a page tells of, by kind and by the key that they stand under."""
    found: dict[str, list[Any]] = {}
    for place, word, hint in fields(root):
        if page in pages_of(root, place):
            for cls in [*choices_of(hint).values(), hint]:
                if isinstance(cls, type) and dataclasses.is_dataclass(cls):
                    found.setdefault(word, []).append(cls)
    return found


def told_defaults(root: type[Any], page: str) -> Iterator[tuple[str, object, list[object]]]:
    """(key, default as a table of the page tells it, defaults that it has in the classes which the table is of).

    Tables of "setting of `name`" with a column of defaults, and rows of a kind with "`key` = default" in the second.
    """
    known, section = classes(root, page), list[Any]()
    for line in (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        heading = re.match(r"\| setting of `\[?(\w+)\]?` \| default \|", line)
        kind = known.get(cells[0].strip("`"), [])
        said: list[tuple[str, str]] = []
        of = section
        if heading:
            section = known.get(heading[1], [])
        elif not line.startswith("|"):
            section = []
        elif section and cells[1]:
            said = (
                list(zip(re.findall(r"`(\w+)`", cells[0]), cells[1].split(", "), strict=True))
                if "`" in cells[0]
                else []
            )
        elif kind:
            said, of = re.findall(r"`(\w+)` = (\"\w*\"|[\w.-]+)", cells[1]), kind
        for key, one in said:
            if key != "kind":
                yield key, value_of(one), [default_of(cls, key) for cls in of]


def default_of(cls: type[Any], key: str) -> object:
    return {item.name: item.default for item in dataclasses.fields(cls)}.get(key)


@pytest.mark.parametrize(
    ("root", "page", "least"),
    [
        (Config, "models", 27),
        (Config, "training", 46),
        (Config, "decoding", 25),
        (Config, "speech-and-images", 9),
        (Prepare, "data", 8),
        (Prepare, "speech-and-images", 6),
    ],
)
def test_tables_tell_the_real_defaults(root: type[Any], page: str, least: int) -> None:
    told = list(told_defaults(root, page))
    wrong = [(key, said, real) for key, said, real in told if not any(same(said, one) for one in real)]
    assert not wrong
    assert len(told) >= least
