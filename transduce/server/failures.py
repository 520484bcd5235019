"""What a request can be refused for: one exception, answered in the words of the protocol that was spoken."""

from __future__ import annotations


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
