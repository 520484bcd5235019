"""Every key and word of every config stays what it is: folders, files and command lines of users have them.

`config_words.txt` lists them. A new setting is added there by hand (the failing test prints the lines); one that goes
or is renamed breaks what people have, so its old name goes into the table of transduce/core/config.py and is still
read.
"""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.core import config as configs
from transduce.data.prepare.run import Prepare
from transduce.lab.catalogue import EXPERIMENTS
from transduce.server.settings import Settings
from transduce.workflows.compare.plan import Comparison
from transduce.workflows.gather.settings import Gather
from transduce.workflows.pipeline.plan import Pipeline, _One

WORDS = Path(__file__).with_name("config_words.txt")


def roots() -> dict[str, Any]:
    found: dict[str, Any] = {
        "train": transduce.Config, "prepare": Prepare, "gather": Gather, "compare": Comparison, "pipeline": Pipeline,
        "stage": _One, "serve": Settings,
    }  # fmt: skip
    return found | {f"lab {one.name}": one.settings for one in EXPERIMENTS}


def words_of(kind: Any, where: str, seen: tuple[Any, ...] = ()) -> Iterator[str]:
    """One line a setting: its key, with the kinds that lead there in brackets, and what it may be."""
    if typing.get_origin(kind) is tuple:
        for one in {*typing.get_args(kind)} - {Ellipsis}:
            yield from words_of(one, f"{where}[]", seen)
    elif choices := configs.choices_of(kind):
        yield f"{where} = {' | '.join(choices)}"
        for word, cls in choices.items():
            yield from words_of(cls, f"{where}({word})", seen)
    elif dataclasses.is_dataclass(kind) and kind not in seen:
        for name, hint in configs.hints_of(kind).items():
            yield from words_of(hint, f"{where}.{name}", (*seen, kind))
    elif not dataclasses.is_dataclass(kind):
        words = configs.words_of(kind)
        yield f"{where}: {' | '.join(map(str, words)) or getattr(kind, '__name__', str(kind))}"


@pytest.mark.parametrize("name", roots())
def test_words_of_configs_stay(name: str) -> None:
    listed = [
        line for line in WORDS.read_text(encoding="utf-8").split("\n") if line.startswith((f"{name}.", f"{name} ="))
    ]
    found = [*words_of(roots()[name], name)]
    changes = [f"- {line}" for line in listed if line not in found]
    changes += [f"+ {line}" for line in found if line not in listed]
    assert not changes, f"{WORDS.name}, kept sorted, differs by:\n" + "\n".join(changes)


def test_nothing_else_is_listed() -> None:
    lines = WORDS.read_text(encoding="utf-8").strip().split("\n")
    assert lines == sorted(lines)
    assert all(line.startswith(tuple(f"{name}." for name in roots())) for line in lines)


def test_old_names_lead_to_settings_that_are_there() -> None:
    for name, names in configs.RENAMED.items():
        module, _, cls = name.partition(":")
        settings = configs.hints_of(getattr(importlib.import_module(module), cls))
        assert settings
        assert set(names.values()) <= set(settings)
        assert not set(names) & set(settings)


@pytest.mark.parametrize(
    ("root", "words", "expected"),
    [
        ("serve", ["patience=0.5", "gather=0.1"], {"queue_seconds": 0.5, "batch_seconds": 0.1}),
        ("lab norms", ["companies=[3]"], {"batch_sizes": (3,)}),
        ("lab decoding", ["patience=2.0"], {"training_factor": 2.0}),
    ],
)
def test_old_names_are_read(root: str, words: list[str], expected: dict[str, Any]) -> None:
    config = configs.load(roots()[root], None, words)
    assert {name: getattr(config, name) for name in expected} == expected


def test_the_config_of_an_old_image_model_is_read() -> None:
    distortion = {"kind": "distortion", "turn": 5.0}
    source = {"kind": "patches", "augment": distortion}
    model = configs.parse(transduce.Config, {"model": {"source": source, "tie": "target"}}).model
    assert model.source.augment.rotation == 5.0  # type: ignore[union-attr]
