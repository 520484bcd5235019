"""`run("translate", folder, stdin=b"...")` calls `main()` in this process, which is quicker than a new one."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from transduce.__main__ import main

PROGRAM = [sys.executable, "-m", "transduce"]  # a real process, for what only one shows


@dataclass(frozen=True)
class Ran:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """Of standard output; each must end."""
        assert self.out == b"" or self.out.endswith(b"\n")
        return self.out.decode().split("\n")[:-1]


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """`run("translate", folder, stdin=b"...")`: the program in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: str | Path, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsysbinary.readouterr()
        assert isinstance(code, int)
        return Ran(code, out, err.decode())

    return call


def refused(ran: Ran) -> str:
    """The text of a user's error: exit code 2, nothing but that text, no traceback."""
    assert ran.code == 2, ran
    assert ran.err.startswith("error: "), ran.err
    assert "Traceback" not in ran.err
    return ran.err.removeprefix("error: ").rstrip("\n")
