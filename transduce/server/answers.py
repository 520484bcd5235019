"""JSON responses, large ones written in a thread in small steps; and the exception that rejects a request.

`json.dumps` holds the interpreter's lock until it is done, in a thread too. A large answer is therefore written piece
by piece, so that the event loop has its turn in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import Response


class Refused(Exception):
    """A rejected request: an HTTP `status`, a `message` for people, a `code` for programs.

    `retry_after` (seconds) says when to retry, `close` that the connection must not be used further, `language` which
    language a text seems to be in, where that is the reason.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str = "",
        retry_after: int = 0,
        close: bool = False,
        language: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.language = status, message, code, language
        self.retry_after, self.close = retry_after, close


class Gone(Exception):
    """The client has disconnected."""


LARGE = 16384  # characters or numbers of an answer, by a rough count, from which it is written in a thread
CHUNK = 512  # items of a flat list that are written at once


class Json(Response):
    """A tree as JSON in UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else _dumped(content).encode()


async def rendered(make: Callable[[], Any], size: int) -> Json:
    """The response that `make` gives; made and written in a thread if its `size` is large."""
    if size < LARGE:
        return Json(make())
    return Json(await asyncio.to_thread(lambda: b"".join(piece.encode() for piece in pieces(make()))))


def pieces(tree: Any) -> Iterator[str]:
    """Yield the output of `json.dumps` in pieces, none of which takes long."""
    if isinstance(tree, dict):
        yield "{"
        for number, (name, value) in enumerate(tree.items()):
            yield f"{',' if number else ''}{_dumped(name)}:"
            yield from pieces(value)
        yield "}"
    elif isinstance(tree, (list, tuple)) and any(isinstance(item, (dict, list, tuple)) for item in tree):
        yield "["
        for number, item in enumerate(tree):
            yield "," if number else ""
            yield from pieces(item) if _is_deep(item) else (_dumped(item),)
        yield "]"
    elif isinstance(tree, (list, tuple)):
        yield "["
        for begin in range(0, len(tree), CHUNK):
            yield ("," if begin else "") + _dumped(tree[begin : begin + CHUNK])[1:-1]
        yield "]"
    else:
        yield _dumped(tree)


def _is_deep(tree: Any) -> bool:
    """Whether it may hold more than a few numbers or texts."""
    return isinstance(tree, dict) or (isinstance(tree, (list, tuple)) and len(tree) > 8)


def _dumped(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
