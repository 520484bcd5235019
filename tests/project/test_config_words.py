"""Every key and word of every config stays what it is: folders, files and command lines of users have them.

`config_words.txt` lists them. A new setting is added there by hand (the failing test prints the lines); one that goes
or is renamed breaks what people have, so an old word must go on being read (transduce/core/config.py).
"""

from __future__ import annotations

import dataclasses
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
