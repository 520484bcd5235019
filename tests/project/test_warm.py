"""warm.py's program does as Python does: words, streams, folder, environment, exit codes, signals, tracebacks."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TELL = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ.get("TOLD"), sys.stdin.read(), __name__)
print("in error", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("way", ["-c", "-m", "path"])
def test_it_does_as_python_does(warm: str, tmp_path: Path, way: str) -> None:
    (tmp_path / "told.py").write_text(TELL)
    words = {"-c": ["-c", TELL], "-m": ["-m", "told"], "path": [str(tmp_path / "told.py")]}[way]
    ran = [
        subprocess.run(
            [program, *words, "one", "two words"],
            input=b"read",
            cwd=tmp_path,
            env={**os.environ, "TOLD": "so"},
            capture_output=True,
            check=False,
        )
        for program in (warm, sys.executable)
    ]
    assert (ran[0].returncode, ran[0].stdout, ran[0].stderr) == (ran[1].returncode, ran[1].stdout, ran[1].stderr)
    assert ran[0].returncode == 3
    assert b"['one', 'two words']" in ran[0].stdout


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there it is Python itself")
def test_torch_is_there(warm: str) -> None:
    loaded = "import sys; sys.exit('torch' not in sys.modules)"
    assert subprocess.run([warm, "-c", loaded], check=False).returncode == 0


def test_an_error_nobody_caught(warm: str) -> None:
    ran = subprocess.run([warm, "-c", "raise ValueError('so')"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.split("\n")[-2]) == (1, "ValueError: so")


WAIT = """
import os, signal, time
signal.signal(signal.SIGINT, lambda number, frame: os._exit(7))
print(os.getpid(), flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 7), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_reaches_it(warm: str, number: signal.Signals, code: int) -> None:
    with subprocess.Popen([warm, "-c", WAIT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == code


def test_when_the_fork_is_killed_the_program_dies_so(warm: str) -> None:
    with subprocess.Popen([warm, "-c", WAIT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL


def call(warm: str, words: list[str], cut: int | None = None) -> None:
    """What the program does until it is told who works for it, and there it dies; or when it has sent so many bytes."""
    with socket.socket(socket.AF_UNIX) as server, Path(os.devnull).open("r+b") as nothing:
        server.connect(ast.literal_eval(Path(warm).read_text().split("server.connect(")[1].split(")\n")[0]))
        said = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [len(said).to_bytes(8, "big")], [nothing.fileno()] * 3)
        server.sendall(said[:cut])


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there it is Python itself")
def test_nobody_works_for_a_program_that_was_killed_before_it_knew_who_does(warm: str, tmp_path: Path) -> None:
    """Such a one would be a rank of a group that has long gone on without it."""
    for number, cut in enumerate((None, 0, 10)):
        call(warm, ["-c", f"import time; time.sleep(0.5); open({str(tmp_path / str(number))!r}, 'w')"], cut)
    late = f"import time; time.sleep(1.5); open({str(tmp_path / 'late')!r}, 'w')"
    assert subprocess.run([warm, "-c", late], check=False).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["late"]


def test_when_the_program_is_killed_so_is_the_fork(warm: str) -> None:
    with subprocess.Popen([warm, "-c", WAIT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == b""  # nobody is left who could write
