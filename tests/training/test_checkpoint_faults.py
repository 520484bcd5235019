"""Saving under fire: SIGKILL and power loss at every step of a save, errors of the disk at every step, a full disk.

The harness counts the calls that change the disk (create, each half of a write, sync, rename, delete) and strikes at
the k-th, for every k until a save gets through. Children are forked, so that torch is imported once.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from snapshots import make_snapshot, same

from transduce.core import durable
from transduce.core.errors import RunError
from transduce.training import checkpoint
from transduce.training.checkpoint import (
    Snapshot,
    clean_leftovers,
    newest_good,
    prune,
    read_checkpoint,
    save_checkpoint,
)

CALLS = ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir")
OLD, NEW = make_snapshot(100), make_snapshot(200)


class Halves:
    """A file whose every write is two, with a strike before each."""

    def __init__(self, file: io.FileIO, strike: Callable[[], None]) -> None:
        self.file, self.strike = file, strike
        self.flush, self.fileno = file.flush, file.fileno

    def __enter__(self) -> Halves:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self.strike()
            self.file.write(part)


class Watch:
    """Calls `strike(call, arguments)` before each call that changes the disk, and in the middle of every write."""

    def __init__(self, patch: pytest.MonkeyPatch, strike: Callable[[str, tuple[Any, ...]], None]) -> None:
        self.strike = strike
        self.unsynced: dict[int, int] = {}  # inode -> a descriptor of our own, valid whatever the file is called
        for call in CALLS:
            patch.setattr(os, call, self.wrap(call, getattr(os, call)))
        patch.setattr(durable, "open", self.open, raising=False)

    def wrap(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.strike(call, arguments)
            result = original(*arguments, **options)
            if call == "fsync":
                self.unsynced.pop(os.fstat(arguments[0]).st_ino, None)
            return result

        return wrapped

    def open(self, path: Path, mode: str) -> Halves:
        self.strike("open", (path,))
        file = io.FileIO(path, mode)
        self.unsynced[os.fstat(file.fileno()).st_ino] = os.dup(file.fileno())
        return Halves(file, lambda: self.strike("write", (path,)))

    def lose_power(self) -> None:
        """What was not synced is gone, although its name may have survived: the worst a journal can do."""
        for descriptor in self.unsynced.values():
            os.ftruncate(descriptor, 0)


def killed_at(count: int, work: Callable[[], None], power: bool) -> bool:
    """Run `work` in a forked process that dies at its `count`-th call; False if it got through."""
    process = os.fork()
    if process == 0:
        remaining = count

        def strike(call: str, arguments: tuple[Any, ...]) -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                if power:
                    watch.lose_power()
                os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            watch = Watch(pytest.MonkeyPatch(), strike)
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the save itself failed in the child"
    return os.WIFSIGNALED(status)


def newest_step(run: Path) -> int | None:
    found = newest_good(run)
    return found.step if found else None


def content(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def save_and_prune(run: Path) -> None:
    save_checkpoint(run, NEW)
    prune(run, {NEW.step})


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
@pytest.mark.parametrize("before", ["nothing", "old", "old and damaged"])
def test_a_kill_at_every_call_leaves_a_whole_checkpoint(tmp_path: Path, before: str, power: bool) -> None:
    start = tmp_path / "start"
    start.mkdir()
    if before != "nothing":
        save_checkpoint(start, OLD)
    if before == "old and damaged":
        state = save_checkpoint(start, NEW) / "state.json"
        state.write_bytes(state.read_bytes()[:-1])
    count, seen = 0, set()
    while True:
        count += 1
        run = tmp_path / f"run{count}"
        shutil.copytree(start, run)
        if not killed_at(count, partial(save_and_prune, run), power):
            break
        found = newest_good(run)
        seen.add(newest_step(run))
        assert found is not None or before == "nothing"
        assert found is None or same(read_checkpoint(found.path), {100: OLD, 200: NEW}[found.step])
        clean_leftovers(run)
        assert all(".tmp-" not in path.name for path in run.rglob("*"))
        save_and_prune(run)
        assert content(run) == {"latest", "step-00000200"}
        assert same(read_checkpoint(run / "checkpoints" / "step-00000200"), NEW)
        shutil.rmtree(run)
    assert seen == {None if before == "nothing" else 100, 200}
    assert count > {"nothing": 25, "old": 30, "old and damaged": 40}[before]


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path: Path) -> None:
    """No harness: a process that saves step after step, killed by the clock, picked up by the next one."""
    moments, reached = random.Random(5), 1
    started = time.monotonic()
    save_checkpoint(tmp_path, make_snapshot(1, width=5000))
    pace = time.monotonic() - started  # of this machine, at this hour
    for _ in range(20):
        process = os.fork()
        if process == 0:
            try:
                for step in range(reached + 1, reached + 1000):
                    save_checkpoint(tmp_path, make_snapshot(step, width=5000))
                    prune(tmp_path, {step, step - 1})
            finally:
                os._exit(1)
        time.sleep(0.01 + pace * moments.uniform(0, 6))
        os.kill(process, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(process, 0)[1])
        found = newest_good(tmp_path)
        clean_leftovers(tmp_path)
        assert found is not None
        assert same(read_checkpoint(found.path), make_snapshot(found.step, width=5000))
        assert found.step >= reached
        assert not any("falling back" in note for note in found.notes)
        reached = found.step
    assert reached > 10


def test_everything_is_synced_before_its_name_and_old_ones_go_last(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, OLD)
    events: list[tuple[str, str]] = []

    def record(call: str, arguments: tuple[Any, ...]) -> None:
        place = arguments[0]
        name = Path(os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place).name
        events.append(
            (call, name.partition(".tmp-")[0] if call != "fsync" else name.replace(f".tmp-{os.getpid()}", "*"))
        )

    with pytest.MonkeyPatch.context() as patch:
        Watch(patch, record)
        save_and_prune(tmp_path)
    renamed = events.index(("rename", "step-00000200"))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        assert events.index(("fsync", name)) < renamed
    assert events.index(("fsync", "state.json")) < events.index(("open", "manifest.json")), "the manifest comes last"
    assert events[renamed - 1] == ("fsync", "step-00000200*"), "the names in the folder, before the folder's own"
    assert events[renamed + 1] == ("fsync", "checkpoints")
    moved = events.index(("replace", "latest"))
    assert events[moved - 1 : moved + 2] == [("fsync", "latest*"), ("replace", "latest"), ("fsync", "checkpoints")]
    assert moved > renamed
    first_deletion = events.index(("rename", "step-00000100"))
    assert first_deletion > moved + 1
    assert events[first_deletion + 1] == ("fsync", "checkpoints")
    assert all(index > first_deletion for index, event in enumerate(events) if event[0] in ("unlink", "rmdir"))


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_an_error_at_every_call_keeps_the_last_checkpoint(tmp_path: Path, code: int, lasting: bool) -> None:
    """`lasting` fails all later writes too, but not deletions: what a full disk does."""
    words = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
    start = tmp_path / "start"
    start.mkdir()
    save_checkpoint(start, OLD)
    for count in range(1, 1000):
        run, calls = tmp_path / f"run{count}", 0
        shutil.copytree(start, run)

        def strike(call: str, arguments: tuple[Any, ...], count: int = count) -> None:
            nonlocal calls
            calls += 1
            if (calls == count or (lasting and calls > count)) and call not in ("unlink", "rmdir"):
                raise OSError(code, os.strerror(code), str(arguments[0]))

        with pytest.MonkeyPatch.context() as patch:
            Watch(patch, strike)
            try:
                save_checkpoint(run, NEW)
                break
            except RunError as error:
                text = str(error)
        assert text.startswith(str(run))
        assert words.get(code, os.strerror(code)) in text
        assert all(".tmp-" not in path.name for path in run.rglob("*")), f"left behind at call {count}"
        found = newest_good(run)
        assert found is not None
        assert same(read_checkpoint(found.path), {100: OLD, 200: NEW}[found.step])
        save_checkpoint(run, NEW)
        assert same(read_checkpoint(run / "checkpoints" / "step-00000200"), NEW)
    assert count > 25


def test_too_little_space_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, OLD)
    big = Snapshot(200, {"model": {"weight": torch.zeros(1_000_000)}}, {})
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4_000_000))
    with pytest.raises(RunError) as caught:
        save_checkpoint(tmp_path, big)
    assert str(caught.value) == (
        f"{tmp_path}: the disk is full (saving the checkpoint of step 200): 5,049,088 bytes needed, 4,000,000 free. "
        "Earlier checkpoints are untouched. Free some space there, then run the same command again to resume."
    )
    assert content(tmp_path) == {"latest", "step-00000100"}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5_049_088))
    save_checkpoint(tmp_path, big)


def test_the_estimate_covers_what_is_written(tmp_path: Path) -> None:
    many = Snapshot(1, {"model": {f"layer.{n}.attention.projection.weight": torch.ones(1) for n in range(3000)}}, {})
    path = save_checkpoint(tmp_path, many)
    assert sum(file.stat().st_size for file in path.iterdir()) < checkpoint._bytes_needed(many)


def test_a_run_folder_removed_while_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    save_checkpoint(run, OLD)
    shutil.rmtree(run)
    with pytest.raises(RunError) as caught:
        save_checkpoint(run, NEW)
    assert str(caught.value) == (
        f"{run}: saving the checkpoint of step 200 failed: No such file or directory: {run}/checkpoints. "
        "Check that the folder still exists and can be written to, then run the same command again."
    )
    assert not run.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four mebibytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "transduce-test", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(small_disk, OLD)
    big = Snapshot(200, {"model": {"weight": torch.zeros(2_000_000)}}, {})
    with pytest.raises(RunError, match=r"the disk is full .*9,049,088 bytes needed, [\d,]+ free"):
        save_checkpoint(small_disk, big)
    monkeypatch.setattr(checkpoint, "require_space", lambda *_: None)  # another program took the space after the check
    with pytest.raises(RunError, match=r"the disk is full .*9,049,088 bytes needed, [\d,]+ free"):
        save_checkpoint(small_disk, big)
    assert content(small_disk) == {"latest", "step-00000100"}
    assert newest_step(small_disk) == 100
    save_checkpoint(small_disk, NEW)


def test_a_folder_that_is_really_read_only(small_disk: Path) -> None:
    for snapshot in (make_snapshot(50), OLD):
        save_checkpoint(small_disk, snapshot)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match=r"disk: saving the checkpoint of step 200 failed: Read-only file system: "):
        save_checkpoint(small_disk, NEW)
    with pytest.raises(RunError, match=r"disk: deleting old checkpoints failed: Read-only file system"):
        prune(small_disk, {100})
    assert newest_step(small_disk) == 100
