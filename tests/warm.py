"""A Python that has torch loaded: `warm` is a program called as `python` is, with `-m`, `-c` or the path of a script.

Importing torch takes a process seconds, and tests start a hundred. This program asks a server that has imported it
(warm_server.py) for a fork, which gets the caller's words, folder, environment and standard streams. Signals sent to
the program reach the fork, and the program ends as the fork ends. What the start of Python decides cannot be tested so:
encodings, buffering, and what is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(said).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(said)
    child = int.from_bytes(server.recv(8), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of the program; in its folder lies `transduce` too. Python itself where there is no way to do this."""
    if not hasattr(os, "pidfd_open"):
        yield sys.executable
        return
    folder = tmp_path_factory.mktemp("warm")
    address = f"\0transduce-{os.getpid()}-{folder}"[:100]  # not in a folder, whose path may be too long for it
    python, command = folder / "python", folder / "transduce"
    python.write_text(PROGRAM.format(python=sys.executable, address=address))
    command.write_text(f'#!/bin/sh\nexec {python} -m transduce "$@"\n')
    for program in (python, command):
        program.chmod(0o755)
    words = [sys.executable, str(Path(__file__).with_name("warm_server.py")), address[1:], str(python)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield str(python)
        assert server.stdin is not None
        server.stdin.close()  # at which it ends, also if this process is killed
