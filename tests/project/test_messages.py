"""Every error text that a user can meet stands, in part, in some test.

The package is read with `ast`. Each call of UserError, ConfigError, DataError or RunError (and of `require`, which
raises for the search settings) has a message: the literal parts of its argument, what stands between braces left out.
Where the argument is itself a call of a function of the same file (`RunError(_pickle_text(path))`), the strings that
this function returns are taken. A message counts as tested when twelve characters of it in a row occur in the source
of a test: twelve that occur in no other message, unless all of it does. That is no proof that the test reads the right
text; it is proof that somebody had this text in mind, and fails for a message that nobody has thought of. Messages of
fewer literal characters only pass another text on.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENOUGH = 12  # characters in a row
RAISERS = {"UserError": 0, "ConfigError": 0, "DataError": 0, "RunError": 0, "require": 3}  # which argument is the text


@dataclass(frozen=True)
class Message:
    """Where it is raised, and the literal parts of its text."""

    place: str
    parts: tuple[str, ...]

    @property
    def windows(self) -> set[str]:
        return {part[i : i + ENOUGH] for part in self.parts for i in range(len(part) - ENOUGH + 1)}


def literals(node: ast.AST) -> Iterator[str]:
    """String constants below a node, those of f-strings without their braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif not isinstance(node, ast.FormattedValue):
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def text_of(argument: ast.expr, functions: dict[str, ast.FunctionDef]) -> tuple[str, ...]:
    if isinstance(argument, ast.Call):
        called = argument.func.attr if isinstance(argument.func, ast.Attribute) else getattr(argument.func, "id", "")
        if called in functions:
            returns = [node for node in ast.walk(functions[called]) if isinstance(node, ast.Return)]
            return tuple(part for node in returns for part in literals(node))
    return tuple(literals(argument))


def messages(source: str, name: str) -> list[Message]:
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISERS:
            message = Message(f"{name}:{node.lineno}", text_of(node.args[RAISERS[node.func.id]], functions))
            if message.windows:
                found.append(message)
    return found


@cache
def test_sources() -> str:
    """All that stands in other test files; adjacent literals, which only the line length parts, are joined."""
    texts = []
    for path in sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}):
        source = path.read_text(encoding="utf-8")
        texts += [source, *literals(ast.parse(source))]
    return "\n".join(texts)


test_sources.__test__ = False  # type: ignore[attr-defined]
FILES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "transduce").rglob("*.py"))}
MESSAGES = {name: messages(path.read_text(encoding="utf-8"), name) for name, path in FILES.items()}


TIMES = Counter(window for found in MESSAGES.values() for message in found for window in message.windows)


@pytest.mark.parametrize("name", [name for name, found in MESSAGES.items() if found])
def test_every_message_stands_in_a_test(name: str) -> None:
    tests, untested = test_sources(), []
    for message in MESSAGES[name]:
        own = {window for window in message.windows if TIMES[window] == 1}
        if not any(window in tests for window in own or message.windows):
            untested.append(message)
    assert not untested, "\n".join(f"{message.place}: {' ... '.join(message.parts)}" for message in untested)


def test_messages_are_found_in_all_their_forms() -> None:
    source = """
raise DataError("a plain message, " "in two pieces")
raise ConfigError(f"{where}: not so, {what!r} is wrong; see {place}")
raise RunError(told(path)) from None
raise RunError(_again(path))
require(size > 0, "size", size, "an integer of at least 1")
raise ConfigError(f"{where}.{error}")
raise ValueError("not a message to users")
def _again(path):
    if path:
        return f"{path}: this is what is returned"
    return "or this text instead"
"""
    found = messages(source, "x.py")
    assert [message.place for message in found] == ["x.py:2", "x.py:3", "x.py:5", "x.py:6"]
    assert found[0].parts == ("a plain message, in two pieces",)
    assert found[1].parts == (": not so, ", " is wrong; see ")
    assert set(found[2].parts) == {": this is what is returned", "or this text instead"}
    assert found[3].parts == ("an integer of at least 1",)


def test_there_are_many() -> None:
    assert sum(map(len, MESSAGES.values())) > 100
