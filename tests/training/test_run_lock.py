"""The lock of a run folder, between real processes, and after the holder was killed."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.core.errors import RunError
from transduce.core.processes import RunLock


def say_ready(writer: int) -> None:
    os.write(writer, b"!")
    os.close(writer)


def start(work: Callable[[Callable[[], None]], None]) -> int:
    """Fork a process that calls `work(ready)`; returns its id once it has called `ready()`."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reader)
            work(lambda: say_ready(writer))
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"!"
    os.close(reader)
    return process


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def hold(folder: Path) -> Callable[[Callable[[], None]], None]:
    def work(ready: Callable[[], None]) -> None:
        with RunLock(folder):
            ready()
            time.sleep(60)

    return work


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    process = start(hold(tmp_path))
    try:
        with pytest.raises(RunError) as caught, RunLock(tmp_path):
            pass
        assert re.fullmatch(
            rf"{tmp_path} is being trained by process {process} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d on \S+; "
            "wait for it, or choose another folder",
            str(caught.value),
        )
    finally:
        kill(process)
    with RunLock(tmp_path):
        assert f"process {os.getpid()} since" in (tmp_path / ".lock").read_text()


def test_a_child_that_outlives_a_killed_trainer_does_not_hold_the_folder(tmp_path: Path) -> None:
    pipe_reader, pipe_writer = os.pipe()

    def work(ready: Callable[[], None]) -> None:
        with RunLock(tmp_path):
            if os.fork() == 0:
                os.write(pipe_writer, str(os.getpid()).encode())
                time.sleep(60)
                os._exit(0)
            ready()
            time.sleep(60)

    process = start(work)
    worker = int(os.read(pipe_reader, 20))
    os.close(pipe_reader)
    os.close(pipe_writer)
    try:
        with pytest.raises(RunError), RunLock(tmp_path):
            pass
        kill(process)
        os.kill(worker, 0)  # raises if the worker is gone
        with RunLock(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)


def test_forking_does_not_release_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(RunError, match=f"being trained by process {os.getpid()} since"), RunLock(tmp_path):
            pass
    with RunLock(tmp_path), pytest.raises(RunError), RunLock(tmp_path):
        pass


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        _ = 1 / 0
    with RunLock(tmp_path):
        pass


def test_a_holder_that_has_not_signed_yet_is_another_process(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(RunError, match="is being trained by another process; wait for it"), RunLock(tmp_path):
            pass


def test_a_folder_that_is_missing_or_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RunError, match=r"nowhere: locking the run folder failed: No such file or directory: .*\.lock\."
    ):
        RunLock(tmp_path / "nowhere").__enter__()

    def refuse(path: Path, *_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RunError, match=r"locking the run folder failed: Read-only file system: .*can be written to"):
        RunLock(tmp_path).__enter__()
