"""Answers as JSON: small ones at once, large ones in a thread and in many small steps.

`json.dumps` holds the interpreter's lock until it is done, in a thread too. A large answer is therefore written piece
by piece, so that the event loop has its turn in between.

What a request can be refused for: one exception, answered in the words of the protocol that was spoken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import Response


class Refused(Exception):
    """A request is not answered: an HTTP `status`, a `message` for people, a `code` for programs.

    `retry_after` (seconds) says when to come again, `close` that the connection must not be used further.
    """

    def __init__(self, status: int, message: str, code: str = "", retry_after: int = 0, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.retry_after, self.close = retry_after, close


class Gone(Exception):
    """Nobody waits for the answer any more."""


LARGE = 16384  # characters or numbers of an answer, by a rough count, from which it is written in a thread
STRETCH = 512  # items of a flat list that are written at once


class Json(Response):
    """A tree as JSON in UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else _dumped(content).encode()


async def rendered(make: Callable[[], Any], size: int) -> Json:
    """The answer that `make` gives, where its `size` is large made and written in a thread."""
    if size < LARGE:
        return Json(make())
    return Json(await asyncio.to_thread(lambda: b"".join(piece.encode() for piece in pieces(make()))))


def pieces(tree: Any) -> Iterator[str]:
    """JSON in pieces, none of which takes long: what they are together is what `json.dumps` gives."""
    if isinstance(tree, dict):
        yield "{"
        for number, (name, value) in enumerate(tree.items()):
            yield f"{',' if number else ''}{_dumped(name)}:"
            yield from pieces(value)
        yield "}"
    elif isinstance(tree, (list, tuple)) and any(isinstance(one, (dict, list, tuple)) for one in tree):
        yield "["
        for number, one in enumerate(tree):
            yield "," if number else ""
            yield from pieces(one) if _is_deep(one) else (_dumped(one),)
        yield "]"
    elif isinstance(tree, (list, tuple)):
        yield "["
        for begin in range(0, len(tree), STRETCH):
            yield ("," if begin else "") + _dumped(tree[begin : begin + STRETCH])[1:-1]
        yield "]"
    else:
        yield _dumped(tree)


def _is_deep(tree: Any) -> bool:
    """Whether it may hold more than a few numbers or texts."""
    return isinstance(tree, dict) or (isinstance(tree, (list, tuple)) and len(tree) > 8)


def _dumped(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
