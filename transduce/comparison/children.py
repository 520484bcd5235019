"""Processes of a comparison: several side by side, each with a log of its own, all stopped gently by one signal.

A child is in a session of its own, so that Ctrl-C in a terminal reaches it once, through us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.durable import disk_errors
from transduce.own_classes import import_path
from transduce.progress import Progress, seconds_as_text
from transduce.training.signals import StopRequest

LOOK_SECONDS = 0.2  # between two looks at the children
# `python -m` would put the current folder first, whose `transduce.py` or `random.py` would run: not so the command.
PROGRAM = (
    "import runpy, sys; sys.path[:] = {path!r}; del sys.argv[0]; runpy.run_module(sys.argv[0], None, '__main__', True)"
)


@dataclass(frozen=True)
class ChildTask:
    """A module run as a program, with its words; it imports from where this process does.

    `done` tells how much of `total` it has done, for the progress line. It waits for the tasks labelled `after` that
    stand before it, and fails with them.
    """

    label: str
    words: tuple[str, ...]
    log: Path
    total: int
    done: Callable[[], int]
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """What became of tasks: `failures` by label, and the signal that stopped them all, if one did."""

    failures: dict[str, str]
    signal: signal.Signals | None = None


class _Child:
    """One running task."""

    def __init__(self, task: ChildTask, environment: dict[str, str]) -> None:
        self.task = task
        self.begun = time.monotonic()
        self.asked = False  # to stop
        with disk_errors(task.log.parent, f"writing {task.log.name}", needed=4096):
            task.log.parent.mkdir(parents=True, exist_ok=True)
            self._log = task.log.open("ab")
        self._from = self._log.tell()
        command = [sys.executable, "-P", "-c", PROGRAM.format(path=import_path()), *task.words]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def close(self) -> str:
        """Wait for the end; gives why it failed, "" if it did not."""
        code = self._process.wait()
        self._log.close()
        if code == 0:
            return ""
        last = self._last_line()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}" + (f", after: {last}" if last else "")
        return last or f"ended with code {code} and no word"

    def _last_line(self) -> str:
        """The last words of this attempt, which an error's text is; the log may hold earlier attempts."""
        with self.task.log.open("rb") as file:
            file.seek(self._from)
            lines = file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_tasks(title: str, unit: str, tasks: Sequence[ChildTask], jobs: int, threads: int = 0) -> Ended:
    """Run tasks, `jobs` at a time, each with `threads` CPU threads (0: its own choice). A failure stops no other."""
    environment = dict(os.environ)
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    waiting, running, failures = list(tasks), list[_Child](), dict[str, str]()
    left = sum(task.total - task.done() for task in tasks)
    seen = {task.label: task.done() for task in tasks}
    with StopRequest() as stop, Progress(title, left, unit) as progress:
        try:
            while waiting or running:
                if stop.signal and waiting:
                    waiting.clear()
                _leave_out(waiting, failures, progress)
                while len(running) < jobs and (task := _next(waiting, running)):
                    waiting.remove(task)
                    running.append(_Child(task, environment))
                _look(running, failures, seen, progress, stop)
                time.sleep(LOOK_SECONDS)
        finally:  # something of ours failed, or a second Ctrl-C: nothing may go on by itself
            for child in running:
                child.terminate()
                child.close()
    return Ended({} if stop.signal else failures, stop.signal)


def _next(waiting: Sequence[ChildTask], running: Sequence[_Child]) -> ChildTask | None:
    """The first task that has nothing to wait for."""
    unfinished = {child.task.label for child in running} | {task.label for task in waiting}
    return next((task for task in waiting if unfinished.isdisjoint(task.after)), None)


def _leave_out(waiting: list[ChildTask], failures: dict[str, str], progress: Progress) -> None:
    """Tasks that wait for one that failed fail with it; in order, so that what waits for them does too."""
    for task in list(waiting):
        needed = next((label for label in task.after if label in failures), None)
        if needed is not None:
            waiting.remove(task)
            progress.advance(task.total - task.done())
            failures[task.label] = f"not begun, for it needs {needed}, which failed"
            progress.say(f"{task.label}: {failures[task.label]}")


def _look(
    running: list[_Child], failures: dict[str, str], seen: dict[str, int], progress: Progress, stop: StopRequest
) -> None:
    """See how far each child is; those that ended leave `running`."""
    for child in list(running):
        ended, task = child.ended(), child.task
        done = task.total if ended else min(task.done(), task.total)
        progress.advance(max(0, done - seen[task.label]))
        seen[task.label] = max(done, seen[task.label])
        if ended:
            running.remove(child)
            failure = child.close()
            took = seconds_as_text(time.monotonic() - child.begun)
            if failure and not stop.signal:
                failures[task.label] = failure
                progress.say(f"{task.label}: failed after {took}: {failure}")
            elif not failure:
                progress.say(f"{task.label}: {progress.title.lower()} took {took}")
        elif stop.signal and not child.asked:
            child.asked = True
            child.terminate()
